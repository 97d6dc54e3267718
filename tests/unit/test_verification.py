"""Verification accuracy and TAR@FAR against slow second implementations and known values."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cl2r.errors import InputError
from cl2r.official_code import grid_accuracy
from cl2r.verification import (
    accepted_at_fars,
    fold_weights,
    pair_correctness,
    squared_distances,
    stratified_folds,
    tar_at_far,
    tars_at_fars,
    verification_accuracy,
)

QUICK = settings(deadline=None, max_examples=60)


@st.composite
def tied_pairs(draw):
    """Few distinct quarter-integer distances (midpoints are exact), both classes at least three times."""
    labels = [True] * 3 + [False] * 3 + draw(st.lists(st.booleans(), max_size=18))
    labels = draw(st.permutations(labels))
    grid = st.integers(0, draw(st.integers(0, 10)))
    distances = [draw(grid) / 4 for _ in labels]
    return np.array(distances), np.array(labels)


def realistic(rng, size=6000, gap=0.35):
    same = rng.permutation(size) < size // 2
    return np.clip(rng.normal(np.where(same, 1.3, 1.3 + gap), 0.25), 0, 4), same


def official_order(rng, quota=3000, share=0.1):
    """Labels in the order of drawing pairs at random until both quotas are full."""
    labels, missing = [], {True: quota, False: quota}
    while missing[True] or missing[False]:
        label = bool(rng.random() < share)
        if missing[label]:
            missing[label] -= 1
            labels.append(label)
    return np.array(labels)


def slow_correctness(distances, same, ids):
    right = [None] * len(distances)
    for fold in set(ids):
        train = [i for i in range(len(ids)) if ids[i] != fold]
        values = sorted({distances[i] for i in train})
        candidates = [
            values[0] - 1e9,
            *[(a + b) / 2 for a, b in pairwise(values)],
            values[-1] + 1e9,
        ]
        best, best_hits = None, -1
        for theta in candidates:
            hits = sum((distances[i] < theta) == same[i] for i in train)
            if hits > best_hits:
                best, best_hits = theta, hits
        for i in range(len(ids)):
            if ids[i] == fold:
                right[i] = (distances[i] < best) == same[i]
    return right


@QUICK
@given(tied_pairs(), st.integers(2, 3))
def test_correctness_equals_brute_force_on_stratified_folds(pairs, folds):
    distances, same = pairs
    ids = stratified_folds(same, folds)
    expected = slow_correctness(distances.tolist(), same.tolist(), ids.tolist())
    assert pair_correctness(distances, same, folds).tolist() == expected


@QUICK
@given(tied_pairs(), st.data())
def test_correctness_equals_brute_force_on_given_folds(pairs, data):
    distances, same = pairs
    rest = [data.draw(st.integers(0, 3)) for _ in range(len(same))]
    ids = np.array(rest)
    for kind in (True, False):  # each class sits in two folds, so every training part has both
        ids[np.flatnonzero(same == kind)[:2]] = (0, 3)
    expected = slow_correctness(distances.tolist(), same.tolist(), ids.tolist())
    assert pair_correctness(distances, same, ids).tolist() == expected
    per_fold = [np.mean([r for r, i in zip(expected, ids, strict=True) if i == fold]) for fold in set(ids.tolist())]
    assert verification_accuracy(distances, same, ids) == pytest.approx(np.mean(per_fold), abs=1e-12)
    assert (fold_weights(ids) * expected).sum() == pytest.approx(np.mean(per_fold), abs=1e-12)


def test_perfectly_separated_pairs_score_exactly_one():
    same = np.tile([True, False, False], 100)
    distances = np.where(same, 0.5, 1.5) + np.linspace(0, 0.4, 300)
    assert verification_accuracy(distances, same) == 1.0
    assert verification_accuracy(distances, same, np.arange(300) % 7) == 1.0


def test_inverted_distances_fall_back_to_one_class():
    same = np.tile([True, False], 100)
    assert verification_accuracy(np.where(same, 1.5, 0.5), same) == 0.5


def test_neighbouring_floats_are_separated():
    below = 1.0
    above = np.nextafter(below, 2.0)
    same = np.tile([True, False], 10)
    assert verification_accuracy(np.where(same, below, above), same, 2) == 1.0


def test_label_independent_distances_score_one_half_with_stratified_folds():
    scores = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        scores.append(verification_accuracy(rng.normal(1.5, 0.3, 6000), official_order(rng)))
    assert np.mean(scores) == pytest.approx(0.50, abs=0.01)


def test_stratified_accuracy_does_not_depend_on_the_block_order():
    rng = np.random.default_rng(3)
    distances, same = realistic(rng)
    by_class = np.argsort(~same, kind="stable")
    assert verification_accuracy(distances[by_class], same[by_class]) == verification_accuracy(distances, same)


def test_threshold_grid_agrees_with_the_exact_search():
    distances, same = realistic(np.random.default_rng(5), size=3000)
    exact = verification_accuracy(distances, same)
    assert 0.6 < exact < 0.9
    assert grid_accuracy(distances, same, stratified_folds(same, 10)) == pytest.approx(exact, abs=0.005)


def test_equal_numbers_of_hits_give_equal_accuracies_whatever_their_folds():
    """A float mean of fold accuracies can differ in its last bit here, and a strict AC would count it."""
    rng = np.random.default_rng(0)
    same = np.tile([True, False], 300)
    separated = np.where(same, 0.0, 1.0)
    scores = set()
    for _ in range(50):
        distances = separated.copy()
        distances[rng.choice(np.flatnonzero(same), 40, replace=False)] = 2.0
        scores.add(verification_accuracy(distances, same))
    assert scores == {560 / 600}


def test_stratified_folds_deal_each_class_in_turn():
    assert stratified_folds([1, 1, 0, 1, 0, 0, 1], 2).tolist() == [0, 1, 0, 0, 1, 0, 1]
    same = official_order(np.random.default_rng(1))
    ids = stratified_folds(same, 10)
    assert np.bincount(ids[same]).tolist() == [300] * 10
    assert np.bincount(ids[~same]).tolist() == [300] * 10


def test_fold_weights_sum_to_one_over_unequal_folds():
    assert fold_weights([4, 4, 4, 9]).tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])


def test_tar_at_far_counts_whole_percents_of_a_hundred_negatives():
    distances = np.concatenate([np.arange(100) + 1.0, np.arange(100) + 0.5])
    same = np.repeat([False, True], 100)
    # Positive i lies just below negative i, so accepting n negatives accepts n + 1 positives.
    for percent in range(100):
        assert tar_at_far(distances, same, percent / 100) == (percent + 1) / 100


def sorted_tar(distances, same, far):
    """Sort all negatives and walk up to the first that must not be accepted."""
    negatives = sorted(d for d, s in zip(distances, same, strict=True) if not s)
    positives = [d for d, s in zip(distances, same, strict=True) if s]
    accepted = 0
    while accepted < len(negatives) and (accepted + 1) / len(negatives) <= far:
        accepted += 1
    theta = negatives[accepted] if accepted < len(negatives) else float("inf")
    return sum(d < theta for d in positives) / len(positives)


@QUICK
@given(tied_pairs(), st.lists(st.one_of(st.sampled_from([0.0, 1e-4, 1 / 3, 1.0, 2.0]), st.floats(0, 1)), max_size=5))
def test_tars_at_several_fars_equal_a_plain_sort(pairs, fars):
    distances, same = pairs
    before = distances.copy()
    expected = [sorted_tar(distances.tolist(), same.tolist(), far) for far in fars]
    assert tars_at_fars(distances, same, fars) == expected
    assert tars_at_fars(distances.astype(np.float32), same, fars) == expected  # quarters are exact
    assert tars_at_fars((4 * distances).astype(int), same, fars) == expected
    assert [float(np.mean(rows)) for rows in accepted_at_fars(distances, same, fars)] == expected
    assert (distances == before).all()


def test_tars_of_many_untied_pairs_equal_a_plain_sort():
    distances, same = realistic(np.random.default_rng(11), size=20000)
    fars = [1e-4, 1e-1, 1e-2, 1e-2]
    assert tars_at_fars(distances, same, fars) == [sorted_tar(distances.tolist(), same.tolist(), far) for far in fars]


def test_accepted_positives_are_those_below_the_allowed_negatives():
    distances = [0.1, 0.9, 0.5, 0.3, 0.7, 0.6]
    same = [1, 1, 0, 1, 0, 1]
    accepted = [rows.tolist() for rows in accepted_at_fars(distances, same, [0.0, 0.5, 1.0])]
    assert accepted == [[True, False, True, False], [True, False, True, True], [True, True, True, True]]


def test_squared_distances_known_values():
    query = np.array([[3.0, 0], [1, 0], [1, 0], [0, 0], [1, 1]], dtype=np.float32)
    gallery = np.array([[5.0, 0], [0, 2], [-4, 0], [1, 0], [1, 0]], dtype=np.float32)
    assert squared_distances(query, gallery).tolist() == pytest.approx([0, 2, 4, 2, 2 - np.sqrt(2)])


def test_squared_distances_equal_the_norm_of_the_difference():
    rng = np.random.default_rng(2)
    query, gallery = rng.normal(size=(2, 50, 99)).astype(np.float32)
    q, g = (x / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True) for x in (query, gallery))
    result = squared_distances(query, gallery)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, ((q - g) ** 2).sum(axis=1), atol=1e-12)
    assert (squared_distances(query, query) == 0).all()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: verification_accuracy([1.0, 2.0], [True]), "shape"),
        (lambda: verification_accuracy([[1.0, 2.0]], [[True, False]]), "1-d"),
        (lambda: verification_accuracy([1.0, np.nan, 2.0, 3.0], [1, 0, 1, 0], 2), "pair 1"),
        (lambda: verification_accuracy([1.0, 2.0], [1, 1], 2), "both kinds"),
        (lambda: verification_accuracy([1.0, 2.0], [1, 2], 2), "0 and 1"),
        (lambda: verification_accuracy([1.0, 2.0, 3.0, 4.0], [1, 0, 1, 0], 3), "folds=3"),
        (lambda: verification_accuracy([1.0, 2.0, 3.0, 4.0], [1, 0, 1, 0], 1), "folds=1"),
        (lambda: verification_accuracy([1.0, 2.0, 3.0, 4.0], [1, 0, 1, 0], [5, 5, 5, 5]), "single fold"),
        (lambda: verification_accuracy([1.0, 2.0, 3.0, 4.0], [1, 0, 1, 0], [5, 5, 7]), "folds"),
        (
            lambda: verification_accuracy([1.0, 2.0, 3.0, 4.0], [1, 0, 1, 0], [5, 7, 5, 8]),
            "fold 5 .*'same'",
        ),
        (
            lambda: verification_accuracy([1.0, 2.0, 3.0, 4.0], [1, 0, 1, 0], [5, 9, 7, 9]),
            "fold 9 .*'diff",
        ),
        (lambda: tar_at_far([1.0, 2.0], [1, 0], -0.1), "far=-0.1"),
        (lambda: tar_at_far([1.0, 2.0], [1, 0], np.nan), "far=nan"),
        (lambda: tars_at_fars([1.0, 2.0], [1, 0], [0.1, -2.0]), "far=-2.0"),
        (lambda: tars_at_fars(np.array([1.0, np.inf], np.float32), [1, 0], [0.1]), "pair 1"),
        (lambda: accepted_at_fars([1.0, 2.0], [1, 1], [0.1]), "both kinds"),
        (lambda: squared_distances(np.ones((2, 3)), np.ones((3, 3))), "gallery"),
        (lambda: squared_distances([[1.0], [np.nan]], [[1.0], [1.0]]), "row 1"),
    ],
)
def test_bad_input_is_named(call, named):
    with pytest.raises(InputError, match=named):
        call()
