"""Galleries: commits and shards that are complete or absent, one writer at a time, models that fit the vectors."""

import contextlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from cl2r.gallery.gallery import (
    COLUMNS,
    ITEMS,
    MANIFEST,
    MARK,
    VECTORS,
    Commit,
    Gallery,
    Shard,
    ShardStore,
    Version,
    shard_name,
)
from cl2r.gallery.maintenance import verify
from cl2r.storage import claims
from cl2r.storage.claims import LostError
from cl2r.storage.path import LocalPath, ObjectPath, StoragePath, cache_folder, sha256
from tests.support.galleries import (
    Trained,
    add_vectors,
    below,
    commit_vectors,
    filled,
    item_rows,
    made_version,
    refused,
    resealed,
    stored,
    unit_rows,
)

ID = "0123"  # of a gallery that shards belong to
V1, V2, V3 = map(made_version, (1, 2, 3))


def test_a_gallery_is_created_once_and_then_opened(anywhere: StoragePath) -> None:
    with refused(anywhere, "no gallery", "cl2r index"):
        Gallery(anywhere)
    if isinstance(anywhere, Path):
        (anywhere / f".{MARK}.0123").write_file(b"")  # left by a creation that was interrupted
    assert Gallery.open_or_create(anywhere).commit == Commit()
    assert Gallery(anywhere).commit == Gallery.open_or_create(anywhere).commit == Commit()
    assert len(Gallery(anywhere).items()) == 0


def test_other_files_are_not_overwritten(anywhere: StoragePath) -> None:
    (anywhere / "holiday.png").write_file(b"mine")
    with refused(anywhere, "not empty", "holiday.png"):
        Gallery.open_or_create(anywhere)
    for opening in (Gallery, Gallery.open_or_create):
        with refused(anywhere / "holiday.png"):
            opening(anywhere / "holiday.png")
    assert below(anywhere.parent, anywhere.name) == {"holiday.png": b"mine"}


def test_changes_add_up(anywhere: StoragePath) -> None:
    gallery = filled(anywhere, V1, V2)
    again = Gallery(anywhere)
    assert again.commit == gallery.commit
    assert (again.commit.number, again.commit.items) == (2, 6)
    assert again.commit.versions == {"key1": V1, "key2": V2}
    assert again.commit.by_task == [V1, V2]
    assert [shard.version for shard in again.commit.shards] == ["key1", "key2"]
    assert (again.commit.of("key2"), again.commit.of("other")) == (again.commit.shards[1:], ())
    assert len(stored(again)) == 6
    assert {path.name for path in anywhere.list("*")} == {MARK, "claims", "commits", "shards"}, "nothing else is left"
    for number in range(3, 12):
        gallery.change({}, gallery.commit.shards, f"change {number}")
    assert Gallery(anywhere).commit.what == "change 11"


def test_versions_without_vectors_are_dropped(tmp_path: Path) -> None:
    gallery = filled(tmp_path, V1, V2)
    gallery.change({V3.key: V3}, gallery.commit.of("key2"), "by hand")
    assert Gallery(tmp_path).commit.versions == {"key2": V2}
    gallery.change({}, [], "all removed")
    assert Gallery(tmp_path).commit.by_task == []


def test_items_name_the_model_of_their_vector(tmp_path: Path) -> None:
    gallery = filled(tmp_path, V1, V2)
    commit_vectors(gallery, V2, unit_rows(2, 4), ["x", "y"], colour=["red", None], year=[1990, 2000])
    items = Gallery(tmp_path).items()
    assert items["id"].tolist() == [*(f"key1/{n}" for n in range(3)), *(f"key2/{n}" for n in range(3)), "x", "y"]
    assert items["version"].tolist() == ["key1"] * 3 + ["key2"] * 5
    assert items["task"].tolist() == [1] * 3 + [2] * 5
    assert items["model"].tolist() == ["run@1"] * 3 + ["run@2"] * 5
    assert items["colour"].isna().tolist() == [True] * 6 + [False, True]
    assert items["year"].tolist()[6:] == [1990, 2000]
    assert gallery.items(gallery.commit.shards[2:])["id"].tolist() == ["x", "y"]


def test_a_reader_keeps_the_commit_it_opened(tmp_path: Path) -> None:
    filled(tmp_path, V1)
    reader = Gallery(tmp_path)
    writer = filled(tmp_path, V2)
    assert (reader.commit.items, writer.commit.items, Gallery(tmp_path).commit.items) == (3, 6, 6)
    assert len(stored(reader)) == 3


def test_a_commit_of_another_number_is_refused(tmp_path: Path) -> None:
    """Otherwise the next change would be number 3, and this one never replaced."""
    filled(tmp_path, V1, V2)
    (tmp_path / "commits" / "00000001.json").rename(tmp_path / "commits" / "00000002.json")
    with refused("00000002.json", "commit 1"):
        Gallery(tmp_path)


ADDING = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.unit.gallery.test_gallery import add_often
from cl2r.storage.path import at
print("ready", flush=True)
sys.stdin.readline()
add_often(at(sys.argv[2]), "b")
"""


def add_often(root: StoragePath, writer: str) -> None:
    """Make five changes, each of which builds on the one before."""
    gallery = Gallery.open_or_create(root)
    for number in range(5):
        with gallery.writing():
            commit_vectors(gallery, V1, unit_rows(2, 4), [f"{writer}/{number}/{n}" for n in range(2)])


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
    assert set(stored(Gallery(root))) == {f"{who}/{change}/{n}" for who in "ab" for change in range(5) for n in (0, 1)}
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
    with contextlib.suppress(RuntimeError), first.writing():
        inside.set()
        thread.join(0.2)
        order.append("first changes")
        first.change({}, first.commit.shards, "again")
        raise RuntimeError  # which releases the lock as well
    thread.join(60)
    assert order == ["first changes", "second sees 2"]


def lose(root: ObjectPath) -> None:
    """Remove the ticket of the writer, as processes do that take it for dead."""
    [ticket] = (root / "claims").list("write.*.json")
    ticket.unlink()


@pytest.mark.usefixtures("small_shards")
def test_a_writer_that_lost_its_lock_does_not_overwrite_the_commit_of_another(remote: ObjectPath) -> None:
    filled(remote, V1)
    first, second = Gallery(remote), Gallery(remote)
    with first.writing():
        old = first.commit.shards
        lose(remote)
        with second.writing():
            made = add_vectors(second, "key1", unit_rows(2, 4, 7), ["x", "y"])
            second.change({}, [*old, made], "the second writer")
        with pytest.raises(LostError, match="nothing was committed"):
            first.change({}, old, "the first writer")
    assert Gallery(remote).commit.what == "the second writer"
    assert made.name not in Gallery(remote).uncommitted(), "no repair removes it"


@pytest.mark.usefixtures("small_shards")
def test_a_writer_that_learned_of_its_loss_neither_commits_nor_prunes(
    remote: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may be about to commit."""
    monkeypatch.setattr(claims, "BEAT_SECONDS", 0.05)
    gallery = filled(remote, V1)
    left = add_vectors(gallery, "key1", unit_rows(2, 4, 7), ["x", "y"])
    with gallery.writing():
        lose(remote)
        assert gallery._lost.wait(60)
        with pytest.raises(LostError):
            gallery.change({}, gallery.commit.shards, "again")
        with pytest.raises(LostError):
            verify(gallery, prune=True)
    assert gallery.uncommitted() == [left.name]
    assert Gallery(remote).commit.number == 1
    with gallery.writing():
        gallery.change({}, gallery.commit.shards, "again")
    assert Gallery(remote).commit.number == 2, "the next time it holds the lock again"


def test_orphans_are_intact_shards_without_a_commit(anywhere: StoragePath) -> None:
    gallery = filled(anywhere, V1)
    assert gallery.orphans() == []
    left = [add_vectors(gallery, "key1", unit_rows(2, 4, seed), [f"left{seed}", "b"]) for seed in range(3)]
    assert {shard.name for shard in Gallery(anywhere).orphans()} == {shard.name for shard in left}
    (gallery.shards.folder / left[0].name / VECTORS).write_file(b"torn")
    (gallery.shards.folder / left[1].name / MANIFEST).unlink()
    for name in (VECTORS, ITEMS, MANIFEST):  # a copy under another name is no shard, nor one that was being written
        for copy in ("copy", f".{left[2].name}.0123"):
            (gallery.shards.folder / copy / name).write_file((gallery.shards.folder / left[2].name / name).read_bytes())
    assert Gallery(anywhere).orphans() == [left[2]]
    gallery.change({}, [*gallery.commit.shards, left[2]], "found")
    assert gallery.orphans() == []


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
    forked = V3.model_copy(update={"key": "far3", "keys": ("key1", "far2", "far3")})
    for model, part in (
        (made_version(2, "far"), "not in the chain"),
        (forked, "not in the chain"),
        (V1, "later model"),
        (made_version(2, digest="other"), "other weights"),
    ):
        with refused(tmp_path, model.name, part):
            gallery.check_model(model)


ROWS, DIM = 5, 6
NAMES = [f"c/{row}.png" for row in range(ROWS)]
BAD = [("c/x.png", "no such file")]


def write(folder: StoragePath, seed: int = 0, dtype: Any = "float32", count: int = ROWS, bad: Any = BAD) -> Shard:
    items = item_rows(NAMES[:count], year=np.arange(count) + 1990)
    return ShardStore(folder, ID).write("abc", "v1", unit_rows(count, DIM, seed), items, bad, dtype)


@pytest.mark.parametrize("count", [ROWS, 0])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_shard_is_read_back_memory_mapped(anywhere: StoragePath, dtype: str, count: int) -> None:
    shard, store = write(anywhere, dtype=dtype, count=count), ShardStore(anywhere, ID)
    assert (shard.name, shard.version, shard.items, shard.dim, shard.dtype) == ("abc", "v1", count, DIM, dtype)
    assert shard.bad == tuple(BAD)
    assert store.find("abc") == shard
    found = store.vectors(shard)
    assert isinstance(found, np.memmap) == (not found.flags.writeable) == (count > 0)
    np.testing.assert_array_equal(found, unit_rows(count, DIM).astype(dtype))
    items = store.items(shard)
    assert items["id"].tolist() == NAMES[:count]
    assert items["year"].tolist() == [1990 + row for row in range(count)]
    assert items.columns.tolist() == ["id", "source", "label", "bytes", "path", "year"]


def test_an_intact_shard_is_kept_unless_other_images_were_unreadable(anywhere: StoragePath) -> None:
    first = write(anywhere, count=ROWS - 1, bad=[(NAMES[-1], "cut off"), *BAD])
    assert first.items == ROWS - 1
    shard = write(anywhere)
    assert (shard.items, shard.bad) == (ROWS, tuple(BAD))
    assert write(anywhere, seed=1) == shard == ShardStore(anywhere, ID).find("abc")
    np.testing.assert_array_equal(ShardStore(anywhere, ID).vectors(shard), unit_rows(ROWS, DIM))


@pytest.mark.parametrize("name", [VECTORS, ITEMS, MANIFEST])
@pytest.mark.parametrize("content", [b"[]", None])
def test_a_damaged_shard_is_made_again_with_the_same_bytes(
    anywhere: StoragePath, name: str, content: bytes | None
) -> None:
    shard, store, path = write(anywhere), ShardStore(anywhere, ID), anywhere / "abc" / name
    store.vectors(shard)  # a copy in the cache does not prove that the file is intact
    before = below(anywhere.parent, anywhere.name)
    path.unlink() if content is None else path.write_file(content)
    assert store.find("abc") is None
    assert write(anywhere) == shard
    assert below(anywhere.parent, anywhere.name) == before


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
    assert made[0] == made[1] == ShardStore(tmp_path, ID).find("abc")


def test_vectors_and_items_must_agree(tmp_path: Path) -> None:
    for count, items in ((4, item_rows(NAMES)), (6, item_rows(NAMES)), (5, item_rows(NAMES).drop(columns="label"))):
        with pytest.raises(ValueError, match="vectors"):
            ShardStore(tmp_path, ID).write("abc", "v1", unit_rows(count), items, [], "float32")
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


@pytest.mark.parametrize(
    "change", [{"dim": DIM + 1}, {"items": ROWS - 1}, {"dtype": "float16"}, {"dtype": "int8"}, {"name": "other"}]
)
def test_a_manifest_that_does_not_fit_the_files_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    shard, store, path = (
        write(tmp_path).model_copy(update=change),
        ShardStore(tmp_path, ID),
        tmp_path / "abc" / MANIFEST,
    )
    with refused(VECTORS):
        store.vectors(shard)
    path.write_file(resealed(path.read_bytes(), lambda entry: entry | change))
    assert store.find("abc") is None


@pytest.mark.parametrize(
    ("column", "values"),
    [
        *((name, None) for name in COLUMNS),
        *((name, values) for name in ("id", "label", "path") for values in (["a", None, "c"], [1.5] * 3, [["a"]] * 3)),
        ("path", ["a", "b\0", "c"]),
        ("source", [b"a"] * 3),
        ("bytes", ["1"] * 3),
        ("bytes", pd.array([1, None, 3], "Int64")),
    ],
)
def test_items_that_make_no_sense_are_refused(tmp_path: Path, column: str, values: Any) -> None:
    """Even with right checksums: a stranger who offers a gallery computes them too."""
    gallery = filled(tmp_path, V1)
    (shard,) = gallery.commit.shards
    path = gallery.shards.folder / shard.name / ITEMS
    items = gallery.shards.items(shard)
    items = items.drop(columns=column) if values is None else items.assign(**{column: values})
    path.write_file(items.to_parquet(index=False))
    with refused(ITEMS, column):
        gallery.shards.items(shard.model_copy(update={"rows": sha256(path.read_bytes())}))


def test_items_whose_text_is_no_utf8_are_refused(tmp_path: Path) -> None:
    gallery = filled(tmp_path, V1)
    (shard,) = gallery.commit.shards
    path = gallery.shards.folder / shard.name / ITEMS
    table = pa.table(gallery.shards.items(shard))
    wrong = pa.Array.from_buffers(pa.string(), 3, pa.array([b"\xff"] * 3).buffers())
    with path.open("wb") as file:
        parquet.write_table(table.set_column(0, "id", wrong), file)
    with refused(ITEMS, "id"):
        gallery.shards.items(shard.model_copy(update={"rows": sha256(path.read_bytes())}))


@pytest.mark.parametrize("name", ["../x", "..", "", "/etc/passwd", "a/b", "a\\b", "a\n", 7, None, ["a"], "a.b", "*"])
def test_a_name_in_a_manifest_is_never_a_path(tmp_path: Path, name: object) -> None:
    write(tmp_path)
    path = tmp_path / "abc" / MANIFEST
    content = path.read_bytes()
    for field in ("name", "version", "vectors", "rows"):
        path.write_file(resealed(content, lambda entry, field=field: entry | {field: name}))
        with refused(path, field):
            ShardStore(tmp_path, ID).read_manifest("abc")


def test_vectors_of_an_object_store_are_cached_unless_damaged(
    remote: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, damaged = write(remote), write(remote / "damaged", seed=77)
    (remote / "damaged" / "abc" / VECTORS).write_file(b"nothing")
    cache = cache_folder() / "objects"
    (cache / f"{damaged.vectors}-{VECTORS}").unlink(missing_ok=True)
    with refused(VECTORS, "checksum"):
        ShardStore(remote / "damaged", ID).vectors(damaged)
    assert not (cache / f"{damaged.vectors}-{VECTORS}").exists()
    read, asked = ObjectPath.read_bytes, list[str]()
    monkeypatch.setattr(ObjectPath, "read_bytes", lambda path: asked.append(path.name) or read(path))
    for _ in range(3):
        np.testing.assert_array_equal(ShardStore(remote, ID).vectors(shard), unit_rows(ROWS, DIM))
    assert asked.count(VECTORS) <= 1
    assert (cache / f"{shard.vectors}-{VECTORS}").is_file()
