"""The page itself: everything in one file, so that it can be read offline and sent to somebody."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import plotly
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from analysis.formats import render
from analysis.report.compact import embedded
from analysis.table import Table

FOLDER = Path(__file__).parent
SCRIPTS = ("memory", "tables", "matrix", "figures", "start")


@dataclass(frozen=True)
class ShownTable:
    """A table as HTML, apart from its title and its notes, which do not scroll with it; and as text to copy."""

    id: str
    title: str
    body: Markup
    notes: Markup
    texts: dict[str, str]


def shown_table(table: Table, id_: str, title: str = "") -> ShownTable:
    """The table, ready for the page."""
    body, end, notes = render(replace(table, title=""), "html").partition("</table>")
    texts = {"markdown": render(table, "markdown"), "latex": render(table, "latex"), "csv": render(table, "csv")}
    return ShownTable(id_, title or table.title, Markup(body + end), Markup(notes), texts)


def render_page(content: dict[str, Any], data: dict[str, Any]) -> str:
    """The page with its style, its scripts and its data."""
    script = '"use strict";\n' + "\n".join((FOLDER / "scripts" / f"{name}.js").read_text() for name in SCRIPTS)
    parts = {"style": Markup((FOLDER / "page.css").read_text()), "script": Markup(script), "plotly": _plotly()}
    return _template().render(**content, **parts, data=embedded(data), plotly_version=plotly.__version__)


@cache
def _template() -> Template:
    environment = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    return environment.get_template("page.html")


@cache
def _plotly() -> Markup:
    """Plotly's own script. Its texts hold no `</script`, which would end the element early."""
    return Markup(get_plotlyjs())
