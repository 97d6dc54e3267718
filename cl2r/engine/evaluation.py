"""From stored features to the compatibility matrix, its metrics and their intervals. Needs no model."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cl2r.adapters import QueryAdapter
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
from cl2r.data.dataset import ImageSet, Pairs
from cl2r.data.pairs import tuning_and_report_pairs
from cl2r.errors import InputError
from cl2r.official_order import draw_official_pairs, grid_correctness
from cl2r.pair_distances import Factored, pair_distances
from cl2r.seeding import numpy_stream
from cl2r.verification import accepted_at_far, fold_weights, mean_fold_accuracy, pair_correctness

Features = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Evaluation:
    """C and everything read off it, on one set of pairs. Intervals are None where no bootstrap was asked for."""

    metric: str
    """What a cell of C is: `accuracy`, or `TAR@` and the false accept rate."""
    matrix: npt.NDArray[np.float64]
    compatible: npt.NDArray[np.bool_]
    ac: float
    bc: float
    fc: float
    mean: float
    bc_curve: npt.NDArray[np.float64]
    intervals: Intervals | None
    at: Mapping[float, "Evaluation"] = field(default_factory=dict)
    """The same by false accept rate, where there are several."""


@dataclass(frozen=True)
class ChainFeatures:
    """The open images as every model of a chain sees them, and how queries and galleries meet; models count from 0."""

    models: Sequence[Features | Factored]
    galleries: Mapping[tuple[int, int], Features] = field(default_factory=dict)
    """[t, k]: the gallery of φ_k as it is stored after task t, where a method brings it to the space of φ_t."""
    adapter: QueryAdapter | None = None
    grows: bool = False
    """Later models have more dimensions; a query is cut to those of the gallery."""

    def query(self, t: int, k: int) -> Features | Factored:
        """Queries by φ_t for a gallery of φ_k."""
        new, old = self.models[t], self.models[k]
        if isinstance(new, Factored) or isinstance(old, Factored):
            return new
        if self.adapter is not None:
            return self.adapter([model for model in self.models if not isinstance(model, Factored)], t, k)
        return new[:, : old.shape[1]] if self.grows else new

    def gallery(self, t: int, k: int) -> Features | Factored:
        """The gallery of φ_k that queries by φ_t meet."""
        return self.galleries.get((t, k), self.models[k])


def evaluation_pairs(dataset: ImageSet, spec: EvalConfig) -> tuple[Pairs | None, Pairs]:
    """Pairs to tune on, where there are any, and pairs to report."""
    if spec.order == "stratified":
        return tuning_and_report_pairs(
            dataset, spec.positives, spec.negatives, spec.folds, spec.pairs_seed, spec.tuning_share
        )
    if dataset.pairs is not None:
        raise InputError(f"eval.order=official_order: the pairs of {dataset.name} are given, none are drawn")
    rng = numpy_stream(spec.pairs_seed, "official_pairs")
    return None, draw_official_pairs(dataset.y_open, spec.positives, spec.negatives, spec.folds, rng)


def check_pairs(pairs: Pairs, spec: EvalConfig) -> None:
    """Refuse pairs that the chosen metric cannot be computed on."""
    if spec.metric == "tar":
        negatives = int((~pairs.same).sum())
        lowest = min(spec.far)
        if negatives * lowest < 1:
            raise InputError(
                f"eval.far={lowest:g} needs at least {1 / lowest:.0f} negative pairs, there are {negatives}"
            )
    elif spec.order == "stratified":
        pair_correctness(np.zeros(len(pairs)), pairs.same, pairs.folds)


def evaluate(features: ChainFeatures, pairs: Pairs, spec: EvalConfig) -> Evaluation:
    """C[t, k] from queries by φ_t and gallery by φ_k."""
    if spec.metric == "accuracy":
        return _by_accuracy(features, pairs, spec)
    return _by_accept_rates(features, pairs, spec)


def _by_accuracy(features: ChainFeatures, pairs: Pairs, spec: EvalConfig) -> Evaluation:
    judge = grid_correctness if spec.thresholds == "grid" else pair_correctness
    correct = np.stack([judge(distances, pairs.same, pairs.folds) for distances in _cells(features, pairs)])
    values = [mean_fold_accuracy(row, pairs.folds) for row in correct]
    return _evaluation("accuracy", values, correct, pairs.same, fold_weights(pairs.folds), spec)


def _by_accept_rates(features: ChainFeatures, pairs: Pairs, spec: EvalConfig) -> Evaluation:
    """TAR at every FAR. The bootstrap draws positives; thresholds, set by the negatives, stay as they are."""
    accepted: dict[float, list[npt.NDArray[np.bool_]]] = {far: [] for far in spec.far}
    for distances in _cells(features, pairs):
        for far, rows in accepted.items():
            rows.append(accepted_at_far(distances, pairs.same, far))
    positives = np.ones(int(pairs.same.sum()), np.bool_)
    weights = np.full(len(positives), 1 / len(positives))
    rates = {
        far: _evaluation(f"TAR@{far:g}", [float(row.mean()) for row in rows], np.stack(rows), positives, weights, spec)
        for far, rows in accepted.items()
    }
    return dataclasses.replace(rates[spec.far[0]], at=rates)


def _cells(features: ChainFeatures, pairs: Pairs) -> Iterator[npt.NDArray[np.float64]]:
    """Distances of all pairs, cell by cell of the lower triangle: of many pairs, one cell is enough to hold."""
    for t in range(len(features.models)):
        for k in range(t + 1):
            yield pair_distances(features.query(t, k), features.gallery(t, k), pairs.query, pairs.gallery)


def _evaluation(
    metric: str,
    cells: Sequence[float],
    correct: npt.NDArray[np.bool_],
    same: npt.NDArray[np.bool_],
    weights: npt.NDArray[np.float64],
    spec: EvalConfig,
) -> Evaluation:
    tasks = math.isqrt(2 * len(cells))
    matrix = compatibility_matrix(lambda t, k: cells[t * (t + 1) // 2 + k], tasks)
    bounds = None
    if spec.bootstrap:
        rng = numpy_stream(spec.pairs_seed, "bootstrap")
        matrices = bootstrap_matrices(correct, same, weights, tasks, spec.bootstrap, rng=rng)
        bounds = intervals(matrix, matrices, ties=spec.ties)
    return Evaluation(
        metric=metric,
        matrix=matrix,
        compatible=empirical_compatibility(matrix, spec.ties),
        ac=average_compatibility(matrix, spec.ties),
        bc=backward_compatibility(matrix),
        fc=forward_compatibility(matrix),
        mean=mean_accuracy(matrix),
        bc_curve=backward_compatibility_curve(matrix),
        intervals=bounds,
    )
