"""LwF: its two terms against loops over rows, which logits each of them moves, and ER as its special case."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cl2r.methods.base import Batch
from cl2r.methods.lwf import Lwf
from tests.support.method_case import Case, case
from tests.support.quick import chain_tensors, quick_config, train
from tests.support.slow_losses import slow_ce, slow_kd, softmax

OLD, SEEN = 4, 8  # classes before and after task 2 of the case
MIXED = range(2, 7)  # two old and three new classes


def in_second(*overrides: str, name: str = "lwf", steps: int = 2, memory: int = 2) -> Case:
    """Return a case in task 2 whose model has moved away from its teacher, with batch norm in eval mode."""
    trained = case(name, *overrides)
    trained.begin(1)
    trained.step(trained.batch_of(1, range(OLD)))
    with torch.no_grad():  # a teacher that is sure of itself, so that no softmax is next to uniform
        method_of(trained).network.classifier.get_parameter("weight").mul_(30)
    trained.begin(2, memory)
    for _ in range(steps):
        trained.step(trained.batch_of(2, range(OLD, SEEN)))
    trained.method.network.eval().requires_grad_(True)
    return trained


def method_of(trained: Case) -> Lwf:
    assert isinstance(trained.method, Lwf)
    return trained.method


def teacher_of(trained: Case) -> nn.Module:
    teacher = method_of(trained).teacher
    assert teacher is not None
    return teacher


def classifier_gradient(trained: Case, batch: Batch, term: str) -> Tensor:
    loss = trained.method.loss(batch, trained.method.network)[term]
    return torch.autograd.grad(loss, method_of(trained).network.classifier.get_parameter("weight"))[0]


# ---------------------------------------------------------------- the formula


@pytest.mark.parametrize("memory", [0, 2])
@pytest.mark.parametrize("ce", ["new", "seen"])
@pytest.mark.parametrize(("weight", "temperature"), [(1.0, 2.0), (0.7, 3.0)])
def test_both_terms_equal_loops_over_rows(ce: str, weight: float, temperature: float, memory: int) -> None:
    settings = (f"lwf.ce={ce}", f"lwf.weight={weight}", f"lwf.temperature={temperature}")
    trained = in_second(*settings, memory=memory)
    batch = trained.batch_of(2, MIXED if memory else range(OLD, SEEN))
    with torch.no_grad():
        logits, old = trained.method.network(batch.x).logits, teacher_of(trained)(batch.x).logits
    assert (logits.shape[1], old.shape[1]) == (SEEN, OLD)
    assert slow_kd(old, old, 2.0) < 0.9 * math.log(OLD)
    found = trained.losses(batch)
    assert found.keys() == {"ce", "kd"}
    assert found["ce"] == pytest.approx(slow_ce(logits, batch.y, OLD if ce == "new" else 0), rel=1e-5)
    assert found["kd"] == pytest.approx(weight * slow_kd(logits, old, temperature), rel=1e-5)


def test_defaults_are_the_published_values() -> None:
    trained = case("lwf")
    assert (trained.method.config.memory.per_class, trained.method.config.batches.batching) == (0, "natural")
    assert vars(method_of(trained).options) == {"ce": "new", "weight": 1.0, "temperature": 2.0}
    with_memory = case("lwf_er")
    assert (with_memory.method.config.memory.per_class, method_of(with_memory).options.ce) == (3, "seen")


# ---------------------------------------------------------------- distillation


def test_equal_models_give_the_teachers_entropy_and_no_gradient() -> None:
    trained = in_second(steps=0)
    batch = trained.batch_of(2, range(OLD, SEEN))
    loss = trained.method.loss(batch, trained.method.network)
    with torch.no_grad():
        old = teacher_of(trained)(batch.x).logits.tolist()
    entropy = -sum(p * math.log(p) for z in old for p in softmax(z, 2)) / len(old)
    assert loss["kd"].item() == pytest.approx(entropy, rel=1e-5)
    parameters = list(trained.method.network.parameters())
    kept = torch.autograd.grad(loss["kd"], parameters, retain_graph=True)
    learnt = torch.autograd.grad(loss["ce"], parameters)
    assert max(g.abs().max().item() for g in kept) < 1e-5
    assert max(g.abs().max().item() for g in learnt) > 1e-2


def test_an_endless_temperature_gives_the_entropy_of_a_uniform_teacher_and_no_gradient() -> None:
    trained = in_second("lwf.temperature=1e6")
    batch = trained.batch_of(2, range(OLD, SEEN))
    assert trained.losses(batch)["kd"] == pytest.approx(math.log(OLD), rel=1e-5)
    assert classifier_gradient(trained, batch, "kd").abs().max() < 1e-5


def test_new_logits_get_no_distillation_gradient() -> None:
    trained = in_second("lwf.ce=seen")
    gradient = classifier_gradient(trained, trained.batch_of(2, MIXED), "kd")
    assert torch.equal(gradient[OLD:], torch.zeros_like(gradient[OLD:]))
    assert (gradient[:OLD].abs().amax(1) > 1e-5).all()


def test_memory_rows_are_distilled_too() -> None:
    trained = in_second(name="lwf_er")
    batch, other = trained.batch_of(2, MIXED), trained.batch_of(2, MIXED)
    other.x[batch.memory] += 1
    assert trained.losses(batch)["kd"] != pytest.approx(trained.losses(other)["kd"], rel=1e-3)


def test_a_weight_of_zero_needs_no_teacher() -> None:
    trained = in_second("lwf.weight=0")
    assert method_of(trained).teacher is None
    assert trained.losses(trained.batch_of(2, MIXED)).keys() == {"ce"}
    assert trained.method.diagnostics() == {"lambda": 0}
    assert in_second("lwf.weight=0.5").method.diagnostics() == {"lambda": 0.5}


# ---------------------------------------------------------------- cross-entropy over new logits


def test_cross_entropy_over_new_classes_ignores_memory_rows_and_old_outputs() -> None:
    trained = in_second("lwf.ce=new", name="lwf_er")
    batch = trained.batch_of(2, MIXED)
    gradient = classifier_gradient(trained, batch, "ce")
    assert torch.equal(gradient[:OLD], torch.zeros_like(gradient[:OLD]))
    assert (gradient[OLD:].abs().amax(1) > 1e-5).all()
    alone = trained.batch_of(2, range(OLD, MIXED.stop))
    assert trained.losses(batch)["ce"] == pytest.approx(trained.losses(alone)["ce"], rel=1e-5)


@pytest.mark.parametrize("weight", [0, 1])
def test_a_batch_of_old_classes_only_has_a_cross_entropy_of_zero(weight: int) -> None:
    trained = in_second("lwf.ce=new", f"lwf.weight={weight}", name="lwf_er")
    loss = trained.method.loss(trained.batch_of(2, range(OLD)), trained.method.network)
    assert loss["ce"].item() == 0
    gradients = torch.autograd.grad(torch.stack(list(loss.values())).sum(), list(trained.method.network.parameters()))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert any(gradient.any() for gradient in gradients) == (weight > 0)


# ---------------------------------------------------------------- workers and precision


# ---------------------------------------------------------------- runs


def run(data: Path, root: Path, name: str, **layers: Any) -> tuple[list[str], list[dict[str, Tensor]], Any]:
    result = train(quick_config(data, {"method": {"name": name}}, layers), root)
    return result.plan.keys, chain_tensors(result.plan, root), result


ER = {"head": {"projection": "none"}, "batches": {"batching": "natural"}}


def test_without_distillation_over_all_classes_it_is_er(tiny: Path, tmp_path: Path) -> None:
    layer = {"lwf": {"weight": 0, "ce": "seen"}, "memory": {"per_class": 3}}
    keys, ours, _ = run(tiny, tmp_path / "lwf", "lwf", **layer)
    er_keys, theirs, _ = run(tiny, tmp_path / "er", "er", **ER)
    assert keys[0] == er_keys[0]
    for one, two in zip(ours, theirs, strict=True):
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("name", ["lwf", "lwf_er"])
def test_a_run_reuses_the_first_link_of_er_and_distils(tiny: Path, tmp_path: Path, name: str) -> None:
    run(tiny, tmp_path, "er", **ER)
    _, _, result = run(tiny, tmp_path, name)
    assert [link.reused for link in result.links] == [True, False, False]
    assert [link.record["metrics"]["lambda"] for link in result.links] == [0, 1, 1]
    assert [link.record["memory"] for link in result.links] == ([0, 0, 0] if name == "lwf" else [0, 12, 24])
    assert all("loss_kd" in row for link in result.links[1:] for row in link.record["curves"])
