"""The figures of a study: BC(t) and stationarity over tasks, metrics over config fields, metrics against storage."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.bc_curves import bc_by_task
from analysis.fronts import non_dominated
from analysis.groups import group_labels, in_order
from analysis.names import METRIC_TITLES, STATIONARITY, field_title
from analysis.report.compact import floats, significant
from analysis.report.figures import (
    Figure,
    Trace,
    View,
    axes,
    band_note,
    drawn_note,
    number_axis,
    plain_text,
    seed_lines,
)
from analysis.report.labels import looks
from analysis.study import Study

METRICS = ("BC", "AC")
"""As views, in this order."""


def study_figures(study: Study, runs: pd.DataFrame, fields: list[str]) -> list[Figure]:
    """Those that the frames have something for; `runs` are the finished ones with their `group`."""
    if runs.empty:
        return []
    styles = looks(runs)
    figures = [_bc_figure(study, runs, styles), _stationarity_figure(study, runs, styles)]
    sweep = bool(study.specification.get("space"))
    figures += [] if sweep else [_field_figure(runs, name) for name in _numeric(runs, fields[1:])]
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
        "How much of the representation stays from one task to the next; 1 means that nothing moved. "
        f"{band_note(runs)}{drawn_note(runs['group'].nunique())}"
    )
    return Figure("stationarity", "Stationarity", caption, tuple(views))


def _numeric(runs: pd.DataFrame, fields: list[str]) -> list[str]:
    """Those fields that are numbers everywhere, and not all the same."""
    names = [name for name in fields if runs[name].notna().all()]
    return [name for name in names if pd.api.types.is_numeric_dtype(runs[name]) and runs[name].nunique() > 1]


def _field_figure(runs: pd.DataFrame, name: str) -> Figure | None:
    """A line a group without the field: that is what the field is varied in."""
    rest = runs.drop(columns=[name, "group"])
    rest = rest.assign(group=group_labels(rest).astype(str), x=floats(runs[name]))
    lines = rest.groupby("group")["x"].nunique()
    rest = rest[rest["group"].isin(lines.index[lines > 1])]
    views = []
    for metric in METRICS:
        rows = rest[["group", "x"]].assign(y=floats(rest[metric]) if metric in rest else np.nan).dropna()
        if len(rows):
            traces = seed_lines(rows, looks(rest), field_title(name), "+" if metric == "BC" else "")
            layout = axes(name, METRIC_TITLES[metric])
            layout["xaxis"] |= number_axis(rows["x"].tolist())
            views.append(View(metric, traces, layout))
    if not views:
        return None
    caption = f"By {name}. {band_note(rest)}{drawn_note(rest['group'].nunique())}"
    return Figure(f"over-{name.replace('.', '-')}", f"Over {field_title(name)}", caption, tuple(views))


def _storage_figure(runs: pd.DataFrame, styles: Mapping[str, Any]) -> Figure | None:
    """Groups by what they store and how compatible they are; nothing if all store the same."""
    if "stored_bytes" not in runs or runs["stored_bytes"].nunique() < 2:
        return None
    views = []
    for metric in METRICS:
        if metric in runs and runs[metric].notna().any():
            figures = pd.DataFrame(
                {"group": runs["group"], "x": floats(runs["stored_bytes"]), "y": floats(runs[metric])}
            )
            points = figures.groupby("group", sort=False).mean().dropna().sort_values("x", kind="stable")
            layout = axes("stored bytes", METRIC_TITLES[metric], xaxis_tickformat="~s", xaxis_ticksuffix="B")
            layout["xaxis"] |= {"type": "log"} if points["x"].max() > 30 * points["x"].min() > 0 else {}
            sign = "+" if metric == "BC" else ""
            views.append(View(metric, [_front(points), *_points(points, styles, sign)], layout))
    caption = (
        "Memory images and carried weights after the last task, mean over seeds. "
        "The line joins groups that no other beats in both."
    )
    return Figure("storage", "Compatibility against storage", caption, tuple(views)) if views else None


def _front(points: pd.DataFrame) -> Trace:
    """Groups that no other beats in one figure without losing in the other."""
    front = points[non_dominated(np.column_stack([points["x"], -points["y"]]))].drop_duplicates()
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "Pareto front",
        "x": significant(front["x"], 6),
        "y": significant(front["y"], 5),
        "line": {"shape": "hv", "color": "#888888", "dash": "dot", "width": 1.5},
        "hoverinfo": "skip",
    }


def _points(points: pd.DataFrame, styles: Mapping[str, Any], sign: str) -> list[Trace]:
    traces = []
    for group, row in points.iterrows():
        look, name = styles[str(group)], plain_text(group)
        dotted = "-dot" if look["dash"] != "solid" else ""  # what dashes are to lines
        marker = {"color": look["color"], "symbol": f"{look['symbol']}{dotted}", "size": 10}
        hover = f"{name}<br>%{{y:{sign}.3f}} with %{{x:.3s}}B<extra></extra>"
        place = {"x": significant([row["x"]], 6), "y": significant([row["y"]], 5)}
        traces.append(
            {"type": "scatter", "mode": "markers", "name": name, "marker": marker, "hovertemplate": hover, **place}
        )
    return traces
