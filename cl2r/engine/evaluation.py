"""From stored features to the compatibility matrix, its metrics and their intervals, without a model."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cl2r.adapters import QueryAdapter
from cl2r.compatibility import (
    CellIntervals,
    backward_compatibility_curve,
    bootstrap_matrices,
    cell_intervals,
    compatibility_matrix,
    empirical_compatibility,
    percentile_interval,
)
from cl2r.config.schema import EvalConfig
from cl2r.data.dataset import ImageSet
from cl2r.data.pairs import tuning_and_report_pairs
from cl2r.errors import InputError
from cl2r.features import Features
from cl2r.metrics import METRICS
from cl2r.official_code import draw_official_pairs, grid_correctness
from cl2r.pair_distances import pair_distances
from cl2r.seeding import numpy_stream
from cl2r.verification import (
    BoolArray,
    FloatArray,
    Pairs,
    accepted_at_fars,
    fold_weights,
    mean_fold_accuracy,
    pair_correctness,
)


@dataclass(frozen=True)
class Evaluation:
    """C and the metrics computed from it, on one set of pairs."""

    metric: str
    """Meaning of the cells of C: `accuracy`, or `TAR@` and the false accept rate."""
    matrix: FloatArray
    compatible: BoolArray
    values: Mapping[str, float]
    """Every metric of the registry that is computed from a matrix, by name."""
    bc_curve: FloatArray
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Bootstrap intervals of the metrics that have one, by name; empty without a bootstrap."""
    cells: CellIntervals | None = None
    """Bootstrap intervals of the cells; None without a bootstrap."""
    at: Mapping[float, "Evaluation"] = field(default_factory=dict)
    """One evaluation per false accept rate, if C is made of true accept rates."""

    @classmethod
    def of_matrix(
        cls,
        metric: str,
        matrix: FloatArray,
        ties: bool,
        boot: FloatArray | None = None,
    ) -> "Evaluation":
        """Compute every metric of `matrix`, and intervals from its bootstrap matrices `boot` if they are given."""
        metrics = {entry.name: entry.compute for entry in METRICS.of_matrix() if entry.compute is not None}
        bounds = {}
        if boot is not None:
            bounds = {
                name: percentile_interval(compute(boot, ties))
                for name, compute in metrics.items()
                if METRICS[name].interval
            }
        return cls(
            metric=metric,
            matrix=matrix,
            compatible=empirical_compatibility(matrix, ties),
            values={name: float(compute(matrix, ties)) for name, compute in metrics.items()},
            bc_curve=backward_compatibility_curve(matrix),
            intervals=bounds,
            cells=None if boot is None else cell_intervals(matrix, boot, ties=ties),
        )


@dataclass(frozen=True)
class ChainFeatures:
    """Features of the open images by every model of a chain, and how queries meet galleries; models count from 0."""

    models: Sequence[Features]
    galleries: Mapping[tuple[int, int], Features] = field(default_factory=dict)
    """[t, k]: the gallery of φ_k as it is stored after task t, if the method maps it to the space of φ_t."""
    adapter: QueryAdapter | None = None
    grows: bool = False
    """Later models have more dimensions; a query is cut to the dimensions of the gallery."""

    def query(self, t: int, k: int) -> Features:
        """Return the queries by φ_t for a gallery of φ_k."""
        new, old = self.models[t], self.models[k]
        if new.projection is not None:
            return new
        if self.adapter is not None:
            return Features(self.adapter([model.body for model in self.models], t, k))
        return Features(new.body[:, : old.shape[1]]) if self.grows else new

    def gallery(self, t: int, k: int) -> Features:
        """Return the gallery of φ_k that queries by φ_t are compared with."""
        return self.galleries.get((t, k), self.models[k])


def evaluation_pairs(dataset: ImageSet, spec: EvalConfig) -> tuple[Pairs | None, Pairs]:
    """Return the pairs to tune on, if there are any, and the pairs to report.

    Raise InputError if the metric cannot be computed on them.
    """
    if dataset.templates is not None and spec.metric != "tar":
        raise InputError(f"{dataset.name} compares templates and has no folds: set eval.metric=tar")
    if spec.order == "stratified":
        tuning, report = tuning_and_report_pairs(
            dataset, spec.positives, spec.negatives, spec.folds, spec.pairs_seed, spec.tuning_share
        )
    elif dataset.pairs is None:
        rng = numpy_stream(spec.pairs_seed, "official_pairs")
        drawn = draw_official_pairs(dataset.y_open, spec.positives, spec.negatives, spec.folds, rng)
        tuning, report = None, drawn
    else:
        raise InputError(f"eval.order=official_order draws pairs, but {dataset.name} has a list of its own")
    for pairs in (report, tuning):
        if pairs is not None:
            _check(pairs, spec)
    return tuning, report


def _check(pairs: Pairs, spec: EvalConfig) -> None:
    if spec.metric == "tar":
        negatives, lowest = int((~pairs.same).sum()), min(spec.far)
        if negatives * lowest < 1:
            needed = math.ceil(1 / lowest)
            raise InputError(f"eval.far={lowest:g} needs at least {needed} negative pairs, there are {negatives}")
    _judge(np.zeros(len(pairs)), pairs, spec)  # equal distances show whether folds and labels are usable


def _judge(distances: FloatArray, pairs: Pairs, spec: EvalConfig) -> list[BoolArray]:
    """Return which pairs are judged rightly or, for each false accept rate, which positives are accepted."""
    if spec.metric == "tar":
        return accepted_at_fars(distances, pairs.same, spec.far)
    judge = grid_correctness if spec.thresholds == "grid" else pair_correctness
    return [judge(distances, pairs.same, pairs.folds)]


@dataclass(frozen=True)
class Evaluator:
    """Evaluates a chain as it grows, on one set of pairs. Every cell is judged only once."""

    pairs: Pairs
    spec: EvalConfig
    judged: dict[tuple[int, int], list[BoolArray]] = field(default_factory=dict)

    def __call__(self, features: ChainFeatures, bootstrap: bool = True) -> Evaluation:
        """Return C, its metrics and, with `bootstrap`, their intervals.

        With several accept rates the evaluation is that of the first, and `at` has one for each.
        """
        tasks, pairs = len(features.models), self.pairs
        cells = [(t, k) for t in range(tasks) for k in range(t + 1)]
        for t, k in cells:
            if (t, k) not in self.judged:
                distances = pair_distances(features.query(t, k), features.gallery(t, k), pairs.query, pairs.gallery)
                self.judged[t, k] = _judge(distances, pairs, self.spec)
        judgements = [np.stack(rows) for rows in zip(*(self.judged[cell] for cell in cells), strict=True)]
        if self.spec.metric == "accuracy":
            values = [mean_fold_accuracy(row, pairs.folds) for row in judgements[0]]
            return self._evaluation("accuracy", values, judgements[0], pairs.same, fold_weights(pairs.folds), bootstrap)
        rates = {}
        for far, accepted in zip(self.spec.far, judgements, strict=True):
            # The bootstrap draws positives; thresholds, which the negatives set, stay as they are.
            values, count = [float(row.mean()) for row in accepted], accepted.shape[1]
            same, weights = np.ones(count, np.bool_), np.full(count, 1 / count)
            rates[far] = self._evaluation(f"TAR@{far:g}", values, accepted, same, weights, bootstrap)
        return dataclasses.replace(rates[self.spec.far[0]], at=rates)

    def _evaluation(
        self,
        metric: str,
        values: Sequence[float],
        correct: BoolArray,
        same: BoolArray,
        weights: FloatArray,
        bootstrap: bool,
    ) -> Evaluation:
        tasks = math.isqrt(2 * len(values))
        matrix = compatibility_matrix(lambda t, k: values[t * (t + 1) // 2 + k], tasks)
        boot = None
        if bootstrap and self.spec.bootstrap:
            rng = numpy_stream(self.spec.pairs_seed, "bootstrap")
            boot = bootstrap_matrices(correct, same, weights, tasks, self.spec.bootstrap, rng=rng)
        return Evaluation.of_matrix(metric, matrix, self.spec.ties, boot)
