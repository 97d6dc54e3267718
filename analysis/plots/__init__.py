"""Printed figures of a study, from its frames. Each function gives one figure, or says in a line why there is none.

Colours are told apart with colour blindness, markers and dashes in grey print; text keeps its size on a page.
"""

import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.bc_curves import bc_by_task
from analysis.frames import Frames
from analysis.names import STATIONARITY
from analysis.plots.costs import no_scaling, no_trade, plot_pareto, plot_scaling
from analysis.plots.groups import Groups, absent, figures, longest, measured, no_cells, no_chains, refuse, with_cells
from analysis.plots.matrices import no_matrices, plot_matrices, plot_matrix, plot_mean_matrix
from analysis.plots.parts import FRAME, TEXT, heading, mean_line, page_panels, save, with_legend, zero_line
from analysis.plots.response import no_response, plot_lambda, plot_memory
from analysis.study import Study
from cl2r.errors import InputError

__all__ = [
    "plot_bc_curves",
    "plot_lambda",
    "plot_matrices",
    "plot_matrix",
    "plot_mean_matrix",
    "plot_memory",
    "plot_pareto",
    "plot_scaling",
    "plot_stationarity",
    "write_figures",
]


def plot_bc_curves(study: Frames, pairs: str = "report", metric: str | None = None) -> Figure:
    """BC(t) by group, mean ± one standard deviation over seeds; a panel a number of tasks."""
    refuse(no_cells(study, pairs))
    known = with_cells(study, pairs, metric)
    groups = Groups.of(known, without=["scenario.n_tasks"])
    curves = bc_by_task(study.matrix, pairs, metric).merge(groups.rows[["run", "group", "tasks"]], on="run")
    counts = sorted(int(count) for count in curves["tasks"].unique())
    words = groups.heading(heading(groups.rows, measured(study, known, pairs, metric)))
    figure, axes = page_panels(len(counts), words, groups.looks)
    for panel, tasks in zip(axes, counts, strict=True):
        _group_lines(panel, curves[curves["tasks"] == tasks], groups, "t", "BC")
        zero_line(panel)
        panel.set_title(f"{tasks} tasks", fontsize=TEXT)
        _task_axis(panel, 2, tasks)
    axes[0].set_ylabel("BC(t), backward compatibility")
    return with_legend(figure, axes)


def plot_stationarity(study: Frames) -> Figure:
    """How still representations stand from task to task, by group; mean ± one standard deviation over seeds.

    Runs of one and the same chain, such as those of adapters, are drawn once. Of several numbers of tasks, the largest.
    """
    refuse(_no_drift(study))
    study = longest(_with_drift(study))
    groups = Groups.of(replace(study, runs=_one_a_chain(study)))
    tasks = study.tasks.merge(groups.rows[["run", "group"]].drop_duplicates(), on="run")
    words = groups.heading(heading(groups.rows, f", {groups.tasks} tasks"))
    shown = [name for name in STATIONARITY if name in tasks and tasks[name].notna().any()]
    figure, axes = page_panels(len(shown), words, groups.looks, sharey=False, height=2.2)
    for panel, name in zip(axes, shown, strict=True):
        known = tasks[tasks[name].notna()]
        _group_lines(panel, known, groups, "task", name)
        panel.set_ylabel(textwrap.fill(STATIONARITY[name], 22))
        _task_axis(panel, int(known["task"].min()), int(known["task"].max()))
    bounds = _bounds(axes[-1], tasks) if shown[-1] == "vertex_cosine" else []
    return with_legend(figure, axes, bounds)


def _no_drift(study: Frames) -> str:
    if reason := no_chains(study) or absent(study.tasks, ("run", "task", "key"), "tasks"):
        return reason
    known = _with_drift(study)
    return "tasks have none of " + ", ".join(STATIONARITY) if known.runs.empty else no_chains(known)


def _with_drift(study: Frames) -> Frames:
    """Only the runs that have a figure of stationarity."""
    known = study.tasks.reindex(columns=list(STATIONARITY)).notna().any(axis=1)
    return replace(study, runs=study.runs[study.runs["run"].isin(study.tasks.loc[known, "run"])])


def _one_a_chain(study: Frames) -> pd.DataFrame:
    """The runs, in their order, that are the first with their models."""
    keys = study.tasks["key"].fillna(study.tasks["run"])
    chains = keys.groupby(study.tasks["run"]).agg(" ".join)
    return study.runs[~study.runs["run"].map(chains).duplicated()]


def _bounds(axes: Axes, tasks: pd.DataFrame) -> list[Line2D]:
    """The most that a projection allows: a line for every group with a bound of its own, one for the legend."""
    known = tasks.assign(vertex_bound=figures(tasks, "vertex_bound")).dropna(subset=["vertex_bound"])
    curves = [tuple(group.groupby("task")["vertex_bound"].mean().items()) for _, group in known.groupby("group")]
    look: dict[str, Any] = {"color": FRAME, "linestyle": ":", "linewidth": 1.2}
    lines = [axes.plot(*zip(*curve, strict=True), **look)[0] for curve in dict.fromkeys(curves)]
    for line in lines[:1]:
        line.set_label("bound of vertex cosine")
    return lines[:1]


def _group_lines(axes: Axes, table: pd.DataFrame, groups: Groups, x: str, y: str) -> None:
    """At a single x, groups stand side by side."""
    beside = 0.4 / len(groups.looks) if table[x].nunique() == 1 else 0.0
    for place, (group, look) in enumerate(groups.looks.items()):
        own = table[table["group"] == group]
        if len(own):
            mean_line(axes, own[x] + beside * (place - (len(groups.looks) - 1) / 2), own[y], group, look)


def _task_axis(axes: Axes, first: int, last: int) -> None:
    axes.set_xlabel("task t")
    if first == last:
        axes.set_xlim(first - 0.5, last + 0.5)
    if last - first < 10:
        axes.set_xticks(range(first, last + 1))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))


_FIGURES: dict[str, tuple[Callable[[Study], str], Callable[[Study], Figure]]] = {
    "matrices": (no_matrices, plot_matrices),
    "bc_curves": (no_cells, plot_bc_curves),
    "memory": (lambda study: no_response(study, "memory.per_class"), plot_memory),
    "lambda": (lambda study: no_response(study, "method.lambda_base"), plot_lambda),
    "pareto_ac": (lambda study: no_trade(study, "stored_bytes", "AC"), plot_pareto),
    "pareto_bc": (
        lambda study: no_trade(study, "stored_bytes", "BC"),
        lambda study: plot_pareto(study, y="BC"),
    ),
    "scaling": (no_scaling, plot_scaling),
    "stationarity": (_no_drift, plot_stationarity),
}
"""By the name of its files: why a study has no such figure (empty if it has), and the function that draws it."""


def write_figures(study: Study, folder: str | Path) -> list[Path]:
    """The figures that the study has something for, each as PNG, SVG and PDF."""
    written = []
    for name, (obstacle, draw) in _FIGURES.items():
        figure = None if obstacle(study) else _drawn(draw, study)
        written += save(figure, Path(folder) / name, ("png", "svg", "pdf")) if figure else []
    return written


def _drawn(draw: Callable[[Study], Figure], study: Study) -> Figure | None:
    """None if the figure refuses the study: others may still be drawn."""
    try:
        return draw(study)
    except InputError:
        return None
