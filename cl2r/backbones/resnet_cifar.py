"""ResNets of the CIFAR kind: 6n+2 layers, stages of 16, 32, 64 channels, parameter-free shortcuts, b(x) ∈ R^64."""

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTHS = (16, 32, 64)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut that subsamples and pads the new channels with zeros."""

    last_relu = True

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride, self.extra = stride, channels - channels_in

    def forward(self, x: Tensor) -> Tensor:
        """ReLU(F(x) + shortcut(x)), or the sum itself without the last ReLU."""
        out = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if self.extra:
            x = functional.pad(x, (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))
        return functional.relu(out + x, inplace=True) if self.last_relu else out + x


class ResNetCifar(nn.Module):
    """`depth` = 6n + 2. `stem_stride` 2 halves the resolution of every stage: a quarter of the work.

    Without `last_relu` b(x) is signed, as in LUCIR and PODNet.
    """

    def __init__(self, depth: int, channels: int = 3, stem_stride: int = 1, last_relu: bool = True) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"a CIFAR ResNet has 6n+2 layers, not {depth}")
        self.conv1 = nn.Conv2d(channels, WIDTHS[0], 3, stem_stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        blocks, width = [], WIDTHS[0]
        for stage, out in enumerate(WIDTHS):
            for block in range((depth - 2) // 6):
                blocks.append(BasicBlock(width, out, 2 if stage and not block else 1))
                width = out
        blocks[-1].last_relu = last_relu
        self.blocks = nn.Sequential(*blocks)
        self.dim = width
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """b(x), the mean of the last feature map."""
        out = self.blocks(functional.relu(self.bn1(self.conv1(x)), inplace=True))
        return torch.mean(out, (2, 3))
