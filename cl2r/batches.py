"""Mini-batches of T_t = D_t ∪ M_t as rows of the training set: rank-aware and resumable.

A global batch is drawn without knowing how many workers share it, then split; so the rows of a step, and the share of
memory among them, do not depend on the number of workers. An epoch is addressed by its own random stream.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

Batching = Literal["balanced", "natural"]
Rows = npt.NDArray[np.int64]


def batches_per_epoch(new: int, memory: int, size: int) -> int:
    """⌊|T_t| / B⌋, and one batch where T_t does not fill any."""
    return max(1, (new + memory) // size)


def epoch_batches(batching: Batching, new: Rows, memory: Rows, size: int, rng: np.random.Generator) -> Iterator[Rows]:
    """The global batches of one epoch. Without memory every batching is a plain shuffle that drops the last rows."""
    if batching == "balanced" and len(memory):
        return _balanced(new, memory, size, rng)
    return _natural(np.concatenate([memory, new]), size, rng)


def _natural(rows: Rows, size: int, rng: np.random.Generator) -> Iterator[Rows]:
    shuffled = rng.permutation(rows)
    for start in range(0, batches_per_epoch(len(rows), 0, size) * size, size):
        yield shuffled[start : start + size]


def _balanced(new: Rows, memory: Rows, size: int, rng: np.random.Generator) -> Iterator[Rows]:
    """Half memory, half new: distinct inside a half where there are enough, drawn anew for every batch."""
    half = size // 2
    for _ in range(batches_per_epoch(len(new), len(memory), size)):
        yield np.concatenate([_draw(memory, half, rng), _draw(new, size - half, rng)])


def _draw(rows: Rows, count: int, rng: np.random.Generator) -> Rows:
    return rng.choice(rows, count, replace=len(rows) < count)


def shard(batch: Rows, rank: int, world: int) -> Rows:
    """The part of a global batch that `rank` of `world` workers trains on.

    Every world-th row: since memory rows come first, each worker gets its even share of both kinds.
    """
    return batch[rank::world]
