"""From stored features to the compatibility matrix, its metrics and their intervals. Needs no model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cl2r.adapters import QueryAdapter
from cl2r.augment import Normalise
from cl2r.compatibility import (
    Intervals,
    average_compatibility,
    backward_compatibility,
    backward_compatibility_curve,
    bootstrap_matrices,
    compatibility_matrix,
    empirical_compatibility,
    forward_compatibility,
    intervals,
    mean_accuracy,
)
from cl2r.config import EvalConfig
from cl2r.data.dataset import Pairs
from cl2r.seeding import numpy_stream
from cl2r.verification import fold_weights, mean_fold_accuracy, pair_correctness, squared_distances

EXTRACTION_BATCH = 500

Features = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Evaluation:
    """C and everything read off it, on one set of pairs. Intervals are None where no bootstrap was asked for."""

    matrix: npt.NDArray[np.float64]
    compatible: npt.NDArray[np.bool_]
    ac: float
    bc: float
    fc: float
    mean: float
    bc_curve: npt.NDArray[np.float64]
    intervals: Intervals | None


def extract(extractor: nn.Module, images: Tensor, normalise: Normalise) -> Tensor:
    """φ of every image, in order, on the CPU."""
    extractor.eval()
    with torch.inference_mode():
        parts = [extractor(normalise(batch)).float().cpu() for batch in torch.split(images, EXTRACTION_BATCH)]
    return torch.cat(parts)


@dataclass(frozen=True)
class ChainFeatures:
    """The open images as every model of a chain sees them, and how queries and galleries meet; models count from 0."""

    models: Sequence[Features]
    galleries: Mapping[tuple[int, int], Features] = field(default_factory=dict)
    """[t, k]: the gallery of φ_k as it is stored after task t, where a method brings it to the space of φ_t."""
    adapter: QueryAdapter | None = None
    grows: bool = False
    """Later models have more dimensions; a query is cut to those of the gallery."""

    def query(self, t: int, k: int) -> Features:
        """Queries by φ_t for a gallery of φ_k."""
        if self.adapter is not None:
            return self.adapter(self.models, t, k)
        return self.models[t][:, : self.models[k].shape[1]] if self.grows else self.models[t]

    def gallery(self, t: int, k: int) -> Features:
        """The gallery of φ_k that queries by φ_t meet."""
        return self.galleries.get((t, k), self.models[k])


def _judgements(features: ChainFeatures, t: int, k: int, pairs: Pairs) -> npt.NDArray[np.bool_]:
    """Which pairs are judged rightly with queries by the new model and gallery by the old one."""
    distances = squared_distances(features.query(t, k)[pairs.query], features.gallery(t, k)[pairs.gallery])
    return pair_correctness(distances, pairs.same, pairs.folds)


def evaluate(features: ChainFeatures, pairs: Pairs, config: EvalConfig) -> Evaluation:
    """C[t, k] from queries by φ_t and gallery by φ_k."""
    tasks = len(features.models)
    correct = np.stack([_judgements(features, t, k, pairs) for t in range(tasks) for k in range(t + 1)])
    cells = [mean_fold_accuracy(row, pairs.folds) for row in correct]
    matrix = compatibility_matrix(lambda t, k: cells[t * (t + 1) // 2 + k], tasks)
    bounds = None
    if config.bootstrap:
        rng, weights = numpy_stream(config.pairs_seed, "bootstrap"), fold_weights(pairs.folds)
        matrices = bootstrap_matrices(correct, pairs.same, weights, tasks, config.bootstrap, rng=rng)
        bounds = intervals(matrix, matrices, ties=config.ties)
    return Evaluation(
        matrix=matrix,
        compatible=empirical_compatibility(matrix, config.ties),
        ac=average_compatibility(matrix, config.ties),
        bc=backward_compatibility(matrix),
        fc=forward_compatibility(matrix),
        mean=mean_accuracy(matrix),
        bc_curve=backward_compatibility_curve(matrix),
        intervals=bounds,
    )
