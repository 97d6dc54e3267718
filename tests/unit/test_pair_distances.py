"""Distances of many pairs: both paths against the plain formula, exact ties, bounded memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cl2r import features as blockwise
from cl2r import pair_distances as module
from cl2r.errors import InputError
from cl2r.features import Features
from cl2r.pair_distances import pair_distances
from cl2r.verification import squared_distances

DENSE, GATHER = 10**9, 0


@pytest.fixture(params=[DENSE, GATHER], ids=["dense", "gather"])
def blocks(request, monkeypatch):
    """Use blocks of one tile and few pairs at a time, so that few rows make many blocks."""
    small_blocks(monkeypatch, request.param)


def small_blocks(patch, gather_cost):
    for name, value in (("SMALL", -1), ("OUTER_ROWS", 64), ("INNER_ROWS", 64)):
        patch.setattr(module, name, value)
    patch.setattr(blockwise, "BLOCK_ROWS", 64)
    patch.setattr(blockwise, "PROJECTION_ROWS", 5)
    patch.setattr(module, "PICKED_PAIRS", 50)
    patch.setattr(module, "GATHERED_NUMBERS", 200)
    patch.setattr(module, "GATHER_COST", gather_cost)


def array(rng, rows, dimensions):
    return rng.normal(0.3, 1, size=(rows, dimensions)).astype(np.float32)


def plain(rng, rows, dimensions):
    return Features(array(rng, rows, dimensions))


def factored(rng, rows, n=31, r=11):
    return Features(array(rng, rows, r), array(rng, n, r))


def expanded(f):
    return Features(f.body.astype(np.float64), None if f.projection is None else f.projection.astype(np.float64)).rows()


def rows_of(rng, query, gallery, pairs=1000):
    return rng.integers(len(query), size=pairs), rng.integers(len(gallery), size=pairs)


def slow(query, gallery, query_rows, gallery_rows):
    """|q − g|² of the unit rows, one pair at a time."""
    q, g = expanded(query), expanded(gallery)
    pairs = zip(query_rows, gallery_rows, strict=True)
    return np.array([np.sum((q[i] / np.linalg.norm(q[i]) - g[j] / np.linalg.norm(g[j])) ** 2) for i, j in pairs])


def test_few_pairs_are_bit_for_bit_squared_distances():
    rng = np.random.default_rng(0)
    query, gallery = plain(rng, 700, 99), plain(rng, 800, 99)
    rows = rows_of(rng, query, gallery, 6000)
    got = pair_distances(query, gallery, *rows)
    assert got.tobytes() == squared_distances(query.body[rows[0]], gallery.body[rows[1]]).tobytes()


@pytest.mark.parametrize("sizes", [(300, 200), (90, 411), (64, 128), (1, 1)])
def test_blocks_equal_the_plain_formula(blocks, sizes):
    rng = np.random.default_rng(1)
    query, gallery = plain(rng, sizes[0], 17), plain(rng, sizes[1], 17)
    rows = rows_of(rng, query, gallery)
    got = pair_distances(query, gallery, *rows)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, slow(query, gallery, *rows), atol=1e-12)


@pytest.mark.parametrize("sizes", [(300, 200), (90, 411)])
def test_factored_rows_equal_expanded_rows(blocks, sizes):
    rng = np.random.default_rng(2)
    query = factored(rng, sizes[0])
    gallery = Features(array(rng, sizes[1], 7), array(rng, 31, 7))
    rows = rows_of(rng, query, gallery)
    assert query.shape == (sizes[0], 31)
    np.testing.assert_allclose(pair_distances(query, gallery, *rows), slow(query, gallery, *rows), atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_shapes_in_either_path(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    n = data.draw(st.integers(5, 40))  # in fewer dimensions |P b| may vanish by chance, and with it the digits
    pairs = data.draw(st.integers(1, 400))
    query, gallery = (factored(rng, data.draw(st.integers(1, 200)), n, data.draw(st.integers(1, 20))) for _ in "qg")
    rows = rows_of(rng, query, gallery, pairs)
    wide = expanded(query), expanded(gallery)
    expected = squared_distances(wide[0][rows[0]], wide[1][rows[1]])
    with pytest.MonkeyPatch.context() as patch:
        small_blocks(patch, data.draw(st.sampled_from([DENSE, GATHER])))
        np.testing.assert_allclose(pair_distances(query, gallery, *rows), expected, atol=1e-9)
        np.testing.assert_allclose(pair_distances(*map(Features, wide), *rows), expected, atol=1e-12)


def test_the_paths_are_chosen_by_their_cost(monkeypatch):
    gathered, unit = [], module._Side.unit
    monkeypatch.setattr(module, "SMALL", 0)
    monkeypatch.setattr(module._Side, "unit", lambda side, places: gathered.append(len(places)) or unit(side, places))
    rng = np.random.default_rng(3)
    both = plain(rng, 2000, 4)
    pair_distances(both, both, *rng.integers(100, size=(2, 5000)))
    assert not gathered
    pair_distances(both, both, *rng.integers(2000, size=(2, 5000)))
    assert sum(gathered) == 5000


@pytest.mark.parametrize("kind", ["plain", "factored"])
def test_equal_rows_have_equal_distances_wherever_they_stand(blocks, kind):
    """15 images fill 183 rows; without padding they would be in three blocks of 61, and ties would break."""
    rng = np.random.default_rng(4)
    body, projection = array(rng, 15, 23), array(rng, 29, 23)
    order = rng.integers(15, size=183)
    feature = Features(body[order], None if kind == "plain" else projection)
    rows = rows_of(rng, order, order, 4000)
    got = pair_distances(feature, feature, *rows)
    pairs = order[rows[0]] * 15 + order[rows[1]]
    for pair in np.unique(pairs):
        assert len(set(got[pairs == pair].tolist())) == 1


@pytest.mark.parametrize("kind", ["plain", "factored"])
def test_permuted_pairs_have_permuted_distances(blocks, kind):
    rng = np.random.default_rng(5)
    query, gallery = (plain(rng, 300, 13) if kind == "plain" else factored(rng, 300) for _ in range(2))
    rows = rows_of(rng, query, gallery)
    order = rng.permutation(len(rows[0]))
    got = pair_distances(query, gallery, *rows)
    assert (pair_distances(query, gallery, rows[0][order], rows[1][order]) == got[order]).all()


@pytest.mark.parametrize("kind", ["plain", "factored"])
def test_equal_features_of_two_models_give_equal_distances(blocks, kind):
    """C[t, k] == C[k, k] exactly, also if φ_t is cut from a wider array."""
    rng = np.random.default_rng(6)
    rows = rng.integers(200, size=(2, 900))
    if kind == "plain":
        wide = array(rng, 200, 20)
        old, new = Features(wide[:, :12].copy()), Features(wide[:, :12])
    else:
        wide = factored(rng, 200)
        old, new = Features(wide.body, wide.projection[:19].copy()), Features(wide.body.copy(), wide.projection[:19])
    assert (pair_distances(new, old, *rows) == pair_distances(old, old, *rows)).all()


def test_zero_rows_have_cosine_zero_and_others_stay_in_range(blocks):
    rng = np.random.default_rng(7)
    body = array(rng, 150, 6)
    body[::3] = 0
    projection = array(rng, 9, 6)
    projection[:, 0] = 0
    body[1] = [5, 0, 0, 0, 0, 0]  # the projection maps it to zero
    rows = rng.integers(150, size=(2, 2000))
    for feature, zeros in ((Features(body), {0}), (Features(body, projection), {0, 1})):
        got = pair_distances(feature, feature, *rows)
        empty = [any(row % 3 == 0 or row in zeros for row in pair) for pair in rows.T.tolist()]
        assert (got[empty] == 2).all()
        assert ((got >= 0) & (got <= 4)).all()
        np.testing.assert_allclose(got[(rows[0] == rows[1]) & ~np.array(empty)], 0, atol=1e-12)


def test_a_row_that_is_zero_up_to_rounding_counts_as_zero():
    rng = np.random.default_rng(8)
    projection = rng.normal(size=(9, 5))
    direction = rng.normal(size=5)
    projection -= np.outer(projection @ direction, direction) / (direction @ direction)
    feature = Features(np.stack([direction, rng.normal(size=5)]), projection)
    assert pair_distances(feature, feature, np.array([0, 0, 1]), np.array([1, 0, 1])) == pytest.approx([2, 2, 0])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["plain", "factored"])
def test_rows_that_are_not_finite_are_named_if_they_are_used(blocks, kind, value):
    rng = np.random.default_rng(9)
    good, bad = array(rng, 100, 8), array(rng, 100, 8)
    bad[70, 3] = value
    projection = None if kind == "plain" else array(rng, 12, 8)
    query, gallery = Features(good, projection), Features(bad, projection)
    rows = np.arange(60)
    assert np.isfinite(pair_distances(query, gallery, rows, rows)).all()
    with pytest.raises(InputError, match="gallery row 70"):
        pair_distances(query, gallery, np.arange(100), np.arange(100))


def test_no_pairs_have_no_distances(blocks):
    none = np.empty(0, np.int64)
    feature = factored(np.random.default_rng(10), 5)
    assert pair_distances(feature, feature, none, none).shape == (0,)
    assert pair_distances(Features(feature.body), Features(feature.body), none, none).shape == (0,)


@pytest.mark.parametrize("gather_cost", [DENSE, GATHER])
def test_memory_stays_within_the_result_the_indices_and_some_blocks(monkeypatch, gather_cost):
    """The rows of all pairs would take 700 MB, the expanded rows of all images 128 MB, the blocks a few MB."""
    monkeypatch.setattr(module, "GATHER_COST", gather_cost)
    monkeypatch.setattr(blockwise, "BLOCK_NUMBERS", 2**15)
    for name in ("OUTER_NUMBERS", "INNER_NUMBERS", "GATHERED_NUMBERS"):
        monkeypatch.setattr(module, name, 2**15)
    rng = np.random.default_rng(11)
    pairs = 30_000
    feature = factored(rng, 2000, 8000, 32)
    rows = rows_of(rng, feature, feature, pairs)
    tracemalloc.start()
    try:
        pair_distances(feature, feature, *rows)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    blocks = 8 * 2**15 * 4 + 8 * 1024**2  # four blocks and the product of two of 1024 rows
    assert peak < 5 * 8 * pairs + blocks


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda one, f, rows: pair_distances(one, f, rows, rows), "projection"),
        (lambda one, f, rows: pair_distances(one, Features(one.body[:, :2]), rows, rows), "dimensions"),
        (lambda one, f, rows: pair_distances(one, one, rows, rows[:2]), "query_rows"),
        (lambda one, f, rows: pair_distances(one, one, rows, rows + 2), "gallery_rows .* 2 to 4"),
        (lambda one, f, rows: pair_distances(f, f, rows - 1, rows), "query_rows .* -1 to 1"),
        (lambda one, f, rows: Features(one.body, np.ones((4, 2))), "columns"),
        (lambda one, f, rows: Features(one.body, np.full((4, 3), np.nan)), "projection .* NaN"),
    ],
)
def test_bad_input_is_named(call, named):
    one = Features(np.ones((3, 3)))
    with pytest.raises(InputError, match=named):
        call(one, Features(one.body, np.ones((5, 3))), np.arange(3))


def test_rows_gathered_in_parts_give_the_same_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    query, gallery = rng.standard_normal((50, 7)).astype(np.float32), rng.standard_normal((40, 7)).astype(np.float32)
    rows, others = rng.integers(50, size=300), rng.integers(40, size=300)
    expected = squared_distances(query[rows], gallery[others])
    for numbers in (1, 7 * 13, 7 * 300, 10**6):
        monkeypatch.setattr("cl2r.pair_distances.CACHED_NUMBERS", numbers)
        np.testing.assert_array_equal(pair_distances(Features(query), Features(gallery), rows, others), expected)
    query[49, 2] = np.nan
    rows[rows == 49] = 0
    rows[211] = 49
    monkeypatch.setattr("cl2r.pair_distances.CACHED_NUMBERS", 7 * 13)
    with pytest.raises(InputError, match="row 211"):
        pair_distances(Features(query), Features(gallery), rows, others)
