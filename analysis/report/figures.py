"""Interactive figures as data for Plotly: lines over tasks or fields, with a band over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.groups import group_labels, in_order
from analysis.matrices import bc_by_task, pareto_front, traded
from analysis.names import STATIONARITY, field_title, group_styles, shown_first
from analysis.report.page import floats, significant
from analysis.stats import EVERYWHERE, line_points, shown_range
from analysis.study import Study
from cl2r.metrics import AC, BC, SERVICE_ACCURACY, Metric
from cl2r.runtime.text import counted

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


def seed_lines(
    rows: pd.DataFrame, looks: Looks, word: str, sign: str = "", bounds: tuple[float, float] = EVERYWHERE
) -> list[Trace]:
    """Return one line per group of `rows` (group, x, y): means over seeds with a band of 95 % intervals.

    Lines come in the order of `looks`. Of many groups those that end highest, ER and CL²R are drawn at first. Rows may
    have `y_low` and `y_high`, the interval of one seed over its pairs.
    """
    table = line_points(rows.assign(y=floats(rows["y"])), ["group", "x"], bounds).reset_index()
    ends = table.groupby("group")["mean"].last().sort_values(ascending=False, kind="stable")
    drawn = shown_first([str(name) for name in ends.index], DRAWN)
    traces: list[Trace] = []
    for group in (group for group in looks if group in ends.index):
        own, look, name = table[table["group"] == group], looks[group], plain_text(group)
        common: Trace = {"type": "scatter", "name": name, "legendgroup": group}
        common |= {} if group in drawn else {"visible": "legendonly"}
        band = own[own["low"].notna()]
        if len(band):
            there, (red, green, blue) = band["x"].tolist(), bytes.fromhex(look["color"][1:])
            outline = significant([*band["high"], *band["low"][::-1]], 5)
            area = {**common, "mode": "lines", "x": [*there, *there[::-1]], "y": outline, "fill": "toself"}
            area |= {"fillcolor": f"rgba({red},{green},{blue},{0.4 / max(3, len(drawn)):.2f})", "line": {"width": 0}}
            traces.append({**area, "hoverinfo": "skip", "showlegend": False})
        line = {**common, "mode": "lines+markers", "x": own["x"].tolist(), "y": significant(own["mean"], 5)}
        line["line"] = {key: look[key] for key in ("color", "dash", "width")}
        line["marker"] = {"symbol": look["symbol"], "size": 7}
        line["customdata"] = [_interval(point, sign) for point in own.to_dict("records")]
        hover = f"{name}<br>{plain_text(word)} %{{x}}: %{{y:{sign}.3f}}%{{customdata}}<extra></extra>"
        traces.append({**line, "hovertemplate": hover})
    return traces


def _interval(point: Mapping[Any, Any], sign: str) -> str:
    """Return ` [0.746, 0.803] (3 seeds)`, which follows a mean."""
    ends = "" if pd.isna(point["low"]) else f" [{point['low']:{sign}.3f}, {point['high']:{sign}.3f}]"
    alone = "one seed, over pairs" if ends else "one seed"
    return f"{ends} ({alone if point['n'] < 2 else counted(int(point['n']), 'seed')})"


def fitted(layout: dict[str, Any], traces: Sequence[Trace], metric: Metric | None = None) -> dict[str, Any]:
    """Return the layout with a range of the y axis: for AC the whole one, else what the lines drawn at first need."""
    if metric == AC:
        shown = (-0.03, 1.03)
    else:
        drawn = [trace for trace in traces if "visible" not in trace]
        means = [value for trace in drawn if trace.get("hoverinfo") != "skip" for value in trace["y"]]
        ends = [value for trace in drawn if trace.get("hoverinfo") == "skip" for value in trace["y"]]
        for trace in (trace for trace in drawn if "error_y" in trace):
            ends += [trace["y"][0] - trace["error_y"]["arrayminus"][0], trace["y"][0] + trace["error_y"]["array"][0]]
        zero = [0.0] if metric is not None and metric.signed else []
        shown = shown_range(np.array([*means, *zero], dtype=float), np.array(ends, dtype=float))
    return {**layout, "yaxis": {**layout["yaxis"], "range": significant(shown, 5)}}


def line_notes(runs: pd.DataFrame, pairs: bool = False) -> str:
    """Return a caption's notes on the band, and on lines that are not drawn at first; `pairs`: one seed has a band."""
    groups, counts = runs["group"].nunique(), runs.groupby("group")["seed"].nunique()
    seeds = f"{counts.max()} seeds" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()} seeds"
    band = f"Means; bands: 95 % intervals over {seeds}; wide ones leave the panel."
    if counts.max() == 1:
        band = "One seed; bands: 95 % intervals over its pairs." if pairs else "One seed: no band."
    more = f" {DRAWN} of {groups} lines are drawn: a click in the legend adds another"
    return band + (f"{more}, a double click in the panel shows the whole range." if groups > DRAWN else "")


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
    """Return colour, marker and dashes by group, in the order of legends: see `group_styles`."""
    methods = dict(zip(runs["group"].astype(str), runs["method.name"].astype(str), strict=True))
    found = {}
    for group, style in group_styles(methods).items():
        dash = DASHES[(style.pattern + style.dashed) % len(DASHES)]
        symbol, width = SYMBOLS[style.marker] + ("-open" if style.hollow else ""), 3 if style.highlighted else 2
        found[group] = {"color": style.colour, "symbol": symbol, "dash": dash, "width": width}
    return found


VIEWED = (SERVICE_ACCURACY, BC, AC)  # the views of a figure, in this order


def study_figures(study: Study, runs: pd.DataFrame, fields: list[str]) -> list[Figure]:
    """Return the figures for which the frames have data; `runs` are finished and have their `group`."""
    if runs.empty:
        return []
    figures = [_bc_figure(study, runs), _stationarity_figure(study, runs)]
    for name in [] if study.specification.get("space") else fields[1:]:
        values = runs[name]
        if values.notna().all() and pd.api.types.is_numeric_dtype(values) and values.nunique() > 1:
            figures.append(_field_figure(runs, name))
    if "stored_bytes" in runs and traded(runs.groupby("group")["stored_bytes"].mean()):
        figures.append(_storage_figure(runs))
    return [figure for figure in figures if figure.views]


def _by_tasks(study: Study, runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the runs of every number of tasks, the largest first, with the name of a view; one number has no name."""
    counts = sorted(runs["tasks"].dropna().unique(), reverse=True) if "tasks" in runs else []
    if len(counts) < 2:
        return [("", runs)]
    found = []
    for count in counts:
        own = runs[runs["tasks"] == count]
        if not study.specification.get("space"):  # labels of trials have their numbers
            own = own.assign(group=group_labels(own.drop(columns="group")).astype(str))
        found.append((f"T={int(count)}", own))
    return found


def _largest(parts: list[tuple[str, pd.DataFrame]]) -> pd.DataFrame:
    """Return the runs of the view with the most lines."""
    return max((own for _, own in parts), key=lambda own: int(own["group"].nunique()))


def _bc_figure(study: Study, runs: pd.DataFrame) -> Figure:
    matrix = study.matrix[study.matrix["run"].isin(runs["run"])]
    views, layout = [], axes("task t", "BC(t)", dtick=1)
    layout["yaxis"]["zeroline"] = True
    metrics = in_order(matrix["metric"]) if "metric" in matrix and matrix["metric"].notna().all() else ["accuracy"]
    parts = _by_tasks(study, runs)
    for words, own in parts:
        for metric in metrics:
            rows = bc_by_task(matrix, metric=metric).rename(columns={"t": "x", "BC": "y"})
            traces = seed_lines(rows.merge(own[["run", "group"]], on="run"), looks(own), "task", "+")
            name = ", ".join(part for part in (words, metric if not words or len(metrics) > 1 else "") if part)
            views += [View(name, traces, fitted(layout, traces, BC))] if traces else []
    caption = f"Backward compatibility after every task. {line_notes(_largest(parts))}"
    return Figure("bc-curve", "BC(t) over the tasks", caption, tuple(views))


def _stationarity_figure(study: Study, runs: pd.DataFrame) -> Figure:
    views = []
    parts = _by_tasks(study, runs)
    for words, own in parts:
        for name, label in STATIONARITY.items():
            if name in study.tasks and study.tasks[name].notna().any():
                rows = study.tasks[["run", "task", name]].set_axis(["run", "x", "y"], axis=1)
                traces = seed_lines(rows.merge(own[["run", "group"]], on="run"), looks(own), "task", "", (-1.0, 1.0))
                view = f"{label}, {words}" if words else label
                views += [View(view, traces, fitted(axes("task t", label, dtick=1), traces))] if traces else []
    words = "How similar the representation is to that of the previous task; 1 means no change."
    return Figure("stationarity", "Stationarity", f"{words} {line_notes(_largest(parts))}", tuple(views))


def _field_figure(runs: pd.DataFrame, name: str) -> Figure:
    """Return the viewed metrics over a field, with one line per group of runs that differ in it only."""
    rest = runs.drop(columns=[name, "group"])
    rest = rest.assign(group=group_labels(rest).astype(str), x=floats(runs[name]))
    rest = rest[rest.groupby("group")["x"].transform("nunique") > 1]
    views, pairs = [], False
    for metric in VIEWED:
        ends = {f"y{end}": f"{metric.name}{end}" for end in ("", "_low", "_high") if f"{metric.name}{end}" in rest}
        rows = rest[["group", "x"]].assign(**{new: floats(rest[old]) for new, old in ends.items()})
        if "y" not in ends or rows["y"].isna().all():
            continue
        pairs = pairs or "y_low" in ends
        layout = axes(name, metric.title.replace(", ", ",<br>"))
        numbers = sorted(set(rows["x"]))
        if numbers[0] > 0 and numbers[-1] / numbers[0] >= 30:
            layout["xaxis"]["type"] = "log"
        if len(numbers) <= 8:
            ticks = {"tickmode": "array", "tickvals": numbers, "ticktext": [f"{n:g}" for n in numbers]}
            layout["xaxis"] |= ticks
        traces = seed_lines(rows, looks(rest), field_title(name), "+" if metric.signed else "", metric.bounds)
        views.append(View(metric.head, traces, fitted(layout, traces, metric)))
    caption = f"By {name}. {line_notes(rest, pairs)}"
    return Figure(f"over-{name.replace('.', '-')}", f"Over {field_title(name)}", caption, tuple(views))


def _storage_figure(runs: pd.DataFrame) -> Figure:
    """Return metrics against storage: the line of the Pareto front, then one point with its interval per group."""
    views = []
    for metric in VIEWED:
        if metric.name not in runs or runs[metric.name].isna().all():
            continue
        rows = runs[["group"]].assign(x=floats(runs["stored_bytes"]), y=floats(runs[metric.name])).dropna()
        points = line_points(rows, ["group"], metric.bounds).assign(x=rows.groupby("group")["x"].mean())
        layout = axes("stored bytes", metric.title.replace(", ", ",<br>"), tickformat="~s", ticksuffix="B")
        layout["xaxis"] |= {"range": [0, 1.05 * float(points["x"].max())]}
        front = points[pareto_front(np.column_stack([points["x"], -points["mean"]]))].sort_values("x").drop_duplicates()
        traces: list[Trace] = [
            {
                **{"type": "scatter", "mode": "lines", "name": "Pareto front"},
                **{"x": significant(front["x"], 6), "y": significant(front["mean"], 5)},
                "line": {"shape": "hv", "color": "#888888", "dash": "dot", "width": 1.5},
                "hoverinfo": "skip",
            }
        ]
        sign = "+" if metric.signed else ""
        for group, look in looks(runs).items():
            if group not in points.index:
                continue
            point, name = points.loc[group], plain_text(group)
            dotted = "-dot" if look["dash"] != "solid" else ""  # a point shows no dashes
            marker = {"color": look["color"], "symbol": f"{look['symbol']}{dotted}", "size": 10}
            words = _interval(points.loc[group].to_dict(), sign)
            hover = f"{name}<br>%{{y:{sign}.3f}}{words} with %{{x:.3s}}B<extra></extra>"
            trace = {"type": "scatter", "mode": "markers", "name": name, "marker": marker, "hovertemplate": hover}
            if not pd.isna(point["low"]):
                ends = {"array": [point["high"] - point["mean"]], "arrayminus": [point["mean"] - point["low"]]}
                trace["error_y"] = {"symmetric": False, "thickness": 1, "width": 3, **ends}
            traces.append({**trace, "x": significant([point["x"]], 6), "y": significant([point["mean"]], 5)})
        layout = fitted(layout, traces, metric)
        views.append(View(metric.head, traces, layout))
    several = runs.groupby("group")["seed"].nunique().max() > 1
    caption = (
        "Memory images and stored weights after the last task, "
        f"{'means with 95 % intervals over seeds' if several else 'of one seed, without intervals'}. "
        "The dotted line joins the groups on the Pareto front."
    )
    return Figure("storage", "Accuracy and compatibility against storage", caption, tuple(views))
