"""The verification of the released CL2R code, including its defect: for comparison with its numbers, never for results.

Pairs of images are drawn at random and appended until the quota of their kind is full. With ten classes a tenth of the
draws is positive, so the negatives are full first: the list starts nine tenths negative and ends all positive. Its
folds are contiguous blocks, so the threshold for a fold is tuned on pairs of nearly the opposite balance. Distances
that know nothing of the labels score 0.107 instead of 0.50, accuracies near 0.56 lose 20 points, and differences
between cells, hence BC and FC, are inflated. `cl2r.data.pairs` and `cl2r.verification` do it right.

As in that code, an image may be paired with itself, a pair may occur twice, and the threshold is searched on a grid of
step 0.001.
"""

import numpy as np
import numpy.typing as npt

from cl2r.errors import InputError
from cl2r.verification import BoolArray, IntArray, Pairs, checked_pairs, fold_numbers, mean_fold_accuracy

THRESHOLDS = np.arange(0, 4, 0.001)
DRAWS = 2**16  # pairs drawn at a time


def draw_official_pairs(
    labels: IntArray, positives: int, negatives: int, folds: int, rng: np.random.Generator
) -> Pairs:
    """Draw pairs of any two images until both quotas are full; they keep the order of drawing, folds are contiguous."""
    if positives < 1 or negatives < 1:
        raise InputError(f"eval.positives = {positives}, eval.negatives = {negatives}: each must be at least 1")
    if not 2 <= folds <= positives + negatives:
        raise InputError(f"eval.folds = {folds}: must be from 2 to the number of pairs, {positives + negatives}")
    if len(labels) == 0 or (labels == labels[0]).all():
        shown = f"the {len(labels)} open images show fewer than 2 classes: no negative pairs can be drawn"
        raise InputError(f"{shown}; add a second class to the open set")
    missing = {True: positives, False: negatives}
    drawn = []
    while any(missing.values()):
        pairs = rng.integers(len(labels), size=(DRAWS, 2))
        same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
        taken = np.sort(np.concatenate([np.flatnonzero(same == kind)[: missing[kind]] for kind in (True, False)]))
        for kind in (True, False):
            missing[kind] -= int((same[taken] == kind).sum())
        drawn.append(pairs[taken])
    query, gallery = np.concatenate(drawn).T
    return Pairs(query, gallery, labels[query] == labels[gallery], contiguous_folds(len(query), folds))


def contiguous_folds(pairs: int, folds: int) -> IntArray:
    """Return the fold of each pair: blocks in the order of the pairs, the first ones longer by one if needed."""
    return np.repeat(np.arange(folds), [pairs // folds + (fold < pairs % folds) for fold in range(folds)])


def grid_correctness(distances: npt.ArrayLike, same: npt.ArrayLike, fold_ids: npt.ArrayLike) -> BoolArray:
    """Return whether each pair is judged rightly by the other folds' best threshold of the grid, the first if tied."""
    d, labels = checked_pairs(distances, same)
    return _judge(d, labels, fold_numbers(labels, fold_ids)[0])


def grid_accuracy(distances: npt.ArrayLike, same: npt.ArrayLike, fold_ids: npt.ArrayLike) -> float:
    """Return the mean over the folds of the accuracy on each fold, with thresholds of the grid."""
    d, labels = checked_pairs(distances, same)
    folds = fold_numbers(labels, fold_ids)[0]
    return mean_fold_accuracy(_judge(d, labels, folds), folds)


def _judge(d: npt.NDArray[np.floating], labels: BoolArray, folds: IntArray) -> BoolArray:
    # The first threshold above d is the first that accepts the pair.
    first = np.searchsorted(THRESHOLDS, d.astype(np.float64, copy=False), side="right")
    count, columns = int(folds.max()) + 1, len(THRESHOLDS) + 1
    cell = folds * columns + first
    accepted = [np.bincount(cell[labels == kind], minlength=count * columns) for kind in (True, False)]
    # An accepted positive is one more right judgement, an accepted negative one less.
    balance = np.cumsum((accepted[0] - accepted[1]).reshape(count, columns)[:, :-1], axis=1)
    best = np.argmax(balance.sum(axis=0) - balance, axis=1)
    right: BoolArray = np.equal(first <= best[folds], labels)
    return right
