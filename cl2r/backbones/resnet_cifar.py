"""ResNets for CIFAR: 6n+2 layers, stages of 16, 32, 64 channels, parameter-free shortcuts, b(x) ∈ R^64."""

from typing import cast

from torch import Tensor, nn
from torch.nn import functional

from cl2r.backbones.base import ResidualBackbone, ResidualBlock

WIDTHS = (16, 32, 64)


class BasicBlock(ResidualBlock):
    """Two 3×3 convolutions and a shortcut that subsamples and pads the new channels with zeros."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride, self.extra = stride, channels - channels_in

    def pre_activation(self, x: Tensor) -> Tensor:
        out = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        residual: Tensor = self.bn2(self.conv2(out))
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if self.extra:
            x = functional.pad(x, (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))
        return residual.add_(x)  # in place: no gradient of batch norm or convolution needs it


class ResNetCifar(ResidualBackbone):
    """ResNet of `depth` = 6n + 2; `stem_stride` 2 halves all resolutions, without `last_relu` b(x) is signed."""

    def __init__(self, depth: int, channels: int = 3, stem_stride: int = 1, last_relu: bool = True) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"a CIFAR ResNet has 6n+2 layers, not {depth}")
        self.conv1 = nn.Conv2d(channels, WIDTHS[0], 3, stem_stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        blocks, width, per_stage = [], WIDTHS[0], (depth - 2) // 6
        for stage, out in enumerate(WIDTHS):
            for block in range(per_stage):
                blocks.append(BasicBlock(width, out, 2 if stage and not block else 1))
                width = out
        blocks[-1].last_relu = last_relu
        self.blocks, self.dim = nn.Sequential(*blocks), width
        # the last block of every stage and, if the last stage has several, its last but one
        last = range(per_stage - 1, len(blocks), per_stage)
        self.mapped = (*last[:-1], last[-1] - 1, last[-1]) if per_stage > 1 else tuple(last)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def stem(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn1(self.conv1(x)), inplace=True)

    def residual_blocks(self) -> list[BasicBlock]:
        return cast(list[BasicBlock], list(self.blocks))
