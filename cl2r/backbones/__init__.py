"""Backbones by name, and their forms for evaluation and for compiled training.

An entry point of the group `cl2r.backbones` names a function of (channels, last_relu) that returns any `nn.Module` with
an attribute `dim`, the size of its output rows; without the last ReLU the output should be signed. Links are keyed by
the backbone's name, so one that computes something else needs a new name. PODNet needs a `base.MappedBackbone`.
"""

import copy
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from itertools import pairwise

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from cl2r.backbones.base import Backbone, PlainBackbone, ResidualBackbone, Stem
from cl2r.backbones.resnet_cifar import ResNetCifar
from cl2r.errors import InputError, nearest

Build = Callable[[int, bool], nn.Module]
GROUP = "cl2r.backbones"
RECOMPILE_LIMIT = 64  # kinds of calls (training or not, rows, layout, backbone) until torch stops compiling


def _resnet(depth: int, stem: Stem, channels: int, last_relu: bool) -> Backbone:
    # imported here: torchvision takes seconds, which every process of a study would spend
    from cl2r.backbones.resnet import ResNet

    return ResNet(depth, channels, stem, last_relu)


BUILT_IN: dict[str, Build] = {
    "resnet8s": lambda channels, last_relu: ResNetCifar(8, channels, 2, last_relu),
    "resnet20": lambda channels, last_relu: ResNetCifar(20, channels, 1, last_relu),
    "resnet32": lambda channels, last_relu: ResNetCifar(32, channels, 1, last_relu),
    "resnet18_64": partial(_resnet, 18, "3x3"),
    "resnet18_224": partial(_resnet, 18, "7x7/2"),
    "resnet50_112": partial(_resnet, 50, "3x3"),
}


def find_backbone(name: str) -> Build:
    """Return the function that builds a backbone. Raise InputError if there is none, or if it cannot be loaded."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if name not in installed:
        known = [*BUILT_IN, *installed]
        raise InputError(f"backbone.name: no backbone {name!r}{nearest(name, known)}; backbones: {', '.join(known)}")
    try:
        build: Build = installed[name].load()
    except Exception as error:  # whatever another package raises
        raise InputError(f"backbone {name}: cannot load {installed[name].value}: {error}") from error
    if not callable(build):
        raise InputError(f"backbone {name}: {installed[name].value} cannot be called; name a class or function")
    return build


def build_backbone(name: str, channels: int, last_relu: bool = True) -> Backbone:
    """Return the backbone called `name` for images with that many channels."""
    module = find_backbone(name)(channels, last_relu)
    if isinstance(module, Backbone):
        return module
    dim = getattr(module, "dim", None)
    if not isinstance(module, nn.Module) or not isinstance(dim, int):
        raise InputError(f"backbone {name}: must be an nn.Module with an int attribute `dim`, the size of its output")
    return PlainBackbone(module, dim)


def folded(module: nn.Module) -> nn.Module:
    """Return a frozen copy for evaluation in which convolutions absorb their batch norms: same values, fewer passes."""
    frozen = copy.deepcopy(module).eval().requires_grad_(False)
    backbones = [part for part in frozen.modules() if isinstance(part, ResidualBackbone)]
    named = {id(part) for backbone in backbones for part in backbone.modules()}
    # neighbours in a sequence, and convN and bnN; elsewhere names do not tell which part follows which
    for part in list(frozen.modules()):
        names = [name for name, _ in part.named_children()]
        pairs = [(name, name.replace("conv", "bn")) for name in names if name.startswith("conv") and id(part) in named]
        for name, norm_name in pairwise(names) if type(part) is nn.Sequential else pairs:
            conv, norm = getattr(part, name), getattr(part, norm_name, None)
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d | nn.SyncBatchNorm):
                setattr(part, name, fuse_conv_bn_eval(conv, norm))
                setattr(part, norm_name, nn.Identity())
    return frozen


def compile_backbones(module: nn.Module) -> None:
    """Have torch compile every backbone of `module` at its next call, in place; weights and names stay as they are.

    Heads grow from task to task and would be compiled again each time. Modules of one kind share their compiled code.
    """
    # imported here: it takes seconds, which every process would spend
    from torch._dynamo import config

    config.recompile_limit = RECOMPILE_LIMIT
    for part in module.modules():
        if isinstance(part, Backbone):
            part.compile()
