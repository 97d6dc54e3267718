"""Figures of a finished link besides its losses: how far φ moved, how near classes are to their vertices, FLOPs."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from cl2r.diagnostics import Features, drift_cosine, linear_cka, rotated_cosine, unit_rows, vertex_bound, vertex_cosine
from cl2r.pair_distances import Factored
from cl2r.seeding import numpy_stream

SUPPORT_ROWS = 2048
"""Images of T_t whose features a link keeps, for adapters and diagnostics."""

Rows = npt.NDArray[np.int64]


def support_rows(new: Rows, memory: Rows, seed: int, task: int) -> Rows:
    """S_t: rows of T_t, at random; memory has up to half of them, and more only where D_t is small."""
    rng = numpy_stream(seed, "support", task)
    new, memory = rng.permutation(new), rng.permutation(memory)
    remembered = min(len(memory), max(SUPPORT_ROWS // 2, SUPPORT_ROWS - len(new)))
    return np.sort(np.concatenate([memory[:remembered], new[: SUPPORT_ROWS - remembered]]))


def drift_figures(now: Features | Factored, before: Features | Factored) -> dict[str, float]:
    """On the open images. A representation that grew is compared in its old dimensions.

    In the many dimensions of factored features only the drift itself is worth its cost.
    """
    new, old = _plain(now), _plain(before)
    new = new[:, : old.shape[1]]
    if isinstance(now, Factored):
        return {"drift_cosine": drift_cosine(new, old)}
    return {
        "drift_cosine": drift_cosine(new, old),
        "rotated_cosine": rotated_cosine(new, old),
        "cka": linear_cka(new, old),
    }


def common_direction(features: Features | Factored) -> float:
    """Length of the mean of the unit features: 1 if all images look alike."""
    return float(np.linalg.norm(unit_rows(_plain(features)).mean(0)))


def _plain(features: Features | Factored) -> Features:
    """The features themselves; of factored ones, evenly spaced rows."""
    if not isinstance(features, Factored):
        return features
    rows = np.linspace(0, len(features.body) - 1, min(len(features.body), SUPPORT_ROWS)).astype(np.int64)
    return np.asarray(features.body[rows] @ features.projection.T)


def vertex_figures(features: Tensor, labels: npt.NDArray[np.int64], num_classes: int) -> dict[str, float]:
    """Against the bound that the rank of the features sets."""
    rows = features.cpu().numpy()
    rank = int(np.linalg.matrix_rank(rows))
    bound = vertex_bound(rank, len(np.unique(labels)), num_classes)
    return {"vertex_cosine": vertex_cosine(rows, labels, num_classes), "vertex_bound": bound}


def flops(module: Callable[[Tensor], Tensor], rows: Tensor) -> float:
    """FLOPs (two a multiply-add) of one row's way through a module."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(rows)
    return float(counter.get_total_flops() / len(rows))
