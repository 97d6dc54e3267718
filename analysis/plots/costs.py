"""What compatibility costs: metrics against stored bytes with their front, and speed by the number of workers."""

from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.frames import Frames
from analysis.fronts import non_dominated
from analysis.joined import concat
from analysis.names import METRIC_TITLES
from analysis.pivot import METRICS
from analysis.plots.groups import LIMIT, Groups, absent, figures, longest, no_chains, refuse
from analysis.plots.parts import (
    FRAME,
    SMALL,
    error_bar,
    heading,
    line_look,
    page_panels,
    share_axis,
    with_legend,
    zero_line,
)
from analysis.study import Study
from analysis.style import Look
from cl2r.errors import nearest

COST_WORDS = {
    "stored_bytes": ("stored after the last task (MB)", 1e-6),
    "train_seconds": ("training of the chain (s)", 1.0),
    "adapter_flops": ("FLOPs a mapped vector", 1.0),
    "gallery_items_touched": ("gallery vectors written anew", 1.0),
}
SPEED = ["workers", "images", "seconds"]
"""Columns of `tasks` that say how fast a task was trained."""


def plot_pareto(study: Frames, x: str = "stored_bytes", y: str = "AC") -> Figure:
    """Groups' means over seeds; the steps are the front: where no group has more of `y` for as little `x`.

    Of several numbers of tasks, the largest: metrics of different ones do not compare.
    """
    refuse(no_trade(study, x, y))
    groups, means = _all_groups(study), _means(study, x, y)
    front = means[non_dominated(np.column_stack([means["x"], -means["y"]]))].sort_values(["x", "y"])
    rest = means.drop(front.index).sort_values("y", ascending=False)
    labels = {str(group): f"{place}  {group}" for place, group in enumerate(front.index, start=1)}
    labels |= {str(group): str(group) for group in rest.index} if len(means) <= LIMIT else {}
    words = heading(groups.rows, f", {groups.tasks} tasks", bands=False)
    words += "" if means["sd"].isna().all() else ", bars ± one standard deviation"
    figure, (axes,) = page_panels(1, words, labels.values(), height=3.2)
    steps = [*front["x"], means["x"].max()], [*front["y"], front["y"].iloc[-1]]
    axes.step(*steps, where="post", color=FRAME, linewidth=1, zorder=1)
    rows = means.loc[list(labels)].itertuples(name=None)
    handles = [_point(axes, cost, gain, sd, labels[group], groups.looks[group]) for group, cost, gain, sd in rows]
    _number(axes, front, means)
    if len(labels) < len(means):
        label = f"{len(rest)} groups off the front"
        handles += axes.plot(rest["x"], rest["y"], color="#aaaaaa", marker=".", linestyle="none", label=label)
    axes.set(xlabel=COST_WORDS.get(x, (x, 1))[0], ylabel=METRIC_TITLES[y])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    if y in ("BC", "FC"):
        zero_line(axes)
    else:
        share_axis(axes)
    return with_legend(figure, [], handles)


def _point(axes: Axes, x: float, y: float, deviation: float, label: str, look: Look) -> Line2D:
    if not np.isnan(deviation):
        error_bar(axes, x, y, deviation, look)
    own = {**line_look(look), "linestyle": "none"}
    if look.dashed:
        own["markeredgecolor"] = "black"  # a point shows no dashes
    return axes.plot(x, y, label=label, **own)[0]


def _number(axes: Axes, front: pd.DataFrame, means: pd.DataFrame) -> None:
    """Up and left of a point on the front there is no other; the number of a close neighbour stands higher."""
    places, reach = front[["x", "y"]], means[["x", "y"]].max() - means[["x", "y"]].min()
    close = (places.diff() <= 0.04 * reach).all(axis=1)
    shift = 4
    for number, (point, aside) in enumerate(zip(places.to_numpy(), close, strict=True), start=1):
        shift = shift + 8 if aside else 4
        axes.annotate(str(number), tuple(point), (-4, shift), textcoords="offset points", fontsize=SMALL, ha="right")


def _all_groups(study: Frames) -> Groups:
    return Groups.of(longest(study), limit=len(study.runs))


def _means(study: Frames, x: str, y: str) -> pd.DataFrame:
    """By group: x in the unit of its axis, y, and the deviation of y over seeds."""
    rows = _all_groups(study).rows
    rows = rows.assign(x=figures(rows, x) * COST_WORDS.get(x, ("", 1.0))[1], y=figures(rows, y))
    by_group = rows.dropna(subset=["x", "y"]).groupby("group", sort=False)
    return pd.DataFrame({"x": by_group["x"].mean(), "y": by_group["y"].mean(), "sd": by_group["y"].std()})


def no_trade(study: Frames, x: str, y: str) -> str:
    """Why there is nothing to trade `y` for `x`; empty if there is."""
    if y not in METRICS:
        return f"unknown metric {y!r}{nearest(y, METRICS)}"
    if reason := no_chains(study):
        return reason
    for name in (x, y):
        if name not in study.runs:
            return f"unknown column {name!r}{nearest(name, map(str, study.runs.columns))}"
    means = _means(study, x, y)
    if means.empty:
        return f"no finished run has both {x} and {y}"
    flat = [name for name, column in ((x, "x"), (y, "y")) if means[column].nunique() < 2]
    return f"{' and '.join(flat)} take one value in all groups: there is nothing to trade" if flat else ""


def plot_scaling(study: Study, *others: Study) -> Figure:
    """Images a second by the number of workers, and the share of it that ideal scaling from the fewest would give.

    `others` may hold the same runs, trained by other numbers of workers into another storage.
    """
    if others:  # of equal runs `concat` keeps one, which is all that results need, but not speed
        tasks = pd.concat([own.tasks for own in (study, *others)], ignore_index=True)
        study = replace(concat([study, *others]), tasks=tasks)
    refuse(no_scaling(study))
    groups, speeds = Groups.of(study), _speeds(study)
    looks = {group: look for group, look in groups.looks.items() if group in set(speeds["group"])}
    words = groups.heading(heading(groups.rows, bands=False) + ", tasks that were trained at every number of workers")
    figure, axes = page_panels(2, words, [*looks, "ideal"], sharey=False)
    for panel, column in zip(axes, ("rate", "efficiency"), strict=True):
        for group, look in looks.items():
            own = speeds[speeds["group"] == group]
            panel.plot(own["workers"], own[column], label=group, **line_look(look))
        panel.set(xlabel="workers", xticks=sorted(speeds["workers"].unique()), ylim=(0, None))
    axes[0].set_ylabel("training speed (images/s)")
    axes[1].set_ylabel("efficiency, share of ideal speed")
    ideal = axes[1].axhline(1, color=FRAME, linestyle=":", linewidth=1.2, label="ideal", zorder=1)
    return with_legend(figure, axes, [ideal])


def no_scaling(study: Frames) -> str:
    """Why nothing can be said about workers; empty if it can."""
    if reason := no_chains(study) or absent(study.tasks, ("run", "task", "reused", *SPEED), "tasks"):
        return reason
    if len(_speeds(study)):
        return ""
    return "no group trained the same task with two numbers of workers; give plot_scaling several studies"


def _speeds(study: Frames) -> pd.DataFrame:
    """By group and number of workers: images a second over the tasks that each number trained, and efficiency."""
    groups = Groups.of(study)
    tasks = study.tasks.assign(**{name: figures(study.tasks, name) for name in SPEED}).dropna(subset=SPEED)
    trained = tasks[~tasks["reused"].astype("boolean").fillna(True) & (tasks["seconds"] > 0)]
    trained = trained.merge(groups.rows[["run", "group"]].drop_duplicates(), on="run")
    counts = trained.groupby("group")["workers"].transform("nunique")
    common = trained.groupby(["group", "task"])["workers"].transform("nunique") == counts
    sums = trained[common & (counts > 1)].groupby(["group", "workers"])[["images", "seconds"]].sum()
    speeds = (sums["images"] / sums["seconds"]).rename("rate").reset_index()
    first = speeds.groupby("group")[["workers", "rate"]].transform("first")  # the fewest: workers ascend
    ideal = first["rate"] * speeds["workers"] / first["workers"]
    return speeds.assign(efficiency=speeds["rate"] / ideal).astype({"workers": int})
