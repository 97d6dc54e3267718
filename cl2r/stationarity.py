"""Stationarity: how far the representation moved from task to task, and how near classes are to their vertices.

A compatible representation stays where it is. These values measure how far it does, without any pairs.
"""

import numpy as np
import numpy.typing as npt

from cl2r.features import Features, Rows, unit_rows
from cl2r.simplex import simplex_logits

SAMPLED_ROWS = 2048  # rows of factored features that are made to stand for all of them


def drift(now: Features, before: Features) -> dict[str, float]:
    """Return drift cosine, rotated cosine and CKA of the same images by two models.

    A representation that grew is compared in its old dimensions. Factored features have so many dimensions that only
    the drift cosine is worth its cost.
    """
    new, old = _sampled(now), _sampled(before)
    new = new[:, : old.shape[1]]
    values = {"drift_cosine": drift_cosine(new, old)}
    if now.projection is None:
        values |= {"rotated_cosine": rotated_cosine(new, old), "cka": linear_cka(new, old)}
    return values


def common_direction(features: Features) -> float:
    """Return the length of the mean of the unit features: 1 if all images look alike."""
    return float(np.linalg.norm(unit_rows(_sampled(features)).mean(0)))


def _sampled(features: Features) -> Rows:
    """Return all rows, or evenly spaced ones of factored features."""
    if features.projection is None:
        return features.body
    count = len(features)
    return features.rows(np.linspace(0, count - 1, min(count, SAMPLED_ROWS)).astype(np.int64))


def drift_cosine(new: Rows, old: Rows) -> float:
    """Return the mean of cos(φ_t(x), φ_{t-1}(x)) over images: 1 if nothing moved."""
    return float((unit_rows(new) * unit_rows(old)).sum(1).mean())


def linear_cka(new: Rows, old: Rows) -> float:
    """Return ‖XᵀY‖² / (‖XᵀX‖·‖YᵀY‖) of centred features: 1 if they differ by a rotation and a scale only."""
    x, y = (np.asarray(f, dtype=np.float64) - np.mean(f, axis=0, dtype=np.float64) for f in (new, old))
    norms = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(x.T @ y) ** 2 / norms) if norms > 0 else 0.0


def rotation(new: Rows, old: Rows) -> npt.NDArray[np.float64]:
    """Return the orthogonal R that maps unit rows of `new` nearest to `old`'s: min ‖A R − B‖ (Procrustes)."""
    product = unit_rows(new).T @ unit_rows(old)
    try:
        left, _, right = np.linalg.svd(product)
    except (
        np.linalg.LinAlgError
    ):  # divide and conquer does not converge for every matrix; QR iteration is slower and does
        from scipy import linalg

        left, _, right = linalg.svd(product, lapack_driver="gesvd")
    return np.asarray(left @ right)


def rotated_cosine(new: Rows, old: Rows) -> float:
    """Return the mean cosine after the best rotation: no rotation of queries removes the difference to 1."""
    return float((unit_rows(new) @ rotation(new, old) * unit_rows(old)).sum(1).mean())


def vertices(features: Rows, labels: npt.NDArray[np.int64], num_classes: int) -> dict[str, float]:
    """Return the vertex cosine and the bound that the rank of the features sets for it."""
    rank = int(np.linalg.matrix_rank(features))
    bound = vertex_bound(rank, len(np.unique(labels)), num_classes)
    return {"vertex_cosine": vertex_cosine(features, labels, num_classes), "vertex_bound": bound}


def vertex_cosine(features: Rows, labels: npt.NDArray[np.int64], num_classes: int) -> float:
    """Return the root mean square of cos(class mean, its vertex) over the classes present, in K−1 dimensions."""
    unit, classes = unit_rows(features), np.unique(labels)
    means = np.stack([unit[labels == label].mean(0) for label in classes])
    cosines = simplex_logits(unit_rows(means), num_classes)[np.arange(len(classes)), classes]
    return float(np.sqrt(np.mean(np.square(cosines))))


def vertex_bound(rank: int, classes: int, num_classes: int) -> float:
    """Return the largest root mean square cosine of n = `classes` of the K vertices to directions of a space of `rank`.

    The n vertices have the Gram matrix s²(I − 11ᵀ/K), s² = K/(K−1): eigenvalues s², n−1 times, and s²(1 − n/K). The
    best space of rank r collects the r largest; over all K vertices that is r/(K−1).
    """
    scale = num_classes / (num_classes - 1)
    collected = min(rank, classes - 1) * scale
    if rank >= classes:
        collected += scale * (1 - classes / num_classes)
    return float(np.sqrt(collected / classes))
