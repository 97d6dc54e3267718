"""WA: its mix of two terms against loops over rows, and the alignment of the classifier's new rows."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cl2r.methods.base import TaskInfo
from cl2r.methods.wa import Wa
from tests.support.method_case import Case, case, fingerprint
from tests.support.quick import chain_tensors, quick_config, train
from tests.support.slow_losses import slow_ce, slow_kd

SIZE = 4  # classes of each task of the case
MIXED = {2: range(2, 7), 3: range(3, 11)}  # old and new classes


def in_task(task: int, *overrides: str, memory: int = 2, steps: int = 2) -> Case:
    """Return a case inside a task whose model has moved away from its teacher, with batch norm in eval mode."""
    trained = case("wa", *overrides)
    for index in range(1, task + 1):
        if index > 1:
            trained.method.end_task()
        trained.begin(index, memory)
        for _ in range(steps):
            trained.step(trained.batch_of(index, range(SIZE * index)))
        if index == 1:
            with torch.no_grad():  # a teacher that is sure of itself, so that no softmax is next to uniform
                method_of(trained).network.classifier.get_parameter("weight").mul_(30)
    trained.method.network.eval().requires_grad_(True)
    return trained


def method_of(trained: Case) -> Wa:
    assert isinstance(trained.method, Wa)
    return trained.method


def teacher_of(trained: Case) -> nn.Module:
    teacher = method_of(trained).teacher
    assert teacher is not None
    return teacher


def rows_of(trained: Case) -> Tensor:
    return method_of(trained).network.classifier.get_parameter("weight").detach().clone()


def mean_length(rows: Tensor) -> float:
    lengths = [math.sqrt(math.fsum(w * w for w in row)) for row in rows.tolist()]
    return math.fsum(lengths) / len(lengths)


# ---------------------------------------------------------------- the loss


@pytest.mark.parametrize("temperature", [2.0, 3.0])
@pytest.mark.parametrize(("task", "share"), [(2, 1 / 2), (3, 2 / 3)])
def test_both_terms_equal_loops_over_rows(task: int, share: float, temperature: float) -> None:
    trained = in_task(task, f"wa.temperature={temperature}")
    batch = trained.batch_of(task, MIXED[task])
    with torch.no_grad():
        logits, old = trained.method.network(batch.x).logits, teacher_of(trained)(batch.x).logits
    assert (logits.shape[1], old.shape[1]) == (SIZE * task, SIZE * (task - 1))
    assert slow_kd(old, old, 2.0) < 0.9 * math.log(old.shape[1])
    found = trained.losses(batch)
    assert found.keys() == {"ce", "kd"}
    assert found["ce"] == pytest.approx((1 - share) * slow_ce(logits, batch.y), rel=1e-5)
    assert found["kd"] == pytest.approx(share * slow_kd(logits, old, temperature), rel=1e-5)
    assert trained.method.diagnostics() == {"lambda": pytest.approx(share)}


def test_distillation_needs_no_memory() -> None:
    trained = in_task(2, memory=0)
    assert trained.losses(trained.batch_of(2, range(SIZE, 2 * SIZE))).keys() == {"ce", "kd"}
    assert trained.method.diagnostics() == {"lambda": 0.5}
    trained.method.begin_task(TaskInfo(3, 8, 2, 0), trained.data(3))
    assert trained.method.diagnostics() == {"lambda": 0.8}


def test_new_logits_get_no_distillation_gradient() -> None:
    trained = in_task(2)
    loss = trained.method.loss(trained.batch_of(2, MIXED[2]), trained.method.network)
    gradient = torch.autograd.grad(loss["kd"], method_of(trained).network.classifier.get_parameter("weight"))[0]
    assert torch.equal(gradient[SIZE:], torch.zeros_like(gradient[SIZE:]))
    assert (gradient[:SIZE].abs().amax(1) > 1e-5).all()


# ---------------------------------------------------------------- alignment


@pytest.mark.parametrize("task", [2, 3])
def test_the_new_rows_get_the_mean_length_of_the_old_ones_and_keep_their_direction(task: int) -> None:
    trained, old = in_task(task), SIZE * (task - 1)
    before = rows_of(trained)
    trained.method.end_task()
    after = rows_of(trained)
    assert mean_length(before[old:]) != pytest.approx(mean_length(before[:old]), rel=1e-3)
    assert mean_length(after[old:]) == pytest.approx(mean_length(before[:old]), rel=1e-5)
    assert torch.equal(after[:old], before[:old])
    ratio = after[old:] / before[old:]
    gamma = mean_length(before[:old]) / mean_length(before[old:])
    torch.testing.assert_close(ratio, torch.full_like(ratio, gamma), rtol=1e-5, atol=0)
    assert trained.method.diagnostics() == {"lambda": pytest.approx(old / (old + SIZE)), "gamma": pytest.approx(gamma)}


def test_aligning_twice_is_aligning_once() -> None:
    trained = in_task(2)
    trained.method.end_task()
    once = rows_of(trained)
    trained.method.end_task()
    torch.testing.assert_close(rows_of(trained), once, rtol=1e-6, atol=0)
    assert trained.method.diagnostics()["gamma"] == pytest.approx(1, abs=1e-6)


def test_aligning_does_not_change_the_features() -> None:
    trained = in_task(2)
    phi, x = method_of(trained).network.phi, trained.batch_of(2, MIXED[2]).x
    before, features = fingerprint(phi), trained.method.extractor()(x)
    trained.method.end_task()
    assert fingerprint(phi) == before
    assert torch.equal(trained.method.extractor()(x), features)


def test_the_first_task_is_not_aligned() -> None:
    trained = in_task(1)
    before = fingerprint(trained.method.network)
    trained.method.end_task()
    assert fingerprint(trained.method.network) == before
    assert "gamma" not in trained.method.diagnostics()


def test_the_next_task_and_its_teacher_start_from_the_aligned_rows() -> None:
    trained = in_task(2)
    trained.method.end_task()
    aligned, carried = rows_of(trained), trained.method.carry()
    assert torch.equal(carried["classifier.weight"], aligned)
    restored = case("wa")
    restored.method.restore(carried, trained.method.task)
    for one in (trained, restored):
        one.begin(3)
        assert torch.equal(teacher_of(one).get_parameter("classifier.weight"), aligned)
        assert torch.equal(rows_of(one)[: 2 * SIZE], aligned)
        assert "gamma" not in one.method.diagnostics()
    assert fingerprint(restored.method.network) == fingerprint(trained.method.network)


# ---------------------------------------------------------------- workers and precision


# ---------------------------------------------------------------- runs


def test_a_run_aligns_every_later_task(tiny: Path, tmp_path: Path) -> None:
    result = train(quick_config(tiny, {"method": {"name": "wa"}}), tmp_path)
    tensors = chain_tensors(result.plan, tmp_path)
    assert [link.record["metrics"]["lambda"] for link in result.links] == pytest.approx([0, 1 / 2, 2 / 3])
    for task in (2, 3):
        rows, old = tensors[task - 1]["method/classifier.weight"], SIZE * (task - 1)
        assert mean_length(rows[old:]) == pytest.approx(mean_length(rows[:old]), rel=1e-5)
        assert result.links[task - 1].record["metrics"]["gamma"] > 0
