"""Line plots of a study: BC(t), stationarity, metrics over a config field, metrics against costs, training speed."""

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from analysis.groups import check_name, in_order, varied_fields
from analysis.matrices import bc_by_task, cells_of, pareto_front
from analysis.names import STATIONARITY, LineStyle
from analysis.plots import parts
from analysis.study import Frames, Study, concat
from cl2r.errors import InputError
from cl2r.metrics import AC, BC, METRICS

MATRIX = ("run", "pairs", "t", "k", "accuracy")  # columns of `matrix` that make a matrix
SPEED = ["workers", "images", "seconds"]  # columns of `tasks` that say how fast a task was trained
RESPONSE_METRICS = (AC, BC)
NEIGHBOURS = 5  # a sweep draws every value once: its line is the mean over this many neighbouring trials
FEW = 3  # with this many groups or fewer, their tuning pairs are drawn too


def measured_runs(frames: Frames, pairs: str, metric: str | None = None, *columns: str) -> tuple[pd.DataFrame, str]:
    """Return the finished runs with cells of C on these pairs, and words on metric, pairs and runs left out."""
    done = parts.finished_chains(frames.runs)
    parts.need(frames.matrix, (*MATRIX, *columns), "matrix")
    cells = cells_of(frames.matrix, pairs, metric)
    rows = done[done["run"].isin(cells["run"])]
    if rows.empty:
        raise InputError(f"no {pairs} pairs were evaluated")
    names = in_order(cells.loc[cells["run"].isin(rows["run"]), "metric"])
    words = "" if names == ["accuracy"] else f", by {' and '.join(names)}"
    words += "" if pairs == "report" else f", {pairs} pairs"
    lost = len(done) - len(rows)
    words += f", {lost} of {len(done)} runs left out without a matrix" if lost else ""
    return parts.finished_chains(rows), words


def plot_bc_curves(study: Frames, pairs: str = "report", metric: str | None = None) -> Figure:
    """Plot BC(t) by group, mean ± one standard deviation over seeds; one panel per number of tasks."""
    known, words = measured_runs(study, pairs, metric)
    groups = parts.Groups.of(known, without=["scenario.n_tasks"])
    curves = bc_by_task(study.matrix, pairs, metric).merge(groups.rows[["run", "group", "tasks"]], on="run")
    counts = sorted(int(count) for count in curves["tasks"].unique())
    figure, axes = parts.page_panels(len(counts), groups.heading(words), groups.styles)
    for panel, tasks in zip(axes, counts, strict=True):
        _group_lines(panel, curves[curves["tasks"] == tasks], groups, "t", "BC")
        parts.zero_line(panel)
        panel.set_title(f"{tasks} tasks", fontsize=parts.TEXT)
        _task_axis(panel, 2, tasks)
    axes[0].set_ylabel("BC(t), backward compatibility")
    return parts.with_legend(figure, axes)


def plot_stationarity(study: Frames) -> Figure:
    """Plot how little representations move from task to task, by group; mean ± one standard deviation over seeds.

    Runs that share a chain, such as a method and its adapters, are drawn once. Only runs with the most tasks are drawn.
    """
    parts.finished_chains(study.runs)
    parts.need(study.tasks, ("run", "task", "key"), "tasks")
    known = study.tasks.reindex(columns=list(STATIONARITY)).notna().any(axis=1)
    runs = study.runs[study.runs["run"].isin(study.tasks.loc[known, "run"])]
    if runs.empty:
        raise InputError(f"tasks have none of {', '.join(STATIONARITY)}")
    runs = parts.longest(parts.finished_chains(runs))
    chains = study.tasks["key"].fillna(study.tasks["run"]).groupby(study.tasks["run"]).agg(" ".join)
    groups = parts.Groups.of(runs[~runs["run"].map(chains).duplicated()])
    tasks = study.tasks.merge(groups.rows[["run", "group"]].drop_duplicates(), on="run")
    words = groups.heading(f", {groups.tasks} tasks")
    shown = [name for name in STATIONARITY if name in tasks and tasks[name].notna().any()]
    figure, axes = parts.page_panels(len(shown), words, groups.styles, sharey=False, height=2.2)
    for panel, name in zip(axes, shown, strict=True):
        own = tasks[tasks[name].notna()]
        _group_lines(panel, own, groups, "task", name)
        panel.set_ylabel(textwrap.fill(STATIONARITY[name], 22))
        _task_axis(panel, int(own["task"].min()), int(own["task"].max()))
    bounds: list[Line2D] = []
    if shown[-1] == "vertex_cosine":  # the most that a projection allows, once per distinct bound
        bounded = tasks.assign(vertex_bound=parts.numbers(tasks, "vertex_bound")).dropna(subset=["vertex_bound"])
        curves = [tuple(own.groupby("task")["vertex_bound"].mean().items()) for _, own in bounded.groupby("group")]
        for curve in dict.fromkeys(curves):
            bounds += axes[-1].plot(*zip(*curve, strict=True), color=parts.FRAME, linestyle=":", linewidth=1.2)
        for line in bounds[:1]:
            line.set_label("bound of vertex cosine")
    return parts.with_legend(figure, axes, bounds[:1])


def _group_lines(axes: Axes, table: pd.DataFrame, groups: parts.Groups, x: str, y: str) -> None:
    """Draw one line per group; at a single x, groups stand side by side."""
    beside = 0.4 / len(groups.styles) if table[x].nunique() == 1 else 0.0
    for place, (group, style, own) in enumerate(groups.each(table)):
        if len(own):
            parts.mean_line(axes, own[x] + beside * (place - (len(groups.styles) - 1) / 2), own[y], group, style)


def _task_axis(axes: Axes, first: int, last: int) -> None:
    axes.set_xlabel("task t")
    if first == last:
        axes.set_xlim(first - 0.5, last + 0.5)
    if last - first < 10:
        axes.set_xticks(range(first, last + 1))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))


def plot_pareto(study: Frames, x: str = "stored_bytes", y: str = "AC") -> Figure:
    """Plot the groups' means over seeds and the Pareto front, drawn as steps: the best `y` for at most that `x`.

    Only runs with the most tasks are drawn: metrics of different numbers of tasks cannot be compared.
    """
    check_name(y, [metric.name for metric in METRICS.of_matrix()], "metric")
    parts.finished_chains(study.runs)
    for name in (x, y):
        check_name(name, study.runs.columns, "column")
    unit, cost = (1e-6, " (MB)") if x.endswith("_bytes") else (1.0, "")
    groups = parts.Groups.of(parts.longest(study.runs), limit=len(study.runs))
    rows = groups.rows.assign(x=parts.numbers(groups.rows, x) * unit, y=parts.numbers(groups.rows, y))
    by_group = rows.dropna(subset=["x", "y"]).groupby("group", sort=False)
    means = pd.DataFrame({"x": by_group["x"].mean(), "y": by_group["y"].mean(), "sd": by_group["y"].std()})
    if means.empty:
        raise InputError(f"no finished run has both {x} and {y}")
    if flat := [name for name, column in ((x, "x"), (y, "y")) if means[column].nunique() < 2]:
        raise InputError(f"{' and '.join(flat)} take one value in all groups: there is nothing to trade")
    front = means[pareto_front(np.column_stack([means["x"], -means["y"]]))].sort_values(["x", "y"])
    rest = means.drop(front.index).sort_values("y", ascending=False)
    labels = {str(group): f"{place}  {group}" for place, group in enumerate(front.index, start=1)}
    labels |= {str(group): str(group) for group in rest.index} if len(means) <= parts.LIMIT else {}
    bars = "" if means["sd"].isna().all() else ", bars ± one standard deviation"
    words = groups.heading(f", {groups.tasks} tasks", bands=False, end=bars)
    figure, (axes,) = parts.page_panels(1, words, labels.values(), height=3.2)
    steps = [*front["x"], means["x"].max()], [*front["y"], front["y"].iloc[-1]]
    axes.step(*steps, where="post", color=parts.FRAME, linewidth=1, zorder=1)
    handles = []
    for group, place, height, deviation in means.loc[list(labels)].itertuples(name=None):
        style = groups.styles[group]
        if not np.isnan(deviation):
            parts.error_bar(axes, place, height, deviation, style)
        edge = {"markeredgecolor": "black"} if style.dashed else {}  # a point shows no dashes
        point = {**parts.line_style(style), "linestyle": "none", **edge}
        handles += axes.plot(place, height, label=labels[group], **point)
    places, reach = front[["x", "y"]], means[["x", "y"]].max() - means[["x", "y"]].min()
    close = (places.diff() <= 0.04 * reach).all(axis=1)
    shift = 4  # numbers stand up and left, where no other point is; those of close neighbours are higher
    for number, (spot, aside) in enumerate(zip(places.to_numpy(), close, strict=True), start=1):
        shift = shift + 8 if aside else 4
        axes.annotate(
            str(number), tuple(spot), (-4, shift), textcoords="offset points", fontsize=parts.SMALL, ha="right"
        )
    if len(labels) < len(means):
        label = f"{len(rest)} groups off the front"
        handles += axes.plot(rest["x"], rest["y"], color="#aaaaaa", marker=".", linestyle="none", label=label)
    axes.set_xlabel((METRICS[x].title if x in METRICS else x) + cost)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    parts.metric_axis(axes, METRICS[y])
    return parts.with_legend(figure, [], handles)


def plot_scaling(study: Study, *others: Study) -> Figure:
    """Plot images per second by the number of workers, and the efficiency relative to the fewest workers.

    `others` may hold the same runs, trained with other numbers of workers into another storage.
    """
    if others:  # `concat` keeps one of equal runs, which is all that results need, but not speed
        tasks = pd.concat([own.tasks for own in (study, *others)], ignore_index=True)
        study = replace(concat([study, *others]), tasks=tasks)
    parts.finished_chains(study.runs)
    parts.need(study.tasks, ("run", "task", "reused", *SPEED), "tasks")
    groups = parts.Groups.of(study.runs)
    # images per second by group and workers, over the tasks that each number of workers trained
    tasks = study.tasks.assign(**{name: parts.numbers(study.tasks, name) for name in SPEED}).dropna(subset=SPEED)
    trained = tasks[~tasks["reused"].astype("boolean").fillna(True) & (tasks["seconds"] > 0)]
    trained = trained.merge(groups.rows[["run", "group"]].drop_duplicates(), on="run")
    counts = trained.groupby("group")["workers"].transform("nunique")
    common = trained.groupby(["group", "task"])["workers"].transform("nunique") == counts
    sums = trained[common & (counts > 1)].groupby(["group", "workers"])[["images", "seconds"]].sum()
    speeds = (sums["images"] / sums["seconds"]).rename("rate").reset_index().astype({"workers": int})
    first = speeds.groupby("group")[["workers", "rate"]].transform("first")  # the fewest: workers ascend
    speeds["efficiency"] = speeds["rate"] / (first["rate"] * speeds["workers"] / first["workers"])
    if speeds.empty:
        raise InputError("no group trained a task with two numbers of workers; give plot_scaling several studies")
    words = groups.heading(bands=False, end=", tasks that were trained at every number of workers")
    shown = [name for name in groups.styles if name in set(speeds["group"])]
    figure, axes = parts.page_panels(2, words, [*shown, "ideal"], sharey=False)
    for panel, column in zip(axes, ("rate", "efficiency"), strict=True):
        for group, style, own in groups.each(speeds):
            if group in shown:
                panel.plot(own["workers"], own[column], label=group, **parts.line_style(style))
        panel.set(xlabel="workers", xticks=sorted(speeds["workers"].unique()), ylim=(0, None))
    axes[0].set_ylabel("training speed (images/s)")
    axes[1].set_ylabel("efficiency, share of ideal speed")
    ideal = axes[1].axhline(1, color=parts.FRAME, linestyle=":", linewidth=1.2, label="ideal", zorder=1)
    return parts.with_legend(figure, axes, [ideal])


def plot_memory(study: Frames) -> Figure:
    """Plot AC and BC over images per class in memory, by group; mean ± one standard deviation over seeds."""
    return _response_plot(study.runs, "memory.per_class", "images per class in memory", bands=True)


def plot_lambda(study: Frames) -> Figure:
    """Plot AC and BC over λ_base: one point per trial and their mean; with few groups, on the tuning pairs too."""
    return _response_plot(study.runs, "method.lambda_base", "λ_base, weight of distillation", bands=False)


def _response_plot(runs: pd.DataFrame, field: str, words: str, bands: bool) -> Figure:
    """Plot AC and BC over a field: means with bands if asked for and if it varies alone, else trials."""
    groups, alone = _response_groups(runs, field)
    bands, endings, lines = bands and alone, {"report": ""}, ""
    if not bands:
        tuned = all(parts.numbers(groups.rows, metric.column("tuning")).notna().any() for metric in RESPONSE_METRICS)
        endings |= {"tuning": ", tuning pairs"} if tuned and len(groups.styles) <= FEW else {}
        smooth = groups.rows[field].nunique() > parts.LIMIT
        lines = f", lines: mean of {NEIGHBOURS} neighbouring trials" if smooth else ", lines: means"
    labels = [group + ending for ending in endings.values() for group in groups.styles]
    figure, axes = parts.page_panels(2, groups.heading(bands=bands, end=lines), labels, sharey=False)
    values = sorted({float(value) for value in groups.rows[field].dropna()})
    for panel, metric in zip(axes, RESPONSE_METRICS, strict=True):
        for pairs, ending in endings.items():
            for group, style, own in groups.each(groups.rows):
                if bands:
                    parts.mean_line(panel, own[field], own[metric.name], group, style)
                else:
                    _trial_line(panel, own, field, metric.column(pairs), group + ending, style)
        panel.set_xlabel(words)
        parts.metric_axis(panel, metric)
        if bands:
            panel.set_xticks(values)
        else:
            _value_axis(panel, values, alone)
    return parts.with_legend(figure, axes)


def _response_groups(runs: pd.DataFrame, field: str) -> tuple[parts.Groups, bool]:
    """Return the groups in which the field varies, and whether it varies alone: in a sweep, other fields vary too."""
    rows = parts.finished_chains(runs)
    if unknown := [metric.name for metric in RESPONSE_METRICS if parts.numbers(rows, metric.name).isna().all()]:
        raise InputError(f"no finished run has {' or '.join(unknown)}")
    if field in varied_fields(rows):
        others = [name for name in varied_fields(runs) if name != "scenario.n_tasks"]
        found = [len(parts.Groups.of(runs, names, len(runs), field).rows) for names in ([field], others)]
        alone = 2 * found[0] > found[1]  # a few trials of a sweep may agree by chance, a few of a grid may have failed
        groups = parts.Groups.of(runs, [field] if alone else others, varied=field)
        if groups.styles:
            return groups, alone
    raise InputError(f"{field} does not vary among finished runs that are otherwise alike: there is nothing to draw")


def _trial_line(axes: Axes, rows: pd.DataFrame, field: str, column: str, label: str, style: LineStyle) -> None:
    """Draw trials as points, means over their seeds, and a line; tuning pairs are hollow and dotted."""
    shown: dict[str, Any] = parts.line_style(style)
    if column.startswith("tuning_"):
        shown |= {"linestyle": ":", "markerfacecolor": "white"}
    trial = "trial" if "trial" in rows else "run"
    points = rows.astype({field: float, column: float}).groupby(trial)[[field, column]].mean().sort_values(field)
    dots = {**shown, "linestyle": "none", "markersize": 3.0, "alpha": 0.6}
    axes.plot(points[field].to_numpy(), points[column].to_numpy(), **dots)
    means = points.groupby(field)[column].mean()
    if len(means) > parts.LIMIT:
        means = means.rolling(NEIGHBOURS, center=True, min_periods=NEIGHBOURS // 2 + 1).mean()
        shown["markevery"] = []  # its points are no trials
    axes.plot(means.index.to_numpy(), means.to_numpy(), label=label, **shown)


def _value_axis(axes: Axes, values: Sequence[float], grid: bool) -> None:
    """Make the axis logarithmic if the values span a power of ten; put ticks at the values of a grid."""
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
