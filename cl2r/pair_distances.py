"""d² = 2 − 2 cos of many pairs of rows in bounded memory.

The fixed classifier's features have n = K−1 dimensions, one for every class but one, yet they are a bias-free linear
map of a body of r < n dimensions: φ = P b. All that verification needs of them are inner products,

    ⟨P b, Q c⟩ = b · (PᵀQ) c,    |P b|² = b · (PᵀP) b,

so `Factored` keeps b and P, and the n-dimensional rows are never made. Pair lists over templates name the same rows
again and again; then whole blocks of distinct rows are multiplied and the wanted products picked, which is cheaper
than gathering two rows a pair. Products are float64: both ways agree with `squared_distances` to 1e-12 where features
do not cancel. AC compares strictly, so equal rows must have equal distances wherever they stand: all blocks of a
call have one shape, padded with zeros to whole tiles of the matrix product, whose rounding then does not depend on
the place. Besides the result and one index a pair, a call holds about 256 MB at most.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from cl2r.errors import InputError
from cl2r.verification import FloatArray, IntArray, squared_distances

SMALL = 2**24
"""Pairs × dimensions up to which the rows of all pairs are gathered."""
CACHED_NUMBERS = 2**17
"""Of each side that are gathered at a time where they are few: they and their float64 copies stay in the cache."""
TILE = 64
"""Rows of a block are a multiple of it, as those of every common matrix kernel divide it."""
OUTER_ROWS, OUTER_NUMBERS = 4096, 2**23
INNER_ROWS, INNER_NUMBERS = 2048, 2**22
PROJECTION_ROWS = 1024
PICKED_PAIRS, GATHERED_NUMBERS = 2**20, 2**21
GATHER_COST = 64
"""A number of a gathered row takes about as long as so many multiply-adds of a matrix product."""
ROUNDING = 2.0**-44
"""Share of |P|² |b|² below which |P b|² is rounding: the row is taken for zero."""

Rows = npt.NDArray[np.floating]
Places = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Factored:
    """The rows body @ projection.T, (N, n), which are never made."""

    body: Rows
    """(N, r)"""
    projection: Rows
    """(n, r)"""

    def __post_init__(self) -> None:
        shapes = f"body {self.body.shape} and projection {self.projection.shape}"
        if self.body.ndim != 2 or self.projection.ndim != 2 or self.body.shape[1] != self.projection.shape[1]:
            raise InputError(f"{shapes}: give two 2-d arrays with the same number of columns")
        if not np.isfinite(self.projection).all():
            raise InputError(f"{shapes}: the projection holds NaN or infinite values, check the model's last layer")

    @property
    def shape(self) -> tuple[int, int]:
        """Of the rows it stands for."""
        return len(self.body), len(self.projection)

    def __len__(self) -> int:
        return len(self.body)

    @cached_property
    def squared_norms(self) -> FloatArray:
        """|P b|² of every row; kept, as the same features meet those of every other model."""
        gram = _metric(self.projection, self.projection)
        floor = ROUNDING * np.trace(gram)
        size = _block_size(len(self), _limit(self.body.shape[1], INNER_ROWS, INNER_NUMBERS))
        norms = np.empty(len(self))
        for start in range(0, len(self), size):
            block = _padded(self.body[start : start + size], size)
            with np.errstate(invalid="ignore", over="ignore"):  # whoever uses the row is told its number
                squared, plain = _row_products(block @ gram, block), _row_products(block, block)
            squared[squared <= floor * plain] = 0.0
            norms[start : start + size] = squared[: len(norms) - start]
        return norms


Features = Rows | Factored


def pair_distances(query: Features, gallery: Features, query_rows: IntArray, gallery_rows: IntArray) -> FloatArray:
    """d² of row query_rows[i] of `query` and row gallery_rows[i] of `gallery`; a zero row has cosine 0."""
    _check(query, gallery, query_rows, gallery_rows)
    if not isinstance(query, Factored) and not isinstance(gallery, Factored) and _is_small(query, query_rows):
        return _few_distances(query, gallery, query_rows, gallery_rows)
    outer, inner = _side("query", query, query_rows), _side("gallery", gallery, gallery_rows)
    if len(inner.rows) < len(outer.rows):  # the side with fewer rows is the one to be taken through PᵀQ
        outer, inner = inner, outer
    metric = None
    if outer.projection is not None and inner.projection is not None:
        metric = _metric(outer.projection, inner.projection)
    cosines = _cosines(outer, inner, metric)
    np.multiply(cosines, -2.0, out=cosines)
    np.add(cosines, 2.0, out=cosines)
    return np.clip(cosines, 0.0, 4.0, out=cosines)


def _few_distances(query: Rows, gallery: Rows, query_rows: IntArray, gallery_rows: IntArray) -> FloatArray:
    """A cacheful of gathered rows at a time: what is fetched from memory anew for every pair takes longer than sums."""
    step = max(1, CACHED_NUMBERS // max(query.shape[1], 1))
    distances = np.empty(len(query_rows))
    for start in range(0, len(distances), step):
        some = slice(start, start + step)
        distances[some] = squared_distances(query.take(query_rows[some], 0), gallery.take(gallery_rows[some], 0), start)
    return distances


def _is_small(features: Rows, rows: IntArray) -> bool:
    return len(rows) * int(features.shape[1]) <= SMALL


@dataclass(frozen=True)
class _Side:
    """The distinct rows that the pairs name on one side."""

    body: Rows
    projection: Rows | None
    named: IntArray
    """Row of every pair."""
    rows: IntArray
    """The distinct ones, ascending."""
    place: Places
    """Of every row of the body among the distinct ones."""
    scale: FloatArray
    """1 / norm of every distinct row, 0 for a zero row."""

    def unit(self, places: Places) -> FloatArray:
        """The rows at these places, divided by their norms."""
        scaled: FloatArray = self.body[self.rows[places]] * self.scale[places, None]
        return scaled

    def block(self, start: int, size: int, metric: FloatArray | None = None) -> FloatArray:
        """`size` rows from place `start` on, through the metric and divided by their norms; zeros after the last."""
        block = _padded(self.body[self.rows[start : start + size]], size)
        if metric is not None:
            block = block @ metric
        scale = self.scale[start : start + size]
        block[: len(scale)] *= scale[:, None]
        return block

    def places(self, pairs: IntArray) -> Places:
        """Places of the rows that these pairs name."""
        return self.place[self.named[pairs]]


def _cosines(outer: _Side, inner: _Side, metric: FloatArray | None) -> FloatArray:
    size = _block_size(len(outer.rows), _limit(outer.body.shape[1], OUTER_ROWS, OUTER_NUMBERS))
    inner_size = _block_size(len(inner.rows), _limit(inner.body.shape[1], INNER_ROWS, INNER_NUMBERS))
    dense = len(outer.rows) * len(inner.rows) < GATHER_COST * len(outer.named)
    if not dense:
        inner_size = max(len(inner.rows), 1)
    cosines = np.empty(len(outer.named))
    left, ready = np.empty((0, 0)), -1
    for start, inner_start, pairs in _groups(outer, size, inner, inner_size):
        if start != ready:
            left, ready = outer.block(start, size, metric), start
        if dense:
            _pick(cosines, pairs, left @ inner.block(inner_start, inner_size).T, outer, start, inner, inner_start)
        else:
            _gather(cosines, pairs, left, outer, start, inner)
    return cosines


def _groups(outer: _Side, size: int, inner: _Side, inner_size: int) -> Iterator[tuple[int, int, IntArray]]:
    """For every two blocks, by the places where they start, the pairs that name a row of each; none is empty."""
    inner_blocks = -(-len(inner.rows) // inner_size)
    blocks = -(-len(outer.rows) // size) * inner_blocks
    kind = np.dtype(np.uint16 if blocks <= 2**16 else np.uint64)  # 16 bits are sorted by counting
    key = (outer.place // size * inner_blocks).astype(kind)[outer.named]
    key += (inner.place // inner_size).astype(kind)[inner.named]
    order = np.argsort(key, kind="stable")
    bounds = [*np.searchsorted(key, np.arange(blocks, dtype=kind), sorter=order).tolist(), len(key)]
    del key
    for block, (begin, end) in enumerate(pairwise(bounds)):
        if begin < end:
            yield block // inner_blocks * size, block % inner_blocks * inner_size, order[begin:end]


def _pick(
    cosines: FloatArray, pairs: IntArray, product: FloatArray, outer: _Side, start: int, inner: _Side, inner_start: int
) -> None:
    for first in range(0, len(pairs), PICKED_PAIRS):
        some = pairs[first : first + PICKED_PAIRS]
        cosines[some] = product[outer.places(some) - start, inner.places(some) - inner_start]


def _gather(cosines: FloatArray, pairs: IntArray, left: FloatArray, outer: _Side, start: int, inner: _Side) -> None:
    step = max(1, GATHERED_NUMBERS // max(left.shape[1], 1))
    for first in range(0, len(pairs), step):
        some = pairs[first : first + step]
        cosines[some] = _row_products(left[outer.places(some) - start], inner.unit(inner.places(some)))


def _side(name: str, features: Features, named: IntArray) -> _Side:
    used = np.zeros(len(features), np.bool_)
    used[named] = True
    rows = np.flatnonzero(used)
    if isinstance(features, Factored):
        body, projection, squared = features.body, features.projection, features.squared_norms[rows]
    else:
        body, projection, squared = features, None, _squared_norms(features, rows)
    if not np.isfinite(squared).all():
        row = int(rows[np.argmin(np.isfinite(squared))])
        raise InputError(f"{name} row {row} holds NaN or infinite values: check the features of this row")
    scale = np.divide(1.0, np.sqrt(squared), out=np.zeros_like(squared), where=squared > 0)
    place = np.cumsum(used, dtype=np.int32) - np.int32(1)
    return _Side(body, projection, named, rows, place, scale)


def _squared_norms(features: Rows, rows: IntArray) -> FloatArray:
    norms = np.empty(len(rows))
    step = _limit(features.shape[1], INNER_ROWS, INNER_NUMBERS)
    for start in range(0, len(rows), step):
        block = features[rows[start : start + step]].astype(np.float64, copy=False)
        with np.errstate(invalid="ignore", over="ignore"):
            norms[start : start + step] = _row_products(block, block)
    return norms


def _metric(left: Rows, right: Rows) -> FloatArray:
    """PᵀQ, a block of rows at a time."""
    metric = np.zeros((left.shape[1], right.shape[1]))
    for start in range(0, len(left), PROJECTION_ROWS):
        p, q = (x[start : start + PROJECTION_ROWS].astype(np.float64, copy=False) for x in (left, right))
        metric += p.T @ q
    return metric


def _row_products(a: FloatArray, b: FloatArray) -> FloatArray:
    products: FloatArray = np.einsum("nd,nd->n", a, b)
    return products


def _padded(rows: Rows, size: int) -> FloatArray:
    padded = np.zeros((size, rows.shape[1]))
    padded[: len(rows)] = rows
    return padded


def _limit(dimensions: int, rows: int, numbers: int) -> int:
    """The most rows of a block: so many rows, so many numbers, in whole tiles."""
    return max(TILE, min(rows, numbers // max(dimensions, 1)) // TILE * TILE)


def _block_size(rows: int, limit: int) -> int:
    """Rows of each block when all are alike, whole tiles and as few as the limit allows."""
    blocks = max(1, -(-rows // limit))
    return max(1, -(-rows // (blocks * TILE))) * TILE


def _check(query: Features, gallery: Features, query_rows: IntArray, gallery_rows: IntArray) -> None:
    if isinstance(query, Factored) != isinstance(gallery, Factored):
        raise InputError("query and gallery: give both as arrays or both as Factored")
    if len(query.shape) != 2 or len(gallery.shape) != 2 or query.shape[1] != gallery.shape[1]:
        raise InputError(f"query {query.shape} and gallery {gallery.shape}: give 2-d features of the same dimensions")
    if query_rows.ndim != 1 or query_rows.shape != gallery_rows.shape:
        shapes = f"query_rows {query_rows.shape} and gallery_rows {gallery_rows.shape}"
        raise InputError(f"{shapes}: give two 1-d arrays, one row each per pair")
    for name, features, rows in (("query", query, query_rows), ("gallery", gallery, gallery_rows)):
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(features):
            raise InputError(
                f"{name}_rows runs from {rows.min()} to {rows.max()}: there are rows 0 to {len(features) - 1}"
            )
