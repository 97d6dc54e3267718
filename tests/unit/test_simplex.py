"""The closed form of the d-Simplex against a dense matrix built step by step, and against published values."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from cl2r.simplex import Scale, SimplexClassifier, _closed_form, resolve_scale, simplex_logits, simplex_vertices

SIZES = [2, 3, 10, 100]


def dense_vertices(num_classes):
    """e_1..e_{K-1} and α·1, moved to their centre, each divided by its own norm."""
    n = num_classes - 1
    alpha = (1 - math.sqrt(n + 1)) / n
    raw = np.vstack([np.eye(n), np.full((1, n), alpha)])
    centred = raw - raw.mean(axis=0)
    return centred / np.linalg.norm(centred, axis=1, keepdims=True)


def features_and_labels(num_classes, count=17, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, num_classes - 1)) * 3, rng.integers(0, num_classes, count)


def loss_and_gradient(to_logits, features, labels):
    f = torch.tensor(features, dtype=torch.float64, requires_grad=True)
    losses = functional.cross_entropy(to_logits(f), torch.as_tensor(labels), reduction="none")
    losses.sum().backward()
    return losses.detach().numpy(), f.grad.numpy()


def test_published_logits_of_three_classes():
    z = simplex_logits(np.array([1.0, 2.0]), 3)
    np.testing.assert_allclose(z, [0.448288, 1.673033, -2.121320], atol=5e-7)
    assert abs(z.sum()) < 1e-14


def test_integer_features_are_not_truncated():
    np.testing.assert_allclose(simplex_logits(np.array([1, 2]), 3), [0.448288, 1.673033, -2.121320], atol=5e-7)


def test_gram_matrix_of_a_hundred_classes():
    w = simplex_vertices(100)
    off_diagonal = (w @ w.T)[~np.eye(100, dtype=bool)]
    np.testing.assert_allclose(off_diagonal, -0.0101010, atol=5e-8)


@pytest.mark.parametrize("k", SIZES)
def test_identities_of_the_regular_simplex(k):
    w, square = simplex_vertices(k), k / (k - 1)
    assert w.shape == (k, k - 1)
    np.testing.assert_allclose(np.linalg.norm(w, axis=1), 1, atol=1e-13)
    np.testing.assert_allclose(w.sum(axis=0), 0, atol=1e-13)
    np.testing.assert_allclose(w @ w.T, square * (np.eye(k) - 1 / k), atol=1e-13)
    np.testing.assert_allclose((w @ w.T)[0, 1:], -1 / (k - 1), atol=1e-13)
    np.testing.assert_allclose(w.T @ w, square * np.eye(k - 1), atol=1e-13)


@pytest.mark.parametrize("k", SIZES)
def test_a_feature_can_be_read_back_from_its_logits(k):
    f, _ = features_and_labels(k)
    np.testing.assert_allclose(simplex_logits(f, k) @ simplex_vertices(k) * (k - 1) / k, f, atol=1e-12)


@pytest.mark.parametrize("k", SIZES)
def test_closed_form_is_the_dense_matrix_in_value_and_gradient(k):
    f, y = features_and_labels(k)
    w = torch.from_numpy(dense_vertices(k))
    np.testing.assert_allclose(simplex_logits(f, k, scale=0.7), 0.7 * f @ dense_vertices(k).T, atol=1e-12)
    for scale in (1.0, 0.3):
        loss, gradient = loss_and_gradient(lambda x, s=scale: _closed_form(x, k, s), f, y)
        dense_loss, dense_gradient = loss_and_gradient(lambda x, s=scale: s * x @ w.T, f, y)
        np.testing.assert_allclose(loss, dense_loss, atol=1e-12)
        np.testing.assert_allclose(gradient, dense_gradient, atol=1e-12)


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("scale", [1.0, 2.5, "legacy"])
def test_classifier_is_the_dense_matrix_in_float32(k, scale):
    f, y = features_and_labels(k)
    norm = resolve_scale(scale, k)
    w = torch.from_numpy(norm * dense_vertices(k))
    loss, gradient = loss_and_gradient(SimplexClassifier(k, scale), f, y)
    dense_loss, dense_gradient = loss_and_gradient(lambda x: x @ w.T, f, y)
    np.testing.assert_allclose(loss, dense_loss, atol=2e-5)
    np.testing.assert_allclose(gradient, dense_gradient, atol=2e-6)


@pytest.mark.parametrize(("k", "norm"), [(100, 0.0996), (200, 0.0706), (900, 0.0333)])
def test_legacy_scale(k, norm):
    assert resolve_scale("legacy", k) == pytest.approx(norm, abs=5e-5)
    n = k - 1
    raw = np.vstack([np.eye(n), np.full((1, n), (1 - math.sqrt(n + 1)) / n)])
    first_release = raw / np.linalg.norm(raw)
    first_release = first_release - first_release.mean(axis=0)
    np.testing.assert_allclose(np.linalg.norm(first_release, axis=1), resolve_scale("legacy", k), rtol=1e-12)


@pytest.mark.parametrize("k", SIZES)
def test_uncentred_logits_have_the_same_loss_and_gradient(k):
    f, y = features_and_labels(k)

    def uncentred(x):
        last = -x.sum(-1, keepdim=True) / (math.sqrt(k) + 1)
        return math.sqrt(k / (k - 1)) * torch.cat([x, last], -1)

    loss, gradient = loss_and_gradient(lambda x: _closed_form(x, k, 1.0), f, y)
    shortcut_loss, shortcut_gradient = loss_and_gradient(uncentred, f, y)
    np.testing.assert_allclose(loss, shortcut_loss, atol=1e-12)
    np.testing.assert_allclose(gradient, shortcut_gradient, atol=1e-12)


@pytest.mark.parametrize("k", SIZES)
def test_all_vertices_are_equivalent(k):
    """Moving classes to other vertices is a rotation of the features: isotropic features have the same losses."""
    f, y = features_and_labels(k, count=40, seed=k)
    order = np.roll(np.random.default_rng(k).permutation(k), 1)
    w = simplex_vertices(k)
    rotation = (k - 1) / k * w[order].T @ w
    assert np.any(order != np.arange(k))
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(k - 1), atol=1e-12)
    loss, gradient = loss_and_gradient(lambda x: _closed_form(x, k, 1.0), f, y)
    moved_loss, moved_gradient = loss_and_gradient(lambda x: _closed_form(x, k, 1.0), f @ rotation.T, order[y])
    np.testing.assert_allclose(moved_loss, loss, atol=1e-10)
    np.testing.assert_allclose(moved_gradient, gradient @ rotation.T, atol=1e-10)


def test_nothing_to_train_and_nothing_to_store():
    classifier = SimplexClassifier(1000)
    assert list(classifier.parameters()) == []
    assert list(classifier.buffers()) == []
    assert classifier.state_dict() == {}


def test_float32_under_autocast():
    f = torch.tensor(features_and_labels(1000, count=8)[0]).bfloat16()
    exact = f.double().numpy() @ dense_vertices(1000).T
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = SimplexClassifier(1000)(f)
    assert logits.dtype == torch.float32
    np.testing.assert_allclose(logits.numpy(), exact, atol=1e-4)


@pytest.mark.parametrize("size", [8, 10, 64])
def test_features_of_another_size_are_refused(size):
    with pytest.raises(ValueError, match=f"10 classes need features of size 9, got {size}"):
        SimplexClassifier(10)(torch.zeros(2, size))
    with pytest.raises(ValueError, match="need features of size"):
        simplex_logits(np.zeros((2, size)), 10)


def test_a_single_class_is_refused():
    with pytest.raises(ValueError, match="1 classes"):
        simplex_logits(np.zeros((2, 0)), 1)


@pytest.mark.parametrize("scale", [1.0, 3.0, "legacy"])
@pytest.mark.parametrize("classes", [2, 3, 100, 1025])
def test_logits_and_gradients_equal_autograd(classes: int, scale: Scale) -> None:
    """Bit for bit."""
    classifier, generator = SimplexClassifier(classes, scale), torch.Generator().manual_seed(classes)
    given = torch.randn(8, classes, generator=generator)
    features = torch.randn(8, classes - 1, generator=generator).requires_grad_()
    logits = classifier(features)
    logits.backward(given)
    other = features.detach().clone().requires_grad_()
    k, total = classes, other.sum(-1, keepdim=True)
    first = math.sqrt(k / (k - 1)) * (other - total / (k + math.sqrt(k)))
    expected = classifier.scale * torch.cat([first, -total / math.sqrt(k - 1)], -1)
    expected.backward(given)
    assert torch.equal(logits, expected)
    assert features.grad is not None
    assert other.grad is not None
    assert torch.equal(features.grad, other.grad)
