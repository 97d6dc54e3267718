"""BCT and lifelong BCT: the frozen old head, its influence loss, and where each starts from."""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from cl2r.methods.bct import LifelongBct
from tests.support.method_case import PER_CLASS, Case, case, fingerprint
from tests.support.quick import Interrupter, assert_same_chain, chain_tensors, quick_config, train

BOTH = ["bct", "lifelong_bct"]


def bct_of(made: Case) -> LifelongBct:
    assert isinstance(made.method, LifelongBct)
    return made.method


def old_head_of(made: Case) -> Tensor:
    head = bct_of(made).old_head
    assert head is not None
    return head


def at_task_2(name: str, *overrides: str) -> Case:
    """Return a case at the start of task 2, after a step of task 1; BCT has all old rows as memory."""
    made = case(name, *overrides)
    made.begin(1)
    made.step(made.batch_of(1, range(4)))
    made.begin(2, PER_CLASS if name == "bct" else 2)
    return made


def head_weight(made: Case) -> nn.Parameter:
    return bct_of(made).network.get_parameter("classifier.weight")


# ---------------------------------------------------------------- the old head


@pytest.mark.parametrize("name", BOTH)
def test_the_old_head_is_frozen_and_not_a_parameter(name: str) -> None:
    made = case(name)
    made.begin(1)
    assert bct_of(made).old_head is None
    made.step(made.batch_of(1, range(4)))
    weight = head_weight(made).detach().clone()
    made.begin(2)
    for _ in range(3):
        made.step(made.batch_of(2, range(8)))
    assert torch.equal(old_head_of(made), weight)
    assert not old_head_of(made).requires_grad
    own = {tensor.data_ptr() for tensor in bct_of(made).network.state_dict().values()}
    assert old_head_of(made).data_ptr() not in own
    assert not torch.equal(head_weight(made)[:4], weight)


@pytest.mark.parametrize("name", BOTH)
def test_the_old_head_is_that_of_the_previous_task(name: str) -> None:
    made = at_task_2(name)
    made.step(made.batch_of(2, range(8)))
    weight = head_weight(made).detach().clone()
    made.begin(3)
    assert torch.equal(old_head_of(made), weight)


@pytest.mark.parametrize("name", BOTH)
def test_synth_appends_class_means_of_the_old_model(name: str) -> None:
    made = case(name, "bct.new_classes=synth")
    made.begin(1)
    made.step(made.batch_of(1, range(4)))
    old, weight = bct_of(made).extractor(), head_weight(made).detach().clone()
    made.begin(2)
    head = old_head_of(made)
    assert torch.equal(head[:4], weight)
    assert len(head) == 8
    norm = sum(math.sqrt(float((row * row).sum())) for row in weight) / 4
    for label in range(4, 8):
        mean = old(made.images[PER_CLASS * label : PER_CLASS * (label + 1)]).sum(0) / PER_CLASS
        torch.testing.assert_close(head[label], mean * norm / mean.norm(), rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------- the loss


def cross_entropy(
    features: npt.NDArray[np.float64], weight: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]
) -> float:
    """Return CE, computed row by row; 0 for no rows."""
    total = 0.0
    for feature, label in zip(features, labels, strict=True):
        scores = [float(np.dot(row, feature)) for row in weight]
        total += math.log(sum(math.exp(score - max(scores)) for score in scores)) + max(scores) - scores[label]
    return total / max(len(labels), 1)


@pytest.mark.parametrize("new_classes", ["ignore", "synth"])
@pytest.mark.parametrize("name", BOTH)
def test_the_loss_against_loops(name: str, new_classes: str) -> None:
    made = at_task_2(name, "bct.weight=0.7", f"bct.new_classes={new_classes}")
    made.step(made.batch_of(2, range(8)))
    batch = made.batch(2, np.array([0, 1, 7, 13, 24, 30, 31, 40, 47]))
    network = bct_of(made).network.eval()
    losses = bct_of(made).loss(batch, network)
    features, labels = network.phi(batch.x).detach().double().numpy(), batch.y.numpy()
    weight, old = head_weight(made).detach().double().numpy(), old_head_of(made).double().numpy()
    known = labels < 4 if new_classes == "ignore" else np.ones(len(labels), dtype=bool)
    assert losses.keys() == {"ce", "influence"}
    assert losses["ce"].item() == pytest.approx(cross_entropy(features, weight, labels), rel=1e-5)
    expected = 0.7 * cross_entropy(features[known], old, labels[known])
    assert losses["influence"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", BOTH)
def test_new_classes_have_no_influence(name: str) -> None:
    made = at_task_2(name)
    network = bct_of(made).network.eval()
    losses = bct_of(made).loss(made.batch_of(2, range(4, 8)), network)
    assert losses["influence"].item() == 0
    gradients = torch.autograd.grad(losses["influence"], list(network.phi.parameters()))
    assert all((gradient == 0).all() for gradient in gradients)


def test_synthesised_new_classes_have_an_influence() -> None:
    made = at_task_2("lifelong_bct", "bct.new_classes=synth")
    network = bct_of(made).network.eval()
    losses = bct_of(made).loss(made.batch_of(2, range(4, 8)), network)
    gradients = torch.autograd.grad(losses["influence"], list(network.phi.parameters()))
    assert any((gradient != 0).any() for gradient in gradients)


def test_the_influence_does_not_train_the_new_head() -> None:
    made = at_task_2("lifelong_bct")
    network = bct_of(made).network.eval()
    influence = bct_of(made).loss(made.batch_of(2, range(8)), network)["influence"]
    assert torch.autograd.grad(influence, [head_weight(made)], allow_unused=True) == (None,)


# ---------------------------------------------------------------- where a task starts


def test_bct_starts_every_task_from_fresh_weights() -> None:
    made = case("bct")
    made.begin(1)
    first = fingerprint(bct_of(made).network.phi)
    assert first == fingerprint(bct_of(made).initial_phi()), "the first task starts like that of any method"
    strides = {name: tensor.stride() for name, tensor in bct_of(made).network.phi.state_dict().items()}
    made.step(made.batch_of(1, range(4)))
    trained, weight = fingerprint(bct_of(made).network.phi), head_weight(made).detach().clone()
    made.begin(2)
    phi = bct_of(made).network.phi
    assert fingerprint(phi) == fingerprint(bct_of(made).initial_phi(2))
    assert len({first, trained, fingerprint(phi)}) == 3
    assert {name: tensor.stride() for name, tensor in phi.state_dict().items()} == strides
    assert head_weight(made).shape[0] == 8
    assert not torch.isclose(head_weight(made)[:4], weight).any(1).all()


def test_lifelong_bct_continues_from_the_previous_model() -> None:
    made = case("lifelong_bct")
    made.begin(1)
    made.step(made.batch_of(1, range(4)))
    phi, weight = fingerprint(bct_of(made).network.phi), head_weight(made).detach().clone()
    made.begin(2)
    assert fingerprint(bct_of(made).network.phi) == phi
    assert torch.equal(head_weight(made)[:4], weight)


def test_lifelong_bct_from_scratch_on_all_rows_is_bct() -> None:
    """Same carried state and same rows: same start, same losses and same steps."""
    bct, lifelong = at_task_2("bct"), case("lifelong_bct")
    other = bct_of(lifelong)
    first = case("bct")
    first.begin(1)
    first.step(first.batch_of(1, range(4)))
    other.restore(bct_of(first).carry(), bct_of(first).task)
    other.scratch = True
    data = lifelong.begin(2, PER_CLASS)
    rows = np.concatenate([data.memory, data.new])
    assert len(rows) == 8 * PER_CLASS
    assert torch.equal(old_head_of(bct), old_head_of(lifelong))
    for _ in range(3):
        one, two = (each.step(each.batch(2, rows)) for each in (bct, lifelong))
        assert {name: value.item() for name, value in one.items()} == {
            name: value.item() for name, value in two.items()
        }
        assert one["influence"].item() > 0
    assert fingerprint(bct_of(bct).network) == fingerprint(other.network)


def test_bct_without_influence_is_joint_training() -> None:
    """A task depends on earlier ones only through its classes."""
    made, other = (case("bct", "bct.weight=0") for _ in range(2))
    for each, steps in ((made, 1), (other, 3)):
        each.begin(1)
        for _ in range(steps):
            each.step(each.batch_of(1, range(4)))
    assert fingerprint(bct_of(made).network) != fingerprint(bct_of(other).network)
    for each in (made, other):
        each.begin(2, PER_CLASS)
        assert each.step(each.batch_of(2, range(8))).keys() == {"ce"}
    assert fingerprint(bct_of(made).network) == fingerprint(bct_of(other).network)


# ---------------------------------------------------------------- runs


def test_lifelong_bct_without_influence_is_experience_replay(tiny: Path, tmp_path: Path) -> None:
    er = train(quick_config(tiny, {"method": {"name": "er"}}), tmp_path / "er")
    settings = {"method": {"name": "lifelong_bct"}, "bct": {"weight": 0}}
    bct = train(quick_config(tiny, settings), tmp_path / "bct")
    np.testing.assert_array_equal(er.report.matrix, bct.report.matrix)
    chains = chain_tensors(er.plan, tmp_path / "er"), chain_tensors(bct.plan, tmp_path / "bct")
    for one, two in zip(*chains, strict=True):
        assert one.keys() == two.keys()
        assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


@pytest.mark.parametrize("new_classes", ["ignore", "synth"])
@pytest.mark.parametrize("name", BOTH)
def test_a_run(tiny: Path, tmp_path: Path, name: str, new_classes: str) -> None:
    config = quick_config(tiny, {"method": {"name": name}, "bct": {"new_classes": new_classes}})
    result = train(config, tmp_path)
    assert np.isfinite(result.report.matrix[np.tri(3, dtype=bool)]).all()
    quota = 14 if name == "bct" else 3
    assert [link.record["memory"] for link in result.links] == [0, 4 * quota, 8 * quota]
    assert all(row["loss_influence"] > 0 for link in result.links[1:] for row in link.record["curves"])


@pytest.mark.parametrize("name", BOTH)
def test_resumed_in_the_middle_of_a_task(tiny: Path, tmp_path: Path, name: str) -> None:
    """The old head, with class means of a model that is no longer in the network, is found again."""
    config = quick_config(tiny, {"method": {"name": name}, "bct": {"new_classes": "synth"}})
    whole = train(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", Interrupter(after=8))
    train(config, tmp_path / "stopped")
    assert_same_chain(whole.plan, tmp_path / "whole", tmp_path / "stopped")
