"""The contract of backbones: b(x), one row of `dim` numbers per image, and for some of them maps of inner blocks."""

import abc
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Stem = Literal["7x7/2", "3x3"]


class Backbone(nn.Module):
    """A network that maps images (B, C, H, W) to b(x), rows of `dim` numbers."""

    dim: int


class PlainBackbone(Backbone):
    """Any module with an attribute `dim` as a backbone."""

    def __init__(self, module: nn.Module, dim: int) -> None:
        super().__init__()
        self.module, self.dim = module, dim

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out


class MappedBackbone(Backbone, abc.ABC):
    """A backbone that can also return feature maps, which PODNet distils."""

    @abc.abstractmethod
    def with_maps(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return b(x) and, from the same pass, some maps (B, C, H, W) before their ReLU."""


class ResidualBlock(nn.Module, abc.ABC):
    """A block that returns ReLU(F(x) + shortcut(x)), or the sum itself without the last ReLU."""

    last_relu = True

    @abc.abstractmethod
    def pre_activation(self, x: Tensor) -> Tensor:
        """Return F(x) + shortcut(x)."""

    def activate(self, out: Tensor, inplace: bool) -> Tensor:
        """Return the block's output for its sum; in place if nothing else needs the sum."""
        return functional.relu(out, inplace=inplace) if self.last_relu else out

    def forward(self, x: Tensor) -> Tensor:
        return self.activate(self.pre_activation(x), inplace=True)


class ResidualBackbone(MappedBackbone):
    """A stem, residual blocks, and the mean of the last map. `folded` relies on every `bnN` following its `convN`."""

    mapped: tuple[int, ...]  # numbers of the blocks whose maps PODNet distils

    @abc.abstractmethod
    def stem(self, x: Tensor) -> Tensor:
        """Return the input of the first block."""

    @abc.abstractmethod
    def residual_blocks(self) -> Iterable[ResidualBlock]:
        """Return all blocks in order."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.stem(x)
        for block in self.residual_blocks():
            out = block(out)
        return torch.mean(out, (2, 3))

    def with_maps(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        out, maps = self.stem(x), []
        for number, block in enumerate(self.residual_blocks()):
            out = block.pre_activation(out)
            if number in self.mapped:
                maps.append(out)
            out = block.activate(out, inplace=number not in self.mapped)
        return torch.mean(out, (2, 3)), maps
