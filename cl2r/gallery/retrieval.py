"""1:N search judged by classes: is an image of the query's class among the first k, and how early do all of them come?

    recall@k   share of queries with an image of their class among the first k
    mAP        average precision over the whole ranking, mean over queries

Rankings are by cosine, with equal cosines in row order. An image is never its own hit, and a query whose class has no
other image is left out. C[t, k] of one of these metrics is read like that of verification: AC, BC, FC. Intervals
resample queries; gallery and models are fixed. Queries of one class are alike: on icons, with 20 open classes,
intervals of BC that resampled whole classes were three to four times as wide.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from cl2r.compatibility import FloatArray
from cl2r.engine.evaluation import ChainFeatures, Evaluation
from cl2r.engine.plan import Plan
from cl2r.errors import InputError
from cl2r.metrics import COMPATIBILITY
from cl2r.seeding import numpy_stream

TOPS = (1, 5, 10)
METRICS = (*(f"recall@{top}" for top in TOPS), "mAP")
SAMPLES = 1000
BLOCK_NUMBERS = 2**22  # cosines that are ranked at a time, about 150 MB
NOTHING = "no class of the open images has two of them: there is nothing to search for"
DIGITS = 12  # sums are rounded to this: a matrix product rounds equal cells differently, and they must stay equal

Vectors = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


def answerable(labels: Integers) -> npt.NDArray[np.bool_]:
    """Return which images have another one of their class to find."""
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return np.asarray(counts[classes] > 1)


def cosines(queries: Vectors, gallery: Vectors) -> Vectors:
    """Return the cosine of every query and row, summed in double precision so that equal rows get equal values."""
    return np.asarray(queries.astype(np.float64) @ gallery.astype(np.float64).T).astype(np.float32)


def query_blocks(rows: int) -> Iterator[slice]:
    """Return slices of queries that are ranked together; every row is a query."""
    size = max(1, BLOCK_NUMBERS // rows)
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def judge(scores: Vectors, labels: Integers, block: slice) -> FloatArray:
    """Return (queries of the block, metrics) from their scores of all rows; NaN if there is nothing to find."""
    right = labels[block, None] == labels
    itself = (np.arange(len(right)), np.arange(len(labels))[block])
    scores, right[itself] = scores.copy(), False
    scores[itself] = -np.inf
    ranked = np.take_along_axis(right, np.argsort(-scores, axis=1, kind="stable"), axis=1)
    found = np.cumsum(ranked, axis=1, dtype=np.int64)
    total = found[:, -1]
    precision = np.where(ranked, found / np.arange(1, ranked.shape[1] + 1), 0).sum(axis=1)
    judged = np.stack([*(ranked[:, :top].any(axis=1) for top in TOPS), precision / np.maximum(total, 1)], axis=1)
    return np.where(total[:, None] > 0, judged, np.nan)


def retrieved(queries: Vectors, gallery: Vectors, labels: Integers) -> FloatArray:
    """Return (queries, metrics): how well every image, as a query, finds the others of its class in the gallery."""
    blocks = query_blocks(len(labels))
    return np.concatenate([judge(cosines(queries[block], gallery), labels, block) for block in blocks])


def evaluate(
    features: ChainFeatures, labels: Integers, samples: int = SAMPLES, seed: int = 0, ties: bool = False
) -> dict[str, Evaluation]:
    """Return C and its summaries by every metric; all open images are queries, and also the gallery."""
    known, tasks = answerable(labels), len(features.models)
    if not known.any():
        raise InputError(NOTHING)
    cells = [
        retrieved(features.query(t, k).unit(), features.gallery(t, k).unit(), labels)[known]
        for t in range(tasks)
        for k in range(t + 1)
    ]
    stream, queries = numpy_stream(seed, "retrieval_bootstrap"), int(known.sum())  # one draw for all cells
    counts = stream.multinomial(queries, np.full(queries, 1 / queries), samples).astype(np.float64)
    found, lower = dict[str, Evaluation](), np.tril_indices(tasks)
    for place, metric in enumerate(METRICS):
        columns = [cell[:, place] for cell in cells]
        matrix, drawn = np.full((tasks, tasks), np.nan), np.full((samples, tasks, tasks), np.nan)
        matrix[lower] = [column.mean() for column in columns]
        drawn[:, *lower] = (counts @ np.stack(columns, axis=1) / queries).round(DIGITS)
        found[metric] = Evaluation.of_matrix(metric, matrix, ties, drawn if samples else None)
    return found


def retrieval_rows(evaluations: dict[str, Evaluation]) -> Iterator[dict[str, Any]]:
    """Yield one row per metric and cell of C."""
    for metric, found in evaluations.items():
        for t, k in zip(*np.tril_indices(len(found.matrix)), strict=True):
            bounds = found.cells
            low, high = (bounds.low[t, k], bounds.high[t, k]) if bounds else (np.nan, np.nan)
            cell = {"t": int(t) + 1, "k": int(k) + 1, "metric": metric, "value": found.matrix[t, k]}
            yield {**cell, "low": low, "high": high, "compatible": bool(found.compatible[t, k])}


def compatibility_rows(evaluations: dict[str, Evaluation]) -> Iterator[dict[str, Any]]:
    """Yield one row per metric and summary of C: AC, BC, FC."""
    for metric, found in evaluations.items():
        for name in (entry.name for entry in COMPATIBILITY):
            low, high = found.intervals.get(name, (np.nan, np.nan))
            yield {"metric": metric, "summary": name, "value": found.values[name], "low": low, "high": high}


def check_plan(plan: Plan) -> None:
    """Raise InputError if a run gives no upgrade to search after, or no images to search for."""
    name = plan.dataset.name
    if plan.dataset.templates is not None:
        raise InputError(f"{name} compares templates of unnamed people: there is nothing to search for")
    if len(plan.keys) < 2:
        raise InputError(f"{name} in one task: an upgrade needs two models, use --tasks 2 or more")
    if not answerable(plan.dataset.y_open).any():
        raise InputError(f"{name}: {NOTHING}")
