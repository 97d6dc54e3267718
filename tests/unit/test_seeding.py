"""Named random streams."""

import itertools

import numpy as np
import pytest
import torch

from cl2r.seeding import MAX_SEED, derive, numpy_stream, torch_stream

ADDRESSES = [
    (seed, name, *indices)
    for seed in (0, 1, 10, 101)
    for name in ("init", "memory", "batches")
    for indices in [(), (0,), (1,), (11,), (1, 1), (1, 11), (11, 1), (1, 1, 1)]
]


def test_streams_are_frozen():
    """These numbers decide every run: a change of them calls for a new LINK_FORMAT and new reference results."""
    assert derive(0, "init") == 3038139617124118876
    assert numpy_stream(0, "memory", 1).integers(0, 1000, 4).tolist() == [846, 335, 236, 23]
    assert torch.randint(0, 1000, (4,), generator=torch_stream(0, "classifier", 1)).tolist() == [403, 218, 856, 278]


def test_every_address_has_its_own_seed():
    seeds = [derive(*address) for address in ADDRESSES]
    assert len(set(seeds)) == len(ADDRESSES)
    assert all(0 <= seed <= MAX_SEED for seed in seeds)


@pytest.mark.parametrize("make", [numpy_stream, torch_stream])
def test_equal_addresses_are_equal_streams_and_others_differ(make):
    def numbers(address):
        stream = make(*address)
        if isinstance(stream, np.random.Generator):
            return stream.integers(0, 2**32, 4).tolist()
        return torch.randint(0, 2**32, (4,), generator=stream).tolist()

    drawn = [numbers(address) for address in ADDRESSES]
    assert drawn == [numbers(address) for address in ADDRESSES]
    assert all(a != b for a, b in itertools.combinations(drawn, 2))


def test_streams_leave_the_global_state_alone():
    torch.manual_seed(5)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    torch_stream(0, "init")
    numpy_stream(0, "init").random(8)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)


def test_the_largest_seed_is_accepted_by_both_libraries():
    torch.Generator().manual_seed(MAX_SEED)
    np.random.Generator(np.random.PCG64(MAX_SEED))
