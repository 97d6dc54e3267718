"""Optuna's plots of a sweep, made from frames and restyled for the page."""

import json
import logging
import math
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import optuna
import pandas as pd
from optuna import visualization
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import TrialState
from plotly.colors import sample_colorscale
from pydantic import TypeAdapter, ValidationError

from analysis.groups import finished
from analysis.names import GOOD, NEUTRAL, field_title
from analysis.report.figures import Figure, View
from analysis.report.page import floats
from analysis.study import Study
from analysis.sweeps import (
    TRIALS_FOR_BEST,
    TRIALS_FOR_IMPORTANCE,
    feasible,
    objective,
    objective_column,
    saved_work,
    sweep_contexts,
    sweep_goals,
    variant_rows,
)
from cl2r.metrics import METRICS
from cl2r.runtime.text import listed
from cl2r.study.space import Space, distributions, knobs

SCALE = [[0.0, "#B9BDC1"], [1.0, GOOD]]
"""Readable on light and dark pages and with colour blindness; Optuna's blues are not."""


def restyle(plot: str, figure: Any, higher: bool = True) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return data and layout of one of Optuna's figures in the page's style; `higher` values are better, or lower ones.

    Blue is better and grey is the rest.
    """
    content = json.loads(figure.to_json())
    data, layout = content["data"], content["layout"]
    if {trace["type"] for trace in data} - {"scatter", "bar"}:
        raise ValueError("this version of Optuna draws it with WebGL, which this page does not use")
    for name in ("template", "title", "plot_bgcolor", "width", "height"):
        layout.pop(name, None)
    for name, entry in layout.items():
        if "axis" in name and entry.get("title"):
            entry["title"]["standoff"] = 10
        if "axis" in name and entry.get("type") == "log":
            entry["dtick"] = "D2"  # labels at 1, 2 and 5
    for trace in data:
        for painted in (trace.get("marker", {}), trace.get("line", {})):
            if "colorscale" in painted:
                painted |= {"colorscale": SCALE, "reversescale": not higher}
                painted["colorbar"] = {**painted.get("colorbar", {}), "thickness": 12, "x": 1.02, "xpad": 4}
    if plot == "importance":  # room for the values beside the bars
        longest = max((value for trace in data for value in trace["x"] if value is not None), default=1.0)
        layout.setdefault("xaxis", {})["range"] = [0, 1.15 * longest]
        layout.get("yaxis", {}).pop("title", None)
    most = max((len(trace.get("x") or ()) for trace in data), default=0)
    for trace in data:
        if plot == "importance":
            trace["marker"] = {"color": GOOD}
        elif "Infeasible" in (trace.get("name") or "") and "markers" in trace.get("mode", ""):
            trace["marker"] = {"color": NEUTRAL, "symbol": "circle-open", "size": 8}
        elif plot == "pareto":  # the best trials by colour and shape instead of Optuna's second colour scale
            best = "Best" in trace.get("hovertemplate", "")
            trace["marker"] = {"color": GOOD if best else NEUTRAL, "symbol": "diamond" if best else "circle"}
            trace["marker"]["size"] = 10 if best else 8
        elif plot == "parallel":  # every line by its position on the first axis, the objective
            if trace.get("mode") == "lines" and trace.get("y"):
                height, dash = trace["y"][0], trace.get("line", {}).get("dash", "solid")
                share = None if height is None else min(max(height if higher else 1 - height, 0.0), 1.0)
                colour = NEUTRAL if share is None else sample_colorscale(SCALE, share)[0]  # None: sample of the legend
                trace |= {"line": {"color": colour, "width": 2, "dash": dash}, "opacity": 0.8}
        else:  # larger points; whole numbers on the axis that counts trials
            if "markers" in trace.get("mode", ""):
                trace["marker"] = {"color": NEUTRAL, "size": 8}
            if trace.get("name") == "Best Value":
                trace |= {"name": "best so far", "line": {"color": GOOD, "width": 2}}
            if layout["xaxis"].get("title", {}).get("text") == "Trial":
                layout["xaxis"] |= {"tick0": 0, "dtick": math.ceil(most / 10), "zeroline": False}
    return data, layout


PANEL = 190  # pixels per panel of the slices and per axis of the parallel coordinates


@dataclass(frozen=True)
class Sweep:
    """The figures, and what early stopping saved and which figures are missing in words."""

    figures: tuple[Figure, ...]
    notes: tuple[str, ...]
    trials: int
    complete: int


def sweep_plots(study: Study) -> Sweep | None:
    """Return the plots of a sweep, by means over the seeds of a trial on the tuning pairs; None if it is no sweep.

    Each context is an Optuna study of its own, and a view of each figure.
    """
    if not study.specification.get("space") or "trial" not in study.runs:
        return None
    optuna.logging.set_verbosity(logging.ERROR)
    names = list(sweep_goals(study.specification))
    trials = variant_rows(study.runs)
    try:
        missed = feasible(study.runs, study.specification)
        found = {
            label: _optuna_study(variant_rows(rows), study.specification["space"], names, missed)
            for label, rows in sweep_contexts(study.runs)
        }
    except (ValidationError, ValueError) as error:  # a space or a value that this version does not accept
        reason = f"No plots: the trials do not fit the space: {' '.join(str(error).split())}"
        return Sweep((), (reason,), int(trials["trial"].nunique()), 0)
    figures: dict[str, Figure] = {}
    missing: dict[str, dict[str, list[str]]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns that some plots are experimental
        for label, own in found.items():
            drawn, absent = _figures(own, names, label)
            for figure in drawn:
                earlier = figures.get(figure.id, replace(figure, views=()))
                figures[figure.id] = replace(figure, views=(*earlier.views, *figure.views))
            for name, reason in absent.items():
                missing.setdefault(reason, {}).setdefault(name, []).append(label)
    complete = {label: len(own.get_trials(states=(TrialState.COMPLETE,))) for label, own in found.items()}
    ordered = sorted(figures.values(), key=lambda figure: ORDER.index(figure.id))
    notes = filter(None, [saved_work(study.runs), _missing_line(missing, complete)])
    return Sweep(tuple(ordered), tuple(notes), sum(len(own.trials) for own in found.values()), sum(complete.values()))


NEEDED = " finished trials needed"


def _missing_line(missing: dict[str, dict[str, list[str]]], complete: dict[str, int]) -> str:
    """Return one line about all missing plots, which are given by reason and name with the labels of their contexts.

    `complete` are the finished trials by context.
    """
    parts = []
    for reason, plots in missing.items():
        names = [f"{name} of {listed(own)}" if own != list(complete) else name for name, own in plots.items()]
        parts.append(f"{listed(names)} ({reason})")
    counts = [f"{count} of {label}" if label else str(count) for label, count in complete.items()]
    there = f" Finished: {listed(counts, len(counts))}." if any(reason.endswith(NEEDED) for reason in missing) else ""
    return f"Not drawn: {'; '.join(parts)}.{there}" if parts else ""


def _optuna_study(trials: pd.DataFrame, space: dict[str, Any], names: list[str], missed: pd.DataFrame) -> optuna.Study:
    """Return the trials of one context as an Optuna study, with how far they miss the constraints."""
    chosen = distributions(knobs(TypeAdapter(Space).validate_python(space)))
    counts = Counter(map(field_title, chosen))
    titles = {name: field_title(name) if counts[field_title(name)] == 1 else name for name in chosen}
    found = optuna.create_study(directions=[METRICS.objectives()[name].direction for name in names])
    columns = [objective_column(name) for name in names]
    known = trials.reindex(columns=columns).where(finished(trials))
    measured = pd.DataFrame({name: floats(known[name]) for name in columns}, trials.index)
    for number, rows in trials.groupby("trial", sort=True):
        values = measured.loc[rows.index].mean(skipna=False).tolist()
        params = {name: _value(rows[name].iloc[0], chosen[name]) for name in chosen if name in rows}
        whole = not any(map(pd.isna, values))
        trial = optuna.trial.create_trial(
            state=TrialState.COMPLETE if whole else TrialState.FAIL,
            values=values if whole else None,
            params={titles[name]: value for name, value in params.items()},
            distributions={titles[name]: chosen[name] for name in params},
        )
        for name in missed.columns:
            trial.set_constraint(str(name), float(missed[name][number]))
        found.add_trial(trial)
    return found


def _value(value: Any, distribution: BaseDistribution) -> Any:
    """Return a cell of the frame as Optuna's value: frames turn integers into floats and None into NaN."""
    if not isinstance(distribution, CategoricalDistribution):
        return int(value) if isinstance(distribution, IntDistribution) else float(value)
    if pd.isna(value):
        return None if None in distribution.choices else value
    known = [choice for choice in distribution.choices if choice is not None]
    return next((choice for choice in known if choice == value or str(choice) == str(value)), value)


ORDER = ("pareto", "importance", "parallel", "history", "slices")


def _figures(found: optuna.Study, names: list[str], label: str) -> tuple[list[Figure], dict[str, str]]:
    """Return the figures of one context, and why the others are missing, by their names."""
    complete = len(found.get_trials(states=(TrialState.COMPLETE,)))
    wide = PANEL * len(found.trials[0].distributions) if found.trials else 0
    limited = any(trial.constraints for trial in found.trials)
    hollow = " Hollow: trials that miss a constraint and cannot be the best." if limited else ""
    dotted = " Dotted: trials that miss a constraint." if limited else ""
    importance = "How well a parameter separates good trials from the others (PED-ANOVA); rough if trials are few."
    weigh = partial(visualization.plot_param_importances, evaluator=PedAnovaImportanceEvaluator())
    lines, slices = visualization.plot_parallel_coordinate, visualization.plot_slice
    counts = " Trials of a context are counted from 0, in the order of their numbers." if label else ""
    history = f"The objective by trial.{hollow}{counts}"
    plots: list[tuple[Figure, int, Callable[..., Any]]] = [
        (Figure("importance", "Importance of parameters", importance, ()), TRIALS_FOR_IMPORTANCE, weigh),
        (
            Figure("parallel", "Parallel coordinates", "One line per trial." + dotted, (), wide + 120),
            TRIALS_FOR_BEST,
            lines,
        ),
        (Figure("history", "History", history, ()), 2, visualization.plot_optimization_history),
        (Figure("slices", "Slices", "The objective over each parameter." + hollow, (), wide), TRIALS_FOR_BEST, slices),
    ]
    figures, missing = [], {}
    if len(names) == 2:
        front = Figure("pareto", "Pareto front", "Blue: trials that no other trial beats in all objectives.", ())
        plots.insert(0, (front, 2, partial(visualization.plot_pareto_front, target_names=names)))
    elif len(names) > 2:  # three dimensions need WebGL and are hard to read
        missing["Pareto front"] = f"drawn for two objectives, not for {len(names)}; the table above lists its trials"
    for figure, least, make in plots:
        word = figure.title if figure.id == "pareto" else figure.title.lower()
        if complete < least:
            missing[word] = f"{least}{NEEDED}"
            continue
        try:
            figures.append(replace(figure, views=_views(figure.id, make, found, names, label)))
        except (ValueError, RuntimeError, ZeroDivisionError, ImportError) as error:  # Optuna raises all of these
            missing[word] = " ".join(str(error).split())
    return figures, missing


def _views(plot: str, make: Callable[..., Any], found: optuna.Study, names: list[str], label: str) -> tuple[View, ...]:
    """Return one view per objective; the Pareto front shows all objectives in one view."""
    if plot == "pareto":
        return (View(label, *restyle(plot, make(found))),)
    views = []
    for place, name in enumerate(names):
        metric = objective(name)
        pairs = "" if metric.compute is None else ", tuning pairs"
        target = {} if len(names) == 1 else {"target": lambda trial, at=place: trial.values[at]}
        # without `target`, Optuna also draws the best so far
        drawn = make(found, target_name=metric.head + pairs, **target)
        own = "" if len(names) == 1 else name
        views.append(View(", ".join(filter(None, [label, own])), *restyle(plot, drawn, metric.better == "higher")))
    return tuple(views)
