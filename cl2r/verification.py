"""1:1 verification: how well distances separate pairs of the same class from pairs of different classes.

Features are compared on the unit sphere, d^2 = |q - g|^2 = 2 - 2 cos(q, g), and a pair is judged "same" if its
distance is below a threshold theta. Accuracy is cross-validated: theta is chosen on all folds but one, exactly (every
place where the accuracy can change is tried), and applied to the fold left out. Folds are stratified by default,
because folds cut from the order of the pairs tune theta on a class balance that the held-out fold does not have.
Accuracies are rounded once from an exact fraction: AC compares them strictly, so ties must stay ties.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from cl2r.errors import InputError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
SMALL = 2**22  # up to so many numbers a float64 copy pays


@dataclass(frozen=True, eq=False)
class Pairs:
    """Rows of the open images, or of templates, to compare; whether each pair shows one class; and its fold."""

    query: IntArray
    gallery: IntArray
    same: BoolArray
    folds: IntArray

    def __len__(self) -> int:
        return len(self.query)


def squared_distances(query: npt.ArrayLike, gallery: npt.ArrayLike, first: int = 0) -> FloatArray:
    """Return d^2 = 2 - 2 cos of each row of `query` with the same row of `gallery`; a zero row has cosine 0.

    `first` is the number of the first row, for error messages.
    """
    q, g = np.asarray(query), np.asarray(gallery)
    if q.ndim != 2 or q.shape != g.shape:
        raise InputError(f"query {q.shape} and gallery {g.shape}: give two 2-d arrays of one shape, one row per pair")
    if q.size <= SMALL and np.issubdtype(q.dtype, np.floating):  # once, not in each of three products
        q, g = q.astype(np.float64, copy=False), g.astype(np.float64, copy=False)
    inner, own_q, own_g = (row_products(a, b) for a, b in ((q, g), (q, q), (g, g)))
    # One root of the product, not two roots: a row against itself then has cosine 1 and distance 0 exactly.
    norms = np.sqrt(own_q * own_g)
    if not np.isfinite(norms).all():
        row = first + int(np.argmin(np.isfinite(norms)))
        raise InputError(f"query or gallery row {row} holds NaN or infinite values: check the features of this pair")
    cosine = np.divide(inner, norms, out=np.zeros_like(inner), where=norms > 0)
    return np.clip(2.0 - 2.0 * cosine, 0.0, 4.0)


def row_products(a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> FloatArray:
    """Return the inner product of each row of `a` with the same row of `b`."""
    products: FloatArray = np.einsum("nd,nd->n", a, b, dtype=np.float64)
    return products


def stratified_folds(same: npt.ArrayLike, folds: int) -> IntArray:
    """Return the fold of each pair: the i-th positive and the i-th negative go to fold i % folds."""
    labels = _labels(same)
    positives = int(labels.sum())
    scarce = min(positives, len(labels) - positives)
    if not 2 <= folds <= scarce:
        given = f"folds={folds} with {positives} same and {len(labels) - positives} different pairs"
        raise InputError(f"{given}: need at least 2 folds and at least one pair of each kind per fold")
    rank = np.where(labels, np.cumsum(labels), np.cumsum(~labels)) - 1
    return (rank % folds).astype(np.int64)


def checked_pairs(distances: npt.ArrayLike, same: npt.ArrayLike) -> tuple[npt.NDArray[np.floating], BoolArray]:
    """Return distances, in their own precision, and labels as arrays.

    Raise InputError unless they have one shape, all distances are finite and there are pairs of both kinds.
    """
    d, labels = np.asarray(distances), _labels(same)
    if not np.issubdtype(d.dtype, np.floating):
        d = d.astype(np.float64)
    if d.shape != labels.shape:
        raise InputError(f"distances {d.shape} and same {labels.shape} differ in shape: give one label per distance")
    finite = np.isfinite(d)
    if not finite.all():
        raise InputError(
            f"the distance of pair {int(np.argmin(finite))} is not finite: check the features of this pair"
        )
    if labels.all() or not labels.any():
        raise InputError(f"same has {int(labels.sum())} positives among {len(d)} pairs: need pairs of both kinds")
    return d, labels


def fold_weights(fold_ids: npt.ArrayLike) -> FloatArray:
    """Return the weight 1 / (F * size of its fold) of each pair: mean fold accuracy = sum(weights * correct)."""
    _, ids, sizes = np.unique(np.asarray(fold_ids), return_inverse=True, return_counts=True)
    weights: FloatArray = 1.0 / (len(sizes) * sizes[ids])
    return weights


def pair_correctness(distances: npt.ArrayLike, same: npt.ArrayLike, folds: int | npt.ArrayLike = 10) -> BoolArray:
    """Return whether the threshold of the other folds judges each pair rightly (`folds`: count or fold ids)."""
    d, labels = checked_pairs(distances, same)
    return _judge(d, labels, _fold_ids(labels, folds))


def verification_accuracy(distances: npt.ArrayLike, same: npt.ArrayLike, folds: int | npt.ArrayLike = 10) -> float:
    """Return the mean over the folds of the accuracy on each fold (`folds`: count or fold ids)."""
    d, labels = checked_pairs(distances, same)
    ids = _fold_ids(labels, folds)
    return mean_fold_accuracy(_judge(d, labels, ids), ids)


def mean_fold_accuracy(correct: BoolArray, fold_ids: IntArray) -> float:
    """Return the mean over the folds 0, 1, ... of the share of pairs judged rightly, rounded once."""
    sizes = np.bincount(fold_ids).tolist()
    hits = np.bincount(fold_ids[correct], minlength=len(sizes)).tolist()
    return float(sum(map(Fraction, hits, sizes), Fraction(0)) / len(sizes))


def tar_at_far(distances: npt.ArrayLike, same: npt.ArrayLike, far: float) -> float:
    """Return the true accept rate at the largest threshold that accepts at most the share `far` of the negatives."""
    return tars_at_fars(distances, same, [far])[0]


def tars_at_fars(distances: npt.ArrayLike, same: npt.ArrayLike, fars: Sequence[float]) -> list[float]:
    """Return `tar_at_far` at each of several false accept rates, from one partition of the negatives."""
    return [np.count_nonzero(rows) / len(rows) for rows in accepted_at_fars(distances, same, fars)]


def accepted_at_fars(distances: npt.ArrayLike, same: npt.ArrayLike, fars: Sequence[float]) -> list[BoolArray]:
    """Return which positives, in their order, are accepted at each false accept rate."""
    d, labels = checked_pairs(distances, same)
    positives, negatives = d[labels], d[~labels]
    for far in fars:
        if not far >= 0:
            raise InputError(f"far={far}: give a false accept rate of 0 or more")
    counts = [_largest_count(far, len(negatives)) if far < 1 else None for far in fars]
    if places := sorted({count for count in counts if count is not None}):
        negatives.partition(places)
    # At theta = the (accepted+1)-th smallest negative, d < theta still leaves that negative and its ties out.
    return [positives < (np.inf if count is None else float(negatives[count])) for count in counts]


def _largest_count(share: float, total: int) -> int:
    """Return the largest n with n / total <= share; int(share * total) is off by one for 0.29 of 100."""
    count = int(share * total) + 1
    while count / total > share:
        count -= 1
    return count


def _judge(distances: npt.NDArray[np.floating], labels: BoolArray, ids: IntArray) -> BoolArray:
    d = distances.astype(np.float64, copy=False)
    order = np.argsort(d)
    ordered, ordered_ids = d[order], ids[order]
    gain = np.where(labels, 1, -1)[order]
    thresholds = np.empty(int(ids.max()) + 1)
    for fold in range(len(thresholds)):
        training = ordered_ids != fold
        thresholds[fold] = _best_threshold(ordered[training], gain[training])
    return np.equal(d < thresholds[ids], labels)


def _best_threshold(ordered: FloatArray, gain: IntArray) -> float:
    """Return the lowest of the most accurate thresholds; `ordered` ascends, `gain` is +1 for positives, else -1."""
    # Accepting the first i pairs changes the number of right judgements by the running sum of the gains.
    balance = np.cumsum(gain)
    balance[:-1][ordered[1:] == ordered[:-1]] = -1  # no threshold separates equal distances
    best = int(np.argmax(balance))
    if balance[best] <= 0:
        return -np.inf
    if best == len(ordered) - 1:
        return np.inf
    lower, upper = float(ordered[best]), float(ordered[best + 1])
    middle = lower + (upper - lower) / 2
    return middle if middle > lower else upper  # neighbouring floats have no midpoint


def _labels(same: npt.ArrayLike) -> BoolArray:
    labels = np.asarray(same)
    if labels.ndim != 1:
        raise InputError(f"same has shape {labels.shape}: give a 1-d array, one label per pair")
    if labels.dtype != np.bool_ and not np.isin(labels, (0, 1)).all():
        raise InputError("same holds values other than 0 and 1: give True for pairs of one class, False otherwise")
    return labels.astype(np.bool_, copy=False)


def fold_numbers(labels: BoolArray, fold_ids: npt.ArrayLike) -> tuple[IntArray, npt.NDArray[np.integer]]:
    """Return each pair's fold as a number 0, 1, ... and the fold id of each number. Raise InputError below 2 folds."""
    given = np.asarray(fold_ids)
    if given.shape != labels.shape or not np.issubdtype(given.dtype, np.integer):
        raise InputError(f"folds is a {given.dtype} array {given.shape}: give one integer per pair, {labels.shape}")
    names, ids = np.unique(given, return_inverse=True)
    if len(names) < 2:
        raise InputError("folds names a single fold: give at least 2, one is held out while the others are fitted")
    return ids.astype(np.int64, copy=False), names


def _fold_ids(labels: BoolArray, folds: int | npt.ArrayLike) -> IntArray:
    if isinstance(folds, int | np.integer):
        return stratified_folds(labels, int(folds))
    ids, names = fold_numbers(labels, folds)
    for kind, members in (("same", labels), ("different", ~labels)):
        inside = np.bincount(ids[members], minlength=len(names))
        if (inside == members.sum()).any():
            fold = names[int(np.argmax(inside))]
            raise InputError(f"fold {fold} holds all '{kind}' pairs: spread them over at least two folds")
    return ids
