"""From stored features to the compatibility matrix, its metrics and their intervals. Needs no model."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
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
from cl2r.verification import accepted_at_fars, fold_weights, mean_fold_accuracy, pair_correctness

Features = npt.NDArray[np.float32]
Judgement = npt.NDArray[np.bool_]


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
    """By false accept rate, where C is made of true accept rates."""


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
    if dataset.templates is not None and spec.metric != "tar":
        raise InputError(f"{dataset.name} compares templates and has no folds: it needs eval.metric=tar")
    if spec.order == "stratified":
        return tuning_and_report_pairs(
            dataset, spec.positives, spec.negatives, spec.folds, spec.pairs_seed, spec.tuning_share
        )
    if dataset.pairs is not None:
        raise InputError(f"eval.order=official_order: the pairs of {dataset.name} are given, none are drawn")
    rng = numpy_stream(spec.pairs_seed, "official_pairs")
    return None, draw_official_pairs(dataset.y_open, spec.positives, spec.negatives, spec.folds, rng)


def check_pairs(pairs: Pairs, spec: EvalConfig) -> None:
    """Refuse pairs that the chosen metric cannot be computed on: all as far from one another must be judged."""
    if spec.metric == "tar":
        negatives, lowest = int((~pairs.same).sum()), min(spec.far)
        if negatives * lowest < 1:
            needed = math.ceil(1 / lowest)
            raise InputError(f"eval.far={lowest:g} needs at least {needed} negative pairs, there are {negatives}")
    _judge(np.zeros(len(pairs)), pairs, spec)


def evaluate(features: ChainFeatures, pairs: Pairs, spec: EvalConfig) -> Evaluation:
    """C[t, k] from queries by φ_t and gallery by φ_k."""
    return Evaluator(pairs, spec)(features)


@dataclass(frozen=True)
class Evaluator:
    """Evaluates a chain as it grows, on one set of pairs. A cell that was judged is not judged again."""

    pairs: Pairs
    spec: EvalConfig
    judged: dict[tuple[int, int], list[Judgement]] = field(default_factory=dict)

    def __call__(self, features: ChainFeatures, bootstrap: bool = True) -> Evaluation:
        """C and what is read off it; of several accept rates, the first and all of them."""
        cells = [self._cell(features, t, k) for t in range(len(features.models)) for k in range(t + 1)]
        rows = [np.stack(correct) for correct in zip(*cells, strict=True)]
        samples = self.spec.bootstrap if bootstrap else 0
        if self.spec.metric == "accuracy":
            return self._by_accuracy(rows[0], samples)
        rates = {far: self._by_rate(far, accepted, samples) for far, accepted in zip(self.spec.far, rows, strict=True)}
        return dataclasses.replace(rates[self.spec.far[0]], at=rates)

    def _cell(self, features: ChainFeatures, t: int, k: int) -> list[Judgement]:
        if (t, k) not in self.judged:
            pairs = self.pairs
            distances = pair_distances(features.query(t, k), features.gallery(t, k), pairs.query, pairs.gallery)
            self.judged[t, k] = _judge(distances, pairs, self.spec)
        return self.judged[t, k]

    def _by_accuracy(self, correct: Judgement, samples: int) -> Evaluation:
        folds = self.pairs.folds
        values = [mean_fold_accuracy(row, folds) for row in correct]
        return _evaluation("accuracy", values, correct, self.pairs.same, fold_weights(folds), self.spec, samples)

    def _by_rate(self, far: float, accepted: Judgement, samples: int) -> Evaluation:
        """The bootstrap draws positives; thresholds, set by the negatives, stay as they are."""
        values, count = [float(row.mean()) for row in accepted], accepted.shape[1]
        same, weights = np.ones(count, np.bool_), np.full(count, 1 / count)
        return _evaluation(f"TAR@{far:g}", values, accepted, same, weights, self.spec, samples)


def _judge(distances: npt.NDArray[np.float64], pairs: Pairs, spec: EvalConfig) -> list[Judgement]:
    """Which pairs are judged rightly; or, at each false accept rate, which positives are accepted."""
    if spec.metric == "tar":
        return [*accepted_at_fars(distances, pairs.same, spec.far)]
    judge = grid_correctness if spec.thresholds == "grid" else pair_correctness
    return [judge(distances, pairs.same, pairs.folds)]


def _evaluation(
    metric: str,
    cells: Sequence[float],
    correct: npt.NDArray[np.bool_],
    same: npt.NDArray[np.bool_],
    weights: npt.NDArray[np.float64],
    spec: EvalConfig,
    samples: int,
) -> Evaluation:
    tasks = math.isqrt(2 * len(cells))
    matrix = compatibility_matrix(lambda t, k: cells[t * (t + 1) // 2 + k], tasks)
    bounds = None
    if samples:
        rng = numpy_stream(spec.pairs_seed, "bootstrap")
        matrices = bootstrap_matrices(correct, same, weights, tasks, samples, rng=rng)
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
