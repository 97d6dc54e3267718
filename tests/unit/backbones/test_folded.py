"""The folded form of every backbone: the values of the original, without batch norms, gradients or later training."""

import pytest
import torch
from torch import nn

from cl2r.backbones import BUILT_IN, folded
from cl2r.heads import build_projection
from tests.support.networks import as_if_trained, random_network


def batch_norms(network):
    return [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]


@pytest.mark.parametrize("name", BUILT_IN)
@torch.no_grad()
def test_folded_network_has_the_same_features_and_maps(name):
    network, x = random_network(name).eval(), torch.randn(2, 3, 32, 32)
    frozen = folded(network)
    assert not batch_norms(frozen)
    features, maps = network.with_maps(x)
    assert features.abs().max() > 0.1
    torch.testing.assert_close(frozen(x), features, atol=1e-5, rtol=1e-5)
    for one, two in zip(frozen.with_maps(x)[1], maps, strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)


def test_the_copy_is_frozen_and_the_network_still_trains():
    network, x = random_network("resnet8s").train(), torch.randn(4, 3, 16, 16)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    frozen = folded(network)
    features = frozen(x)
    assert not frozen.training
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    assert network.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    network(x).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1)
    assert torch.equal(frozen(x), features)


@torch.no_grad()
def test_folding_reaches_every_pair_of_neighbours_in_a_sequence_and_keeps_other_layers():
    torch.manual_seed(3)
    x = torch.randn(3, 3, 16, 16)
    pair = [nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)]
    plain = as_if_trained(nn.Sequential(*pair, nn.ReLU(), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))).eval()
    kinds = [type(part) for part in folded(plain)]
    assert kinds == [nn.Conv2d, nn.Identity, nn.ReLU, nn.BatchNorm2d, nn.Conv2d]
    nested = nn.Sequential(random_network("resnet8s"), build_projection("mlp", 64, 9)).eval()
    assert not batch_norms(folded(nested))
    for network in (plain, nested):
        torch.testing.assert_close(folded(network)(x), network(x), atol=1e-5, rtol=1e-5)
