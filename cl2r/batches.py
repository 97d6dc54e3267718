"""Mini-batches of T_t = D_t ∪ M_t: how the rows of an epoch are drawn, and the batch that a loss receives.

A global batch is drawn without knowing how many workers share it and then split, so the rows of a step, and the share
of memory among them, do not depend on the number of workers. Every epoch has its own random streams. A whole epoch is
drawn on the host before its first step: no step has to ask the device which of its rows come from memory, or the other
workers how many they have.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cl2r.augment import Augmentation, draw
from cl2r.config.schema import Config
from cl2r.seeding import numpy_stream, torch_stream

Batching = Literal["balanced", "natural"]
RowKind = Literal["all", "memory", "new"]
Counts = Mapping[RowKind, tuple[int, int]]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """One worker's rows of one step. Rows of memory belong to old classes, all others to new ones."""

    x: Tensor
    y: Tensor
    memory: Tensor  # positions of the memory rows, ascending
    counts: Counts  # for every kind the number of rows here and in the global batch
    world: int = 1
    gather: Callable[[Tensor], Tensor] = lambda rows: rows
    """Return the given rows of all workers, this worker's first, without gradients."""

    @classmethod
    def of_one_worker(cls, x: Tensor, y: Tensor, memory: Sequence[int] = ()) -> Self:
        """Return a batch that is not shared; `memory` are the positions of its memory rows."""
        positions = np.array(sorted(memory), dtype=np.int64)
        return cls(x, y, torch.from_numpy(positions).to(y.device), _counts(len(y), len(positions), len(y), len(memory)))

    def rows(self, kind: RowKind) -> Tensor:
        """Return the positions of the rows of a kind, ascending. Never waits for the device."""
        if kind == "memory":
            return self.memory
        if kind == "all":
            return torch.arange(len(self.y), device=self.y.device)
        in_memory = torch.zeros(len(self.y), dtype=torch.bool, device=self.y.device).index_fill_(0, self.memory, True)
        return torch.argsort(in_memory, stable=True)[: self.counts["new"][0]]

    def weight(self, kind: RowKind = "all") -> float:
        """Return W·n_r/Σn, the factor for a mean over the n_r rows of a kind here.

        Gradients are averaged over the W workers, so with this factor they add up to the gradient of the mean over the
        rows of all workers.
        """
        here, everywhere = self.counts[kind]
        return 1.0 if self.world == 1 else self.world * here / max(everywhere, 1)


def _counts(rows: int, memory: int, all_rows: int, all_memory: int) -> Counts:
    return {"all": (rows, all_rows), "memory": (memory, all_memory), "new": (rows - memory, all_rows - all_memory)}


@dataclass(frozen=True)
class DrawnBatch:
    """One worker's part of a global batch, on the host: rows of the training set and how each is augmented."""

    rows: Rows
    memory: Rows
    counts: Counts
    augmentation: Augmentation


def draw_epoch(
    config: Config,
    new: Rows,
    memory: Rows,
    address: tuple[int, int, int],
    batching: Batching | None = None,
    part: slice = slice(None),
) -> list[DrawnBatch]:
    """Draw all batches of the epoch at `address` (task, stage, epoch) and return this worker's part of each.

    Balanced batches begin with their memory rows: if a part is every world-th row, memory is shared evenly.
    """
    rng = numpy_stream(config.seed, "batches", *address)
    generator = torch_stream(config.seed, "augmentation", *address)
    is_memory = np.zeros(1 + max(new.max(initial=0), memory.max(initial=0)), dtype=bool)
    is_memory[memory] = True
    drawn = []
    for rows in epoch_batches(batching or config.batches.batching, new, memory, config.batches.size, rng):
        augmentation = draw(len(rows), config.augment, generator)
        mine = np.flatnonzero(is_memory[rows[part]])
        counts = _counts(len(rows[part]), len(mine), len(rows), int(is_memory[rows].sum()))
        drawn.append(DrawnBatch(rows[part], mine, counts, augmentation.part(part)))
    return drawn


def batches_per_epoch(new: int, memory: int, size: int) -> int:
    """Return ⌊|T_t| / B⌋, or 1 if T_t does not fill a batch."""
    return max(1, (new + memory) // size)


def epoch_batches(batching: Batching, new: Rows, memory: Rows, size: int, rng: np.random.Generator) -> Iterator[Rows]:
    """Yield the rows of the global batches of one epoch.

    Balanced batches are half memory, half new, drawn independently of each other; the rows of a half are distinct if
    there are enough. Natural batches, and all batches if there is no memory, are a shuffle without its incomplete end.
    """
    steps = batches_per_epoch(len(new), len(memory), size)
    if batching == "balanced" and len(memory):
        for _ in range(steps):
            halves = (memory, size // 2), (new, size - size // 2)
            yield np.concatenate([rng.choice(rows, count, replace=len(rows) < count) for rows, count in halves])
        return
    shuffled = rng.permutation(np.concatenate([memory, new]))
    for start in range(0, steps * size, size):
        yield shuffled[start : start + size]
