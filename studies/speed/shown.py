"""The rows as one Markdown table with its notes, and as JSON with every sample."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from analysis.cells import EMPTY
from analysis.formats import render
from analysis.table import Cell, Table
from studies.speed.timing import Measured

COLUMNS = ("what", "reference", "cl2r", "ratio (quartiles)")


def table(rows: Sequence[Measured], about: Mapping[str, Any]) -> Table:
    """A heading a part; notes and the machine below."""
    body, last = list[tuple[Cell, ...]](), ""
    for row in rows:
        if row.part != last:
            body.append((Cell(row.part, mark="heading"), *(Cell("") for _ in COLUMNS[1:])))
            last = row.part
        figures = Cell(figure(row.reference, row.unit)), Cell(figure(row.engine, row.unit))
        body.append((Cell(row.what), *figures, Cell(spread(row))))
    notes = [f"{row.part}, {row.what}: {row.note}." for row in rows if row.note]
    return Table(COLUMNS, tuple(body), pd.DataFrame([asdict(row) for row in rows]), "", (*notes, *_machine(about)))


def figure(value: float, unit: str) -> str:
    """Three digits that count, or whole numbers."""
    return f"{value:,.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"


def spread(row: Measured) -> str:
    """How many times better the engine is; less than 1: worse."""
    if math.isnan(row.ratio):
        return EMPTY
    middle = f"{times(row.ratio)}×"
    return middle if row.low is None or row.high is None else f"{middle} ({times(row.low)}–{times(row.high)})"


def times(ratio: float) -> str:
    """A ratio."""
    return f"{ratio:,.0f}" if abs(ratio) >= 100 else f"{ratio:.3g}"


def _machine(about: Mapping[str, Any]) -> tuple[str, str]:
    machine = about["machine"]
    means = (
        "Figures are medians. A ratio is how many times better cl2r is, the median and the quartiles over rounds, each "
        "of which takes both in turns; without quartiles it was measured once."
    )
    where = f"{machine['processor']}, {machine['cpus']} cores, {about['threads']} threads, {about['capability']}"
    return means, f"{where}, torch {about['torch']}."


def markdown(rows: Sequence[Measured], about: Mapping[str, Any]) -> str:
    """The table."""
    return render(table(rows, about), "markdown")


def to_json(rows: Sequence[Measured], about: Mapping[str, Any]) -> str:
    """All of it; a figure that does not exist is null."""
    plain = [{key: _finite(value) for key, value in asdict(row).items()} for row in rows]
    return json.dumps({**about, "rows": plain}, indent=1, ensure_ascii=False, allow_nan=False)


def read_json(text: str) -> tuple[list[Measured], dict[str, Any]]:
    """The rows and facts that `to_json` wrote; what does not exist is NaN again."""
    facts: dict[str, Any] = json.loads(text)
    rows = []
    for row in facts.pop("rows"):
        ratio = math.nan if row["ratio"] is None else row["ratio"]
        samples = {name: tuple(row[name]) for name in ("reference_samples", "engine_samples")}
        rows.append(Measured(**{**row, "ratio": ratio, **samples}))
    return rows, facts


def joined(
    old: Sequence[Measured], facts: Mapping[str, Any], new: Sequence[Measured], about: Mapping[str, Any]
) -> list[Measured]:
    """Rows of earlier commands whose parts were not measured again, in their places, and the new ones.

    Only of the same machine, libraries and threads: rows of others stand in no table with these.
    """
    alike = all(facts.get(name) == about[name] for name in ("machine", "torch", "capability", "threads"))
    order = list(dict.fromkeys([*(row.part for row in (old if alike else ())), *(row.part for row in new)]))
    fresh = {row.part for row in new}
    kept = [row for row in old if alike and row.part not in fresh]
    return sorted([*kept, *new], key=lambda row: order.index(row.part))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
