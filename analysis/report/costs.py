"""What a study cost: links trained and reused, hours, throughput and storage, by group."""

from collections.abc import Sequence

import pandas as pd

from analysis.cells import EMPTY, figure_cell
from analysis.groups import in_order
from analysis.report.compact import floats
from analysis.report.words import counted, described, duration, size
from analysis.study import Study
from analysis.table import Cell, Table

HEADS = (
    "group",
    "runs",
    "links trained",
    "links reused",
    "training",
    "wall time",
    "images/s",
    "stored",
    "memory",
    "workers",
)


def links(study: Study) -> tuple[int, int]:
    """How many links the study trained, and how often it found one in the store."""
    reused = study.tasks["reused"].fillna(False).astype(bool) if "reused" in study.tasks else pd.Series(dtype=bool)
    return int((~reused).sum()), int(reused.sum())


def cost_table(study: Study, runs: pd.DataFrame) -> Table:
    """A row a group of finished runs. Training is that of links which this study trained."""
    columns = ["run", "reused", "seconds", "images", "workers"]
    tasks = study.tasks.reindex(columns=columns).merge(runs[["run", "group"]], on="run")
    tasks["reused"] = tasks["reused"].fillna(False).astype(bool)
    tasks[columns[2:]] = tasks[columns[2:]].apply(floats)
    wanted = ["group", "wall_seconds", "stored_bytes", "peak_bytes"]
    runs = runs.reindex(columns=[*wanted, "run"])
    figures = [
        _row(group, tasks[tasks["group"] == group], runs[runs["group"] == group]) for group in in_order(runs["group"])
    ]
    data = pd.DataFrame(figures, columns=list(HEADS))
    rows = tuple(_cells(row) for row in data.itertuples(index=False, name=None))
    notes = (
        "Training counts links that this study trained; wall time is that of the commands that wrote the runs; "
        "memory is the most that a training process held.",
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
    group, runs, trained, reused, seconds, wall, rate, stored, peak, workers = row
    counts = [Cell(str(count), float(str(count))) for count in (runs, trained, reused)]
    times = [_worded(value, duration(value)) for value in map(_number, (seconds, wall))]
    sizes = [_worded(value, size(value)) for value in map(_number, (stored, peak))]
    speed, processes = figure_cell(_number(rate), ",.0f"), figure_cell(_number(workers), ".0f")
    return (Cell(str(group)), *counts, *times, speed, *sizes, processes)


def _number(value: object) -> float:
    return float(floats([value])[0])


def _worded(value: float, text: str) -> Cell:
    return Cell(EMPTY) if value != value else Cell(text, value)


def cost_lines(study: Study, runs: pd.DataFrame) -> list[str]:
    """The whole study in a few lines."""
    trained, reused = links(study)
    tasks = study.tasks.reindex(columns=["reused", "seconds"])
    own = floats(tasks["seconds"])[~tasks["reused"].fillna(False).to_numpy(dtype=bool)]
    lines = [
        f"{counted(trained, 'link')} trained, {reused:,} reused; {duration(float(pd.Series(own).sum()))} of training."
    ]
    if study.about.get("seconds"):
        lines.append(f"Wall time of the study: {duration(study.about['seconds'])}.")
    if resources := described(study.about.get("resources")):
        lines.append(f"Resources: {resources}.")
    if "stored_bytes" in runs and runs["stored_bytes"].notna().any():
        stored = floats(runs["stored_bytes"])
        low, high = size(pd.Series(stored).min()), size(pd.Series(stored).max())
        lines.append(f"A run stores {low}." if low == high else f"A run stores {low} to {high}.")
    return lines
