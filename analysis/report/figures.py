"""Interactive figures as data for Plotly: lines over tasks or fields, with a band over seeds.

The page's style sheet sets the colours of text, grid and background for light, dark and print.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.groups import group_labels, in_order
from analysis.matrices import bc_by_task, pareto_front
from analysis.names import STATIONARITY, LineStyle, field_title, method_style, nth_style, ordered, shown_first
from analysis.report.page import floats, significant
from analysis.study import Study
from cl2r.metrics import AC, BC

FigureLook = Mapping[str, Any]
Trace = dict[str, Any]
DRAWN = 10
"""Lines that are drawn at first; a click in the legend draws the others."""


@dataclass(frozen=True)
class View:
    """One view of a figure: data and layout for Plotly."""

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
    """Minimum width in pixels; on a narrower screen the figure scrolls."""


def plain_text(text: object) -> str:
    """Return text that Plotly shows literally; it would interpret tags and %{…} templates."""
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "%&#123;")


def axes(x: str, y: str, **more: Any) -> dict[str, Any]:
    """Return a layout with axis titles; `more` are entries such as xaxis_type."""
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": x, "standoff": 10}},
        "yaxis": {"title": {"text": y, "standoff": 12}},
    }
    for key, value in more.items():
        axis, _, name = key.partition("_")
        layout[axis][name] = value
    return layout


def seed_lines(rows: pd.DataFrame, looks: Mapping[str, FigureLook], word: str, sign: str = "") -> list[Trace]:
    """Return one line per group of `rows` (group, x, y): mean over seeds with a band of one standard deviation.

    The lines that end highest come first; of many groups only these, ER and CL²R are drawn at first.
    """
    rows = rows.assign(y=floats(rows["y"])).dropna(subset=["y"])
    table = rows.groupby(["group", "x"], sort=True)["y"].agg(["mean", "std", "count"]).reset_index()
    ends = table.groupby("group")["mean"].last().sort_values(ascending=False, kind="stable")
    drawn = shown_first([str(name) for name in ends.index], DRAWN)
    traces: list[Trace] = []
    for group in ends.index:
        own = table[table["group"] == group]
        hidden = {} if group in drawn else {"visible": "legendonly"}
        traces += [{**trace, **hidden} for trace in _line(own, str(group), looks[str(group)], word, sign)]
    return traces


def _line(own: pd.DataFrame, group: str, look: FigureLook, word: str, sign: str) -> list[Trace]:
    x, mean, spread = own["x"].tolist(), own["mean"], own["std"]
    name = plain_text(group)
    line: Trace = {"type": "scatter", "mode": "lines+markers", "name": name, "legendgroup": group, "x": x}
    line["line"] = {"color": look["color"], "dash": look["dash"], "width": look["width"]}
    line["marker"] = {"symbol": look["symbol"], "size": 7}
    line["y"] = significant(mean, 5)
    line["customdata"] = [
        " (one seed)" if pd.isna(deviation) else f" ± {deviation:.3f} ({seeds} seeds)"
        for deviation, seeds in zip(spread, own["count"], strict=True)
    ]
    line["hovertemplate"] = f"{name}<br>{plain_text(word)} %{{x}}: %{{y:{sign}.3f}}%{{customdata}}<extra></extra>"
    band = own[spread.notna()]
    if band.empty:
        return [line]
    outline = significant([*(band["mean"] + band["std"]), *(band["mean"] - band["std"])[::-1]], 5)
    there = band["x"].tolist()
    area: Trace = {"type": "scatter", "mode": "lines", "x": [*there, *there[::-1]], "y": outline, "fill": "toself"}
    red, green, blue = (int(look["color"][place : place + 2], 16) for place in (1, 3, 5))
    faint = f"rgba({red},{green},{blue},0.14)"
    area |= {"line": {"width": 0}, "fillcolor": faint, "hoverinfo": "skip", "showlegend": False}
    return [{**area, "legendgroup": group, "name": name}, line]


def drawn_note(groups: int) -> str:
    """Return a caption's note on lines that are not drawn at first."""
    return f" {DRAWN} of {groups} lines are drawn; a click in the legend adds another." if groups > DRAWN else ""


def band_note(runs: pd.DataFrame) -> str:
    """Return a caption's note on the band."""
    several = runs.groupby("group")["seed"].nunique().max() > 1
    return "Mean over seeds, band ± one standard deviation." if several else "One seed: no band."


def number_axis(values: Sequence[Any]) -> dict[str, Any]:
    """Return an axis: logarithmic for a wide range above 0, with ticks at the values if they are few."""
    numbers = sorted(set(floats(list(values)).tolist()))
    log = numbers[0] > 0 and numbers[-1] / numbers[0] >= 30
    ticks = {"tickmode": "array", "tickvals": numbers, "ticktext": [f"{n:g}" for n in numbers]}
    return ({"type": "log"} if log else {}) | (ticks if len(numbers) <= 8 else {})


# Groups and their line styles, the same in all parts of the report.

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "D": "diamond",
    "v": "triangle-down",
    "P": "cross",
    "X": "x",
    "<": "triangle-left",
    ">": "triangle-right",
}
"""Plotly's names of Matplotlib's markers."""


def labelled(study: Study, fields: list[str]) -> pd.DataFrame:
    """Return `runs` with the column `group`, defined by `fields`; labels of trials start with the trial's number."""
    runs = study.runs
    labels = group_labels(runs, fields).astype(str)
    if study.specification.get("space") and "trial" in runs:
        labels = "trial " + runs["trial"].astype(str) + ": " + labels
    return runs.assign(group=labels)


def looks(runs: pd.DataFrame) -> dict[str, dict[str, object]]:
    """Return colour, marker and dashes by group: the method's style, with other dashes for its next group."""
    methods = dict(zip(runs["group"], runs["method.name"].astype(str), strict=True))
    groups = in_order(runs["group"])
    names = ordered(list(methods.values()))
    if len(names) == 1 and len(groups) > 1:
        return {group: _drawn(nth_style(place), 0) for place, group in enumerate(groups)}
    places = {group: [g for g in methods if methods[g] == methods[group]].index(group) for group in groups}
    return {group: _drawn(method_style(methods[group], names), places[group]) for group in groups}


def _drawn(own: LineStyle, place: int) -> dict[str, object]:
    dash = DASHES[(place + own.dashed) % len(DASHES)]
    symbol = SYMBOLS[own.marker] + ("-open" if own.hollow else "")
    return {"color": own.colour, "symbol": symbol, "dash": dash, "width": 3 if own.highlighted else 2}


# The figures of a study: BC(t) and stationarity over tasks, metrics over config fields, metrics against storage.

VIEWED = (BC, AC)
"""The views of a figure, in this order."""


def study_figures(study: Study, runs: pd.DataFrame, fields: list[str]) -> list[Figure]:
    """Return the figures for which the frames have data; `runs` are finished and have their `group`."""
    if runs.empty:
        return []
    styles = looks(runs)
    figures = [_bc_figure(study, runs, styles), _stationarity_figure(study, runs, styles)]
    for name in [] if study.specification.get("space") else fields[1:]:
        values = runs[name]
        if values.notna().all() and pd.api.types.is_numeric_dtype(values) and values.nunique() > 1:
            figures.append(_field_figure(runs, name))
    figures.append(_storage_figure(runs, styles))
    return [figure for figure in figures if figure is not None]


def _bc_figure(study: Study, runs: pd.DataFrame, styles: Mapping[str, Any]) -> Figure | None:
    own = study.matrix[study.matrix["run"].isin(runs["run"])]
    views = []
    metrics = in_order(own["metric"].dropna()) if "metric" in own and own["metric"].notna().all() else ["accuracy"]
    for metric in metrics:
        rows = bc_by_task(own, metric=metric).rename(columns={"t": "x", "BC": "y"})
        rows = rows.merge(runs[["run", "group"]], on="run")
        if len(rows):
            traces = seed_lines(rows, styles, "task", "+")
            views.append(View(metric, traces, axes("task t", "BC(t)", xaxis_dtick=1, yaxis_zeroline=True)))
    if not views:
        return None
    caption = f"Backward compatibility after every task. {band_note(runs)}{drawn_note(runs['group'].nunique())}"
    return Figure("bc-curve", "BC(t) over the tasks", caption, tuple(views))


def _stationarity_figure(study: Study, runs: pd.DataFrame, styles: Mapping[str, Any]) -> Figure | None:
    views = []
    for name, label in STATIONARITY.items():
        if name in study.tasks and floats(study.tasks[name]).size and study.tasks[name].notna().any():
            rows = study.tasks[["run", "task", name]].set_axis(["run", "x", "y"], axis=1)
            rows = rows.merge(runs[["run", "group"]], on="run")
            views.append(View(name, seed_lines(rows, styles, "task"), axes("task t", label, xaxis_dtick=1)))
    if not views:
        return None
    caption = (
        "How similar the representation is to that of the previous task; 1 means no change. "
        f"{band_note(runs)}{drawn_note(runs['group'].nunique())}"
    )
    return Figure("stationarity", "Stationarity", caption, tuple(views))


def _field_figure(runs: pd.DataFrame, name: str) -> Figure | None:
    """Return AC and BC over a field, with one line per group of runs that differ in it only."""
    rest = runs.drop(columns=[name, "group"])
    rest = rest.assign(group=group_labels(rest).astype(str), x=floats(runs[name]))
    lines = rest.groupby("group")["x"].nunique()
    rest = rest[rest["group"].isin(lines.index[lines > 1])]
    views = []
    for metric in VIEWED:
        values = floats(rest[metric.name]) if metric.name in rest else np.nan
        rows = rest[["group", "x"]].assign(y=values).dropna()
        if len(rows):
            traces = seed_lines(rows, looks(rest), field_title(name), "+" if metric.signed else "")
            layout = axes(name, metric.title)
            layout["xaxis"] |= number_axis(rows["x"].tolist())
            views.append(View(metric.name, traces, layout))
    if not views:
        return None
    caption = f"By {name}. {band_note(rest)}{drawn_note(rest['group'].nunique())}"
    return Figure(f"over-{name.replace('.', '-')}", f"Over {field_title(name)}", caption, tuple(views))


def _storage_figure(runs: pd.DataFrame, styles: Mapping[str, Any]) -> Figure | None:
    """Return compatibility against storage by group; None if all groups store the same."""
    if "stored_bytes" not in runs or runs["stored_bytes"].nunique() < 2:
        return None
    views = []
    for metric in VIEWED:
        if metric.name in runs and runs[metric.name].notna().any():
            values = {"group": runs["group"], "x": floats(runs["stored_bytes"]), "y": floats(runs[metric.name])}
            points = pd.DataFrame(values).groupby("group", sort=False).mean().dropna().sort_values("x", kind="stable")
            layout = axes("stored bytes", metric.title, xaxis_tickformat="~s", xaxis_ticksuffix="B")
            layout["xaxis"] |= {"type": "log"} if points["x"].max() > 30 * points["x"].min() > 0 else {}
            sign = "+" if metric.signed else ""
            views.append(View(metric.name, _front_and_points(points, styles, sign), layout))
    caption = (
        "Memory images and stored weights after the last task, mean over seeds. "
        "The line joins the groups on the Pareto front."
    )
    return Figure("storage", "Compatibility against storage", caption, tuple(views)) if views else None


def _front_and_points(points: pd.DataFrame, styles: Mapping[str, Any], sign: str) -> list[Trace]:
    """Return the line of the Pareto front, then one point per group."""
    front = points[pareto_front(np.column_stack([points["x"], -points["y"]]))].drop_duplicates()
    line: Trace = {
        "type": "scatter",
        "mode": "lines",
        "name": "Pareto front",
        "x": significant(front["x"], 6),
        "y": significant(front["y"], 5),
        "line": {"shape": "hv", "color": "#888888", "dash": "dot", "width": 1.5},
        "hoverinfo": "skip",
    }
    traces = [line]
    for group, row in points.iterrows():
        look, name = styles[str(group)], plain_text(group)
        dotted = "-dot" if look["dash"] != "solid" else ""  # a point shows no dashes
        marker = {"color": look["color"], "symbol": f"{look['symbol']}{dotted}", "size": 10}
        hover = f"{name}<br>%{{y:{sign}.3f}} with %{{x:.3s}}B<extra></extra>"
        place = {"x": significant([row["x"]], 6), "y": significant([row["y"]], 5)}
        traces.append(
            {"type": "scatter", "mode": "markers", "name": name, "marker": marker, "hovertemplate": hover, **place}
        )
    return traces
