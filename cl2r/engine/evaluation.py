"""From stored features to the matrices of verification and search, their metrics and intervals, without a model."""

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
    empirical_compatibility,
    percentile_interval,
)
from cl2r.config.schema import EvalConfig
from cl2r.data.dataset import ImageSet
from cl2r.data.pairs import tuning_and_report_images, tuning_and_report_pairs
from cl2r.errors import InputError
from cl2r.features import Features
from cl2r.metrics import METRICS
from cl2r.official_code import draw_official_pairs, grid_correctness
from cl2r.pair_distances import pair_distances
from cl2r.retrieval import SearchImages, Vectors, recall_at_1, resampled_matrices, retrieved, search_matrix
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
    """C and the metrics computed from it, on one set of pairs, and from the matrix of a search among these images."""

    metric: str  # of the cells of C: `accuracy`, or `TAR@` and the false accept rate
    matrix: FloatArray
    compatible: BoolArray
    values: Mapping[str, float]  # of every metric of the registry that is computed from a matrix, by name
    bc_curve: FloatArray
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # empty without a bootstrap
    cells: CellIntervals | None = None  # None without a bootstrap
    at: Mapping[float, "Evaluation"] = field(default_factory=dict)  # by false accept rate, if C has true accept rates
    recall: FloatArray | None = None  # recall@1 of every cell; None if it is undefined or was not asked for
    average_precision: FloatArray | None = None  # mAP of every cell, with eval.average_precision

    @classmethod
    def of_matrix(
        cls,
        metric: str,
        matrix: FloatArray,
        ties: bool,
        boot: FloatArray | None = None,
        recall: FloatArray | None = None,
        recall_boot: FloatArray | None = None,
    ) -> "Evaluation":
        """Compute every metric of `matrix` and of `recall`, NaN if there is no such matrix.

        Intervals come from bootstrap matrices, if they are given.
        """
        values, intervals = {}, {}
        sources = {"accuracy": (matrix, boot), "recall": (recall, recall_boot)}
        for entry in METRICS.of_matrix():
            assert entry.compute is not None
            cells, drawn = sources[entry.matrix]
            values[entry.name] = math.nan if cells is None else float(entry.compute(cells, ties))
            if boot is not None and entry.interval:
                nothing = (math.nan, math.nan)
                intervals[entry.name] = nothing if drawn is None else percentile_interval(entry.compute(drawn, ties))
        compatible, curve = empirical_compatibility(matrix, ties), backward_compatibility_curve(matrix)
        bounds = None if boot is None else cell_intervals(matrix, boot, ties=ties)
        return cls(metric, matrix, compatible, values, curve, intervals, bounds, recall=recall)


@dataclass(frozen=True)
class ChainFeatures:
    """Features of the open images by every model of a chain, and how queries meet galleries; models count from 0."""

    models: Sequence[Features]
    galleries: Mapping[tuple[int, int], Features] = field(default_factory=dict)
    """[t, k]: the gallery of φ_k as it is stored after task t, if the method maps it to the space of φ_t."""
    adapter: QueryAdapter | None = None
    grows: bool = False  # later models have more dimensions; a query is cut to the dimensions of the gallery

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

    def searched(self, t: int, k: int, images: SearchImages) -> tuple[Vectors, Vectors]:
        """Return the unit vectors of the queries by φ_t and of the gallery by φ_k, of these images only."""
        asked = images.rows[images.queries]
        found = self.query(t, k).unit(asked), self.gallery(t, k).unit(images.rows)
        for vectors, rows in zip(found, (asked, images.rows), strict=True):
            finite = np.isfinite(vectors).all(axis=1)
            if not finite.all():
                row = rows[int(np.argmin(finite))]
                raise InputError(f"open image {row}: its features by model {t + 1} or {k + 1} are NaN or infinite")
        return found


def evaluation_pairs(dataset: ImageSet, spec: EvalConfig) -> tuple[Pairs | None, Pairs]:
    """Return the pairs to tune on, if any, and those to report. Raise InputError if they do not suit the metric."""
    if dataset.templates is not None and spec.metric != "tar":
        raise InputError(f"{dataset.name} compares templates and has no folds: set eval.metric=tar")
    if spec.order == "stratified":
        counts = spec.positives, spec.negatives, spec.folds
        balanced = spec.metric == "accuracy"  # which depends on the balance; rates of accepted pairs do not
        tuning, report = tuning_and_report_pairs(
            dataset, *counts, spec.pairs_seed, spec.tuning_share, spec.split, balanced
        )
    elif dataset.pairs is None:
        rng = numpy_stream(spec.pairs_seed, "official_pairs")
        tuning, report = None, draw_official_pairs(dataset.y_open, spec.positives, spec.negatives, spec.folds, rng)
    else:
        raise InputError(
            f"eval.order=official_order draws pairs, but {dataset.name} has a list of its own; leave it out"
        )
    for pairs in (report, tuning):
        if pairs is None:
            continue
        negatives, lowest = int((~pairs.same).sum()), min(spec.far)
        if spec.metric == "tar" and negatives * lowest < 1:
            needed = math.ceil(1 / lowest)
            advice = "set higher rates, or have more pairs: more open images, higher eval.negatives"
            raise InputError(f"eval.far={lowest:g} needs {needed} negative pairs, there are {negatives}; {advice}")
        _judge(np.zeros(len(pairs)), pairs, spec)  # equal distances show whether folds and labels are usable
    return tuning, report


def search_images(dataset: ImageSet, spec: EvalConfig) -> tuple[SearchImages | None, SearchImages | None]:
    """Return the images to search among when tuning, and for the report: the images that the pairs are drawn from.

    None if there are none, if the data set has a list of pairs or templates, or if no class has two of the images.
    """
    if dataset.pairs is not None or dataset.templates is not None:
        return None, None
    if spec.order == "stratified":
        sides = tuning_and_report_images(dataset, spec.pairs_seed, spec.tuning_share, spec.split)
    else:
        sides = np.empty(0, np.int64), np.arange(len(dataset.y_open))
    tuning, report = (SearchImages.of(dataset.y_open, rows, spec.pairs_seed) for rows in sides)
    return tuning, report


def _judge(distances: FloatArray, pairs: Pairs, spec: EvalConfig) -> list[BoolArray]:
    """Return which pairs are judged rightly or, for each false accept rate, which positives are accepted."""
    if spec.metric == "tar":
        return accepted_at_fars(distances, pairs.same, spec.far)
    judge = grid_correctness if spec.thresholds == "grid" else pair_correctness
    return [judge(distances, pairs.same, pairs.folds)]


@dataclass(frozen=True)
class Evaluator:
    """Evaluates a chain as it grows, on one set of pairs and a search among images. Every cell is judged only once."""

    pairs: Pairs
    spec: EvalConfig
    images: SearchImages | None = None  # None: recall is undefined
    judged: dict[tuple[int, int], list[BoolArray]] = field(default_factory=dict)
    found: dict[tuple[int, int], FloatArray] = field(default_factory=dict)
    """(1 or 2, queries): whether the nearest image is of the query's class and, if asked for, average precision."""

    def __call__(self, features: ChainFeatures, bootstrap: bool = True, search: bool = True) -> Evaluation:
        """Return C, its metrics and, with `bootstrap`, their intervals; `search` adds the matrix of recall@1.

        With several accept rates the evaluation is that of the first, and `at` has one for each.
        """
        tasks, pairs, spec = len(features.models), self.pairs, self.spec
        cells = [(t, k) for t in range(tasks) for k in range(t + 1)]
        for t, k in cells:
            if (t, k) not in self.judged:
                distances = pair_distances(features.query(t, k), features.gallery(t, k), pairs.query, pairs.gallery)
                self.judged[t, k] = _judge(distances, pairs, spec)
        drawn = spec.bootstrap if bootstrap else 0
        recall, recall_boot, precision = self._search(features, drawn) if search else (None, None, None)
        judgements = [np.stack(rows) for rows in zip(*(self.judged[cell] for cell in cells), strict=True)]
        evaluations = []
        for number, correct in enumerate(judgements):
            if spec.metric == "accuracy":
                metric, values = "accuracy", [mean_fold_accuracy(row, pairs.folds) for row in correct]
                same, weights = pairs.same, fold_weights(pairs.folds)
            else:
                # The bootstrap draws positives; thresholds, which the negatives set, stay as they are.
                metric, values = f"TAR@{spec.far[number]:g}", [float(row.mean()) for row in correct]
                same, weights = np.ones(correct.shape[1], np.bool_), np.full(correct.shape[1], 1 / correct.shape[1])
            matrix, boot = np.full((tasks, tasks), np.nan), None
            matrix[np.tril_indices(tasks)] = values
            if drawn:
                rng = numpy_stream(spec.pairs_seed, "bootstrap")
                boot = bootstrap_matrices(correct, same, weights, tasks, drawn, rng=rng)
            one = Evaluation.of_matrix(metric, matrix, spec.ties, boot, recall, recall_boot)
            evaluations.append(dataclasses.replace(one, average_precision=precision))
        rates = {} if spec.metric == "accuracy" else dict(zip(spec.far, evaluations, strict=True))
        return dataclasses.replace(evaluations[0], at=rates)

    def _search(
        self, features: ChainFeatures, samples: int
    ) -> tuple[FloatArray | None, FloatArray | None, FloatArray | None]:
        """Return the matrix of recall@1, its bootstrap matrices, and the matrix of mAP; None for what there is not."""
        images, spec, tasks = self.images, self.spec, len(features.models)
        if images is None:
            return None, None, None
        cells = [(t, k) for t in range(tasks) for k in range(t + 1)]
        for t, k in cells:
            if (t, k) not in self.found:
                vectors = features.searched(t, k, images)
                if spec.average_precision:
                    self.found[t, k] = retrieved(*vectors, images)[:, [0, -1]].T
                else:
                    self.found[t, k] = recall_at_1(*vectors, images)[None].astype(np.float64)
        hits, *precisions = (np.stack(rows) for rows in zip(*(self.found[cell] for cell in cells), strict=True))
        boot = resampled_matrices(hits, tasks, samples, spec.pairs_seed) if samples else None
        precision = search_matrix(precisions[0], tasks) if precisions else None
        return search_matrix(hits, tasks), boot, precision
