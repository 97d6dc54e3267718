# ruff: noqa: N803, N806 (C and T are the paper's symbols)
"""The compatibility matrix and its summaries AC (Eq. 4), BC (Eq. 5) and FC (Eq. 6), with bootstrap intervals.

C[t, k] is the score of queries by model t against a gallery by model k, for k <= t; above the diagonal it is
undefined (NaN when built here, ignored when read). Indices count from zero. Model t is compatible with model
k when C[t, k] > C[k, k]: new queries on the old gallery beat the old model on its own. AC is thus a sign test
per cell and says nothing of noise, hence the paired bootstrap over the pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cl2r.errors import InputError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

DRAWS_AT_ONCE = 6_000_000  # pairs drawn in one go: 1000 draws of 6000 pairs take about 100 MB


@dataclass(frozen=True, eq=False)
class Intervals:
    """Percentile intervals of cells, AC, BC and FC; `compatible` is P(cell compatible), NaN where k >= t."""

    level: float
    low: FloatArray
    high: FloatArray
    compatible: FloatArray
    ac: tuple[float, float]
    bc: tuple[float, float]
    fc: tuple[float, float]


def compatibility_matrix(value: Callable[[int, int], float], T: int) -> FloatArray:
    """The T x T matrix of value(t, k) for k <= t, NaN above the diagonal."""
    if T < 1:
        raise InputError(f"T={T}: a compatibility matrix needs at least one task")
    C = np.full((T, T), np.nan)
    for t, k in zip(*np.tril_indices(T), strict=True):
        C[t, k] = value(int(t), int(k))
    return C


def empirical_compatibility(C: npt.ArrayLike, ties: bool = False) -> BoolArray:
    """Whether each cell k < t fulfils C[t, k] > C[k, k] (>= with `ties`); False elsewhere."""
    return _compatible(_checked(C), ties)


def average_compatibility(C: npt.ArrayLike, ties: bool = False) -> float:
    """AC: the share of compatible cells among k < t; NaN for a single task."""
    return float(_ac(_checked(C), ties))


def backward_compatibility(C: npt.ArrayLike) -> float:
    """BC: mean over k < T of C[T, k] - C[k, k]; NaN for a single task."""
    return float(_bc(_checked(C)))


def backward_compatibility_curve(C: npt.ArrayLike) -> FloatArray:
    """BC(t) after each task: NaN after the first, BC after the last."""
    checked = _checked(C)
    return np.array([float(_bc(checked[:t, :t])) for t in range(1, len(checked) + 1)])


def forward_compatibility(C: npt.ArrayLike) -> float:
    """FC: mean over k >= 2 of C[k, k-1] - C[k, k]; NaN for a single task."""
    return float(_fc(_checked(C)))


def mean_accuracy(C: npt.ArrayLike) -> float:
    """Mean of the lower triangle with the diagonal: the average multi-model accuracy."""
    checked = _checked(C)
    return float(checked[np.tril_indices(len(checked))].mean())


def bootstrap_matrices(
    correct: npt.ArrayLike,
    same: npt.ArrayLike,
    weights: npt.ArrayLike,
    T: int,
    samples: int = 1000,
    *,
    rng: np.random.Generator,
) -> FloatArray:
    """Matrices (samples, T, T) of accuracies on pairs drawn with replacement.

    `correct` (cells, N) tells which pairs each cell of the lower triangle (np.tril_indices(T) order) judged
    rightly; `weights` are the fold weights of the pairs. One draw serves all cells (paired), and positives
    and negatives are drawn apart. Thresholds stay as fitted on the full data: a draw only re-weights the
    judgements. The spread thus lacks the noise of the thresholds: on 6000 simulated pairs it was about 10 %
    too small for a cell, 10 to 25 % for the difference of two cells (a refit erred as much the other way).
    """
    rights, labels, w = _checked_judgements(correct, same, weights, T, samples)
    chunk = max(1, DRAWS_AT_ONCE // len(labels))
    sizes = [min(chunk, samples - start) for start in range(0, samples, chunk)]
    matrices = np.full((samples, T, T), np.nan)
    matrices[:, *np.tril_indices(T)] = np.concatenate([_resampled(rights, labels, w, size, rng) for size in sizes])
    return matrices


def _resampled(
    rights: BoolArray, labels: BoolArray, w: FloatArray, samples: int, rng: np.random.Generator
) -> FloatArray:
    """Accuracy of every cell in every draw (samples, cells)."""
    counts = _draw_counts(labels, samples, rng)
    totals, mass = np.zeros((samples, len(rights))), np.zeros((samples, 1))
    # Per distinct weight the product sums whole numbers, exact in float32: equal cells stay equal in every draw.
    for weight in np.unique(w):
        members = w == weight
        totals += weight * (counts[:, members] @ rights[:, members].T.astype(np.float32)).astype(np.float64)
        mass += weight * counts[:, members].sum(axis=1, keepdims=True, dtype=np.float64)
    accuracies: FloatArray = totals / mass
    return accuracies


def intervals(C: npt.ArrayLike, boot: npt.ArrayLike, level: float = 0.95, ties: bool = False) -> Intervals:
    """Percentile intervals of C and its summaries from the bootstrap matrices `boot` of C."""
    matrices = _checked(boot, ndim=3)
    if matrices.shape[1:] != _checked(C).shape:
        raise InputError(f"boot {matrices.shape} does not match C {np.shape(C)}: give the bootstrap of this matrix")
    if not 0 < level < 1:
        raise InputError(f"level={level}: give a confidence level between 0 and 1")
    T = matrices.shape[-1]
    low, high = (np.full((T, T), np.nan) for _ in range(2))
    cells = np.tril_indices(T)
    low[cells], high[cells] = _percentiles(matrices[:, *cells], level)
    compatible = np.where(np.tri(T, k=-1, dtype=np.bool_), _compatible(matrices, ties).mean(axis=0), np.nan)
    ac, bc, fc = (_interval(values, level) for values in (_ac(matrices, ties), _bc(matrices), _fc(matrices)))
    return Intervals(level=level, low=low, high=high, compatible=compatible, ac=ac, bc=bc, fc=fc)


# The kernels take (..., T, T) and give (...), so that one call serves a matrix or a whole bootstrap.


def _self_tests(C: FloatArray) -> FloatArray:
    return np.diagonal(C, axis1=-2, axis2=-1)


def _compatible(C: FloatArray, ties: bool) -> BoolArray:
    own = _self_tests(C)[..., None, :]
    better: BoolArray = np.greater_equal(C, own) if ties else np.greater(C, own)
    return better & np.tri(C.shape[-1], k=-1, dtype=np.bool_)


def _ac(C: FloatArray, ties: bool = False) -> FloatArray:
    T = C.shape[-1]
    if T == 1:
        return np.full(C.shape[:-2], np.nan)
    return np.asarray(_compatible(C, ties).sum(axis=(-2, -1)) / (T * (T - 1) / 2))


def _bc(C: FloatArray) -> FloatArray:
    if C.shape[-1] == 1:
        return np.full(C.shape[:-2], np.nan)
    return np.asarray((C[..., -1, :-1] - _self_tests(C)[..., :-1]).mean(axis=-1))


def _fc(C: FloatArray) -> FloatArray:
    if C.shape[-1] == 1:
        return np.full(C.shape[:-2], np.nan)
    previous_gallery = np.diagonal(C, offset=-1, axis1=-2, axis2=-1)
    return np.asarray((previous_gallery - _self_tests(C)[..., 1:]).mean(axis=-1))


def _checked(C: npt.ArrayLike, ndim: int = 2) -> FloatArray:
    array = np.asarray(C, dtype=np.float64)
    if array.ndim != ndim or array.shape[-1] != array.shape[-2] or array.size == 0:
        raise InputError(f"compatibility matrix has shape {array.shape}: give a square matrix, one row per task")
    missing = np.argwhere(np.isnan(array) & np.tri(array.shape[-1], dtype=np.bool_))
    if len(missing):
        t, k = missing[0][-2:]
        raise InputError(f"compatibility matrix is NaN at query model {t}, gallery model {k}: evaluate this cell first")
    return array


def _checked_judgements(
    correct: npt.ArrayLike, same: npt.ArrayLike, weights: npt.ArrayLike, T: int, samples: int
) -> tuple[BoolArray, BoolArray, FloatArray]:
    rights, labels = np.asarray(correct, dtype=np.bool_), np.asarray(same, dtype=np.bool_)
    w = np.asarray(weights, dtype=np.float64)
    if T < 1 or samples < 1:
        raise InputError(f"T={T}, samples={samples}: give at least one task and one bootstrap sample")
    if labels.ndim != 1 or w.shape != labels.shape or rights.shape != (T * (T + 1) // 2, len(labels)):
        raise InputError(
            f"correct {rights.shape}, same {labels.shape}, weights {w.shape}: "
            f"give {T * (T + 1) // 2} cells for T={T}, and one label and one weight per pair"
        )
    if not (w > 0).all() or not np.isfinite(w).all():
        raise InputError("weights must all be positive and finite: use fold_weights of the folds")
    return rights, labels, w


def _draw_counts(labels: BoolArray, samples: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """How often each pair occurs in each of the draws (samples, N); each kind of pair keeps its number."""
    counts = np.zeros((samples, len(labels)), dtype=np.float32)
    for members in (np.flatnonzero(labels), np.flatnonzero(~labels)):
        size = len(members)
        if size:
            drawn = rng.integers(0, size, (samples, size)) + size * np.arange(samples)[:, None]
            counts[:, members] = np.bincount(drawn.ravel(), minlength=samples * size).reshape(samples, size)
    return counts


def _percentiles(values: FloatArray, level: float) -> FloatArray:
    tail = (1 - level) / 2
    return np.asarray(np.quantile(values, (tail, 1 - tail), axis=0))


def _interval(values: FloatArray, level: float) -> tuple[float, float]:
    low, high = _percentiles(values, level)
    return float(low), float(high)
