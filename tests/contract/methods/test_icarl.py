"""iCaRL: its binary cross-entropy against loops over rows and classes, and whose word counts for old classes."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from cl2r.methods.base import Batch, Outputs
from tests.support.method_case import Case, advanced

OLD, SEEN = 4, 8  # classes before and after task 2 of the case
MIXED = range(2, 7)  # two old and three new classes


class Spy(nn.Module):
    """Keep the logits of a network, to compute the gradient of each of them."""

    logits: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Outputs:
        out: Outputs = self.network(x)
        self.logits = out.logits
        return out


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def slow_bce(logits: Tensor, y: Tensor, old: Tensor | None) -> float:
    """Return the mean over rows and classes; targets of the first classes are the old model's sigmoids."""
    total = 0.0
    for row, (z, label) in enumerate(zip(logits.tolist(), y.tolist(), strict=True)):
        for j, answer in enumerate(z):
            taught = old is not None and j < old.shape[1]
            target = sigmoid(float(old[row, j])) if old is not None and taught else float(j == label)
            total -= target * math.log(sigmoid(answer)) + (1 - target) * math.log(1 - sigmoid(answer))
    return total / logits.numel()


icarl = partial(advanced, "icarl", sure=True)
MEAN = "icarl.over_classes=mean"


def bce(trained: Case, batch: Batch) -> float:
    losses = trained.method.loss(batch, trained.method.network)
    assert losses.keys() == ({"bce"} if trained.method.teacher is None else {"bce", "kd"})
    return sum(losses.values()).item()


def logit_gradients(trained: Case, batch: Batch) -> Tensor:
    spy = Spy(trained.method.network)
    return torch.autograd.grad(sum(trained.method.loss(batch, spy).values()), spy.logits)[0]


def test_the_sum_over_classes_is_the_mean_times_their_number() -> None:
    summed = icarl(steps=0)
    batch = summed.batch_of(2, MIXED)
    with torch.no_grad():
        logits, old = summed.method.network(batch.x).logits, summed.method.teacher(batch.x).logits
    assert bce(summed, batch) == pytest.approx(SEEN * slow_bce(logits, batch.y, old), rel=1e-5)


def test_first_task_is_plain_binary_cross_entropy() -> None:
    trained = advanced("icarl", MEAN, task=1)
    batch = trained.batch_of(1, range(OLD))
    with torch.no_grad():
        logits = trained.method.network(batch.x).logits
    assert logits.shape == (len(batch.y), OLD)
    assert bce(trained, batch) == pytest.approx(slow_bce(logits, batch.y, None), rel=1e-5)


@pytest.mark.parametrize("memory", [0, 2])
def test_targets_of_old_classes_come_from_the_old_model(memory: int) -> None:
    trained = icarl(MEAN, memory=memory)
    batch = trained.batch_of(2, MIXED if memory else range(OLD, SEEN))
    with torch.no_grad():
        logits, old = trained.method.network(batch.x).logits, trained.method.teacher(batch.x).logits
    assert (logits.shape[1], old.shape[1]) == (SEEN, OLD)
    assert bce(trained, batch) == pytest.approx(slow_bce(logits, batch.y, old), rel=1e-5)
    assert slow_bce(logits, batch.y, old) != pytest.approx(slow_bce(logits, batch.y, None), rel=1e-3)
    assert trained.method.diagnostics() == {}, "targets have no weight"


def test_equal_models_have_no_gradient_for_old_logits() -> None:
    """Memory rows included: their own class is an old one, and its label is not used."""
    trained = icarl(steps=0)
    batch = trained.batch_of(2, MIXED)
    gradient = logit_gradients(trained, batch)
    assert 0 < len(batch.memory) < len(batch.y)
    torch.testing.assert_close(gradient[:, :OLD], torch.zeros(len(batch.y), OLD), atol=1e-7, rtol=0)
    assert (gradient[:, OLD:].abs() > 1e-4).all()


def test_the_label_of_a_memory_row_is_not_used() -> None:
    trained = icarl()
    batch = trained.batch_of(2, MIXED)
    assert (logit_gradients(trained, batch)[batch.memory, OLD:] > 0).all(), "pushed down, all of them"
    swapped = replace(batch, y=torch.where(batch.y < OLD, (batch.y + 1) % OLD, batch.y))
    assert not torch.equal(swapped.y, batch.y)
    assert bce(trained, swapped) == bce(trained, batch)


def test_new_rows_raise_the_logit_of_their_class() -> None:
    trained = icarl()
    batch = trained.batch_of(2, range(OLD, SEEN))
    gradient = logit_gradients(trained, batch)
    own = torch.nn.functional.one_hot(batch.y, SEEN).bool()
    assert (gradient[own] < 0).all()
    assert (gradient[:, OLD:][~own[:, OLD:]] > 0).all()
