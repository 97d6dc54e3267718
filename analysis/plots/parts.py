"""What all printed plots are made of: the groups they show, panels, lines with bands over seeds, legend, files."""

import math
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.groups import finished, group_labels, in_order
from analysis.names import LineStyle, group_styles, shown_first
from analysis.stats import EVERYWHERE, line_points, shown_range
from cl2r.errors import InputError
from cl2r.metrics import AC, BC, SERVICE_ACCURACY, Metric

PAGE = 7.2
"""Inches between the margins of a printed page. Plots of studies are no wider, so that their text keeps its size."""
TEXT, SMALL = 8.0, 7.0  # points at print size
LABEL_WIDTH = 27  # characters per line of a legend
LETTER = 0.0088  # approximate width of a one-point letter in inches
FRAME = "#555555"
LIMIT = 12  # more lines than this cannot be told apart,
SHADES = 6  # nor more than this of one colour
DPI = 200
PATTERNS: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (6, 2, 1, 2, 1, 2)), (0, (9, 3)))
CUT = "Intervals that leave a panel are cut."
Span = Sequence[float]  # mean, low and high
RUN = ("run", "tasks", "seed", "data.name", "method.name")  # columns of `runs` that every plot needs


def need(frame: pd.DataFrame, names: Sequence[str], what: str) -> None:
    """Raise InputError if the frame lacks some of the columns."""
    if missing := [name for name in names if name not in frame]:
        raise InputError(f"{what} without {', '.join(missing)}: there is nothing to draw")


def finished_chains(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the finished runs; raise InputError if there is none, or none with two tasks."""
    rows = runs[finished(runs)]
    if rows.empty:
        raise InputError("no run has finished: there is nothing to draw")
    need(rows, RUN, "runs")
    if not (rows["tasks"] > 1).any():
        raise InputError("every run has one task: compatibility needs two models")
    return rows


def longest(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the finished runs with the most tasks: values of different numbers of tasks cannot be compared."""
    rows = runs[finished(runs)]
    most: pd.DataFrame = rows[rows["tasks"] == rows["tasks"].max()]
    return most


def numbers(frame: pd.DataFrame, column: str) -> pd.Series:
    """Return a column as floats; NaN if it is empty or absent."""
    values = frame[column] if column in frame else pd.Series(index=frame.index, dtype=float)
    return pd.to_numeric(values, errors="coerce").astype(float)


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups that a plot shows: `rows` are finished runs with their `group`, `styles` are in legend order."""

    rows: pd.DataFrame
    styles: dict[str, LineStyle]
    note: str = ""  # which groups are left out

    @classmethod
    def of(
        cls, runs: pd.DataFrame, without: Collection[str] = (), limit: int = 0, varied: str | None = None
    ) -> "Groups":
        """Group the finished runs by all fields that tell them apart, except those in `without`.

        With `varied`, a config field, only groups in which it takes several values are kept; there may be none. Of more
        than `limit` groups, the reference methods and those with the highest service accuracy are kept; the default
        limit is what can be told apart. Groups of different numbers of tasks are ranked by how far they are from the
        best.
        """
        rows = runs[finished(runs)]
        rows = rows.assign(group=group_labels(rows.drop(columns=[name for name in without if name in rows])))
        if varied is not None:
            rows = rows[rows.groupby("group")[varied].transform("nunique") > 1]
        shown, note = in_order(rows["group"]), ""
        limit = limit or (LIMIT if rows["method.name"].nunique() > 1 else SHADES)
        if len(shown) > limit:
            ranked = SERVICE_ACCURACY if numbers(rows, SERVICE_ACCURACY.name).notna().any() else BC
            values = numbers(rows, ranked.name)
            behind = values - values.groupby(rows["tasks"]).transform("max")
            means = behind.groupby(rows["group"]).mean().reindex(shown)
            kept = shown_first(means.sort_values(ascending=False, kind="stable").index.tolist(), limit)
            references = shown_first(shown, 0)
            which = f"those with the highest {ranked.head}" if means.notna().any() else "the first"
            words = " and ".join([*([", ".join(references)] if references else []), which])
            note = f"{limit} of {len(shown)} groups: {words}; {len(shown) - limit} left out"
            shown = [name for name in shown if name in kept]
        methods = dict(zip(rows["group"].astype(str), rows["method.name"].astype(str), strict=True))
        styles = group_styles({group: methods[group] for group in shown})
        return cls(rows[rows["group"].isin(shown)], styles, note)

    @property
    def tasks(self) -> int:
        """T of the runs, if it is the same for all."""
        return int(self.rows["tasks"].iloc[0])

    def each(self, table: pd.DataFrame) -> Iterator[tuple[str, LineStyle, pd.DataFrame]]:
        """Yield the name, the style and the rows of every group; the table has a column `group`."""
        for group, style in self.styles.items():
            yield group, style, table[table["group"] == group]

    def heading(self, more: str = "", spread: str = "bands", end: str = "", pairs: bool = False) -> str:
        """Return the heading of the runs and the end, with a line on the groups that are left out."""
        words = heading(self.rows, more, spread, pairs) + end
        return f"{words}\n{self.note}" if self.note else words


def page_panels(
    count: int, heading: str, labels: Collection[str], sharey: bool = True, height: float = 2.8
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels, which fill the width of a page beside a legend with these labels."""
    lines = [line for label in labels for line in wrapped(label).splitlines()]
    legend = 0.6 + 0.055 * max(map(len, lines)) if lines else 0.0
    columns = max(1, min(count, 3, int((PAGE - legend) / 1.75)))
    rows = math.ceil(count / columns)
    columns = math.ceil(count / rows)  # four panels are two rows of two
    width = min(4.4, (PAGE - legend) / columns) * columns + legend
    figure = Figure(figsize=(width, max(height * rows, 0.13 * len(lines) + 0.9)), layout="constrained")
    grid = figure.subplots(rows, columns, sharey=sharey, squeeze=False).ravel()
    entitle(figure, heading)
    for axes in grid[count:]:
        axes.remove()
    for axes in grid[:count]:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=TEXT)
        for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
            label.set_size(TEXT)
    return figure, list(grid[:count])


def entitle(figure: Figure, heading: str) -> None:
    """Put the heading above all panels, in lines that fit the figure."""
    room = int(figure.get_figwidth() / (LETTER * TEXT))
    lines = [textwrap.fill(line, room, break_long_words=False, break_on_hyphens=False) for line in heading.splitlines()]
    figure.suptitle("\n".join(lines), fontsize=TEXT)


def mean_line(
    axes: Axes,
    rows: pd.DataFrame,
    label: str,
    style: LineStyle,
    bounds: tuple[float, float] = EVERYWHERE,
    lines: int = 1,
) -> pd.DataFrame:
    """Draw the mean of `y` at every `x` with a band of 95 % intervals, as `line_points` has them; return the points.

    The more `lines` the panel has, the paler is the band.
    """
    points = line_points(rows.astype({"x": float, "y": float}), ["x"], bounds)
    places, means = points.index.to_numpy(dtype=float), points["mean"].to_numpy(dtype=float)
    low, high = (points[end].to_numpy(dtype=float) for end in ("low", "high"))
    axes.plot(places, means, label=label, **line_style(style))
    if len(places) == 1:
        error_bar(axes, places[0], (means[0], low[0], high[0]), style)
    elif not np.isnan(low).all():
        axes.fill_between(places, low, high, color=style.colour, alpha=min(0.13, 0.4 / lines), linewidth=0, zorder=2)
    return points


def spans(points: pd.DataFrame) -> dict[str, Span]:
    """Return mean, low and high of every point by its label."""
    rows = points[["mean", "low", "high"]].to_numpy(dtype=float).tolist()
    return dict(zip(points.index.astype(str), rows, strict=True))


def error_bar(axes: Axes, place: float, span: Span, style: LineStyle, across: bool = False) -> None:
    """Draw an interval, if there is one: upright at the x of `place`, or `across` at that y."""
    mean, low, high = span
    line: dict[str, Any] = {"color": style.colour, "linewidth": 1, "capsize": 2, "zorder": 2}
    if not math.isnan(low):
        ends = [[max(mean - low, 0)], [max(high - mean, 0)]]
        axes.errorbar(mean, place, xerr=ends, **line) if across else axes.errorbar(place, mean, yerr=ends, **line)


def fit(
    figure: Figure, panels: Sequence[Axes], points: pd.DataFrame, more: Iterable[float] = (), across: bool = False
) -> None:
    """Choose the y range of panels, or their x range, by points and `more` values; say if that cuts an interval."""
    ends = points[["low", "high"]].to_numpy(dtype=float)
    bottom, top = shown_range([*points["mean"], *more], ends)
    for panel in panels:
        panel.set(xlim=(bottom, top)) if across else panel.set(ylim=(bottom, top))
    if ((ends < bottom) | (ends > top)).any() and CUT not in figure.get_suptitle():
        entitle(figure, f"{figure.get_suptitle()}\n{CUT}")


def line_style(style: LineStyle) -> dict[str, Any]:
    """Return Matplotlib's keyword arguments for a line style."""
    pattern = PATTERNS[(style.dashed + style.pattern) % len(PATTERNS)]
    line: dict[str, Any] = {"color": style.colour, "marker": style.marker, "linestyle": pattern}
    if style.hollow:
        line["markerfacecolor"] = "white"
    if style.highlighted:
        return {**line, "linewidth": 2.4, "markersize": 6.5, "zorder": 5}
    return {**line, "linewidth": 1.5, "markersize": 5.0, "zorder": 3}


def point_style(style: LineStyle) -> dict[str, Any]:
    """Return Matplotlib's keyword arguments for a point; it has a black edge in place of dashes."""
    return {**line_style(style), "linestyle": "none", **({"markeredgecolor": "black"} if style.dashed else {})}


def metric_axis(figure: Figure, axes: Axes, metric: Metric, points: pd.DataFrame) -> None:
    """Give the y axis the metric's title and a range; a difference gets a line at 0, AC its whole range."""
    axes.set_ylabel(textwrap.fill(metric.title, 34))
    if metric.signed:
        zero_line(axes)
    if metric == AC:
        share_axis(axes)
    else:
        fit(figure, [axes], points, [0.0] if metric.signed else [])


def share_axis(axes: Axes) -> None:
    """Show the whole range of a share, such as AC."""
    axes.set_ylim(-0.04, 1.04)


def zero_line(axes: Axes) -> None:
    """Draw a line where a difference changes its sign."""
    axes.axhline(0, color="black", linewidth=1, zorder=1)


def with_legend(figure: Figure, axes: Sequence[Axes], more: Sequence[Any] = (), order: Collection[str] = ()) -> Figure:
    """Add a legend outside: the lines of the panels in this order of their labels, then `more`."""
    lines = {str(line.get_label()): line for panel in axes for line in panel.get_lines()}
    last = {str(handle.get_label()) for handle in more}
    shown = [label for label in lines if not label.startswith("_") and label not in last]
    places = {label: place for place, label in enumerate(order)}
    handles = [*(lines[label] for label in sorted(shown, key=lambda name: places.get(name, len(places)))), *more]
    labels = [wrapped(str(handle.get_label())) for handle in handles]
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=SMALL, handlelength=3.4)
    return figure


def wrapped(label: str) -> str:
    """Return a label in lines that fit a legend."""
    return textwrap.fill(label, LABEL_WIDTH, break_long_words=False, break_on_hyphens=False)


def heading(runs: pd.DataFrame, more: str = "", spread: str = "bands", pairs: bool = False) -> str:
    """Return a heading that names the data sets and the number of seeds, and what the `spread` shows, bands or bars.

    With `pairs`, single seeds have intervals over their pairs.
    """
    counts = runs.groupby("group" if "group" in runs else "method.name")["seed"].nunique()
    few, most = int(counts.min()), int(counts.max())
    seeds = "one seed" if most == 1 else f"{most} seeds" if few == most else f"{few} to {most} seeds"
    if most == 1:
        words = f"one seed, {spread}: 95 % intervals over its pairs" if spread and pairs else "one seed"
    else:
        words = f"{spread}: 95 % intervals over {seeds}" if spread else seeds
        words += " (over pairs if there is one)" if spread and pairs and few == 1 else ""
    return f"{data_names(runs)}{more}, {words}"


def data_names(runs: pd.DataFrame) -> str:
    """Return the names of the data sets, without their folders."""
    return ", ".join(sorted({Path(str(name)).stem for name in runs["data.name"]}))


def save(figure: Figure, stem: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write one file per kind, `stem`.png and so on; equal plots give equal files. Text in SVG stays text."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in kinds]
    undated = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    figure.set_dpi(DPI)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not once per file
    with mpl.rc_context({"svg.hashsalt": "cl2r", "svg.fonttype": "none", "pdf.fonttype": 42}):
        for kind, path in zip(kinds, paths, strict=True):
            figure.savefig(path, dpi=DPI, metadata=undated[kind])
    return paths
