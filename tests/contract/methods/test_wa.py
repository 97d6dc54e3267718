"""WA: its mix of two terms against loops over rows, and the alignment of the classifier's new rows."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from cl2r.methods.base import TaskInfo
from tests.support.method_case import Case, advanced, case, fingerprint
from tests.support.slow_losses import slow_ce, slow_kd

SIZE = 4  # classes of each task of the case
wa = partial(advanced, "wa", sure=True)
MIXED = {2: range(2, 7), 3: range(3, 11)}  # old and new classes


def rows_of(trained: Case) -> Tensor:
    return trained.method.network.classifier.get_parameter("weight").detach().clone()


def mean_length(rows: Tensor) -> float:
    lengths = [math.sqrt(math.fsum(w * w for w in row)) for row in rows.tolist()]
    return math.fsum(lengths) / len(lengths)


@pytest.mark.parametrize("temperature", [2.0, 3.0])
@pytest.mark.parametrize(("task", "share"), [(2, 1 / 2), (3, 2 / 3)])
def test_both_terms_equal_loops_over_rows(task: int, share: float, temperature: float) -> None:
    trained = wa(f"wa.temperature={temperature}", task=task)
    batch = trained.batch_of(task, MIXED[task])
    with torch.no_grad():
        logits, old = trained.method.network(batch.x).logits, trained.method.teacher(batch.x).logits
    assert (logits.shape[1], old.shape[1]) == (SIZE * task, SIZE * (task - 1))
    assert slow_kd(old, old, 2.0) < 0.9 * math.log(old.shape[1])
    found = trained.losses(batch)
    assert found.keys() == {"ce", "kd"}
    assert found["ce"] == pytest.approx((1 - share) * slow_ce(logits, batch.y), rel=1e-5)
    assert found["kd"] == pytest.approx(share * slow_kd(logits, old, temperature), rel=1e-5)
    assert trained.method.diagnostics() == {"lambda": pytest.approx(share)}


def test_distillation_needs_no_memory() -> None:
    trained = wa(task=2, memory=0)
    assert trained.losses(trained.batch_of(2, range(SIZE, 2 * SIZE))).keys() == {"ce", "kd"}
    assert trained.method.diagnostics() == {"lambda": 0.5}
    trained.method.begin_task(TaskInfo(3, 8, 2, 0), trained.data(3))
    assert trained.method.diagnostics() == {"lambda": 0.8}


def test_new_logits_get_no_distillation_gradient() -> None:
    trained = wa(task=2)
    loss = trained.method.loss(trained.batch_of(2, MIXED[2]), trained.method.network)
    gradient = torch.autograd.grad(loss["kd"], trained.method.network.classifier.get_parameter("weight"))[0]
    assert torch.equal(gradient[SIZE:], torch.zeros_like(gradient[SIZE:]))
    assert (gradient[:SIZE].abs().amax(1) > 1e-5).all()


@pytest.mark.parametrize("task", [2, 3])
def test_the_new_rows_get_the_mean_length_of_the_old_ones_and_keep_their_direction(task: int) -> None:
    trained, old = wa(task=task), SIZE * (task - 1)
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


def test_aligning_does_not_change_the_features() -> None:
    trained = wa(task=2)
    phi, x = trained.method.network.phi, trained.batch_of(2, MIXED[2]).x
    before, features = fingerprint(phi), trained.method.extractor()(x)
    trained.method.end_task()
    assert fingerprint(phi) == before
    assert torch.equal(trained.method.extractor()(x), features)


def test_the_first_task_is_not_aligned() -> None:
    trained = wa(task=1)
    before = fingerprint(trained.method.network)
    trained.method.end_task()
    assert fingerprint(trained.method.network) == before
    assert "gamma" not in trained.method.diagnostics()


def test_the_next_task_and_its_teacher_start_from_the_aligned_rows() -> None:
    trained = wa(task=2)
    trained.method.end_task()
    aligned, carried = rows_of(trained), trained.method.carry()
    assert torch.equal(carried["classifier.weight"], aligned)
    restored = case("wa")
    restored.method.restore(carried, trained.method.task)
    for one in (trained, restored):
        one.begin(3)
        assert torch.equal(one.method.teacher.get_parameter("classifier.weight"), aligned)
        assert torch.equal(rows_of(one)[: 2 * SIZE], aligned)
        assert "gamma" not in one.method.diagnostics()
    assert fingerprint(restored.method.network) == fingerprint(trained.method.network)
