"""1:N search, judged by classes: is an image of the query's class among the first k, and how early do all of them come?

    recall@k   share of queries with an image of their class among the first k
    mAP        average precision over the whole ranking, mean over queries

Rankings are by cosine, equal cosines in the order of rows. An image is never its own hit, and a query whose class has
no other image counts for nothing. C[t, k] made of one of these is read as that of verification: AC, BC, FC. Intervals
draw queries anew; gallery and models stay as they are. Queries of one class are alike: on icons, with 20 open classes,
intervals of BC that drew whole classes were three to four times as wide.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cl2r.compatibility import (
    FloatArray,
    average_compatibility,
    backward_compatibility,
    backward_compatibility_curve,
    compatibility_matrix,
    empirical_compatibility,
    forward_compatibility,
    intervals,
    mean_accuracy,
)
from cl2r.diagnostics import unit_rows
from cl2r.engine.evaluation import ChainFeatures, Evaluation, Features
from cl2r.errors import InputError
from cl2r.pair_distances import Factored
from cl2r.seeding import numpy_stream

TOPS = (1, 5, 10)
METRICS = (*(f"recall@{top}" for top in TOPS), "mAP")
SAMPLES = 1000
BLOCK_NUMBERS = 2**22
"""Cosines that are ranked at a time: about 150 MB."""
DIGITS = 12
"""Sums of a draw differ by rounding from one place of a matrix product to another: equal cells must stay equal."""

Vectors = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Truth:
    """Classes of the queries and of the gallery's rows."""

    queries: Integers
    gallery: Integers
    own: Integers
    """The row of the gallery that shows the query itself, −1 if none does."""

    def __post_init__(self) -> None:
        if len(self.own) != len(self.queries):
            raise ValueError(f"{len(self.queries)} queries, but own rows of {len(self.own)}")

    @classmethod
    def of_same_images(cls, labels: Integers) -> "Truth":
        """Every image of the gallery is a query too."""
        return cls(labels, labels, np.arange(len(labels)))

    @property
    def answerable(self) -> npt.NDArray[np.bool_]:
        """Which queries have something to find."""
        classes, counts = np.unique(self.gallery, return_counts=True)
        places = np.minimum(np.searchsorted(classes, self.queries), len(classes) - 1)
        found = np.where(classes[places] == self.queries, counts[places], 0)
        itself = (self.own >= 0) & (self.gallery[np.maximum(self.own, 0)] == self.queries)
        return np.asarray(found - itself > 0)


def unit(features: Features | Factored) -> Vectors:
    """Rows of length one, as a gallery keeps them."""
    rows = features.body @ features.projection.T if isinstance(features, Factored) else features
    return unit_rows(rows).astype(np.float32)


def cosines(queries: Vectors, gallery: Vectors) -> Vectors:
    """Of every query and row. Summed in double precision, then rounded: where equal rows stand makes no difference."""
    return np.asarray(queries.astype(np.float64) @ gallery.astype(np.float64).T).astype(np.float32)


def query_blocks(queries: int, rows: int) -> Iterator[slice]:
    """Queries that are ranked together."""
    size = max(1, BLOCK_NUMBERS // rows)
    return (slice(start, min(start + size, queries)) for start in range(0, queries, size))


def judge(scores: Vectors, truth: Truth, block: slice) -> FloatArray:
    """(queries of the block, metrics) from their scores of all rows; NaN where there is nothing to find."""
    right = truth.queries[block, None] == truth.gallery
    own = truth.own[block]
    itself = (np.flatnonzero(own >= 0), own[own >= 0])
    scores, right[itself] = scores.copy(), False
    scores[itself] = -np.inf
    ranked = np.take_along_axis(right, np.argsort(-scores, axis=1, kind="stable"), axis=1)
    found = np.cumsum(ranked, axis=1, dtype=np.int64)
    total = found[:, -1]
    precision = np.where(ranked, found / np.arange(1, ranked.shape[1] + 1), 0).sum(axis=1)
    judged = np.stack([*(ranked[:, :top].any(axis=1) for top in TOPS), precision / np.maximum(total, 1)], axis=1)
    return np.where(total[:, None] > 0, judged, np.nan)


def retrieved(queries: Vectors, gallery: Vectors, truth: Truth) -> FloatArray:
    """(queries, metrics): how well every query finds its class."""
    blocks = query_blocks(len(queries), len(gallery))
    return np.concatenate([judge(cosines(queries[block], gallery), truth, block) for block in blocks])


def evaluate(
    features: ChainFeatures, labels: Integers, samples: int = SAMPLES, seed: int = 0, ties: bool = False
) -> dict[str, Evaluation]:
    """C by every metric, and what is read off it; all open images are queries, and the gallery too."""
    truth, tasks = Truth.of_same_images(labels), len(features.models)
    known = truth.answerable
    if not known.any():
        raise InputError("no class of the open images has two of them: there is nothing to search for")
    cells = [
        retrieved(unit(features.query(t, k)), unit(features.gallery(t, k)), truth)[known]
        for t in range(tasks)
        for k in range(t + 1)
    ]
    counts = _drawn(int(known.sum()), samples, seed)
    return {
        metric: _evaluation(metric, [cell[:, place] for cell in cells], tasks, counts, ties)
        for place, metric in enumerate(METRICS)
    }


def _drawn(queries: int, samples: int, seed: int) -> FloatArray:
    """How often each query is in each of the draws (samples, queries); the same draws for all cells."""
    stream = numpy_stream(seed, "retrieval_bootstrap")
    return stream.multinomial(queries, np.full(queries, 1 / queries), samples).astype(np.float64)


def _evaluation(metric: str, cells: Sequence[FloatArray], tasks: int, counts: FloatArray, ties: bool) -> Evaluation:
    matrix = compatibility_matrix(lambda t, k: float(cells[t * (t + 1) // 2 + k].mean()), tasks)
    drawn = np.full((len(counts), tasks, tasks), np.nan)
    drawn[:, *np.tril_indices(tasks)] = (counts @ np.stack(cells, axis=1) / counts.shape[1]).round(DIGITS)
    return Evaluation(
        metric=metric,
        matrix=matrix,
        compatible=empirical_compatibility(matrix, ties),
        ac=average_compatibility(matrix, ties),
        bc=backward_compatibility(matrix),
        fc=forward_compatibility(matrix),
        mean=mean_accuracy(matrix),
        bc_curve=backward_compatibility_curve(matrix),
        intervals=intervals(matrix, drawn, ties=ties) if len(counts) else None,
    )
