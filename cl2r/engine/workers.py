"""The processes that train one model together. With one of them nothing here costs anything.

Every worker draws the same global batch and trains on its own part. DDP averages gradients over W workers, so a mean
over n_r rows here must count W·n_r/Σn to become the mean over all rows; that, and not the local mean, makes the loss
independent of how rows, and memory rows among them, fall to workers. Only the first worker reads and writes the store.
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
        """Whether this is the worker that reads and writes."""
        return self.rank == 0

    def from_first(self, read: Callable[[], T]) -> T:
        """What `read` gives, or raises, on the first worker, on every worker."""
        if self.world == 1:
            return read()
        box: list[Any] = [None, None]
        if self.first:
            try:
                box[0] = read()
            except Exception as error:  # the others wait for it: it must reach them before it is raised
                box[1] = error
        dist.broadcast_object_list(box, src=0)
        if box[1] is not None:
            raise box[1]
        value: T = box[0]
        return value

    def together(self, prepare: Callable[[], T]) -> T:
        """What `prepare` gives here; bad input of any worker (a node without the data) is raised on every one."""
        if self.world == 1:
            return prepare()
        value, complaint = None, None
        try:
            value = prepare()
        except InputError as error:
            complaint = str(error)
        complaints: list[str | None] = [None] * self.world
        dist.all_gather_object(complaints, complaint)
        for rank, text in enumerate(complaints):
            if text is not None:
                raise InputError(f"worker {rank}: {text}")
        return value  # type: ignore[return-value]

    def weight(self, rows: int) -> Tensor | float:
        """W·n_r/Σn: what a mean over `rows` rows here counts for. 0 where no worker has any."""
        if self.world == 1:
            return 1.0
        total = torch.tensor(float(rows), device=self.device)
        dist.all_reduce(total)
        return self.world * rows / total.clamp(min=1)

    def rows_of_all(self, rows: Tensor) -> Tensor:
        """The rows of every worker, this one's first; without gradients. Workers may have different numbers of them."""
        if self.world == 1:
            return rows
        counts = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(self.world)]
        dist.all_gather(counts, torch.tensor([len(rows)], device=rows.device))
        padded = rows.new_zeros(max(int(count) for count in counts), *rows.shape[1:])
        padded[: len(rows)] = rows.detach()
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        others = [part[: int(count)] for part, count in zip(parts, counts, strict=True)]
        return torch.cat([rows.detach(), *(part for rank, part in enumerate(others) if rank != self.rank)])

    def mean(self, values: dict[str, float]) -> dict[str, float]:
        """The mean of every value over workers."""
        if self.world == 1:
            return values
        total = torch.tensor(list(values.values()), dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return dict(zip(values, (total / self.world).tolist(), strict=True))

    def prepare(self, network: nn.Module) -> None:
        """Make batch norms look at the rows of all workers, where asked for."""
        if self.world == 1 or not self.sync_batchnorm:
            return
        if next(network.parameters()).device.type != "cuda":
            raise TrainingError("--sync-batchnorm needs GPUs: torch has no synchronised batch norm on the CPU")
        nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]

    def wrap(self, network: nn.Module) -> nn.Module:
        """`network` with gradients averaged over workers."""
        if self.world == 1:
            return network
        return DistributedDataParallel(network)


ALONE = Workers()
