"""Networks whose batch norms look as if they had been trained."""

import torch
from torch import nn

from cl2r.backbones import build_backbone
from cl2r.backbones.base import Backbone


def as_if_trained(network: nn.Module) -> nn.Module:
    """Give the batch norms statistics, scales and shifts of their own."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.3, 0.7)
            nn.init.normal_(module.bias, std=0.3)
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.5, 2)
    return network


def random_network(name: str, last_relu: bool = True) -> Backbone:
    """Return a backbone with random weights, the same at every call."""
    torch.manual_seed(0)
    return as_if_trained(build_backbone(name, 3, last_relu))
