"""FAISS indexes: the exact search against NumPy, the others against the exact one; index files that are damaged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cl2r.gallery import index as indexes
from cl2r.gallery.index import (
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
from cl2r.storage.path import ObjectPath, StoragePath, cache_folder
from tests.support.galleries import refused, unit_rows

Blocks = list[np.ndarray]
ID = "0123"  # of a gallery
NEAR_KINDS: tuple[Kind, ...] = ("ivf", "hnsw", "pq")
ALL = {
    "ivf": IndexOptions("ivf", nlist=8, nprobe=8),
    "hnsw": IndexOptions("hnsw", ef_search=600, ef_construction=200),
    "pq": IndexOptions("pq", nlist=4, nprobe=4, code_bytes=8, refine=60),
}
"""Options with which an index should find nearly everything."""
POOR = {
    "ivf": IndexOptions("ivf", nlist=15, nprobe=1),
    "hnsw": IndexOptions("hnsw", links=2, ef_construction=1, ef_search=1),
    "pq": IndexOptions("pq", nlist=15, nprobe=1, code_bytes=1, refine=1),
}


def split(rows: np.ndarray, *sizes: int) -> Blocks:
    return np.split(rows, np.cumsum(sizes))


def nearest_slowly(scores: np.ndarray, top: int) -> np.ndarray:
    """Return the `top` best columns of every row of scores; of equal ones the first."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :top]


def near_search(held: Blocks, options: IndexOptions) -> NearSearch:
    return NearSearch(build(held, options), options.chosen(sum(map(len, held)), held[0].shape[1]), held)


@pytest.fixture(scope="module")
def blocks() -> Blocks:
    return split(unit_rows(600), 200, 0, 150)


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize(("queries", "top"), [(0, 10), (1, 1), (1, 700), (3, 130), (30, 10), (30, 700)])
def test_the_exact_search_is_a_matrix_product(blocks: Blocks, kind: str, queries: int, top: int) -> None:
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


def test_ties_are_in_row_order_whatever_other_queries_there_are() -> None:
    rows = np.repeat(unit_rows(40, 33), 9, axis=0)[np.random.default_rng(1).permutation(360)]
    asked = unit_rows(64, 33, seed=2)
    whole = exact_search(split(rows, 100, 100), asked, 20)[1]
    alone = np.concatenate([exact_search([rows], asked[row : row + 1], 20)[1] for row in range(64)])
    np.testing.assert_array_equal(whole, alone)
    for row in whole:
        same = (rows[row[1:]] == rows[row[:-1]]).all(axis=1)
        assert (np.diff(row)[same] > 0).all()


def test_merging_keeps_the_best_in_row_order() -> None:
    first = np.array([[0.9, 0.5, -np.inf]], np.float32), np.array([[4, 1, -1]])
    second = np.array([[0.9, 0.7, 0.5]], np.float32), np.array([[7, 5, 9]])
    scores, rows = merge_hits(first, second, 4)
    assert rows.tolist() == [[4, 7, 5, 1]]
    assert scores.tolist() == [[np.float32(s) for s in (0.9, 0.9, 0.7, 0.5)]]
    scores, rows = merge_hits(empty_hits(1, 3), (np.array([[0.5]], np.float32), np.array([[2]])), 3)
    assert rows.tolist() == [[2, -1, -1]]


def test_rows_are_gathered_across_blocks(blocks: Blocks) -> None:
    wanted = np.array([599, 0, 199, 200, 349, 350, 0])
    np.testing.assert_array_equal(gather(blocks, wanted), np.concatenate(blocks)[wanted])


@pytest.mark.parametrize("kind", NEAR_KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_wide_searches_find_nearly_everything(blocks: Blocks, kind: str, dtype: str) -> None:
    held, asked = [block.astype(dtype) for block in blocks], unit_rows(40, seed=3)
    near, whole = near_search(held, ALL[kind]), np.concatenate(held).astype(np.float32)
    for top in (1, 10, 50):
        scores, rows = near(asked, top)
        _, expected = exact_search(held, asked, top)
        shared = [len(set(a) & set(b)) / top for a, b in zip(rows.tolist(), expected.tolist(), strict=True)]
        assert np.mean(shared) > 0.97
        np.testing.assert_allclose(scores, np.einsum("qd,qrd->qr", asked, whole[rows]), atol=1e-5)
        assert (np.diff(scores, axis=1) <= 0).all()
        assert scores.dtype == np.float32


@pytest.mark.parametrize("kind", NEAR_KINDS)
def test_more_hits_than_rows_leave_empty_places(kind: str) -> None:
    scores, rows = near_search([unit_rows(300)], ALL[kind])(unit_rows(4, seed=1), 400)
    assert rows.shape == scores.shape == (4, 400)
    for found, score in zip(rows, scores, strict=True):
        there = found[found >= 0]
        assert len(set(there)) == len(there) > 280
        assert np.isneginf(score[found < 0]).all()
        assert np.isfinite(score[found >= 0]).all()


def recall_slowly(near: Any, held: Blocks, queries: int) -> float:
    """Return the share of the ten rows nearest to a row, itself excluded, that is found."""
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
def test_the_recall_in_the_description_is_measured(blocks: Blocks, tmp_path: Path, options: IndexOptions) -> None:
    built = write_index(tmp_path, ID, "v", ["a", "b", "c"], blocks, options)
    (path,) = tmp_path.list("*.json")
    near = open_index(path, read_index_file(path, ID), blocks)
    assert built.recall == pytest.approx(recall_slowly(near, blocks, indexes.SAMPLE), abs=1e-9)
    assert (built.recall > 0.97) == (options in ALL.values())


@pytest.mark.parametrize("rows", [1, 2, 5, 11])
def test_the_recall_of_few_rows_is_one(rows: int) -> None:
    held = [unit_rows(rows)]
    assert recall_of(near_search(held, ALL["hnsw"]), held) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "flat"},
        {"nlist": -1},
        {"nprobe": -3},
        {"links": 0},
        {"ef_construction": 0},
        {"ef_search": -1},
        {"code_bytes": -1},
        {"refine": 0},
        {"nprobe": 9, "nlist": 8},
        {"nlist": 2.5},
        {"refine": "8"},
        {"links": True},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_named(change: dict[str, Any]) -> None:
    name, value = next(iter(change.items()))
    with refused(f"--index {value}" if name == "kind" else f"{name}={value}"):
        IndexOptions(**change)


def test_open_options_are_chosen_by_the_number_of_rows() -> None:
    kinds = [IndexOptions().chosen(rows, 64).kind for rows in (1, 99_999, 100_000, 4_999_999, 5_000_000)]
    assert kinds == ["exact", "exact", "ivf", "ivf", "pq"]
    for rows in (1, 40, 5000, 10**6):
        chosen = IndexOptions("pq").chosen(rows, 64)
        assert 1 <= chosen.nprobe <= chosen.nlist <= max(1, rows // 39)
        assert chosen.chosen(rows, 64) == chosen
    assert IndexOptions("ivf", nlist=4, nprobe=2).chosen(10**6, 64).nlist == 4


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
@pytest.mark.parametrize("rows", [1, 2, 38, 50])
def test_few_rows_can_be_indexed(kind: Kind, rows: int) -> None:
    held = [unit_rows(rows)]
    assert near_search(held, IndexOptions(kind))(held[0], 1)[1][:, 0].tolist() == list(range(rows))


def test_what_cannot_be_built_is_refused(blocks: Blocks, tmp_path: Path) -> None:
    for kind, held, part in (("exact", blocks, "exact"), ("pq", [unit_rows(255)], "256")):
        with refused(f"--index {kind}", part):
            write_index(tmp_path, ID, "v", ["a"], held, IndexOptions(kind))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("dim", "code_bytes"), [(11, 4), (8, 16), (7, 3), (1, 1)])
def test_codes_may_have_any_length(dim: int, code_bytes: int) -> None:
    held, options = [unit_rows(300, dim)], IndexOptions("pq", code_bytes=code_bytes, nlist=1, refine=40)
    near = near_search(held, options)
    assert near(held[0][:5], 3)[1].shape == (5, 3)
    assert recall_of(near, held) > 0.9 or dim == 1


@pytest.mark.parametrize("kind", NEAR_KINDS)
def test_an_index_file_answers_like_the_index_in_memory(blocks: Blocks, anywhere: StoragePath, kind: str) -> None:
    built = write_index(anywhere, ID, "v1", ["a", "b", "c"], blocks, ALL[kind])
    (path,) = anywhere.list("*.json")
    assert path.name.startswith(f"v1-{kind}-")
    assert read_index_file(path, ID) == built
    assert (built.version, built.shards, built.rows, built.dim) == ("v1", ("a", "b", "c"), 600, 12)
    near, asked = open_index(path, built, blocks), unit_rows(20, seed=4)
    for mine, theirs in zip(near(asked, 7), near_search(blocks, ALL[kind])(asked, 7), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert len(anywhere.list("*")) == 2, "no temporary file is left"
    mapped = built.digest if anywhere.remote else path.name.removesuffix(".json")
    assert mapped in Path("/proc/self/maps").read_text(), "it is memory-mapped"


def test_other_shards_or_options_have_another_file(blocks: Blocks, tmp_path: Path) -> None:
    for shard, options in (("a", {}), ("b", {}), ("a", {"links": 8}), ("a", {})):
        write_index(tmp_path, ID, "v1", [shard], blocks, IndexOptions("hnsw", **options))
    assert len(tmp_path.list("*.faiss")) == len(tmp_path.list("*.json")) == 3


def test_a_damaged_object_is_refused_and_not_cached(blocks: Blocks, remote: ObjectPath) -> None:
    built = write_index(remote, ID, "v1", ["a"], blocks, IndexOptions("hnsw", links=5))
    (path,), (file,) = remote.list("*.json"), remote.list("*.faiss")
    content = file.read_bytes()
    file.write_file(content[:-1])
    with refused(file):
        open_index(path, built, blocks)
    assert not list((cache_folder() / "objects").glob(f"{built.digest}*"))
    file.write_file(content)
    assert open_index(path, built, blocks).index.ntotal == 600
    file.unlink()
    assert open_index(path, built, blocks).index.ntotal == 600, "read from the cache"


def test_an_index_of_other_rows_is_refused(blocks: Blocks, tmp_path: Path) -> None:
    """Otherwise its rows would be taken for other images."""
    built = write_index(tmp_path, ID, "v1", ["a"], blocks, ALL["ivf"])
    (path,) = tmp_path.list("*.json")
    for change in ({"rows": 599}, {"dim": 13}, {"digest": "0" * 64}):
        with refused(path.name.removesuffix(".json")):
            open_index(path, built.model_copy(update=change), blocks)
    with refused(path.name.removesuffix(".json")):
        open_index(path, built, blocks[:2])
