"""The released evaluation against a slow second implementation, and the defect it is kept for."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cl2r import official_code
from cl2r.errors import InputError
from cl2r.official_code import contiguous_folds, draw_official_pairs, grid_accuracy, grid_correctness
from cl2r.verification import squared_distances, stratified_folds, verification_accuracy

TEN_CLASSES = np.repeat(np.arange(10), 1000)


def slow_draw(labels, positives, negatives, rng):
    pairs, missing = [], {True: positives, False: negatives}
    while missing[True] or missing[False]:
        i, j = rng.integers(len(labels), size=2).tolist()
        kind = bool(labels[i] == labels[j])
        if missing[kind]:
            missing[kind] -= 1
            pairs.append((i, j, kind))
    return pairs


def slow_folds(pairs, folds):
    ids, sizes = [], [pairs // folds] * folds
    for fold in range(pairs % folds):
        sizes[fold] += 1
    for fold, size in enumerate(sizes):
        ids += [fold] * size
    return ids


def slow_distance(query, gallery):
    lengths = [math.sqrt(sum(x * x for x in row)) for row in (query, gallery)]
    return sum((q / lengths[0] - g / lengths[1]) ** 2 for q, g in zip(query, gallery, strict=True))


def slow_accuracy(distances, same, folds, thresholds):
    accuracies = []
    for fold in sorted(set(folds)):
        train = [i for i in range(len(folds)) if folds[i] != fold]
        test = [i for i in range(len(folds)) if folds[i] == fold]
        best, best_accuracy = None, -1.0
        for theta in thresholds:
            accuracy = sum((distances[i] < theta) == same[i] for i in train) / len(train)
            if accuracy > best_accuracy:
                best, best_accuracy = theta, accuracy
        accuracies.append(sum((distances[i] < best) == same[i] for i in test) / len(test))
    return sum(accuracies) / len(accuracies)


@pytest.mark.parametrize("draws", [1, 7, 2**16])
def test_pairs_are_those_of_drawing_one_after_the_other(monkeypatch, draws):
    monkeypatch.setattr(official_code, "DRAWS", draws)
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 2, 3])
    pairs = draw_official_pairs(labels, 13, 20, 10, np.random.default_rng(4))
    expected = slow_draw(labels.tolist(), 13, 20, np.random.default_rng(4))
    got = zip(pairs.query.tolist(), pairs.gallery.tolist(), pairs.same.tolist(), strict=True)
    assert list(got) == expected
    assert pairs.folds.tolist() == slow_folds(33, 10)


def test_negatives_fill_first_and_the_list_ends_positive():
    pairs = draw_official_pairs(TEN_CLASSES, 3000, 3000, 10, np.random.default_rng(0))
    shares = [pairs.same[pairs.folds == fold].mean() for fold in range(10)]
    assert pairs.same.sum() == 3000
    assert max(shares[:5]) < 0.15
    assert min(shares[6:]) == 1.0


def test_an_image_may_meet_itself_and_a_pair_may_come_twice():
    pairs = draw_official_pairs(np.array([0, 1]), 50, 50, 10, np.random.default_rng(0))
    assert (pairs.query[pairs.same] == pairs.gallery[pairs.same]).all()
    assert len(set(zip(pairs.query.tolist(), pairs.gallery.tolist(), strict=True))) < len(pairs)


def test_folds_are_contiguous_and_the_first_ones_longer():
    assert contiguous_folds(7, 3).tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert np.bincount(contiguous_folds(6000, 10)).tolist() == [600] * 10


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_grid_accuracy_equals_plain_loops(data):
    """On a coarse grid, with distances on and between its thresholds and folds that may hold one kind only."""
    same = [True, False, *data.draw(st.lists(st.booleans(), max_size=14))]
    distances = [data.draw(st.integers(0, 17)) / 4 for _ in same]
    folds = [0, 5, *[data.draw(st.sampled_from([0, 2, 5])) for _ in same[2:]]]
    thresholds = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(official_code, "THRESHOLDS", np.array(thresholds))
        got = grid_accuracy(distances, same, folds)
        correct = grid_correctness(distances, same, folds)
    assert got == pytest.approx(slow_accuracy(distances, same, folds, thresholds), abs=1e-12)
    by_fold = [np.mean(correct[np.array(folds) == fold]) for fold in sorted(set(folds))]
    assert got == pytest.approx(np.mean(by_fold), abs=1e-12)


def test_a_whole_matrix_equals_plain_loops():
    rng = np.random.default_rng(8)
    labels = np.repeat(np.arange(4), 6)
    pairs = draw_official_pairs(labels, 15, 17, 4, rng)
    centres = rng.normal(size=(4, 5))
    models = [(centres[labels] + rng.normal(scale=2 - t / 2, size=(24, 5))).astype(np.float32) for t in range(3)]
    thresholds = [0.001 * i for i in range(4000)]
    scores = set()
    for t in range(3):
        for k in range(t + 1):
            query, gallery = models[t][pairs.query], models[k][pairs.gallery]
            slow = [slow_distance(q, g) for q, g in zip(query.tolist(), gallery.tolist(), strict=True)]
            expected = slow_accuracy(slow, pairs.same.tolist(), pairs.folds.tolist(), thresholds)
            got = grid_accuracy(squared_distances(query, gallery), pairs.same, pairs.folds)
            assert got == pytest.approx(expected, abs=1e-12)
            scores.add(got)
    assert len(scores) > 3


def test_label_independent_distances_score_a_tenth_in_this_order_and_a_half_in_stratified_folds():
    official, stratified = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        pairs = draw_official_pairs(TEN_CLASSES, 3000, 3000, 10, rng)
        distances = np.clip(rng.normal(1.5, 0.3, 6000), 0, 4)
        official.append(grid_accuracy(distances, pairs.same, pairs.folds))
        stratified.append(grid_accuracy(distances, pairs.same, stratified_folds(pairs.same, 10)))
    assert np.mean(official) == pytest.approx(0.107, abs=0.007)
    assert np.mean(stratified) == pytest.approx(0.50, abs=0.006)


def test_informative_distances_lose_much_in_this_order_only():
    rng = np.random.default_rng(2)
    pairs = draw_official_pairs(TEN_CLASSES, 3000, 3000, 10, rng)
    distances = np.clip(rng.normal(np.where(pairs.same, 1.4, 1.6), 0.3), 0, 4)
    right = verification_accuracy(distances, pairs.same)
    assert grid_accuracy(distances, pairs.same, stratified_folds(pairs.same, 10)) == pytest.approx(right, abs=0.01)
    assert grid_accuracy(distances, pairs.same, pairs.folds) < right - 0.05


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: draw_official_pairs(np.zeros(5, np.int64), 3, 3, 2, np.random.default_rng(0)), "2 classes"),
        (lambda: draw_official_pairs(np.arange(5), 0, 3, 2, np.random.default_rng(0)), "eval.positives"),
        (lambda: draw_official_pairs(np.arange(5), 3, 3, 7, np.random.default_rng(0)), "eval.folds"),
        (lambda: grid_accuracy([1.0, 2.0], [1, 0], [0, 0]), "single fold"),
        (lambda: grid_accuracy([1.0, 2.0], [1, 0], [0.0, 1.0]), "float64 array"),
        (lambda: grid_correctness([1.0, np.nan], [1, 0], [0, 1]), "pair 1"),
    ],
)
def test_bad_input_is_named(call, named):
    with pytest.raises(InputError, match=named):
        call()
