"""How AC and BC respond to one config field: images a class in memory, or λ_base."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from analysis.frames import Frames
from analysis.groups import varied_fields
from analysis.names import METRIC_TITLES
from analysis.pivot import finished, pair_column
from analysis.plots.groups import LIMIT, Groups, figures, no_chains, refuse
from analysis.plots.parts import (
    heading,
    line_look,
    mean_line,
    page_panels,
    share_axis,
    with_legend,
    zero_line,
)
from analysis.style import Look

METRICS = ("AC", "BC")
NEIGHBOURS = 5
"""A sweep draws every value once: its line is the mean over this many neighbouring trials."""
FEW = 3
"""With so many groups their tuning pairs are drawn too."""


def plot_memory(study: Frames) -> Figure:
    """AC and BC over images a class in memory, by group; mean ± one standard deviation over seeds."""
    refuse(no_response(study, "memory.per_class"))
    groups, alone = _groups(study, "memory.per_class")
    words = "images a class in memory"
    return _bands(groups, "memory.per_class", words) if alone else _trials(groups, "memory.per_class", words, alone)


def plot_lambda(study: Frames) -> Figure:
    """AC and BC over λ_base: a point a trial and the mean line, on the tuning pairs too if there are few groups."""
    refuse(no_response(study, "method.lambda_base"))
    groups, alone = _groups(study, "method.lambda_base")
    return _trials(groups, "method.lambda_base", "λ_base, weight of distillation", alone)


def no_response(study: Frames, field: str) -> str:
    """Why there is no figure over this field; empty if there is."""
    if reason := no_chains(study):
        return reason
    rows = study.runs[finished(study.runs)]
    if unknown := [metric for metric in METRICS if figures(rows, metric).isna().all()]:
        return f"no finished run has {' or '.join(unknown)}"
    if field in varied_fields(rows) and _groups(study, field)[0].looks:
        return ""
    return f"{field} does not vary among finished runs that are else alike: there is no response to draw"


def _groups(study: Frames, field: str) -> tuple[Groups, bool]:
    """Groups in which the field varies, and whether alone: in a sweep other fields vary with it."""
    others = [name for name in varied_fields(study.runs) if name != "scenario.n_tasks"]
    found = [len(Groups.of(study, names, len(study.runs), field).rows) for names in ([field], others)]
    alone = 2 * found[0] > found[1]  # a few trials of a sweep may agree by chance, a few of a grid may have failed
    return Groups.of(study, [field] if alone else others, varied=field), alone


def _bands(groups: Groups, field: str, words: str) -> Figure:
    figure, axes = page_panels(2, groups.heading(heading(groups.rows)), groups.looks, sharey=False)
    for panel, metric in zip(axes, METRICS, strict=True):
        for group, look in groups.looks.items():
            own = groups.rows[groups.rows["group"] == group]
            mean_line(panel, own[field], own[metric], group, look)
        _finish(panel, metric, words)
        panel.set_xticks(_values(groups, field))
    return with_legend(figure, axes)


def _trials(groups: Groups, field: str, words: str, alone: bool) -> Figure:
    named = {"report": groups.looks, "tuning": {}}
    tuned = all(figures(groups.rows, pair_column(metric, "tuning")).notna().any() for metric in METRICS)
    if tuned and len(groups.looks) <= FEW:
        named["tuning"] = groups.looks
    labels = [_label(group, pairs) for pairs, looks in named.items() for group in looks]
    smooth = groups.rows[field].nunique() > LIMIT
    line = f", lines: mean of {NEIGHBOURS} neighbouring trials" if smooth else ", lines: means"
    figure, axes = page_panels(2, groups.heading(heading(groups.rows, bands=False) + line), labels, sharey=False)
    for panel, metric in zip(axes, METRICS, strict=True):
        for pairs, looks in named.items():
            for group, look in looks.items():
                own = groups.rows[groups.rows["group"] == group]
                _trial_line(panel, own, field, pair_column(metric, pairs), _label(group, pairs), look)
        _finish(panel, metric, words)
        _value_axis(panel, _values(groups, field), alone)
    return with_legend(figure, axes)


def _label(group: str, pairs: str) -> str:
    return group if pairs == "report" else f"{group}, tuning pairs"


def _trial_line(axes: Axes, rows: pd.DataFrame, field: str, column: str, label: str, look: Look) -> None:
    """Points are trials, means over their seeds; tuning pairs are hollow and dotted."""
    shown: dict[str, Any] = line_look(look)
    if column.startswith("tuning_"):
        shown |= {"linestyle": ":", "markerfacecolor": "white"}
    trial = "trial" if "trial" in rows else "run"
    points = rows.astype({field: float, column: float}).groupby(trial)[[field, column]].mean().sort_values(field)
    dots = {**shown, "linestyle": "none", "markersize": 3.0, "alpha": 0.6}
    axes.plot(points[field].to_numpy(), points[column].to_numpy(), **dots)
    means = points.groupby(field)[column].mean()
    if len(means) > LIMIT:
        means = means.rolling(NEIGHBOURS, center=True, min_periods=NEIGHBOURS // 2 + 1).mean()
        shown["markevery"] = []  # its points are no trials
    axes.plot(means.index.to_numpy(), means.to_numpy(), label=label, **shown)


def _values(groups: Groups, field: str) -> list[float]:
    return sorted({float(value) for value in groups.rows[field].dropna()})


def _finish(axes: Axes, metric: str, words: str) -> None:
    axes.set(xlabel=words, ylabel=METRIC_TITLES[metric])
    if metric == "BC":
        zero_line(axes)
    else:
        share_axis(axes)


def _value_axis(axes: Axes, values: list[float], grid: bool) -> None:
    """Logarithmic if the values span a power of ten; ticks at the values of a grid."""
    least = min(value for value in values if value > 0)
    wide = values[-1] >= 10 * least
    if wide and values[0] > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3) if values[-1] < 2000 * least else (1,)))
    elif wide:
        axes.set_xscale("symlog", linthresh=least, linscale=0.5)
        axes.set_xlim(-0.3 * least, 1.4 * values[-1])
    if grid and len(values) <= 6:
        axes.set_xticks(values)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
