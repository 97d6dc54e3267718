"""Tables of the report: costs by group, results, paired differences, all runs, failed runs."""

import math
from collections.abc import Callable, Hashable
from dataclasses import replace

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis.comparisons import comparable_sets, standings
from analysis.groups import finished, in_order
from analysis.names import field_title, metric_of, title
from analysis.report.page import ShownTable, floats, shown_table
from analysis.report.settings import NOT_RECORDED, entries_text
from analysis.study import Study
from analysis.tables import grid_tables
from analysis.tables.formats import unrepeated
from analysis.tables.runs import counted_runs, differences_table, undefined_notes
from analysis.tables.table import EMPTY, Cell, Table, field_cell, metric_cell, number_cell
from cl2r.errors import InputError
from cl2r.metrics import AC, BC, COMPATIBILITY, METRICS, SERVICE_ACCURACY
from cl2r.runtime.text import counted, duration, size

COST_COLUMNS: dict[str, Callable[..., str]] = {
    **{"group": str, "runs": "{:.0f}".format, "links trained": "{:.0f}".format, "links reused": "{:.0f}".format},
    **{"training": duration, "wall time": duration, "images/s": "{:,.0f}".format, "stored": size, "memory": size},
    "workers": "{:.0f}".format,
}
"""How the values of every column are written."""


def links(study: Study) -> tuple[int, int]:
    """Return how many links the study trained, and how often it reused one."""
    reused = study.tasks["reused"].fillna(False).astype(bool) if "reused" in study.tasks else pd.Series(dtype=bool)
    return int((~reused).sum()), int(reused.sum())


def cost_table(study: Study, runs: pd.DataFrame) -> Table:
    """Return one row per group of finished runs; training counts only links that this study trained."""
    numbers = ["seconds", "images", "workers"]
    tasks = study.tasks.reindex(columns=["run", "reused", *numbers]).merge(runs[["run", "group"]], on="run")
    tasks["reused"] = tasks["reused"].fillna(False).astype(bool)
    tasks[numbers] = tasks[numbers].apply(floats)
    recorded = ["wall_seconds", "stored_bytes", "peak_bytes"]
    runs = runs.reindex(columns=["group", *recorded])
    runs[recorded] = runs[recorded].apply(floats)
    values = []
    for group in in_order(runs["group"]):
        own, done = tasks[tasks["group"] == group], runs[runs["group"] == group]
        trained = own[~own["reused"]]
        rate = own["images"].sum(min_count=1) / own["seconds"].sum(min_count=1)
        wall, stored = done["wall_seconds"].sum(skipna=False), done["stored_bytes"].max(skipna=False)
        row = (group, len(done), len(trained), len(own) - len(trained), trained["seconds"].sum(min_count=1))
        values.append((*row, wall, rate, stored, done["peak_bytes"].max(), own["workers"].max()))
    rows = []
    for group, *found in values:
        written = zip(list(COST_COLUMNS.values())[1:], found, strict=True)
        cells = (Cell(EMPTY) if pd.isna(value) else Cell(write(value), float(value)) for write, value in written)
        rows.append((Cell(group), *cells))
    note = (
        "Training counts links that this study trained; wall time is that of the commands that wrote the runs; "
        "memory is the peak of a training process."
    )
    data = pd.DataFrame(values, columns=list(COST_COLUMNS))
    return Table(tuple(COST_COLUMNS), tuple(rows), data, "Cost by group", (note,))


def cost_lines(study: Study, runs: pd.DataFrame) -> list[str]:
    """Return the cost of the whole study in a few lines."""
    trained, reused = links(study)
    tasks = study.tasks.reindex(columns=["reused", "seconds"])
    seconds = float(np.nansum(floats(tasks["seconds"])[~tasks["reused"].fillna(False).to_numpy(dtype=bool)]))
    lines = [f"{counted(trained, 'link')} trained, {reused:,} reused; {duration(seconds)} of training."]
    if study.about.get("seconds"):
        lines.append(f"Wall time of the study: {duration(study.about['seconds'])}.")
    if resources := entries_text(study.about.get("resources")):
        lines.append(f"Resources: {resources}.")
    if "stored_bytes" in runs and runs["stored_bytes"].notna().any():
        stored = floats(runs["stored_bytes"])
        low, high = size(np.nanmin(stored)), size(np.nanmax(stored))
        lines.append(f"A run stores {low}." if low == high else f"A run stores {low} to {high}.")
    return lines


ALL_PAIRS = 8  # groups; if there are more, each is compared with the best


def result_tables(study: Study) -> tuple[list[ShownTable], list[str]]:
    """Return the tables that fit the points of the study, and remarks if there are none.

    Searches, studies of the paper and races have their own tables in sections of their own.
    """
    if study.runs.empty:
        return [], []
    try:
        tables = grid_tables(study)
    except InputError as error:
        return [], [f"No tables: {error}."]
    shown = [shown_table(table, f"table-{number}") for number, table in enumerate(tables)]
    notes = unrepeated([table.notes.splitlines() for table in shown])
    return [replace(table, notes=Markup("\n").join(own)) for table, own in zip(shown, notes, strict=True)], []


def difference_tables(runs: pd.DataFrame) -> list[ShownTable]:
    """Return differences of service accuracy, BC and AC between comparable groups of finished runs; see `labelled`."""
    shown: list[ShownTable] = []
    for words, own in comparable_sets(runs) if len(runs) else []:
        for metric in (SERVICE_ACCURACY.name, BC.name, AC.name):
            if metric in own and own[metric].notna().any() and own["group"].nunique() > 1 and own["seed"].nunique() > 1:
                title = f"{METRICS[metric].head}: differences" + (f", {words}" if words else "")
                best: Hashable = None  # all pairs
                if own["group"].nunique() > ALL_PAIRS:
                    marks = standings(own, metric, ("group",))
                    best = marks.index[marks["mark"] == "best"][0]
                table = differences_table(own, metric, ("group",), best)
                shown.append(shown_table(table, f"differences-{len(shown)}", title))
    return shown


RUN_HEADS = {
    **{"method.name": "method", "tasks": "T", "train_seconds": "training, s"},
    **{"stored_bytes": "stored bytes", "links_trained": "links trained"},
    **{metric.name: metric.head for metric in METRICS.in_tables()},
    **{metric.column("tuning"): f"{metric.head}, tuning" for metric in (*COMPATIBILITY, SERVICE_ACCURACY)},
}
COSTS = ("train_seconds", "stored_bytes", "links_trained")
TUNING = tuple(metric.column("tuning") for metric in (*COMPATIBILITY, SERVICE_ACCURACY))


def all_runs(runs: pd.DataFrame, fields: list[str]) -> Table:
    """Return one row per run: the fields that define its group, its status, metrics and costs."""
    metrics = [metric.name for metric in METRICS.in_tables()]
    names = [*fields, "seed", "tasks", "status", *metrics, *COSTS, *TUNING, "run"]
    names = [name for name in names if name in runs]
    heads = tuple(RUN_HEADS.get(name) or (field_title(name) if "." in name else name) for name in names)
    columns = []
    for name in names:
        values, metric = runs[name], metric_of(name)
        if name == "method.name":
            columns.append([Cell(title(str(value))) for value in values])
        elif metric is not None and metric.compute is not None:
            columns.append([metric_cell(name, value, math.nan) for value in floats(values).tolist()])
        elif name in COSTS:
            columns.append([number_cell(value, ",.0f") for value in floats(values).tolist()])
        else:
            columns.append([field_cell(value) for value in values.astype(object)])
    notes = tuple(undefined_notes(counted_runs(runs)))
    return Table(heads, tuple(zip(*columns, strict=True)), runs[names], notes=notes)


def lost_runs(runs: pd.DataFrame) -> Table:
    """Return the runs that failed or were stopped, with the reason."""
    lost = runs[~finished(runs)].reindex(columns=["group", "seed", "status", "reason", "run"]).astype(object)
    status = lost["status"].replace({"pruned": "stopped early"})
    lost = lost.assign(status=status, reason=lost["reason"].fillna(NOT_RECORDED))
    rows = tuple(tuple(map(field_cell, row)) for row in lost.itertuples(index=False, name=None))
    return Table(tuple(lost.columns), rows, lost)
