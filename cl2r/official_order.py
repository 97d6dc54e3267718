"""The verification of the released CL2R code, defect included: for comparison with its numbers, never for results.

Pairs of images are drawn at random and appended while the quota of their kind lasts. Of ten classes a tenth of the
draws is positive, so the negatives are full first, the list starts nine tenths negative and ends positive throughout.
Its folds are contiguous blocks: the threshold for a fold is tuned on pairs of nearly the opposite balance. Distances
that know nothing of the labels score 0.107 instead of 0.50, accuracies near 0.56 lose 20 points, and differences
between cells, BC and FC with them, are inflated. `cl2r.data.pairs` and `cl2r.verification` do it right.

Here, too, an image may meet itself, a pair may come twice, and the threshold is sought on a grid of step 0.001.
"""

import numpy as np
import numpy.typing as npt

from cl2r.data.dataset import Labels, Pairs
from cl2r.errors import InputError
from cl2r.verification import BoolArray, IntArray, checked_pairs, mean_fold_accuracy

THRESHOLDS = np.arange(0, 4, 0.001)
DRAWS = 2**16
"""Pairs drawn at a time."""


def draw_official_pairs(labels: Labels, positives: int, negatives: int, folds: int, rng: np.random.Generator) -> Pairs:
    """Pairs of any two images in the order of drawing them, until both quotas are full; folds are contiguous."""
    _check_request(labels, positives, negatives, folds)
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


def contiguous_folds(pairs: int, folds: int) -> Labels:
    """Fold of each pair: blocks of equal size in the order of the pairs, the first ones longer by one if need be."""
    return np.repeat(np.arange(folds), [pairs // folds + (fold < pairs % folds) for fold in range(folds)])


def grid_correctness(distances: npt.ArrayLike, same: npt.ArrayLike, fold_ids: npt.ArrayLike) -> BoolArray:
    """Whether each pair is judged rightly by the first of the other folds' best thresholds of the grid."""
    d, labels = checked_pairs(distances, same)
    return _judge(d, labels, _fold_numbers(labels, fold_ids))


def grid_accuracy(distances: npt.ArrayLike, same: npt.ArrayLike, fold_ids: npt.ArrayLike) -> float:
    """Mean over the folds of the accuracy on each fold, with the thresholds of the grid."""
    d, labels = checked_pairs(distances, same)
    folds = _fold_numbers(labels, fold_ids)
    return mean_fold_accuracy(_judge(d, labels, folds), folds)


def _judge(d: npt.NDArray[np.float64], labels: BoolArray, folds: IntArray) -> BoolArray:
    first = np.searchsorted(THRESHOLDS, d, side="right")  # the first threshold above d, so the first that accepts
    count, columns = int(folds.max()) + 1, len(THRESHOLDS) + 1
    cell = folds * columns + first
    accepted = [np.bincount(cell[labels == kind], minlength=count * columns) for kind in (True, False)]
    # An accepted positive is one more right judgement, an accepted negative one less.
    balance = np.cumsum((accepted[0] - accepted[1]).reshape(count, columns)[:, :-1], axis=1)
    best = np.argmax(balance.sum(axis=0) - balance, axis=1)
    right: BoolArray = np.equal(first <= best[folds], labels)
    return right


def _fold_numbers(labels: BoolArray, fold_ids: npt.ArrayLike) -> IntArray:
    given = np.asarray(fold_ids)
    if given.shape != labels.shape or not np.issubdtype(given.dtype, np.integer):
        raise InputError(f"fold_ids is a {given.dtype} array {given.shape}: give one integer per pair {labels.shape}")
    names, numbers = np.unique(given, return_inverse=True)
    if len(names) < 2:
        raise InputError("fold_ids names a single fold: give at least 2, one is held out while the others are fitted")
    return numbers.astype(np.int64, copy=False)


def _check_request(labels: Labels, positives: int, negatives: int, folds: int) -> None:
    if positives < 1 or negatives < 1:
        raise InputError(f"eval.positives = {positives}, eval.negatives = {negatives}: each must be at least 1")
    if not 2 <= folds <= positives + negatives:
        raise InputError(f"eval.folds = {folds}: must be from 2 to the number of pairs, {positives + negatives}")
    if len(labels) == 0 or (labels == labels[0]).all():
        raise InputError(f"the {len(labels)} open images show fewer than 2 classes: no negative pairs can be drawn")
