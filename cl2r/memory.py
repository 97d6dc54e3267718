"""The episodic memory M_t: rows of the training set, a fixed quota a class, never shrinking.

M_{t+1} = M_t ∪ Sampling(D_t). What D_t contributes is a pure function of D_t, the seed, the quota and (for herding)
φ_t. It is drawn when task t+1 begins, so that the model of task t does not depend on the memory's size.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from cl2r.seeding import numpy_stream

Selection = Literal["random", "herding"]
Rows = npt.NDArray[np.int64]


def sample_task(
    rows: Rows,
    labels: npt.NDArray[np.int64],
    per_class: int,
    selection: Selection,
    seed: int,
    task: int,
    features: npt.NDArray[np.floating] | None = None,
) -> Rows:
    """Sampling(D_t): min(per_class, available) rows of each class, classes in ascending order of label.

    `labels` and, for herding, `features` belong to `rows`, entry by entry. A smaller quota takes a prefix of what a
    larger one takes, class by class.
    """
    if selection == "herding" and features is None:
        raise ValueError("herding needs the features of the rows")
    rng = numpy_stream(seed, "memory", task)
    chosen = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        if selection == "herding":
            assert features is not None
            order = herding_order(features[members], per_class)
        else:
            order = rng.permutation(len(members))
        chosen.append(rows[members[order[:per_class]]])
    return np.concatenate(chosen) if chosen else rows[:0]


def herding_order(features: npt.NDArray[np.floating], count: int) -> npt.NDArray[np.int64]:
    """iCaRL's order: each next sample brings the mean of the chosen ones nearest to the class mean."""
    unit = np.asarray(features, dtype=np.float64)
    unit = unit / np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    mean, total = unit.mean(0), np.zeros(unit.shape[1])
    free, order = np.ones(len(unit), dtype=bool), []
    for position in range(1, min(count, len(unit)) + 1):
        gap = np.linalg.norm(mean - (total + unit) / position, axis=1)
        best = int(np.argmin(np.where(free, gap, np.inf)))
        free[best] = False
        total += unit[best]
        order.append(best)
    return np.array(order, dtype=np.int64)
