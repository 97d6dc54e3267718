"""Compatibility matrices as arrays, BC(t) after each task, and the Pareto front of several costs."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.groups import check_name
from cl2r.compatibility import backward_compatibility_curve

Floats = npt.NDArray[np.float64]


def cells_of(matrix: pd.DataFrame, pairs: str = "report", metric: str | None = None) -> pd.DataFrame:
    """Return the rows of `matrix` on the pairs by one metric; None: every run's first, on which AC and BC are based."""
    check_name(pairs, ("report", "tuning"), "pairs")
    chosen = matrix[matrix["pairs"] == pairs]
    known = chosen["metric"] if "metric" in chosen else pd.Series(pd.NA, chosen.index, dtype=object)
    chosen = chosen.assign(metric=known.fillna("accuracy"))  # older frames had no other metric
    if metric is None:
        return chosen[chosen["metric"] == chosen.groupby("run")["metric"].transform("first")]
    check_name(metric, [str(name) for name in chosen["metric"].unique()], "metric")
    return chosen[chosen["metric"] == metric]


def square(cells: pd.DataFrame, values: str = "accuracy") -> Floats:
    """Return the cells of one run as a T × T array, NaN where there is no cell."""
    return cells.pivot(index="t", columns="k", values=values).astype(float).to_numpy()


def matrices(matrix: pd.DataFrame, pairs: str = "report", metric: str | None = None) -> dict[str, Floats]:
    """Return the matrix C of every run."""
    return {str(run): square(cells) for run, cells in cells_of(matrix, pairs, metric).groupby("run")}


def bc_by_task(matrix: pd.DataFrame, pairs: str = "report", metric: str | None = None) -> pd.DataFrame:
    """Return BC(t) of every run: run, t = 2..T, BC."""
    rows = [
        (run, t, value)
        for run, cells in matrices(matrix, pairs, metric).items()
        for t, value in enumerate(backward_compatibility_curve(cells)[1:], start=2)
    ]
    return pd.DataFrame(rows, columns=["run", "t", "BC"])


def pareto_front(costs: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return which rows (lower is better) no other row dominates, by being nowhere larger and somewhere smaller."""
    table = np.asarray(costs, dtype=np.float64)
    if table.ndim != 2:
        raise ValueError(f"costs have {table.ndim} dimensions; rows × objectives were expected")
    no_worse = (table[:, None] <= table[None]).all(axis=2)
    better = (table[:, None] < table[None]).any(axis=2)
    return np.asarray(~(no_worse & better).any(axis=0), dtype=np.bool_)


LEAST_RATIO = 2  # of the largest to the smallest cost that a plot of a trade-off needs


def traded(costs: pd.Series) -> bool:
    """Return whether costs differ enough for a plot of what they buy."""
    return bool(costs.max() >= LEAST_RATIO * costs.min() and costs.nunique() > 1)
