"""Interactive figures as data for Plotly: lines over tasks or fields, with a band over seeds.

Colours of text, grid and background are left to the page's style sheet, which knows light, dark and paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.names import HELD_AGAINST, title
from analysis.report.compact import floats, significant

Look = Mapping[str, Any]
Trace = dict[str, Any]
DRAWN = 10
"""Lines that are drawn from the beginning; the rest wait in the legend."""


@dataclass(frozen=True)
class View:
    """One of the things a figure can show: data and layout in Plotly's words."""

    name: str
    data: list[Trace]
    layout: dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A figure of the page; with several views the reader chooses one."""

    id: str
    title: str
    caption: str
    views: tuple[View, ...]
    width: int = 0
    """Pixels that it needs at least; on a narrower screen it scrolls."""


def plain_text(text: object) -> str:
    """Names as they are: Plotly reads tags in them, and figures to fill in."""
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "%&#123;")


def axes(x: str, y: str, **more: Any) -> dict[str, Any]:
    """A layout with titles; `more` are entries such as xaxis_type."""
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": x, "standoff": 10}},
        "yaxis": {"title": {"text": y, "standoff": 12}},
    }
    for key, value in more.items():
        axis, _, name = key.partition("_")
        layout[axis][name] = value
    return layout


def seed_lines(rows: pd.DataFrame, looks: Mapping[str, Look], word: str, sign: str = "") -> list[Trace]:
    """A line a group of `rows` (group, x, y): mean over seeds, and a band of one standard deviation where there is one.

    The lines that end highest come first; of many groups only these, ER and CL²R are drawn from the beginning.
    """
    rows = rows.assign(y=floats(rows["y"])).dropna(subset=["y"])
    table = rows.groupby(["group", "x"], sort=True)["y"].agg(["mean", "std", "count"]).reset_index()
    ends = table.groupby("group")["mean"].last().sort_values(ascending=False, kind="stable")
    kept = [name for name in map(title, HELD_AGAINST) if name in ends.index]
    drawn = {*kept, *[name for name in ends.index if name not in kept][: DRAWN - len(kept)]}
    traces: list[Trace] = []
    for group in ends.index:
        own = table[table["group"] == group]
        hidden = {} if group in drawn else {"visible": "legendonly"}
        traces += [{**trace, **hidden} for trace in _line(own, str(group), looks[str(group)], word, sign)]
    return traces


def _line(own: pd.DataFrame, group: str, look: Look, word: str, sign: str) -> list[Trace]:
    x, mean, spread = own["x"].tolist(), own["mean"], own["std"]
    name = plain_text(group)
    line: Trace = {"type": "scatter", "mode": "lines+markers", "name": name, "legendgroup": group, "x": x}
    line["line"] = {"color": look["color"], "dash": look["dash"], "width": look["width"]}
    line["marker"] = {"symbol": look["symbol"], "size": 7}
    line |= {
        "y": significant(mean, 5),
        "customdata": [_spread(s, n) for s, n in zip(spread, own["count"], strict=True)],
    }
    line["hovertemplate"] = f"{name}<br>{plain_text(word)} %{{x}}: %{{y:{sign}.3f}}%{{customdata}}<extra></extra>"
    band = own[spread.notna()]
    if band.empty:
        return [line]
    outline = significant([*(band["mean"] + band["std"]), *(band["mean"] - band["std"])[::-1]], 5)
    there = band["x"].tolist()
    area: Trace = {"type": "scatter", "mode": "lines", "x": [*there, *there[::-1]], "y": outline, "fill": "toself"}
    area |= {"line": {"width": 0}, "fillcolor": _faint(look["color"]), "hoverinfo": "skip", "showlegend": False}
    return [{**area, "legendgroup": group, "name": name}, line]


def _spread(deviation: float, seeds: int) -> str:
    return " (one seed)" if pd.isna(deviation) else f" ± {deviation:.3f} ({seeds} seeds)"


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.14)"


def drawn_note(groups: int) -> str:
    """What a caption says if there are more lines than are drawn."""
    return f" {DRAWN} of {groups} lines are drawn; a click in the legend adds another." if groups > DRAWN else ""


def band_note(runs: pd.DataFrame) -> str:
    """What a caption says of the band."""
    several = runs.groupby("group")["seed"].nunique().max() > 1
    return "Mean over seeds, band ± one standard deviation." if several else "One seed: no band."


def number_axis(values: Sequence[Any]) -> dict[str, Any]:
    """Logarithmic if all are above 0 and far apart; ticks at the values if they are few."""
    numbers = sorted(set(floats(list(values)).tolist()))
    log = numbers[0] > 0 and numbers[-1] / numbers[0] >= 30
    ticks = {"tickmode": "array", "tickvals": numbers, "ticktext": [f"{n:g}" for n in numbers]}
    return ({"type": "log"} if log else {}) | (ticks if len(numbers) <= 8 else {})
