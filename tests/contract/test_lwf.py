"""LwF: its two terms against loops over rows, which logits each of them moves, and ER as its special case."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from method_case import Case, Summing, assert_the_teacher_is_the_old_network, case
from quick import TASKS, chain_tensors, quick_config, train
from slow_losses import slow_kd, softmax
from torch import Tensor, nn

from cl2r.methods.base import Batch
from cl2r.methods.lwf import Lwf

OLD, SEEN = 4, 8  # classes before and after task 2 of the case
MIXED = range(2, 7)  # two old and three new classes


def slow_ce(logits: Tensor, y: Tensor, first: int) -> float:
    """Over the logits from `first` on, by the rows whose label is among them."""
    rows = [
        -math.log(softmax(z[first:])[c - first]) for z, c in zip(logits.tolist(), y.tolist(), strict=True) if c >= first
    ]
    return math.fsum(rows) / len(rows)


def in_second(*overrides: str, name: str = "lwf", steps: int = 2, memory: int = 2) -> Case:
    """In task 2, moved away from the model of task 1; batch norm in eval mode."""
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


def losses(trained: Case, batch: Batch) -> dict[str, float]:
    return {name: value.item() for name, value in trained.method.loss(batch, trained.method.network).items()}


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
    found = losses(trained, batch)
    assert found.keys() == {"ce", "kd"}
    assert found["ce"] == pytest.approx(slow_ce(logits, batch.y, OLD if ce == "new" else 0), rel=1e-5)
    assert found["kd"] == pytest.approx(weight * slow_kd(logits, old, temperature), rel=1e-5)


def test_the_defaults_are_those_of_the_publication() -> None:
    trained = case("lwf")
    assert (trained.method.config.memory.per_class, trained.method.config.batches.batching) == (0, "natural")
    assert vars(method_of(trained).options) == {"ce": "new", "weight": 1.0, "temperature": 2.0}
    with_memory = case("lwf_er")
    assert (with_memory.method.config.memory.per_class, method_of(with_memory).options.ce) == (3, "seen")


def test_the_power_form_is_the_same() -> None:
    """softmax(z/T) is p^{1/T}, renormalised: the other way the softened target is written."""
    trained = in_second("lwf.temperature=3")
    batch = trained.batch_of(2, range(OLD, SEEN))
    with torch.no_grad():
        now = torch.softmax(trained.method.network(batch.x).logits[:, :OLD].double(), 1) ** (1 / 3)
        old = torch.softmax(teacher_of(trained)(batch.x).logits.double(), 1) ** (1 / 3)
    target, answer = old / old.sum(1, keepdim=True), now / now.sum(1, keepdim=True)
    assert losses(trained, batch)["kd"] == pytest.approx(-(target * answer.log()).sum(1).mean().item(), rel=1e-5)


def test_first_task_is_plain_cross_entropy() -> None:
    trained = case("lwf")
    trained.begin(1)
    trained.method.network.eval()
    batch = trained.batch_of(1, range(OLD))
    with torch.no_grad():
        expected = slow_ce(trained.method.network(batch.x).logits, batch.y, 0)
    found = losses(trained, batch)
    assert found.keys() == {"ce"}
    assert found["ce"] == pytest.approx(expected, rel=1e-5)
    assert trained.method.metrics() == {"lambda": 0}


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
    assert losses(trained, batch)["kd"] == pytest.approx(math.log(OLD), rel=1e-5)
    assert classifier_gradient(trained, batch, "kd").abs().max() < 1e-5


def test_new_logits_get_no_distillation_gradient() -> None:
    trained = in_second("lwf.ce=seen")
    gradient = classifier_gradient(trained, trained.batch_of(2, MIXED), "kd")
    assert torch.equal(gradient[OLD:], torch.zeros_like(gradient[OLD:]))
    assert (gradient[:OLD].abs().amax(1) > 1e-5).all()


def test_memory_rows_are_distilled_too() -> None:
    trained = in_second(name="lwf_er")
    batch, other = trained.batch_of(2, MIXED), trained.batch_of(2, MIXED)
    other.x[batch.is_memory] += 1
    assert losses(trained, batch)["kd"] != pytest.approx(losses(trained, other)["kd"], rel=1e-3)


def test_the_teacher_is_the_whole_old_network_and_stays_so() -> None:
    assert_the_teacher_is_the_old_network("lwf", range(OLD, SEEN))


def test_a_weight_of_zero_needs_no_teacher() -> None:
    trained = in_second("lwf.weight=0")
    assert method_of(trained).teacher is None
    assert losses(trained, trained.batch_of(2, MIXED)).keys() == {"ce"}
    assert trained.method.metrics() == {"lambda": 0}
    assert in_second("lwf.weight=0.5").method.metrics() == {"lambda": 0.5}


# ---------------------------------------------------------------- cross-entropy over new logits


def test_over_new_logits_old_rows_of_the_classifier_and_memory_rows_take_no_part() -> None:
    trained = in_second("lwf.ce=new", name="lwf_er")
    batch = trained.batch_of(2, MIXED)
    gradient = classifier_gradient(trained, batch, "ce")
    assert torch.equal(gradient[:OLD], torch.zeros_like(gradient[:OLD]))
    assert (gradient[OLD:].abs().amax(1) > 1e-5).all()
    alone = trained.batch_of(2, range(OLD, MIXED.stop))
    assert losses(trained, batch)["ce"] == pytest.approx(losses(trained, alone)["ce"], rel=1e-5)


@pytest.mark.parametrize("weight", [0, 1])
def test_a_batch_of_old_classes_only_has_a_cross_entropy_of_zero(weight: int) -> None:
    trained = in_second("lwf.ce=new", f"lwf.weight={weight}", name="lwf_er")
    loss = trained.method.loss(trained.batch_of(2, range(OLD)), trained.method.network)
    assert loss["ce"].item() == 0
    gradients = torch.autograd.grad(torch.stack(list(loss.values())).sum(), list(trained.method.network.parameters()))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert any(gradient.any() for gradient in gradients) == (weight > 0)


# ---------------------------------------------------------------- workers and precision


@pytest.mark.parametrize("ce", ["new", "seen"])
def test_the_parts_of_workers_add_up(ce: str) -> None:
    """One of them has no row of a new class, and still asks for its weights as often as the other."""
    trained = in_second(f"lwf.ce={ce}", name="lwf_er")
    parts = [range(2, OLD), range(OLD, 7), MIXED]
    workers = [Summing() for _ in parts]
    found = [
        losses(trained, replace(trained.batch_of(2, part), workers=one))
        for part, one in zip(parts, workers, strict=True)
    ]
    for term in ("ce", "kd"):
        assert found[0][term] + found[1][term] == pytest.approx(found[2][term], rel=1e-5)
    assert [one.asked for one in workers] == ([[0, 4], [6, 6], [6, 10]] if ce == "new" else [[4, 4], [6, 6], [10, 10]])


def test_terms_are_float32_under_autocast() -> None:
    trained = in_second(name="lwf_er")
    batch = trained.batch_of(2, MIXED)
    plain = losses(trained, batch)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = trained.method.loss(batch, trained.method.network)
    assert {value.dtype for value in rounded.values()} == {torch.float32}
    assert {name: value.item() for name, value in rounded.items()} == pytest.approx(plain, rel=0.1)


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
def test_a_run_goes_on_from_ers_first_link_and_distils(tiny: Path, tmp_path: Path, name: str) -> None:
    keys, ours, result = run(tiny, tmp_path / "own", name)
    er_keys, theirs, _ = run(tiny, tmp_path / "er", "er", **ER)
    assert keys[0] == er_keys[0]
    assert all(torch.equal(ours[0][name], theirs[0][name]) for name in theirs[0])
    shared = run(tiny, tmp_path / "er", name)
    assert [link.reused for link in shared[2].links] == [True, False, False]
    assert all(torch.equal(ours[2][name], shared[1][2][name]) for name in ours[2])
    assert np.isfinite(result.report.matrix[np.tri(TASKS, dtype=bool)]).all()
    assert [link.record["metrics"]["lambda"] for link in result.links] == [0, 1, 1]
    assert [link.record["memory"] for link in result.links] == ([0, 0, 0] if name == "lwf" else [0, 12, 24])
    assert all("loss_kd" in row for link in result.links[1:] for row in link.record["curves"])
