"""Mini-batches: the share of memory, the number of batches, parts of workers, and determinism."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cl2r.batches import Batch, batches_per_epoch, draw_epoch, epoch_batches
from cl2r.config.layers import resolve

QUICK = settings(deadline=None, max_examples=60)
COUNTS = st.integers(1, 60)
SIZES = st.integers(1, 16).map(lambda half: 2 * half)
SEEDS = st.integers(0, 2**32)
FIRST_NEW = 1000


def pools(new, memory):
    """New rows are numbered from FIRST_NEW on, memory rows from 0."""
    return np.arange(FIRST_NEW, FIRST_NEW + new), np.arange(memory)


def epoch(batching, new, memory, size, seed):
    return list(epoch_batches(batching, *pools(new, memory), size, np.random.default_rng(seed)))


def halves(batch):
    return batch[batch < FIRST_NEW].tolist(), batch[batch >= FIRST_NEW].tolist()


@QUICK
@given(COUNTS, COUNTS, SIZES, SEEDS)
def test_balanced_batches_are_half_memory(new, memory, size, seed):
    batches = epoch("balanced", new, memory, size, seed)
    assert len(batches) == max(1, (new + memory) // size)
    for batch in batches:
        old, fresh = halves(batch)
        assert len(old) == len(fresh) == size // 2
        assert set(old) <= set(range(memory))
        assert set(fresh) <= set(range(FIRST_NEW, FIRST_NEW + new))


@QUICK
@given(COUNTS, COUNTS, SIZES, SEEDS)
def test_rows_of_a_half_are_distinct_if_there_are_enough(new, memory, size, seed):
    for batch in epoch("balanced", new, memory, size, seed):
        for half, available in zip(halves(batch), (memory, new), strict=True):
            if available >= size // 2:
                assert len(set(half)) == len(half)


@QUICK
@given(COUNTS, COUNTS, st.integers(1, 8).map(lambda half: 2 * half + 1), SEEDS)
def test_an_odd_batch_has_one_more_new_row(new, memory, size, seed):
    for batch in epoch("balanced", new, memory, size, seed):
        old, fresh = halves(batch)
        assert (len(old), len(fresh)) == (size // 2, size // 2 + 1)


def test_too_few_rows_are_drawn_with_replacement():
    (batch,) = epoch("balanced", new=3, memory=2, size=32, seed=0)
    old, fresh = halves(batch)
    assert (len(old), len(fresh)) == (16, 16)
    assert set(old) == {0, 1}
    assert set(fresh) == {FIRST_NEW, FIRST_NEW + 1, FIRST_NEW + 2}


def test_batches_are_drawn_independently():
    """|M| < |T_t|/2: memory rows come back within the epoch, each about as often as any other."""
    batches = epoch("balanced", new=4000, memory=40, size=20, seed=1)
    seen = Counter(row for batch in batches for row in halves(batch)[0])
    assert sum(seen.values()) == 202 * 10
    assert set(seen) == set(range(40))
    assert max(seen.values()) < 2 * min(seen.values())


@QUICK
@given(COUNTS, st.integers(0, 60), st.integers(1, 32), SEEDS)
def test_natural_batches_show_every_row_at_most_once(new, memory, size, seed):
    batches = epoch("natural", new, memory, size, seed)
    rows = np.concatenate(batches).tolist()
    total = new + memory
    assert len(batches) == max(1, total // size)
    assert [len(batch) for batch in batches] == [min(size, total)] * len(batches)
    assert len(set(rows)) == len(rows)
    assert set(rows) <= set(np.concatenate(pools(new, memory)).tolist())


def test_natural_batches_mix_memory_and_new_rows():
    batches = epoch("natural", new=600, memory=600, size=100, seed=0)
    shares = [len(halves(batch)[0]) for batch in batches]
    assert sum(shares) == 600
    assert min(shares) > 25
    assert max(shares) < 75


@QUICK
@given(COUNTS, SIZES, SEEDS)
def test_without_memory_every_batching_is_the_same_plain_shuffle(new, size, seed):
    balanced, natural = (epoch(batching, new, 0, size, seed) for batching in ("balanced", "natural"))
    assert [b.tolist() for b in balanced] == [b.tolist() for b in natural]
    rows = np.concatenate(balanced).tolist()
    assert len(set(rows)) == len(rows) == min(new, size * max(1, new // size))


def test_a_plain_shuffle_is_not_sorted():
    (batch,) = epoch("balanced", new=50, memory=0, size=50, seed=0)
    assert sorted(batch.tolist()) == pools(50, 0)[0].tolist()
    assert batch.tolist() != pools(50, 0)[0].tolist()


@QUICK
@given(st.sampled_from(["balanced", "natural"]), COUNTS, st.integers(0, 60), SIZES, st.integers(1, 3), SEEDS)
def test_workers_together_train_on_the_global_batch(batching, new, memory, size, world, seed):
    for batch in epoch(batching, new, memory, size, seed):
        parts = [batch[rank::world] for rank in range(world)]
        assert Counter(np.concatenate(parts).tolist()) == Counter(batch.tolist())
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@QUICK
@given(COUNTS, COUNTS, st.integers(1, 8).map(lambda quarter: 4 * quarter), SEEDS)
def test_each_of_two_workers_gets_half_memory(new, memory, size, seed):
    for batch in epoch("balanced", new, memory, size, seed):
        for rank in range(2):
            old, fresh = halves(batch[rank::2])
            assert len(old) == len(fresh) == size // 4


@QUICK
@given(COUNTS, COUNTS, SIZES, SEEDS)
def test_memory_is_dealt_evenly_to_three_workers(new, memory, size, seed):
    for batch in epoch("balanced", new, memory, size, seed):
        shares = [len(halves(batch[rank::3])[0]) for rank in range(3)]
        assert max(shares) - min(shares) <= 1


@QUICK
@given(st.sampled_from(["balanced", "natural"]), COUNTS, COUNTS, SIZES, SEEDS)
def test_an_epoch_is_a_function_of_its_stream(batching, new, memory, size, seed):
    first, again = (epoch(batching, new, memory, size, seed) for _ in range(2))
    assert [b.tolist() for b in first] == [b.tolist() for b in again]


@QUICK
@given(st.sampled_from(["balanced", "natural"]), SEEDS)
def test_another_stream_is_another_epoch(batching, seed):
    first, other = (epoch(batching, 50, 50, 40, s) for s in (seed, seed + 1))
    assert [b.tolist() for b in first] != [b.tolist() for b in other]


@QUICK
@given(COUNTS, COUNTS, SIZES)
def test_drawing_does_not_change_the_pools(new, memory, size):
    fresh, old = pools(new, memory)
    for batching in ("balanced", "natural"):
        list(epoch_batches(batching, fresh, old, size, np.random.default_rng(0)))
    assert fresh.tolist() == pools(new, memory)[0].tolist()
    assert old.tolist() == pools(new, memory)[1].tolist()


@pytest.mark.parametrize(("new", "memory", "expected"), [(5000, 200, 40), (5000, 1800, 53), (100, 27, 1), (0, 1, 1)])
def test_batches_per_epoch(new, memory, expected):
    assert batches_per_epoch(new, memory, 128) == expected


def drawn(world=1, rank=0, batching="balanced", address=(2, 0, 0), new=30, memory=9):
    config = resolve([{"batches": {"size": 10, "batching": batching}, "augment": {"padding": 2}}])
    return draw_epoch(config, *pools(new, memory), address, None, slice(rank, None, world))


@pytest.mark.parametrize("batching", ["balanced", "natural"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_parts_of_workers_make_up_the_global_batches(batching, world):
    parts = [drawn(world, rank, batching) for rank in range(world)]
    for whole, *local in zip(drawn(batching=batching), *parts, strict=True):
        for rank, part in enumerate(local):
            rows = slice(rank, None, world)
            np.testing.assert_array_equal(part.rows, whole.rows[rows])
            np.testing.assert_array_equal(part.memory, np.flatnonzero(part.rows < FIRST_NEW))
            assert torch.equal(part.augmentation.offsets, whole.augmentation.offsets[rows])
            assert torch.equal(part.augmentation.flips, whole.augmentation.flips[rows])
            assert torch.equal(part.augmentation.flipped, part.augmentation.flips.nonzero()[:, 0])
            assert part.counts["all"] == (len(part.rows), 10)
            assert part.counts["memory"] == (len(part.memory), len(whole.memory))
            assert part.counts["new"] == (len(part.rows) - len(part.memory), 10 - len(whole.memory))


def test_an_epoch_has_streams_of_its_own():
    first, again, other = drawn(), drawn(), drawn(address=(2, 0, 1))
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.rows, two.rows)
        assert torch.equal(one.augmentation.offsets, two.augmentation.offsets)
    assert first[0].rows.tolist() != other[0].rows.tolist()
    assert not torch.equal(first[0].augmentation.offsets, other[0].augmentation.offsets)


def test_rows_of_a_kind_are_ascending_positions():
    batch = Batch.of_one_worker(torch.zeros(6, 1), torch.arange(6), [4, 1])
    kinds = {"all": [0, 1, 2, 3, 4, 5], "memory": [1, 4], "new": [0, 2, 3, 5]}
    assert {kind: batch.rows(kind).tolist() for kind in kinds} == kinds
    assert [batch.weight(kind) for kind in kinds] == [1, 1, 1]


@pytest.mark.parametrize(("here", "everywhere", "weight"), [(3, 6, 1), (2, 5, 0.8), (3, 5, 1.2), (0, 4, 0), (0, 0, 0)])
def test_the_weight_of_a_mean_is_its_share_of_all_rows(here, everywhere, weight):
    counts = {"memory": (here, everywhere)}
    batch = Batch(torch.zeros(0), torch.zeros(0), torch.arange(0), counts, world=2)
    assert batch.weight("memory") == pytest.approx(weight)
