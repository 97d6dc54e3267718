"""d-Simplex-HOC: the contrastive loss against loops and by hand, and what is left of the method at its limits."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from cl2r.config.builtin import HocOptions
from cl2r.methods.hoc import contrastive
from tests.support.method_case import advanced, fingerprint
from tests.support.slow_losses import cosine, slow_ce

MODES = list(itertools.product(["inf", "code"], ["new", "old"]))
LABELS = [3, 1, 3, 0, 1, 3, 2]


def options(**values: Any) -> HocOptions:
    return HocOptions.model_validate(values)


def slow_contrastive(new: Tensor, old: Tensor, labels: list[int], mu: float, mask: str, anchor: str) -> float:
    first, second = (new.tolist(), old.tolist()) if anchor == "new" else (old.tolist(), new.tolist())
    total = 0.0
    for i, label in enumerate(labels):
        denominator = 0.0
        for j, other in enumerate(labels):
            if other != label:
                denominator += math.exp(mu * cosine(first[i], second[j]))
            elif mask == "code":
                denominator += 1.0
        if denominator:
            total += math.log(denominator) - mu * cosine(first[i], second[i])
    return total / len(labels)


def random_pair(rows: int = len(LABELS), size: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, size, generator=generator), torch.randn(rows, size, generator=generator)


def gradient(new: Tensor, old: Tensor, labels: list[int], **values: Any) -> tuple[float, Tensor]:
    f = new.clone().requires_grad_()
    loss = contrastive(f, old, torch.tensor(labels), torch.tensor(labels), options(**values))
    loss.backward()
    assert f.grad is not None
    return loss.item(), f.grad


@pytest.mark.parametrize(("mask", "anchor"), MODES)
@pytest.mark.parametrize("mu", [0.5, 10.0])
def test_agrees_with_loops(mask: str, anchor: str, mu: float) -> None:
    new, old = random_pair()
    loss, _ = gradient(new, old, LABELS, mask=mask, anchor=anchor, mu=mu)
    assert loss == pytest.approx(slow_contrastive(new, old, LABELS, mu, mask, anchor), abs=1e-5)


def test_modes_differ() -> None:
    new, old = random_pair()
    values = [gradient(new, old, LABELS, mask=mask, anchor=anchor)[0] for mask, anchor in MODES]
    assert min(abs(a - b) for a, b in itertools.combinations(values, 2)) > 0.01


@pytest.mark.parametrize(
    ("mask", "anchor", "value"),
    [
        # s = [[1, 0, 0], [0, 1, 1], [-1, 0, 0]], labels a b b, μ = 2
        ("inf", "new", (math.log(2) - 2 + 0 - 2 - 2 - 0) / 3),
        ("code", "new", (math.log(3) - 2 + math.log(3) - 2 + math.log(2 + math.exp(-2)) - 0) / 3),
        # columns of s: (1, 0, -1), (0, 1, 0), (0, 1, 0)
        ("inf", "old", (math.log(1 + math.exp(-2)) - 2 + 0 - 2 + 0 - 0) / 3),
        ("code", "old", (math.log(2 + math.exp(-2)) - 2 + math.log(3) - 2 + math.log(3) - 0) / 3),
    ],
)
def test_three_rows_by_hand(mask: str, anchor: str, value: float) -> None:
    new = torch.tensor([[3.0, 0.0], [0.0, 0.5], [-2.0, 0.0]])
    old = torch.tensor([[1.0, 0.0], [0.0, 4.0], [0.0, 7.0]])
    loss, _ = gradient(new, old, [0, 1, 1], mask=mask, anchor=anchor, mu=2.0)
    assert loss == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(("mask", "anchor"), MODES)
def test_gradient_turns_features_without_stretching_them(mask: str, anchor: str) -> None:
    new, old = random_pair()
    _, slope = gradient(new, old, LABELS, mask=mask, anchor=anchor)
    assert slope.norm(dim=1).min() > 1e-3
    torch.testing.assert_close((slope * new).sum(1), torch.zeros(len(new)), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("mask", "anchor"), MODES)
def test_the_gradient_equals_finite_differences(mask: str, anchor: str) -> None:
    new, old = random_pair()
    _, slope = gradient(new, old, LABELS, mask=mask, anchor=anchor, mu=2.0)
    step, wide = 1e-5, new.double()
    for i, j in itertools.product(range(len(new)), range(new.shape[1])):
        bumped = [wide.clone(), wide.clone()]
        bumped[0][i, j] += step
        bumped[1][i, j] -= step
        up, down = (slow_contrastive(f, old, LABELS, 2.0, mask, anchor) for f in bumped)
        assert float(slope[i, j]) == pytest.approx((up - down) / (2 * step), abs=1e-4)


def test_a_row_without_negatives_adds_nothing() -> None:
    new, old = random_pair(4)
    loss, slope = gradient(new, old, [5, 5, 5, 5], mask="inf")
    assert loss == 0
    assert not slope.any()
    loss, _ = gradient(new, old, [5, 5, 5, 5], mask="code", mu=3.0)
    positives = [cosine(f, g) for f, g in zip(new.tolist(), old.tolist(), strict=True)]
    assert loss == pytest.approx(math.log(4) - 3 * sum(positives) / 4, abs=1e-5)


@pytest.mark.parametrize("mask", ["inf", "code"])
def test_no_rows_give_zero(mask: str) -> None:
    new, old = random_pair(0)
    assert gradient(new, old, [], mask=mask)[0] == 0


def test_defaults_are_the_released_values() -> None:
    assert (options().weight, options().mu) == (0.1, 10.0)


@pytest.mark.parametrize("mask", ["inf", "code"])
def test_loss_is_a_convex_combination_over_all_rows(mask: str) -> None:
    made = advanced("hoc", "hoc.weight=0.3", "hoc.mu=4", f"hoc.mask={mask}")
    batch = made.batch_of(2, range(2, 8))
    losses = made.method.loss(batch, made.method.network)
    out, old = made.method.network(batch.x), made.method.teacher(batch.x).features
    contrast = slow_contrastive(out.features, old, batch.y.tolist(), 4.0, mask, "new")
    logits = out.logits.tolist()
    slow = [math.log(sum(map(math.exp, z))) - z[y] for z, y in zip(logits, batch.y.tolist(), strict=True)]
    assert set(losses) == {"ce", "hoc"}
    assert losses["hoc"].item() == pytest.approx(0.7 * contrast, abs=1e-4)
    assert losses["ce"].item() == pytest.approx(0.3 * sum(slow) / len(slow), abs=1e-5)


def test_its_cross_entropy_may_leave_out_unseen_classes() -> None:
    made = advanced("hoc", "hoc.weight=0.3", "head.mask_unseen=true")
    batch = made.batch_of(2, range(8))
    with torch.no_grad():
        logits = made.method.network(batch.x).logits
    assert logits.shape[1] == 12
    assert made.losses(batch)["ce"] == pytest.approx(0.3 * slow_ce(logits[:, :8], batch.y), abs=1e-5)
    assert slow_ce(logits[:, :8], batch.y) < slow_ce(logits, batch.y) - 1e-3


def test_full_weight_needs_no_teacher() -> None:
    made = advanced("hoc", "hoc.weight=1")
    assert made.method.teacher is None
    assert set(made.method.loss(made.batch_of(2, range(8)), made.method.network)) == {"ce"}
    assert fingerprint(made.method.network) == fingerprint(advanced("fixed").method.network)
