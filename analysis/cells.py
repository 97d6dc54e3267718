"""What stands in a cell: the figure of a metric with its spread and its mark, a config value, a cost."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis.comparisons import standings
from analysis.groups import Group, config_fields, short
from analysis.stats import base_metric, numbered_groups
from analysis.table import Cell, Mark, Table
from analysis.tables import SIGNED, one_budget
from cl2r.errors import InputError

EMPTY = "–"
FAILED = Cell("failed")
STOPPED = Cell("stopped early")


@dataclass(frozen=True)
class Marks:
    """The marks of a column by the label of a group; `note` says why there are none."""

    by_group: Mapping[Hashable, Mark] = field(default_factory=dict)
    tested: bool = False
    note: str = ""

    def of(self, label: Hashable) -> Mark:
        """The mark of a group."""
        return self.by_group.get(label, "")


def to_compare(runs: pd.DataFrame, *kept: str) -> pd.DataFrame:
    """Runs without the config fields that are the same in all of them: a comparison has less to look through."""
    fields = [name for name in config_fields(runs) if name not in ("method.name", "variant", *kept)]
    return runs.drop(columns=[name for name in fields if runs[name].nunique(dropna=False) < 2])


def column_marks(runs: pd.DataFrame, metric: str, by: Sequence[str]) -> Marks:
    """Which groups of runs are best; nothing if there is no choice, or if the groups are not comparable."""
    try:
        one_budget(runs)
        table = standings(runs, metric, by)
    except InputError as error:
        return Marks(note=f"Without marks: {error}.")
    known = table[table["n"] > 0]
    if (known["mark"] == "best").all():
        return Marks()  # one group, or all are equal
    compared = (known["mark"] == "close") | ((known["mark"] == "") & (known["note"] == ""))
    return Marks(dict(zip(table.index, table["mark"], strict=True)), tested=bool(compared.any()))


def holes(runs: pd.DataFrame, by: Sequence[str]) -> dict[Group, Cell]:
    """By group of runs, what its cells say if none of them counted. A group that is not there was never planned."""
    codes, groups = numbered_groups(runs, list(by))
    status = runs["status"].astype(object) if "status" in runs else pd.Series("finished", runs.index)
    states = [set(status[codes == number]) - {"finished"} for number in range(len(groups))]
    return {group: STOPPED if own == {"pruned"} else FAILED for group, own in zip(groups, states, strict=True)}


def marked_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    data: pd.DataFrame,
    title: str,
    marks: Collection[Marks],
    *notes: str,
) -> Table:
    """A table whose cells have these marks; of several reasons for there being none, the first is given."""
    refused = [own.note for own in marks if own.note]
    below = tuple(note for note in (*notes, *refused[:1]) if note)
    tested = any(own.tested for own in marks)
    return Table(tuple(columns), tuple(map(tuple, rows)), data, title, below, tested)


def deviation_note(seeds: Iterable[float]) -> str:
    """What ± means, if there is any; `seeds` are those of each cell that has some."""
    counts = sorted({int(count) for count in seeds} - {0})
    if not counts or counts[-1] < 2:
        return ""
    if len(counts) == 1:
        return f"± is one standard deviation over {counts[0]} seeds."
    return "± is one standard deviation over the seeds of a cell; one seed has none."


def metric_cell(metric: str, mean: float, deviation: float, mark: Mark = "", remark: str = "") -> Cell:
    """`mean ± deviation`, with a sign if the metric is a difference; the metric may not exist (AC of one task)."""
    text = spread(metric, mean, deviation) + remark
    return Cell(text) if pd.isna(mean) else Cell(text, float(mean), mark)


def spread(metric: str, mean: float, deviation: float) -> str:
    """`mean ± deviation`, or what there is of it."""
    return signed(metric, mean) if pd.isna(deviation) else f"{signed(metric, mean)} ± {deviation:.3f}"


def signed(metric: str, value: float) -> str:
    """A figure of a metric, with a sign if it is a difference; it may not exist."""
    if pd.isna(value):
        return EMPTY
    rounded = round(float(value), 3) or 0.0  # 0 has no sign
    return f"{rounded:{'+' if rounded and base_metric(metric) in SIGNED else ''}.3f}"


def figure_cell(value: float, form: str) -> Cell:
    """A cost in a format such as `,.0f`; it may not be known."""
    return Cell(EMPTY) if pd.isna(value) else Cell(format(value, form), float(value))


def field_cell(value: Any) -> Cell:
    """A config value, a label or a count."""
    number = not pd.isna(value) and isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return Cell(short(value), float(value) if number else None)
