"""Printed plots of a study, from its frames. A plot raises InputError if the study has nothing for it."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from analysis.plots.lines import (
    plot_bc_curves,
    plot_lambda,
    plot_memory,
    plot_pareto,
    plot_scaling,
    plot_service,
    plot_stationarity,
)
from analysis.plots.matrices import plot_matrices, plot_matrix, plot_mean_matrix
from analysis.plots.overview import FEW, plot_plane, plot_ranking
from analysis.plots.parts import save
from analysis.plots.sweep import plot_best_by_tasks
from analysis.study import Study
from analysis.sweeps import variant_rows
from cl2r.errors import InputError

__all__ = [
    "plot_bc_curves",
    "plot_best_by_tasks",
    "plot_lambda",
    "plot_matrices",
    "plot_matrix",
    "plot_mean_matrix",
    "plot_memory",
    "plot_pareto",
    "plot_plane",
    "plot_ranking",
    "plot_scaling",
    "plot_service",
    "plot_stationarity",
    "write_figures",
]

KINDS = ("png", "svg", "pdf")
PLOTS: dict[str, Callable[[Study], Figure]] = {
    "plane": plot_plane,
    "ranking": partial(plot_ranking, least=FEW + 1),
    "service": plot_service,
    "matrices": plot_matrices,
    "bc_curves": plot_bc_curves,
    "memory": plot_memory,
    "lambda": plot_lambda,
    "pareto_service": plot_pareto,
    "pareto_bc": partial(plot_pareto, y="BC"),
    "pareto_ac": partial(plot_pareto, y="AC"),
    "scaling": plot_scaling,
    "stationarity": plot_stationarity,
    "best_by_tasks": plot_best_by_tasks,
}
"""The plots of a study by the name of their files."""
log = logging.getLogger(__name__)


def write_figures(study: Study, folder: str | Path) -> list[Path]:
    """Write the plots that the study has something for, each as PNG, SVG and PDF; log why the others are missing."""
    written: list[Path] = []
    shown = study
    if study.specification.get("space"):
        shown = replace(study, runs=variant_rows(study.runs))
    elif study.specification.get("race"):
        from analysis.recommendation import ROUNDS  # Optuna takes a second to import, and few studies are races

        last = [name for name in ROUNDS if (study.finished["variant"] == name).any()][-1:]  # rounds differ in epochs
        shown = replace(study, runs=study.runs[study.runs["variant"].isin(last)])
    for name, draw in PLOTS.items():
        try:
            figure = draw(study if name == "best_by_tasks" else shown)  # which needs the runs that constraints name
        except InputError as error:
            log.debug("no plot %s: %s", name, error)
            continue
        written += save(figure, Path(folder) / name, KINDS)
    return written
