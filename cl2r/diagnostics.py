"""Stationarity: how far the representation moved from task to task, and how near classes are to their vertices.

A compatible representation is one that stays where it is; these figures say how far it does, without any pairs. NumPy.
"""

import numpy as np
import numpy.typing as npt

from cl2r.simplex import simplex_logits

Features = npt.NDArray[np.floating]


def unit_rows(features: Features) -> npt.NDArray[np.float64]:
    """Rows of length one; a row of zeros stays."""
    rows = np.asarray(features, dtype=np.float64)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


def drift_cosine(new: Features, old: Features) -> float:
    """Mean of cos(φ_t(x), φ_{t-1}(x)) over images: 1 if nothing moved."""
    return float((unit_rows(new) * unit_rows(old)).sum(1).mean())


def linear_cka(new: Features, old: Features) -> float:
    """‖XᵀY‖² / (‖XᵀX‖·‖YᵀY‖) of centred features: 1 if they differ by a rotation and a scale only."""
    x, y = (np.asarray(f, dtype=np.float64) - np.mean(f, axis=0, dtype=np.float64) for f in (new, old))
    norms = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(x.T @ y) ** 2 / norms) if norms > 0 else 0.0


def rotation(new: Features, old: Features) -> npt.NDArray[np.float64]:
    """The orthogonal R that brings unit rows of `new` nearest to those of `old`: min ‖A R − B‖ (Procrustes)."""
    left, _, right = np.linalg.svd(unit_rows(new).T @ unit_rows(old))
    return np.asarray(left @ right)


def rotated_cosine(new: Features, old: Features) -> float:
    """Mean cosine that is left after the best rotation: what no rotation of queries can mend is 1 minus this."""
    return float((unit_rows(new) @ rotation(new, old) * unit_rows(old)).sum(1).mean())


def vertex_cosine(features: Features, labels: npt.NDArray[np.int64], num_classes: int) -> float:
    """Root mean square of cos(class mean, its vertex) over the classes present; `features` have K−1 dimensions."""
    unit, classes = unit_rows(features), np.unique(labels)
    means = np.stack([unit[labels == label].mean(0) for label in classes])
    cosines = simplex_logits(unit_rows(means), num_classes)[np.arange(len(classes)), classes]
    return float(np.sqrt(np.mean(np.square(cosines))))


def vertex_bound(rank: int, classes: int, num_classes: int) -> float:
    """The largest root mean square cosine of `classes` of the K vertices to directions of a space of that rank.

    Those n vertices have the Gram matrix s²(I − 11ᵀ/K), s² = K/(K−1): eigenvalues s², n−1 times, and s²(1 − n/K). The
    best space of rank r collects the r largest; over all K vertices that is r/(K−1).
    """
    scale = num_classes / (num_classes - 1)
    collected = min(rank, classes - 1) * scale
    if rank >= classes:
        collected += scale * (1 - classes / num_classes)
    return float(np.sqrt(collected / classes))
