"""Plots of speed-up and efficiency by the number of workers: measured, fitted by a model, and predicted for GPUs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from analysis.groups import in_order
from analysis.names import nth_style
from analysis.plots.parts import FRAME, line_style, page_panels, share_axis, with_legend

PANELS = {"speed_up": "speed-up", "efficiency": "efficiency"}
WORDS = "strong: one batch for all workers; weak: one batch per worker"
Line = tuple[str, pd.DataFrame, dict[str, Any]]  # label; `workers`, `speed_up`, `efficiency`; style
FEW = 4  # speed-ups up to this are drawn on a linear scale, larger ones on a scale of powers of two


def plot_measured(data: pd.DataFrame, heading: str) -> Figure:
    """Plot points, and lines of the model if there is one, by `mode`."""
    faster = data["seconds"] / data["fitted_seconds"]
    model = data.assign(speed_up=data["speed_up"] * faster, efficiency=data["efficiency"] * faster)
    lines: list[Line] = []
    for place, mode in enumerate(in_order(data["mode"])):
        style, own = nth_style(place), data["mode"] == mode
        lines.append((f"{mode}, measured", data[own], {**line_style(style), "linestyle": "none"}))
        if faster.notna().any():
            lines.append((f"{mode}, model", model[own], {"color": style.colour, "linewidth": 1.2}))
    return _plot(lines, heading, "workers")


def plot_predicted(predictions: pd.DataFrame, heading: str, workers: str) -> Figure:
    """Plot one line per `network` and `mode`, dashed if every GPU has a batch of its own."""
    networks, lines = in_order(predictions["network"]), list[Line]()
    for (network, mode), own in predictions.groupby(["network", "mode"], sort=False):
        weak = mode == "weak"
        style = replace(nth_style(networks.index(str(network))), dashed=weak, hollow=weak)
        lines.append((f"{network}, {mode}", own, line_style(style)))
    return _plot(lines, heading, workers)


def _plot(lines: Sequence[Line], heading: str, name: str) -> Figure:
    """Plot the lines, with workers on a scale of powers of two, the ideal line and a legend."""
    labels = [*(label for label, _, _ in lines), "ideal"]
    figure, axes = page_panels(2, f"{heading}\n{WORDS}", labels, sharey=False)
    counts = sorted({count for _, own, _ in lines for count in own["workers"]})
    for panel, (column, title) in zip(axes, PANELS.items(), strict=True):
        for label, own, style in lines:
            panel.plot(own["workers"], own[column], label=label, **style)
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_locator(FixedLocator([float(count) for count in counts]))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.set(xlabel=name, ylabel=title)
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
