"""The paper's two figures of results, drawn from frames: BC(t) over the tasks, and metrics over the size of memory."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.names import METRIC_TITLES, ordered, title
from analysis.paper.items import Item
from analysis.paper.values import Values, bc_curves
from analysis.pivot import finished
from analysis.plots.parts import heading, mean_line, panels, save, with_legend, zero_line
from analysis.style import look
from cl2r.errors import InputError

__all__ = ["draw", "draw_bc", "draw_memory", "save"]

PANEL = (4.3, 3.7)
LEGEND_WIDTH = 1.3
TEXT = 10.0


def draw(item: Item, frames: dict[str, pd.DataFrame]) -> Figure:
    """The figure of an item."""
    if item.layout == "bc":
        return draw_bc(frames)
    if item.layout == "memory":
        return draw_memory(frames)
    raise InputError(f"{item.number} is a table")


def draw_bc(frames: dict[str, pd.DataFrame]) -> Figure:
    """A panel a number of tasks: BC(t) of every method, mean ± one standard deviation over seeds."""
    _check_finished(frames)
    values, curves = Values.of_frames(frames), bc_curves(frames)
    if curves.empty:
        raise InputError("no finished run has a matrix of two tasks or more: there is no BC(t) to draw")
    figure, axes = _panels(len(values.counts), heading(values.rows))
    for panel, tasks in zip(axes, values.counts, strict=True):
        for method in ordered(values.methods):
            own = curves[(curves["method"] == method) & (curves["tasks"] == tasks)]
            _line(panel, own["t"], own["BC"], method, values.methods)
        zero_line(panel)
        panel.set_title(f"{tasks} tasks", fontsize=TEXT)
        panel.set_xlabel("task t")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9))
    axes[0].set_ylabel("BC(t), backward compatibility")
    return with_legend(figure, axes, text=TEXT - 1, line=2.0)


def draw_memory(frames: dict[str, pd.DataFrame]) -> Figure:
    """AC and BC of every method over images a class in memory, mean ± one standard deviation over seeds."""
    _check_finished(frames)
    values = Values.of_frames(frames)
    tasks = int(values.rows["tasks_planned"].max())
    metrics = ("AC", "BC")
    figure, axes = _panels(len(metrics), heading(values.rows, f", {tasks} tasks"), sharey=False)
    for panel, metric in zip(axes, metrics, strict=True):
        for method in ordered(values.methods):
            rows = values.rows[(values.rows["method.name"] == method) & (values.rows["tasks_planned"] == tasks)]
            _line(panel, rows["memory.per_class"], rows[metric], method, values.methods)
        panel.set(xlabel="images a class in memory", ylabel=METRIC_TITLES[metric], xticks=values.sizes)
    axes[0].set_ylim(bottom=min(0.0, axes[0].get_ylim()[0]))
    zero_line(axes[1])
    return with_legend(figure, axes, text=TEXT - 1, line=2.0)


def _check_finished(frames: dict[str, pd.DataFrame]) -> None:
    if not finished(frames["runs"]).any():
        raise InputError("no run has finished: there is nothing to draw")


def _panels(count: int, words: str, sharey: bool = True) -> tuple[Figure, list[Axes]]:
    return panels(count, words, (PANEL[0] * count + LEGEND_WIDTH, PANEL[1]), sharey=sharey, text=TEXT)


def _line(axes: Axes, x: pd.Series, y: pd.Series, method: str, methods: Sequence[str]) -> None:
    mean_line(axes, x, y, title(method), look(method, methods))
