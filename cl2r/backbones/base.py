"""What every backbone is: a stem, residual blocks one after the other, and b(x), the mean of the last feature map."""

import abc
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional


class ResidualBlock(nn.Module, abc.ABC):
    """A block whose sum, before its ReLU, can be had by itself."""

    last_relu = True

    @abc.abstractmethod
    def pre_activation(self, x: Tensor) -> Tensor:
        """F(x) + shortcut(x)."""

    def activate(self, out: Tensor, inplace: bool) -> Tensor:
        """What the block makes of its sum; in place where nobody else needs it."""
        return functional.relu(out, inplace=inplace) if self.last_relu else out

    def forward(self, x: Tensor) -> Tensor:
        """ReLU(F(x) + shortcut(x)), or the sum itself without the last ReLU."""
        return self.activate(self.pre_activation(x), inplace=True)


class Backbone(nn.Module, abc.ABC):
    """b(x) ∈ R^`dim`, and the maps of the blocks numbered `mapped`."""

    dim: int
    mapped: tuple[int, ...]

    @abc.abstractmethod
    def stem(self, x: Tensor) -> Tensor:
        """What the first block is given."""

    @abc.abstractmethod
    def residual_blocks(self) -> Iterable[ResidualBlock]:
        """All blocks, in the order of the pass."""

    def forward(self, x: Tensor) -> Tensor:
        """b(x), the mean of the last feature map; signed where the last block has no ReLU."""
        out = self.stem(x)
        for block in self.residual_blocks():
            out = block(out)
        return torch.mean(out, (2, 3))

    def with_maps(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """b(x) and, of the same pass, the maps before ReLU of the blocks `mapped`."""
        out, maps = self.stem(x), []
        for number, block in enumerate(self.residual_blocks()):
            out = block.pre_activation(out)
            if number in self.mapped:
                maps.append(out)
            out = block.activate(out, inplace=number not in self.mapped)
        return torch.mean(out, (2, 3)), maps
