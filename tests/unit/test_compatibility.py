"""AC, BC, FC and their bootstrap against known values and slow second implementations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cl2r.compatibility import (
    average_compatibility,
    backward_compatibility,
    backward_compatibility_curve,
    bootstrap_matrices,
    cell_intervals,
    compatibility_matrix,
    empirical_compatibility,
    forward_compatibility,
    mean_accuracy,
    percentile_interval,
)
from cl2r.errors import InputError
from cl2r.verification import fold_weights, pair_correctness, stratified_folds, verification_accuracy

NAN = np.nan
GOLDEN = np.array([[0.60, NAN, NAN], [0.62, 0.61, NAN], [0.59, 0.64, 0.63]])
SUMMARIES = (average_compatibility, backward_compatibility, forward_compatibility)
QUICK = settings(deadline=None, max_examples=60)

hundredths = st.integers(1, 6).flatmap(lambda t: hnp.arrays(np.float64, (t, t), elements=st.integers(0, 8)))


def slow_summaries(matrix, ties):
    """(AC, BC, FC) by loops straight from the equations, with tasks counted from one."""
    c = {(t + 1, k + 1): float(v) for (t, k), v in np.ndenumerate(matrix)}
    last = len(matrix)
    signs = [c[t, k] > c[k, k] or (ties and c[t, k] == c[k, k]) for t in range(2, last + 1) for k in range(1, t)]
    backward = [c[last, k] - c[k, k] for k in range(1, last)]
    forward = [c[k, k - 1] - c[k, k] for k in range(2, last + 1)]
    return 2 * sum(signs) / (last * (last - 1)), sum(backward) / len(backward), sum(forward) / len(forward)


def synthetic_cells(rng, size=2000, cells=3):
    """Distances of several cells on the same pairs, correlated as two models of one lineage are."""
    same = rng.permutation(size) < size // 2
    shared = rng.normal(size=size)
    noise = rng.normal(size=(cells, size))
    return np.where(same, 1.2, 1.5) + 0.2 * shared + 0.1 * noise, same


def judged(distances, same, folds=10):
    return np.array([pair_correctness(row, same, folds) for row in distances])


def test_golden_values():
    assert average_compatibility(GOLDEN) == pytest.approx(2 / 3)
    assert backward_compatibility(GOLDEN) == pytest.approx(0.01)
    assert backward_compatibility_curve(GOLDEN) == pytest.approx([NAN, 0.02, 0.01], nan_ok=True)
    assert forward_compatibility(GOLDEN) == pytest.approx(0.01)
    assert mean_accuracy(GOLDEN) == pytest.approx(3.69 / 6)
    expected = [[False, False, False], [True, False, False], [False, True, False]]
    assert empirical_compatibility(GOLDEN).tolist() == expected


def test_all_equal_matrix_is_compatible_only_by_ties():
    equal = np.full((4, 4), 0.7)
    assert average_compatibility(equal) == 0
    assert average_compatibility(equal, ties=True) == 1
    assert backward_compatibility(equal) == 0
    assert forward_compatibility(equal) == 0


def test_truncated_der_never_improves():
    own = np.array([0.55, 0.61, 0.6, 0.72])
    der_trunc = np.tile(own, (4, 1))
    assert average_compatibility(der_trunc) == 0
    assert average_compatibility(der_trunc, ties=True) == 1
    assert backward_compatibility(der_trunc) == 0
    assert forward_compatibility(der_trunc) == pytest.approx((own[:-1] - own[1:]).mean())


@QUICK
@given(hundredths, st.booleans())
def test_summaries_equal_the_equations(matrix, ties):
    matrix = matrix / 8
    if len(matrix) == 1:
        assert np.isnan([summary(matrix) for summary in SUMMARIES]).all()
        return
    ac, bc, fc = slow_summaries(matrix, ties)
    assert average_compatibility(matrix, ties) == pytest.approx(ac)
    assert backward_compatibility(matrix) == pytest.approx(bc)
    assert forward_compatibility(matrix) == pytest.approx(fc)
    assert empirical_compatibility(matrix, ties).sum() == round(ac * len(matrix) * (len(matrix) - 1) / 2)


@QUICK
@given(hundredths)
def test_nothing_above_the_diagonal_matters(matrix):
    hidden = np.where(np.tri(len(matrix), dtype=bool), matrix, NAN)
    for summary in (*SUMMARIES, mean_accuracy):
        assert summary(hidden) == pytest.approx(summary(matrix), nan_ok=True)
    assert (empirical_compatibility(hidden) == empirical_compatibility(matrix)).all()
    assert backward_compatibility_curve(hidden)[-1] == pytest.approx(backward_compatibility(matrix), nan_ok=True)


@QUICK
@given(hundredths, st.booleans())
def test_ac_is_invariant_under_monotone_maps(matrix, ties):
    mapped = np.exp(3 * matrix) - 7
    assert average_compatibility(mapped, ties) == pytest.approx(average_compatibility(matrix, ties), nan_ok=True)


def test_curve_uses_each_row():
    rng = np.random.default_rng(0)
    matrix = rng.random((5, 5))
    curve = backward_compatibility_curve(matrix)
    assert np.isnan(curve[0])
    for t in range(1, 5):
        assert curve[t] == pytest.approx(np.mean([matrix[t, k] - matrix[k, k] for k in range(t)]))
    assert curve[-1] == backward_compatibility(matrix)


def test_builder_leaves_nan_above_the_diagonal():
    matrix = compatibility_matrix(lambda t, k: 10 * t + k, 3)
    np.testing.assert_array_equal(matrix, [[0, NAN, NAN], [10, 11, NAN], [20, 21, 22]])


def test_bootstrap_mean_is_close_to_the_matrix():
    distances, same = synthetic_cells(np.random.default_rng(1))
    scores = iter([verification_accuracy(row, same) for row in distances])
    matrix = compatibility_matrix(lambda t, k: next(scores), 2)
    weights = fold_weights(stratified_folds(same, 10))
    boot = bootstrap_matrices(judged(distances, same), same, weights, 2, rng=np.random.default_rng(2))
    assert boot.shape == (1000, 2, 2)
    assert np.isnan(boot[:, 0, 1]).all()
    np.testing.assert_allclose(boot.mean(axis=0), matrix, atol=0.002)


def spread(distances, same, rng):
    """Bootstrap standard error of the accuracy of one cell."""
    weights = fold_weights(stratified_folds(same, 10))
    return bootstrap_matrices(judged(distances, same), same, weights, 1, 500, rng=rng).std()


def test_bootstrap_error_is_close_to_the_spread_over_fresh_pairs():
    rng = np.random.default_rng(3)
    fresh = [verification_accuracy(d[0], same) for d, same in (synthetic_cells(rng, cells=1) for _ in range(400))]
    fixed = [spread(*synthetic_cells(rng, cells=1), rng) for _ in range(5)]
    assert np.mean(fixed) == pytest.approx(np.std(fresh), rel=0.2)


def test_bootstrap_error_is_close_to_that_of_a_refit():
    """At 6000 pairs and accuracy 0.9; fewer pairs or scores near chance spread the refit up to 1.7 times."""
    fixed, refit = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        same = rng.permutation(6000) < 3000
        distances = rng.normal(np.where(same, 1.2, 1.8), 0.224)
        ids = stratified_folds(same, 10)
        fixed.append(spread(distances[None], same, rng))
        kinds = np.flatnonzero(same), np.flatnonzero(~same)
        draws = [np.concatenate([rng.choice(kind, len(kind)) for kind in kinds]) for _ in range(200)]
        refit.append(np.std([verification_accuracy(distances[i], same[i], ids[i]) for i in draws]))
    assert np.mean(fixed) == pytest.approx(np.mean(refit), rel=0.2)


def test_bootstrap_equals_a_draw_by_draw_loop_with_unequal_folds():
    rng = np.random.default_rng(4)
    distances, same = synthetic_cells(rng, size=60)
    ids = np.arange(60) % 7
    right, weights = judged(distances, same, ids), fold_weights(ids)
    boot = bootstrap_matrices(right, same, weights, 2, samples=5, rng=np.random.default_rng(9))
    replay = np.random.default_rng(9)
    drawn = [
        kind[replay.integers(0, len(kind), (5, len(kind)))] for kind in (np.flatnonzero(same), np.flatnonzero(~same))
    ]
    for sample in range(5):
        chosen = np.concatenate([part[sample] for part in drawn])
        expected = [np.average(cell[chosen], weights=weights[chosen]) for cell in right]
        np.testing.assert_allclose(boot[sample][np.tril_indices(2)], expected, atol=1e-12)


def test_bootstrap_is_paired_and_keeps_ties():
    """Equal cells must tie in every draw, or a method that never improves would look compatible by chance."""
    rng = np.random.default_rng(5)
    distances, same = synthetic_cells(rng, size=403)
    ids = np.arange(403) % 9
    one, two = judged(distances[:2], same, ids)
    right = np.array([one, one, two, one, two, two])  # columns of a truncated DER: one | two | two
    boot = bootstrap_matrices(right, same, fold_weights(ids), 3, rng=rng)
    assert (boot[:, 1, 0] - boot[:, 0, 0]).std() == 0
    result = cell_intervals(boot[0], boot)
    assert percentile_interval(average_compatibility(boot)) == (0, 0)
    assert percentile_interval(backward_compatibility(boot)) == (0, 0)
    assert result.compatible[np.tril_indices(3, -1)].tolist() == [0, 0, 0]


def test_bootstrap_of_perfect_cells_stays_perfect():
    same = np.tile([True, False], 25)
    weights = fold_weights(np.arange(50) % 4)
    boot = bootstrap_matrices(np.ones((1, 50), dtype=bool), same, weights, 1, rng=np.random.default_rng(0))
    np.testing.assert_allclose(boot, 1, atol=1e-12)


def test_bootstrap_keeps_the_number_of_each_kind():
    """Cells that are right on just one kind have no spread, since the kinds are drawn apart."""
    same = np.arange(300) < 90
    boot = bootstrap_matrices([same, ~same, same], same, np.full(300, 1 / 300), 2, rng=np.random.default_rng(0))
    np.testing.assert_allclose(boot[:, 0, 0], 0.3)
    np.testing.assert_allclose(boot[:, 1, 0], 0.7)


def test_bootstrap_repeats_with_the_same_generator_seed():
    distances, same = synthetic_cells(np.random.default_rng(6), size=200)
    right, weights = judged(distances, same), np.full(200, 1 / 200)
    first, second, other = (
        bootstrap_matrices(right, same, weights, 2, 20, rng=np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other, equal_nan=True)


def test_intervals_equal_loops_over_the_samples():
    boot = np.random.default_rng(7).random((200, 3, 3))
    boot[:, *np.triu_indices(3, 1)] = NAN
    result = cell_intervals(boot[0], boot, level=0.9)
    assert result.low[2, 1] == pytest.approx(np.quantile(boot[:, 2, 1], 0.05))
    assert result.high[2, 1] == pytest.approx(np.quantile(boot[:, 2, 1], 0.95))
    assert np.isnan(result.low[0, 1])
    assert result.compatible[2, 1] == np.mean([c[2, 1] > c[1, 1] for c in boot])
    assert np.isnan(result.compatible[np.triu_indices(3)]).all()
    for summary in SUMMARIES:
        assert percentile_interval(summary(boot), 0.9) == pytest.approx(
            np.quantile([summary(c) for c in boot], (0.05, 0.95))
        )


def test_intervals_of_a_single_task_have_no_summaries():
    boot = np.full((10, 1, 1), 0.5)
    result = cell_intervals([[0.5]], boot)
    assert result.low[0, 0] == result.high[0, 0] == 0.5
    assert np.isnan([summary(boot) for summary in SUMMARIES]).all()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: average_compatibility(np.ones((2, 3))), "square"),
        (lambda: average_compatibility(np.ones(3)), "square"),
        (lambda: mean_accuracy(np.ones((0, 0))), "square"),
        (lambda: forward_compatibility([[0.5, NAN], [NAN, 0.5]]), "model 1.*model 0"),
        (lambda: compatibility_matrix(lambda t, k: 0.0, 0), "T=0"),
        (lambda: cell_intervals(np.ones((2, 2)), np.ones((9, 3, 3))), "boot"),
        (lambda: cell_intervals(np.ones((2, 2)), np.ones((9, 2, 2)), level=95), "level=95"),
        (lambda: _bootstrap(np.ones((2, 4), dtype=bool)), "3 cells"),
        (lambda: _bootstrap(np.ones((3, 4), dtype=bool), weights=np.zeros(4)), "weights"),
        (lambda: _bootstrap(np.ones((3, 4), dtype=bool), samples=0), "samples=0"),
    ],
)
def test_bad_input_is_named(call, named):
    with pytest.raises(InputError, match=named):
        call()


def _bootstrap(correct, weights=(0.25,) * 4, samples=3):
    return bootstrap_matrices(correct, [1, 1, 0, 0], weights, 2, samples, rng=np.random.default_rng(0))
