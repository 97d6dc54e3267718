"""Values of stationarity against second formulas, their invariances, and the bound against eigenvalues."""

import itertools
import math

import numpy as np
import pytest

from cl2r.features import Features, unit_rows
from cl2r.simplex import simplex_vertices
from cl2r.stationarity import (
    SAMPLED_ROWS,
    common_direction,
    drift,
    drift_cosine,
    linear_cka,
    rotated_cosine,
    rotation,
    vertex_bound,
    vertex_cosine,
    vertices,
)


def vectors(count=30, size=5, seed=0):
    return np.random.default_rng(seed).normal(size=(count, size))


def turn(seed, size=5):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]


def test_unit_rows():
    rows = unit_rows(np.array([[3, 4], [0, 0], [0, -2]], dtype=np.float32))
    np.testing.assert_array_equal(rows, [[0.6, 0.8], [0, 0], [0, -1]])
    assert rows.dtype == np.float64


def test_drift_cosine_of_known_angles():
    old = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [3.0, 0.0]])
    new = np.array([[5.0, 0.0], [0.0, -1.0], [1.0, -1.0], [1.0, math.sqrt(3)]])
    assert drift_cosine(new, old) == pytest.approx((1 - 1 + 0 + 0.5) / 4)


def test_rotation_is_orthogonal_and_undoes_one():
    x = vectors()
    r = rotation(x @ turn(1), x)
    np.testing.assert_allclose(r @ r.T, np.eye(5), atol=1e-12)
    np.testing.assert_allclose(r, turn(1).T, atol=1e-12)
    assert drift_cosine(x @ turn(1), x) < 0.9
    assert rotated_cosine(x @ turn(1), x) == pytest.approx(1)


@pytest.mark.parametrize("seed", range(20))
def test_a_rotation_never_hurts(seed):
    new, old = vectors(seed=seed), vectors(seed=100 + seed)
    near = old + 0.1 * new
    assert rotated_cosine(new, old) >= drift_cosine(new, old)
    assert 1 >= rotated_cosine(near, old) >= drift_cosine(near, old) - 1e-12
    others = max(drift_cosine(new @ turn(s), old) for s in range(50))
    assert rotated_cosine(new, old) > others


def test_rotated_cosine_is_the_nuclear_norm():
    new, old = vectors(seed=1), vectors(seed=2)
    values = np.linalg.svd(unit_rows(new).T @ unit_rows(old), compute_uv=False)
    assert rotated_cosine(new, old) == pytest.approx(values.sum() / len(new))


def gram_cka(x, y):
    """HSIC of centred Gram matrices, image by image."""
    n = len(x)
    centre = np.eye(n) - np.full((n, n), 1 / n)
    k, m = centre @ (x @ x.T) @ centre, centre @ (y @ y.T) @ centre
    return np.trace(k @ m) / math.sqrt(np.trace(k @ k) * np.trace(m @ m))


@pytest.mark.parametrize("sizes", [(5, 5), (3, 8), (40, 2)])
def test_cka_agrees_with_its_gram_form(sizes):
    x, y = (vectors(size=size, seed=seed) + 1 for seed, size in enumerate(sizes))
    assert linear_cka(x, y) == pytest.approx(gram_cka(x, y))
    assert 0 < linear_cka(x, y) < 1


def test_cka_invariances():
    x, y = vectors(seed=1), vectors(seed=2) + vectors(seed=1)
    value = linear_cka(x, y)
    assert linear_cka(y, x) == pytest.approx(value)
    assert linear_cka(x @ turn(3), y @ turn(4)) == pytest.approx(value)
    assert linear_cka(7 * x, 0.1 * y) == pytest.approx(value)
    assert linear_cka(x + 100, y - np.arange(5)) == pytest.approx(value)
    order = np.random.default_rng(0).permutation(len(x))
    assert linear_cka(x[order], y[order]) == pytest.approx(value)
    assert linear_cka(x[order], y) != pytest.approx(value, abs=0.02)
    assert linear_cka(x @ np.diag([1, 2, 3, 4, 50]), y) != pytest.approx(value, abs=0.02)


def test_cka_at_its_ends():
    x = vectors()
    assert linear_cka(x, -3 * x @ turn(1) + 2) == pytest.approx(1)
    waves = np.linalg.qr(np.hstack([np.ones((30, 1)), vectors(size=6)]))[0][:, 1:]
    assert linear_cka(waves[:, :3], waves[:, 3:]) == pytest.approx(0, abs=1e-12)
    assert linear_cka(np.ones((30, 4), dtype=np.float32), x) == 0


def test_cka_of_float32_is_that_of_float64():
    x, y = vectors(seed=1) + 1000, vectors(seed=2) + vectors(seed=1)
    low = x.astype(np.float32)
    assert linear_cka(low, y) == pytest.approx(gram_cka(low.astype(np.float64), y), rel=1e-6)


@pytest.mark.parametrize("k", [3, 10, 40])
def test_features_at_their_vertices(k):
    labels = np.repeat(np.arange(0, k, 2), 3)
    lengths = np.random.default_rng(0).uniform(0.5, 20, (len(labels), 1))
    assert vertex_cosine(lengths * simplex_vertices(k)[labels], labels, k) == pytest.approx(1)


def test_features_at_the_vertices_of_others():
    k = 10
    labels = np.arange(k)
    wrong = simplex_vertices(k)[np.roll(labels, 1)]
    assert vertex_cosine(wrong, labels, k) == pytest.approx(1 / (k - 1))


def test_vertex_cosine_agrees_with_loops():
    k, rng = 7, np.random.default_rng(5)
    features, labels = rng.normal(size=(50, k - 1)), rng.choice([0, 2, 3, 6], 50)
    corners, squares = simplex_vertices(k), []
    for label in (0, 2, 3, 6):
        mean = np.zeros(k - 1)
        for row in features[labels == label]:
            mean += row / np.linalg.norm(row)
        squares.append((mean @ corners[label] / np.linalg.norm(mean)) ** 2)
    assert vertex_cosine(features, labels, k) == pytest.approx(math.sqrt(sum(squares) / 4))


GRID = [
    (rank, classes, k)
    for k in (2, 3, 5, 12, 30)
    for classes, rank in itertools.product(sorted({1, 2, k // 2, k - 1, k}), sorted({1, 2, k // 2, k - 1, k + 4}))
]


@pytest.mark.parametrize(("rank", "classes", "k"), GRID)
def test_bound_is_the_sum_of_the_largest_eigenvalues(rank, classes, k):
    chosen = np.random.default_rng(rank + classes).permutation(k)[:classes]
    corners = simplex_vertices(k)[chosen]
    values = np.sort(np.linalg.eigvalsh(corners @ corners.T))[::-1][:rank]
    assert vertex_bound(rank, classes, k) == pytest.approx(math.sqrt(max(values.sum(), 0) / classes), abs=1e-9)


@pytest.mark.parametrize(("rank", "k"), [(1, 2), (1, 10), (8, 10), (9, 10), (64, 100), (64, 900)])
def test_bound_over_all_vertices(rank, k):
    assert vertex_bound(rank, k, k) ** 2 == pytest.approx(rank / (k - 1))


def test_bound_of_the_published_sizes():
    assert vertex_bound(64, 100, 100) == pytest.approx(0.80, abs=5e-3)
    assert vertex_bound(512, 200, 200) == pytest.approx(1)
    assert vertex_bound(512, 1024, 1024) == pytest.approx(0.71, abs=5e-3)


@pytest.mark.parametrize(("rank", "classes", "k"), [(2, 6, 8), (4, 4, 8), (3, 8, 8), (1, 1, 8)])
def test_bound_is_reached_and_never_passed(rank, classes, k):
    corners = simplex_vertices(k)[:classes]
    labels = np.arange(classes)
    _, _, axes = np.linalg.svd(corners)
    best = corners @ axes[:rank].T @ axes[:rank]  # each vertex projected to the best space of that rank
    reached = vertex_cosine(best, labels, k)
    assert reached == pytest.approx(vertex_bound(rank, classes, k))
    rng = np.random.default_rng(0)
    for _ in range(50):
        space = np.linalg.qr(rng.normal(size=(k - 1, rank)))[0]
        features = corners @ space @ space.T
        assert vertex_cosine(features, labels, k) <= reached + 1e-12


def test_drift_of_a_model_that_grew_is_measured_in_its_old_dimensions():
    now, before = vectors(20, 6), vectors(20, 4, seed=1)
    cut = now[:, :4]
    assert drift(Features(now), Features(before)) == {
        "drift_cosine": drift_cosine(cut, before),
        "rotated_cosine": rotated_cosine(cut, before),
        "cka": linear_cka(cut, before),
    }
    unchanged = drift(Features(np.hstack([before, now])), Features(before))
    assert unchanged == pytest.approx({"drift_cosine": 1, "rotated_cosine": 1, "cka": 1})


def test_drift_of_factored_features_is_that_of_evenly_spaced_rows():
    now, before = (Features(vectors(3 * SAMPLED_ROWS, 4, seed), vectors(9, 4, 10 + seed)) for seed in range(2))
    chosen = np.linspace(0, 3 * SAMPLED_ROWS - 1, SAMPLED_ROWS).astype(np.int64)
    expected = drift_cosine(now.body[chosen] @ now.projection.T, before.body[chosen] @ before.projection.T)
    assert drift(now, before) == {"drift_cosine": pytest.approx(expected)}


@pytest.mark.parametrize(
    ("rows", "length"), [([[1, 0], [4, 0]], 1), ([[1, 0], [-4, 0]], 0), ([[1, 0], [0, 9]], 0.5**0.5)]
)
def test_common_direction(rows, length):
    assert common_direction(Features(np.array(rows, float))) == pytest.approx(length)


def test_vertices_bound_follows_the_rank():
    k, labels = 9, np.arange(6)
    corners = simplex_vertices(k)[labels]
    assert vertices(corners, labels, k) == pytest.approx({"vertex_cosine": 1, "vertex_bound": 1})
    axes = np.linalg.svd(corners)[2][:3]
    flat, bound = (corners @ axes.T @ axes).astype(np.float32), vertex_bound(3, 6, k)
    assert vertices(flat, labels, k) == pytest.approx({"vertex_cosine": bound, "vertex_bound": bound}, abs=1e-6)


def test_a_rotation_is_found_if_divide_and_conquer_does_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = np.random.default_rng(0).normal(size=(2, 50, 6))
    expected = rotation(new, old)

    def fails(*args: object) -> None:
        raise np.linalg.LinAlgError("SVD did not converge")

    monkeypatch.setattr("numpy.linalg.svd", fails)
    assert rotation(new, old) == pytest.approx(expected, abs=1e-10)
