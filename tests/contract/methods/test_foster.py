"""FOSTER: expansion, boosting, balanced compression."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from cl2r.methods.base import Outputs
from cl2r.methods.foster import class_weights, shared_epochs
from tests.support.method_case import advanced, ended, fingerprint
from tests.support.slow_losses import slow_ce, slow_kd, softmax

BOOST, COMPRESS = 0, 1
foster = partial(advanced, "foster", steps=0)
"""FOSTER right after the expansion of task 2, in eval mode."""


@pytest.mark.parametrize("new_on_old", ["free", "zero"])
def test_old_classes_have_the_same_logits_right_after_the_expansion(new_on_old: str) -> None:
    this, before = foster(f"foster.new_on_old={new_on_old}", "foster.old_on_new=zero"), advanced("foster", task=1)
    network, x = this.method.network, this.images[:20]
    with torch.no_grad():
        expected = before.method.network(x)
        old = this.method.teacher(x)
        boosted = network(x, old=old.features)
    torch.testing.assert_close(old.logits, expected.logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(boosted.logits[:, :4], expected.logits, rtol=1e-4, atol=1e-5)
    assert boosted.logits.shape == boosted.auxiliary.shape == (20, 8)
    assert boosted.logits[:, 4:].abs().max() > 0.01, "new rows are drawn, not zero"


def test_new_backbone_and_student_start_from_the_old_model() -> None:
    this = ended("foster")
    before = this.method.carry()
    this.begin(2)
    network = this.method.network
    assert fingerprint(network.boosted.phi) == fingerprint(network.phi)
    for name, tensor in network.phi.state_dict().items():
        assert torch.equal(tensor, before[f"phi.{name}"])
    rows = network.classifier.weight
    assert torch.equal(rows[:4], before["classifier.weight"])
    assert before["classifier.bias"].any()
    for classifier in (network.classifier, network.boosted.classifier):
        assert torch.equal(classifier.bias, torch.cat([before["classifier.bias"], torch.zeros(4)]))
    assert rows.shape == (8, 64)
    assert rows[4:].abs().max() > 0.01


def test_old_rows_on_new_features_are_random_as_released_unless_asked_otherwise() -> None:
    released, zero = (foster(*options).method.network.boosted for options in ((), ("foster.old_on_new=zero",)))
    block = released.classifier.weight[:4, 64:]
    assert 0.5 / math.sqrt(128) < block.abs().max() <= 1 / math.sqrt(128)
    assert not zero.classifier.weight[:4, 64:].any()
    kept = torch.ones(8, 128, dtype=torch.bool)
    kept[:4, 64:] = False
    assert torch.equal(released.classifier.weight[kept], zero.classifier.weight[kept]), "nothing else differs"


@pytest.mark.parametrize("new_on_old", ["free", "zero"])
def test_new_rows_on_old_features_train_or_stay_at_zero(new_on_old: str) -> None:
    this = foster(f"foster.new_on_old={new_on_old}")
    weight = this.method.network.boosted.classifier.weight
    start = weight.detach().clone()
    for _ in range(2):
        this.step(this.batch_of(2, range(8)), stage=BOOST)
    moved = (weight - start).abs()
    assert moved[:4, :64].max() > 0
    assert moved[:4, 64:].max() > 0
    assert moved[4:, 64:].max() > 0
    if new_on_old == "zero":
        assert torch.equal(weight[4:, :64], torch.zeros(4, 64))
    else:
        assert moved[4:, :64].max() > 0
        assert start[4:, :64].abs().max() > 0


def test_boosting_does_not_change_the_student_nor_compression_the_boosted_part() -> None:
    this = foster()
    network, batch = this.method.network, this.batch_of(2, range(8), 3)
    for stage, trained, fixed in ((BOOST, network.boosted, network.phi), (COMPRESS, network.phi, network.boosted)):
        before, norm = fingerprint(fixed), trained.state_dict().copy()
        norm = {name: tensor.clone() for name, tensor in norm.items() if "running_mean" in name}
        this.step(batch, stage=stage)
        assert fingerprint(fixed) == before
        assert not any(torch.equal(trained.state_dict()[name], tensor) for name, tensor in norm.items())


def test_the_extractor_during_a_task_is_the_student() -> None:
    this = ended("foster")
    before = this.method.extractor()
    this.begin(2)
    batch = this.batch_of(2, range(8))
    this.step(batch, stage=BOOST)
    assert torch.equal(this.method.extractor()(batch.x), before(batch.x))
    this.step(batch, stage=COMPRESS)
    during = this.method.extractor()(batch.x)
    assert not torch.equal(during, before(batch.x))
    this.method.end_task()
    assert torch.equal(this.method.extractor()(batch.x), during)


def test_compression_uses_the_current_boosted_part() -> None:
    """A step of boosting invalidates the frozen copy that compression makes."""
    losses = []
    for early_look in (False, True):
        this = foster()
        batch = this.batch_of(2, range(8))
        if early_look:
            with torch.no_grad():
                this.method.stages()[COMPRESS].loss(batch, this.method.network.eval())
        this.step(batch, stage=BOOST)
        losses.append(this.step(batch, stage=COMPRESS)["bkd"])
    assert torch.equal(losses[0], losses[1])


def slow_weights(counts: list[int], beta: float) -> list[float]:
    """1 / (1 + β + … + β^{n-1}), scaled to mean 1."""
    inverse = [1 / sum(beta**i for i in range(n)) for n in counts]
    return [len(counts) * value / sum(inverse) for value in inverse]


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.94, 0.97])
def test_class_weights(beta: float) -> None:
    counts = [3, 3, 20, 500]
    weights = class_weights(np.array(counts), beta)
    np.testing.assert_allclose(weights, slow_weights(counts, beta), rtol=1e-9)
    assert weights.mean() == pytest.approx(1)
    if beta:
        assert weights[0] > weights[2] > weights[3], "classes with few images weigh more"


def test_class_weights_without_memory_are_finite() -> None:
    np.testing.assert_array_equal(class_weights(np.array([0, 0, 9]), 0.9), class_weights(np.array([1, 1, 9]), 0.9))
    assert np.isfinite(class_weights(np.array([0, 5000]), 0.999)).all()


def test_rows_of_the_whole_task_are_counted() -> None:
    this = foster()
    counts = [2] * 4 + [6] * 4
    np.testing.assert_allclose(this.method.boost_weights.numpy(), slow_weights(counts, 0.94), rtol=1e-6)
    np.testing.assert_allclose(this.method.compress_weights.numpy(), slow_weights(counts, 0.97), rtol=1e-6)


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
def test_boosting_loss(weight: float) -> None:
    this = foster(f"foster.weight={weight}", "foster.temperature=3", "foster.beta_boost=0.8")
    for _ in range(2):
        this.step(this.batch_of(2, range(8)), stage=BOOST)
    network, batch = this.method.network.eval(), this.batch_of(2, range(8), 1)
    with torch.no_grad():
        old = this.method.teacher(batch.x)
        out = network.boosted(batch.x, old.features)
    omega = torch.tensor(slow_weights([2] * 4 + [6] * 4, 0.8))
    expected = {"ce": slow_ce(out.logits / omega, batch.y), "auxiliary": slow_ce(out.auxiliary, batch.y)}
    expected["kd"] = weight * slow_kd(out.logits, old.logits, 3.0)
    assert this.losses(batch, BOOST) == pytest.approx(expected, rel=1e-4)
    assert this.method.diagnostics() == {"lambda": weight}


def test_compression_loss() -> None:
    this = foster("foster.temperature=3", "foster.beta_compress=0.8")
    for stage in (BOOST, COMPRESS):
        this.step(this.batch_of(2, range(8), 3), stage=stage)
    network, batch = this.method.network.eval(), this.batch_of(2, range(8), 1)
    with torch.no_grad():
        teacher = network.boosted(batch.x, this.method.teacher(batch.x).features)
        student = network(batch.x)
    omega = np.array(slow_weights([2] * 4 + [6] * 4, 0.8))
    expected = 0.0
    for z, z_student in zip(teacher.logits.tolist(), student.logits.tolist(), strict=True):
        target = softmax(z, 3) * omega
        expected -= float(target / target.sum() @ np.log(softmax(z_student, 3))) / 8
    assert this.losses(batch, COMPRESS) == {"bkd": pytest.approx(expected, rel=1e-4)}


def test_the_boosted_teacher_uses_its_running_statistics() -> None:
    """Its output for a row must not depend on the rest of the batch, although the network is in train mode."""
    this = foster()
    this.step(this.batch_of(2, range(8), 3), stage=BOOST)
    network = this.method.network.train()
    few, many = this.batch_of(2, range(2), 1), this.batch_of(2, range(8), 1)
    logits = this.method.boosted_logits
    torch.testing.assert_close(logits(few.x), logits(many.x)[:2], rtol=1e-5, atol=1e-6)
    assert network.boosted.phi.training


def test_balanced_compression_gives_rare_classes_more() -> None:
    """With a student of equal logits the gradient is softmax − target: lower if the target is higher."""
    plain, balanced = (foster(f"foster.beta_compress={beta}") for beta in (0.0, 0.97))
    targets = []
    for this in (plain, balanced):
        batch = this.batch_of(2, range(8), 1)
        z = torch.zeros(8, 8, requires_grad=True)
        loss = this.method.stages()[COMPRESS].loss(batch, lambda x, z=z: Outputs(z, z))["bkd"]
        (gradient,) = torch.autograd.grad(loss, z)
        targets.append(1 / 8 - 8 * 2 * gradient)
    torch.testing.assert_close(targets[1].sum(1), torch.ones(8))
    assert (targets[1][:, :4].sum(1) > targets[0][:, :4].sum(1)).all()


@pytest.mark.parametrize(("epochs", "shares"), [(1, (1, 1)), (2, (1, 1)), (3, (2, 1)), (7, (4, 3)), (70, (40, 30))])
def test_epochs_are_shared_4_to_3(epochs: int, shares: tuple[int, int]) -> None:
    assert shared_epochs(epochs) == shares
    this = foster(f"optim.epochs={epochs}", "optim.milestones=[]")
    boost, compress = this.method.stages()
    assert (boost.epochs, compress.epochs) == shares
    assert (boost.weight_decay, compress.weight_decay) == (None, 0.0)


def test_own_numbers_of_epochs() -> None:
    this = foster("foster.boost_epochs=5", "foster.compress_epochs=9", "optim.lr_later=0.03")
    assert [(stage.epochs, stage.lr) for stage in this.method.stages()] == [(5, 0.03), (9, 0.03)]
