"""ResNets for CIFAR: size, shape, shortcuts, maps, and initial weights."""

import copy
import math

import pytest
import torch
from torch import nn

from cl2r.backbones import build_backbone
from cl2r.backbones.resnet_cifar import BasicBlock, ResNetCifar
from tests.support.networks import random_network

NAMES = ["resnet8s", "resnet20", "resnet32"]


def expected_parameters(blocks_per_stage, channels=3):
    """Sum over layers: 3×3 kernels without bias, and two numbers per channel for each batch norm."""
    shapes = [(channels, 16)]
    for wide_in, wide in ((16, 16), (16, 32), (32, 64)):
        shapes += [(wide_in, wide)] + [(wide, wide)] * (2 * blocks_per_stage - 1)
    return sum(a * b * 9 + 2 * b for a, b in shapes)


@pytest.mark.parametrize(("name", "blocks", "total"), [("resnet20", 3, 269_072), ("resnet32", 5, 463_504)])
def test_parameter_counts(name, blocks, total):
    """Channels change the stem only."""
    counts = [sum(p.numel() for p in build_backbone(name, channels).parameters()) for channels in (1, 3)]
    assert counts == [expected_parameters(blocks, 1), total]
    assert total == expected_parameters(blocks)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", [8, 32])
def test_features_have_64_dimensions(name, side):
    network = build_backbone(name, 3).eval()
    features = network(torch.randn(2, 3, side, side))
    assert features.shape == (2, network.dim) == (2, 64)
    assert features.min() >= 0


@pytest.mark.parametrize(("name", "sides"), [("resnet8s", [16, 8, 4]), ("resnet20", [32, 16, 8])])
def test_resolution_of_the_stages(name, sides):
    network, seen = build_backbone(name, 3).eval(), []
    for block in network.blocks:
        block.register_forward_hook(lambda _module, _inputs, out: seen.append(tuple(out.shape[1:])))
    network(torch.zeros(1, 3, 32, 32))
    per_stage = len(seen) // 3
    assert seen == [(w, s, s) for w, s in zip((16, 32, 64), sides, strict=True) for _ in range(per_stage)]


@pytest.mark.parametrize(("channels_in", "channels", "stride"), [(16, 16, 1), (16, 32, 2), (32, 64, 2)])
def test_shortcut_subsamples_and_pads_with_zeros(channels_in, channels, stride):
    """With a residual branch of zero a block is its shortcut."""
    block = BasicBlock(channels_in, channels, stride).eval()
    nn.init.zeros_(block.conv2.weight)
    x = torch.rand(2, channels_in, 8, 8)
    out, margin = block(x), (channels - channels_in) // 2
    assert torch.equal(out[:, margin : margin + channels_in], x[:, :, ::stride, ::stride])
    assert not out[:, :margin].any()
    assert not out[:, margin + channels_in :].any()


def plain_walk(network, x):
    """b(x) and the sums of all blocks before ReLU, from the layers, nothing in place."""
    out, sums = torch.relu(network.bn1(network.conv1(x))), []
    for block in network.blocks:
        residual = block.bn2(block.conv2(torch.relu(block.bn1(block.conv1(out)))))
        out = out[:, :, :: block.stride, :: block.stride]
        margin = (residual.shape[1] - out.shape[1]) // 2
        out = residual + nn.functional.pad(out, (0, 0, 0, 0, margin, margin))
        sums.append(out)
        out = torch.relu(out) if block.last_relu else out
    return out.mean((2, 3)), sums


@pytest.mark.parametrize(
    ("name", "numbers"), [("resnet8s", [0, 1, 2]), ("resnet20", [2, 5, 7, 8]), ("resnet32", [4, 9, 13, 14])]
)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("last_relu", [False, True])
def test_maps_are_the_sums_of_the_last_blocks_before_relu(name, numbers, training, last_relu):
    """And b(x) is the same, bit for bit, with and without them."""
    network, x = random_network(name).train(training), torch.randn(3, 3, 16, 16)
    network.blocks[-1].last_relu = last_relu
    same = copy.deepcopy(network), copy.deepcopy(network)
    features, maps = network.with_maps(x)
    expected, sums = plain_walk(same[0], x)
    assert torch.equal(features, expected)
    assert torch.equal(features, same[1](x))
    assert len(maps) == len(numbers)
    for stage, number in zip(maps, numbers, strict=True):
        assert torch.equal(stage, sums[number])
        assert stage.min() < 0
    state, other = network.state_dict(), same[1].state_dict()
    assert all(torch.equal(state[key], other[key]) for key in state)  # running statistics too


def test_gradients_through_the_maps_and_the_features():
    network, x = random_network("resnet20").train(), torch.randn(3, 3, 16, 16)
    same = copy.deepcopy(network)
    features, maps = network.with_maps(x)
    (features.square().sum() + sum(stage.square().mean() for stage in maps)).backward()
    expected, sums = plain_walk(same, x)
    (expected.square().sum() + sum(sums[number].square().mean() for number in (2, 5, 7, 8))).backward()
    for one, two in zip(network.parameters(), same.parameters(), strict=True):
        assert one.grad.any()
        torch.testing.assert_close(one.grad, two.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("name", "blocks"), [("resnet8s", 1), ("resnet20", 3)])
def test_names_and_draws_of_the_initial_weights(name, blocks):
    """Stored chains depend on both: every layer draws when it is made, then all of them again, in their order."""
    torch.manual_seed(4)
    state = build_backbone(name, 1).state_dict()
    widths = [16] * blocks + [32] * blocks + [64] * blocks
    torch.manual_seed(4)
    layers = {"conv1": nn.Conv2d(1, 16, 3, bias=False)}
    for number, (wide_in, wide) in enumerate(zip([16, *widths], widths, strict=False)):
        layers[f"blocks.{number}.conv1"] = nn.Conv2d(wide_in, wide, 3, bias=False)
        layers[f"blocks.{number}.conv2"] = nn.Conv2d(wide, wide, 3, bias=False)
    for layer in layers.values():
        layer.weight.data.normal_(0, math.sqrt(2) / math.sqrt(layer.out_channels * 9))
    assert all(torch.equal(state[f"{key}.weight"], layer.weight) for key, layer in layers.items())
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    pairs = [[f"{key}.weight", *(f"{key.replace('conv', 'bn')}.{part}" for part in norm)] for key in layers]
    assert list(state) == [key for pair in pairs for key in pair]


@pytest.mark.parametrize("depth", [2, 7, 18, 33])
def test_impossible_depths_are_refused(depth):
    with pytest.raises(ValueError, match=f"6n\\+2 layers, not {depth}"):
        ResNetCifar(depth)
