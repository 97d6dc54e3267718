"""1:N search judged by classes: is an image of the query's class among the first k, and how early do all of them come?

    recall@k   share of queries with an image of their class among the first k
    mAP        average precision over the whole ranking, mean over queries

Rankings are by cosine, with equal cosines in row order. An image is never its own hit, and an image whose class has no
other image is no query. All given images are the gallery; at most 2,000 of them, always the same, are queries.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cl2r.compatibility import BoolArray, FloatArray
from cl2r.seeding import numpy_stream

TOPS = (1, 5, 10)
SEARCH_METRICS = (*(f"recall@{top}" for top in TOPS), "mAP")
QUERIES = 2000
BLOCK_NUMBERS = 2**22  # cosines, coordinates or draws that are held at a time; ranking so many takes about 150 MB
DIGITS = 12  # sums are rounded to this: a matrix product rounds equal cells differently, and they must stay equal

Vectors = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SearchImages:
    """Open images to search among. All are the gallery, some of them are queries."""

    rows: Integers  # of the open images, ascending
    labels: Integers  # class of each of these rows
    queries: Integers  # places of the queries in `rows`, ascending

    @classmethod
    def of(cls, labels: Integers, rows: Integers, seed: int) -> "SearchImages | None":
        """Return the given rows of the open images as images to search; None if no class has two of them."""
        asked = query_rows(labels, rows, seed)
        return cls(rows, labels[rows], np.searchsorted(rows, asked).astype(np.int64)) if len(asked) else None


def query_rows(labels: Integers, rows: Integers, seed: int, limit: int = QUERIES) -> Integers:
    """Return the rows that are queries, ascending: those with another row of their class, or a sample of `limit`."""
    asked = np.sort(rows[answerable(labels[rows])])
    if len(asked) <= limit:
        return asked
    return np.sort(numpy_stream(seed, "search_queries").choice(asked, limit, replace=False))


def answerable(labels: Integers) -> BoolArray:
    """Return which images have another one of their class to find."""
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return np.asarray(counts[classes] > 1)


def cosines(queries: Vectors, gallery: Vectors) -> Vectors:
    """Return the cosine of every query and row, summed in double precision so that equal rows get equal values."""
    scores = np.empty((len(queries), len(gallery)), np.float32)
    doubled, size = queries.astype(np.float64), max(1, BLOCK_NUMBERS // max(gallery.shape[1], 1))
    for start in range(0, len(gallery), size):
        scores[:, start : start + size] = doubled @ gallery[start : start + size].astype(np.float64).T
    return scores


def query_blocks(queries: int, rows: int) -> Iterator[slice]:
    """Return slices of queries that are compared with all rows together."""
    size = max(1, BLOCK_NUMBERS // rows)
    return (slice(start, min(start + size, queries)) for start in range(0, queries, size))


def recall_at_1(queries: Vectors, gallery: Vectors, images: SearchImages) -> BoolArray:
    """Return for which queries the nearest other image is of their class; nothing is sorted."""
    hits = np.empty(len(queries), np.bool_)
    for block in query_blocks(len(queries), len(gallery)):
        scores, own = cosines(queries[block], gallery), images.queries[block]
        scores[np.arange(len(own)), own] = -np.inf
        hits[block] = images.labels[scores.argmax(axis=1)] == images.labels[own]
    return hits


def judge(scores: Vectors, images: SearchImages, block: slice) -> FloatArray:
    """Return (queries of the block, metrics) from the scores of these queries and all rows."""
    own = images.queries[block]
    right, itself = images.labels[own, None] == images.labels, (np.arange(len(own)), own)
    scores, right[itself] = scores.copy(), False
    scores[itself] = -np.inf
    ranked = np.take_along_axis(right, np.argsort(-scores, axis=1, kind="stable"), axis=1)
    found = np.cumsum(ranked, axis=1, dtype=np.int64)
    precision = np.where(ranked, found / np.arange(1, ranked.shape[1] + 1), 0).sum(axis=1) / found[:, -1]
    return np.stack([*(ranked[:, :top].any(axis=1) for top in TOPS), precision], axis=1)


def retrieved(queries: Vectors, gallery: Vectors, images: SearchImages) -> FloatArray:
    """Return (queries, metrics): how well every query finds the other images of its class in the gallery."""
    blocks = query_blocks(len(queries), len(gallery))
    return np.concatenate([judge(cosines(queries[block], gallery), images, block) for block in blocks])


def search_matrix(cells: FloatArray, tasks: int) -> FloatArray:
    """Return the matrix of means over queries; `cells` (cells, queries) are in the order of np.tril_indices(tasks)."""
    matrix = np.full((tasks, tasks), np.nan)
    matrix[np.tril_indices(tasks)] = cells.mean(axis=1)
    return matrix


def resampled_matrices(cells: FloatArray, tasks: int, samples: int, seed: int) -> FloatArray:
    """Return matrices (samples, T, T) of queries drawn with replacement; all cells share a draw."""
    queries, stream = cells.shape[1], numpy_stream(seed, "retrieval_bootstrap")
    matrices, size = np.full((samples, tasks, tasks), np.nan), max(1, BLOCK_NUMBERS // queries)
    for start in range(0, samples, size):
        counts = stream.multinomial(queries, np.full(queries, 1 / queries), min(size, samples - start))
        drawn = (counts.astype(np.float64) @ cells.T / queries).round(DIGITS)
        matrices[start : start + size, *np.tril_indices(tasks)] = drawn
    return matrices
