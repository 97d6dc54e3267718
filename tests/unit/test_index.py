"""FAISS indexes: the exact search against NumPy, the others against the exact one; files that are damaged or hostile."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_gallery import changed, damages, nearest_slowly, one_line

from cl2r.data.scenario import cache_folder
from cl2r.errors import InputError
from cl2r.files import Place, listed
from cl2r.objects import ObjectPath
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
    right, expected = exact_search(blocks, asked, top)
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
    assert built.recall == pytest.approx(recall_slowly(near, blocks, indexes.SAMPLE), abs=0.01)
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


# ---------------------------------------------------------------- files


@pytest.fixture(params=["disk", "objects"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return tmp_path / "index" if request.param == "disk" else request.getfixturevalue("remote") / "index"


@pytest.mark.parametrize("kind", NEAR_KINDS)
def test_a_file_answers_as_what_was_written(blocks: list[np.ndarray], folder: Place, kind: str) -> None:
    built = write_index(folder, "v1", ["a", "b", "c"], blocks, ALL[kind])
    (path,) = listed(folder, "*.json")
    assert path.name.startswith(f"v1-{kind}-")
    assert read_index_file(path) == built
    assert (built.version, built.shards, built.rows, built.dim) == ("v1", ("a", "b", "c"), 600, 12)
    near, asked = open_index(path, built, blocks), unit_rows(20, seed=4)
    options = ALL[kind].chosen(600, 12)
    for mine, theirs in zip(near(asked, 7), NearSearch(build(blocks, options), options, blocks)(asked, 7), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert len(listed(folder, "*")) == 2, "nothing is left beside"


@pytest.mark.parametrize("kind", NEAR_KINDS)
def test_a_file_is_memory_mapped(blocks: list[np.ndarray], tmp_path: Path, kind: str) -> None:
    built = write_index(tmp_path, "v1", ["a"], blocks, ALL[kind])
    (path,) = listed(tmp_path, "*.json")
    near = open_index(path, built, blocks)
    assert near.index.ntotal == 600
    assert f"{path.name.removesuffix('.json')}.faiss" in Path("/proc/self/maps").read_text()


def test_another_gallery_or_other_options_have_another_file(blocks: list[np.ndarray], tmp_path: Path) -> None:
    write_index(tmp_path, "v1", ["a"], blocks, IndexOptions("hnsw"))
    write_index(tmp_path, "v1", ["b"], blocks, IndexOptions("hnsw"))
    write_index(tmp_path, "v1", ["a"], blocks, IndexOptions("hnsw", links=8))
    write_index(tmp_path, "v1", ["a"], blocks, IndexOptions("hnsw"))
    assert len(listed(tmp_path, "*.faiss")) == len(listed(tmp_path, "*.json")) == 3


DAMAGE = """
import sys
from pathlib import Path
import numpy as np
from cl2r.errors import InputError
from cl2r.search.index import open_index, read_index_file
folder, blocks = Path(sys.argv[1]), [np.load(sys.argv[2])]
for path in sorted(folder.glob("*.json")):
    file = path.with_suffix(".faiss")
    content = file.read_bytes()
    places = sorted({int(place) for place in np.linspace(0, len(content) - 1, 60)} | set(range(0, 200, 7)))
    changed = [content[:place] + bytes([content[place] ^ 64]) + content[place + 1:] for place in places]
    for other in [*changed, *(content[:place] for place in places), b"", content + b"x", b"words" * 100]:
        file.write_bytes(other)
        try:
            open_index(path, read_index_file(path), blocks)(blocks[0][:2], 3)
        except InputError as error:
            assert str(file) in str(error) and "\\n" not in str(error)
        else:
            sys.exit(f"{path}: not noticed")
    file.unlink()
    try:
        open_index(path, read_index_file(path), blocks)
        sys.exit(f"{path}: not missed")
    except InputError:
        pass
print("all refused")
"""


def test_a_damaged_file_is_refused_and_never_searched(blocks: list[np.ndarray], tmp_path: Path) -> None:
    """In a process of its own: FAISS trusts its files, and would end the process."""
    for kind in NEAR_KINDS:
        write_index(tmp_path / "index", "v1", ["a"], blocks, ALL[kind])
    np.save(tmp_path / "rows.npy", np.concatenate(blocks))
    words = [sys.executable, "-c", DAMAGE, str(tmp_path / "index"), str(tmp_path / "rows.npy")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "all refused\n"), done.stderr[-2000:]


def test_a_damaged_object_is_refused_and_not_kept(blocks: list[np.ndarray], remote: ObjectPath) -> None:
    built = write_index(remote, "v1", ["a"], blocks, IndexOptions("hnsw", links=5))
    (path,), (file,) = listed(remote, "*.json"), listed(remote, "*.faiss")
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(InputError, match="damaged"):
        open_index(path, built, blocks)
    assert not (cache_folder() / "indexes" / f"{built.digest}.faiss").exists()
    file.write_bytes(content)
    assert open_index(path, built, blocks).index.ntotal == 600
    file.unlink()
    assert open_index(path, built, blocks).index.ntotal == 600, "from the cache"


@pytest.mark.parametrize("change", [{"rows": 599}, {"dim": 13}, {"digest": "0" * 64}, {"rows": "600"}])
def test_the_file_of_another_index(blocks: list[np.ndarray], tmp_path: Path, change: dict[str, Any]) -> None:
    built = write_index(tmp_path, "v1", ["a"], blocks, ALL["ivf"])
    (path,) = listed(tmp_path, "*.json")
    with pytest.raises(InputError) as error:
        open_index(path, dataclasses.replace(built, **change), blocks)
    assert one_line(error.value, path.name.removesuffix(".json"))


def test_blocks_of_another_length(blocks: list[np.ndarray], tmp_path: Path) -> None:
    """Else rows of the index would be taken for other images."""
    built = write_index(tmp_path, "v1", ["a", "b", "c"], blocks, ALL["ivf"])
    (path,) = listed(tmp_path, "*.json")
    with pytest.raises(InputError):
        open_index(path, built, blocks[:2])


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}", b"\xff", b"[" * 100_000])
def test_a_description_that_is_none(blocks: list[np.ndarray], tmp_path: Path, content: bytes) -> None:
    write_index(tmp_path, "v1", ["a"], blocks[:1], ALL["hnsw"])
    (path,) = listed(tmp_path, "*.json")
    assert isinstance(path, Path)
    with changed(path, content), pytest.raises(InputError) as error:
        read_index_file(path)
    assert one_line(error.value, str(path), "cl2r gallery build")
    for damaged in damages(path.read_bytes(), 40):
        with changed(path, damaged):
            try:
                read_index_file(path)
            except InputError as error:
                assert one_line(error, str(path))


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "../../x"},
        {"digest": 7},
        {"version": "../x"},
        {"shards": ["../x"]},
        {"shards": None},
        {"shards": [7]},
        {"options": None},
        {"options": {"kind": "flat"}},
        {"options": {"nlist": "x"}},
        {"options": {"kind": "exact"}},
        {"options": {"kind": "auto"}},
        {"rows": "many"},
        {"more": 1},
    ],
)
def test_a_description_that_makes_no_sense(blocks: list[np.ndarray], tmp_path: Path, change: dict[str, Any]) -> None:
    write_index(tmp_path, "v1", ["a"], blocks[:1], ALL["hnsw"])
    (path,) = listed(tmp_path, "*.json")
    path.write_bytes(json.dumps(json.loads(path.read_bytes()) | change).encode())
    with pytest.raises(InputError) as error:
        read_index_file(path)
    assert one_line(error.value, str(path))
