"""Optuna's plots of a sweep, made from frames and restyled for the page."""

import json
import logging
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
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

from analysis.names import COLOURS, HIGHLIGHT
from analysis.report.figures import Figure, View
from analysis.report.page import floats
from analysis.study import Study
from cl2r.metrics import METRICS
from cl2r.study.space import Space, distributions


def objectives(study: Study) -> list[str]:
    """Return the objectives in the specification."""
    return [str(name) for name in (study.specification.get("search") or {}).get("objectives") or ["BC"]]


def objective_column(name: str) -> str:
    """Return the column that trials are judged by: a cost, or a metric on the tuning pairs."""
    return METRICS.objectives()[name].column("tuning")


# The page's style: Optuna's blues cannot be read on a dark page, its titles and template are not needed.

SCALE = [[0.0, "#56B4E9"], [0.5, "#8C8C8C"], [1.0, HIGHLIGHT]]
"""Readable on light and dark pages and with colour blindness."""


def restyle(plot: str, figure: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return data and layout of one of Optuna's figures in the page's style."""
    content = json.loads(figure.to_json())
    data, layout = content["data"], content["layout"]
    if {trace["type"] for trace in data} - {"scatter", "bar"}:
        raise ValueError("this version of Optuna draws it with WebGL, which this page does not use")
    for name in ("template", "title", "plot_bgcolor", "width", "height"):
        layout.pop(name, None)
    for name, entry in layout.items():
        if "axis" in name and entry.get("title"):
            entry["title"]["standoff"] = 10
    for trace in data:
        for painted in (trace.get("marker", {}), trace.get("line", {})):
            if "colorscale" in painted:
                painted |= {"colorscale": SCALE, "reversescale": False}
                painted["colorbar"] = {**painted.get("colorbar", {}), "thickness": 12, "x": 1.02, "xpad": 4}
    {"pareto": _pareto, "importance": _importance, "parallel": _parallel}.get(plot, _points)(data, layout)
    return data, layout


def _points(data: list[dict[str, Any]], layout: dict[str, Any]) -> None:
    """Enlarge points; put ticks of the axis and scale that count trials at whole numbers."""
    for trace in data:
        if "markers" in trace.get("mode", ""):
            trace["marker"] = {**trace.get("marker", {}), "size": 8}
        steps = {"tick0": 0, "dtick": math.ceil(len(trace["x"]) / 10)}
        if "colorbar" in trace.get("marker", {}):
            trace["marker"]["colorbar"] |= steps
        if layout["xaxis"].get("title", {}).get("text") == "Trial":
            layout["xaxis"] |= steps


def _pareto(data: list[dict[str, Any]], layout: dict[str, Any]) -> None:
    """Show the best trials by colour and shape instead of Optuna's second colour scale."""
    for trace in data:
        best = "Best" in trace.get("hovertemplate", "")
        trace["marker"] = {"color": HIGHLIGHT if best else "#8C8C8C", "symbol": "diamond" if best else "circle"}
        trace["marker"]["size"] = 10 if best else 8


def _importance(data: list[dict[str, Any]], layout: dict[str, Any]) -> None:
    """Remove the title of the parameter axis and leave room for the values beside the bars."""
    longest = max((value for trace in data for value in trace["x"] if value is not None), default=1.0)
    layout.setdefault("xaxis", {})["range"] = [0, 1.15 * longest]
    layout.get("yaxis", {}).pop("title", None)
    for trace in data:
        trace["marker"] = {"color": COLOURS[0]}


def _parallel(data: list[dict[str, Any]], layout: dict[str, Any]) -> None:
    """Colour every line by its position on the first axis, the objective."""
    for trace in data:
        if trace.get("mode") == "lines" and trace.get("y"):
            trace["line"] = {"color": sample_colorscale(SCALE, min(max(trace["y"][0], 0.0), 1.0))[0], "width": 2}
            trace["opacity"] = 0.8


# The plots: values of a trial are means over its seeds on the tuning pairs.

PANEL = 190
"""Pixels per panel of the slices and per axis of the parallel coordinates."""


@dataclass(frozen=True)
class Sweep:
    """The figures, and one line for each that could not be made."""

    figures: tuple[Figure, ...]
    missing: tuple[str, ...]
    trials: int
    complete: int


@dataclass(frozen=True)
class Plot:
    """One of Optuna's plots: drawn once per objective, or once for all objectives."""

    id: str
    title: str
    caption: str
    make: Callable[..., Any]
    least: int = 2
    """Fewest finished trials for which the plot is meaningful."""
    width: int = 0


def sweep_plots(study: Study) -> Sweep | None:
    """Return the plots of a sweep; None if the study is not a sweep."""
    if not study.specification.get("space") or "trial" not in study.runs:
        return None
    optuna.logging.set_verbosity(logging.ERROR)
    try:
        found = _optuna_study(study, objectives(study))
    except (ValidationError, ValueError) as error:  # a space or a value that this version does not accept
        trials = int(study.runs["trial"].nunique())
        return Sweep((), (f"No plots: the trials do not fit the space: {_line(error)}",), trials, 0)
    complete = len(found.get_trials(states=(TrialState.COMPLETE,)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns that some plots are experimental
        figures, missing = _figures(found, objectives(study), complete)
    return Sweep(tuple(figures), tuple(missing), len(found.trials), complete)


def _optuna_study(study: Study, names: list[str]) -> optuna.Study:
    space = distributions(TypeAdapter(Space).validate_python(study.specification["space"]))
    found = optuna.create_study(directions=[METRICS.objectives()[name].direction for name in names])
    measured = study.finished.reindex(columns=[objective_column(name) for name in names]).apply(floats)
    measured = measured.reindex(study.runs.index)
    for _, rows in study.runs.groupby("trial", sort=True):
        values = measured.loc[rows.index].mean(skipna=False).tolist()
        params = {name: _value(rows[name].iloc[0], space[name]) for name in space if name in rows}
        whole = not any(map(pd.isna, values))
        trial = optuna.trial.create_trial(
            state=TrialState.COMPLETE if whole else TrialState.FAIL,
            values=values if whole else None,
            params=params,
            distributions={name: space[name] for name in params},
        )
        found.add_trial(trial)
    return found


def _value(value: Any, distribution: BaseDistribution) -> Any:
    """Return a cell of the frame as Optuna's value: frames turn integers into floats and None into NaN."""
    if isinstance(distribution, CategoricalDistribution):
        return next((choice for choice in distribution.choices if _equal(choice, value)), value)
    return int(value) if isinstance(distribution, IntDistribution) else float(value)


def _equal(choice: Any, value: Any) -> bool:
    if choice is None or pd.isna(value):
        return choice is None and bool(pd.isna(value))
    return bool(choice == value) or str(choice) == str(value)


def _figures(found: optuna.Study, names: list[str], complete: int) -> tuple[list[Figure], list[str]]:
    if complete < 2:
        return [], [f"No plots: {complete} of {len(found.trials)} trials finished with all their seeds, fewer than 2."]
    figures, missing = [], []
    if len(names) > 2:  # three dimensions need WebGL and are hard to read
        missing.append(
            f"Pareto front: drawn for two objectives, not for {len(names)}; the table above lists its trials."
        )
    for plot in _plots(names, len(found.trials[0].distributions)):
        if complete < plot.least:
            missing.append(f"{plot.title}: {complete} finished trials, fewer than {plot.least}.")
            continue
        try:
            views = _views(plot, found, names)
        except (ValueError, RuntimeError, ZeroDivisionError, ImportError) as error:  # Optuna raises all of these
            missing.append(f"{plot.title}: {_line(error)}")
            continue
        figures.append(Figure(plot.id, plot.title, plot.caption, views, plot.width))
    return figures, missing


def _plots(names: list[str], parameters: int) -> list[Plot]:
    front = "Orange: trials that no other trial beats in all objectives."
    importance = "How well a parameter separates good trials from the others (PED-ANOVA); rough if trials are few."
    weigh = partial(visualization.plot_param_importances, evaluator=PedAnovaImportanceEvaluator())
    lines, slices = visualization.plot_parallel_coordinate, visualization.plot_slice
    wide = PANEL * parameters
    plots = [
        Plot("importance", "Importance of parameters", importance, weigh, least=4),
        Plot("parallel", "Parallel coordinates", "One line per trial.", lines, width=wide + 120),
        Plot("history", "History", "The objective by trial.", visualization.plot_optimization_history),
        Plot("slices", "Slices", "The objective over each parameter.", slices, width=wide),
    ]
    pareto = Plot("pareto", "Pareto front", front, partial(visualization.plot_pareto_front, target_names=names))
    return [pareto, *plots] if len(names) == 2 else plots


def _views(plot: Plot, found: optuna.Study, names: list[str]) -> tuple[View, ...]:
    """Return one view per objective; the Pareto front shows all objectives in one view."""
    if plot.id == "pareto":
        return (View("", *restyle(plot.id, plot.make(found))),)
    if len(names) == 1:  # without `target`, Optuna also draws the best so far
        return (View("", *restyle(plot.id, plot.make(found, target_name=objective_column(names[0])))),)
    return tuple(
        View(name, *restyle(plot.id, plot.make(found, target=_at(place), target_name=objective_column(name))))
        for place, name in enumerate(names)
    )


def _at(place: int) -> Callable[[optuna.trial.FrozenTrial], float]:
    return lambda trial: trial.values[place]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
