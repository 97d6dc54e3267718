"""The HTML page: its template, tables, and values as short JSON; values that are not finite become null."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from plotly.offline import get_plotlyjs

import cl2r
from analysis.tables.formats import render
from analysis.tables.table import Table

if TYPE_CHECKING:
    from analysis.report.figures import Figure


def floats(values: Any) -> npt.NDArray[np.float64]:
    """Return floats for any kind of column; empty entries become NaN."""
    return pd.to_numeric(pd.Series(values), errors="coerce").to_numpy(dtype=float, na_value=np.nan)


def exact(values: Any) -> list[float | None]:
    """Return values with all digits, for values from which the page computes others."""
    return [value if math.isfinite(value) else None for value in floats(values).tolist()]


def shown(values: Any) -> list[float | None]:
    """Return values with three decimals; rounded as Python formats them, so that the page agrees with the tables."""
    return [None if value is None else round(value, 3) for value in exact(values)]


def significant(values: Any, digits: int = 4) -> list[float | None]:
    """Return values rounded to significant digits, for lines of a figure."""
    return [None if value is None else float(f"{value:.{digits}g}") for value in exact(values)]


def embedded(value: Any) -> Markup:
    """Return JSON that is safe inside <script>: `<`, `>` and `&` are escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


FOLDER = Path(__file__).parent
SCRIPTS = ("memory", "tables", "matrix", "figures", "start")


@dataclass(frozen=True)
class ShownTable:
    """A table as HTML and as text to copy; title and notes are separate because they do not scroll with it."""

    id: str
    title: str
    body: Markup
    notes: Markup
    texts: dict[str, str]


def shown_table(table: Table, id_: str, title: str = "") -> ShownTable:
    """Return the table ready for the page."""
    body, end, notes = render(replace(table, title=""), "html").partition("</table>")
    texts = {"markdown": render(table, "markdown"), "latex": render(table, "latex"), "csv": render(table, "csv")}
    return ShownTable(id_, title or table.title, Markup(body + end), Markup(notes), texts)


NO_STUDY: dict[str, Any] = {
    **dict.fromkeys(("live", "remarks", "findings", "differences", "figures", "cost_lines", "sections"), ()),
    **dict.fromkeys(
        ("head", "refresh", "race", "matrix", "losses", "loss_remark", "sweep", "lost", "runs", "settings")
    ),
}
"""The parts of a page about something else than the runs of a study, apart from its first screen and its tables."""


@dataclass(frozen=True)
class Section:
    """A section of lines and tables that only some kinds of study have."""

    id: str
    title: str
    tables: tuple[ShownTable, ...]
    lines: tuple[str, ...] = ()


def render_page(
    content: dict[str, Any], data: dict[str, Any], figures: Sequence["Figure"], tables: Sequence[ShownTable]
) -> str:
    """Return the page with its style, scripts and data, which include those of its figures and tables."""
    views = {figure.id: [{"data": view.data, "layout": view.layout} for view in figure.views] for figure in figures}
    data = data | {"figures": views, "texts": {table.id: table.texts for table in tables}}
    content = NO_STUDY | content | {"now": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "version": cl2r.__version__}
    script = '"use strict";\n' + "\n".join(
        (FOLDER / "scripts" / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS
    )
    parts = {"style": Markup((FOLDER / "page.css").read_text(encoding="utf-8")), "script": Markup(script)}
    parts["plotly"] = Markup(_plotly())  # contains no `</script`, which would end the element early
    return _template().render(**content, **parts, data=embedded(data), plotly_version=plotly.__version__)


_plotly = cache(get_plotlyjs)


@cache
def _template() -> Template:
    environment = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    return environment.get_template("page.html")
