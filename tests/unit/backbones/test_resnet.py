"""ResNet-18 and ResNet-50 against torchvision: size, shape, b(x), maps; and a step of PODNet."""

import copy
import math
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.models import resnet as torchvision_resnet

from cl2r.backbones import build_backbone
from cl2r.backbones.base import Backbone
from cl2r.backbones.resnet import ResNet
from cl2r.methods.podnet import Podnet
from tests.support.method_case import case
from tests.support.networks import as_if_trained, random_network

DIMS = {"resnet18_64": 512, "resnet18_224": 512, "resnet50_112": 2048}
TORCHVISION = {18: torchvision_resnet.resnet18, 50: torchvision_resnet.resnet50}


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
    for kept in (reference, on_meta):
        kept.cache_clear()


def images(side: int, rows: int = 2) -> Tensor:
    return torch.randn(rows, 3, side, side, generator=torch.Generator().manual_seed(2))


@cache
def on_meta(name: str, channels: int = 3) -> Backbone:
    """Return a network on the meta device, which has shapes but no values."""
    with torch.device("meta"):
        return build_backbone(name, channels).eval()


def size(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "total", "kernel"),
    [
        ("resnet18_224", 11_176_512, 7),
        ("resnet18_64", 11_176_512 - 64 * 3 * (7 * 7 - 3 * 3), 3),
        ("resnet50_112", 23_508_032 - 64 * 3 * (7 * 7 - 3 * 3), 3),
    ],
)
def test_parameter_counts(name, total, kernel):
    """Channels change the stem only."""
    assert size(on_meta(name)) == total
    assert size(on_meta(name, 1)) == total - 64 * 2 * kernel * kernel


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


@pytest.mark.parametrize("last_relu", [False, True])
@pytest.mark.parametrize("depth", [18, 50])
@torch.no_grad()
def test_features_and_maps_equal_torchvision(depth, last_relu):
    """Signed features are the mean before the last ReLU."""
    network, x = ours(depth, last_relu), images(32).double()
    expected, sums, outputs = sums_of_torchvision(reference(depth), x)
    if not last_relu:
        expected = sums[-1].mean((2, 3))
        assert expected.min() < 0
    features, maps = network.with_maps(x)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(network(x), expected)
    torch.testing.assert_close(features, expected)
    assert len(maps) == len(sums) == 4
    for stage, total, output in zip(maps, sums, outputs, strict=True):
        assert stage.min() < 0
        torch.testing.assert_close(stage, total)
        torch.testing.assert_close(torch.relu(stage), output)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("last_relu", [False, True])
def test_maps_change_neither_features_nor_gradients_nor_statistics(training, last_relu):
    networks = [random_network("resnet18_64", last_relu).train(training) for _ in range(2)]
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


def test_podnet_trains_a_resnet18():
    """6 images of both tasks: two terms of distillation and a gradient of every weight that is trained."""
    made = case("podnet", "backbone.name=resnet18_64", "podnet.proxies=2", tasks=6)
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
