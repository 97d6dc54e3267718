"""A gallery: commits that are whole or an error, one writer at a time, and only models that its vectors can meet."""

import dataclasses
import hashlib
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_gallery import Trained, add_vectors, damages, one_line, stored, trained

from cl2r import claims
from cl2r.errors import InputError
from cl2r.files import Place, listed
from cl2r.objects import ObjectPath
from cl2r.search.gallery import MARK, Commit, Gallery, Version, read_commit
from cl2r.search.shards import MANIFEST, VECTORS

VERSIONS = [
    Version(f"key{task}", f"run@{task}", task, "cl2r", tuple(f"key{k}" for k in range(1, task + 1)), 4, f"bits{task}")
    for task in (1, 2, 3)
]
V1, V2, V3 = VERSIONS


@pytest.fixture(params=["disk", "objects"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return tmp_path / "gallery" if request.param == "disk" else request.getfixturevalue("remote") / "gallery"


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)


def filled(root: Place, *versions: Version) -> Gallery:
    """Three images a version."""
    gallery = Gallery.open_or_create(root)
    for version in versions:
        shard = add_vectors(gallery, version.key, rows(3, version.task), [f"{version.key}/{n}" for n in range(3)])
        gallery.change({version.key: version}, [*gallery.commit.shards, shard], f"by {version.name}")
    return gallery


def refused(root: Place, *parts: str) -> None:
    with pytest.raises(InputError) as error:
        Gallery(root)
    assert one_line(error.value, *parts), error.value


# ---------------------------------------------------------------- made and opened


def test_it_is_made_once_and_then_opened(root: Place) -> None:
    refused(root, str(root), "no gallery", "cl2r index")
    made = Gallery.open_or_create(root)
    assert made.commit == Commit()
    assert Gallery(root).commit == Gallery.open_or_create(root).commit == Commit()
    assert len(Gallery(root).items()) == 0
    assert [path.name for path in listed(root, "*")] == [MARK]


def test_a_folder_with_other_things_is_left_alone(root: Place) -> None:
    if isinstance(root, Path):
        root.mkdir()
    (root / "holiday.png").write_bytes(b"mine")
    with pytest.raises(InputError) as error:
        Gallery.open_or_create(root)
    assert one_line(error.value, str(root), "not empty", "holiday.png")
    assert [path.name for path in listed(root, "*")] == ["holiday.png"]


def test_one_that_is_being_made_is_no_other_thing(tmp_path: Path) -> None:
    """As a process leaves it that was killed then; or that goes on."""
    (tmp_path / f".{MARK}.0123").write_bytes(b"")
    assert Gallery.open_or_create(tmp_path).commit == Commit()


def test_a_file_is_no_gallery(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    refused(tmp_path / "file", str(tmp_path / "file"))
    with pytest.raises(InputError):
        Gallery.open_or_create(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"mine"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'"format"', b'{"form": 1}', b"\xff", b"[" * 100_000])
def test_a_mark_that_is_none(tmp_path: Path, content: bytes) -> None:
    Gallery.open_or_create(tmp_path)
    (tmp_path / MARK).write_bytes(content)
    refused(tmp_path, str(tmp_path / MARK))
    with pytest.raises(InputError):
        Gallery.open_or_create(tmp_path)


@pytest.mark.parametrize("number", [0, 2, "1", None])
def test_another_format_is_refused(tmp_path: Path, number: object) -> None:
    (tmp_path / MARK).write_bytes(json.dumps({"format": number}).encode())
    refused(tmp_path, str(tmp_path), f"format {number}", "reads 1")


# ---------------------------------------------------------------- commits


def test_changes_add_up(root: Place) -> None:
    gallery = filled(root, V1, V2)
    again = Gallery(root)
    assert again.commit == gallery.commit
    assert (again.commit.number, again.commit.items) == (2, 6)
    assert dict(again.commit.versions) == {"key1": V1, "key2": V2}
    assert again.commit.newest == V2
    assert [shard.version for shard in again.commit.shards] == ["key1", "key2"]
    assert again.commit.of("key2") == again.commit.shards[1:]
    assert again.commit.of("other") == ()
    assert [path.name for path in listed(root / "commits", "*")] == ["00000001.json", "00000002.json"]
    assert len(stored(again)) == 6


def test_versions_without_vectors_are_forgotten(tmp_path: Path) -> None:
    gallery = filled(tmp_path, V1, V2)
    gallery.change({V3.key: V3}, gallery.commit.of("key2"), "by hand")
    assert dict(Gallery(tmp_path).commit.versions) == {"key2": V2}
    gallery.change({}, [], "all away")
    assert Gallery(tmp_path).commit.newest is None


def test_items_say_which_model_saw_them(root: Place) -> None:
    gallery = filled(root, V1, V2)
    more = add_vectors(gallery, "key2", rows(2), ["x", "y"], colour=["red", None], year=[1990, 2000])
    gallery.change({}, [*gallery.commit.shards, more], "with metadata")
    items = Gallery(root).items()
    assert items["id"].tolist() == [*(f"key1/{n}" for n in range(3)), *(f"key2/{n}" for n in range(3)), "x", "y"]
    assert items["version"].tolist() == ["key1"] * 3 + ["key2"] * 5
    assert items["task"].tolist() == [1] * 3 + [2] * 5
    assert items["model"].tolist() == ["run@1"] * 3 + ["run@2"] * 5
    assert items["colour"].isna().tolist() == [True] * 6 + [False, True]
    assert items["year"].tolist()[6:] == [1990, 2000]
    assert gallery.items([more])["id"].tolist() == ["x", "y"]


def test_the_tenth_commit_comes_after_the_ninth(tmp_path: Path) -> None:
    gallery = filled(tmp_path, V1)
    for number in range(2, 12):
        gallery.change({}, gallery.commit.shards, f"change {number}")
    assert Gallery(tmp_path).commit.what == "change 11"


def test_a_damaged_newest_commit_is_an_error_and_not_skipped(root: Place) -> None:
    filled(root, V1, V2)
    path = root / "commits" / "00000002.json"
    content = path.read_bytes()
    for damaged in [*damages(content, 9), b"", content[:-1], content[:70], b"\n", content + b" "]:
        path.write_bytes(damaged)
        refused(root, str(path), "damaged", "restore")
    path.unlink()
    (root / "commits" / "00000001.json").write_bytes(content)
    refused(root, "00000001.json", "damaged")  # else the next change would be number 3, and this one there for ever


def forged(root: Place, change: Any) -> None:
    """The newest commit with another content and the right checksum."""
    path = listed(root / "commits", "*.json")[-1]
    entry = json.loads(path.read_bytes().partition(b"\n")[2])
    body = json.dumps(change(entry)).encode()
    path.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def with_shard(**change: Any) -> Any:
    return lambda entry: entry | {"shards": [entry["shards"][0] | change]}


def with_version(**change: Any) -> Any:
    return lambda entry: entry | {"versions": {"key1": entry["versions"]["key1"] | change}}


@pytest.mark.parametrize(
    "change",
    [
        with_shard(name="../../x"),
        with_shard(version="../x"),
        with_shard(vectors="../x"),
        with_shard(rows="/etc/passwd"),
        with_shard(version="another"),
        with_version(key="../x"),
        with_version(key="another"),
        with_version(keys=None),
        lambda entry: entry | {"versions": []},
        lambda entry: entry | {"versions": {}},
        lambda entry: entry | {"shards": {}},
        lambda entry: entry | {"number": 7},
        lambda entry: entry | {"more": 1},
        lambda entry: [],
        lambda entry: None,
    ],
)
def test_a_commit_that_makes_no_sense(tmp_path: Path, change: Any) -> None:
    filled(tmp_path, V1)
    forged(tmp_path, lambda entry: entry)
    assert Gallery(tmp_path).commit.items == 3
    forged(tmp_path, change)
    refused(tmp_path, "00000001.json", "damaged")


def test_a_reader_keeps_what_it_opened(tmp_path: Path) -> None:
    filled(tmp_path, V1)
    reader = Gallery(tmp_path)
    writer = filled(tmp_path, V2)
    assert (reader.commit.items, writer.commit.items, Gallery(tmp_path).commit.items) == (3, 6, 6)
    assert len(stored(reader)) == 3
    assert read_commit(tmp_path / "commits" / "00000001.json") == reader.commit


# ---------------------------------------------------------------- writers


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "PAUSE_SECONDS", 0.02)


ADDING = """
import sys
sys.path[:0] = sys.argv[1:3]
from test_gallery import add_often
from cl2r.files import place
print("ready", flush=True)
sys.stdin.readline()
add_often(place(sys.argv[3]), "b")
"""


def add_often(root: Place, who: str) -> None:
    """Five changes, each of which needs what was there."""
    gallery = Gallery.open_or_create(root)
    for number in range(5):
        with gallery.writing():
            shard = add_vectors(gallery, "key1", rows(2), [f"{who}/{number}/{n}" for n in range(2)])
            gallery.change({"key1": V1}, [*gallery.commit.shards, shard], "more")


def test_processes_add_to_one_gallery(tmp_path: Path) -> None:
    here = Path(__file__).parent
    words = [sys.executable, "-c", ADDING, str(here), str(here.parent), str(tmp_path / "gallery")]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None
    assert other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    other.stdin.write("go\n")
    other.stdin.flush()
    add_often(tmp_path / "gallery", "a")
    assert other.wait(120) == 0
    gallery = Gallery(tmp_path / "gallery")
    assert set(stored(gallery)) == {f"{who}/{number}/{n}" for who in "ab" for number in range(5) for n in range(2)}
    assert gallery.commit.number == 10


@pytest.mark.usefixtures("hasty")
def test_who_waited_sees_what_the_other_did(root: Place) -> None:
    filled(root, V1)
    first, second = Gallery(root), Gallery(root)
    inside, order = threading.Event(), list[str]()

    def wait_and_look() -> None:
        inside.wait(30)
        with second.writing():
            order.append(f"second sees {second.commit.number}")

    thread = threading.Thread(target=wait_and_look)
    thread.start()
    with first.writing():
        inside.set()
        thread.join(0.2)  # it would be through by now
        order.append("first changes")
        first.change({}, first.commit.shards, "again")
    thread.join(60)
    assert order == ["first changes", "second sees 2"]


def test_an_error_lets_the_next_writer_in(root: Place) -> None:
    gallery = filled(root, V1)
    with pytest.raises(RuntimeError), gallery.writing():
        raise RuntimeError
    with Gallery(root).writing():
        pass
    assert Gallery(root).commit.number == 1


# ---------------------------------------------------------------- orphans


def test_orphans_are_whole_shards_that_no_commit_has(root: Place) -> None:
    gallery = filled(root, V1)
    assert gallery.orphans() == []
    left = [add_vectors(gallery, "key1", rows(2, seed), [f"left{seed}", "b"]) for seed in (1, 2, 3)]
    assert {shard.name for shard in Gallery(root).orphans()} == {shard.name for shard in left}
    (gallery.shards / left[0].name / VECTORS).write_bytes(b"torn")
    (gallery.shards / left[1].name / MANIFEST).unlink()
    assert Gallery(root).orphans() == [left[2]]
    gallery.change({}, [*gallery.commit.shards, left[2]], "found")
    assert gallery.orphans() == []


def test_half_a_shard_is_no_orphan(tmp_path: Path) -> None:
    """As a killed writer leaves it: aside, under a name with a dot."""
    gallery = filled(tmp_path, V1)
    (shard,) = gallery.commit.shards
    (gallery.shards / shard.name).rename(gallery.shards / f".{shard.name}.0123")
    assert gallery.orphans() == []


# ---------------------------------------------------------------- models


@pytest.fixture(scope="module")
def chain(tiny: Path) -> Trained:
    return trained(tiny)


def test_a_version_is_what_the_card_says(chain: Trained) -> None:
    model = chain.model(2)
    version = Version.of(model.card, model.dim, model.digest)
    assert version == Version(
        chain.plan.keys[1], f"{chain.run}@2", 2, "cl2r", tuple(chain.plan.keys[:2]), model.dim, model.digest
    )
    assert Version.parse(json.loads(json.dumps(dataclasses.asdict(version)))) == version


def check(gallery: Gallery, version: Version, *parts: str, to_write: bool = False) -> None:
    with pytest.raises(InputError) as error:
        gallery.check_model(version, to_write)
    assert one_line(error.value, str(gallery.root), version.name, *parts), error.value


def test_later_models_of_the_chain_meet_it(tmp_path: Path) -> None:
    gallery = filled(tmp_path, V1, V2)
    for to_write in (False, True):
        for version in (V2, V3, dataclasses.replace(V2, name="other name@2", method="er+procrustes")):
            gallery.check_model(version, to_write)
        Gallery.open_or_create(tmp_path / "empty").check_model(V1, to_write)


@pytest.mark.parametrize("to_write", [False, True])
def test_other_models_do_not(tmp_path: Path, to_write: bool) -> None:
    gallery = filled(tmp_path, V1, V2)
    other = Version("far2", "far@2", 2, "cl2r", ("far1", "far2"), 4, "bits")
    check(gallery, other, "run@1", "no model of its chain", to_write=to_write)
    forked = Version("far3", "far@3", 3, "cl2r", ("key1", "far2", "far3"), 4, "bits")
    check(gallery, forked, "run@2", "no model of its chain", to_write=to_write)
    check(gallery, V1, "run@2", "later model of the same chain", to_write=to_write)
    twin = dataclasses.replace(V2, digest="other bits")
    check(gallery, twin, "run@2", "other weights", to_write=to_write)


def test_no_object_is_left_but_what_it_says(remote: ObjectPath) -> None:
    filled(remote, V1)
    kinds = {name.split("/")[0] for name in remote.below()}
    assert kinds == {MARK, "commits", "shards"}
