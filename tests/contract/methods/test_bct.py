"""BCT and lifelong BCT: the frozen old head, its influence loss, and where each starts from."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.method_case import PER_CLASS, Case, advanced, case, ended, fingerprint
from tests.support.quick import Interrupter, assert_same_chain, quick_config, train
from tests.support.slow_losses import slow_ce

BOTH = ["bct", "lifelong_bct"]


def at_task_2(name: str, *overrides: str, steps: int = 0) -> Case:
    """Return a case in task 2; BCT has all old rows as memory."""
    return advanced(name, *overrides, steps=steps, memory=PER_CLASS if name == "bct" else 2)


def after_task_1(name: str, *overrides: str) -> tuple[Case, Tensor]:
    """Return a case at the end of task 1, and W_1."""
    made = ended(name, *overrides)
    return made, made.method.network.classifier.weight.detach().clone()


@pytest.mark.parametrize("name", BOTH)
def test_the_old_head_is_frozen_and_not_a_parameter(name: str) -> None:
    made, weight = after_task_1(name)
    assert made.method.old_head is None
    made.begin(2)
    for _ in range(3):
        made.step(made.batch_of(2, range(8)))
    assert torch.equal(made.method.old_head, weight)
    assert not made.method.old_head.requires_grad
    own = {tensor.data_ptr() for tensor in made.method.network.state_dict().values()}
    assert made.method.old_head.data_ptr() not in own
    assert not torch.equal(made.method.network.classifier.weight[:4], weight)


@pytest.mark.parametrize("name", BOTH)
def test_the_bias_of_the_old_head_is_frozen_with_it(name: str) -> None:
    made, _ = after_task_1(name, "bct.new_classes=synth")
    bias = made.method.network.classifier.bias.detach().clone()
    assert bias.any()
    made.begin(2)
    for _ in range(2):
        made.step(made.batch_of(2, range(8)))
    torch.testing.assert_close(made.method.old_bias, torch.cat([bias, bias.mean().expand(4)]))
    network, batch = made.method.network.eval(), made.batch_of(2, range(8))
    assert network.classifier.bias.shape == (8,)
    with torch.no_grad():
        features = network.phi(batch.x)
    logits = features @ made.method.old_head.T + made.method.old_bias
    assert made.losses(batch)["influence"] == pytest.approx(slow_ce(logits, batch.y), rel=1e-5)


@pytest.mark.parametrize("name", BOTH)
def test_synth_appends_class_means_of_the_old_model(name: str) -> None:
    made, weight = after_task_1(name, "bct.new_classes=synth")
    old = made.method.extractor()
    made.begin(2)
    head = made.method.old_head
    assert torch.equal(head[:4], weight)
    assert len(head) == 8
    norm = sum(math.sqrt(float((row * row).sum())) for row in weight) / 4
    for label in range(4, 8):
        mean = old(made.images[PER_CLASS * label : PER_CLASS * (label + 1)]).sum(0) / PER_CLASS
        torch.testing.assert_close(head[label], mean * norm / mean.norm(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("new_classes", ["ignore", "synth"])
@pytest.mark.parametrize("name", BOTH)
def test_the_loss_against_loops(name: str, new_classes: str) -> None:
    made = at_task_2(name, "bct.weight=0.7", f"bct.new_classes={new_classes}", steps=1)
    batch = made.batch(2, np.array([0, 1, 7, 13, 24, 30, 31, 40, 47]))
    with torch.no_grad():
        out = made.method.network(batch.x)
    known = batch.y < (4 if new_classes == "ignore" else 8)
    influence = slow_ce(out.features[known] @ made.method.old_head.T + made.method.old_bias, batch.y[known])
    expected = {"ce": slow_ce(out.logits, batch.y), "influence": 0.7 * influence}
    assert made.losses(batch) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", BOTH)
def test_new_classes_have_no_influence(name: str) -> None:
    made = at_task_2(name)
    network = made.method.network
    losses = made.method.loss(made.batch_of(2, range(4, 8)), network)
    assert losses["influence"].item() == 0
    gradients = torch.autograd.grad(losses["influence"], list(network.phi.parameters()))
    assert all((gradient == 0).all() for gradient in gradients)


def test_the_influence_does_not_train_the_new_head() -> None:
    made = at_task_2("lifelong_bct")
    influence = made.method.loss(made.batch_of(2, range(8)), made.method.network)["influence"]
    assert torch.autograd.grad(influence, [made.method.network.classifier.weight], allow_unused=True) == (None,)


@pytest.mark.parametrize("name", BOTH)
def test_lifelong_bct_continues_from_the_previous_model_and_bct_starts_afresh(name: str) -> None:
    made, weight = after_task_1(name)
    phi = fingerprint(made.method.network.phi)
    made.begin(2)
    continues = name == "lifelong_bct"
    assert (fingerprint(made.method.network.phi) == phi) == continues
    assert torch.isclose(made.method.network.classifier.weight[:4], weight).all(1).any() == continues
    assert len(made.method.network.classifier.weight) == 8


def test_lifelong_bct_from_scratch_on_all_rows_is_bct() -> None:
    """Same carried state and same rows: same start, same losses and same steps."""
    bct, lifelong, first = ended("bct"), case("lifelong_bct"), ended("bct")
    lifelong.method.restore(first.method.carry(), first.method.task)
    lifelong.method.scratch = True
    for each in (bct, lifelong):
        each.begin(2, PER_CLASS)
    for _ in range(3):
        one, two = (each.step(each.batch_of(2, range(8), PER_CLASS)) for each in (bct, lifelong))
        assert one == two
        assert one["influence"].item() > 0
    assert torch.equal(bct.method.old_head, lifelong.method.old_head)
    assert fingerprint(bct.method.network) == fingerprint(lifelong.method.network)


@pytest.mark.parametrize("name", BOTH)
def test_resumed_in_the_middle_of_a_task(tiny: Path, tmp_path: Path, name: str) -> None:
    """The old head, with class means of a model that is no longer in the network, is found again."""
    config = quick_config(tiny, {"method": {"name": name}, "bct": {"new_classes": "synth"}})
    whole = train(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", Interrupter(after=8))
    train(config, tmp_path / "stopped")
    assert_same_chain(whole.plan, tmp_path / "whole", tmp_path / "stopped")
