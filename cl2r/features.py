"""Features of many images: rows, or the two factors of these rows.

The features of the fixed classifier have n = K−1 dimensions, yet they are a bias-free linear map of a body of r < n
dimensions: φ = P b. All that verification needs of them are inner products,

    ⟨P b, Q c⟩ = b · (PᵀQ) c,    |P b|² = b · (PᵀP) b,

so b and P are stored, and the n-dimensional rows are made only if a caller asks for them.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cl2r.errors import InputError
from cl2r.verification import FloatArray, IntArray, row_products

Rows = npt.NDArray[np.floating]

TILE = 64  # blocks have a multiple of this many rows, because the row counts of all common matrix kernels divide it
BLOCK_ROWS, BLOCK_NUMBERS = 2048, 2**22
PROJECTION_ROWS = 1024
ROUNDING = 2.0**-44  # if |P b|² is below this share of |P|² |b|², it is a rounding error, and the row is taken for zero


@dataclass(frozen=True, eq=False)
class Features:
    """One row per image: the rows of `body`, or of body @ projection.T if there is a projection."""

    body: Rows  # (N, r)
    projection: Rows | None = None  # (n, r)

    def __post_init__(self) -> None:
        if self.projection is None:
            return
        shapes = f"body {self.body.shape} and projection {self.projection.shape}"
        if self.body.ndim != 2 or self.projection.ndim != 2 or self.body.shape[1] != self.projection.shape[1]:
            raise InputError(f"{shapes}: give two 2-d arrays with the same number of columns")
        if not np.isfinite(self.projection).all():
            raise InputError(f"{shapes}: the projection holds NaN or infinite values, check the model's last layer")

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows and of dimensions."""
        return self.body.shape if self.projection is None else (len(self.body), len(self.projection))

    def __len__(self) -> int:
        return len(self.body)

    def rows(self, index: IntArray | slice = slice(None)) -> Rows:
        """Return the rows at `index`, all by default."""
        rows = self.body[index]
        return rows if self.projection is None else np.asarray(rows @ self.projection.T)

    def unit(self, index: IntArray | slice = slice(None)) -> npt.NDArray[np.float32]:
        """Return the rows at `index`, all by default, divided by their lengths."""
        return unit_rows(self.rows(index)).astype(np.float32)

    def squared_norms(self, rows: IntArray) -> FloatArray:
        """Return |φ|² of these rows; NaN or infinite if the row is."""
        if self.projection is not None:
            return self._factored_norms[rows]
        norms = np.empty(len(rows))
        step = largest_block(self.body.shape[1], BLOCK_ROWS, BLOCK_NUMBERS)
        for start in range(0, len(rows), step):
            block = self.body[rows[start : start + step]].astype(np.float64, copy=False)
            with np.errstate(invalid="ignore", over="ignore"):
                norms[start : start + step] = row_products(block, block)
        return norms

    @cached_property
    def _factored_norms(self) -> FloatArray:
        """|P b|² of every row, kept because the same features are compared with those of every other model."""
        assert self.projection is not None
        gram = inner_products(self.projection, self.projection)
        floor = ROUNDING * np.trace(gram)
        size = block_size(len(self), largest_block(self.body.shape[1], BLOCK_ROWS, BLOCK_NUMBERS))
        norms = np.empty(len(self))
        for start in range(0, len(self), size):
            block = padded(self.body[start : start + size], size)
            with np.errstate(invalid="ignore", over="ignore"):  # the row is named once a pair uses it
                squared, plain = row_products(block @ gram, block), row_products(block, block)
            squared[squared <= floor * plain] = 0.0
            norms[start : start + size] = squared[: len(norms) - start]
        return norms


def unit_rows(rows: npt.ArrayLike) -> FloatArray:
    """Return rows of length one; a row of zeros stays zero."""
    array = np.asarray(rows, dtype=np.float64)
    return np.asarray(array / np.maximum(np.linalg.norm(array, axis=1, keepdims=True), 1e-12))


def inner_products(left: Rows, right: Rows) -> FloatArray:
    """Return PᵀQ in float64, summed over blocks of rows."""
    products = np.zeros((left.shape[1], right.shape[1]))
    for start in range(0, len(left), PROJECTION_ROWS):
        p, q = (x[start : start + PROJECTION_ROWS].astype(np.float64, copy=False) for x in (left, right))
        products += p.T @ q
    return products


def padded(rows: Rows, size: int) -> FloatArray:
    """Return the rows in float64, followed by zeros up to `size` rows."""
    block = np.zeros((size, rows.shape[1]))
    block[: len(rows)] = rows
    return block


def largest_block(dimensions: int, rows: int, numbers: int) -> int:
    """Return the most rows of a block that has at most `rows` rows and `numbers` numbers, in whole tiles."""
    return max(TILE, min(rows, numbers // max(dimensions, 1)) // TILE * TILE)


def block_size(rows: int, limit: int) -> int:
    """Return the rows per block if all blocks are equal: whole tiles, and as few blocks as `limit` allows."""
    blocks = max(1, -(-rows // limit))
    return max(1, -(-rows // (blocks * TILE))) * TILE
