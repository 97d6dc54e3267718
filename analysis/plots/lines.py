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
from analysis.matrices import LEAST_RATIO, bc_by_task, cells_of, pareto_front, traded
from analysis.names import STATIONARITY, LineStyle, field_title
from analysis.plots import parts
from analysis.stats import EVERYWHERE, line_points
from analysis.study import Frames, Study, concat
from cl2r.errors import InputError
from cl2r.metrics import AC, BC, METRICS, SERVICE_ACCURACY, STORED_BYTES, Metric

MATRIX = ("run", "pairs", "t", "k", "accuracy")  # columns of `matrix` that make a matrix
SPEED = ["workers", "images", "seconds"]  # columns of `tasks` that say how fast a task was trained
MEMORY, WEIGHT = "memory.per_class", "method.lambda_base"
AXES = {MEMORY: "images per class in memory", WEIGHT: "λ_base, weight of distillation"}
AXES["scenario.n_tasks"] = "number of tasks T"
RESPONSE_METRICS = (SERVICE_ACCURACY, BC, AC)
NEIGHBOURS = 5  # a sweep draws every value once: its line is the mean over this many neighbouring trials
COSINE = (-1.0, 1.0)


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
    """Plot BC(t) by group, means over seeds with 95 % intervals; one panel per number of tasks."""
    known, words = measured_runs(study, pairs, metric)
    groups = parts.Groups.of(known, without=["scenario.n_tasks"])
    curves = bc_by_task(study.matrix, pairs, metric).merge(groups.rows[["run", "group", "tasks"]], on="run")
    counts = sorted(int(count) for count in curves["tasks"].unique())
    figure, axes = parts.page_panels(len(counts), groups.heading(words), groups.styles)
    drawn = []
    for panel, tasks in zip(axes, counts, strict=True):
        drawn.append(_group_lines(panel, curves[curves["tasks"] == tasks], groups, "t", "BC"))
        parts.zero_line(panel)
        panel.set_title(f"{tasks} tasks", fontsize=parts.TEXT)
        _task_axis(panel, 2, tasks)
    parts.fit(figure, axes, pd.concat(drawn), [0.0])
    figure.supylabel("BC(t), backward compatibility", fontsize=parts.TEXT)
    return parts.with_legend(figure, axes, order=groups.styles)


def plot_stationarity(study: Frames) -> Figure:
    """Plot how little representations move from task to task, by group; means with 95 % intervals.

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
    bounds: list[Line2D] = []
    heights: list[float] = []
    for panel, name in zip(axes, shown, strict=True):
        own = tasks[tasks[name].notna()]
        drawn = _group_lines(panel, own, groups, "task", name, COSINE)
        panel.set_ylabel(textwrap.fill(STATIONARITY[name], 22))
        _task_axis(panel, int(own["task"].min()), int(own["task"].max()))
        if name == "vertex_cosine":  # the most that a projection allows, once per distinct bound
            bounded = tasks.assign(vertex_bound=parts.numbers(tasks, "vertex_bound")).dropna(subset=["vertex_bound"])
            heights = list(parts.numbers(bounded, "vertex_bound"))
            means = bounded.groupby(["group", "task"])["vertex_bound"].mean()
            for curve in dict.fromkeys(tuple(own.droplevel(0).items()) for _, own in means.groupby(level=0)):
                bounds += panel.plot(*zip(*curve, strict=True), color=parts.FRAME, linestyle=":", linewidth=1.2)
        parts.fit(figure, [panel], drawn, heights)
    for line in bounds[:1]:
        line.set_label("bound of vertex cosine")
    return parts.with_legend(figure, axes, bounds[:1], groups.styles)


def _group_lines(
    axes: Axes,
    table: pd.DataFrame,
    groups: parts.Groups,
    x: str,
    y: str,
    bounds: tuple[float, float] = EVERYWHERE,
) -> pd.DataFrame:
    """Draw one line per group and return their points; at a single x, groups stand side by side."""
    beside = 0.4 / len(groups.styles) if table[x].nunique() == 1 else 0.0
    drawn = []
    for place, (group, style, own) in enumerate(groups.each(table)):
        if len(own):
            rows = own.assign(x=own[x] + beside * (place - (len(groups.styles) - 1) / 2), y=own[y])
            drawn.append(parts.mean_line(axes, rows, group, style, bounds, len(groups.styles)))
    return pd.concat(drawn)


def _task_axis(axes: Axes, first: int, last: int) -> None:
    axes.set_xlabel("task t")
    if first == last:
        axes.set_xlim(first - 0.5, last + 0.5)
    if last - first < 10:
        axes.set_xticks(range(first, last + 1))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))


def plot_pareto(study: Frames, x: str = STORED_BYTES.name, y: str = SERVICE_ACCURACY.name) -> Figure:
    """Plot the groups' means over seeds and the Pareto front, drawn as steps: the best `y` for at most that `x`.

    Only runs with the most tasks are drawn: metrics of different numbers of tasks cannot be compared. The axis of `x`
    begins at 0; costs that differ by less than `LEAST_RATIO` are not worth a plot.
    """
    check_name(y, [metric.name for metric in METRICS.of_matrix()], "metric")
    parts.finished_chains(study.runs)
    for name in (x, y):
        check_name(name, study.runs.columns, "column")
    unit, cost = (1e-6, " (MB)") if x.endswith("_bytes") else (1.0, "")
    groups = parts.Groups.of(parts.longest(study.runs), limit=len(study.runs))
    rows = groups.rows.assign(x=parts.numbers(groups.rows, x) * unit, y=parts.numbers(groups.rows, y))
    rows = rows.dropna(subset=["x", "y"])
    if rows.empty:
        raise InputError(f"no finished run has both {x} and {y}")
    means = line_points(rows, ["group"], METRICS[y].bounds).assign(x=rows.groupby("group")["x"].mean())
    means = means.loc[[group for group in groups.styles if group in means.index]]
    if not traded(means["x"]):
        raise InputError(f"{x} differs by less than {LEAST_RATIO} times between groups: there is nothing to trade")
    if means["mean"].nunique() < 2:
        raise InputError(f"{y} takes one value in all groups: there is nothing to trade")
    front = means[pareto_front(np.column_stack([means["x"], -means["mean"]]))].sort_values(["x", "mean"])
    rest = means.drop(front.index)
    labels = {str(group): f"{place}  {group}" for place, group in enumerate(front.index, start=1)}
    labels |= {str(group): str(group) for group in rest.index} if len(means) <= parts.LIMIT else {}
    words = groups.heading(f", {groups.tasks} tasks", "bars")
    figure, (axes,) = parts.page_panels(1, words, labels.values(), height=3.2)
    steps = [*front["x"], means["x"].max()], [*front["mean"], front["mean"].iloc[-1]]
    axes.step(*steps, where="post", color=parts.FRAME, linewidth=1, zorder=1)
    handles, spans = [], parts.spans(means)
    for group, label in labels.items():
        style, span, place = groups.styles[group], spans[group], float(means["x"][group])
        parts.error_bar(axes, place, span, style)
        handles += axes.plot(place, span[0], label=label, **parts.point_style(style))
    places = front[["x", "mean"]]
    close = (places.diff() <= 0.06 * (means[["x", "mean"]].max() - means[["x", "mean"]].min())).all(axis=1)
    shift = 4  # numbers stand up and left, where no other point is; those of close neighbours are higher
    for number, (spot, aside) in enumerate(zip(places.to_numpy(), close, strict=True), start=1):
        shift = shift + 8 if aside else 4
        axes.annotate(
            str(number), tuple(spot), (-4, shift), textcoords="offset points", fontsize=parts.SMALL, ha="right"
        )
    if len(labels) < len(means):
        label = f"{len(rest)} groups off the front"
        handles += axes.plot(rest["x"], rest["mean"], color="#aaaaaa", marker=".", linestyle="none", label=label)
    axes.set_xlabel((METRICS[x].title if x in METRICS else x) + cost)
    axes.set_xlim(0, 1.05 * means["x"].max())
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    means.loc[~means.index.isin(list(labels)), ["low", "high"]] = np.nan  # they are not drawn
    parts.metric_axis(figure, axes, METRICS[y], means)
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
    words = groups.heading(spread="", end=", tasks that were trained at every number of workers")
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
    return parts.with_legend(figure, axes, [ideal], shown)


def plot_memory(study: Frames) -> Figure:
    """Plot service accuracy, BC and AC over images per class in memory, by group; means with 95 % intervals."""
    return _response_plot(study.runs, MEMORY, bands=True)


def plot_lambda(study: Frames) -> Figure:
    """Plot service accuracy, BC and AC over λ_base: trials and their mean; one group also on the tuning pairs."""
    return _response_plot(study.runs, WEIGHT, bands=False)


def plot_service(study: Frames, field: str | None = None) -> Figure:
    """Plot service accuracy, BC and AC over a numeric config field, by group; means with 95 % intervals.

    The default is the one field that varies; memory and λ_base have plots of their own.
    """
    varied = varied_fields(parts.finished_chains(study.runs))
    fields = [name for name in varied if pd.api.types.is_numeric_dtype(study.runs[name])]
    if field is None and (len(varied) != 1 or not fields or fields[0] in (MEMORY, WEIGHT)):
        raise InputError(f"no single number varies ({', '.join(varied) or 'no field'} does): name a field")
    return _response_plot(study.runs, field or fields[0], bands=True)


def _response_plot(runs: pd.DataFrame, field: str, bands: bool) -> Figure:
    """Plot metrics over a field: means with bands if asked for and if it varies alone, else trials."""
    groups, alone, metrics = _response_groups(runs, field)
    bands, endings, lines, smooth = bands and alone, {"report": ""}, "", False
    if not bands:
        tuned = all(parts.numbers(groups.rows, metric.column("tuning")).notna().any() for metric in metrics)
        endings |= {"tuning": ", tuning pairs"} if tuned and len(groups.styles) == 1 else {}
        smooth = groups.rows[field].nunique() > parts.LIMIT
        lines = f", lines: mean of {NEIGHBOURS} neighbouring trials" if smooth else ", lines: means"
    labels = [group + ending for ending in endings.values() for group in groups.styles]
    known = any(parts.numbers(groups.rows, metric.column(end="low")).notna().any() for metric in metrics)
    words = groups.heading(spread="bands" if bands else "", end=lines, pairs=known)
    figure, axes = parts.page_panels(len(metrics), words, labels, sharey=False)
    values = sorted({float(value) for value in groups.rows[field].dropna()})
    for panel, metric in zip(axes, metrics, strict=True):
        drawn = []
        for pairs, ending in endings.items():
            for group, style, own in groups.each(groups.rows):
                column = metric.column(pairs)
                ends = {f"y{end}": parts.numbers(own, f"{column}{end}") for end in ("", "_low", "_high")}
                rows = own.assign(x=own[field].astype(float), **ends)
                if bands:
                    drawn.append(parts.mean_line(panel, rows, group, style, metric.bounds, len(groups.styles)))
                else:
                    shown = replace(style, dashed=pairs == "tuning", hollow=pairs == "tuning")
                    drawn.append(_trial_line(panel, rows, group + ending, shown, smooth))
        panel.set_xlabel(AXES.get(field, field_title(field)))
        parts.metric_axis(figure, panel, metric, pd.concat(drawn))
        _value_axis(panel, values, alone)
    return parts.with_legend(figure, axes, order=labels)


def _response_groups(runs: pd.DataFrame, field: str) -> tuple[parts.Groups, bool, list[Metric]]:
    """Return the groups in which the field varies, whether it varies alone (not in a sweep), and the known metrics."""
    rows = parts.finished_chains(runs)
    metrics = [metric for metric in RESPONSE_METRICS if parts.numbers(rows, metric.name).notna().any()]
    if not metrics:
        raise InputError(f"no finished run has {' or '.join(metric.name for metric in RESPONSE_METRICS)}")
    if field in varied_fields(rows):
        others = [name for name in varied_fields(runs) if name != "scenario.n_tasks"]
        found = [len(parts.Groups.of(runs, names, len(runs), field).rows) for names in ([field], others)]
        alone = 2 * found[0] > found[1]  # a few trials of a sweep may agree by chance, a few of a grid may have failed
        groups = parts.Groups.of(runs, [field] if alone else others, varied=field)
        if groups.styles:
            return groups, alone, metrics
    raise InputError(f"{field} does not vary among finished runs that are otherwise alike: there is nothing to draw")


def _trial_line(axes: Axes, rows: pd.DataFrame, label: str, style: LineStyle, smooth: bool) -> pd.DataFrame:
    """Draw trials as points, means over their seeds, and a line; return the points."""
    shown: dict[str, Any] = parts.line_style(style)
    points = rows.groupby("trial" if "trial" in rows else "run")[["x", "y"]].mean().sort_values("x")
    dots = {**shown, "linestyle": "none", "markersize": 3.0, "alpha": 0.6}
    axes.plot(points["x"].to_numpy(), points["y"].to_numpy(), **dots)
    means = points.groupby("x")["y"].mean()
    if smooth:
        means = means.rolling(NEIGHBOURS, center=True, min_periods=NEIGHBOURS // 2 + 1).mean()
        shown["markevery"] = []  # its points are no trials
    axes.plot(means.index.to_numpy(), means.to_numpy(), label=label, **shown)
    return points.rename(columns={"y": "mean"}).assign(low=np.nan, high=np.nan)


def _value_axis(axes: Axes, values: Sequence[float], grid: bool) -> None:
    """Make the axis logarithmic if the values span a power of ten; put ticks at the values of a grid."""
    least = min((value for value in values if value > 0), default=0.0)
    wide = values[0] >= 0 and values[-1] >= 10 * least > 0
    if wide and values[0] > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3) if values[-1] < 200 * least else (1,)))
    elif wide:
        axes.set_xscale("symlog", linthresh=least, linscale=0.5)
        axes.set_xlim(-0.3 * least, 1.4 * values[-1])
    if grid and len(values) <= 6:
        axes.set_xticks(values)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
