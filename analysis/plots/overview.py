"""Plots that answer which method serves best: service accuracy and BC, beside never upgrading and re-indexing."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from analysis.plots import parts
from analysis.stats import line_points
from analysis.study import Frames
from analysis.tables.references import reference_runs
from cl2r.errors import InputError
from cl2r.metrics import BC, SERVICE_ACCURACY, Metric

FEW = 9  # groups that a plane has room for; more are ranked
MOST = 40  # rows of a ranking
SHOWN = (SERVICE_ACCURACY, BC)
SIDES = ((5, 7), (-5, 7), (5, -7), (-5, -7), (5, 16), (-5, 16), (5, -16), (-5, -16))  # of a label, in points
Points = dict[Metric, pd.DataFrame]
"""By metric: mean, low and high of every group."""


def plot_plane(study: Frames, most: int = FEW) -> Figure:
    """Plot BC over service accuracy: one point per group with 95 % intervals, beside never upgrading and re-indexing.

    Raise InputError if there are more than `most` groups: `plot_ranking` shows them.
    """
    groups, points, lines = _measured(study)
    if not 2 <= len(groups.styles) <= most:
        raise InputError(f"a plane has room for 2 to {most} groups, not {len(groups.styles)}: use plot_ranking")
    figure, (axes,) = parts.page_panels(1, _heading(groups), [], height=3.8)
    figure.set_figwidth(5.6)
    served, gained = parts.spans(points[SERVICE_ACCURACY]), parts.spans(points[BC])
    for group, style in groups.styles.items():
        parts.error_bar(axes, served[group][0], gained[group], style)
        parts.error_bar(axes, gained[group][0], served[group], style, across=True)
        axes.plot(served[group][0], gained[group][0], **parts.point_style(style))
    axes.set_xlabel(SERVICE_ACCURACY.title)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    parts.fit(figure, [axes], points[SERVICE_ACCURACY], lines.values(), across=True)
    parts.metric_axis(figure, axes, BC, points[BC])
    _reference_lines(axes, lines)
    figure.draw_without_rendering()  # fixes the size of the panel, which labels depend on
    _label_points(axes, served, gained)
    return figure


def plot_ranking(study: Frames, least: int = 2) -> Figure:
    """Plot service accuracy and BC of all groups with 95 % intervals, sorted by service accuracy, best on top.

    Raise InputError if there are fewer than `least` groups, or more than a page has room for.
    """
    groups, points, lines = _measured(study)
    order = points[SERVICE_ACCURACY]["mean"].sort_values(kind="stable").index
    if not least <= len(order) <= MOST:
        raise InputError(f"a ranking has {least} to {MOST} groups, not {len(order)}")
    figure, axes = parts.page_panels(2, _heading(groups), [], height=0.9 + 0.19 * len(order))
    figure.set_figwidth(parts.PAGE)
    for panel, metric in zip(axes, SHOWN, strict=True):
        spans = parts.spans(points[metric])
        for place, group in enumerate(order):
            style = groups.styles[str(group)]
            parts.error_bar(panel, place, spans[str(group)], style, across=True)
            panel.plot(spans[str(group)][0], place, **parts.point_style(style))
        parts.fit(figure, [panel], points[metric], [0.0] if metric.signed else lines.values(), across=True)
        panel.set(xlabel=metric.title.replace(", last", ",\nlast"), ylim=(-0.7, len(order) - 0.3))
        panel.set_yticks(range(len(order)), [str(group) for group in order])
        panel.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
        panel.grid(axis="x", color="#e4e4e4", linewidth=0.8)
        if metric == SERVICE_ACCURACY:
            _reference_lines(panel, lines)
        else:
            panel.axvline(0, color="black", linewidth=1, zorder=1)
    return figure


def _measured(study: Frames) -> tuple[parts.Groups, Points, dict[str, float]]:
    """Return all groups of the runs with the most tasks, their points, and the accuracy of the two references."""
    runs = parts.longest(parts.finished_chains(study.runs))
    for metric in SHOWN:
        runs = runs[parts.numbers(runs, metric.name).notna()]
    if runs.empty:
        raise InputError(f"no finished run has {' and '.join(metric.name for metric in SHOWN)}")
    groups = parts.Groups.of(runs, limit=len(runs))
    points = {}
    for metric in SHOWN:
        ends = {f"y{end}": parts.numbers(groups.rows, f"{metric.name}{end}") for end in ("", "_low", "_high")}
        points[metric] = line_points(groups.rows.assign(**ends), ["group"], metric.bounds)
    references = reference_runs(runs)
    lines = {}
    if len(references):
        lines = references.groupby("method.name", sort=False)[SERVICE_ACCURACY.name].mean().astype(float).to_dict()
    return groups, points, {str(name): value for name, value in lines.items()}


def _heading(groups: parts.Groups) -> str:
    known = parts.numbers(groups.rows, f"{SERVICE_ACCURACY.name}_low").notna().any()
    return groups.heading(f", {groups.tasks} tasks", "bars", pairs=bool(known))


def _reference_lines(axes: Axes, lines: dict[str, float]) -> None:
    """Draw a dotted line for each reference with its name above, to its left for the lower one, else to its right."""
    for place, (name, value) in enumerate(sorted(lines.items(), key=lambda item: item[1])):
        axes.axvline(value, color=parts.FRAME, linestyle=":", linewidth=1.2, zorder=1)
        words = axes.text(value, 1.01, f" {name} {value:.3f} ", transform=axes.get_xaxis_transform())
        words.set(ha="left" if place else "right", va="bottom", fontsize=parts.SMALL, color=parts.FRAME)


def _label_points(axes: Axes, across: dict[str, parts.Span], up: dict[str, parts.Span]) -> None:
    """Write the name of every point beside it, where it hides the least of other points, intervals and names."""
    panel, point = axes.get_window_extent(), axes.figure.dpi / 72
    taken = []
    for (x, left, right), (y, bottom, top) in zip(across.values(), up.values(), strict=True):
        for bar in ([(x, y), (x, y)], [(left, y), (right, y)], [(x, bottom), (x, top)]):
            wide = 4 if bar[0] == bar[1] else 1  # a point is wider than its bars
            taken += [] if np.isnan(bar).any() else [Bbox(axes.transData.transform(bar)).padded(wide * point)]
    for name in across:
        place = (across[name][0], up[name][0])
        spot = axes.transData.transform(place)
        width, height = parts.SMALL * 0.6 * len(name) * point, parts.SMALL * 1.2 * point
        costs, boxes = [], []
        for aside, higher in SIDES:
            left = spot[0] + aside * point - (width if aside < 0 else 0)
            boxes.append(Bbox.from_bounds(left, spot[1] + higher * point - height / 2, width, height))
            hidden = sum(_common(boxes[-1], other) for other in taken)
            costs.append(hidden + 9 * (width * height - _common(boxes[-1], panel)))  # the worst is to leave the panel
        chosen = int(np.argmin(costs))
        taken.append(boxes[chosen].padded(4 * point))
        text = axes.annotate(name, place, SIDES[chosen], textcoords="offset points", fontsize=parts.SMALL)
        text.set(ha="right" if SIDES[chosen][0] < 0 else "left", va="center", zorder=6)
        text.set_path_effects([withStroke(linewidth=2, foreground="white")])


def _common(one: Bbox, other: Bbox) -> float:
    """Return the area that two boxes share."""
    both = Bbox.intersection(one, other)
    return 0.0 if both is None else float(both.width * both.height)
