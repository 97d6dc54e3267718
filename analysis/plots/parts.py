"""What all printed figures are made of: panels, lines with bands over seeds, a legend outside, and their files."""

import math
import textwrap
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.style import Look

PAGE = 7.2
"""Inches between the margins of a printed page: figures of studies are no wider, so that their text keeps its size."""
TEXT, SMALL = 8.0, 7.0
"""Points at print size."""
LABEL_WIDTH = 27
"""Characters of a legend's line."""
LETTER = 0.0088
"""Inches that a letter of one point takes in a line, about."""
FRAME = "#555555"


def panels(
    count: int,
    heading: str,
    size: tuple[float, float],
    columns: int | None = None,
    sharey: bool = True,
    text: float = TEXT,
) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels, in rows of `columns` if given; `size` is the whole figure's."""
    columns = columns or count
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(math.ceil(count / columns), columns, sharey=sharey, squeeze=False).ravel()
    entitle(figure, heading, text)
    for axes in grid[count:]:
        axes.remove()
    for axes in grid[:count]:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=text)
        for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
            label.set_size(text)
    return figure, list(grid[:count])


def entitle(figure: Figure, heading: str, text: float = TEXT) -> None:
    """The heading above all, in lines that the figure has room for."""
    room = int(figure.get_figwidth() / (LETTER * text))
    lines = [textwrap.fill(line, room, break_long_words=False, break_on_hyphens=False) for line in heading.splitlines()]
    figure.suptitle("\n".join(lines), fontsize=text)


def page_panels(
    count: int, heading: str, labels: Collection[str], sharey: bool = True, height: float = 2.8
) -> tuple[Figure, list[Axes]]:
    """Panels that fill the width of a page beside a legend of these labels."""
    lines = [line for label in labels for line in wrapped(label).splitlines()]
    legend = 0.6 + 0.055 * max(map(len, lines), default=0)
    columns = max(1, min(count, 3, int((PAGE - legend) / 1.75)))
    rows = math.ceil(count / columns)
    columns = math.ceil(count / rows)  # four panels are two rows of two
    width = min(4.4, (PAGE - legend) / columns) * columns + legend
    tall = max(height * rows, 0.13 * len(lines) + 0.9)
    return panels(count, heading, (width, tall), columns, sharey)


def mean_line(axes: Axes, x: pd.Series, y: pd.Series, label: str, look: Look) -> None:
    """The mean over seeds at every x, with a band of one standard deviation where there are several."""
    groups = y.astype(float).groupby(x.astype(float))
    means, deviations = groups.mean(), groups.std()
    places = means.index.to_numpy(dtype=float)
    axes.plot(places, means.to_numpy(dtype=float), label=label, **line_look(look))
    if deviations.isna().all():
        return
    if len(places) == 1:
        error_bar(axes, places[0], means.iloc[0], deviations.iloc[0], look)
        return
    low, high = ((means + sign * deviations).to_numpy(dtype=float) for sign in (-1, 1))
    axes.fill_between(places, low, high, color=look.colour, alpha=0.13, linewidth=0, zorder=2)


def error_bar(axes: Axes, x: float, y: float, deviation: float, look: Look) -> None:
    """One standard deviation up and down."""
    axes.errorbar(x, y, deviation, color=look.colour, linewidth=0.8, capsize=2, zorder=2)


def line_look(look: Look) -> dict[str, Any]:
    """A look in Matplotlib's words."""
    line: dict[str, Any] = {"color": look.colour, "marker": look.marker, "linestyle": "--" if look.dashed else "-"}
    if look.hollow:
        line["markerfacecolor"] = "white"
    if look.highlighted:
        return {**line, "linewidth": 2.4, "markersize": 6.5, "zorder": 5}
    return {**line, "linewidth": 1.5, "markersize": 5.0, "zorder": 3}


def share_axis(axes: Axes) -> None:
    """A share, such as AC, is seen against all of its range."""
    axes.set_ylim(-0.04, 1.04)


def zero_line(axes: Axes) -> None:
    """Where a difference changes its sign."""
    axes.axhline(0, color="black", linewidth=1, zorder=1)


def with_legend(
    figure: Figure, axes: Sequence[Axes], more: Sequence[Any] = (), text: float = SMALL, line: float = 3.4
) -> Figure:
    """Outside, with the lines in the order in which they end in the last panel that has them; `more` come last."""
    lines = {str(line.get_label()): line for panel in axes for line in panel.get_lines()}
    named = [line for label, line in lines.items() if not label.startswith("_") and line not in more]
    handles = [*sorted(named, key=_end, reverse=True), *more]
    labels = [wrapped(str(handle.get_label())) for handle in handles]
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=text, handlelength=line)
    return figure


def _end(line: Line2D) -> float:
    heights = np.asarray(line.get_ydata(), dtype=float)
    return float(heights[-1]) if len(heights) and not np.isnan(heights[-1]) else -np.inf


def wrapped(label: str) -> str:
    """A label in lines that fit a legend."""
    return textwrap.fill(label, LABEL_WIDTH, break_long_words=False, break_on_hyphens=False)


def heading(runs: pd.DataFrame, more: str = "", bands: bool = True) -> str:
    """Which data and how many seeds."""
    seeds = runs["seed"].nunique()
    spread = ", bands ± one standard deviation" if bands else ""
    return f"{data_names(runs)}{more}, {'one seed' if seeds == 1 else f'{seeds} seeds{spread}'}"


def data_names(runs: pd.DataFrame) -> str:
    """The data sets, without their folders."""
    return ", ".join(sorted({Path(str(name)).stem for name in runs["data.name"]}))


def save(figure: Figure, stem: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """One file a kind, as `stem`.png and so on; equal figures give equal files. Text in SVG stays text."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in kinds]
    undated = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    figure.set_dpi(160)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not once a file
    with mpl.rc_context({"svg.hashsalt": "cl2r", "svg.fonttype": "none", "pdf.fonttype": 42}):
        for kind, path in zip(kinds, paths, strict=True):
            figure.savefig(path, metadata=undated[kind])
    return paths
