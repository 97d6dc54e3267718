"""What finished runs measured, by method, number of tasks, memory and seed: what the paper's tables are made of."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.bc_curves import bc_by_task, matrices
from analysis.tables import check_cells, counted_runs, one_budget
from cl2r.compatibility import backward_compatibility_curve

CELL = ["method.name", "tasks_planned", "memory.per_class"]


@dataclass(frozen=True, eq=False)
class Values:
    """`rows`: a row a finished run with all its metrics; `planned`: a row a run, whatever came of it."""

    rows: pd.DataFrame
    planned: pd.DataFrame

    @classmethod
    def of_frames(cls, frames: Mapping[str, pd.DataFrame]) -> "Values":
        """From the frames of a study. Runs of a cell may differ in their seed only."""
        one_budget(frames["runs"])
        planned = _with_tasks(counted_runs(frames["runs"]))
        rows = planned[planned["counted"]]
        check_cells(rows, CELL)
        return cls(rows.merge(_from_matrix(frames["matrix"]), on="run", how="left"), planned)

    @property
    def methods(self) -> list[str]:
        """All methods, in the order of the study."""
        return [str(name) for name in self.planned["method.name"].unique()]

    @property
    def counts(self) -> list[int]:
        """Numbers of tasks, ascending."""
        return sorted(int(count) for count in self.planned["tasks_planned"].dropna().unique())

    @property
    def sizes(self) -> list[int]:
        """Images a class in memory, ascending."""
        return sorted(int(size) for size in self.planned["memory.per_class"].dropna().unique())

    def of(self, metric: str, method: str, tasks: int | None = None, memory: int | None = None) -> pd.Series:
        """A metric by seed; empty if there is none. None: whatever the number of tasks, or the memory."""
        chosen = _select(self.rows, method, tasks, memory)
        if metric not in chosen:
            return pd.Series(dtype=float)
        return chosen.set_index("seed")[metric].astype(float).dropna()

    def hole(self, method: str, tasks: int, memory: int | None = None) -> str:
        """What to say where there is no figure."""
        planned = _select(self.planned, method, tasks, memory)
        return "failed" if len(planned) and not planned["counted"].any() else "–"

    def fewer(self, found: pd.Series) -> str:
        """A remark, if a mean is over fewer seeds than the study has."""
        seeds = self.planned["seed"].nunique()
        return f" ({len(found)} of {seeds})" if len(found) < seeds else ""


def _select(rows: pd.DataFrame, method: str, tasks: int | None, memory: int | None) -> pd.DataFrame:
    chosen = rows["method.name"] == method
    if tasks is not None:
        chosen &= rows["tasks_planned"] == tasks
    if memory is not None:
        chosen &= rows["memory.per_class"] == memory
    return rows[chosen]


def _with_tasks(runs: pd.DataFrame) -> pd.DataFrame:
    """T as the config has it; tasks given by their sizes are counted when they have been trained.

    Plain columns of names and floats: cells are looked up many times, and nullable ones are slow.
    """
    planned = runs["scenario.n_tasks"].astype("Float64").fillna(runs["tasks"].astype("Float64"))
    plain = {"method.name": runs["method.name"].astype(object)}
    for name, column in {"tasks_planned": planned, "memory.per_class": runs["memory.per_class"]}.items():
        plain[name] = column.astype("Float64").astype(float)
    return runs.assign(**plain)


def _from_matrix(matrix: pd.DataFrame) -> pd.DataFrame:
    """C[1,1], the last model's self-test and its cross-test with the first, and the mean over t of BC(t)."""
    rows = [
        {
            "run": run,
            "initial": cells[0, 0],
            "self_test": cells[-1, -1],
            "cross_test": cells[-1, 0],
            "mean_BC_t": backward_compatibility_curve(cells)[1:].mean() if len(cells) > 1 else np.nan,
        }
        for run, cells in matrices(matrix).items()
    ]
    return pd.DataFrame(rows, columns=["run", "initial", "self_test", "cross_test", "mean_BC_t"])


def bc_curves(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """BC(t) of every finished run: method, tasks, seed, t = 2..T, BC."""
    rows = Values.of_frames(frames).rows[["run", "method.name", "tasks_planned", "seed"]]
    rows = rows.rename(columns={"method.name": "method", "tasks_planned": "tasks"})
    return bc_by_task(frames["matrix"]).merge(rows, on="run")[["method", "tasks", "seed", "t", "BC"]]
