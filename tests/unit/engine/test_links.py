"""Links and unfinished epochs on a disk and in an object store: whole, damaged, missing, hostile."""

import contextlib
import itertools
import json
import os
import pickle
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from cl2r.engine.links import (
    FEATURES,
    MANIFEST,
    PARTIAL,
    RECORD,
    STATE,
    DamagedError,
    Link,
    LinkStore,
    Partial,
    check_writable,
    content_name,
    owner,
)
from cl2r.errors import InputError
from cl2r.storage.path import ASIDE, LocalPath, ObjectPath, StoragePath, at, sha256
from cl2r.storage.seal import sealed
from tests.support.object_server import upload
from tests.support.quick import flip_bit

KEY = "0123abcd"
FILES = 4


class CutError(BaseException):
    """The process dies here."""


class Bomb:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.mark,)


@pytest.fixture(params=["disk", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LinkStore:
    """An empty store of either kind."""
    return LinkStore(at(tmp_path / "results") if request.param == "disk" else request.getfixturevalue("remote"))


@pytest.fixture
def filled(store: LinkStore) -> LinkStore:
    store.save(KEY, link())
    return store


@pytest.fixture
def on_disk(tmp_path: Path) -> LinkStore:
    made = LinkStore(tmp_path / "results")
    made.save(KEY, link())
    return made


@contextlib.contextmanager
def cut_after(count: int) -> Iterator[None]:
    """Let the process die after so many files."""
    written, originals = itertools.count(), {kind: kind.write_file for kind in (LocalPath, ObjectPath)}

    def limited(path: Any, content: bytes, durable: bool = True) -> None:
        if next(written) >= count:
            raise CutError
        originals[type(path)](path, content, durable)

    with pytest.MonkeyPatch.context() as patch:
        for kind in originals:
            patch.setattr(kind, "write_file", limited)
        with pytest.raises(CutError):
            yield


def link(number: float = 1.0) -> Link:
    state = {"method/w": torch.full((2, 3), number), "memory": torch.tensor([4, 2])}
    return Link(state, {"open": torch.full((2, 2), number)}, {"seconds": number, "curves": [{"loss_ce": 0.1}]})


def epoch(number: int, stage: int = 0) -> Partial:
    return Partial(stage, number, {"network/w": torch.full((3,), float(number))}, {"curves": [], "seconds": number})


def fresh(store: LinkStore) -> LinkStore:
    """Return the store as another process sees it."""
    return LinkStore(store.root.parent)


def assert_holds(store: LinkStore, number: float = 1.0) -> None:
    """Assert that the store has the whole link with this number."""
    found, expected = fresh(store).load(KEY), link(number)
    assert found is not None
    assert found.record == expected.record
    for tensors, others in ((found.state, expected.state), (found.features, expected.features)):
        assert tensors.keys() == others.keys()
        for name, tensor in tensors.items():
            assert tensor.dtype == others[name].dtype
            assert torch.equal(tensor, others[name])


def assert_damaged(store: LinkStore, name: str) -> None:
    """Assert that this file of the link cannot be read."""
    with pytest.raises(DamagedError, match=name):
        {STATE: store.state, FEATURES: store.features, RECORD: store.record}[name](KEY)


def contents(folder: StoragePath) -> dict[str, bytes]:
    """Return all files below a folder."""
    return {entry.path: (folder / entry.path).read_bytes() for entry in folder.walk_files()}


def asides(folder: StoragePath, name: str = KEY) -> list[StoragePath]:
    """Return what was set aside in a folder under this name."""
    return list(folder.list(f"{ASIDE}{name}.*"))


def truncate(path: StoragePath) -> None:
    path.write_file(path.read_bytes()[:-1])


def remove(path: StoragePath) -> None:
    path.unlink()


DAMAGE = pytest.mark.parametrize("damage", [truncate, flip_bit, remove])


def test_a_link_round_trips(store: LinkStore, caplog: pytest.LogCaptureFixture) -> None:
    assert store.load(KEY) is None
    assert (KEY in store, store.keys()) == (False, set())
    store.save(KEY, link())
    assert_holds(store)
    assert (KEY in store, store.keys()) == (True, {KEY})
    assert caplog.messages == []


def test_strided_tensors_are_stored(on_disk: LinkStore) -> None:
    image, rows = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.rand(4, 2)
    on_disk.save("feed", Link({"w": image, "t": rows.T}, {"open": rows}, {}))
    assert torch.equal(on_disk.state("feed")["w"], image)
    assert torch.equal(on_disk.state("feed")["t"], rows.T)


@pytest.mark.parametrize("count", range(FILES))
def test_a_link_that_was_cut_off_does_not_exist(store: LinkStore, caplog: pytest.LogCaptureFixture, count: int) -> None:
    with cut_after(count):
        store.save(KEY, link(1.0))
    assert fresh(store).load(KEY) is None
    assert fresh(store).keys() == set()
    store.save(KEY, link(2.0))
    assert_holds(store, 2.0)
    assert caplog.messages == []


def test_the_first_of_two_writers_wins(filled: LinkStore) -> None:
    fresh(filled).save(KEY, link(2.0))
    assert_holds(filled, 1.0)
    assert [path.name for path in filled.root.list("*")] == [KEY]


@pytest.mark.parametrize("order", sorted(set(itertools.permutations([0] * FILES + [1] * FILES)))[::14])
def test_two_writers_never_mix(remote: ObjectPath, monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...]) -> None:
    """Two processes write one link object by object, in a prescribed order; one of the two links is there, whole."""
    turns, turn, done = list(order), threading.Condition(), [False, False]
    write, numbers = ObjectPath.write_file, threading.local()

    def in_turn(path: ObjectPath, content: bytes, durable: bool = True) -> None:
        me = numbers.me
        with turn:
            assert turn.wait_for(lambda: not turns or turns[0] == me or done[turns[0]], 30)
            while turns and turns[0] != me:
                turns.pop(0)
            write(path, content)
            turns.pop(0) if turns else None
            turn.notify_all()

    def run(me: int) -> None:
        numbers.me = me
        LinkStore(remote).save(KEY, link(float(me)))
        with turn:
            done[me] = True
            turn.notify_all()

    monkeypatch.setattr(ObjectPath, "write_file", in_turn)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, (0, 1)))
    assert_holds(LinkStore(remote), LinkStore(remote).record(KEY)["seconds"])


@DAMAGE
@pytest.mark.parametrize("name", [STATE, FEATURES, RECORD])
def test_a_damaged_link_is_logged_never_used_and_written_again(
    filled: LinkStore, caplog: pytest.LogCaptureFixture, name: str, damage: Callable[[StoragePath], None]
) -> None:
    filled.save("feed", link())
    (path,) = (filled.root / KEY).list(f"*{name}")  # the name begins with the checksum
    damage(path)
    before = contents(filled.root / KEY)
    assert_damaged(filled, name)
    with pytest.raises(DamagedError, match=name):
        filled.check(KEY)
    for _ in range(2):
        assert fresh(filled).load(KEY) is None
        (line,) = caplog.messages
        assert str(filled.root / KEY) in line
        assert name in line
        assert "set aside" in line
    assert [contents(aside) for aside in asides(filled.root)] == [before], "kept as it was"
    assert fresh(filled).keys() == {"feed"}
    assert fresh(filled).load("feed") is not None
    filled.save(KEY, link())
    assert_holds(filled)


def swap(one: StoragePath, two: StoragePath) -> None:
    """Exchange two folders, file by file."""
    first, second = contents(one), contents(two)
    for folder, files in ((one, second), (two, first)):
        folder.remove_tree()
        for name, content in files.items():
            (folder / name).write_file(content)


def test_links_that_were_exchanged_are_named_and_set_aside(filled: LinkStore, caplog: pytest.LogCaptureFixture) -> None:
    filled.save("feed", link(2.0))
    swap(filled.root / KEY, filled.root / "feed")
    for key, other in ((KEY, "feed"), ("feed", KEY)):
        for read in (filled.state, filled.features, filled.record, filled.check):
            with pytest.raises(DamagedError, match=f"belongs to link {other}, not to link {key}"):
                read(key)
        assert fresh(filled).load(key) is None
        assert str(filled.root / key) in caplog.messages[-1]
        assert f"it belongs to link {other}, not to link {key}" in caplog.messages[-1]
        assert len(asides(filled.root, key)) == 1
    assert len(caplog.messages) == 2
    filled.save(KEY, link())
    assert_holds(filled)


def test_a_link_with_the_files_of_another_is_not_used(filled: LinkStore, caplog: pytest.LogCaptureFixture) -> None:
    """Its own manifest names files by their checksums: files of another link beside it do not count."""
    filled.save("feed", link(2.0))
    own, other = filled.manifest(KEY), filled.manifest("feed")
    wrong = (filled.root / "feed" / content_name(other[STATE], STATE)).read_bytes()
    (filled.root / KEY / content_name(other[STATE], STATE)).write_file(wrong)
    assert_holds(filled)
    (filled.root / KEY / content_name(own[STATE], STATE)).write_file(wrong)
    assert fresh(filled).load(KEY) is None
    assert f"{STATE}: the checksum differs" in caplog.text


def test_an_epoch_of_another_link_is_named_and_set_aside(store: LinkStore, caplog: pytest.LogCaptureFixture) -> None:
    store.save_partial("feed", epoch(2))
    for name, content in contents(store.partials / "feed").items():
        (store.partials / KEY / name).write_file(content)
    assert store.load_partial(KEY) is None
    (line,) = caplog.messages
    assert str(store.partials / KEY / PARTIAL) in line
    assert f"it belongs to the unfinished link feed, not to the unfinished link {KEY}" in line
    assert len(asides(store.partials)) == 1
    assert store.load_partial("feed") is not None


def test_a_link_is_no_unfinished_epoch_of_itself(filled: LinkStore) -> None:
    """The manifest of a link and the record of its epochs have different owners."""
    for name, content in contents(filled.root / KEY).items():
        (filled.partials / KEY / name.replace(MANIFEST, PARTIAL)).write_file(content)
    assert filled.load_partial(KEY) is None
    assert len(asides(filled.partials)) == 1


@pytest.mark.parametrize("thing", ["link is a file", "manifest is a folder", "state is a folder"])
def test_a_file_and_a_folder_in_the_wrong_place_are_set_aside(
    on_disk: LinkStore, caplog: pytest.LogCaptureFixture, thing: str
) -> None:
    folder = on_disk.root / KEY
    if thing == "link is a file":
        folder.remove_tree()
        folder.write_file(b"not a folder")
    else:
        path = folder / (MANIFEST if "manifest" in thing else content_name(on_disk.manifest(KEY)[STATE], STATE))
        path.unlink()
        path.mkdir()
    assert on_disk.load(KEY) is None
    assert str(folder) in caplog.text
    assert len(asides(on_disk.root)) == 1
    on_disk.save(KEY, link())
    assert_holds(on_disk)


def test_keys_are_those_of_links_only(filled: LinkStore) -> None:
    for name in ("stray", f"{KEY}/more/{MANIFEST}", f".aside.{KEY}.0/{MANIFEST}", f"no key/{MANIFEST}", "cut/state"):
        (filled.root / name).write_file(b"")
    for key in ("aa-cpu2", "bb-cuda4s", "cc-mixed0123456789ab"):
        filled.save(key, link())
    assert filled.keys() == {KEY, "aa-cpu2", "bb-cuda4s", "cc-mixed0123456789ab"}
    assert filled.planned(["cpu1"]) == {KEY}
    assert filled.planned(["cpu2"]) == {"aa"}
    assert filled.planned(["cuda4s"]) == {"bb"}
    assert filled.planned(["cuda4"]) == set()
    assert filled.planned(["cpu2", "cpu1"]) == {KEY, "aa", "cc"}, "mixtures of the ways count"
    assert filled.planned(["cuda4"], "any") == {KEY, "aa", "bb", "cc"}


@pytest.mark.parametrize("count", range(FILES))
def test_a_reader_leaves_a_link_alone_that_is_being_written(
    store: LinkStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Whether a link exists is asked without a lock, before each of the writer's files too."""
    originals, written = {kind: kind.write_file for kind in (LocalPath, ObjectPath)}, itertools.count()

    def read_before(path: Any, content: bytes, durable: bool = True) -> None:
        if next(written) == count:
            assert fresh(store).load(KEY) is None
        originals[type(path)](path, content, durable)

    for kind in originals:
        monkeypatch.setattr(kind, "write_file", read_before)
    store.save(KEY, link())
    assert_holds(store)
    assert (caplog.messages, asides(store.root)) == ([], [])


def test_a_store_can_be_copied_to_a_disk_and_back(remote: ObjectPath, tmp_path: Path) -> None:
    LinkStore(remote).save(KEY, link())
    for name, *_ in remote.walk_files():
        (at(tmp_path) / name).write_file((remote / name).read_bytes())
    assert_holds(LinkStore(tmp_path))
    LinkStore(tmp_path / "other").save("ffff", link(3.0))
    upload(tmp_path / "other" / "links", remote / "links")
    assert LinkStore(remote).load("ffff") is not None


def test_objects_are_read_once(remote: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    LinkStore(remote).save(KEY, link())
    store, read, names = LinkStore(remote), ObjectPath.read_bytes, list[str]()
    monkeypatch.setattr(ObjectPath, "read_bytes", lambda path: names.append(path.name) or read(path))
    assert store.load(KEY) is not None
    assert store.load(KEY) is not None
    assert len([name for name in names if name != MANIFEST]) == 3
    monkeypatch.setattr("cl2r.engine.links.CACHED_BYTES", 0)
    assert_holds(store)


def test_epochs_replace_each_other(store: LinkStore, caplog: pytest.LogCaptureFixture) -> None:
    assert store.load_partial(KEY) is None
    for number in (1, 2, 3):
        store.save_partial(KEY, epoch(number, stage=1))
        found = fresh(store).load_partial(KEY)
        assert found is not None
        assert (found.stage, found.epoch, found.record) == (1, number, {"curves": [], "seconds": number})
        assert torch.equal(found.tensors["network/w"], torch.full((3,), float(number)))
    assert len(list((store.partials / KEY).walk_files())) == 2, "one epoch, not three"
    assert store.load(KEY) is None
    store.save(KEY, link())
    assert store.load_partial(KEY) is None
    assert caplog.messages == []


def test_a_link_is_saved_even_if_its_epochs_stay(
    on_disk: LinkStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk.save_partial("0123abce", epoch(2))

    def refuse(path: object, **settings: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "unlink", refuse)
    on_disk.save("0123abce", link())
    assert "0123abce" in on_disk
    assert caplog.messages == [f"{on_disk.partials / '0123abce'} cannot be removed: [Errno 13] Permission denied"]


@pytest.mark.parametrize("count", [0, 1])
def test_an_epoch_that_was_cut_off_leaves_the_one_before(store: LinkStore, count: int) -> None:
    store.save_partial(KEY, epoch(1))
    with cut_after(count):
        store.save_partial(KEY, epoch(2))
    found = fresh(store).load_partial(KEY)
    assert found is not None
    assert (found.epoch, float(found.tensors["network/w"][0])) == (1, 1.0)


@DAMAGE
@pytest.mark.parametrize("name", ["stage0-*", PARTIAL])
def test_a_damaged_epoch_is_logged_and_ignored(
    store: LinkStore, caplog: pytest.LogCaptureFixture, name: str, damage: Callable[[StoragePath], None]
) -> None:
    store.save_partial(KEY, epoch(2))
    (path,) = (store.partials / KEY).list(name)
    damage(path)
    assert store.load_partial(KEY) is None
    if (name, damage) != (PARTIAL, remove):
        assert f"{store.partials / KEY / PARTIAL} is damaged" in caplog.text
        assert contents(store.partials / KEY) == {}
        assert len(asides(store.partials)) == 1, "kept under another name"


@pytest.mark.parametrize(("old", "new"), [('"epoch": 2', '"epoch": 3'), ('"seconds": 2', '"seconds": 6')])
def test_an_epoch_with_a_changed_record_is_ignored(on_disk: LinkStore, old: str, new: str) -> None:
    """Resuming after another epoch than that of the tensors would give another model."""
    on_disk.save_partial(KEY, epoch(2))
    path = on_disk.partials / KEY / PARTIAL
    assert old in path.read_text()
    path.write_file(path.read_text().replace(old, new).encode())
    assert on_disk.load_partial(KEY) is None


PARTS = ("links", "partials", "runs", "claims", "studies")


@pytest.mark.parametrize("blocked", ["results", *(f"results/{part}" for part in PARTS)])
def test_a_root_that_cannot_be_written_is_refused(tmp_path: Path, blocked: str) -> None:
    (tmp_path / blocked).parent.mkdir(exist_ok=True)
    (tmp_path / blocked).write_text("a file")
    with pytest.raises(InputError, match=f"cannot write to {tmp_path / blocked}: a file is in place"):
        check_writable(tmp_path / "results")


def test_a_missing_bucket_is_refused(remote: ObjectPath) -> None:
    check_writable(remote)
    assert list(remote.walk_files()) == []
    with pytest.raises(InputError, match=r"cannot write to s3://nowhere/x"):
        check_writable(ObjectPath(f"s3://nowhere/x{remote.query}"))


NOT_TENSORS = {
    "no header": b"",
    "a header without end": struct.pack("<Q", 2**63 - 1) + b"{}",
    "a header longer than the file": struct.pack("<Q", 10**9) + b'{"w":',
    "a header of brackets": struct.pack("<Q", 10**5) + b"[" * 10**5,
    "more than there is": struct.pack("<Q", 62)
    + b'{"w":{"dtype":"F32","shape":[99999999],"data_offsets":[0,4]}}\n\0\0\0\0',
    "beyond the end": struct.pack("<Q", 60) + b'{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,99999999]}}12345678',
}


def plant(store: LinkStore, name: str, content: bytes) -> None:
    """Put a file into the link, with a checksum in the manifest that fits."""
    folder, manifest = store.root / KEY, store.manifest(KEY) | {name: sha256(content)}
    (folder / content_name(manifest[name], name)).write_file(content)
    (folder / MANIFEST).write_file(sealed(json.dumps(manifest).encode(), owner(KEY)))


def plant_partial(store: LinkStore, content: bytes, name: str = "stage0-epoch0001") -> None:
    """Let the record of an unfinished task name a file with this content, with checksums that fit."""
    (store.partials / KEY / name).write_file(content)
    body = json.dumps({"file": name, "sha256": sha256(content), "stage": 0, "epoch": 1, "record": {}}).encode()
    (store.partials / KEY / PARTIAL).write_file(sealed(body, f"the unfinished {owner(KEY)}"))


@pytest.mark.parametrize("name", [STATE, FEATURES, RECORD])
def test_a_pickle_is_refused_and_not_executed(on_disk: LinkStore, tmp_path: Path, name: str) -> None:
    mark = tmp_path / "executed"
    payload = pickle.dumps(Bomb(mark))
    plant(on_disk, name, payload)
    assert_damaged(on_disk, name)
    assert on_disk.load(KEY) is None
    plant_partial(on_disk, payload)
    assert on_disk.load_partial(KEY) is None
    assert not mark.exists()
    pickle.loads(payload)
    assert mark.exists(), "unpickling it would have run code"


@pytest.mark.parametrize("content", NOT_TENSORS.values(), ids=NOT_TENSORS)
def test_files_that_are_no_tensors_are_damage(on_disk: LinkStore, content: bytes) -> None:
    plant_partial(on_disk, content)
    assert on_disk.load_partial(KEY) is None
    for name in (STATE, FEATURES):
        plant(on_disk, name, content)
        assert_damaged(on_disk, name)


@pytest.mark.parametrize("content", [b"\x80\x04.", b"[" * 10**5, b"\xff\xfe", b""])
def test_a_record_that_is_no_json_is_damage(on_disk: LinkStore, content: bytes) -> None:
    plant(on_disk, RECORD, content)
    assert_damaged(on_disk, RECORD)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"null", b"[" * 10**5, b"\xff\xfe\x00\x80", b'{"state.safetensors": 7}']
)
@pytest.mark.parametrize("seal", [True, False])
def test_a_broken_manifest_is_damage(
    on_disk: LinkStore, caplog: pytest.LogCaptureFixture, content: bytes, seal: bool
) -> None:
    (on_disk.root / KEY / MANIFEST).write_file(sealed(content, owner(KEY)) if seal else content)
    with pytest.raises(DamagedError, match=MANIFEST):
        on_disk.state(KEY)
    assert on_disk.load(KEY) is None
    assert KEY in caplog.text


@pytest.mark.parametrize("lie", ["../../../victim/state.safetensors", "ABSOLUTE", "../../../victim", "..", "zz", None])
def test_a_manifest_cannot_name_files_elsewhere(filled: LinkStore, tmp_path: Path, lie: str | None) -> None:
    victim = tmp_path / "victim" / STATE
    at(victim).write_file(save({"w": torch.arange(4.0)}))
    lie = str(victim) if lie == "ABSOLUTE" else lie
    hostile = {str(lie): filled.manifest(KEY)[STATE], STATE: lie, FEATURES: lie, RECORD: lie}
    (filled.root / KEY / MANIFEST).write_file(sealed(json.dumps(hostile).encode(), owner(KEY)))
    with pytest.raises(DamagedError):
        filled.state(KEY)
    assert filled.load(KEY) is None
    assert victim.exists()


@pytest.mark.parametrize("key", ["../victim", "../../victim", "ABSOLUTE", "..", ".", ""])
def test_a_key_is_never_a_path(on_disk: LinkStore, tmp_path: Path, key: str) -> None:
    """A damaged link is renamed: a key that is a path would rename what is there."""
    victims = [place / "victim" / "precious" for place in (tmp_path, tmp_path / "results")]
    for victim in victims:
        victim.mkdir(parents=True)
    key = str(tmp_path / "victim") if key == "ABSOLUTE" else key
    for access in (on_disk.load, on_disk.load_partial, on_disk.state, lambda key: on_disk.save_partial(key, epoch(1))):
        with pytest.raises(InputError):
            access(key)
    assert all(victim.is_dir() for victim in victims)
    assert_holds(on_disk)


def test_an_epoch_cannot_name_files_elsewhere(
    on_disk: LinkStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content, victim = save({"w": torch.arange(4.0)}), tmp_path / "stage0-victim"
    plant_partial(on_disk, content)
    assert on_disk.load_partial(KEY) is not None
    for name in ("../../../stage0-victim", str(victim), "stage/../../../../stage0-victim"):
        plant_partial(on_disk, content, name)
        assert on_disk.load_partial(KEY) is None
        assert KEY in caplog.messages[-1]
        assert victim.read_bytes() == content
