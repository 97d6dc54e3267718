"""Plots of studies/results/which-method-when.md."""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from analysis.evidence_runs import CELLS, REGIMES, bc_points, of_variant, shared_seeds
from analysis.names import STYLES, ordered, title
from analysis.plots import parts
from analysis.stats import line_points
from analysis.study import Study
from analysis.tables.references import NEVER as NEVER_UPGRADE
from cl2r.metrics import BC, FIRST_ACCURACY, SERVICE_ACCURACY
from cl2r.runtime.text import counted

PANELS = ("uncentred", "centred")
METRICS = (BC, SERVICE_ACCURACY, FIRST_ACCURACY)
NEVER = f"{NEVER_UPGRADE} (mean of all)"


def plot_backward(study: Study) -> Figure:
    """Plot BC(t) with ten equal tasks, uncentred and centred."""
    words = "CIFAR-100 in ten equal tasks, resnet8s, 14 epochs; mean over three seeds, bands are 95 % intervals"
    figure, axes = parts.page_panels(2, words, [title(method) for method in CELLS], height=2.6)
    drawn, points = [], bc_points(study)
    for panel, (centred, own) in zip(axes, points.groupby("centred"), strict=True):
        for method in CELLS:
            rows = own[own["method"] == method]
            drawn.append(parts.mean_line(panel, rows, title(method), STYLES[method], lines=len(CELLS)))
        panel.set(xlabel="task t", xticks=range(2, 11, 2))
        panel.set_title(PANELS[bool(centred)], fontsize=parts.TEXT)
        parts.zero_line(panel)
    axes[0].set_ylabel("BC(t)")
    parts.fit(figure, axes, pd.concat(drawn))
    return parts.with_legend(figure, axes, order=[title(method) for method in CELLS])


def plot_lengths(study: Study) -> Figure:
    """Plot BC and service accuracy of ten equal tasks against the length of training.

    A panel compares the methods that were trained with most seeds for 70 epochs, on the seeds that all of them have at
    both lengths.
    """
    rows, seeds = [], []
    for short, long in (("equal", "epochs_70"), ("equal_centred", "epochs_70_centred")):
        counts = of_variant(study, long)["method.name"].value_counts()
        methods = [str(name) for name in counts.index[counts == counts.max()]]
        shared = shared_seeds(study, short, long, methods=methods) if methods else []
        seeds.append(counted(len(shared), "seed") if len(shared) != 1 else f"seed {shared[0]}")
        both = study.runs["variant"].isin((short, long)) & study.runs["method.name"].isin(methods)
        runs = study.runs[both & study.runs["seed"].isin(shared)]
        for run in runs.to_dict("records"):
            for metric in METRICS:
                place = (short != "equal", run["method.name"], run["optim.epochs"])
                rows.append((metric.name, *place, run[metric.name]))
    table = pd.DataFrame(rows, columns=["metric", "centred", "method", "x", "y"])
    words, panels = "CIFAR-100, ten equal tasks, resnet8s; mean and 95 % interval", list(PANELS)
    if seeds[0] == seeds[1]:
        words += f" over {seeds[0]}" if seeds[0].endswith("seeds") else f"; {seeds[0]}"
    else:
        panels = [f"{panel} ({own})" for panel, own in zip(PANELS, seeds, strict=True)]
    return _drawn(table, words, "epochs per task", (14, 70), panels)


def plot_first_task(study: Study) -> Figure:
    """Plot BC and service accuracy against the share of the classes in the first task."""
    rows = []
    for variant in REGIMES:
        for method in CELLS:
            runs = of_variant(study, variant, method)
            share = 50 if variant.startswith("half") else 10
            for metric in METRICS:
                rows += [
                    (metric.name, variant.endswith("centred"), method, share, value) for value in runs[metric.name]
                ]
    table = pd.DataFrame(rows, columns=["metric", "centred", "method", "x", "y"])
    words = "CIFAR-100, then 10 classes at a time, resnet8s, 14 epochs; mean and 95 % interval over three seeds"
    return _drawn(table, words, "classes in the first task, of 100", (10, 50), PANELS)


def _drawn(table: pd.DataFrame, words: str, axis: str, ticks: tuple[int, ...], names: Sequence[str]) -> Figure:
    """Draw two panels per metric, uncentred and centred; `names` are their titles."""
    methods = ordered(table["method"].unique())
    labels = [*map(title, methods), NEVER]
    figure, axes = parts.page_panels(4, words, labels, sharey=False, height=2.3)
    width = ticks[-1] - ticks[0]
    for place, metric in enumerate((BC, SERVICE_ACCURACY)):
        drawn, never = [], list[float]()
        for centred, (panel, name) in enumerate(zip(axes[2 * place : 2 * place + 2], names, strict=True)):
            for number, method in enumerate(methods):
                own = table[(table["metric"] == metric.name) & (table["centred"] == centred)]
                own = own[own["method"] == method]
                if own.empty:
                    continue
                beside = (number - (len(methods) - 1) / 2) * 0.015 * width  # intervals stand side by side
                own = own.assign(x=own["x"] + beside)
                points = line_points(own, ["x"])
                panel.plot(points.index, points["mean"], label=title(method), **parts.line_style(STYLES[method]))
                for x, (mean, low, high) in zip(points.index, points[["mean", "low", "high"]].to_numpy(), strict=True):
                    parts.error_bar(panel, float(x), (mean, low, high), STYLES[method])
                drawn.append(points)
            panel.set(xticks=ticks, xlim=(ticks[0] - 0.1 * width, ticks[1] + 0.1 * width))
            panel.set_xlabel(axis)
            panel.set_ylabel(metric.head)
            panel.set_title(name, fontsize=parts.TEXT)
            if metric is BC:
                parts.zero_line(panel)
            else:
                first = table[(table["metric"] == FIRST_ACCURACY.name) & (table["centred"] == centred)]
                means = first.groupby("x")["y"].mean()
                panel.plot(means.index, means, label=NEVER, color="black", linestyle=":", marker="_")
                never += list(means)
        parts.fit(figure, axes[2 * place : 2 * place + 2], pd.concat(drawn), never)
    return parts.with_legend(figure, axes, order=labels)


PLOTS: Mapping[str, Callable[[Study], Figure]] = {
    "first_task": plot_first_task,
    "bc": plot_backward,
    "length": plot_lengths,
}
