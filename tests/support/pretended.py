"""Several workers in one process, for tests of what is stored and reused: no process group, only the first worker."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from cl2r.engine.workers import Workers

T = TypeVar("T")


class Pretended(Workers):
    """The first of several workers, which does not wait for the others: it trains on its own part only."""

    def from_first(self, read: Callable[[], T]) -> T:
        return read()

    def together(self, prepare: Callable[[], T]) -> T:
        return prepare()

    def gather(self, rows: Tensor, total: int) -> Tensor:
        return rows

    def mean(self, values: dict[str, float]) -> dict[str, float]:
        return values

    def wrap(self, network: nn.Module) -> nn.Module:
        return network


def pretended(count: int) -> Workers:
    """Return the first of `count` workers on CPUs."""
    return Pretended(0, count, device=torch.device("cpu"))
