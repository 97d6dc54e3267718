"""The paper's two figures of results, drawn from frames: BC(t) over the tasks, and metrics over the size of memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.names import ordered, title
from analysis.paper import Item
from analysis.paper_values import Values, bc_curves
from analysis.style import look
from cl2r.errors import InputError

PANEL = (4.3, 3.7)
LEGEND_WIDTH = 1.3


def draw(item: Item, frames: dict[str, pd.DataFrame]) -> Figure:
    """The figure of an item."""
    if item.layout == "bc":
        return draw_bc(frames)
    if item.layout == "memory":
        return draw_memory(frames)
    raise InputError(f"{item.number} is a table")


def draw_bc(frames: dict[str, pd.DataFrame]) -> Figure:
    """A panel a number of tasks: BC(t) of every method, mean ± one standard deviation over seeds."""
    values, curves = Values.of_frames(frames), bc_curves(frames)
    figure, panels = _panels(values.counts, _heading(values))
    for axes, tasks in zip(panels, values.counts, strict=True):
        for method in ordered(values.methods):
            own = curves[(curves["method"] == method) & (curves["tasks"] == tasks)]
            _line(axes, own["t"], own["BC"], method, values.methods)
        axes.axhline(0, color="black", linewidth=1, zorder=1)
        axes.set_title(f"{tasks} tasks", fontsize=10)
        axes.set_xlabel("task t")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9))
    panels[0].set_ylabel("BC(t), backward compatibility")
    return _with_legend(figure, panels)


def draw_memory(frames: dict[str, pd.DataFrame]) -> Figure:
    """AC and BC of every method over images a class in memory, mean ± one standard deviation over seeds."""
    values = Values.of_frames(frames)
    tasks, metrics = (
        values.counts[-1],
        {"AC": "AC, share of compatible pairs of models", "BC": "BC, backward compatibility"},
    )
    figure, panels = _panels([*metrics], _heading(values, f", {tasks} tasks"), sharey=False)
    for axes, (metric, label) in zip(panels, metrics.items(), strict=True):
        for method in ordered(values.methods):
            rows = values.rows[(values.rows["method.name"] == method) & (values.rows["tasks_planned"] == tasks)]
            _line(axes, rows["memory.per_class"], rows[metric], method, values.methods)
        axes.set(xlabel="images a class in memory", ylabel=label, xticks=values.sizes)
    panels[0].set_ylim(bottom=min(0.0, panels[0].get_ylim()[0]))
    panels[1].axhline(0, color="black", linewidth=1, zorder=1)
    return _with_legend(figure, panels)


def _panels(names: Sequence[object], heading: str, sharey: bool = True) -> tuple[Figure, list[Axes]]:
    size = (PANEL[0] * len(names) + LEGEND_WIDTH, PANEL[1])
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(names), sharey=sharey, squeeze=False)[0]
    figure.suptitle(heading, fontsize=10)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
        axes.set_axisbelow(True)
    return figure, list(panels)


def _heading(values: Values, more: str = "") -> str:
    names = sorted({Path(str(name)).stem for name in values.rows["data.name"]})
    seeds = values.rows["seed"].nunique()
    return f"{', '.join(names)}{more}, {'one seed' if seeds == 1 else f'{seeds} seeds, bands ± one standard deviation'}"


def _line(axes: Axes, x: pd.Series, y: pd.Series, method: str, methods: Sequence[str]) -> None:
    """Mean and band over seeds."""
    groups, look = y.groupby(x), _look(method, methods)
    means, deviations = groups.mean(), groups.std()
    places = means.index.to_numpy(dtype=float)
    axes.plot(places, means.to_numpy(dtype=float), label=title(method), **look)
    if deviations.notna().any():
        low, high = ((means + sign * deviations).to_numpy(dtype=float) for sign in (-1, 1))
        axes.fill_between(places, low, high, color=look["color"], alpha=0.13, linewidth=0, zorder=2)


def _look(method: str, methods: Sequence[str]) -> dict[str, Any]:
    own = look(method, methods)
    line: dict[str, Any] = {"color": own.colour, "marker": own.marker, "linestyle": "--" if own.dashed else "-"}
    if own.highlighted:
        return {**line, "linewidth": 2.4, "markersize": 6.5, "zorder": 5}
    return {**line, "linewidth": 1.5, "markersize": 5.0, "zorder": 3}


def _with_legend(figure: Figure, panels: Sequence[Axes]) -> Figure:
    """Outside, with the methods in the order in which their lines end in the last panel."""
    lines = [line for line in panels[-1].get_lines() if not str(line.get_label()).startswith("_")]
    lines.sort(key=_end, reverse=True)
    figure.legend(handles=lines, loc="outside right center", frameon=False, fontsize=9)
    return figure


def _end(line: Line2D) -> float:
    heights = np.asarray(line.get_ydata(), dtype=float)
    return float(heights[-1]) if len(heights) else -np.inf


def save(figure: Figure, stem: Path) -> list[Path]:
    """As PNG and SVG; equal figures give equal files."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, svg = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
    figure.savefig(png, dpi=160, metadata={"Software": None})
    with mpl.rc_context({"svg.hashsalt": "cl2r"}):
        figure.savefig(svg, metadata={"Date": None})
    return [png, svg]
