"""ResNet-18 and ResNet-50 against torchvision: size, shape, b(x), maps, folded form; and a step of PODNet."""

import copy
import math
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.models import resnet as torchvision_resnet

from cl2r.backbones import build_backbone, folded
from cl2r.backbones.base import Backbone
from cl2r.backbones.resnet import ResNet
from cl2r.methods.podnet import Podnet
from tests.support.method_case import Case, case

DIMS = {"resnet18_64": 512, "resnet18_224": 512, "resnet50_112": 2048}
TORCHVISION = {18: torchvision_resnet.resnet18, 50: torchvision_resnet.resnet50}


def as_if_trained(network: nn.Module) -> nn.Module:
    """Batch norms with statistics, scales and shifts of their own."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.3, 0.7)
            nn.init.normal_(module.bias, std=0.3)
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.5, 2)
    return network


@cache
def network_of(name: str, last_relu: bool = True) -> Backbone:
    """Return a shared network in eval mode; copy it before changing it."""
    torch.manual_seed(0)
    return as_if_trained(build_backbone(name, 3, last_relu)).eval()


@cache
def reference(depth: int) -> nn.Module:
    """torchvision's network, in float64, without its classifier."""
    torch.manual_seed(1)
    network = as_if_trained(TORCHVISION[depth]()).double().eval()
    network.fc = nn.Identity()
    return network


@pytest.fixture(scope="module", autouse=True)
def _give_memory_back():
    yield
    for kept in (network_of, reference, on_meta):
        kept.cache_clear()


def images(side: int, rows: int = 2, channels: int = 3) -> Tensor:
    return torch.randn(rows, channels, side, side, generator=torch.Generator().manual_seed(2))


@cache
def on_meta(name: str, channels: int = 3) -> Backbone:
    """Return a network on the meta device, which has shapes but no values."""
    with torch.device("meta"):
        return build_backbone(name, channels).eval()


def size(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


# ---------------------------------------------------------------- size and shape


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("resnet18_224", 11_176_512),
        ("resnet18_64", 11_176_512 - 64 * 3 * (7 * 7 - 3 * 3)),
        ("resnet50_112", 23_508_032 - 64 * 3 * (7 * 7 - 3 * 3)),
    ],
)
def test_parameter_counts(name, total):
    assert size(on_meta(name)) == total


@pytest.mark.parametrize(("name", "kernel"), [("resnet18_64", 3), ("resnet18_224", 7), ("resnet50_112", 3)])
def test_channels_change_the_stem_only(name, kernel):
    grey, coloured = on_meta(name, 1), on_meta(name, 3)
    assert size(coloured) - size(grey) == 64 * 2 * kernel * kernel


@pytest.mark.parametrize(
    ("name", "side", "sides", "blocks"),
    [
        ("resnet18_64", 64, (32, 16, 8, 4), (2, 2, 2, 2)),
        ("resnet18_224", 224, (56, 28, 14, 7), (2, 2, 2, 2)),
        ("resnet50_112", 112, (56, 28, 14, 7), (3, 4, 6, 3)),
    ],
)
def test_shapes_of_the_maps_and_of_the_features(name, side, sides, blocks):
    network = copy.deepcopy(on_meta(name))
    network.mapped = tuple(range(sum(blocks)))
    features, maps = network.with_maps(torch.empty(2, 3, side, side, device="meta"))
    shapes = [(2, DIMS[name] // 8 * 2**stage, s, s) for stage, s in enumerate(sides)]
    assert [stage.shape for stage in maps] == [shape for shape, n in zip(shapes, blocks, strict=True) for _ in range(n)]
    assert [maps[number].shape for number in on_meta(name).mapped] == shapes
    assert features.shape == (2, network.dim) == (2, DIMS[name])


def test_grey_images_have_features():
    torch.manual_seed(0)
    features = build_backbone("resnet18_64", 1).eval()(images(32, channels=1))
    assert features.shape == (2, 512)
    assert torch.isfinite(features).all()
    assert features.std() > 0


@pytest.mark.parametrize(("name", "channels", "fan_out"), [("resnet18_64", 3, 64 * 9), ("resnet18_224", 1, 64 * 49)])
def test_initial_weights_of_the_stem_and_of_a_block(name, channels, fan_out):
    """Kaiming initialisation by the outputs, as in torchvision, and the same for the same seed."""
    networks = []
    for _ in range(2):
        torch.manual_seed(5)
        networks.append(build_backbone(name, channels))
    one, two = (network.state_dict() for network in networks)
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert float(one["conv1.weight"].std()) == pytest.approx(math.sqrt(2 / fan_out), rel=0.1)
    assert float(one["layer4.1.conv2.weight"].std()) == pytest.approx(math.sqrt(2 / (512 * 9)), rel=0.01)


def test_unknown_depths_are_refused():
    with pytest.raises(ValueError, match="34"):
        ResNet(34, 3, "3x3")


# ---------------------------------------------------------------- values, against torchvision


def ours(depth: int, last_relu: bool) -> ResNet:
    """Return our network with the weights of the reference; their names are the same."""
    network = ResNet(depth, 3, "7x7/2", last_relu).double().eval()
    network.load_state_dict(reference(depth).state_dict())
    return network


def sums_of_torchvision(network: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """b(x), and of the last block of every stage what goes in plus what its last batch norm gives; and its output."""
    into, normed, outputs, hooks = [], [], [], []
    for stage in (network.layer1, network.layer2, network.layer3, network.layer4):
        last = stage[-1]
        assert last.downsample is None
        norm = last.bn3 if hasattr(last, "bn3") else last.bn2
        hooks += [
            last.register_forward_pre_hook(lambda _module, inputs: into.append(inputs[0].clone())),
            norm.register_forward_hook(lambda _module, _inputs, out: normed.append(out.clone())),
            last.register_forward_hook(lambda _module, _inputs, out: outputs.append(out.clone())),
        ]
    features = network(x)
    for hook in hooks:
        hook.remove()
    return features, [a + b for a, b in zip(into, normed, strict=True)], outputs


@pytest.mark.parametrize("depth", [18, 50])
@torch.no_grad()
def test_features_and_maps_equal_torchvision(depth):
    network, x = ours(depth, last_relu=True), images(32).double()
    expected, sums, outputs = sums_of_torchvision(reference(depth), x)
    features, maps = network.with_maps(x)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(network(x), expected)
    torch.testing.assert_close(features, expected)
    assert len(maps) == len(sums) == 4
    for stage, total, output in zip(maps, sums, outputs, strict=True):
        assert stage.min() < 0
        torch.testing.assert_close(stage, total)
        torch.testing.assert_close(torch.relu(stage), output)


@pytest.mark.parametrize("depth", [18, 50])
@torch.no_grad()
def test_signed_features_are_the_mean_before_the_last_relu(depth):
    network, x = ours(depth, last_relu=False), images(32).double()
    _, sums, _ = sums_of_torchvision(reference(depth), x)
    expected = sums[-1].mean((2, 3))
    features, maps = network.with_maps(x)
    assert expected.min() < 0
    torch.testing.assert_close(features, expected)
    torch.testing.assert_close(network(x), expected)
    for stage, total in zip(maps, sums, strict=True):
        torch.testing.assert_close(stage, total)


@torch.no_grad()
def test_resnet18_224_loads_the_weights_of_torchvision():
    network, x = build_backbone("resnet18_224", 3).eval(), images(32)
    network.load_state_dict(reference(18).state_dict())
    torch.testing.assert_close(network(x).double(), reference(18)(x.double()), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("last_relu", [False, True])
def test_maps_change_neither_features_nor_gradients_nor_statistics(training, last_relu):
    networks = [copy.deepcopy(network_of("resnet18_64", last_relu)).train(training) for _ in range(2)]
    x = images(16, rows=4)
    plain, (features, maps) = networks[0](x), networks[1].with_maps(x)
    assert torch.equal(plain, features)
    assert all(stage.min() < 0 for stage in maps)
    for value in (plain, features):
        value.square().sum().backward()
    one, two = (dict(network.state_dict()) for network in networks)
    assert all(torch.equal(one[key], two[key]) for key in one)
    pairs = zip(networks[0].parameters(), networks[1].parameters(), strict=True)
    assert all(torch.allclose(a.grad, b.grad, rtol=1e-5, atol=1e-6) for a, b in pairs)


# ---------------------------------------------------------------- folded


@pytest.mark.parametrize("name", DIMS)
@torch.no_grad()
def test_folded_network_has_the_same_features_and_maps(name):
    network, x = network_of(name), images(32)
    frozen = folded(network)
    assert not [module for module in frozen.modules() if isinstance(module, nn.BatchNorm2d)]
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    features, maps = network.with_maps(x)
    assert features.abs().max() > 0.1
    torch.testing.assert_close(frozen(x), features, atol=1e-5, rtol=1e-5)
    for one, two in zip(frozen.with_maps(x)[1], maps, strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_folding_reaches_every_pair_of_neighbours_in_a_sequence():
    torch.manual_seed(3)
    pair = [nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)]
    network = as_if_trained(nn.Sequential(*pair, nn.ReLU(), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))).eval()
    frozen = folded(network)
    assert [type(part) for part in frozen] == [nn.Conv2d, nn.Identity, nn.ReLU, nn.BatchNorm2d, nn.Conv2d]
    torch.testing.assert_close(frozen(images(4)), network(images(4)))


# ---------------------------------------------------------------- PODNet


def podnet() -> Case:
    """Return PODNet with two classes per task."""
    return case("podnet", "backbone.name=resnet18_64", "podnet.proxies=2", tasks=6)


def test_podnet_trains_a_resnet18():
    """6 images of both tasks: two terms of distillation and a gradient of every weight that is trained."""
    made = podnet()
    assert isinstance(made.method, Podnet)
    made.begin(1)
    made.begin(2)
    stage = made.method.stages()[0]
    before = [parameter.detach().clone() for parameter in stage.parameters()]
    rows = np.concatenate([made.rows(made.tasks[0], 1), made.rows(made.tasks[1], 2)])
    losses = made.step(made.batch(2, rows))
    assert len(rows) == 6
    assert losses.keys() == {"lsc", "spatial", "flat"}
    assert all(0 < float(loss.detach()) < math.inf for loss in losses.values())
    assert all(not torch.equal(a, b) for a, b in zip(stage.parameters(), before, strict=True))
