"""FAISS indexes: the exact search against NumPy, the others against the exact one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_gallery import nearest_slowly, one_line

from cl2r.errors import InputError
from cl2r.files import listed
from cl2r.search import index as indexes
from cl2r.search.index import (
    IndexOptions,
    Kind,
    NearSearch,
    build,
    empty_hits,
    exact_search,
    gather,
    merge_hits,
    open_index,
    read_index_file,
    recall_of,
    write_index,
)

NEAR_KINDS: tuple[Kind, ...] = ("ivf", "hnsw", "pq")
ALL = {
    "ivf": IndexOptions("ivf", nlist=8, nprobe=8),
    "hnsw": IndexOptions("hnsw", ef_search=600, ef_construction=200),
    "pq": IndexOptions("pq", nlist=4, nprobe=4, code_bytes=8, refine=60),
}
"""Options with which an index should find nearly all."""
POOR = {
    "ivf": IndexOptions("ivf", nlist=15, nprobe=1),
    "hnsw": IndexOptions("hnsw", links=2, ef_construction=1, ef_search=1),
    "pq": IndexOptions("pq", nlist=15, nprobe=1, code_bytes=1, refine=1),
}


def unit_rows(count: int, dim: int = 12, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def split(rows: np.ndarray, *sizes: int) -> list[np.ndarray]:
    return np.split(rows, np.cumsum(sizes))


@pytest.fixture(scope="module")
def blocks() -> list[np.ndarray]:
    return split(unit_rows(600), 200, 0, 150)


# ---------------------------------------------------------------- exact


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("queries", [0, 1, 3, 30])
@pytest.mark.parametrize("top", [1, 10, 130, 700])
def test_the_exact_search_is_a_matrix_product(blocks: list[np.ndarray], kind: str, queries: int, top: int) -> None:
    asked, held = unit_rows(queries, seed=1), [block.astype(kind) for block in blocks]
    scores, rows = exact_search(held, asked, top)
    assert (scores.shape, rows.shape) == ((queries, top), (queries, top))
    assert (scores.dtype, rows.dtype) == (np.float32, np.int64)
    right = asked.astype(np.float64) @ np.concatenate(held).astype(np.float64).T
    there = min(top, 600)
    np.testing.assert_array_equal(rows[:, :there], nearest_slowly(right, top))
    np.testing.assert_allclose(scores[:, :there], -np.sort(-right, axis=1)[:, :there], atol=1e-6)
    assert (rows[:, there:] == -1).all()
    assert np.isneginf(scores[:, there:]).all()


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    queries=st.integers(1, 25),
    top=st.integers(1, 130),
    seed=st.integers(0, 9),
)
def test_of_equal_scores_the_first_rows_win(sizes: list[int], queries: int, top: int, seed: int) -> None:
    """Small integers: products are exact, and most of them equal."""
    rng = np.random.default_rng(seed)
    held = [rng.integers(0, 2, (size, 3)).astype(np.float32) for size in sizes]
    asked = rng.integers(0, 2, (queries, 3)).astype(np.float32)
    scores, rows = exact_search(held, asked, top)
    right = asked @ np.concatenate(held).T
    expected = nearest_slowly(right, top)
    np.testing.assert_array_equal(rows[:, : expected.shape[1]], expected)
    np.testing.assert_array_equal(scores[:, : expected.shape[1]], np.take_along_axis(right, expected, 1))


def test_equal_images_come_in_the_same_order_whoever_else_asks() -> None:
    rows = np.repeat(unit_rows(40, 33), 9, axis=0)[np.random.default_rng(1).permutation(360)]
    asked = unit_rows(64, 33, seed=2)
    whole = exact_search(split(rows, 100, 100), asked, 20)[1]
    alone = np.concatenate([exact_search([rows], asked[row : row + 1], 20)[1] for row in range(64)])
    np.testing.assert_array_equal(whole, alone)
    for row in whole:
        same = (rows[row[1:]] == rows[row[:-1]]).all(axis=1)
        assert (np.diff(row)[same] > 0).all()


def test_merging_keeps_the_best_and_the_order_of_rows() -> None:
    first = np.array([[0.9, 0.5, -np.inf]], np.float32), np.array([[4, 1, -1]])
    second = np.array([[0.9, 0.7, 0.5]], np.float32), np.array([[7, 5, 9]])
    scores, rows = merge_hits(first, second, 4)
    assert rows.tolist() == [[4, 7, 5, 1]]
    assert scores.tolist() == [[np.float32(s) for s in (0.9, 0.9, 0.7, 0.5)]]
    scores, rows = merge_hits(empty_hits(1, 3), (np.array([[0.5]], np.float32), np.array([[2]])), 3)
    assert rows.tolist() == [[2, -1, -1]]


def test_rows_are_gathered_through_all_blocks(blocks: list[np.ndarray]) -> None:
    wanted = np.array([599, 0, 199, 200, 349, 350, 0])
    np.testing.assert_array_equal(gather(blocks, wanted), np.concatenate(blocks)[wanted])


# ---------------------------------------------------------------- nearly


@pytest.mark.parametrize("kind", NEAR_KINDS)
@pytest.mark.parametrize("top", [1, 10, 50])
def test_searched_wide_they_find_nearly_all(blocks: list[np.ndarray], kind: str, top: int) -> None:
    near, asked = NearSearch(build(blocks, ALL[kind]), ALL[kind].chosen(600, 12), blocks), unit_rows(40, seed=3)
    scores, rows = near(asked, top)
    _, expected = exact_search(blocks, asked, top)
    shared = [len(set(a) & set(b)) / top for a, b in zip(rows.tolist(), expected.tolist(), strict=True)]
    assert np.mean(shared) > 0.97
    held = np.concatenate(blocks)
    np.testing.assert_allclose(scores, np.einsum("qd,qrd->qr", asked, held[rows]), atol=1e-5)
    assert (np.diff(scores, axis=1) <= 0).all()
    assert scores.dtype == np.float32


@pytest.mark.parametrize("kind", NEAR_KINDS)
def test_asked_for_more_than_there_is(kind: str) -> None:
    held = [unit_rows(300)]
    options = ALL[kind].chosen(300, 12)
    scores, rows = NearSearch(build(held, options), options, held)(unit_rows(4, seed=1), 400)
    assert rows.shape == scores.shape == (4, 400)
    for found, score in zip(rows, scores, strict=True):
        there = found[found >= 0]
        assert len(set(there)) == len(there) > 280
        assert np.isneginf(score[found < 0]).all()
        assert np.isfinite(score[found >= 0]).all()


@pytest.mark.parametrize("kind", NEAR_KINDS)
def test_half_precision_is_indexed_too(blocks: list[np.ndarray], kind: str) -> None:
    held = [block.astype(np.float16) for block in blocks]
    near = NearSearch(build(held, ALL[kind]), ALL[kind].chosen(600, 12), held)
    assert recall_of(near, held) > 0.97


def recall_slowly(near: Any, held: list[np.ndarray], queries: int) -> float:
    """Of the ten rows nearest to a row, itself not counted, the share that is found."""
    whole = np.concatenate(held).astype(np.float32)
    places = sorted({int(place) for place in np.linspace(0, len(whole) - 1, queries)})
    shares = []
    for place in places:
        scores = whole @ whole[place]
        scores[place] = -np.inf
        right = set(np.argsort(-scores, kind="stable")[:10].tolist())
        found = [row for row in near(whole[place][None], 11)[1][0].tolist() if row != place][:10]
        shares.append(len(right & set(found)) / len(right))
    return float(np.mean(shares))


@pytest.mark.parametrize("options", [*ALL.values(), *POOR.values()], ids=str)
def test_the_recall_that_is_stated_is_that_of_other_rows(
    blocks: list[np.ndarray], tmp_path: Path, options: IndexOptions
) -> None:
    built = write_index(tmp_path, "v", ["a", "b", "c"], blocks, options)
    (path,) = listed(tmp_path, "*.json")
    near = open_index(path, read_index_file(path), blocks)
    assert built.recall == pytest.approx(recall_slowly(near, blocks, indexes.SAMPLE), abs=1e-9)
    assert (built.recall > 0.97) == (options in ALL.values())


@pytest.mark.parametrize("rows", [1, 2, 5, 11])
def test_recall_of_a_few_rows(rows: int) -> None:
    held, options = [unit_rows(rows)], ALL["hnsw"]
    assert recall_of(NearSearch(build(held, options), options.chosen(rows, 12), held), held) == 1


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"kind": "flat"}, ("--index flat", "ivf", "hnsw", "pq")),
        ({"nlist": -1}, ("nlist=-1",)),
        ({"nprobe": -3}, ("nprobe=-3",)),
        ({"links": 0}, ("links=0",)),
        ({"ef_construction": 0}, ("ef_construction=0",)),
        ({"ef_search": -1}, ("ef_search=-1",)),
        ({"code_bytes": -1}, ("code_bytes=-1",)),
        ({"refine": 0}, ("refine=0",)),
        ({"nlist": 8, "nprobe": 9}, ("nprobe=9", "8 cells")),
        ({"nlist": 2.5}, ("nlist=2.5",)),
        ({"refine": "8"}, ("refine=8",)),
        ({"links": True}, ("links=True",)),
    ],
)
def test_options_that_make_no_sense(change: dict[str, Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as error:
        IndexOptions(**change)
    assert one_line(error.value, *parts)


def test_left_open_the_number_of_rows_decides() -> None:
    kinds = [IndexOptions().chosen(rows, 64).kind for rows in (1, 99_999, 100_000, 4_999_999, 5_000_000)]
    assert kinds == ["exact", "exact", "ivf", "ivf", "pq"]
    for rows in (1, 40, 5000, 10**6):
        chosen = IndexOptions("pq").chosen(rows, 64)
        assert 1 <= chosen.nprobe <= chosen.nlist <= max(1, rows // 39)
        assert chosen.chosen(rows, 64) == chosen
    assert IndexOptions("ivf", nlist=4, nprobe=2).chosen(10**6, 64).nlist == 4


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
@pytest.mark.parametrize("rows", [1, 2, 38, 50])
def test_few_rows_will_do(kind: Kind, rows: int) -> None:
    held, options = [unit_rows(rows)], IndexOptions(kind)
    found = NearSearch(build(held, options), options.chosen(rows, 12), held)(held[0], 1)[1]
    assert found[:, 0].tolist() == list(range(rows))


def test_what_cannot_be_built_is_refused(blocks: list[np.ndarray], tmp_path: Path) -> None:
    for kind, held, part in (("exact", blocks, "exact"), ("pq", [unit_rows(255)], "256")):
        with pytest.raises(InputError) as error:
            write_index(tmp_path, "v", ["a"], held, IndexOptions(kind))  # type: ignore[arg-type]
        assert one_line(error.value, f"--index {kind}", part)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("dim", "code_bytes"), [(11, 4), (8, 64), (7, 3), (1, 1)])
def test_codes_of_any_length(dim: int, code_bytes: int) -> None:
    held, options = [unit_rows(300, dim)], IndexOptions("pq", code_bytes=code_bytes, nlist=1, refine=40)
    near = NearSearch(build(held, options), options.chosen(300, dim), held)
    assert near(held[0][:5], 3)[1].shape == (5, 3)
    assert recall_of(near, held) > 0.9 or dim == 1
