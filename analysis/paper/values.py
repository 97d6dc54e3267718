"""Metrics of finished runs by method, number of tasks, memory and seed, for the paper's tables."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.groups import check_cells, one_budget
from analysis.matrices import matrices
from analysis.tables.runs import counted_runs
from cl2r.compatibility import backward_compatibility_curve

CELL = ["method.name", "tasks_planned", "memory.per_class"]


@dataclass(frozen=True, eq=False)
class Values:
    """`rows` has one row per finished run with all its metrics, `planned` one row per run of any status.

    Besides the columns of `runs`, `rows` has C[1,1], C[T,T], C[T,1] and the mean over t of BC(t).
    """

    rows: pd.DataFrame
    planned: pd.DataFrame

    @classmethod
    def of_frames(cls, frames: Mapping[str, pd.DataFrame]) -> "Values":
        """Read the frames of a study. Raise InputError if runs of one cell differ in more than their seed."""
        one_budget(frames["runs"])
        runs = counted_runs(frames["runs"])
        # Tasks that are given by their sizes are counted once they have been trained.
        tasks = runs["scenario.n_tasks"].astype("Float64").fillna(runs["tasks"].astype("Float64"))
        # Plain objects and floats, because cells are looked up many times and nullable columns are slow.
        numbers = {"tasks_planned": tasks, "memory.per_class": runs["memory.per_class"]}
        plain = {name: column.astype("Float64").astype(float) for name, column in numbers.items()}
        planned = runs.assign(**{"method.name": runs["method.name"].astype(object)}, **plain)
        rows = planned[planned["counted"]]
        check_cells(rows, CELL)
        cells = [
            (run, c[0, 0], c[-1, -1], c[-1, 0], backward_compatibility_curve(c)[1:].mean() if len(c) > 1 else np.nan)
            for run, c in matrices(frames["matrix"]).items()
        ]
        measured = pd.DataFrame(cells, columns=["run", "initial", "self_test", "cross_test", "mean_BC_t"])
        return cls(rows.merge(measured, on="run", how="left"), planned)

    @property
    def methods(self) -> list[str]:
        """All methods in the order of the study."""
        return [str(name) for name in self.planned["method.name"].unique()]

    @property
    def counts(self) -> list[int]:
        """Numbers of tasks, ascending."""
        return sorted(int(count) for count in self.planned["tasks_planned"].dropna().unique())

    @property
    def sizes(self) -> list[int]:
        """Images per class in memory, ascending."""
        return sorted(int(size) for size in self.planned["memory.per_class"].dropna().unique())

    def of(self, metric: str, method: str, tasks: int | None = None, memory: int | None = None) -> pd.Series:
        """Return a metric by seed, empty if there is none; None stands for any number of tasks, or any memory."""
        chosen = _select(self.rows, method, tasks, memory)
        if metric not in chosen:
            return pd.Series(dtype=float)
        return chosen.set_index("seed")[metric].astype(float).dropna()

    def missing_text(self, method: str, tasks: int, memory: int | None = None) -> str:
        """Return what a cell without a value shows."""
        planned = _select(self.planned, method, tasks, memory)
        return "failed" if len(planned) and not planned["counted"].any() else "–"


def _select(rows: pd.DataFrame, method: str, tasks: int | None, memory: int | None) -> pd.DataFrame:
    chosen = rows["method.name"] == method
    if tasks is not None:
        chosen &= rows["tasks_planned"] == tasks
    if memory is not None:
        chosen &= rows["memory.per_class"] == memory
    return rows[chosen]
