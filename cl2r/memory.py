"""The episodic memory M_t: rows of the training set, a fixed quota per class, never shrinking.

M_{t+1} = M_t ∪ Sampling(D_t). The contribution of D_t is a pure function of D_t, the seed, the quota and (for herding)
φ_t. It is drawn when task t+1 begins, so that the model of task t does not depend on the memory's size.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from cl2r.features import unit_rows
from cl2r.seeding import numpy_stream

Selection = Literal["random", "herding"]
Rows = npt.NDArray[np.int64]
SUPPORT_ROWS = 2048  # images of T_t whose features a link stores, for adapters and diagnostics


def sample_task(
    rows: Rows,
    labels: npt.NDArray[np.int64],
    per_class: int,
    selection: Selection,
    seed: int,
    task: int,
    features: npt.NDArray[np.floating] | None = None,
) -> Rows:
    """Return Sampling(D_t): min(per_class, available) rows of each class, in ascending order of label.

    `labels` and, for herding, `features` belong to `rows`, entry by entry. In each class a smaller quota takes a
    prefix of what a larger one takes.
    """
    rng = numpy_stream(seed, "memory", task)
    chosen = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        if selection == "random":
            order = rng.permutation(len(members))
        elif features is None:
            raise ValueError("herding needs the features of the rows")
        else:
            order = herding_order(features[members], per_class)
        chosen.append(rows[members[order[:per_class]]])
    return np.concatenate(chosen) if chosen else rows[:0]


def herding_order(features: npt.NDArray[np.floating], count: int) -> npt.NDArray[np.int64]:
    """Return iCaRL's order: each next sample brings the mean of the chosen ones nearest to the class mean."""
    unit = unit_rows(features)
    mean, total = unit.mean(0), np.zeros(unit.shape[1])
    free, order = np.ones(len(unit), dtype=bool), []
    for position in range(1, min(count, len(unit)) + 1):
        gap = np.linalg.norm(mean - (total + unit) / position, axis=1)
        best = int(np.argmin(np.where(free, gap, np.inf)))
        free[best] = False
        total += unit[best]
        order.append(best)
    return np.array(order, dtype=np.int64)


def support_rows(new: Rows, memory: Rows, seed: int, task: int) -> Rows:
    """Return S_t, random rows of T_t. Memory has up to half of them, and more only if D_t is small."""
    rng = numpy_stream(seed, "support", task)
    new, memory = rng.permutation(new), rng.permutation(memory)
    remembered = min(len(memory), max(SUPPORT_ROWS // 2, SUPPORT_ROWS - len(new)))
    return np.sort(np.concatenate([memory[:remembered], new[: SUPPORT_ROWS - remembered]]))
