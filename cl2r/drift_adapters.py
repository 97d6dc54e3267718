"""Affine maps and a small network as adapters (see `adapters.py`): low_rank, residual_mlp, orthogonal.

All minimise the mean squared distance between the mapped unit features of the new model, A, and those of the old one,
B. The first two are those of Drift-Adapter, whose diagonal scaling s is an option; the third may leave the orthogonal
maps up to a threshold. Nothing is drawn at random except the first layer of the network, always alike.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from cl2r.config.schema import AdapterConfig
from cl2r.errors import InputError

Vectors = npt.NDArray[np.float64]
Map = Callable[[Vectors], Vectors]
RIDGE = 1e-3
"""low_rank: pull of its matrix to 0, in multiples of the mean eigenvalue of AᵀA; features may span few dimensions."""
DECAY = 1e-3
"""residual_mlp: weight of the squared matrices, in multiples of tr(cov A); unit features may lie close together."""
FLOOR = 1e-12  # least weight and variance: identical rows differ by rounding only
LARGEST = 1024  # dimensions that orthogonal takes: a step of L-BFGS multiplies matrices of this size
STEEPNESS = 10.0
"""orthogonal: α, how sharply the penalty sets in where ‖WWᵀ − I‖ comes near the threshold."""
ROUNDED = 1e-6  # length below which the norm ‖WWᵀ − I‖ is rounded off: at 0 it has no slope
STEPS, NETWORK_STEPS = 400, 150  # of L-BFGS, at most
TOLERANCE = 1e-10  # L-BFGS stops if a step lowers the value by less, in multiples of tr(cov B)


def fit(new: Vectors, old: Vectors, config: AdapterConfig) -> Map:
    """Return the map of one step, fitted to unit features by the new and by the old model, row by row."""
    check_size(config, new.shape[1])
    if len(new) == 0:
        raise InputError(f"adapter.name={config.name}: an update has no images to fit it to; leave the adapter out")
    if config.name == "low_rank":
        return low_rank(new, old, config.rank, config.scaling)
    if config.name == "residual_mlp":
        return residual_mlp(new, old, config.width, config.scaling)
    return orthogonal(new, old, config.orthogonality)


def check_size(config: AdapterConfig, dim: int) -> None:
    """Raise InputError if a map of features of this many dimensions takes too long to fit."""
    if config.name == "orthogonal" and dim > LARGEST:
        fault = f"adapter.name=orthogonal cannot take features of {dim} dimensions, at most {LARGEST}"
        raise InputError(f"{fault}; use procrustes, or leave the adapter out")


def numbers(config: AdapterConfig, dim: int) -> tuple[int, int]:
    """Return how many numbers the matrices of one step have, and its vectors; scales of an affine map are in these."""
    if config.name == "residual_mlp":
        return 2 * dim * config.width, config.width + dim + (dim if config.scaling else 0)
    return min(2 * dim * config.rank, dim * dim) if config.name == "low_rank" else dim * dim, dim


def flops(config: AdapterConfig, dim: int) -> float:
    """Return the FLOPs of one step for one query; at its end the query is divided by its length."""
    matrices, rest = numbers(config, dim)
    return 2.0 * matrices + rest + (dim if config.name == "residual_mlp" else 0) + 3 * dim


def low_rank(new: Vectors, old: Vectors, rank: int, scaling: bool) -> Map:
    """Return m(q) = s ⊙ (q W + c), W of at most this rank: the exact minimum (reduced rank regression).

    s is then fitted to what m leaves, so that it can only undo the pull of the ridge: W ranges over all matrices of
    its rank with any scaling of columns.
    """
    mean, target = new.mean(0), old.mean(0)
    a, b = new - mean, old - target
    gram = a.T @ a
    gram += max(RIDGE * np.trace(gram) / len(gram), FLOOR * len(a)) * np.eye(len(gram))
    full = np.linalg.solve(gram, a.T @ b)
    # The best directions of the fitted values, those of the ridge included: fullᵀ gram full = Σ over both.
    _, directions = np.linalg.eigh(full.T @ gram @ full)
    kept = directions[:, -rank:]
    matrix = full @ kept @ kept.T
    shift = target - mean @ matrix
    mapped = new @ matrix + shift
    scale = column_scales(mapped, old) if scaling else np.ones(len(shift))
    return lambda queries: (queries @ matrix + shift) * scale


def column_scales(mapped: Vectors, old: Vectors) -> Vectors:
    """Return the factor of every column that brings `mapped` nearest to `old`; 1 for a column of zeros."""
    squares = np.square(mapped).sum(0)
    return np.where(squares > 0, (mapped * old).sum(0) / np.where(squares > 0, squares, 1), 1.0)


def orthogonal(new: Vectors, old: Vectors, threshold: float) -> Map:
    """Return m(q) = q W + c, minimising mean ‖a W + c − b‖² + σ(α (r − λ)) · r with r = ‖WWᵀ − I‖ (Frobenius).

    λ is the threshold: r is almost free below it and costs itself above it. 0 gives nearly a rotation and a shift, a
    large threshold the affine map of least squares. L-BFGS starts at the best rotation.
    """
    mean, target = new.mean(0), old.mean(0)
    a, b = new - mean, old - target
    size, count = new.shape[1], len(new)
    gram, cross, eye = a.T @ a / count, a.T @ b / count, np.eye(size)

    def objective(flat: Vectors) -> tuple[float, Vectors]:
        matrix = flat.reshape(size, size)
        product, excess = gram @ matrix, matrix @ matrix.T - eye
        value, slope = penalty(float(np.sqrt(np.sum(excess**2) + ROUNDED**2)), threshold)
        distance = float(np.sum(matrix * product) - 2 * np.sum(matrix * cross))
        return distance + value, (2 * product - 2 * cross + 2 * slope * excess @ matrix).ravel()

    # a and b are not of length one: `rotation` would give every image the same weight.
    left, _, right = np.linalg.svd(cross)
    matrix = minimised(objective, (left @ right).ravel(), STEPS, b).reshape(size, size)
    shift = target - mean @ matrix
    return lambda queries: queries @ matrix + shift


def penalty(norm: float, threshold: float) -> tuple[float, float]:
    """Return σ(α (r − λ)) · r, and its slope divided by r."""
    gate = float(special.expit(STEEPNESS * (norm - threshold)))
    return gate * norm, gate / norm + STEEPNESS * gate * (1 - gate)


def residual_mlp(new: Vectors, old: Vectors, width: int, scaling: bool) -> Map:
    """Return m(q) = s ⊙ (q + max(0, q U + u) V + v), minimising mean ‖m(a) − b‖² + DECAY · tr(cov A) · (‖U‖² + ‖V‖²).

    s = 1 without scaling. U is random at first, and V and v are the best ones for it; then L-BFGS changes all of them.
    """
    size, count = new.shape[1], len(new)
    decay = max(DECAY * float(new.var(0).sum()), FLOOR)
    first = np.random.default_rng(0).normal(0, 1, (size, width)) / np.sqrt(size)
    hidden, gap = np.maximum(0, new @ first), old - new
    around = hidden - hidden.mean(0)
    second = np.linalg.solve(around.T @ around / count + decay * np.eye(width), around.T @ gap / count)
    parts = [first, np.zeros(width), second, gap.mean(0) - hidden.mean(0) @ second, np.ones(size)]
    ends = np.cumsum([part.size for part in parts])

    def unpacked(flat: Vectors) -> list[Vectors]:
        return [piece.reshape(part.shape) for piece, part in zip(np.split(flat, ends[:-1]), parts, strict=True)]

    def objective(flat: Vectors) -> tuple[float, Vectors]:
        u, shift, v, offset, scale = unpacked(flat)
        hidden = np.maximum(0, new @ u + shift)
        plain = new + hidden @ v + offset
        gap = plain * scale - old
        slope = 2 * gap * scale / count
        inner = (slope @ v.T) * (hidden > 0)
        scales = 2 * np.sum(gap * plain, 0) / count if scaling else np.zeros(size)
        slopes = [new.T @ inner + 2 * decay * u, inner.sum(0), hidden.T @ slope + 2 * decay * v, slope.sum(0), scales]
        value = np.sum(gap**2) / count + decay * (np.sum(u**2) + np.sum(v**2))
        return float(value), np.concatenate([part.ravel() for part in slopes])

    start = np.concatenate([part.ravel() for part in parts])
    u, shift, v, offset, scale = unpacked(minimised(objective, start, NETWORK_STEPS, old - old.mean(0)))
    return lambda queries: (queries + np.maximum(0, queries @ u + shift) @ v + offset) * scale


def minimised(
    objective: Callable[[Vectors], tuple[float, Vectors]], start: Vectors, steps: int, target: Vectors
) -> Vectors:
    """Return where L-BFGS ends, at most this many steps from `start`; values are in units of the variance of `target`.

    `target` are the centred features of the old model: how close together they lie does not change when L-BFGS stops.
    """
    unit = max(float(np.sum(target**2)) / len(target), FLOOR)

    def scaled(flat: Vectors) -> tuple[float, Vectors]:
        value, slope = objective(flat)
        return value / unit, slope / unit

    options = {"maxiter": steps, "maxfun": 2 * steps, "ftol": TOLERANCE, "gtol": 0}
    return np.asarray(optimize.minimize(scaled, start, jac=True, method="L-BFGS-B", options=options).x)
