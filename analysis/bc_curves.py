"""The compatibility matrix of every run as an array, and BC(t), the backward compatibility after each task."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.pivot import check_name
from cl2r.compatibility import backward_compatibility_curve


def cells_of(matrix: pd.DataFrame, pairs: str = "report", metric: str | None = None) -> pd.DataFrame:
    """The rows of `matrix` on the pairs, by one metric; None: every run's first, as its AC and BC are."""
    check_name(pairs, ("report", "tuning"), "pairs")
    chosen = matrix[matrix["pairs"] == pairs]
    known = chosen["metric"] if "metric" in chosen else pd.Series(pd.NA, chosen.index, dtype=object)
    chosen = chosen.assign(metric=known.fillna("accuracy"))  # frames of old knew no other
    if metric is None:
        return chosen[chosen["metric"] == chosen.groupby("run")["metric"].transform("first")]
    check_name(metric, [str(name) for name in chosen["metric"].unique()], "metric")
    return chosen[chosen["metric"] == metric]


def square(cells: pd.DataFrame, values: str = "accuracy") -> npt.NDArray[np.float64]:
    """The cells of one run as a T × T array, NaN where there is none."""
    return cells.pivot(index="t", columns="k", values=values).astype(float).to_numpy()


def matrices(
    matrix: pd.DataFrame, pairs: str = "report", metric: str | None = None
) -> dict[str, npt.NDArray[np.float64]]:
    """C of every run."""
    return {str(run): square(cells) for run, cells in cells_of(matrix, pairs, metric).groupby("run")}


def bc_by_task(matrix: pd.DataFrame, pairs: str = "report", metric: str | None = None) -> pd.DataFrame:
    """BC(t) of every run: run, t = 2..T, BC."""
    rows = [
        (run, t, value)
        for run, cells in matrices(matrix, pairs, metric).items()
        for t, value in enumerate(backward_compatibility_curve(cells)[1:], start=2)
    ]
    return pd.DataFrame(rows, columns=["run", "t", "BC"])
