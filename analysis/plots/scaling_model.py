"""Speed-up and efficiency by the number of workers: measured, by a fitted model, and predicted for GPUs."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from analysis.groups import in_order
from analysis.plots.parts import FRAME, line_look, page_panels, share_axis, with_legend
from analysis.style import Look, nth_look

PANELS = {"speed_up": "speed-up", "efficiency": "efficiency"}
MODES = ("strong", "weak")
WORDS = "strong: one batch for all; weak: a batch each"
FEW = 4
"""Speed-ups up to this stand on an even scale, larger ones on one of powers of two."""


def plot_measured(points: pd.DataFrame, fitted: pd.DataFrame, heading: str) -> Figure:
    """Points as measured and lines as fitted, by mode; both have `mode`, `workers`, `speed_up`, `efficiency`.

    `fitted` may be empty: then there is no line.
    """
    modes = in_order(points["mode"])
    looks = {mode: nth_look(place) for place, mode in enumerate(modes)}
    labels = {mode: f"{mode}, measured" for mode in modes}
    model = {mode: f"{mode}, model" for mode in modes if mode in set(fitted["mode"])}
    figure, axes = page_panels(2, f"{heading}\n{WORDS}", [*labels.values(), *model.values(), "ideal"], sharey=False)
    for panel, column in zip(axes, PANELS, strict=True):
        for mode, look in looks.items():
            own, line = points[points["mode"] == mode], fitted[fitted["mode"] == mode]
            panel.plot(own["workers"], own[column], label=labels[mode], **{**line_look(look), "linestyle": "none"})
            if mode in model:
                panel.plot(line["workers"], line[column], label=model[mode], color=look.colour, linewidth=1.2)
    return _finished(figure, axes, [*points["workers"], *fitted["workers"]], "workers")


def plot_predicted(predictions: pd.DataFrame, heading: str, workers: str) -> Figure:
    """Lines by `network` and `mode`, dashed where every GPU has a batch of its own."""
    networks = in_order(predictions["network"])
    figure, axes = page_panels(
        2, f"{heading}\n{WORDS}", [f"{name}, {mode}" for name in networks for mode in MODES], sharey=False
    )
    for panel, column in zip(axes, PANELS, strict=True):
        for (network, mode), own in predictions.groupby(["network", "mode"], sort=False):
            place = networks.index(str(network))
            look = Look(nth_look(place).colour, nth_look(place).marker, dashed=mode == "weak", hollow=mode == "weak")
            panel.plot(own["workers"], own[column], label=f"{network}, {mode}", **line_look(look))
    return _finished(figure, axes, list(predictions["workers"]), workers)


def _finished(figure: Figure, axes: Sequence[Axes], workers: Sequence[int], name: str) -> Figure:
    """Axes, the ideal and the legend. Workers are doubled, not added one by one."""
    counts = sorted(set(workers))
    for panel, (column, label) in zip(axes, PANELS.items(), strict=True):
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_locator(FixedLocator([float(count) for count in counts]))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.set(xlabel=name, ylabel=label)
        ideal = [count / counts[0] for count in counts] if column == "speed_up" else [1.0] * len(counts)
        panel.plot(counts, ideal, color=FRAME, linestyle=":", linewidth=1.2, label="ideal", zorder=1)
    _speed_up_axis(axes[0])
    share_axis(axes[1])
    axes[1].set_ylim(top=max(1.04, axes[1].dataLim.y1 * 1.04))
    return with_legend(figure, axes, [axes[1].get_lines()[-1]])


def _speed_up_axis(axes: Axes) -> None:
    low, high = axes.dataLim.y0, axes.dataLim.y1
    if high <= FEW:
        axes.set_ylim(0, 1.08 * high)
        return
    axes.set_yscale("log", base=2)
    axes.set_ylim(low / 1.15, high * 1.15)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
