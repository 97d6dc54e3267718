"""The episodic memory: quotas, stability, prefixes, and herding against a slow greedy search."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cl2r.memory import SUPPORT_ROWS, herding_order, sample_task, support_rows

QUICK = settings(deadline=None, max_examples=50)
SEEDS = st.integers(0, 2**32)
QUOTAS = st.integers(0, 8)
SELECTIONS = st.sampled_from(["random", "herding"])


@st.composite
def tasks(draw, most=3):
    """Tasks as (rows, labels, features): every class at least once, rows scattered over the training set."""
    rng, made, first = np.random.default_rng(draw(SEEDS)), [], 0
    for _ in range(draw(st.integers(1, most))):
        counts = draw(st.lists(st.integers(1, 10), min_size=1, max_size=4))
        labels = rng.permutation(np.repeat(np.arange(first, first + len(counts)), counts))
        rows = rng.choice(10_000, len(labels), replace=False) + 10_000 * len(made)
        made.append((rows, labels, rng.normal(size=(len(labels), 3))))
        first += len(counts)
    return made


def sample(task, per_class, selection="random", seed=0, index=1):
    rows, labels, features = task
    return sample_task(rows, labels, per_class, selection, seed, index, features)


def memory_after(made, per_class, selection="random", seed=0):
    return np.concatenate([sample(task, per_class, selection, seed, t) for t, task in enumerate(made, 1)])


def of_class(chosen, task, label):
    """The chosen rows of one class, in order."""
    mine = set(task[0][task[1] == label].tolist())
    return [row for row in chosen.tolist() if row in mine]


@QUICK
@given(tasks(), QUOTAS, SELECTIONS, SEEDS)
def test_every_class_fills_its_quota_or_gives_all_it_has(made, quota, selection, seed):
    memory = memory_after(made, quota, selection, seed)
    assert len(set(memory.tolist())) == len(memory)
    total = 0
    for task in made:
        for label in np.unique(task[1]):
            expected = min(quota, int((task[1] == label).sum()))
            assert len(of_class(memory, task, label)) == expected
            total += expected
    assert len(memory) == total


@QUICK
@given(tasks(most=1), QUOTAS, SELECTIONS)
def test_classes_stand_in_ascending_order(made, quota, selection):
    rows, labels, _ = made[0]
    label_of = dict(zip(rows.tolist(), labels.tolist(), strict=True))
    stored = [label_of[row] for row in sample(made[0], quota, selection).tolist()]
    assert stored == sorted(stored)


@QUICK
@given(tasks(), QUOTAS, SELECTIONS, SEEDS)
def test_later_tasks_never_change_earlier_rows(made, quota, selection, seed):
    full = memory_after(made, quota, selection, seed)
    for t in range(1, len(made)):
        earlier = memory_after(made[:t], quota, selection, seed)
        assert np.array_equal(full[: len(earlier)], earlier)


@QUICK
@given(tasks(), st.integers(0, 7), SELECTIONS, SEEDS)
def test_a_smaller_quota_takes_a_prefix(made, quota, selection, seed):
    small, large = (memory_after(made, q, selection, seed) for q in (quota, quota + 1))
    for task in made:
        for label in np.unique(task[1]):
            kept = of_class(small, task, label)
            assert of_class(large, task, label)[: len(kept)] == kept


@QUICK
@given(tasks(), QUOTAS, SELECTIONS, SEEDS)
def test_same_seed_same_rows_whatever_the_global_state(made, quota, selection, seed):
    first = memory_after(made, quota, selection, seed)
    np.random.seed(seed % 1000)
    assert np.array_equal(memory_after(made, quota, selection, seed), first)


@pytest.mark.parametrize("change", [{"seed": 1}, {"index": 2}])
def test_seed_and_task_choose_other_rows(change):
    task = (np.arange(200), np.repeat([0, 1], 100), None)
    assert set(sample(task, 20).tolist()) != set(sample(task, 20, **change).tolist())


def test_random_rows_are_spread_over_the_class():
    task = (np.arange(100), np.zeros(100, dtype=np.int64), None)
    counts = np.zeros(100)
    for seed in range(400):
        counts[sample(task, 20, seed=seed)] += 1
    assert counts.sum() == 8000
    assert abs(counts - 80).max() < 5 * math.sqrt(80 * 0.8)


@pytest.mark.parametrize("selection", ["random", "herding"])
def test_quota_zero_keeps_nothing(selection):
    task = (np.arange(6), np.repeat([0, 1], 3), np.eye(6))
    empty = sample(task, 0, selection)
    assert empty.shape == (0,)
    assert empty.dtype == np.int64


def test_no_rows_give_no_rows():
    nothing = np.zeros(0, dtype=np.int64)
    assert sample_task(nothing, nothing, 5, "random", 0, 1).dtype == np.int64


def test_herding_needs_features():
    with pytest.raises(ValueError, match="herding needs the features"):
        sample_task(np.arange(3), np.zeros(3, dtype=np.int64), 2, "herding", 0, 1)


def slow_gaps(features, chosen):
    """For every sample, how far the mean of `chosen` and that sample lies from the class mean; plain loops."""
    unit = [[v / math.sqrt(sum(w * w for w in row)) for v in row] for row in features.tolist()]
    size, dims = len(unit), range(len(unit[0]))
    mean = [sum(row[d] for row in unit) / size for d in dims]
    gaps = []
    for candidate in range(size):
        picked = [unit[i] for i in [*chosen, candidate]]
        average = [sum(row[d] for row in picked) / len(picked) for d in dims]
        gaps.append(math.sqrt(sum((a - b) ** 2 for a, b in zip(average, mean, strict=True))))
    return gaps


@QUICK
@given(st.integers(1, 9), st.integers(0, 11), st.integers(1, 4), SEEDS)
def test_herding_is_greedy(size, count, dims, seed):
    """Two samples are always equally near, so the oracle accepts every choice that ties with the best."""
    features = np.random.default_rng(seed).normal(size=(size, dims)) + 0.5
    order = herding_order(features, count).tolist()
    assert len(order) == min(size, count)
    assert len(set(order)) == len(order)
    for position, choice in enumerate(order):
        gaps = slow_gaps(features, order[:position])
        best = min(gap for i, gap in enumerate(gaps) if i not in order[:position])
        assert gaps[choice] <= best + 1e-12


def test_herding_order_is_the_slow_one():
    features = np.random.default_rng(7).normal(size=(20, 6)) * np.arange(1, 21)[:, None]
    chosen = []
    for _ in range(12):
        gaps = slow_gaps(features, chosen)
        chosen.append(min((i for i in range(20) if i not in chosen), key=gaps.__getitem__))
    assert herding_order(features, 12).tolist() == chosen


def test_herding_ignores_the_length_of_a_feature():
    features = np.random.default_rng(3).normal(size=(15, 4))
    scaled = features * np.random.default_rng(4).uniform(0.1, 10, (15, 1))
    assert herding_order(features, 8).tolist() == herding_order(scaled, 8).tolist()


def test_herding_is_applied_class_by_class():
    rng = np.random.default_rng(2)
    rows, labels = np.arange(100, 130), rng.permutation(np.repeat([4, 9], 15))
    features = rng.normal(size=(30, 5)).astype(np.float32)
    expected = [rows[labels == k][herding_order(features[labels == k], 6)] for k in (4, 9)]
    assert np.array_equal(sample_task(rows, labels, 6, "herding", 0, 1, features), np.concatenate(expected))


SUPPORTS = st.integers(0, 3 * SUPPORT_ROWS)


def task_rows(new, memory):
    """Row numbers of D_t and M_t, apart and in no order."""
    numbers = np.random.default_rng(0).permutation(new + memory).astype(np.int64) * 3
    return numbers[:new], numbers[new:]


@settings(deadline=None, max_examples=60)
@given(SUPPORTS, SUPPORTS)
def test_support_is_a_part_of_the_task(new, memory):
    d, m = task_rows(new, memory)
    chosen = support_rows(d, m, 0, 2)
    assert len(chosen) == min(new + memory, SUPPORT_ROWS)
    assert np.isin(chosen, np.concatenate([d, m])).all()
    assert (np.diff(chosen) > 0).all(), "sorted, none twice"
    if new + memory <= SUPPORT_ROWS:
        np.testing.assert_array_equal(chosen, np.sort(np.concatenate([d, m])))


@pytest.mark.parametrize(
    ("new", "memory", "remembered"),
    [(5000, 0, 0), (5000, 300, 300), (5000, 1024, 1024), (5000, 4000, 1024), (500, 4000, 1548), (0, 4000, 2048)],
)
def test_memory_has_up_to_half_and_more_where_the_task_is_small(new, memory, remembered):
    d, m = task_rows(new, memory)
    assert np.isin(support_rows(d, m, 0, 2), m).sum() == remembered


def test_support_is_seeded():
    d, m = task_rows(4000, 4000)
    chosen = support_rows(d, m, 0, 2)
    np.testing.assert_array_equal(support_rows(d, m, 0, 2), chosen)
    for seed, task in ((1, 2), (0, 3)):
        assert not np.array_equal(support_rows(d, m, seed, task), chosen)


def test_support_is_drawn_from_all_over():
    d, m = np.arange(10_000), np.arange(10_000, 20_000)
    chosen = support_rows(d, m, 0, 2)
    counts, _ = np.histogram(chosen, bins=20, range=(0, 20_000))
    assert counts.min() > 60, "1024 of either in tenths: about 102 each"
