"""Backbones by name, and their form for evaluation."""

import copy
from collections.abc import Iterator
from itertools import pairwise

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from cl2r.backbones.base import Backbone
from cl2r.backbones.resnet_cifar import ResNetCifar

RECOMPILE_LIMIT = 64
"""Kinds of calls (training or not, rows, layout, backbone) of one process; beyond that torch would stop compiling."""
_CIFAR_DEPTH_AND_STEM_STRIDE = {"resnet8s": (8, 2), "resnet20": (20, 1), "resnet32": (32, 1)}


def build_backbone(name: str, channels: int, last_relu: bool = True) -> Backbone:
    """The backbone called `name` for images of that many channels; `.dim` is the size of b(x)."""
    if name in _CIFAR_DEPTH_AND_STEM_STRIDE:
        depth, stem_stride = _CIFAR_DEPTH_AND_STEM_STRIDE[name]
        return ResNetCifar(depth, channels, stem_stride, last_relu)
    # imported here: torchvision takes seconds, which every process of a study would spend
    from cl2r.backbones.resnet import DEPTH_AND_STEM, ResNet

    depth, stem = DEPTH_AND_STEM[name]
    return ResNet(depth, channels, stem, last_relu)


def folded(module: nn.Module) -> nn.Module:
    """A frozen copy for evaluation in which convolutions absorb their batch norms: same values, fewer passes."""
    frozen = copy.deepcopy(module).eval().requires_grad_(False)
    for part in list(frozen.modules()):
        for name, norm_name in list(_conv_and_norm(part)):
            conv, norm = getattr(part, name), getattr(part, norm_name, None)
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d | nn.SyncBatchNorm):
                setattr(part, name, fuse_conv_bn_eval(conv, norm))
                setattr(part, norm_name, nn.Identity())
    return frozen


def compile_backbones(module: nn.Module) -> None:
    """Have torch compile every backbone of `module` at its next call, in place; weights and names stay as they are.

    Only backbones: heads grow from task to task and would be compiled again each time. Modules of one kind share what
    was compiled, so later tasks of a process, and its other runs, find it.
    """
    # imported here: it takes seconds, which every process would spend
    from torch._dynamo import config

    config.recompile_limit = RECOMPILE_LIMIT
    for part in module.modules():
        if isinstance(part, Backbone):
            part.compile()


def _conv_and_norm(part: nn.Module) -> Iterator[tuple[str, str]]:
    """Names of what may be a pair: neighbours in a sequence, elsewhere convN and bnN."""
    names = [name for name, _ in part.named_children()]
    if isinstance(part, nn.Sequential):
        return pairwise(names)
    return ((name, name.replace("conv", "bn")) for name in names if name.startswith("conv"))
