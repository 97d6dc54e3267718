"""A table as people read it, with the figures behind it. How it is written down is `analysis.formats`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

Mark = Literal["", "best", "close", "heading"]
"""`best`: the best mean of its column; `close`: not significantly worse than the best; `heading`: of the rows below."""


@dataclass(frozen=True)
class Cell:
    """Text as shown; `value` is what a column is sorted by (None: by the text, or nothing there)."""

    text: str
    value: float | None = None
    mark: Mark = ""


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of cells under `columns`; `data` has the same figures in full, for CSV; `notes` stand below.

    `tested` is false if there were too few seeds for the test behind the marks.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    data: pd.DataFrame
    title: str = ""
    notes: tuple[str, ...] = field(default=())
    tested: bool = True

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: a row of {len(row)} cells under {len(self.columns)} columns")

    def column(self, name: str) -> list[Cell]:
        """The cells below a heading."""
        place = self.columns.index(name)
        return [row[place] for row in self.rows]

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold figures."""
        return [any(row[place].value is not None for row in self.rows) for place in range(len(self.columns))]

    @property
    def marks(self) -> set[Mark]:
        """The marks that some cell has."""
        return {cell.mark for row in self.rows for cell in row if cell.mark}


def text_cells(values: Sequence[object]) -> tuple[Cell, ...]:
    """Cells without figures."""
    return tuple(Cell(str(value)) for value in values)
