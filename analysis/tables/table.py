"""A table as people read it, with the full-precision values behind it. `analysis.tables.formats` writes it as text."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.comparisons import standings
from analysis.groups import Group, config_fields, numbered_groups, one_budget, short
from analysis.names import metric_of, on_all_data, ordered
from analysis.names import title as method_title
from analysis.stats import NO_SPREAD, TOO_SMALL
from cl2r.errors import InputError

Mark = Literal["", "best", "worse", "heading"]
"""`best`: the best mean of its column; `worse`: significantly worse than the best; `heading`: of the rows below."""
EMPTY = "–"
MOST_NAMES = 8  # methods whose names on the command line a note lists


@dataclass(frozen=True)
class Cell:
    """The text that is shown; a column is sorted by `value` (None: by the text, or the cell is empty)."""

    text: str
    value: float | None = None
    mark: Mark = ""


FAILED = Cell("failed")
STOPPED = Cell("stopped early")


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of cells under `columns`; `data` has the values in full precision, for CSV; `notes` stand below it.

    `hints` are notes for people who type commands; LaTeX leaves them out.
    The last `references` rows are no methods or trials, but what they are measured by; `data` has a column `reference`.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    data: pd.DataFrame
    title: str = ""
    notes: tuple[str, ...] = field(default=())
    tested: bool = True  # false if there were too few seeds for the test behind the marks
    references: int = 0
    hints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: a row of {len(row)} cells under {len(self.columns)} columns")

    def column(self, name: str) -> list[Cell]:
        """Return the cells of a column."""
        place = self.columns.index(name)
        return [row[place] for row in self.rows]

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers."""
        return [any(row[place].value is not None for row in self.rows) for place in range(len(self.columns))]

    @property
    def marks(self) -> set[Mark]:
        """The marks that at least one cell has."""
        return {cell.mark for row in self.rows for cell in row if cell.mark}


@dataclass(frozen=True)
class Marks:
    """The marks of a column by the label of a group; `note` says why there are none."""

    by_group: Mapping[Hashable, Mark] = field(default_factory=dict)
    tested: bool = False
    note: str = ""

    def of(self, label: Hashable) -> Mark:
        """Return the mark of a group."""
        return self.by_group.get(label, "")


def to_compare(runs: pd.DataFrame, *kept: str) -> pd.DataFrame:
    """Return the runs without config fields that are the same in all of them, which makes comparisons faster."""
    fields = [name for name in config_fields(runs) if name not in ("method.name", "variant", *kept)]
    return runs.drop(columns=[name for name in fields if runs[name].nunique(dropna=False) < 2])


def column_marks(runs: pd.DataFrame, metric: str, by: Sequence[str]) -> Marks:
    """Return the marks of the groups of runs; none if all are equal or the groups cannot be compared.

    Methods that train on all data at every task are not compared with the others.
    """
    if "method.name" in runs:
        whole = runs["method.name"].astype(str).map(on_all_data)
        runs = runs if whole.all() else runs[~whole]
    try:
        one_budget(runs)
        table = standings(runs, metric, by)
    except InputError as error:
        return Marks(note=f"Without marks: {error}.")
    known = table[table["n"] > 0]
    if (known["mark"] == "best").all():
        return Marks()  # one group, or all are equal
    tested = (known["mark"] != "best") & ~known["note"].str.startswith((TOO_SMALL, NO_SPREAD))
    return Marks(dict(zip(table.index, table["mark"], strict=True)), tested=bool(tested.any()))


def holes(runs: pd.DataFrame, by: Sequence[str]) -> dict[Group, Cell]:
    """Return, by group, the cell to show if none of its runs counted. Groups that were never planned have no entry."""
    codes, groups = numbered_groups(runs, by)
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
    references: int = 0,
    methods: Iterable[str] = (),
) -> Table:
    """Return a table whose cells have these marks; if marks are missing for several reasons, the first is noted.

    `methods` are the names of those that the table shows by their titles.
    """
    refused = [own.note for own in marks if own.note]
    below = tuple(note for note in (*notes, *refused[:1]) if note)
    tested = any(own.tested for own in marks)
    hints = command_line_names(methods)
    return Table(tuple(columns), tuple(map(tuple, rows)), data, title, below, tested, references, hints)


def command_line_names(methods: Iterable[str]) -> tuple[str, ...]:
    """Return a note on what the command line calls methods whose title is another word, if there are any."""
    bases = ordered(name.partition("+")[0] for name in methods)
    names = [name for name in bases if method_title(name).casefold() != name]
    if len(names) > MOST_NAMES:
        return ("`cl2r methods` lists the names of the command line.",)
    words = "; ".join(f"{method_title(name)} is {name}" for name in names)
    return (f"On the command line: {words}.",) if names else ()


def deviation_note(seeds: Iterable[float]) -> str:
    """Return a note on the meaning of ±, or nothing if no cell has several seeds; `seeds` are the cells' numbers."""
    counts = sorted({int(count) for count in seeds} - {0})
    if not counts or counts[-1] < 2:
        return ""
    if len(counts) == 1:
        return f"± is one standard deviation over {counts[0]} seeds."
    return "± is one standard deviation over the seeds of a cell; one seed has none."


def interval_notes(cells: pd.DataFrame) -> list[str]:
    """Return notes on the meaning of brackets; `cells` have `seeds`, `low` and `high`."""
    cells = cells[cells["seeds"] > 0].astype(float)
    single, shown = cells["seeds"] == 1, cells["low"] < cells["high"]
    if single.all():
        pairs = "One seed. Brackets: 95 % bootstrap interval over its pairs, which says nothing about other seeds."
        return [pairs if shown.any() else "One seed: no interval."] if len(cells) else []
    counts = cells["seeds"].unique()
    seeds = f"{counts[0]:.0f} seeds" if len(counts) == 1 else "seeds"
    text = f"Brackets: 95 % t-interval of the mean over {seeds}"
    if single.any():
        over_pairs = "with one seed, 95 % bootstrap interval over its pairs"
        text += f"; {over_pairs if shown[single].any() else 'one seed has none'}"
    flat = (cells["low"] == cells["high"])[~single].any()
    return [f"{text}.", *(["A mean without brackets is the same for all seeds."] if flat else [])]


def signed(metric: str, value: float) -> str:
    """Return a value with three digits, and with its sign if the metric is a difference; `–` for NaN."""
    if pd.isna(value):
        return EMPTY
    known = metric_of(metric)
    rounded = round(float(value), 3) or 0.0  # 0 has no sign
    return f"{rounded:{'+' if rounded and known is not None and known.signed else ''}.3f}"


def spread(metric: str, mean: float, deviation: float) -> str:
    """Return `mean ± deviation`, without the deviation if it is NaN."""
    return signed(metric, mean) if pd.isna(deviation) else f"{signed(metric, mean)} ± {deviation:.3f}"


def metric_cell(metric: str, mean: float, deviation: float, mark: Mark = "", remark: str = "") -> Cell:
    """Return the cell of `mean ± deviation`; a metric may not exist, such as AC of one task."""
    text = spread(metric, mean, deviation) + remark
    return Cell(text) if pd.isna(mean) else Cell(text, float(mean), mark)


def interval_cell(metric: str, mean: float, low: float, high: float, mark: Mark = "", remark: str = "") -> Cell:
    """Return the cell of `mean [low, high]`; equal seeds have an interval of width 0, which is not shown."""
    ends = f" [{signed(metric, low)}, {signed(metric, high)}]" if low < high else ""
    text = signed(metric, mean) + ends + remark
    return Cell(text) if pd.isna(mean) else Cell(text, float(mean), mark)


def number_cell(value: float, form: str) -> Cell:
    """Return the cell of a number in a format such as `,.0f`; NaN gives an empty cell."""
    return Cell(EMPTY) if pd.isna(value) else Cell(format(value, form), float(value))


def field_cell(value: Any) -> Cell:
    """Return the cell of a config value, a label or a count."""
    number = not pd.isna(value) and isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return Cell(short(value), float(value) if number else None)


def text_cells(values: Sequence[object]) -> tuple[Cell, ...]:
    """Return cells without a number."""
    return tuple(Cell(str(value)) for value in values)
