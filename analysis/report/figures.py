"""Interactive figures as data for Plotly: lines over tasks or fields, with a band over seeds."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.groups import group_labels, in_order
from analysis.matrices import bc_by_task, pareto_front
from analysis.names import STATIONARITY, field_title, method_style, nth_style, ordered, shown_first
from analysis.report.page import floats, significant
from analysis.study import Study
from cl2r.metrics import AC, BC

Looks = Mapping[str, Mapping[str, Any]]
Trace = dict[str, Any]
DRAWN = 10  # lines; a click in the legend draws the others


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
    width: int = 0  # minimum in pixels; on a narrower screen the figure scrolls


def plain_text(text: object) -> str:
    """Return text that Plotly shows literally; it would interpret tags and %{…} templates."""
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "%&#123;")


def axes(x: str, y: str, **more: Any) -> dict[str, Any]:
    """Return a layout with axis titles; `more` are entries of the x axis, such as dtick."""
    x_axis = {"title": {"text": x, "standoff": 10}, **more}
    return {"xaxis": x_axis, "yaxis": {"title": {"text": y, "standoff": 12}}}


def seed_lines(rows: pd.DataFrame, looks: Looks, word: str, sign: str = "") -> list[Trace]:
    """Return one line per group of `rows` (group, x, y): mean over seeds with a band of one standard deviation.

    The lines that end highest come first; of many groups only these, ER and CL²R are drawn at first.
    """
    rows = rows.assign(y=floats(rows["y"])).dropna(subset=["y"])
    table = rows.groupby(["group", "x"], sort=True)["y"].agg(["mean", "std", "count"]).reset_index()
    ends = table.groupby("group")["mean"].last().sort_values(ascending=False, kind="stable")
    drawn = shown_first([str(name) for name in ends.index], DRAWN)
    traces: list[Trace] = []
    for group in map(str, ends.index):
        own, look, name = table[table["group"] == group], looks[group], plain_text(group)
        common: Trace = {"type": "scatter", "name": name, "legendgroup": group}
        common |= {} if group in drawn else {"visible": "legendonly"}
        band = own[own["std"].notna()]
        if len(band):
            there, (red, green, blue) = band["x"].tolist(), bytes.fromhex(look["color"][1:])
            outline = significant([*(band["mean"] + band["std"]), *(band["mean"] - band["std"])[::-1]], 5)
            area = {**common, "mode": "lines", "x": [*there, *there[::-1]], "y": outline, "fill": "toself"}
            area |= {"fillcolor": f"rgba({red},{green},{blue},0.14)", "line": {"width": 0}}
            traces.append({**area, "hoverinfo": "skip", "showlegend": False})
        line = {**common, "mode": "lines+markers", "x": own["x"].tolist(), "y": significant(own["mean"], 5)}
        line["line"] = {key: look[key] for key in ("color", "dash", "width")}
        line["marker"] = {"symbol": look["symbol"], "size": 7}
        line["customdata"] = [
            " (one seed)" if pd.isna(deviation) else f" ± {deviation:.3f} ({seeds} seeds)"
            for deviation, seeds in zip(own["std"], own["count"], strict=True)
        ]
        hover = f"{name}<br>{plain_text(word)} %{{x}}: %{{y:{sign}.3f}}%{{customdata}}<extra></extra>"
        traces.append({**line, "hovertemplate": hover})
    return traces


def line_notes(runs: pd.DataFrame) -> str:
    """Return a caption's notes on the band, and on lines that are not drawn at first."""
    groups, several = runs["group"].nunique(), runs.groupby("group")["seed"].nunique().max() > 1
    band = "Mean over seeds, band ± one standard deviation." if several else "One seed: no band."
    more = f" {DRAWN} of {groups} lines are drawn; a click in the legend adds another."
    return band + (more if groups > DRAWN else "")


DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = {
    **{"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down", "P": "cross", "X": "x"},
    **{"<": "triangle-left", ">": "triangle-right"},
}
"""Plotly's names of Matplotlib's markers."""


def labelled(study: Study, fields: list[str]) -> pd.DataFrame:
    """Return `runs` with the column `group`, defined by `fields`; labels of trials start with the trial's number."""
    runs = study.runs
    labels = group_labels(runs, fields).astype(str)
    if study.specification.get("space") and "trial" in runs:
        labels = labels.where(runs["trial"].isna(), "trial " + runs["trial"].astype(str) + ": " + labels)
    return runs.assign(group=labels)


def looks(runs: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return colour, marker and dashes by group: the method's style, with other dashes for its next group."""
    methods = dict(zip(runs["group"], runs["method.name"].astype(str), strict=True))
    names, seen = ordered(list(methods.values())), Counter[str]()
    found = {}
    for place, (group, method) in enumerate(methods.items()):
        alone = len(names) == 1 and len(methods) > 1  # groups of one method have the styles of methods
        style = nth_style(place) if alone else method_style(method)
        dash = DASHES[((0 if alone else seen[method]) + style.dashed) % len(DASHES)]
        symbol, width = SYMBOLS[style.marker] + ("-open" if style.hollow else ""), 3 if style.highlighted else 2
        found[str(group)] = {"color": style.colour, "symbol": symbol, "dash": dash, "width": width}
        seen[method] += 1
    return found


VIEWED = (BC, AC)  # the views of a figure, in this order


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
    if "stored_bytes" in runs and runs["stored_bytes"].nunique() > 1:
        figures.append(_storage_figure(runs, styles))
    return [figure for figure in figures if figure.views]


def _bc_figure(study: Study, runs: pd.DataFrame, styles: Looks) -> Figure:
    own = study.matrix[study.matrix["run"].isin(runs["run"])]
    views = []
    metrics = in_order(own["metric"]) if "metric" in own and own["metric"].notna().all() else ["accuracy"]
    for metric in metrics:
        rows = bc_by_task(own, metric=metric).rename(columns={"t": "x", "BC": "y"})
        rows = rows.merge(runs[["run", "group"]], on="run")
        if len(rows):
            layout = axes("task t", "BC(t)", dtick=1)
            layout["yaxis"]["zeroline"] = True
            views.append(View(metric, seed_lines(rows, styles, "task", "+"), layout))
    caption = f"Backward compatibility after every task. {line_notes(runs)}"
    return Figure("bc-curve", "BC(t) over the tasks", caption, tuple(views))


def _stationarity_figure(study: Study, runs: pd.DataFrame, styles: Looks) -> Figure:
    views = []
    for name, label in STATIONARITY.items():
        if name in study.tasks and study.tasks[name].notna().any():
            rows = study.tasks[["run", "task", name]].set_axis(["run", "x", "y"], axis=1)
            rows = rows.merge(runs[["run", "group"]], on="run")
            views.append(View(name, seed_lines(rows, styles, "task"), axes("task t", label, dtick=1)))
    caption = f"How similar the representation is to that of the previous task; 1 means no change. {line_notes(runs)}"
    return Figure("stationarity", "Stationarity", caption, tuple(views))


def _field_figure(runs: pd.DataFrame, name: str) -> Figure:
    """Return AC and BC over a field, with one line per group of runs that differ in it only."""
    rest = runs.drop(columns=[name, "group"])
    rest = rest.assign(group=group_labels(rest).astype(str), x=floats(runs[name]))
    rest = rest[rest.groupby("group")["x"].transform("nunique") > 1]
    views = []
    for metric in VIEWED:
        rows = rest[["group", "x"]].assign(y=floats(rest[metric.name]) if metric.name in rest else np.nan).dropna()
        if rows.empty:
            continue
        layout = axes(name, metric.title)
        numbers = sorted(set(rows["x"]))
        if numbers[0] > 0 and numbers[-1] / numbers[0] >= 30:
            layout["xaxis"]["type"] = "log"
        if len(numbers) <= 8:
            ticks = {"tickmode": "array", "tickvals": numbers, "ticktext": [f"{n:g}" for n in numbers]}
            layout["xaxis"] |= ticks
        traces = seed_lines(rows, looks(rest), field_title(name), "+" if metric.signed else "")
        views.append(View(metric.name, traces, layout))
    caption = f"By {name}. {line_notes(rest)}"
    return Figure(f"over-{name.replace('.', '-')}", f"Over {field_title(name)}", caption, tuple(views))


def _storage_figure(runs: pd.DataFrame, styles: Looks) -> Figure:
    """Return compatibility against storage: the line of the Pareto front, then one point per group."""
    views = []
    for metric in VIEWED:
        if metric.name not in runs or runs[metric.name].isna().all():
            continue
        values = {"group": runs["group"], "x": floats(runs["stored_bytes"]), "y": floats(runs[metric.name])}
        points = pd.DataFrame(values).groupby("group", sort=False).mean().dropna().sort_values("x", kind="stable")
        layout = axes("stored bytes", metric.title, tickformat="~s", ticksuffix="B")
        layout["xaxis"] |= {"type": "log"} if points["x"].max() > 30 * points["x"].min() > 0 else {}
        front = points[pareto_front(np.column_stack([points["x"], -points["y"]]))].drop_duplicates()
        traces: list[Trace] = [
            {
                **{"type": "scatter", "mode": "lines", "name": "Pareto front"},
                **{"x": significant(front["x"], 6), "y": significant(front["y"], 5)},
                "line": {"shape": "hv", "color": "#888888", "dash": "dot", "width": 1.5},
                "hoverinfo": "skip",
            }
        ]
        for group, row in points.iterrows():
            look, name = styles[str(group)], plain_text(group)
            dotted = "-dot" if look["dash"] != "solid" else ""  # a point shows no dashes
            marker = {"color": look["color"], "symbol": f"{look['symbol']}{dotted}", "size": 10}
            hover = f"{name}<br>%{{y:{'+' if metric.signed else ''}.3f}} with %{{x:.3s}}B<extra></extra>"
            trace = {"type": "scatter", "mode": "markers", "name": name, "marker": marker, "hovertemplate": hover}
            traces.append({**trace, "x": significant([row["x"]], 6), "y": significant([row["y"]], 5)})
        views.append(View(metric.name, traces, layout))
    caption = (
        "Memory images and stored weights after the last task, mean over seeds. "
        "The line joins the groups on the Pareto front."
    )
    return Figure("storage", "Compatibility against storage", caption, tuple(views))
