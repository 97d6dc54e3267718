"""PODNet: every term against loops over rows, k-means imprinting, what is held when, and both stages of a task."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cl2r.memory import sample_task
from cl2r.methods.podnet import nca_of_code, nca_of_paper, pod_spatial
from tests.support.method_case import PER_CLASS, advanced, case
from tests.support.quick import quick_config, train
from tests.support.slow_losses import slow_fd

SIZE = 4  # classes of each task of the case
podnet = partial(advanced, "podnet")
FINETUNE = 2
LAYER = {"method": {"name": "podnet"}, "podnet": {"finetune_epochs": FINETUNE, "proxies": 3}}


def unit(vector: list[float]) -> list[float]:
    length = math.sqrt(math.fsum(v * v for v in vector))
    return [v / length for v in vector]


def slow_score(feature: list[float], proxies: list[list[float]]) -> float:
    """Return s_c, computed from distances instead of cosines."""
    scores = []
    for proxy in proxies:
        pairs = zip(unit(feature), unit(proxy), strict=True)
        scores.append(-math.fsum((a - b) ** 2 for a, b in pairs))
    powers = [math.exp(s) for s in scores]
    return sum(p / math.fsum(powers) * s for p, s in zip(powers, scores, strict=True))


def slow_scores(features: Tensor, classifier: nn.Module) -> list[list[float]]:
    proxies = [*classifier.old.tolist(), *classifier.new.tolist()]
    return [[slow_score(feature, own) for own in proxies] for feature in features.tolist()]


def slow_code(s: list[list[float]], labels: list[int], eta: float, margin: float) -> float:
    """Subtract the margin from every class, as the released code does."""
    total = 0.0
    for row, y in zip(s, labels, strict=True):
        z = [eta * (value - margin) for value in row]
        z = [value - max(z) for value in z]
        total += -z[y] + math.log(1 + math.fsum(math.exp(v) for j, v in enumerate(z) if j != y))
    return total / len(s)


def slow_paper(s: list[list[float]], labels: list[int], eta: float, margin: float) -> float:
    total = 0.0
    for row, y in zip(s, labels, strict=True):
        others = math.fsum(math.exp(eta * v) for j, v in enumerate(row) if j != y)
        total += max(0.0, -math.log(math.exp(eta * (row[y] - margin)) / others))
    return total / len(s)


def slow_strips(feature_map: Tensor) -> list[float]:
    """Return p(h) of one image."""
    channels, height, width = feature_map.shape
    h = feature_map.tolist()
    along_w = [sum(h[c][i][j] ** 2 for j in range(width)) for c in range(channels) for i in range(height)]
    along_h = [sum(h[c][i][j] ** 2 for i in range(height)) for c in range(channels) for j in range(width)]
    return unit(along_w + along_h)


def slow_spatial(new: list[Tensor], old: list[Tensor]) -> float:
    gaps = [
        math.dist(slow_strips(one), slow_strips(two))
        for stage, before in zip(new, old, strict=True)
        for one, two in zip(stage, before, strict=True)
    ]
    return sum(gaps) / len(gaps)


@pytest.mark.parametrize("centre", ["true", "false"])
@pytest.mark.parametrize("nca", ["code", "paper"])
@pytest.mark.parametrize("task", [1, 2, 3])
def test_lsc_against_loops(nca: str, task: int, centre: str) -> None:
    trained = podnet(f"podnet.nca={nca}", "podnet.proxies=3", f"head.centre={centre}", task=task)
    network = trained.method.network
    with torch.no_grad():
        network.classifier.scale.fill_(2.5)
    batch = trained.batch_of(task, range(SIZE * task))
    features = trained.apply(network.phi, trained.rows(range(SIZE * task), 2))
    scores = slow_scores(features, network.classifier)
    assert len(scores[0]) == SIZE * task
    slow = slow_code if nca == "code" else slow_paper
    expected = slow(scores, batch.y.tolist(), 2.5, 0.6)
    assert expected > 0.1
    assert trained.losses(batch)["lsc"] == pytest.approx(expected, rel=1e-4)
    if task > 1:
        assert trained.losses(batch, stage=1)["lsc"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("centre", ["true", "false"])
@pytest.mark.parametrize("task", [2, 3])
def test_pod_terms_against_loops(task: int, centre: str) -> None:
    trained = podnet("podnet.spatial=2", "podnet.flat=5", f"head.centre={centre}", task=task)
    method, batch = trained.method, trained.batch_of(task, range(2, SIZE * task), 1)
    with torch.no_grad():
        new, old = method.network(batch.x), method.teacher(batch.x)
    spatial, flat = slow_spatial(new.maps, old.maps), slow_fd(new.features, old.features)
    assert min(spatial, flat) > 1e-3
    weight = math.sqrt(task)  # N_t/m of equal tasks
    actual = trained.losses(batch)
    assert actual["spatial"] == pytest.approx(2 * weight * spatial, rel=1e-3)
    assert actual["flat"] == pytest.approx(5 * weight * flat, rel=1e-3)
    assert actual.keys() == {"lsc", "spatial", "flat"}
    assert method.diagnostics()["lambda"] == pytest.approx(weight)


def test_one_pass_gives_the_maps_of_the_backbone_and_the_features_of_phi() -> None:
    trained = podnet("head.centre=true", task=2)
    network, rows = trained.method.network, trained.rows(range(3))
    batch = trained.batch(2, rows)
    with torch.no_grad():
        out = network(batch.x)
        _, maps = network.phi[0].with_maps(batch.x)
    assert [tuple(stage.shape[1:]) for stage in out.maps] == [(16, 8, 8), (32, 4, 4), (64, 2, 2)]
    assert all(torch.equal(one, two) for one, two in zip(out.maps, maps, strict=True))
    assert torch.equal(out.features, trained.apply(network.phi, rows))
    assert out.features.min() < 0


def test_an_identical_teacher_gives_no_distillation() -> None:
    trained = podnet("head.centre=true", task=1)
    trained.begin(2)
    trained.method.network.eval()
    actual = trained.losses(trained.batch_of(2, range(8)))
    assert actual["spatial"] == pytest.approx(0, abs=1e-4)
    assert actual["flat"] == pytest.approx(0, abs=1e-5)


def test_equal_maps_are_at_distance_0_with_a_gradient_of_0() -> None:
    maps = [torch.randn(3, 4, 5, 6, requires_grad=True), torch.zeros(3, 2, 2, 2, requires_grad=True)]
    distance = pod_spatial(maps, [stage.detach().clone() for stage in maps])
    assert not distance.any()
    for gradient in torch.autograd.grad(distance.sum(), maps):
        assert not gradient.any()


def test_spatial_does_not_see_the_scale_of_a_map() -> None:
    new, old = [torch.randn(3, 4, 5, 6) for _ in range(2)], [torch.randn(3, 4, 5, 6) for _ in range(2)]
    scaled = pod_spatial([7 * new[0], new[1]], [old[0], 0.2 * old[1]])
    torch.testing.assert_close(scaled, pod_spatial(new, old))
    assert float(scaled.mean()) == pytest.approx(slow_spatial(new, old), rel=1e-5)


def test_the_margin_cancels_in_code_mode_only() -> None:
    def value(nca: str, margin: float) -> float:
        trained = podnet(f"podnet.nca={nca}", f"podnet.margin={margin}", steps=0, task=1)
        return trained.losses(trained.batch_of(1, range(4)))["lsc"]

    assert value("code", 0) == value("code", 0.6) == value("code", 5)
    assert value("paper", 0.6) - value("paper", 0.5) == pytest.approx(0.1, rel=1e-3)


def test_the_margin_moves_eta_in_paper_mode() -> None:
    """∂L/∂η holds + δ for every row that is not clipped."""
    gradients = []
    for margin in (1.0, 3.0):
        trained = podnet("podnet.nca=paper", f"podnet.margin={margin}", steps=0, task=1)
        loss = trained.method.loss(trained.batch_of(1, range(4)), trained.method.network)["lsc"]
        gradients.append(float(torch.autograd.grad(loss, trained.method.network.classifier.scale)[0]))
    assert gradients[1] - gradients[0] == pytest.approx(2, rel=1e-4)


def test_the_paper_form_is_clipped_row_by_row() -> None:
    logits = torch.tensor([[9.0, 0, 0], [0, 1, 5]], requires_grad=True)
    loss = nca_of_paper(logits, torch.tensor([0, 1]), torch.tensor(0.5))
    assert loss.tolist() == pytest.approx([0, 0.5 - 1 + math.log(1 + math.exp(5))])
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert not gradient[0].any()
    assert gradient[1, 1] == -1


def test_the_gradient_includes_the_maximum_in_code_mode() -> None:
    """Finite differences of the loss as it is written."""
    logits = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([int(logits[0].argmax()), 1, 2, 3])
    assert torch.autograd.gradcheck(lambda z: nca_of_code(z, labels), logits)
    assert (nca_of_code(logits, labels) > 0).all()


@pytest.mark.parametrize("form", ["code", "paper"])
def test_one_class_alone_has_a_finite_gradient(form: str) -> None:
    logits, labels = torch.randn(3, 1, requires_grad=True), torch.zeros(3, dtype=torch.int64)
    loss = nca_of_code(logits, labels) if form == "code" else nca_of_paper(logits, labels, torch.tensor(0.6))
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert not loss.any()
    assert not gradient.any()


@pytest.mark.parametrize(
    ("overrides", "terms"),
    [
        (["podnet.spatial=0", "podnet.flat=0"], {"lsc"}),
        (["podnet.spatial=0"], {"lsc", "flat"}),
        (["podnet.flat=0"], {"lsc", "spatial"}),
    ],
)
def test_terms_of_weight_0_are_left_out(overrides: list[str], terms: set[str]) -> None:
    trained = podnet(*overrides, task=2)
    assert trained.losses(trained.batch_of(2, range(8))).keys() == terms
    assert (trained.method.teacher is None) == (terms == {"lsc"})
    assert trained.method.diagnostics()["lambda"] == (0 if terms == {"lsc"} else math.sqrt(2))


def test_the_first_task_has_lsc_only() -> None:
    trained = podnet(task=1)
    assert trained.losses(trained.batch_of(1, range(4))).keys() == {"lsc"}
    assert [stage.name for stage in trained.method.stages()] == ["train"]


@pytest.mark.parametrize("proxies", [1, 3, 10])  # PER_CLASS is 6
@pytest.mark.parametrize("centre", ["true", "false"])
def test_new_proxies_are_imprinted(proxies: int, centre: str) -> None:
    trained = podnet(f"podnet.proxies={proxies}", f"head.centre={centre}", task=1)
    classifier = trained.method.network.classifier
    before = classifier.new.detach().clone()
    trained.begin(2)
    length = np.mean([math.hypot(*proxy) for own in before.tolist() for proxy in own])
    for number, label in enumerate(trained.tasks[1]):
        features = trained.apply(trained.method.network.phi, trained.rows(range(label, label + 1)))
        units = [unit(feature) for feature in features.tolist()]
        own = np.array(classifier.new[number].tolist()) / length
        nearest = [min(range(proxies), key=lambda p, u=row: math.dist(u, own[p])) for row in units]
        if proxies < PER_CLASS:
            for p in range(proxies):
                mean = np.mean([row for row, q in zip(units, nearest, strict=True) if q == p], 0)
                np.testing.assert_allclose(own[p], mean, atol=1e-5)
        else:
            assert max(math.dist(row, own[p]) for row, p in zip(units, nearest, strict=True)) < 1e-5
    torch.testing.assert_close(classifier.old, before, atol=0, rtol=0)


def test_proxies_are_in_the_order_of_the_classes() -> None:
    trained, learned = case("podnet"), []
    for task in (1, 2, 3):
        trained.begin(task)
        learned.append(trained.method.network.classifier.new.detach())
    assert torch.equal(trained.method.network.classifier.old, torch.cat(learned[:2]))


def test_the_first_proxies_are_random_and_seeded() -> None:
    def proxies(*overrides: str) -> Tensor:
        trained = case("podnet", *overrides)
        trained.begin(1)
        return trained.method.network.classifier.new.detach()

    assert torch.equal(proxies(), proxies())
    assert not torch.equal(proxies(), proxies("seed=1"))
    assert proxies().shape == (SIZE, 10, 64)
    assert float(proxies().norm(dim=-1).mean()) == pytest.approx(1, abs=0.1)
    assert podnet(steps=0, task=1).method.network.classifier.scale.item() == 1


def test_the_first_stage_trains_everything_except_old_proxies() -> None:
    trained = podnet(steps=0, task=2)
    network = trained.method.network
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    trained.step(trained.batch_of(2, range(8)))
    for name, parameter in network.named_parameters():
        assert torch.equal(parameter, before[name]) == (name == "classifier.old"), name


def test_the_stages_of_a_later_task() -> None:
    trained = podnet("podnet.clamp=0.7", "podnet.finetune_epochs=9", "podnet.finetune_lr=0.03", memory=3, task=2)
    data, (first, last) = trained.data(2, 3), trained.method.stages()
    assert (first.name, first.clamp, first.rows, first.batching, first.statistics) == ("train", 0.7, None, None, True)
    assert (last.name, last.epochs, last.lr, last.schedule) == ("finetune", 9, 0.03, "constant")
    assert (last.clamp, last.batching, last.statistics) == (0.7, "natural", False)
    classifier = trained.method.network.classifier
    assert [id(parameter) for parameter in last.parameters()] == [id(classifier.old), id(classifier.new)]
    assert last.rows is not None
    new, memory = last.rows
    np.testing.assert_array_equal(memory, data.memory)
    labels, counts = np.unique(trained.labels[new], return_counts=True)
    assert labels.tolist() == list(trained.tasks[1])
    assert set(counts) == {3}
    assert set(new) <= set(data.new)
    np.testing.assert_array_equal(new, sample_task(data.new, trained.labels[data.new], 3, "random", 0, 2))


def test_without_memory_there_is_one_stage() -> None:
    trained = podnet(memory=0, task=2)
    assert [stage.name for stage in trained.method.stages()] == ["train"]
    assert trained.losses(trained.batch_of(2, range(4, 8))).keys() == {"lsc", "spatial", "flat"}


def test_an_mlp_projection_is_trained() -> None:
    trained = podnet("head.projection=mlp")  # autograd.grad refuses parameters that take no part
    assert trained.method.network.classifier.new.shape == (SIZE, 10, 11)


@pytest.mark.parametrize(
    "layer",
    [
        {"memory": {"selection": "herding"}, "podnet": {"nca": "paper", "proxies": 20}},
        {"scenario": {"initial": 1, "increment": 11}},
        {"podnet": {"spatial": 0, "flat": 0, "finetune_epochs": 0}},
    ],
)
def test_other_configurations_run(tiny: Path, tmp_path: Path, layer: dict[str, dict[str, object]]) -> None:
    result = train(quick_config(tiny, LAYER, {"optim": {"epochs": 1, "milestones": []}}, layer), tmp_path)
    tasks = len(result.plan.keys)
    assert np.isfinite(result.report.matrix[np.tril_indices(tasks)]).all()
