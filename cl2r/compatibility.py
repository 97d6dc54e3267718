# ruff: noqa: N803, N806 (C and T are the paper's symbols)
"""The compatibility matrix and its summaries AC (Eq. 4), BC (Eq. 5) and FC (Eq. 6), with bootstrap intervals.

C[t, k] is the score of queries by model t against a gallery by model k, for k <= t; above the diagonal it is
undefined (NaN when built here, ignored when read). Indices count from zero. Model t is compatible with model k if
C[t, k] > C[k, k]: new queries on the old gallery beat the old model on its own. AC is thus a sign test per cell that
ignores noise, hence the paired bootstrap over the pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cl2r.errors import InputError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

DRAWS_AT_ONCE = 6_000_000  # pairs drawn at a time: 1000 draws of 6000 pairs take about 100 MB


@dataclass(frozen=True, eq=False)
class CellIntervals:
    """Percentile intervals of the cells of C; `compatible` is P(cell compatible), NaN for k >= t."""

    low: FloatArray
    high: FloatArray
    compatible: FloatArray


def compatibility_matrix(value: Callable[[int, int], float], T: int) -> FloatArray:
    """Return the T x T matrix of value(t, k) for k <= t, NaN above the diagonal."""
    if T < 1:
        raise InputError(f"T={T}: a compatibility matrix needs at least one task")
    C = np.full((T, T), np.nan)
    for t, k in zip(*np.tril_indices(T), strict=True):
        C[t, k] = value(int(t), int(k))
    return C


def empirical_compatibility(C: npt.ArrayLike, ties: bool = False) -> BoolArray:
    """Return whether C[t, k] > C[k, k] (>= with `ties`) for each cell k < t; False elsewhere."""
    return _compatible(_checked(C), ties)


# The summaries take one matrix (T, T) and return a number, or a stack (..., T, T) such as a bootstrap and return (...).


def average_compatibility(C: npt.ArrayLike, ties: bool = False) -> FloatArray:
    """Return AC, the share of compatible cells among k < t; NaN for a single task."""
    checked = _checked(C)
    return _mean(_compatible(checked, ties)[..., *np.tril_indices(checked.shape[-1], -1)])


def backward_compatibility(C: npt.ArrayLike, ties: bool = False) -> FloatArray:
    """Return BC, the mean over k < T of C[T, k] - C[k, k]; NaN for a single task. `ties` does not matter."""
    checked = _checked(C)
    return _mean(checked[..., -1, :-1] - _self_tests(checked)[..., :-1])


def backward_compatibility_curve(C: npt.ArrayLike) -> FloatArray:
    """Return BC(t) after each task: NaN after the first, BC after the last."""
    checked = _checked(C)
    return np.array([backward_compatibility(checked[:t, :t]) for t in range(1, len(checked) + 1)])


def forward_compatibility(C: npt.ArrayLike, ties: bool = False) -> FloatArray:
    """Return FC, the mean over k >= 2 of C[k, k-1] - C[k, k]; NaN for a single task. `ties` does not matter."""
    checked = _checked(C)
    return _mean(np.diagonal(checked, offset=-1, axis1=-2, axis2=-1) - _self_tests(checked)[..., 1:])


def mean_accuracy(C: npt.ArrayLike, ties: bool = False) -> FloatArray:
    """Return the mean of the lower triangle with the diagonal: the average multi-model accuracy."""
    checked = _checked(C)
    return _mean(checked[..., *np.tril_indices(checked.shape[-1])])


def service_score(C: npt.ArrayLike, ties: bool = False) -> FloatArray:
    """Return the mean over k <= T of C[T, k]: what the last model's queries get from all galleries there are."""
    return _mean(_checked(C)[..., -1, :])


def reindexed_score(C: npt.ArrayLike, ties: bool = False) -> FloatArray:
    """Return C[T, T]: what the last model's queries get once every gallery has been indexed again by it."""
    return np.asarray(_checked(C)[..., -1, -1])[()]


def first_score(C: npt.ArrayLike, ties: bool = False) -> FloatArray:
    """Return C[1, 1]: what a service keeps that never upgrades its first model."""
    return np.asarray(_checked(C)[..., 0, 0])[()]


def _mean(values: FloatArray | BoolArray) -> FloatArray:
    """Return the mean over the last axis; NaN if it is empty, because a single task has no earlier one."""
    return np.asarray(values.mean(axis=-1) if values.shape[-1] else np.full(values.shape[:-1], np.nan))[()]


def bootstrap_matrices(
    correct: npt.ArrayLike,
    same: npt.ArrayLike,
    weights: npt.ArrayLike,
    T: int,
    samples: int = 1000,
    *,
    rng: np.random.Generator,
) -> FloatArray:
    """Return matrices (samples, T, T) of accuracies on pairs drawn with replacement.

    `correct` (cells, N) tells which pairs each cell of the lower triangle judged rightly, in the order of
    np.tril_indices(T); `weights` are the fold weights of the pairs. All cells share a draw (paired), and positives and
    negatives are drawn separately. Thresholds stay as fitted on the full data: a draw only re-weights the judgements.
    The spread thus lacks the noise of the thresholds: on 6000 simulated pairs it was about 10 % too small for a cell,
    10 to 25 % for the difference of two cells (a refit was as much too large).
    """
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
    matrices = np.full((samples, T, T), np.nan)
    chunk = max(1, DRAWS_AT_ONCE // len(labels))
    for start in range(0, samples, chunk):
        counts = _draw_counts(labels, min(chunk, samples - start), rng)
        totals, mass = np.zeros((len(counts), len(rights))), np.zeros((len(counts), 1))
        # For each distinct weight the product sums integers, exact in float32: equal cells stay equal in every draw.
        for weight in np.unique(w):
            members = w == weight
            totals += weight * (counts[:, members] @ rights[:, members].T.astype(np.float32)).astype(np.float64)
            mass += weight * counts[:, members].sum(axis=1, keepdims=True, dtype=np.float64)
        matrices[start : start + chunk, *np.tril_indices(T)] = totals / mass
    return matrices


def cell_intervals(C: npt.ArrayLike, boot: npt.ArrayLike, level: float = 0.95, ties: bool = False) -> CellIntervals:
    """Return percentile intervals of the cells of C from its bootstrap matrices `boot`."""
    matrices = _checked(boot)
    if matrices.shape[1:] != _checked(C).shape:
        raise InputError(f"boot {matrices.shape} does not match C {np.shape(C)}: give the bootstrap of this matrix")
    if not 0 < level < 1:
        raise InputError(f"level={level}: give a confidence level between 0 and 1")
    T = matrices.shape[-1]
    low, high = (np.full((T, T), np.nan) for _ in range(2))
    cells = np.tril_indices(T)
    low[cells], high[cells] = _percentiles(matrices[:, *cells], level)
    compatible = np.where(np.tri(T, k=-1, dtype=np.bool_), _compatible(matrices, ties).mean(axis=0), np.nan)
    return CellIntervals(low=low, high=high, compatible=compatible)


def percentile_interval(values: FloatArray, level: float = 0.95) -> tuple[float, float]:
    """Return the two ends of the percentile interval of bootstrapped values."""
    low, high = _percentiles(values, level)
    return float(low), float(high)


def _self_tests(C: FloatArray) -> FloatArray:
    return np.diagonal(C, axis1=-2, axis2=-1)


def _compatible(C: FloatArray, ties: bool) -> BoolArray:
    own = _self_tests(C)[..., None, :]
    better: BoolArray = np.greater_equal(C, own) if ties else np.greater(C, own)
    return better & np.tri(C.shape[-1], k=-1, dtype=np.bool_)


def _checked(C: npt.ArrayLike) -> FloatArray:
    array = np.asarray(C, dtype=np.float64)
    if array.ndim < 2 or array.shape[-1] != array.shape[-2] or array.size == 0:
        raise InputError(f"compatibility matrix has shape {array.shape}: give a square matrix, one row per task")
    missing = np.argwhere(np.isnan(array) & np.tri(array.shape[-1], dtype=np.bool_))
    if len(missing):
        t, k = missing[0][-2:]
        raise InputError(f"compatibility matrix is NaN at query model {t}, gallery model {k}: evaluate this cell first")
    return array


def _draw_counts(labels: BoolArray, samples: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return how often each pair occurs in each draw, (samples, N); the number of pairs of each kind is fixed."""
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
