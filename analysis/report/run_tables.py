"""Tables of single runs: all of them, and those that did not finish."""

import math

import pandas as pd

from analysis.cells import field_cell, figure_cell, metric_cell
from analysis.names import field_title, title
from analysis.pivot import METRICS, finished
from analysis.report.compact import floats
from analysis.stats import base_metric
from analysis.table import Cell, Table

HEADS = {
    "method.name": "method",
    "tasks": "T",
    "mean_accuracy": "mean accuracy",
    "train_seconds": "training, s",
    "stored_bytes": "stored bytes",
    "links_trained": "links trained",
    "tuning_AC": "AC, tuning",
    "tuning_BC": "BC, tuning",
    "tuning_FC": "FC, tuning",
}
COSTS = ("train_seconds", "stored_bytes", "links_trained")
TUNING = ("tuning_AC", "tuning_BC", "tuning_FC")


def all_runs(runs: pd.DataFrame, fields: list[str]) -> Table:
    """A row a run: the fields that make its group, its status, metrics and costs."""
    names = [*fields, "seed", "tasks", "status", *METRICS, *COSTS, *TUNING, "run"]
    names = [name for name in names if name in runs]
    heads = tuple(HEADS.get(name) or (field_title(name) if "." in name else name) for name in names)
    columns = [_column(runs[name], name) for name in names]
    return Table(heads, tuple(zip(*columns, strict=True)), runs[names])


def _column(values: pd.Series, name: str) -> list[Cell]:
    if name == "method.name":
        return [Cell(title(str(value))) for value in values]
    if base_metric(name) in METRICS:
        return [metric_cell(base_metric(name), value, math.nan) for value in floats(values).tolist()]
    if name in COSTS:
        return [figure_cell(value, ",.0f") for value in floats(values).tolist()]
    return [field_cell(value) for value in values.astype(object)]


def lost_runs(runs: pd.DataFrame) -> Table | None:
    """Runs that failed or were stopped, with the reason; None if there are none."""
    lost = runs[~finished(runs)]
    if lost.empty:
        return None
    shown = lost.reindex(columns=["group", "seed", "status", "reason", "run"]).astype(object)
    shown = shown.assign(
        status=shown["status"].replace({"pruned": "stopped early"}), reason=shown["reason"].fillna("not recorded")
    )
    rows = tuple(tuple(map(field_cell, row)) for row in shown.itertuples(index=False, name=None))
    return Table(tuple(shown.columns), rows, shown)
