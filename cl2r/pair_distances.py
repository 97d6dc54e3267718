"""d² = 2 − 2 cos of many pairs of rows in bounded memory.

Lists of template pairs name the same rows many times. Then whole blocks of distinct rows are multiplied and the wanted
products picked, which is cheaper than gathering two rows per pair; rows of factored features are never made. Products
are float64: both ways agree with `squared_distances` to 1e-12 unless the terms of a row cancel. AC compares strictly,
so equal rows must have equal distances wherever they stand: all blocks of a call have one shape, padded with zeros to
whole tiles of the matrix product, whose rounding then does not depend on the place. Besides the result and one index
per pair, a call needs about 256 MB at most.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from cl2r.errors import InputError
from cl2r.features import Features, block_size, inner_products, largest_block, padded
from cl2r.verification import FloatArray, IntArray, row_products, squared_distances

SMALL = 2**24  # pairs × dimensions up to which the rows of all pairs are gathered
CACHED_NUMBERS = 2**17
"""Numbers of each side that are gathered at a time if there are few: they and their float64 copies fit the cache."""
OUTER_ROWS, OUTER_NUMBERS = 4096, 2**23
INNER_ROWS, INNER_NUMBERS = 2048, 2**22
PICKED_PAIRS, GATHERED_NUMBERS = 2**20, 2**21
GATHER_COST = 64  # gathering one number of a row takes about as long as this many multiply-adds of a matrix product

Places = npt.NDArray[np.int32]


def pair_distances(query: Features, gallery: Features, query_rows: IntArray, gallery_rows: IntArray) -> FloatArray:
    """Return d² of row query_rows[i] of `query` and row gallery_rows[i] of `gallery`; a zero row has cosine 0."""
    _check(query, gallery, query_rows, gallery_rows)
    if query.projection is None and len(query_rows) * query.shape[1] <= SMALL:
        # As many rows at a time as fit the cache, because reading memory takes longer than the sums.
        step = max(1, CACHED_NUMBERS // max(query.shape[1], 1))
        distances = np.empty(len(query_rows))
        for start in range(0, len(distances), step):
            some = slice(start, start + step)
            q, g = query.body.take(query_rows[some], 0), gallery.body.take(gallery_rows[some], 0)
            distances[some] = squared_distances(q, g, start)
        return distances
    cosines = _cosines(_side("query", query, query_rows), _side("gallery", gallery, gallery_rows))
    np.multiply(cosines, -2.0, out=cosines)
    np.add(cosines, 2.0, out=cosines)
    return np.clip(cosines, 0.0, 4.0, out=cosines)


@dataclass(frozen=True)
class _Side:
    """The distinct rows that the pairs name on one side."""

    features: Features
    named: IntArray  # row of every pair
    rows: IntArray  # the distinct rows, ascending
    place: Places  # place of every row of the body among the distinct ones
    scale: FloatArray  # 1 / norm of every distinct row, 0 for a zero row

    def unit(self, places: Places) -> FloatArray:
        """Return the rows of the body at these places, divided by the norms of the features."""
        scaled: FloatArray = self.features.body[self.rows[places]] * self.scale[places, None]
        return scaled

    def block(self, start: int, size: int, metric: FloatArray | None = None) -> FloatArray:
        """Return `size` rows from place `start` on, times `metric`, divided by the norms; zeros after the last."""
        block = padded(self.features.body[self.rows[start : start + size]], size)
        if metric is not None:
            block = block @ metric
        scale = self.scale[start : start + size]
        block[: len(scale)] *= scale[:, None]
        return block

    def places(self, pairs: IntArray) -> Places:
        """Return the places of the rows that these pairs name."""
        return self.place[self.named[pairs]]


def _side(name: str, features: Features, named: IntArray) -> _Side:
    used = np.zeros(len(features), np.bool_)
    used[named] = True
    rows = np.flatnonzero(used)
    squared = features.squared_norms(rows)
    if not np.isfinite(squared).all():
        row = int(rows[np.argmin(np.isfinite(squared))])
        raise InputError(f"{name} row {row} holds NaN or infinite values: check the features of this row")
    scale = np.divide(1.0, np.sqrt(squared), out=np.zeros_like(squared), where=squared > 0)
    return _Side(features, named, rows, np.cumsum(used, dtype=np.int32) - np.int32(1), scale)


def _cosines(outer: _Side, inner: _Side) -> FloatArray:
    if len(inner.rows) < len(outer.rows):  # the side with fewer rows is the one to be multiplied by PᵀQ
        outer, inner = inner, outer
    metric, left_map, right_map = None, outer.features.projection, inner.features.projection
    if left_map is not None and right_map is not None:
        metric = inner_products(left_map, right_map)
    size = block_size(len(outer.rows), largest_block(outer.features.body.shape[1], OUTER_ROWS, OUTER_NUMBERS))
    inner_size = block_size(len(inner.rows), largest_block(inner.features.body.shape[1], INNER_ROWS, INNER_NUMBERS))
    dense = len(outer.rows) * len(inner.rows) < GATHER_COST * len(outer.named)
    if not dense:
        inner_size = max(len(inner.rows), 1)
    cosines = np.empty(len(outer.named))
    left, ready = np.empty((0, 0)), -1
    for start, inner_start, pairs in _groups(outer, size, inner, inner_size):
        if start != ready:
            left, ready = outer.block(start, size, metric), start
        step = PICKED_PAIRS if dense else max(1, GATHERED_NUMBERS // max(left.shape[1], 1))
        table = left @ inner.block(inner_start, inner_size).T if dense else left
        for first in range(0, len(pairs), step):
            some = pairs[first : first + step]
            row, column = outer.places(some) - start, inner.places(some)
            if dense:
                cosines[some] = table[row, column - inner_start]
            else:
                cosines[some] = row_products(table[row], inner.unit(column))
        del table  # two of them at a time would be too large
    return cosines


def _groups(outer: _Side, size: int, inner: _Side, inner_size: int) -> Iterator[tuple[int, int, IntArray]]:
    """Yield the places where an outer and an inner block start, and the pairs, at least one, with a row in each."""
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


def _check(query: Features, gallery: Features, query_rows: IntArray, gallery_rows: IntArray) -> None:
    if (query.projection is None) != (gallery.projection is None):
        raise InputError("query and gallery: give both with a projection or both without")
    if len(query.shape) != 2 or len(gallery.shape) != 2 or query.shape[1] != gallery.shape[1]:
        raise InputError(f"query {query.shape} and gallery {gallery.shape}: give 2-d features of the same dimensions")
    if query_rows.ndim != 1 or query_rows.shape != gallery_rows.shape:
        shapes = f"query_rows {query_rows.shape} and gallery_rows {gallery_rows.shape}"
        raise InputError(f"{shapes}: give two 1-d arrays, one row each per pair")
    for name, features, rows in (("query", query, query_rows), ("gallery", gallery, gallery_rows)):
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(features):
            spread = f"{rows.min()} to {rows.max()}"
            raise InputError(f"{name}_rows runs from {spread}: there are rows 0 to {len(features) - 1}")
