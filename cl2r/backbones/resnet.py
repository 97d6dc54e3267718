"""ResNet-18 and ResNet-50 for larger images: torchvision's blocks, stages and initial weights, with a stem to choose.

The names of the weights are torchvision's, without `fc`. The stem for 224×224 images is a 7×7 convolution of stride 2,
for smaller ones a 3×3 convolution of stride 1; a max pooling that halves the resolution follows. So the stages see 1/4,
1/8, 1/16 and 1/32 of 224, and 1/2, 1/4, 1/8 and 1/16 of 64 or 112.
"""

from itertools import accumulate

from torch import Tensor, nn
from torch.nn import functional
from torchvision.models import resnet

from cl2r.backbones.base import ResidualBackbone, ResidualBlock, Stem


class _Block(ResidualBlock):
    """One of torchvision's blocks; `downsample` is a 1×1 convolution if stride or width change."""

    relu: nn.Module
    downsample: nn.Module | None
    layers: tuple[tuple[str, str], ...]  # names of convolutions and their batch norms

    def pre_activation(self, x: Tensor) -> Tensor:
        out = x
        for number, (conv, norm) in enumerate(self.layers):
            out = getattr(self, norm)(getattr(self, conv)(self.relu(out) if number else out))
        return out + (x if self.downsample is None else self.downsample(x))


class BasicBlock(_Block, resnet.BasicBlock):  # type: ignore[misc]
    """Two 3×3 convolutions."""

    layers = ("conv1", "bn1"), ("conv2", "bn2")


class Bottleneck(_Block, resnet.Bottleneck):  # type: ignore[misc]
    """Convolutions 1×1, 3×3, 1×1; the second has the stride."""

    layers = *BasicBlock.layers, ("conv3", "bn3")


BLOCKS_PER_STAGE = {18: (BasicBlock, (2, 2, 2, 2)), 50: (Bottleneck, (3, 4, 6, 3))}


class ResNet(ResidualBackbone):
    """ResNet of `depth` 18 or 50. Without `last_relu` b(x) is signed, as in LUCIR and PODNet."""

    def __init__(self, depth: int, channels: int, stem: Stem, last_relu: bool = True) -> None:
        super().__init__()
        if depth not in BLOCKS_PER_STAGE:
            raise ValueError(f"depth {depth} is not supported, use one of {sorted(BLOCKS_PER_STAGE)}")
        block, per_stage = BLOCKS_PER_STAGE[depth]
        whole = resnet.ResNet(block, list(per_stage), num_classes=1)
        kernel, stride = (7, 2) if stem == "7x7/2" else (3, 1)
        self.conv1 = nn.Conv2d(channels, 64, kernel, stride, kernel // 2, bias=False)
        nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
        self.bn1, self.maxpool = whole.bn1, whole.maxpool
        self.layer1, self.layer2, self.layer3, self.layer4 = whole.layer1, whole.layer2, whole.layer3, whole.layer4
        self.layer4[-1].last_relu = last_relu
        self.dim, self.mapped = int(whole.fc.in_features), tuple(end - 1 for end in accumulate(per_stage))

    def stem(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.maxpool(functional.relu(self.bn1(self.conv1(x)), inplace=True))
        return pooled

    def residual_blocks(self) -> list[ResidualBlock]:
        return [block for stage in (self.layer1, self.layer2, self.layer3, self.layer4) for block in stage]
