"""Tables of the report: costs by group, results, paired differences, all runs, failed runs."""

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import pandas as pd
from markupsafe import Markup

from analysis.comparisons import comparable_sets, standings
from analysis.groups import finished, in_order
from analysis.names import field_title, metric_of, title
from analysis.report.page import ShownTable, floats, shown_table
from analysis.report.settings import NOT_RECORDED, entries_text
from analysis.study import Study
from analysis.tables import study_tables
from analysis.tables.runs import differences_table
from analysis.tables.table import EMPTY, Cell, Table, field_cell, metric_cell, number_cell
from cl2r.errors import InputError
from cl2r.metrics import AC, BC, COMPATIBILITY, METRICS
from cl2r.runtime.text import counted, duration, size

HEADS = (
    *("group", "runs", "links trained", "links reused", "training", "wall time", "images/s"),
    *("stored", "memory", "workers"),
)


def links(study: Study) -> tuple[int, int]:
    """Return how many links the study trained, and how often it reused one."""
    reused = study.tasks["reused"].fillna(False).astype(bool) if "reused" in study.tasks else pd.Series(dtype=bool)
    return int((~reused).sum()), int(reused.sum())


def cost_table(study: Study, runs: pd.DataFrame) -> Table:
    """Return one row per group of finished runs; training counts only links that this study trained."""
    columns = ["run", "reused", "seconds", "images", "workers"]
    tasks = study.tasks.reindex(columns=columns).merge(runs[["run", "group"]], on="run")
    tasks["reused"] = tasks["reused"].fillna(False).astype(bool)
    tasks[columns[2:]] = tasks[columns[2:]].apply(floats)
    wanted = ["group", "wall_seconds", "stored_bytes", "peak_bytes"]
    runs = runs.reindex(columns=[*wanted, "run"])
    groups = in_order(runs["group"])
    values = [_row(group, tasks[tasks["group"] == group], runs[runs["group"] == group]) for group in groups]
    data = pd.DataFrame(values, columns=list(HEADS))
    rows = tuple(_cells(row) for row in data.itertuples(index=False, name=None))
    notes = (
        "Training counts links that this study trained; wall time is that of the commands that wrote the runs; "
        "memory is the peak of a training process.",
    )
    return Table(HEADS, rows, data, title="Cost by group", notes=notes)


def _row(group: str, tasks: pd.DataFrame, runs: pd.DataFrame) -> tuple[object, ...]:
    own = tasks[~tasks["reused"]]
    seconds = own["seconds"].sum(min_count=1)
    rate = tasks["images"].sum(min_count=1) / tasks["seconds"].sum(min_count=1)
    wall, stored = floats(runs["wall_seconds"]).sum(), floats(runs["stored_bytes"]).max(initial=0)
    counts, peak = (len(runs), len(own), len(tasks) - len(own)), pd.Series(floats(runs["peak_bytes"])).max()
    return group, *counts, seconds, wall, rate, stored, peak, tasks["workers"].max()


def _cells(row: Sequence[object]) -> tuple[Cell, ...]:
    def worded(value: float, text: Callable[[float], str]) -> Cell:
        return Cell(EMPTY) if math.isnan(value) else Cell(text(value), value)

    group, runs, trained, reused = row[:4]
    counts = [Cell(str(count), float(str(count))) for count in (runs, trained, reused)]
    seconds, wall, rate, stored, peak, workers = floats(list(row[4:])).tolist()
    times = [worded(seconds, duration), worded(wall, duration)]
    sizes = [worded(stored, size), worded(peak, size)]
    return (Cell(str(group)), *counts, *times, number_cell(rate, ",.0f"), *sizes, number_cell(workers, ".0f"))


def cost_lines(study: Study, runs: pd.DataFrame) -> list[str]:
    """Return the cost of the whole study in a few lines."""
    trained, reused = links(study)
    tasks = study.tasks.reindex(columns=["reused", "seconds"])
    own = floats(tasks["seconds"])[~tasks["reused"].fillna(False).to_numpy(dtype=bool)]
    lines = [
        f"{counted(trained, 'link')} trained, {reused:,} reused; {duration(float(pd.Series(own).sum()))} of training."
    ]
    if study.about.get("seconds"):
        lines.append(f"Wall time of the study: {duration(study.about['seconds'])}.")
    if resources := entries_text(study.about.get("resources")):
        lines.append(f"Resources: {resources}.")
    if "stored_bytes" in runs and runs["stored_bytes"].notna().any():
        stored = floats(runs["stored_bytes"])
        low, high = size(pd.Series(stored).min()), size(pd.Series(stored).max())
        lines.append(f"A run stores {low}." if low == high else f"A run stores {low} to {high}.")
    return lines


# Results and paired differences between groups.

ALL_PAIRS = 8
"""Up to this many groups, all pairs are compared; with more, each is compared with the best."""


def result_tables(study: Study) -> tuple[list[ShownTable], list[str]]:
    """Return the tables that fit the study, and remarks if there are none."""
    if study.runs.empty:
        return [], []
    try:
        tables = study_tables(study)
    except InputError as error:
        return [], [f"No tables: {error}."]
    shown = [shown_table(table, f"table-{number}") for number, table in enumerate(tables)]
    for place, (table, following) in enumerate(itertools.pairwise(shown)):  # a note that the next table repeats
        notes = [line for line in table.notes.splitlines() if line not in following.notes.splitlines()]
        shown[place] = replace(table, notes=Markup("\n").join(notes))
    return shown, []


def difference_tables(runs: pd.DataFrame) -> list[ShownTable]:
    """Return differences of BC and AC between comparable groups; `runs` are finished and have their `group`."""
    shown: list[ShownTable] = []
    for words, own in comparable_sets(runs) if len(runs) else []:
        for metric in (BC.name, AC.name):
            if metric in own and own[metric].notna().any() and own["group"].nunique() > 1 and own["seed"].nunique() > 1:
                title = f"{metric}: differences" + (f", {words}" if words else "")
                best: Hashable = None  # all pairs
                if own["group"].nunique() > ALL_PAIRS:
                    marks = standings(own, metric, ("group",))
                    best = marks.index[marks["mark"] == "best"][0]
                table = differences_table(own, metric, ("group",), best)
                shown.append(shown_table(table, f"differences-{len(shown)}", title))
    return shown


# Single runs: all of them, and those that did not finish.

RUN_HEADS = {
    "method.name": "method",
    "tasks": "T",
    "mean_accuracy": "mean accuracy",
    "train_seconds": "training, s",
    "stored_bytes": "stored bytes",
    "links_trained": "links trained",
    **{metric.column("tuning"): f"{metric.head}, tuning" for metric in COMPATIBILITY},
}
COSTS = ("train_seconds", "stored_bytes", "links_trained")
TUNING = tuple(metric.column("tuning") for metric in COMPATIBILITY)


def all_runs(runs: pd.DataFrame, fields: list[str]) -> Table:
    """Return one row per run: the fields that define its group, its status, metrics and costs."""
    metrics = [metric.name for metric in METRICS.of_matrix()]
    names = [*fields, "seed", "tasks", "status", *metrics, *COSTS, *TUNING, "run"]
    names = [name for name in names if name in runs]
    heads = tuple(RUN_HEADS.get(name) or (field_title(name) if "." in name else name) for name in names)
    columns = [_column(runs[name], name) for name in names]
    return Table(heads, tuple(zip(*columns, strict=True)), runs[names])


def _column(values: pd.Series, name: str) -> list[Cell]:
    if name == "method.name":
        return [Cell(title(str(value))) for value in values]
    metric = metric_of(name)
    if metric is not None and metric.compute is not None:
        return [metric_cell(name, value, math.nan) for value in floats(values).tolist()]
    if name in COSTS:
        return [number_cell(value, ",.0f") for value in floats(values).tolist()]
    return [field_cell(value) for value in values.astype(object)]


def lost_runs(runs: pd.DataFrame) -> Table | None:
    """Return the runs that failed or were stopped, with the reason; None if there are none."""
    lost = runs[~finished(runs)]
    if lost.empty:
        return None
    shown = lost.reindex(columns=["group", "seed", "status", "reason", "run"]).astype(object)
    shown = shown.assign(
        status=shown["status"].replace({"pruned": "stopped early"}), reason=shown["reason"].fillna(NOT_RECORDED)
    )
    rows = tuple(tuple(map(field_cell, row)) for row in shown.itertuples(index=False, name=None))
    return Table(tuple(shown.columns), rows, shown)
