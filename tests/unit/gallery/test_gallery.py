"""Galleries: commits and shards that are complete or refused, one writer at a time, models that fit the vectors."""

import hashlib
import io
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cl2r.gallery.gallery import (
    ITEMS,
    MANIFEST,
    MARK,
    VECTORS,
    Commit,
    Gallery,
    Shard,
    ShardStore,
    StoredDtype,
    Version,
    read_commit,
    shard_name,
)
from cl2r.gallery.indexing import item_frame
from cl2r.storage import claims
from cl2r.storage.path import LocalPath, ObjectPath, StoragePath, cache_folder
from tests.support.galleries import (
    NO_RECORDS,
    Trained,
    add_vectors,
    below,
    commit_vectors,
    damages,
    entries,
    refused,
    stored,
)


def version(task: int, chain: str = "key", digest: str = "bits") -> Version:
    keys = tuple(f"{chain}{k}" for k in range(1, task + 1))
    return Version(
        key=keys[-1], name=f"run@{task}", task=task, method="cl2r", keys=keys, dim=4, digest=f"{digest}{task}"
    )


V1, V2, V3 = map(version, (1, 2, 3))


def rows(count: int, seed: int = 0, dim: int = 4) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def filled(root: StoragePath, *versions: Version) -> Gallery:
    """A gallery with three more images by each of `versions`."""
    gallery = Gallery.open_or_create(root)
    for each in versions:
        commit_vectors(gallery, each, rows(3, each.task), [f"{each.key}/{n}" for n in range(3)])
    return gallery


# ---------------------------------------------------------------- created and opened


def test_a_gallery_is_created_once_and_then_opened(anywhere: StoragePath) -> None:
    with refused(anywhere, "no gallery", "cl2r index"):
        Gallery(anywhere)
    assert Gallery.open_or_create(anywhere).commit == Commit()
    assert Gallery(anywhere).commit == Gallery.open_or_create(anywhere).commit == Commit()
    assert len(Gallery(anywhere).items()) == 0
    assert [path.name for path in anywhere.list("*")] == [MARK]


def test_a_folder_with_other_files_is_not_used(anywhere: StoragePath) -> None:
    if isinstance(anywhere, Path):
        anywhere.mkdir()
    (anywhere / "holiday.png").write_file(b"mine")
    with refused(anywhere, "not empty", "holiday.png"):
        Gallery.open_or_create(anywhere)
    assert [path.name for path in anywhere.list("*")] == ["holiday.png"]


def test_a_gallery_whose_creation_was_interrupted_is_created(tmp_path: Path) -> None:
    (tmp_path / f".{MARK}.0123").write_file(b"")
    assert Gallery.open_or_create(tmp_path).commit == Commit()


def test_a_file_is_no_gallery(tmp_path: Path) -> None:
    (tmp_path / "file").write_file(b"mine")
    for opening in (Gallery, Gallery.open_or_create):
        with refused(tmp_path / "file"):
            opening(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_a_mark_that_does_not_parse_or_has_another_format_is_refused(tmp_path: Path) -> None:
    Gallery.open_or_create(tmp_path)
    for content in [*NO_RECORDS, b'"format"', b'{"format": 2}', b'{"format": "1"}', b'{"format": null}']:
        (tmp_path / MARK).write_file(content)
        for opening in (Gallery, Gallery.open_or_create):
            with refused(tmp_path, "format"):
                opening(tmp_path)


# ---------------------------------------------------------------- commits


def test_changes_add_up(anywhere: StoragePath) -> None:
    gallery = filled(anywhere, V1, V2)
    again = Gallery(anywhere)
    assert again.commit == gallery.commit
    assert (again.commit.number, again.commit.items) == (2, 6)
    assert again.commit.versions == {"key1": V1, "key2": V2}
    assert again.commit.by_task == [V1, V2]
    assert [shard.version for shard in again.commit.shards] == ["key1", "key2"]
    assert again.commit.of("key2") == again.commit.shards[1:]
    assert again.commit.of("other") == ()
    assert len(stored(again)) == 6
    kinds = {name.split("/")[0] for name in below(anywhere, ".")} if isinstance(anywhere, Path) else set()
    assert kinds <= {MARK, "commits", "shards"}, "nothing else is left"
    assert [path.name for path in (anywhere / "commits").list("*")] == ["00000001.json", "00000002.json"]


def test_versions_without_vectors_are_dropped(tmp_path: Path) -> None:
    gallery = filled(tmp_path, V1, V2)
    gallery.change({V3.key: V3}, gallery.commit.of("key2"), "by hand")
    assert Gallery(tmp_path).commit.versions == {"key2": V2}
    gallery.change({}, [], "all removed")
    assert Gallery(tmp_path).commit.by_task == []


def test_items_name_the_model_of_their_vector(anywhere: StoragePath) -> None:
    gallery = filled(anywhere, V1, V2)
    commit_vectors(gallery, V2, rows(2), ["x", "y"], colour=["red", None], year=[1990, 2000])
    items = Gallery(anywhere).items()
    assert items["id"].tolist() == [*(f"key1/{n}" for n in range(3)), *(f"key2/{n}" for n in range(3)), "x", "y"]
    assert items["version"].tolist() == ["key1"] * 3 + ["key2"] * 5
    assert items["task"].tolist() == [1] * 3 + [2] * 5
    assert items["model"].tolist() == ["run@1"] * 3 + ["run@2"] * 5
    assert items["colour"].isna().tolist() == [True] * 6 + [False, True]
    assert items["year"].tolist()[6:] == [1990, 2000]
    assert gallery.items(gallery.commit.shards[2:])["id"].tolist() == ["x", "y"]


def test_commits_are_ordered_by_number(tmp_path: Path) -> None:
    gallery = filled(tmp_path, V1)
    for number in range(2, 12):
        gallery.change({}, gallery.commit.shards, f"change {number}")
    assert Gallery(tmp_path).commit.what == "change 11"


def test_a_damaged_newest_commit_is_an_error_and_is_not_skipped(anywhere: StoragePath) -> None:
    filled(anywhere, V1, V2)
    path = anywhere / "commits" / "00000002.json"
    content = path.read_bytes()
    for damaged in damages(content, 9):
        path.write_file(damaged)
        with refused(path):
            Gallery(anywhere)
    path.unlink()
    (anywhere / "commits" / "00000001.json").write_file(content)
    with refused("00000001.json"):  # otherwise the next change would be number 3, and this one never replaced
        Gallery(anywhere)


def change_shard(**change: Any) -> Any:
    return lambda entry: entry | {"shards": [entry["shards"][0] | change]}


def change_version(**change: Any) -> Any:
    return lambda entry: entry | {"versions": {"key1": entry["versions"]["key1"] | change}}


@pytest.mark.parametrize(
    "change",
    [
        *(change_shard(**{field: "../../x"}) for field in ("name", "version", "vectors", "rows")),
        change_shard(version="another"),
        change_version(key="../x"),
        change_version(key="another"),
        change_version(keys=None),
        *(
            lambda entry, key=key, value=value: entry | {key: value}
            for key in ("versions", "shards")
            for value in ({}, 1)
        ),
        lambda entry: entry | {"number": 7},
        lambda entry: entry | {"more": 1},
        lambda entry: [],
        lambda entry: None,
    ],
)
def test_a_forged_commit_with_the_right_checksum_is_refused(tmp_path: Path, change: Any) -> None:
    filled(tmp_path, V1)
    path = tmp_path / "commits" / "00000001.json"
    entry = json.loads(path.read_bytes().partition(b"\n")[2])
    for forge in (lambda entry: entry, change):
        body = json.dumps(forge(entry)).encode()
        path.write_file(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        if forge is change:
            with refused(path):
                Gallery(tmp_path)
        else:
            assert Gallery(tmp_path).commit.items == 3, "an unchanged commit is read"


def test_a_reader_keeps_the_commit_it_opened(tmp_path: Path) -> None:
    filled(tmp_path, V1)
    reader = Gallery(tmp_path)
    writer = filled(tmp_path, V2)
    assert (reader.commit.items, writer.commit.items, Gallery(tmp_path).commit.items) == (3, 6, 6)
    assert len(stored(reader)) == 3
    assert read_commit(tmp_path / "commits" / "00000001.json") == reader.commit


# ---------------------------------------------------------------- writers

ADDING = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.unit.gallery.test_gallery import add_often
from cl2r.storage.path import LocalPath, at
print("ready", flush=True)
sys.stdin.readline()
add_often(at(sys.argv[2]), "b")
"""


def add_often(root: StoragePath, writer: str) -> None:
    """Make five changes, each of which builds on the one before."""
    gallery = Gallery.open_or_create(root)
    for number in range(5):
        with gallery.writing():
            commit_vectors(gallery, V1, rows(2), [f"{writer}/{number}/{n}" for n in range(2)])


def test_two_processes_add_to_one_gallery(root: Path) -> None:
    words = [sys.executable, "-c", ADDING, str(Path(__file__).parents[3]), str(root)]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None
    assert other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    other.stdin.write("go\n")
    other.stdin.flush()
    add_often(root, "a")
    assert other.wait(120) == 0
    assert set(stored(Gallery(root))) == {
        f"{who}/{number}/{n}" for who in "ab" for number in range(5) for n in range(2)
    }
    assert Gallery(root).commit.number == 10


@pytest.mark.usefixtures("small_shards")
def test_a_writer_that_waited_sees_the_change_before(anywhere: StoragePath) -> None:
    filled(anywhere, V1)
    first, second = Gallery(anywhere), Gallery(anywhere)
    inside, order = threading.Event(), list[str]()

    def wait_and_look() -> None:
        inside.wait(30)
        with second.writing():
            order.append(f"second sees {second.commit.number}")

    thread = threading.Thread(target=wait_and_look)
    thread.start()
    with first.writing():
        inside.set()
        thread.join(0.2)
        order.append("first changes")
        first.change({}, first.commit.shards, "again")
    thread.join(60)
    assert order == ["first changes", "second sees 2"]


def test_an_error_releases_the_write_lock(anywhere: StoragePath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "PAUSE_SECONDS", 0.02)
    gallery = filled(anywhere, V1)
    with pytest.raises(RuntimeError), gallery.writing():
        raise RuntimeError
    with Gallery(anywhere).writing():
        pass
    assert Gallery(anywhere).commit.number == 1


def test_orphans_are_intact_shards_without_a_commit(anywhere: StoragePath) -> None:
    gallery = filled(anywhere, V1)
    assert gallery.orphans() == []
    left = [add_vectors(gallery, "key1", rows(2, seed), [f"left{seed}", "b"]) for seed in (1, 2, 3)]
    assert {shard.name for shard in Gallery(anywhere).orphans()} == {shard.name for shard in left}
    (gallery.shards.folder / left[0].name / VECTORS).write_file(b"torn")
    (gallery.shards.folder / left[1].name / MANIFEST).unlink()
    assert Gallery(anywhere).orphans() == [left[2]]
    gallery.change({}, [*gallery.commit.shards, left[2]], "found")
    assert gallery.orphans() == []


def test_a_shard_that_was_being_written_is_no_orphan(tmp_path: Path) -> None:
    """A killed writer leaves it under a name that begins with a dot."""
    gallery = filled(tmp_path, V1)
    (shard,) = gallery.commit.shards
    (gallery.shards.folder / shard.name).rename(gallery.shards.folder / f".{shard.name}.0123")
    assert gallery.orphans() == []


# ---------------------------------------------------------------- models


def test_the_version_of_a_model(chain: Trained) -> None:
    model = chain.model(2)
    found = model.version
    assert (found.key, found.keys) == (chain.plan.keys[1], tuple(chain.plan.keys[:2]))
    assert (found.name, found.task, found.method) == (f"{chain.run}@2", 2, "cl2r")
    assert (found.dim, found.digest) == (model.dim, model.digest)
    assert Version.model_validate_json(found.model_dump_json()) == found


def test_the_newest_and_later_models_of_the_chain_are_accepted(tmp_path: Path) -> None:
    gallery = filled(tmp_path, V1, V2)
    for model in (V2, V3, V2.model_copy(update={"name": "other name@2", "method": "er+procrustes"})):
        gallery.check_model(model)
    Gallery.open_or_create(tmp_path / "empty").check_model(V1)


def test_other_models_are_refused(tmp_path: Path) -> None:
    gallery = filled(tmp_path, V1, V2)
    forked = version(3).model_copy(update={"key": "far3", "keys": ("key1", "far2", "far3")})
    for model, part in (
        (version(2, "far"), "not in the chain"),
        (forked, "not in the chain"),
        (V1, "later model"),
        (version(2, digest="other"), "other weights"),
    ):
        with refused(tmp_path, model.name, part):
            gallery.check_model(model)


# ---------------------------------------------------------------- shards

ROWS, DIM = 5, 6
NAMES = [f"c/{row}.png" for row in range(ROWS)]
BAD = (("c/x.png", "no such file"),)


def write(
    folder: StoragePath,
    name: str = "abc",
    seed: int = 0,
    dtype: StoredDtype = "float32",
    count: int = ROWS,
    bad: Any = BAD,
) -> Shard:
    items = item_frame(entries(NAMES[:count]), "here", pd.DataFrame({"year": np.arange(count) + 1990}))
    return ShardStore(folder).write(name, "v1", rows(count, seed, DIM), items, bad, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_shard_is_read_back_memory_mapped(anywhere: StoragePath, dtype: StoredDtype) -> None:
    shard, store = write(anywhere, dtype=dtype), ShardStore(anywhere)
    assert (shard.name, shard.version, shard.items, shard.dim, shard.dtype) == ("abc", "v1", ROWS, DIM, dtype)
    assert shard.bad == BAD
    assert store.find("abc") == shard
    found = store.vectors(shard)
    assert isinstance(found, np.memmap)
    assert not found.flags.writeable
    np.testing.assert_array_equal(found, rows(ROWS, 0, DIM).astype(dtype))
    items = store.items(shard)
    assert items["id"].tolist() == NAMES
    assert items["year"].tolist() == [1990 + row for row in range(ROWS)]
    assert items.columns.tolist() == ["id", "source", "label", "bytes", "path", "year"]


def test_a_shard_without_vectors_lists_its_bad_images(anywhere: StoragePath) -> None:
    shard, store = write(anywhere, count=0), ShardStore(anywhere)
    assert store.find("abc") == shard
    assert (shard.items, shard.bad) == (0, BAD)
    assert store.vectors(shard).shape == (0, DIM)
    assert len(store.items(shard)) == 0


def test_the_same_content_gives_the_same_bytes(anywhere: StoragePath) -> None:
    write(anywhere, "one")
    write(anywhere, "two")
    for name in (VECTORS, ITEMS):
        assert (anywhere / "one" / name).read_bytes() == (anywhere / "two" / name).read_bytes()


def test_an_intact_shard_is_kept(anywhere: StoragePath) -> None:
    first = write(anywhere, seed=0)
    before = below(anywhere.parent, anywhere.name)
    assert write(anywhere, seed=1) == first
    assert below(anywhere.parent, anywhere.name) == before


def test_a_shard_with_other_bad_images_is_replaced(anywhere: StoragePath) -> None:
    write(anywhere, count=ROWS - 1, bad=((NAMES[-1], "cut off"), *BAD))
    shard = write(anywhere)
    assert (shard.items, shard.bad) == (ROWS, BAD)
    assert ShardStore(anywhere).find("abc") == shard


def test_of_two_simultaneous_writers_one_wins_and_both_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, write_folder = threading.Barrier(2, timeout=30), LocalPath.write_folder
    monkeypatch.setattr(LocalPath, "write_folder", lambda *a, **last: gate.wait() is None or write_folder(*a, **last))
    made: list[Shard] = []
    threads = [threading.Thread(target=lambda seed=seed: made.append(write(tmp_path, seed=seed))) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(made) == 2
    assert made[0] == made[1] == ShardStore(tmp_path).find("abc")


def test_vectors_and_items_must_agree(tmp_path: Path) -> None:
    items = item_frame(entries(NAMES), "here", None)
    for vectors, given in (
        (rows(ROWS - 1), items),
        (rows(ROWS + 1), items),
        (rows(ROWS), items.drop(columns="label")),
    ):
        with pytest.raises(ValueError, match="vectors"):
            ShardStore(tmp_path).write("abc", "v1", vectors, given, [], "float32")
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_shard_depends_on_images_and_model() -> None:
    names = {
        shard_name(version, ids, sizes, dtype)
        for version in ("v1", "v2")
        for ids in (["a", "b"], ["b", "a"], ["ab"], ['a", "b'], ["a", "b", ""])
        for sizes in ([1, 2], [12], [2, 1])
        for dtype in ("float32", "float16")
    }
    assert len(names) == 2 * 5 * 3 * 2
    assert shard_name("v1", ["a"], [1], "float32") == "b7d7a9123c1704c5fe6c0c26"


@pytest.mark.parametrize("name", [VECTORS, ITEMS])
def test_a_damaged_or_missing_file_is_named_and_made_again(anywhere: StoragePath, name: str) -> None:
    shard, store = write(anywhere), ShardStore(anywhere)
    store.vectors(shard)  # a copy in the cache does not prove that the file is intact
    before, path = below(anywhere.parent, anywhere.name), anywhere / "abc" / name

    def check() -> None:
        assert store.find("abc") is None
        with refused(path):
            store.items(shard) if name == ITEMS else store.vectors(shard, check=True)

    for damaged in damages(path.read_bytes(), 6):
        path.write_file(damaged)
        check()
    path.unlink()
    check()
    assert write(anywhere) == shard
    assert below(anywhere.parent, anywhere.name) == before


def test_a_manifest_that_is_missing_or_no_record_is_written_again(tmp_path: Path) -> None:
    shard, path = write(tmp_path), tmp_path / "abc" / MANIFEST
    for content in [*NO_RECORDS, None]:
        path.unlink() if content is None else path.write_file(content)
        assert ShardStore(tmp_path).find("abc") is None
        assert write(tmp_path) == shard
        assert ShardStore(tmp_path).find("abc") == shard


@pytest.mark.parametrize("change", [{"dim": DIM + 1}, {"items": ROWS - 1}, {"dtype": "float16"}, {"dtype": "int8"}])
def test_vectors_that_do_not_fit_the_manifest_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    shard, store = write(tmp_path).model_copy(update=change), ShardStore(tmp_path)
    with refused(VECTORS, "expected"):
        store.vectors(shard)
    path = tmp_path / "abc" / MANIFEST
    path.write_file(json.dumps(json.loads(path.read_bytes()) | change).encode())
    assert store.find("abc") is None


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    shard, encoded = write(tmp_path), io.BytesIO()
    np.save(encoded, np.array([print], dtype=object), allow_pickle=True)
    (tmp_path / "abc" / VECTORS).write_file(encoded.getvalue())
    with refused(VECTORS):
        ShardStore(tmp_path).vectors(shard)


@pytest.mark.parametrize(
    "name", ["../x", "..", ".", "", "/etc/passwd", "a/b", "a\\b", "a\n", 7, None, ["a"], "a.b", "*"]
)
def test_a_name_in_a_manifest_is_never_a_path(tmp_path: Path, name: object) -> None:
    write(tmp_path)
    path = tmp_path / "abc" / MANIFEST
    entry = json.loads(path.read_bytes())
    for field in ("name", "version", "vectors", "rows"):
        path.write_file(json.dumps(entry | {field: name}).encode())
        with pytest.raises(ValueError, match=field):
            ShardStore(tmp_path).read_manifest("abc")
        assert ShardStore(tmp_path).find("abc") is None


def test_a_copy_of_a_shard_under_another_name_is_no_shard(anywhere: StoragePath) -> None:
    write(anywhere)
    for name in (VECTORS, ITEMS, MANIFEST):
        if isinstance(anywhere, Path):
            (anywhere / "copy").mkdir(exist_ok=True)
        (anywhere / "copy" / name).write_file((anywhere / "abc" / name).read_bytes())
    assert ShardStore(anywhere).find("copy") is None


def test_vectors_of_an_object_store_are_fetched_once(remote: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = write(remote)
    read, asked = ObjectPath.read_bytes, list[str]()
    monkeypatch.setattr(ObjectPath, "read_bytes", lambda path: asked.append(path.name) or read(path))
    for _ in range(3):
        np.testing.assert_array_equal(ShardStore(remote).vectors(shard), rows(ROWS, 0, DIM))
    assert asked.count(VECTORS) <= 1
    assert (cache_folder() / "objects" / f"{shard.vectors}-vectors.npy").is_file()


def test_damaged_vectors_do_not_enter_the_cache(remote: ObjectPath) -> None:
    shard = write(remote, seed=77)
    cached = cache_folder() / "objects" / f"{shard.vectors}-vectors.npy"
    cached.unlink(missing_ok=True)
    (remote / "abc" / VECTORS).write_file(b"nothing")
    with refused(VECTORS, "checksum"):
        ShardStore(remote).vectors(shard)
    assert not cached.exists()
