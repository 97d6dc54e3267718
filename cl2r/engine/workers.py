"""The processes that train one model together. A single process pays nothing for any of this.

Every worker draws the same global batch and trains on its own part. DDP averages gradients over W workers, so a mean
over n_r rows counts W·n_r/Σn (`Batch.weight`): then the loss does not depend on how rows, and memory rows among them,
are dealt to workers. Only the first worker reads and writes the store.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cl2r.errors import InputError, TrainingError

T = TypeVar("T")


@dataclass(frozen=True)
class Workers:
    """This process among `world`; more than one needs a process group."""

    rank: int = 0
    world: int = 1
    sync_batchnorm: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cuda" if torch.cuda.is_available() else "cpu"))

    @property
    def first(self) -> bool:
        """Return whether this is the worker that reads and writes the store."""
        return self.rank == 0

    def from_first(self, read: Callable[[], T]) -> T:
        """Call `read` on the first worker only; return its value, or raise its exception, on all of them."""
        if self.world == 1:
            return read()
        box: list[Any] = [None, None]
        if self.first:
            try:
                box[0] = read()
            except Exception as error:  # the other workers wait: it must reach them before it is raised
                box[1] = error
        dist.broadcast_object_list(box, src=0)
        if box[1] is not None:
            raise box[1]
        value: T = box[0]
        return value

    def together(self, prepare: Callable[[], T]) -> T:
        """Return what `prepare` returns here. An InputError on any worker (no data on its node) is raised on all."""
        if self.world == 1:
            return prepare()
        value, problem = None, None
        try:
            value = prepare()
        except InputError as error:
            problem = str(error)
        problems: list[str | None] = [None] * self.world
        dist.all_gather_object(problems, problem)
        for rank, text in enumerate(problems):
            if text is not None:
                raise InputError(f"worker {rank}: {text}")
        return value  # type: ignore[return-value]

    def gather(self, rows: Tensor, total: int) -> Tensor:
        """Return the `total` rows of a batch, which the workers share, without gradients; this worker's come first."""
        if self.world == 1:
            return rows
        counts = [len(range(rank, total, self.world)) for rank in range(self.world)]
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows.detach()
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        own = [part[:count] for part, count in zip(parts, counts, strict=True)]
        return torch.cat([own.pop(self.rank), *own])

    def mean(self, values: dict[str, float]) -> dict[str, float]:
        """Return the mean of every value over the workers."""
        if self.world == 1:
            return values
        total = torch.tensor(list(values.values()), dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return dict(zip(values, (total / self.world).tolist(), strict=True))

    def prepare(self, network: nn.Module) -> None:
        """Make batch norms use the rows of all workers if `sync_batchnorm` is set. Raise TrainingError on CPUs."""
        if self.world == 1 or not self.sync_batchnorm:
            return
        if next(network.parameters()).device.type != "cuda":
            raise TrainingError("--sync-batchnorm needs GPUs: torch has no synchronised batch norm on the CPU")
        nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]

    def wrap(self, network: nn.Module) -> nn.Module:
        """Return the network with gradients averaged over the workers."""
        return network if self.world == 1 else DistributedDataParallel(network)


ALONE = Workers()
