"""Backbones by name, and their form for evaluation."""

import copy

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from cl2r.backbones.resnet_cifar import ResNetCifar

_DEPTH_AND_STEM_STRIDE = {"resnet8s": (8, 2), "resnet20": (20, 1), "resnet32": (32, 1)}


def build_backbone(name: str, channels: int, last_relu: bool = True) -> ResNetCifar:
    """The backbone called `name` for images of that many channels; `.dim` is the size of b(x)."""
    depth, stem_stride = _DEPTH_AND_STEM_STRIDE[name]
    return ResNetCifar(depth, channels, stem_stride, last_relu)


def folded(module: nn.Module) -> nn.Module:
    """A frozen copy for evaluation in which every convN absorbs its bnN: same values, fewer passes over memory."""
    frozen = copy.deepcopy(module).eval().requires_grad_(False)
    for part in list(frozen.modules()):
        for name, child in list(part.named_children()):
            norm = getattr(part, name.replace("conv", "bn"), None) if name.startswith("conv") else None
            if isinstance(child, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d | nn.SyncBatchNorm):
                setattr(part, name, fuse_conv_bn_eval(child, norm))
                setattr(part, name.replace("conv", "bn"), nn.Identity())
    return frozen
