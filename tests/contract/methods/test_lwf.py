"""LwF: its two terms against loops over rows, and which logits each of them moves."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from cl2r.batches import Batch
from tests.support.method_case import Case, advanced, case
from tests.support.slow_losses import slow_ce, slow_kd, softmax

OLD, SEEN = 4, 8  # classes before and after task 2 of the case
MIXED = range(2, 7)  # two old and three new classes

lwf = partial(advanced, "lwf", sure=True)


def classifier_gradient(trained: Case, batch: Batch, term: str) -> Tensor:
    loss = trained.method.loss(batch, trained.method.network)[term]
    return torch.autograd.grad(loss, trained.method.network.classifier.weight)[0]


@pytest.mark.parametrize("memory", [0, 2])
@pytest.mark.parametrize("ce", ["new", "seen"])
@pytest.mark.parametrize(("weight", "temperature"), [(1.0, 2.0), (0.7, 3.0)])
def test_both_terms_equal_loops_over_rows(ce: str, weight: float, temperature: float, memory: int) -> None:
    settings = (f"lwf.ce={ce}", f"lwf.weight={weight}", f"lwf.temperature={temperature}")
    trained = lwf(*settings, memory=memory)
    batch = trained.batch_of(2, MIXED if memory else range(OLD, SEEN))
    with torch.no_grad():
        logits, old = trained.method.network(batch.x).logits, trained.method.teacher(batch.x).logits
    assert (logits.shape[1], old.shape[1]) == (SEEN, OLD)
    assert slow_kd(old, old, 2.0) < 0.9 * math.log(OLD)
    found = trained.losses(batch)
    assert found.keys() == {"ce", "kd"}
    assert found["ce"] == pytest.approx(slow_ce(logits, batch.y, OLD if ce == "new" else 0), rel=1e-5)
    assert found["kd"] == pytest.approx(weight * slow_kd(logits, old, temperature), rel=1e-5)


def test_defaults_are_the_published_values() -> None:
    method = case("lwf").method
    assert (method.config.memory.per_class, method.config.batches.batching) == (0, "natural")
    assert vars(method.options) == {"ce": "new", "weight": 1.0, "temperature": 2.0}
    with_memory = case("lwf_er").method
    assert (with_memory.config.memory.per_class, with_memory.options.ce) == (3, "seen")


def test_equal_models_give_the_teachers_entropy_and_no_gradient() -> None:
    trained = lwf(steps=0)
    batch = trained.batch_of(2, range(OLD, SEEN))
    loss = trained.method.loss(batch, trained.method.network)
    old = trained.method.teacher(batch.x).logits.tolist()
    entropy = -sum(p * math.log(p) for z in old for p in softmax(z, 2)) / len(old)
    assert loss["kd"].item() == pytest.approx(entropy, rel=1e-5)
    parameters = list(trained.method.network.parameters())
    kept = torch.autograd.grad(loss["kd"], parameters, retain_graph=True)
    learnt = torch.autograd.grad(loss["ce"], parameters)
    assert max(g.abs().max().item() for g in kept) < 1e-5
    assert max(g.abs().max().item() for g in learnt) > 1e-2


def test_an_endless_temperature_gives_the_entropy_of_a_uniform_teacher_and_no_gradient() -> None:
    trained = lwf("lwf.temperature=1e6")
    batch = trained.batch_of(2, range(OLD, SEEN))
    assert trained.losses(batch)["kd"] == pytest.approx(math.log(OLD), rel=1e-5)
    assert classifier_gradient(trained, batch, "kd").abs().max() < 1e-5


def test_new_logits_get_no_distillation_gradient() -> None:
    trained = lwf("lwf.ce=seen")
    gradient = classifier_gradient(trained, trained.batch_of(2, MIXED), "kd")
    assert torch.equal(gradient[OLD:], torch.zeros_like(gradient[OLD:]))
    assert (gradient[:OLD].abs().amax(1) > 1e-5).all()


def test_a_weight_of_zero_needs_no_teacher() -> None:
    trained = lwf("lwf.weight=0")
    assert trained.method.teacher is None
    assert trained.losses(trained.batch_of(2, MIXED)).keys() == {"ce"}
    assert trained.method.diagnostics() == {"lambda": 0}
    assert lwf("lwf.weight=0.5").method.diagnostics() == {"lambda": 0.5}


def test_cross_entropy_over_new_classes_ignores_memory_rows_and_old_outputs() -> None:
    trained = lwf("lwf.ce=new")
    batch = trained.batch_of(2, MIXED)
    gradient = classifier_gradient(trained, batch, "ce")
    assert torch.equal(gradient[:OLD], torch.zeros_like(gradient[:OLD]))
    assert (gradient[OLD:].abs().amax(1) > 1e-5).all()
    alone = trained.batch_of(2, range(OLD, MIXED.stop))
    assert trained.losses(batch)["ce"] == pytest.approx(trained.losses(alone)["ce"], rel=1e-5)
    assert trained.losses(trained.batch_of(2, range(OLD)))["ce"] == 0
