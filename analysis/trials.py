"""The best trials of a sweep: chosen on the tuning pairs, shown beside their figures on the report pairs."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from analysis.cells import deviation_note, field_cell, marked_table, metric_cell
from analysis.fronts import non_dominated
from analysis.groups import config_fields, with_defaults
from analysis.pivot import METRICS, check_name, finished
from analysis.table import Cell, Table
from cl2r.errors import InputError

COSTS = {"stored_bytes": "stored_bytes", "seconds": "train_seconds"}


def best_trials(runs: pd.DataFrame, objectives: Mapping[str, str], count: int = 5) -> pd.DataFrame:
    """The `count` best trials by one objective, e.g. {"BC": "max"}; by several, the whole Pareto front.

    Means over seeds, on the tuning pairs. A trial with a run that did not finish is no candidate, nor is one with fewer
    runs than the largest has: it is still running. The first objective sorts the front. Fields that vary over the
    study's trials are shown, then each objective with its deviation.
    """
    chosen_by = [_objective_column(runs, metric, goal) for metric, goal in objectives.items()]
    if not chosen_by:
        raise InputError("best_trials needs an objective, e.g. {'BC': 'max'}")
    check_name("trial", runs.columns, "column")
    whole = runs[_complete(runs)]
    whole = whole[whole[chosen_by].notna().all(axis=1).groupby(whole["trial"]).transform("all")]
    groups = whole.groupby("trial")
    signs = np.array([-1.0 if goal == "max" else 1.0 for goal in objectives.values()])
    costs = groups[chosen_by].mean() * signs
    if len(chosen_by) > 1:
        costs = costs[non_dominated(costs.to_numpy(dtype=float))]
    ranked = costs.sort_values(chosen_by[0], kind="stable").index[: count if len(chosen_by) == 1 else None]
    table = _varying_fields(runs).assign(seeds=groups.size())
    for column in dict.fromkeys(name for chosen in chosen_by for name in (chosen, chosen.removeprefix("tuning_"))):
        table = table.assign(**{column: groups[column].mean(), f"{column}_sd": groups[column].std()})
    return table.loc[ranked].reset_index()


def _objective_column(runs: pd.DataFrame, metric: str, goal: str) -> str:
    check_name(metric, (*METRICS, *COSTS), "objective")
    check_name(goal, ("max", "min"), f"direction of {metric}")
    column = COSTS.get(metric, f"tuning_{metric}")
    if column not in runs:
        raise InputError(f"runs have no column {column!r}: trials are chosen on tuning pairs, and none were evaluated")
    return column


def _complete(runs: pd.DataFrame) -> pd.Series:
    """Rows of trials whose runs have all ended, and all finished."""
    counts: pd.Series = runs.groupby("trial")["trial"].transform("size")
    ended: pd.Series = finished(runs).groupby(runs["trial"]).transform("all") & (counts == counts.max())
    return ended


def _varying_fields(runs: pd.DataFrame) -> pd.DataFrame:
    """A row a trial: the variant and the config fields in which the trials of the study differ."""
    trials = with_defaults(runs).drop_duplicates("trial").set_index("trial")
    return trials[[name for name in config_fields(trials) if trials[name].nunique(dropna=False) > 1]]


def shown_trials(runs: pd.DataFrame, objectives: Mapping[str, str], count: int = 5) -> Table:
    """The best trials, mean ± deviation over seeds. Nothing is marked: report pairs are not there to choose by."""
    frame = best_trials(runs, objectives, count)
    names = [name for name in frame.columns if "." in name or not name.endswith("_sd")]
    body = [[_cell(row, name) for name in names] for _, row in frame.astype(object).iterrows()]
    words = " and ".join(objectives)
    title = f"Best trials by {words}" if len(objectives) == 1 else f"Pareto front of {words}"
    notes = ["Chosen on the tuning pairs (tuning_*); the report pairs beside them have seen no choice."]
    notes += [deviation_note(frame["seeds"])] if frame["seeds"].any() else []
    return marked_table(names, body, frame, title, (), *notes)


def _cell(row: pd.Series, name: str) -> Cell:
    if f"{name}_sd" not in row:
        return field_cell(row[name])
    mean, deviation = row[name], row[f"{name}_sd"]
    if name in COSTS.values():
        return Cell(f"{mean:,.0f}" + ("" if pd.isna(deviation) else f" ± {deviation:,.0f}"), float(mean))
    return metric_cell(name, mean, deviation)
