"""Optuna's own plots of a sweep, from frames: a trial is the mean over its seeds, its values those on tuning pairs."""

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import optuna
import pandas as pd
from optuna import visualization
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import TrialState
from pydantic import TypeAdapter, ValidationError

from analysis.report.compact import floats
from analysis.report.figures import Figure, View
from analysis.report.objectives import objective_column, objectives
from analysis.report.sweep_look import own_look
from analysis.study import Study
from analysis.trials import COSTS
from cl2r.study.space import Space, distributions

PANEL = 190
"""Pixels that a panel of the slices needs, and an axis of the parallel coordinates."""


@dataclass(frozen=True)
class Sweep:
    """Figures, and a line for each that could not be made."""

    figures: tuple[Figure, ...]
    missing: tuple[str, ...]
    trials: int
    complete: int


@dataclass(frozen=True)
class Plot:
    """What to ask Optuna for: once an objective, or once for all of them."""

    id: str
    title: str
    caption: str
    make: Callable[..., Any]
    least: int = 2
    """Finished trials below which it means nothing."""
    width: int = 0


def sweep_plots(study: Study) -> Sweep | None:
    """The plots of a sweep; None if the study is none."""
    if not study.specification.get("space") or "trial" not in study.runs:
        return None
    optuna.logging.set_verbosity(logging.ERROR)
    try:
        found = _optuna_study(study, objectives(study))
    except (ValidationError, ValueError) as error:  # a space or a value that this version would not take
        trials = int(study.runs["trial"].nunique())
        return Sweep((), (f"No plots: the trials do not fit the space: {_line(error)}",), trials, 0)
    complete = len(found.get_trials(states=(TrialState.COMPLETE,)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls half of its own plots experimental
        figures, missing = _figures(found, objectives(study), complete)
    return Sweep(tuple(figures), tuple(missing), len(found.trials), complete)


def _optuna_study(study: Study, names: list[str]) -> optuna.Study:
    space = distributions(TypeAdapter(Space).validate_python(study.specification["space"]))
    found = optuna.create_study(directions=["minimize" if name in COSTS else "maximize" for name in names])
    figures = study.finished.reindex(columns=[objective_column(name) for name in names]).apply(floats)
    figures = figures.reindex(study.runs.index)
    for _, rows in study.runs.groupby("trial", sort=True):
        values = figures.loc[rows.index].mean(skipna=False).tolist()
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
    """A cell of the frame as Optuna saw it: columns turn whole numbers into floats, and nothing into NaN."""
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
    if len(names) > 2:  # in three dimensions a page would need WebGL, and nobody could read it off
        missing.append(
            f"Pareto front: drawn for two objectives, not for {len(names)}; the table above lists its trials."
        )
    for plot in _plots(names, len(found.trials[0].distributions)):
        if complete < plot.least:
            missing.append(f"{plot.title}: {complete} finished trials, fewer than {plot.least}.")
            continue
        try:
            views = _views(plot, found, names)
        except (ValueError, RuntimeError, ZeroDivisionError, ImportError) as error:  # Optuna's ways to say no
            missing.append(f"{plot.title}: {_line(error)}")
            continue
        figures.append(Figure(plot.id, plot.title, plot.caption, views, plot.width))
    return figures, missing


def _plots(names: list[str], parameters: int) -> list[Plot]:
    front = "Orange trials are beaten by no other in all objectives."
    importance = "How well a parameter tells good trials from the others (PED-ANOVA); a rough guide with few trials."
    weigh = _with(visualization.plot_param_importances, evaluator=PedAnovaImportanceEvaluator())
    lines, slices = visualization.plot_parallel_coordinate, visualization.plot_slice
    wide = PANEL * parameters
    plots = [
        Plot("importance", "Importance of parameters", importance, weigh, least=4),
        Plot("parallel", "Parallel coordinates", "A line a trial.", lines, width=wide + 120),
        Plot("history", "History", "The objective, trial by trial.", visualization.plot_optimization_history),
        Plot("slices", "Slices", "The objective over each parameter.", slices, width=wide),
    ]
    pareto = Plot("pareto", "Pareto front", front, _with(visualization.plot_pareto_front, target_names=names))
    return [pareto, *plots] if len(names) == 2 else plots


def _with(plot: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    return lambda found, **own: plot(found, **more, **own)


def _views(plot: Plot, found: optuna.Study, names: list[str]) -> tuple[View, ...]:
    """A view an objective; the front shows all of them at once."""
    if plot.id == "pareto":
        return (View("", *own_look(plot.id, plot.make(found))),)
    if len(names) == 1:  # then Optuna knows the direction, and draws the best so far
        return (View("", *own_look(plot.id, plot.make(found, target_name=objective_column(names[0])))),)
    return tuple(
        View(name, *own_look(plot.id, plot.make(found, target=_at(place), target_name=objective_column(name))))
        for place, name in enumerate(names)
    )


def _at(place: int) -> Callable[[optuna.trial.FrozenTrial], float]:
    return lambda trial: trial.values[place]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
