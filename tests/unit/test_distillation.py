"""Feature distillation and its weight against published values and a loop over rows."""

import math

import pytest
import torch

from cl2r.distillation import distillation_weight, feature_distillation
from tests.support.slow_losses import slow_fd


def distil(new, old):
    """The loss and its gradient with respect to the new features."""
    f = torch.as_tensor(new, dtype=torch.float32).clone().requires_grad_()
    loss = feature_distillation(f, torch.as_tensor(old, dtype=torch.float32))
    loss.backward()
    return loss.item(), f.grad


def random_pair(rows=7, size=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, size, generator=generator), torch.randn(rows, size, generator=generator)


@pytest.mark.parametrize(
    ("new", "value"), [([[0.0, 2.0]], 1), ([[-3.0, 0.0]], 2), ([[5.0, 0.0]], 0), ([[5.0, 0.0], [0.0, 1.0]], 0.5)]
)
def test_orthogonal_opposite_and_equal_directions(new, value):
    loss, _ = distil(new, [[1.0, 0.0]] * len(new))
    assert loss == pytest.approx(value, abs=1e-6)


def test_equal_features_have_no_loss_and_no_gradient():
    f, _ = random_pair()
    loss, gradient = distil(f, f)
    assert loss == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(gradient, torch.zeros_like(f), atol=1e-7, rtol=0)


def test_lengths_do_not_matter():
    f, g = random_pair()
    assert distil(3 * f, g)[0] == pytest.approx(distil(f, g)[0], abs=1e-6)
    assert distil(f, 0.01 * g)[0] == pytest.approx(distil(f, g)[0], abs=1e-6)


def test_gradient_turns_a_feature_without_stretching_it():
    f, g = random_pair()
    _, gradient = distil(f, g)
    assert gradient.norm(dim=1).min() > 1e-3
    torch.testing.assert_close((gradient * f).sum(1), torch.zeros(len(f)), atol=1e-6, rtol=0)


def test_a_step_against_the_gradient_brings_the_models_together():
    f, g = random_pair()
    loss, gradient = distil(f, g)
    assert distil(f - 0.1 * gradient, g)[0] < loss


@pytest.mark.parametrize("rows", [1, 2, 7, 31])
def test_agrees_with_a_loop_over_rows(rows):
    f, g = random_pair(rows, seed=rows)
    assert distil(f, g)[0] == pytest.approx(slow_fd(f, g), abs=1e-6)


def test_no_rows_give_zero_and_a_gradient_of_zero():
    f, _ = random_pair()
    f.requires_grad_()
    loss = feature_distillation(f[:0], torch.empty(0, 5))
    loss.backward()
    assert loss.item() == 0
    assert f.grad is not None
    assert not f.grad.any()


def test_float32_under_autocast():
    f, g = random_pair(16, 300)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = feature_distillation(f.bfloat16(), g)
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(slow_fd(f.bfloat16().float(), g), abs=1e-5)


@pytest.mark.parametrize(
    ("rule", "value"),
    [("new_over_old", 2.5), ("old_over_new", 10.0), ("total_over_new", 5 * math.sqrt(5)), ("const", 5.0)],
)
def test_weight_of_ten_new_and_forty_old_classes(rule, value):
    assert distillation_weight(5, rule, new_classes=10, old_classes=40) == pytest.approx(value)


def test_weights_of_ten_equal_tasks():
    weights = {
        rule: [distillation_weight(5, rule, 10, 10 * t) for t in (1, 2, 3, 9)]
        for rule in ("new_over_old", "old_over_new")
    }
    assert weights["new_over_old"] == pytest.approx([5, 3.54, 2.89, 1.67], abs=5e-3)
    assert weights["old_over_new"] == pytest.approx([5, 7.07, 8.66, 15], abs=5e-3)


@pytest.mark.parametrize(("new", "old"), [(0, 10), (10, 0)])
def test_weight_needs_old_and_new_classes(new, old):
    with pytest.raises(ValueError, match=f"k_0={old}, k_n={new}"):
        distillation_weight(5, "new_over_old", new, old)
