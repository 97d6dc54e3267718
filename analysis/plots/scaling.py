"""Plots of speed-up and efficiency by the number of workers: measured, fitted by a model, and predicted for GPUs."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from analysis.groups import in_order
from analysis.names import nth_style
from analysis.plots.parts import FRAME, line_style, page_panels, share_axis, with_legend

PANELS = {"speed_up": "speed-up", "efficiency": "efficiency"}
MODES = ("strong", "weak")
WORDS = "strong: one batch for all workers; weak: one batch per worker"
FEW = 4  # speed-ups up to this are drawn on a linear scale, larger ones on a scale of powers of two


def plot_measured(points: pd.DataFrame, fitted: pd.DataFrame, heading: str) -> Figure:
    """Plot points, and fitted lines if any, by mode; frames have `mode`, `workers`, `speed_up`, `efficiency`."""
    modes = in_order(points["mode"])
    styles = {mode: nth_style(place) for place, mode in enumerate(modes)}
    labels = {mode: f"{mode}, measured" for mode in modes}
    model = {mode: f"{mode}, model" for mode in modes if mode in set(fitted["mode"])}
    figure, axes = page_panels(2, f"{heading}\n{WORDS}", [*labels.values(), *model.values(), "ideal"], sharey=False)
    for panel, column in zip(axes, PANELS, strict=True):
        for mode, style in styles.items():
            own, line = points[points["mode"] == mode], fitted[fitted["mode"] == mode]
            panel.plot(own["workers"], own[column], label=labels[mode], **{**line_style(style), "linestyle": "none"})
            if mode in model:
                panel.plot(line["workers"], line[column], label=model[mode], color=style.colour, linewidth=1.2)
    return _finish(figure, axes, [*points["workers"], *fitted["workers"]], "workers")


def plot_predicted(predictions: pd.DataFrame, heading: str, workers: str) -> Figure:
    """Plot one line per `network` and `mode`, dashed if every GPU has a batch of its own."""
    networks = in_order(predictions["network"])
    figure, axes = page_panels(
        2, f"{heading}\n{WORDS}", [f"{name}, {mode}" for name in networks for mode in MODES], sharey=False
    )
    for panel, column in zip(axes, PANELS, strict=True):
        for (network, mode), own in predictions.groupby(["network", "mode"], sort=False):
            place = networks.index(str(network))
            style = replace(nth_style(place), dashed=mode == "weak", hollow=mode == "weak")
            panel.plot(own["workers"], own[column], label=f"{network}, {mode}", **line_style(style))
    return _finish(figure, axes, list(predictions["workers"]), workers)


def _finish(figure: Figure, axes: Sequence[Axes], workers: Sequence[int], name: str) -> Figure:
    """Set up the axes, with workers on a scale of powers of two, and add the ideal line and the legend."""
    counts = sorted(set(workers))
    for panel, (column, label) in zip(axes, PANELS.items(), strict=True):
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_locator(FixedLocator([float(count) for count in counts]))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.set(xlabel=name, ylabel=label)
        ideal = [count / counts[0] for count in counts] if column == "speed_up" else [1.0] * len(counts)
        panel.plot(counts, ideal, color=FRAME, linestyle=":", linewidth=1.2, label="ideal", zorder=1)
    low, high = axes[0].dataLim.y0, axes[0].dataLim.y1
    if high <= FEW:
        axes[0].set_ylim(0, 1.08 * high)
    else:
        axes[0].set_yscale("log", base=2)
        axes[0].set_ylim(low / 1.15, high * 1.15)
        axes[0].yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes[0].yaxis.set_minor_locator(NullLocator())
    share_axis(axes[1])
    axes[1].set_ylim(top=max(1.04, axes[1].dataLim.y1 * 1.04))
    return with_legend(figure, axes, [axes[1].get_lines()[-1]])
