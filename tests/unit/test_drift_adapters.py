"""Affine adapters and the residual network: planted maps are found, and the fits are minima of what they minimise."""

import numpy as np
import pytest
import torch

from cl2r import drift_adapters
from cl2r.adapters import QueryAdapter, Support, adapter_bytes, adapter_flops, fit_step, procrustes
from cl2r.config.schema import AdapterConfig
from cl2r.drift_adapters import column_scales, low_rank, orthogonal, residual_mlp
from cl2r.errors import InputError
from cl2r.features import unit_rows

SIZE = 6
NAMES = ["low_rank", "residual_mlp", "orthogonal"]


def vectors(count=200, size=SIZE, seed=0):
    return np.random.default_rng(seed).normal(size=(count, size))


def turn(seed, size=SIZE):
    q, r = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    return q * np.sign(np.diag(r))


def error(mapped, wanted):
    return np.square(mapped - wanted).sum(1).mean()


@pytest.mark.parametrize("scaling", [False, True])
def test_a_planted_affine_map_of_low_rank_is_found(scaling):
    matrix, shift = vectors(SIZE, 2, seed=1) @ vectors(2, SIZE, seed=2), vectors(1, seed=3)[0]
    x, other = vectors(seed=4), vectors(seed=5)
    found = low_rank(x, x @ matrix + shift, 2, scaling)
    assert error(found(other), other @ matrix + shift) < 1e-3 * error(shift, other @ matrix + shift)
    with_too_few = low_rank(x, x @ matrix + shift, 1, scaling)
    assert error(with_too_few(other), other @ matrix + shift) > 0.1


def test_the_map_has_the_rank_that_was_asked_for():
    for rank in (1, 3, SIZE, 50):
        step = low_rank(vectors(seed=1), vectors(seed=2), rank, False)
        differences = step(np.eye(SIZE)) - step(np.zeros((1, SIZE)))
        assert np.linalg.matrix_rank(differences, tol=1e-9) == min(rank, SIZE)


def test_no_other_map_of_its_rank_is_nearer_than_the_low_rank_map(monkeypatch):
    """Against alternating least squares over both factors, from many starts."""
    monkeypatch.setattr(drift_adapters, "RIDGE", 1e-12)
    a, b = vectors(60, seed=1), vectors(60, seed=2) @ np.diag(np.arange(1.0, SIZE + 1))
    best = error(low_rank(a, b, 2, False)(a), b)
    x, y = a - a.mean(0), b - b.mean(0)
    slow = []
    for seed in range(8):
        left = vectors(SIZE, 2, seed=10 + seed)
        for _ in range(300):
            right = np.linalg.lstsq(x @ left, y, rcond=None)[0]
            left = np.linalg.lstsq(x, y @ np.linalg.pinv(right), rcond=None)[0]
        slow.append(error(x @ left @ right, y))
    assert best == pytest.approx(min(slow), rel=1e-6)


def test_scales_are_the_best_factor_of_each_column():
    a, b = vectors(seed=1), vectors(seed=2)
    factors = np.array([0.5, 2, 1, -1, 3, 0.1])
    np.testing.assert_allclose(column_scales(a, a * factors), factors)
    scales = column_scales(a, b)
    for bump in (-1e-3, 1e-3):
        assert error(a * (scales + bump), b) > error(a * scales, b)
    empty = a.copy()
    empty[:, 2] = 0
    assert column_scales(empty, b)[2] == 1


def test_scaling_undoes_the_pull_of_the_ridge(monkeypatch):
    monkeypatch.setattr(drift_adapters, "RIDGE", 0.5)
    a, b = vectors(seed=1), vectors(seed=1) @ turn(2)
    plain, scaled = (error(low_rank(a, b, SIZE, scaling)(a), b) for scaling in (False, True))
    assert scaled < 0.6 * plain


@pytest.mark.parametrize("threshold", [0, 1, 50])
def test_a_planted_rotation_and_shift_is_found(threshold):
    matrix, shift = turn(1), vectors(1, seed=3)[0]
    x, other = vectors(seed=4), vectors(seed=5)
    np.testing.assert_allclose(orthogonal(x, x @ matrix + shift, threshold)(other), other @ matrix + shift, atol=1e-4)


def linear_part(step):
    return step(np.eye(SIZE)) - step(np.zeros((1, SIZE)))


def stretched(count=120):
    """Unit features, and others that no rotation of them comes near to."""
    a = unit_rows(vectors(count, seed=1))
    return a, unit_rows(a @ turn(2) @ np.diag([0.1, 0.5, 1, 1, 2, 4]) + 0.1 * vectors(count, seed=3) + 0.3)


def from_orthogonal(matrix):
    return np.linalg.norm(matrix @ matrix.T - np.eye(len(matrix)))


def test_the_threshold_leads_from_a_rotation_to_least_squares():
    a, b = stretched()
    x, y = a - a.mean(0), b - b.mean(0)
    found = [linear_part(orthogonal(a, b, threshold)) for threshold in (0, 0.5, 1, 2, 4, 1e3)]
    free = np.linalg.lstsq(x, y, rcond=None)[0]
    left, _, right = np.linalg.svd(x.T @ y)
    distances = [from_orthogonal(matrix) for matrix in found]
    assert distances == sorted(distances)
    assert distances[0] < 1e-3
    np.testing.assert_allclose(found[0], left @ right, atol=1e-3)
    np.testing.assert_allclose(found[-1], free, atol=1e-4)
    assert from_orthogonal(free) > 2, "so that a threshold of 1 binds"
    for threshold, distance in zip((0.5, 1, 2), distances[1:4], strict=True):
        assert threshold - 1 < distance < threshold


def slow_objective(a, b, flat, threshold):
    """Mean squared distance with a bias, and the published penalty by torch, which differentiates both."""
    matrix, shift = flat[:-1], flat[-1]
    distance = (a @ matrix + shift - b).square().sum(1).mean()
    norm = torch.linalg.matrix_norm(matrix @ matrix.T - torch.eye(SIZE, dtype=torch.float64))
    return distance + torch.sigmoid(10 * (norm - threshold)) * norm


@pytest.mark.parametrize("threshold", [0.5, 1.0, 2.0, 5.0])
def test_no_other_start_and_optimiser_find_a_better_map_than_the_orthogonal_one(threshold):
    """Against Adam with a falling rate, from the identity, from zero and from a random matrix."""
    a, b = stretched()
    step = orthogonal(a, b, threshold)
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    ours = torch.from_numpy(np.vstack([linear_part(step), step(np.zeros((1, SIZE)))]))
    slow = []
    for start in (np.eye(SIZE), np.zeros((SIZE, SIZE)), 0.3 * vectors(SIZE, seed=6)):
        flat = torch.from_numpy(np.vstack([start, np.zeros((1, SIZE))])).requires_grad_()
        adam = torch.optim.Adam([flat], lr=0.05)
        for count in range(800):
            adam.param_groups[0]["lr"] = 0.05 * 0.99**count
            adam.zero_grad()
            slow_objective(x, y, flat, threshold).backward()
            adam.step()
        slow.append(float(slow_objective(x, y, flat.detach(), threshold)))
    assert float(slow_objective(x, y, ours, threshold)) == pytest.approx(min(slow), abs=1e-5)


@pytest.mark.parametrize("threshold", [0.0, 1.0, 5.0])
def test_the_orthogonal_map_is_a_converged_one(monkeypatch, threshold):
    a = near_one_direction(2048, 64, 1.0, seed=1)
    b = unit_rows(a @ turn(2, 64) @ np.diag(np.linspace(0.1, 2, 64)) + 0.05 * vectors(2048, 64, seed=3))
    short = error(orthogonal(a, b, threshold)(a), b)
    monkeypatch.setattr(drift_adapters, "STEPS", 5000)
    monkeypatch.setattr(drift_adapters, "TOLERANCE", 0)
    assert short == pytest.approx(error(orthogonal(a, b, threshold)(a), b), rel=1e-3)


def bent(x):
    """No affine map: every coordinate bends at 0."""
    return x + 0.8 * np.maximum(0, x @ turn(1)) @ turn(2)


@pytest.mark.parametrize("scaling", [False, True])
def test_the_network_finds_a_planted_bend_that_no_affine_map_does(scaling):
    x, other = unit_rows(vectors(400, seed=1)), unit_rows(vectors(400, seed=2))
    affine = error(low_rank(x, bent(x), SIZE, False)(other), bent(other))
    found = error(residual_mlp(x, bent(x), 64, scaling)(other), bent(other))
    assert found < 0.5 * affine


def test_the_gradient_of_the_network_against_differences(monkeypatch):
    captured = []
    monkeypatch.setattr(drift_adapters, "minimised", lambda f, start, *_: captured.append((f, start)) or start)
    residual_mlp(vectors(20, seed=1), vectors(20, seed=2), 5, True)
    objective, start = captured[0]
    point = start + 0.1 * np.random.default_rng(0).normal(size=start.shape)
    slope = objective(point)[1]
    for place in range(len(point)):
        bump = np.zeros_like(point)
        bump[place] = 1e-6
        assert (objective(point + bump)[0] - objective(point - bump)[0]) / 2e-6 == pytest.approx(slope[place], abs=1e-5)


@pytest.mark.parametrize("scaling", [False, True])
def test_the_network_ends_near_the_value_of_a_much_longer_run(monkeypatch, scaling):
    minimised, values = drift_adapters.minimised, []

    def recorded(objective, start, steps, target):
        found = minimised(objective, start, steps, target)
        values.append(objective(found)[0])
        return found

    monkeypatch.setattr(drift_adapters, "minimised", recorded)
    a = unit_rows(vectors(400, 16, seed=1))
    folded = np.maximum(0, a @ turn(3, 16)) @ turn(4, 16)
    b = unit_rows(a @ turn(2, 16) + 0.8 * folded + 0.05 * vectors(400, 16, seed=5))
    residual_mlp(a, b, 16, scaling)
    monkeypatch.setattr(drift_adapters, "NETWORK_STEPS", 3000)
    residual_mlp(a, b, 16, scaling)
    assert values[0] == pytest.approx(values[1], rel=0.08)


def test_without_scaling_the_network_keeps_the_scale():
    x = unit_rows(vectors(seed=1))
    step = residual_mlp(x, 0.5 * x, 4, True)
    plain = residual_mlp(x, 0.5 * x, 4, False)
    assert error(step(x), 0.5 * x) < 0.1 * error(plain(x), 0.5 * x)


def test_the_network_is_the_identity_if_nothing_moved():
    x = unit_rows(vectors(seed=1))
    np.testing.assert_allclose(residual_mlp(x, x, 8, False)(x), x, atol=1e-3)


def near_one_direction(count, size, spread, seed):
    """Unit rows around a common direction, as those of a trained model."""
    return unit_rows(unit_rows(vectors(1, size, seed=99)) + spread * vectors(count, size, seed) / np.sqrt(size))


@pytest.mark.parametrize("scaling", [False, True])
def test_the_network_maps_features_that_lie_close_together(scaling):
    a = near_one_direction(600, 32, 0.1, seed=1)
    b = a @ turn(2, 32)
    unexplained = error(residual_mlp(a, b, 128, scaling)(a), b) / error(b.mean(0), b)
    assert unexplained < 0.2


@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("name", NAMES)
def test_identical_rows_are_mapped_to_the_mean_of_the_old_ones(name, count):
    a, b = np.repeat(unit_rows(vectors(1, 20, seed=1)), count, 0), unit_rows(vectors(count, 20, seed=2))
    step = drift_adapters.fit(a, b, AdapterConfig(name=name))
    np.testing.assert_allclose(step(a[:1])[0], b.mean(0), atol=1e-3)
    if name == "low_rank":
        np.testing.assert_allclose(step(unit_rows(vectors(5, 20, seed=3))), np.tile(b.mean(0), (5, 1)), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_an_update_without_images_is_refused(name):
    with pytest.raises(InputError, match=f"adapter.name={name}: an update has no images"):
        fit_step(Support(np.zeros((0, SIZE)), np.zeros((0, SIZE))), AdapterConfig(name=name))


def test_the_orthogonal_map_of_very_many_dimensions_is_refused():
    rows = vectors(3, 1025)
    with pytest.raises(InputError, match="1025 dimensions, at most 1024; use procrustes"):
        fit_step(Support(rows, rows), AdapterConfig(name="orthogonal"))
    assert np.isfinite(fit_step(Support(rows, rows), AdapterConfig(name="low_rank"))(rows)).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_fit_is_the_same_every_time_and_ignores_lengths(name):
    a, b, x = vectors(seed=1), vectors(seed=2), unit_rows(vectors(seed=3))
    config = AdapterConfig(name=name, scaling=name != "orthogonal")
    first = fit_step(Support(a, b), config)(x)
    np.testing.assert_array_equal(fit_step(Support(a, b), config)(x), first)
    np.testing.assert_array_equal(fit_step(Support(4 * a, 0.25 * b), config)(x), first)


@pytest.mark.parametrize("name", NAMES)
def test_a_drift_that_the_map_can_undo_is_undone_over_several_updates(name):
    turns = [turn(1), turn(2)]
    models = [unit_rows(vectors(60, seed=9))]
    for q in turns:
        models.append(models[-1] @ q)
    supports = [Support(vectors(400, seed=i) @ q, vectors(400, seed=i)) for i, q in enumerate(turns)]
    queries = QueryAdapter(AdapterConfig(name=name), supports)(models, 2, 0)
    assert (queries * models[0]).sum(1).mean() > 0.97
    np.testing.assert_allclose(np.linalg.norm(queries, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_fewer_images_than_dimensions_and_features_in_a_subspace_give_numbers(name):
    a, b = vectors(4, 20, seed=1), vectors(4, 20, seed=2)
    flat = a.copy()
    flat[:, 5:] = 0
    for new in (a, flat):
        mapped = fit_step(Support(new, b), AdapterConfig(name=name))(unit_rows(vectors(9, 20, seed=3)))
        assert np.isfinite(mapped).all()


def test_options_of_an_adapter_change_its_map():
    a, b, x = vectors(seed=1), vectors(seed=2), unit_rows(vectors(seed=3))
    for name, options in {
        "low_rank": {"rank": 2},
        "residual_mlp": {"width": 4, "scaling": True},
        "orthogonal": {"orthogonality": 0.5},
    }.items():
        plain, other = (fit_step(Support(a, b), AdapterConfig(name=name, **own))(x) for own in ({}, options))
        assert np.abs(plain - other).max() > 1e-3
    rotated, pulled = procrustes(Support(a, b))(x), fit_step(Support(a, b), AdapterConfig(name="orthogonal"))(x)
    assert np.abs(rotated - pulled).max() > 1e-3


def costs(name, **options):
    config = AdapterConfig(name=name, **options)
    return adapter_flops(config, 100, 4, 5e6), adapter_bytes(config, 100, 4, 5000.0)


def test_costs_of_the_maps():
    """Per step: two FLOPs for an entry of a matrix, one for a shift, three per dimension for a norm and a division."""
    assert costs("low_rank", rank=8) == (4 * (2 * 1600 + 100 + 300), 4 * 4 * (1600 + 100))
    assert costs("low_rank", rank=80) == costs("orthogonal") == (4 * (20000 + 400), 4 * 4 * 10100)
    assert costs("low_rank", rank=8, scaling=True) == costs("low_rank", rank=8), "multiplied into the map"
    flops, stored = costs("residual_mlp", width=10)
    assert (flops, stored) == (4 * (2 * 2000 + 10 + 100 + 100 + 300), 4 * 4 * (2000 + 10 + 100))
    assert costs("residual_mlp", width=10, scaling=True) == (flops + 400, stored + 4 * 4 * 100)
    assert {adapter_flops(AdapterConfig(name=name), 100, 0, 5e6) for name in NAMES} == {0.0}
