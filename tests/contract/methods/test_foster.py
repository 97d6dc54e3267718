"""FOSTER: expansion, boosting, balanced compression."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from cl2r.engine.chain import RunResult
from cl2r.methods.base import Outputs
from cl2r.methods.foster import BoostedOutputs, Foster, WithBoosted, class_weights, shared_epochs
from tests.support.method_case import Case, case, fingerprint
from tests.support.quick import chain_tensors, quick_config, train

BOOST, COMPRESS = 0, 1
LONG: dict[str, Any] = {
    "method": {"name": "foster"},
    "foster": {"boost_epochs": 2, "compress_epochs": 2},
    "eval": {"bootstrap": 0},
}
FIRST_TASK_EPOCHS = 3


def learnt(*overrides: str, tasks: int = 1) -> Case:
    """Return a case after a few steps of every given task, the last one ended."""
    this = case("foster", *overrides)
    for task in range(1, tasks + 1):
        this.begin(task)
        take_steps(this, task)
        this.method.end_task()
    return this


def take_steps(this: Case, task: int, steps: int = 2) -> None:
    """Take some steps of every stage of the current task."""
    batch = this.batch_of(task, range(this.tasks[task - 1].stop), 3)
    for stage in range(len(this.method.stages())):
        for _ in range(steps):
            this.step(batch, stage=stage)


def foster(this: Case) -> Foster:
    assert isinstance(this.method, Foster)
    return this.method


def expanded(this: Case) -> WithBoosted:
    assert isinstance(this.method.network, WithBoosted)
    return this.method.network


def old_outputs(this: Case, x: Tensor) -> Outputs:
    teacher = foster(this).teacher
    assert teacher is not None
    out: Outputs = teacher(x)
    return out


# ---------------------------------------------------------------- the first task and what is carried


def test_every_task_carries_one_network_of_the_same_size() -> None:
    this = case("foster")
    names, sizes = None, set()
    for task in (1, 2, 3):
        this.begin(task)
        take_steps(this, task)
        this.method.end_task()
        carried = this.method.carry()
        names = names or carried.keys()
        assert carried.keys() == names
        assert len(carried["classifier.weight"]) == this.tasks[task - 1].stop
        sizes.add(tuple(this.apply(this.method.extractor(), this.rows(range(2))).shape))
    assert sizes == {(12, 64)}
    assert "classifier.weight" in (names or ())
    assert all(name == "classifier.weight" or name.startswith("phi.") for name in names or ())


# ---------------------------------------------------------------- expansion


@pytest.mark.parametrize("new_on_old", ["free", "zero"])
def test_old_classes_have_the_same_logits_right_after_the_expansion(new_on_old: str) -> None:
    this = learnt(f"foster.new_on_old={new_on_old}")
    before = copy.deepcopy(this.method.network).eval()
    this.begin(2)
    network, x = expanded(this).eval(), this.images[:20]
    with torch.no_grad():
        expected: Outputs = before(x)
        old = old_outputs(this, x)
        boosted = network(x, old=old.features)
    torch.testing.assert_close(old.logits, expected.logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(boosted.logits[:, :4], expected.logits, rtol=1e-4, atol=1e-5)
    assert boosted.logits.shape == boosted.auxiliary.shape == (20, 8)
    assert boosted.logits[:, 4:].abs().max() > 0.01, "new rows are drawn, not zero"


def test_new_backbone_and_student_start_from_the_old_model() -> None:
    this = learnt()
    before = this.method.carry()
    this.begin(2)
    network = expanded(this)
    assert fingerprint(network.boosted.phi) == fingerprint(network.phi)
    for name, tensor in network.phi.state_dict().items():
        assert torch.equal(tensor, before[f"phi.{name}"])
    rows = network.classifier.weight
    assert isinstance(rows, Tensor)
    assert torch.equal(rows[:4], before["classifier.weight"])
    assert rows.shape == (8, 64)
    assert rows[4:].abs().max() > 0.01


@pytest.mark.parametrize("new_on_old", ["free", "zero"])
def test_new_rows_on_old_features_train_or_stay_at_zero(new_on_old: str) -> None:
    this = learnt(f"foster.new_on_old={new_on_old}")
    this.begin(2)
    weight = expanded(this).boosted.classifier.weight
    assert isinstance(weight, Tensor)
    start = weight.detach().clone()
    for _ in range(2):
        this.step(this.batch_of(2, range(8)), stage=BOOST)
    moved = (weight - start).abs()
    assert moved[:4, :64].max() > 0
    assert moved[:4, 64:].max() > 0, "a zero block of old classes learns"
    assert moved[4:, 64:].max() > 0
    if new_on_old == "zero":
        assert torch.equal(weight[4:, :64], torch.zeros(4, 64))
    else:
        assert moved[4:, :64].max() > 0
        assert start[4:, :64].abs().max() > 0


# ---------------------------------------------------------------- what each stage touches


def test_boosting_does_not_change_the_student_nor_compression_the_boosted_part() -> None:
    this = learnt()
    this.begin(2)
    network, batch = expanded(this), this.batch_of(2, range(8), 3)
    student = lambda: fingerprint(nn.ModuleList([network.phi, network.classifier]))  # noqa: E731
    statistics = lambda phi: phi.state_dict()["0.bn1.running_mean"].clone()  # noqa: E731

    before, boosted, norm = student(), fingerprint(network.boosted), statistics(network.boosted.phi)
    this.step(batch, stage=BOOST)
    assert student() == before
    assert fingerprint(network.boosted) != boosted
    assert not torch.equal(statistics(network.boosted.phi), norm)

    boosted, norm = fingerprint(network.boosted), statistics(network.phi)
    this.step(batch, stage=COMPRESS)
    assert fingerprint(network.boosted) == boosted
    assert student() != before
    assert not torch.equal(statistics(network.phi), norm), "the student has batch statistics"


def test_each_stage_trains_exactly_its_own_parameters() -> None:
    this = learnt()
    this.begin(2)
    network = expanded(this)
    boost, compress = ({id(p) for p in stage.parameters()} for stage in this.method.stages())
    assert boost == {id(p) for p in network.boosted.parameters()}
    assert boost | compress == {id(p) for p in network.parameters()}
    assert not boost & compress
    decays = [stage.weight_decay for stage in this.method.stages()]
    assert decays == [None, 0.0]


def test_the_extractor_during_a_task_is_the_student() -> None:
    this = learnt()
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
        this = learnt()
        this.begin(2)
        batch = this.batch_of(2, range(8))
        if early_look:
            with torch.no_grad():
                this.method.stages()[COMPRESS].loss(batch, this.method.network.eval())
        this.step(batch, stage=BOOST)
        losses.append(this.step(batch, stage=COMPRESS)["bkd"])
    assert torch.equal(losses[0], losses[1])


# ---------------------------------------------------------------- class weights


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
    this = learnt()
    this.begin(2, memory_per_class=2)
    counts = [2] * 4 + [6] * 4
    np.testing.assert_allclose(foster(this).boost_weights.numpy(), slow_weights(counts, 0.94), rtol=1e-6)
    np.testing.assert_allclose(foster(this).compress_weights.numpy(), slow_weights(counts, 0.97), rtol=1e-6)


# ---------------------------------------------------------------- losses, against slow versions


def softmax(row: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    powers = np.exp(row - row.max())
    return np.asarray(powers / powers.sum())


def rows_of(tensor: Tensor) -> npt.NDArray[np.float64]:
    return tensor.detach().double().numpy()


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
def test_boosting_loss(weight: float) -> None:
    this = learnt(f"foster.weight={weight}", "foster.temperature=3", "foster.beta_boost=0.8")
    this.begin(2)
    for _ in range(2):
        this.step(this.batch_of(2, range(8)), stage=BOOST)
    network, batch = expanded(this).eval(), this.batch_of(2, range(8), 1)
    losses = this.method.stages()[BOOST].loss(batch, network)
    with torch.no_grad():
        old = old_outputs(this, batch.x)
        out: BoostedOutputs = network.boosted(batch.x, old.features)
    omega = slow_weights([2] * 4 + [6] * 4, 0.8)
    ce = auxiliary = kd = 0.0
    for z, a, z_old, y in zip(rows_of(out.logits), rows_of(out.auxiliary), rows_of(old.logits), batch.y, strict=True):
        ce -= math.log(softmax(z / np.array(omega))[y]) / 8
        auxiliary -= math.log(softmax(a)[y]) / 8
        kd -= weight * float(softmax(z_old / 3) @ np.log(softmax(z[:4] / 3))) / 8
    assert {name: float(value.detach()) for name, value in losses.items()} == pytest.approx(
        {"ce": ce, "auxiliary": auxiliary, "kd": kd}, rel=1e-4
    )
    assert this.method.diagnostics() == {"lambda": weight}


def test_compression_loss() -> None:
    this = learnt("foster.temperature=3", "foster.beta_compress=0.8")
    this.begin(2)
    take_steps(this, 2)
    network, batch = expanded(this).eval(), this.batch_of(2, range(8), 1)
    losses = this.method.stages()[COMPRESS].loss(batch, network)
    with torch.no_grad():
        teacher: BoostedOutputs = network.boosted(batch.x, old_outputs(this, batch.x).features)
        student: Outputs = network(batch.x)
    omega = np.array(slow_weights([2] * 4 + [6] * 4, 0.8))
    expected = 0.0
    for z, z_student in zip(rows_of(teacher.logits), rows_of(student.logits), strict=True):
        target = softmax(z / 3) * omega
        expected -= float(target / target.sum() @ np.log(softmax(z_student / 3))) / 8
    assert losses.keys() == {"bkd"}
    assert float(losses["bkd"].detach()) == pytest.approx(expected, rel=1e-4)


def test_the_boosted_teacher_uses_its_running_statistics() -> None:
    """Its output for a row must not depend on the rest of the batch, although the network is in train mode."""
    this = learnt()
    this.begin(2)
    this.step(this.batch_of(2, range(8), 3), stage=BOOST)
    network = expanded(this).train()
    few, many = this.batch_of(2, range(2), 1), this.batch_of(2, range(8), 1)
    logits = foster(this).boosted_logits
    torch.testing.assert_close(logits(few.x), logits(many.x)[:2], rtol=1e-5, atol=1e-6)
    assert network.boosted.phi.training


def test_balanced_compression_gives_rare_classes_more() -> None:
    """With a student of equal logits the gradient is softmax − target: lower if the target is higher."""
    plain, balanced = (learnt(f"foster.beta_compress={beta}") for beta in (0.0, 0.97))
    targets = []
    for this in (plain, balanced):
        this.begin(2)
        batch = this.batch_of(2, range(8), 1)
        z = torch.zeros(8, 8, requires_grad=True)
        answer = Outputs(z, z)
        loss = this.method.stages()[COMPRESS].loss(batch, _Answer(answer))["bkd"]
        (gradient,) = torch.autograd.grad(loss, z)
        targets.append(1 / 8 - 8 * 2 * gradient)
    torch.testing.assert_close(targets[1].sum(1), torch.ones(8))
    assert (targets[1][:, :4].sum(1) > targets[0][:, :4].sum(1)).all()


class _Answer(nn.Module):
    """A network that always returns the same outputs."""

    def __init__(self, answer: Outputs) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Outputs:
        return self.answer


# ---------------------------------------------------------------- schedule


@pytest.mark.parametrize(("epochs", "shares"), [(1, (1, 1)), (2, (1, 1)), (3, (2, 1)), (7, (4, 3)), (70, (40, 30))])
def test_epochs_are_shared_4_to_3(epochs: int, shares: tuple[int, int]) -> None:
    assert shared_epochs(epochs) == shares
    this = learnt(f"optim.epochs={epochs}", "optim.milestones=[]")
    this.begin(2)
    assert [(stage.name, stage.epochs) for stage in this.method.stages()] == [
        ("boost", shares[0]),
        ("compress", shares[1]),
    ]


def test_own_numbers_of_epochs() -> None:
    this = learnt("foster.boost_epochs=5", "foster.compress_epochs=9", "optim.lr_later=0.03")
    this.begin(2)
    assert [(stage.epochs, stage.lr) for stage in this.method.stages()] == [(5, 0.03), (9, 0.03)]


# ---------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("foster")


@pytest.fixture(scope="module")
def undisturbed(tiny: Path, root: Path) -> RunResult:
    return train(quick_config(tiny, LONG), root)


def test_a_run(undisturbed: RunResult, root: Path) -> None:
    matrix = undisturbed.report.matrix
    assert np.isfinite(matrix[np.tri(3, dtype=bool)]).all()
    assert matrix[0, 0] > 0.8
    assert matrix[-1, -1] > 0.65, "the student learns through its teacher alone"
    stages = [[curve["stage"] for curve in link.record["curves"]] for link in undisturbed.links]
    assert stages == [["train"] * 3] + [["boost"] * 2 + ["compress"] * 2] * 2
    sizes = {tensors["features/open"].shape[1] for tensors in chain_tensors(undisturbed.plan, root)}
    assert sizes == {64}
