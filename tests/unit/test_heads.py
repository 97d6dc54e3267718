"""Projections and the growing classifier."""

import math

import pytest
import torch
from torch import nn

from cl2r.heads import TrainableClassifier, build_projection


def stream(seed):
    return torch.Generator().manual_seed(seed)


def grown(*sizes, dim=12, bias=False):
    """A classifier grown to each of `sizes` in turn, the seed being the number of the step."""
    classifier = TrainableClassifier(dim, bias)
    for step, size in enumerate(sizes):
        classifier.grow_to(size, stream(step))
    return classifier


def test_growing_keeps_old_rows_and_old_logits_bitwise():
    """Bitwise as products with the old rows; a product of another shape may add up in another order (one ulp)."""
    x = torch.randn(9, 12, generator=stream(5))
    old = grown(4)
    before, rows = old(x).detach(), old.weight.detach().clone()
    old.grow_to(7, stream(1))
    assert old.weight.shape == (7, 12)
    assert torch.equal(old.weight[:4], rows)
    assert torch.equal(nn.functional.linear(x, old.weight[:4]), before)
    torch.testing.assert_close(old(x)[:, :4], before, atol=1e-6, rtol=1e-6)


def test_all_rows_stay_trainable_after_growing():
    classifier = grown(4, 7)
    assert [name for name, _ in classifier.named_parameters()] == ["weight"]
    classifier(torch.ones(1, 12)).sum().backward()
    assert classifier.weight.grad.shape == (7, 12)
    assert classifier.weight.grad.all()


def test_growing_to_the_present_size_changes_nothing():
    assert torch.equal(grown(4, 4).weight, grown(4).weight)


def test_logits_are_dot_products_with_the_rows():
    classifier, x = grown(3), torch.randn(5, 12, generator=stream(1))
    expected = [[sum(a * b for a, b in zip(f, w, strict=True)) for w in classifier.weight.tolist()] for f in x.tolist()]
    torch.testing.assert_close(classifier(x), torch.tensor(expected))


def test_a_bias_starts_at_zero_and_old_biases_stay_when_classes_are_added():
    classifier, x = grown(3, bias=True), torch.randn(5, 12, generator=stream(1))
    assert torch.equal(classifier.weight, grown(3).weight), "rows are drawn as without a bias"
    torch.testing.assert_close(classifier(x), grown(3)(x))
    with torch.no_grad():
        classifier.bias.copy_(torch.tensor([1.0, -2.0, 3.0]))
    classifier.grow_to(5, stream(1))
    assert classifier.bias.tolist() == [1, -2, 3, 0, 0]
    torch.testing.assert_close(classifier(x), grown(3, 5)(x) + torch.tensor([1.0, -2.0, 3.0, 0.0, 0.0]))
    classifier(x).sum().backward()
    assert classifier.bias.grad.tolist() == [5] * 5


def test_aligning_scales_rows_and_leaves_biases():
    classifier = grown(2, 4, bias=True)
    with torch.no_grad():
        classifier.bias.fill_(0.5)
        classifier.weight[2:] *= 3
    before = classifier.weight.detach().clone()
    gamma = classifier.align(2)
    assert gamma < 1
    torch.testing.assert_close(classifier.weight[2:], gamma * before[2:])
    assert torch.equal(classifier.weight[:2], before[:2])
    assert classifier.bias.tolist() == [0.5] * 4


def test_a_cleared_classifier_has_no_classes():
    classifier = grown(4, bias=True)
    classifier.clear()
    assert (classifier.weight.shape, classifier.bias.shape) == ((0, 12), (0,))


def test_rows_are_a_function_of_the_generator_alone():
    torch.manual_seed(1)
    first = grown(4, 9).weight
    torch.manual_seed(2)
    assert torch.equal(grown(4, 9).weight, first)
    other = TrainableClassifier(12)
    other.grow_to(4, stream(99))
    assert not torch.equal(other.weight, first[:4])


def test_the_global_random_state_does_not_change():
    before = torch.get_rng_state()
    grown(4, 9)
    assert torch.equal(torch.get_rng_state(), before)


def test_rows_fill_the_usual_interval():
    weight = grown(2000, dim=16).weight
    assert weight.abs().max() <= 1 / math.sqrt(16)
    assert weight.std().item() == pytest.approx(2 / math.sqrt(16) / math.sqrt(12), rel=0.03)


def test_linear_projection_is_one_matrix_without_bias():
    projection = build_projection("linear", 64, 99)
    assert [p.shape for p in projection.parameters()] == [(99, 64)]
    x = torch.randn(2, 64, generator=stream(0))
    torch.testing.assert_close(projection(3 * x), 3 * projection(x))


def test_mlp_projection_reaches_every_dimension():
    x = torch.randn(200, 4, generator=stream(0))
    torch.manual_seed(0)
    mlp, linear = build_projection("mlp", 4, 9), build_projection("linear", 4, 9)
    assert sum(p.numel() for p in mlp.parameters()) == (4 * 9 + 9) + 9 * 9
    assert torch.linalg.matrix_rank(linear(x)) == 4
    assert torch.linalg.matrix_rank(mlp(x), rtol=1e-4) > 4


def test_no_projection_is_the_identity():
    projection, x = build_projection("none", 64, 99), torch.randn(2, 64, generator=stream(0))
    assert isinstance(projection, nn.Identity)
    assert torch.equal(projection(x), x)
