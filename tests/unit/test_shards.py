"""Shards: what was written is read back bit for bit, or named as damaged; nothing in them leads elsewhere."""

import dataclasses
import functools
import io
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_gallery import below, damages, entries, one_line

from cl2r.data.scenario import cache_folder
from cl2r.errors import InputError
from cl2r.files import Place
from cl2r.objects import ObjectPath
from cl2r.search.indexing import item_frame
from cl2r.search.shards import (
    ITEMS,
    MANIFEST,
    VECTORS,
    Kept,
    Shard,
    find_shard,
    read_items,
    read_vectors,
    shard_name,
    write_shard,
)

ROWS, DIM = 5, 6
NAMES = [f"c/{row}.png" for row in range(ROWS)]
BAD = (("c/x.png", "no such file"),)


@pytest.fixture(params=["disk", "objects"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return tmp_path / "shards" if request.param == "disk" else request.getfixturevalue("remote") / "shards"


def vectors_of(seed: int = 0, rows: int = ROWS) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(rows, DIM)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def written(
    folder: Place, name: str = "abc", seed: int = 0, kept: Kept = "float32", rows: int = ROWS, bad: Any = BAD
) -> Shard:
    items = item_frame(entries(NAMES[:rows]), "here", pd.DataFrame({"year": np.arange(rows) + 1990}))
    return write_shard(folder, name, "v1", vectors_of(seed, rows), items, bad, kept)


# ---------------------------------------------------------------- whole


@pytest.mark.parametrize("kept", ["float32", "float16"])
def test_it_is_read_back(folder: Place, kept: Kept) -> None:
    shard = written(folder, kept=kept)
    assert (shard.name, shard.version, shard.items, shard.dim, shard.dtype) == ("abc", "v1", ROWS, DIM, kept)
    assert shard.bad == BAD
    assert find_shard(folder, "abc") == shard
    rows = read_vectors(folder, shard)
    assert rows.dtype == kept
    np.testing.assert_array_equal(rows, vectors_of().astype(kept))
    items = read_items(folder, shard)
    assert items["id"].tolist() == NAMES
    assert items["year"].tolist() == [1990 + row for row in range(ROWS)]
    assert items.columns.tolist() == ["id", "source", "label", "bytes", "path", "year"]


def test_vectors_are_memory_mapped(folder: Place) -> None:
    rows = read_vectors(folder, written(folder))
    assert isinstance(rows, np.memmap)
    assert not rows.flags.writeable


def test_an_empty_one_says_what_could_not_be_read(folder: Place) -> None:
    shard = written(folder, rows=0)
    assert find_shard(folder, "abc") == shard
    assert (shard.items, shard.bad) == (0, BAD)
    assert read_vectors(folder, shard).shape == (0, DIM)
    assert len(read_items(folder, shard)) == 0


def test_whoever_makes_it_again_makes_the_same_bytes(folder: Place) -> None:
    written(folder, "one")
    written(folder, "two")
    files = below(folder.parent)
    assert {files[f"one/{name}"] == files[f"two/{name}"] for name in (VECTORS, ITEMS)} == {True}


def test_a_whole_one_stays_whoever_comes_later(folder: Place) -> None:
    first = written(folder, seed=0)
    before = below(folder.parent)
    assert written(folder, seed=1) == first
    assert below(folder.parent) == before


def test_one_with_other_bad_images_is_replaced(folder: Place) -> None:
    """They are tried again: what was read the second time counts."""
    written(folder, rows=ROWS - 1, bad=((NAMES[-1], "cut off"), *BAD))
    shard = written(folder)
    assert (shard.items, shard.bad) == (ROWS, BAD)
    assert find_shard(folder, "abc") == shard


def test_of_two_that_write_at_once_one_is_there_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And both know which: two machines may disagree in the last bit."""
    from cl2r.search import shards

    gate, write = threading.Barrier(2, timeout=30), shards.write_folder
    monkeypatch.setattr(shards, "write_folder", lambda *words: gate.wait() is None or write(*words))
    made: list[Shard] = []
    threads = [threading.Thread(target=lambda seed=seed: made.append(written(tmp_path, seed=seed))) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(made) == 2
    assert made[0] == made[1] == find_shard(tmp_path, "abc")


@pytest.mark.parametrize("rows", [ROWS - 1, ROWS + 1])
def test_vectors_and_items_must_agree(tmp_path: Path, rows: int) -> None:
    items = item_frame(entries(NAMES), "here", None)
    with pytest.raises(ValueError, match="vectors"):
        write_shard(tmp_path, "abc", "v1", vectors_of(rows=rows), items, [], "float32")
    with pytest.raises(ValueError, match="columns"):
        write_shard(tmp_path, "abc", "v1", vectors_of(), items.drop(columns="label"), [], "float32")
    assert list(tmp_path.iterdir()) == []


def test_its_name_tells_images_and_models_apart() -> None:
    names = {
        shard_name(version, ids, sizes, kept)
        for version in ("v1", "v2")
        for ids in (["a", "b"], ["b", "a"], ["ab"], ['a", "b'], ["a", "b", ""])
        for sizes in ([1, 2], [12], [2, 1])
        for kept in ("float32", "float16")
    }
    assert len(names) == 2 * 5 * 3 * 2
    assert shard_name("v1", ["a"], [1], "float32") == shard_name("v1", ["a"], [1], "float32")


# ---------------------------------------------------------------- damaged


def manifest(folder: Place) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "abc" / MANIFEST).read_bytes())
    return content


def refused(folder: Place, shard: Shard, name: str) -> None:
    """Whoever checks it hears which file is damaged; nobody takes it for whole."""
    assert find_shard(folder, "abc") is None
    read = read_items if name == ITEMS else functools.partial(read_vectors, check=True)
    with pytest.raises(InputError) as error:
        read(folder, shard)
    assert one_line(error.value, str(folder / "abc" / name))


@pytest.mark.parametrize("name", [VECTORS, ITEMS])
def test_a_flipped_bit_is_found(folder: Place, name: str) -> None:
    shard = written(folder)
    read_vectors(folder, shard)  # a copy in the cache is no proof that the file is whole
    path = folder / "abc" / name
    for damaged in damages(path.read_bytes(), 6):
        path.write_bytes(damaged)
        refused(folder, shard, name)


@pytest.mark.parametrize("name", [VECTORS, ITEMS])
@pytest.mark.parametrize("keep", [0, 3, -1, None])
def test_a_torn_or_missing_file_is_found(folder: Place, name: str, keep: int | None) -> None:
    shard = written(folder)
    read_vectors(folder, shard)
    path = folder / "abc" / name
    path.unlink() if keep is None else path.write_bytes(path.read_bytes()[:keep])
    refused(folder, shard, name)


def test_without_a_manifest_there_is_no_shard(folder: Place) -> None:
    shard = written(folder)
    (folder / "abc" / MANIFEST).unlink()
    assert find_shard(folder, "abc") is None
    assert written(folder) == shard
    assert find_shard(folder, "abc") == shard


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}", b"\xff", b"[" * 100_000, b'{"name": 1}'])
def test_a_manifest_that_is_none(tmp_path: Path, content: bytes) -> None:
    shard = written(tmp_path)
    (tmp_path / "abc" / MANIFEST).write_bytes(content)
    assert find_shard(tmp_path, "abc") is None
    assert written(tmp_path) == shard
    assert find_shard(tmp_path, "abc") == shard


@pytest.mark.parametrize("name", [VECTORS, ITEMS])
def test_a_damaged_one_is_made_again(folder: Place, name: str) -> None:
    shard = written(folder)
    read_vectors(folder, shard)
    before = below(folder.parent)
    (folder / "abc" / name).write_bytes(b"nothing")
    assert written(folder) == shard
    assert below(folder.parent) == before
    np.testing.assert_array_equal(read_vectors(folder, shard, check=True), vectors_of())


@pytest.mark.parametrize("change", [{"dim": DIM + 1}, {"items": ROWS - 1}, {"dtype": "float16"}, {"dtype": "int8"}])
def test_vectors_of_another_kind_than_said(folder: Place, change: dict[str, Any]) -> None:
    shard = dataclasses.replace(written(folder), **change)
    with pytest.raises(InputError, match="expected"):
        read_vectors(folder, shard)
    (folder / "abc" / MANIFEST).write_bytes(json.dumps(manifest(folder) | change).encode())
    assert find_shard(folder, "abc") is None


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    shard, encoded = written(tmp_path), io.BytesIO()
    np.save(encoded, np.array([print], dtype=object), allow_pickle=True)
    (tmp_path / "abc" / VECTORS).write_bytes(encoded.getvalue())
    with pytest.raises(InputError, match="damaged"):
        read_vectors(tmp_path, shard)


# ---------------------------------------------------------------- hostile


@pytest.mark.parametrize("field", ["name", "version", "vectors", "rows"])
@pytest.mark.parametrize(
    "name", ["../x", "..", ".", "", "/etc/passwd", "a/b", "a\\b", "a\n", 7, None, ["a"], "a.b", "*"]
)
def test_names_are_never_paths(tmp_path: Path, field: str, name: object) -> None:
    written(tmp_path)
    entry = manifest(tmp_path) | {field: name}
    with pytest.raises(ValueError, match="no name"):
        Shard.parse(entry)
    (tmp_path / "abc" / MANIFEST).write_bytes(json.dumps(entry).encode())
    assert find_shard(tmp_path, "abc") is None


def test_a_manifest_speaks_of_its_own_folder(folder: Place) -> None:
    """A copy beside the original would be there twice."""
    written(folder)
    for name in (VECTORS, ITEMS, MANIFEST):
        if isinstance(folder, Path):
            (folder / "copy").mkdir(exist_ok=True)
        (folder / "copy" / name).write_bytes((folder / "abc" / name).read_bytes())
    assert find_shard(folder, "copy") is None


# ---------------------------------------------------------------- the cache


def test_vectors_of_an_object_store_come_once(remote: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = written(remote)
    read, asked = ObjectPath.read_bytes, list[str]()
    monkeypatch.setattr(ObjectPath, "read_bytes", lambda path: asked.append(path.name) or read(path))
    for _ in range(3):
        np.testing.assert_array_equal(read_vectors(remote, shard), vectors_of())
    assert asked.count(VECTORS) <= 1
    assert (cache_folder() / "vectors" / f"{shard.vectors}.npy").is_file()


def test_what_is_damaged_does_not_enter_the_cache(remote: ObjectPath) -> None:
    shard = written(remote, seed=77)
    cached = cache_folder() / "vectors" / f"{shard.vectors}.npy"
    cached.unlink(missing_ok=True)
    (remote / "abc" / VECTORS).write_bytes(b"nothing")
    with pytest.raises(InputError, match="checksum"):
        read_vectors(remote, shard)
    assert not cached.exists()
