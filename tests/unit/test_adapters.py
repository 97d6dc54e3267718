"""Adapters on known drifts: what each undoes exactly, what it leaves, and the order of the steps."""

import math

import numpy as np
import pytest

from cl2r.adapters import (
    QueryAdapter,
    Support,
    adapter_bytes,
    adapter_flops,
    aligner,
    fit_step,
    procrustes,
    query_drift,
    slerp,
)
from cl2r.config.schema import AdapterConfig, EvalConfig
from cl2r.engine.evaluation import ChainFeatures, Evaluator
from cl2r.features import Features, unit_rows
from cl2r.verification import Pairs, stratified_folds

SIZE = 6
NAMES = ["procrustes", "aligner", "slerp", "query_drift"]


def spec(name, **values):
    return AdapterConfig(name=name, **values)


def vectors(count=40, size=SIZE, seed=0):
    return np.random.default_rng(seed).normal(size=(count, size))


def turn(seed, size=SIZE):
    """A random orthogonal matrix."""
    q, r = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    return q * np.sign(np.diag(r))


def supports(maps, count=30):
    """One support per step: the new model maps x to x @ map, the old one to x."""
    return [
        Support(vectors(count, len(m), seed=10 + i) @ m, vectors(count, len(m), seed=10 + i))
        for i, m in enumerate(maps)
    ]


def chain(maps, count=60, seed=0):
    """Models φ_1, φ_2, …: each applies one more map."""
    models = [vectors(count, seed=seed)]
    for m in maps:
        models.append(models[-1] @ m)
    return [model.astype(np.float32) for model in models]


def clustered(classes=8, each=6, seed=3):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    return rng.normal(size=(classes, SIZE))[labels] + 0.7 * rng.normal(size=(len(labels), SIZE)), labels


def balanced_pairs(labels):
    """All pairs of one class, and as many of two."""
    query, gallery = np.triu_indices(len(labels), 1)
    same = labels[query] == labels[gallery]
    others = np.random.default_rng(1).choice(np.flatnonzero(~same), same.sum(), replace=False)
    chosen = np.concatenate([np.flatnonzero(same), others])
    return Pairs(query[chosen], gallery[chosen], same[chosen], stratified_folds(same[chosen], 5))


def test_procrustes_undoes_a_rotation():
    (support,) = supports([turn(1)])
    x = unit_rows(vectors(seed=99))
    np.testing.assert_allclose(procrustes(support)(x @ turn(1)), x, atol=1e-12)


def test_procrustes_never_stretches():
    a, b = vectors(seed=1), vectors(seed=2)
    step = procrustes(Support(a, b))
    np.testing.assert_allclose(np.linalg.norm(step(a), axis=1), np.linalg.norm(a, axis=1), rtol=1e-12)


def test_procrustes_is_better_than_other_rotations():
    a, b = unit_rows(vectors(seed=1)), unit_rows(vectors(seed=2))
    best = np.linalg.norm(procrustes(Support(a, b))(a) - b)
    assert best < min(np.linalg.norm(a @ turn(seed) - b) for seed in range(200))
    assert best < np.linalg.norm(a - b)


def test_rotated_models_give_the_matrix_of_models_that_stay():
    """End to end: C with drift and procrustes is C without drift; without an adapter it is not."""
    features, labels = clustered()
    turns = [turn(1), turn(2)]
    models, pairs, config = [features], balanced_pairs(labels), EvalConfig(bootstrap=0)
    for q in turns:
        models.append(models[-1] @ q)
    drifting = [Features(model.astype(np.float32)) for model in models]
    adapter = QueryAdapter(spec("procrustes"), supports(turns))
    still = Evaluator(pairs, config)(ChainFeatures([drifting[0]] * 3)).matrix
    assert still[0, 0] > 0.7
    np.testing.assert_array_equal(Evaluator(pairs, config)(ChainFeatures(drifting, adapter=adapter)).matrix, still)
    lost = Evaluator(pairs, config)(ChainFeatures(drifting)).matrix
    assert (lost[[1, 2, 2], [0, 0, 1]] < still[0, 0] - 0.1).all()


def shifted_pair(shift, seed, count=30):
    """Unit rows b and b + shift, both of length one: those with b · shift = −‖shift‖²/2."""
    along = shift / np.linalg.norm(shift)
    across = vectors(count, len(shift), seed)
    across = unit_rows(across - np.outer(across @ along, along))
    old = math.sqrt(1 - shift @ shift / 4) * across - shift / 2
    return old + shift, old


def test_query_drift_undoes_a_constant_shift():
    shift = np.linspace(0.1, 0.4, SIZE)
    step = query_drift(Support(*shifted_pair(shift, seed=1)))
    new, old = shifted_pair(shift, seed=2)
    np.testing.assert_allclose(np.linalg.norm(new, axis=1), 1)
    np.testing.assert_allclose(step(new), old, atol=1e-12)


def test_query_drift_moves_the_mean_and_nothing_else():
    a, b = vectors(seed=1), vectors(seed=2)
    moved = query_drift(Support(a, b))(unit_rows(a))
    np.testing.assert_allclose(moved.mean(0), unit_rows(b).mean(0), atol=1e-12)
    np.testing.assert_allclose(moved - moved.mean(0), unit_rows(a) - unit_rows(a).mean(0), atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_lengths_of_features_do_not_matter(name):
    a, b, x = vectors(seed=1), vectors(seed=2), unit_rows(vectors(seed=3))
    lengths = np.random.default_rng(4).uniform(0.1, 9, (2, len(a), 1))
    plain = fit_step(Support(a, b), spec(name))(x)
    np.testing.assert_allclose(fit_step(Support(lengths[0] * a, lengths[1] * b), spec(name))(x), plain, atol=1e-12)


def known_linear_map(seed=0, count=30):
    """W that is no rotation, unit rows A and unit rows A W: W stretches half of the axes and shrinks the others."""
    rng = np.random.default_rng(seed)
    stretch = np.array([0.3, 0.5, 0.8, 1.4, 2.0, 3.0])
    small, large = np.zeros((2, count, SIZE))
    small[:, :3], large[:, 3:] = unit_rows(rng.normal(size=(count, 3))), unit_rows(rng.normal(size=(count, 3)))
    low, high = (np.square(part * stretch).sum(1, keepdims=True) for part in (small, large))
    share = (high - 1) / (high - low)  # of the squared length, so that A W has length one as well
    first, second = turn(seed + 1), turn(seed + 2)
    return (np.sqrt(share) * small + np.sqrt(1 - share) * large) @ first.T, first @ np.diag(stretch) @ second


def test_aligner_finds_a_linear_map():
    a, w = known_linear_map()
    b = a @ w
    np.testing.assert_allclose(np.linalg.norm([a, b], axis=2), 1)
    x = unit_rows(vectors(seed=9))
    np.testing.assert_allclose(aligner(Support(a, b), ridge=1e-12)(x), x @ w, atol=1e-8)
    assert np.abs(procrustes(Support(a, b))(x) - x @ w).max() > 0.1, "no rotation does"


def test_aligner_stays_at_the_identity():
    x = unit_rows(vectors(seed=9))
    step = aligner(Support(vectors(seed=1), vectors(seed=2)), ridge=1e12)
    np.testing.assert_allclose(step(x), x, atol=1e-10)


@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("ridge", [0.01, 0.1, 2.0])
def test_aligner_is_where_its_objective_is_flat(count, ridge):
    """Numerical slope of ‖AW−B‖² + ρ‖W−I‖² in every entry of W; also with fewer images than dimensions."""
    a, b = unit_rows(vectors(count, seed=1)), unit_rows(vectors(count, seed=2))
    w = aligner(Support(a, b), ridge)(np.eye(SIZE))
    rho = ridge * sum(float(row @ row) for row in a) / SIZE

    def objective(matrix):
        return np.sum((a @ matrix - b) ** 2) + rho * np.sum((matrix - np.eye(SIZE)) ** 2)

    for i in range(SIZE):
        for j in range(SIZE):
            bump = np.zeros_like(w)
            bump[i, j] = 1e-4
            slope = (objective(w + bump) - objective(w - bump)) / 2e-4
            assert slope == pytest.approx(0, abs=1e-7)
            assert objective(w + bump) > objective(w)


def test_aligner_does_not_depend_on_how_often_images_are_given():
    a, b, x = vectors(seed=1), vectors(seed=2), vectors(seed=3)
    twice = Support(np.vstack([a, a]), np.vstack([b, b]))
    np.testing.assert_allclose(aligner(twice, 0.1)(x), aligner(Support(a, b), 0.1)(x), atol=1e-12)


def test_slerp_begins_and_ends_at_its_arguments():
    a, b = vectors(seed=1), vectors(seed=2)
    np.testing.assert_allclose(slerp(a, b, 0), unit_rows(a), atol=1e-12)
    np.testing.assert_allclose(slerp(a, b, 1), unit_rows(b), atol=1e-12)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_slerp_walks_the_great_circle_at_constant_speed(share):
    a, b = unit_rows(vectors(seed=1)), unit_rows(vectors(seed=2))
    point = slerp(a, b, share)
    np.testing.assert_allclose(np.linalg.norm(point, axis=1), 1)
    whole, part, rest = (np.arccos((p * q).sum(1)) for p, q in ((a, b), (a, point), (point, b)))
    np.testing.assert_allclose(part, share * whole, atol=1e-9)
    np.testing.assert_allclose(part + rest, whole, atol=1e-9)  # no detour: it lies in their plane


def test_slerp_of_a_right_angle():
    a, b = np.array([[2.0, 0.0]]), np.array([[0.0, 5.0]])
    np.testing.assert_allclose(slerp(a, b, 1 / 3), [[math.sqrt(3) / 2, 0.5]], atol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_slerp_of_equal_rows_stays(share):
    a = vectors(seed=1)
    np.testing.assert_allclose(slerp(a, 3 * a, share), unit_rows(a), atol=1e-7)
    np.testing.assert_allclose(slerp(a, a + 1e-9, share), unit_rows(a), atol=1e-7)
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(slerp(np.eye(3), np.eye(3), share), np.eye(3))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.9, 1.0])
def test_slerp_of_antipodes_is_a_number(share):
    a = vectors(seed=1)
    with np.errstate(all="raise"):
        point = slerp(a, -a, share)
    assert np.isfinite(point).all()
    assert (np.linalg.norm(point, axis=1) < 1 + 1e-9).all()
    if share in (0, 1):
        np.testing.assert_allclose(point, unit_rows(a) * (1 - 2 * share), atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_queries_for_a_models_own_gallery_are_unchanged(name):
    models = chain([turn(1), turn(2)])
    adapter = QueryAdapter(spec(name), supports([turn(1), turn(2)]))
    for t in range(3):
        np.testing.assert_array_equal(adapter(models, t, t), models[t])


def test_rotations_are_undone_in_their_order():
    turns = [turn(1), turn(2), turn(3)]
    assert np.abs(turns[0] @ turns[1] - turns[1] @ turns[0]).max() > 0.1
    models, adapter = chain(turns), QueryAdapter(spec("procrustes"), supports(turns))
    for t in range(4):
        for k in range(t):
            np.testing.assert_allclose(adapter(models, t, k), unit_rows(models[k]), atol=1e-6)


@pytest.mark.parametrize("name", ["procrustes", "aligner", "query_drift"])
def test_many_steps_are_single_ones_newest_first(name):
    maps = [np.random.default_rng(seed).normal(size=(SIZE, SIZE)) for seed in (1, 2, 3)]
    models, found = chain(maps), supports(maps)
    adapter = QueryAdapter(spec(name), found)
    for t in range(4):
        for k in range(t):
            queries = unit_rows(models[t])
            for step in range(t, k, -1):
                queries = unit_rows(fit_step(found[step - 1], spec(name))(queries))
            np.testing.assert_allclose(adapter(models, t, k), queries, atol=1e-6)
    assert adapter(models, 3, 0).dtype == np.float32


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_slerp_goes_from_the_rotated_query_to_the_old_models_own(share):
    maps = [np.random.default_rng(seed).normal(size=(SIZE, SIZE)) for seed in (1, 2)]
    models, found = chain(maps), supports(maps)
    rotated = QueryAdapter(spec("procrustes"), found)(models, 2, 0)
    got = QueryAdapter(spec("slerp", share=share), found)(models, 2, 0)
    np.testing.assert_allclose(got, slerp(rotated, models[0], share), atol=1e-6)
    if share == 1:
        np.testing.assert_allclose(got, unit_rows(models[0]), atol=1e-6)


def test_the_aligner_takes_its_ridge():
    models, found = chain([turn(1)]), supports([turn(1)])
    loose, stiff = (QueryAdapter(spec("aligner", ridge=ridge), found)(models, 1, 0) for ridge in (1e-9, 1e9))
    np.testing.assert_allclose(loose, unit_rows(models[0]), atol=1e-5)
    np.testing.assert_allclose(stiff, unit_rows(models[1]), atol=1e-5)


def test_bytes_that_a_service_stores():
    kept = {name: adapter_bytes(spec(name), 100, 4, 5000.0) for name in ["none", *NAMES]}
    assert kept["none"] == 0
    assert kept["query_drift"] == 4 * 4 * 100
    assert kept["procrustes"] == kept["aligner"] == 4 * 4 * 100 * 100
    assert kept["slerp"] == kept["procrustes"] + 4 * 5000


def test_cost_of_a_query():
    costs = {name: adapter_flops(spec(name), 100, 4, 5e6) for name in ["none", *NAMES]}
    assert costs["none"] == 0
    assert costs["query_drift"] == 4 * 4 * 100
    assert costs["procrustes"] == costs["aligner"] == 2 * 100 * 100
    assert costs["slerp"] == costs["procrustes"] + 5e6 + 600
    assert {adapter_flops(spec(name), 100, 0, 5e6) for name in NAMES} == {0.0}, "one model needs no map"
