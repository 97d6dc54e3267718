"""The front of several costs: what no other choice beats. Tables, figures and the report draw it from here."""

import numpy as np
import numpy.typing as npt


def non_dominated(costs: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Which rows (choices × objectives, all to be small) no other row beats in one cost without losing in another.

    Equal rows do not beat each other; nothing beats, or is beaten by, a row with NaN.
    """
    table = np.asarray(costs, dtype=np.float64)
    if table.ndim != 2:
        raise ValueError(f"costs have {table.ndim} dimensions; rows × objectives were expected")
    no_worse = (table[:, None] <= table[None]).all(axis=2)
    better = (table[:, None] < table[None]).any(axis=2)
    return np.asarray(~(no_worse & better).any(axis=0), dtype=np.bool_)
