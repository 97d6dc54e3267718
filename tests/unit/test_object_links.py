"""Links in an object store: whole or not there, whatever is cut off and whoever else writes."""

import itertools
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from cl2r.engine.store import FEATURES, MANIFEST, RECORD, STATE, DamagedError, LinkStore, Partial, check_writable
from cl2r.errors import InputError
from cl2r.objects import ObjectPath

KEY = "0123abcd"
FILES = 4


class CutError(BaseException):
    """The process dies here."""


def link(number: float = 1.0) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, Any]]:
    return {"w": torch.full((3,), number)}, {"open": torch.full((2, 2), number)}, {"seconds": number}


def whole(store: LinkStore, number: float = 1.0) -> bool:
    parts = float(store.state(KEY)["w"][0]), float(store.features(KEY)["open"][0, 0]), store.record(KEY)["seconds"]
    return store.has(KEY) and parts == (number, number, number)


def cut_after(puts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies after so many objects."""
    count, write = itertools.count(), ObjectPath.write_bytes

    def cut(path: ObjectPath, content: bytes) -> None:
        if next(count) >= puts:
            raise CutError
        write(path, content)

    monkeypatch.setattr(ObjectPath, "write_bytes", cut)


@pytest.fixture
def warned() -> list[str]:
    return []


@pytest.fixture
def store(remote: ObjectPath, warned: list[str]) -> LinkStore:
    return LinkStore(remote, warned.append)


def fresh(store: LinkStore) -> LinkStore:
    """As another process sees it."""
    return LinkStore(store.root.parent, store.warn)


def test_a_link_round_trips(store: LinkStore, warned: list[str]) -> None:
    assert not store.has(KEY)
    assert not store.present(KEY)
    store.save(KEY, *link())
    assert whole(fresh(store))
    assert store.present(KEY)
    assert (store.keys(), store.among([KEY, "other"])) == ({KEY}, {KEY})
    assert warned == []


@pytest.mark.parametrize("puts", range(FILES))
def test_a_link_that_was_cut_off_is_not_there(
    store: LinkStore, warned: list[str], monkeypatch: pytest.MonkeyPatch, puts: int
) -> None:
    with monkeypatch.context() as patch:
        cut_after(puts, patch)
        with pytest.raises(CutError):
            store.save(KEY, *link(1.0))
    assert not fresh(store).has(KEY)
    assert fresh(store).keys() == set()
    store.save(KEY, *link(2.0))
    assert whole(fresh(store), 2.0)
    assert warned == []


def test_the_first_to_finish_wins(store: LinkStore) -> None:
    store.save(KEY, *link(1.0))
    fresh(store).save(KEY, *link(2.0))
    assert whole(fresh(store), 1.0)


@pytest.mark.parametrize("order", sorted(set(itertools.permutations([0] * FILES + [1] * FILES)))[::7])
def test_two_writers_never_mix(store: LinkStore, monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...]) -> None:
    """Two processes write one link object by object, in a prescribed order; one of the two is there, whole."""
    turns, turn, done = list(order), threading.Condition(), [False, False]
    write, numbers = ObjectPath.write_bytes, threading.local()

    def in_turn(path: ObjectPath, content: bytes) -> None:
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
        fresh(store).save(KEY, *link(float(me)))
        with turn:
            done[me] = True
            turn.notify_all()

    monkeypatch.setattr(ObjectPath, "write_bytes", in_turn)
    writers = [threading.Thread(target=run, args=[me], daemon=True) for me in (0, 1)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert done == [True, True]
    found = fresh(store)
    assert whole(found, found.record(KEY)["seconds"])


@pytest.mark.parametrize("name", [STATE, FEATURES, RECORD])
@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:9] + bytes([b[9] ^ 1]) + b[10:], lambda b: None])
def test_a_damaged_link_is_reported_and_written_again(
    store: LinkStore, warned: list[str], name: str, damage: Any
) -> None:
    store.save(KEY, *link())
    (path,) = (store.root / KEY).glob(f"*-{name}")
    broken = damage(path.read_bytes())
    path.unlink() if broken is None else path.write_bytes(broken)
    with pytest.raises(DamagedError):
        {STATE: fresh(store).state, FEATURES: fresh(store).features, RECORD: fresh(store).record}[name](KEY)
    assert not fresh(store).has(KEY)
    assert len(warned) == 1
    assert warned[0].startswith(f"link {KEY} is damaged ({name}")
    store.save(KEY, *link())
    assert whole(fresh(store))


@pytest.mark.parametrize("digest", ["../../../x", "zz", 7, None, "/etc/passwd"])
def test_a_manifest_cannot_lead_elsewhere(store: LinkStore, digest: object) -> None:
    store.save(KEY, *link())
    (store.root / KEY / MANIFEST).write_bytes(json.dumps({STATE: digest, FEATURES: digest, RECORD: digest}).encode())
    with pytest.raises(DamagedError):
        fresh(store).state(KEY)


def test_a_store_may_be_copied_to_a_disk_and_back(store: LinkStore, tmp_path: Path, remote: ObjectPath) -> None:
    store.save(KEY, *link())
    for name in remote.below():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((remote / name).read_bytes())
    assert whole(LinkStore(tmp_path, print))
    local = LinkStore(tmp_path / "other", print)
    local.save("ffff", *link(3.0))
    (remote / "links").upload(tmp_path / "other" / "links")
    assert fresh(store).has("ffff")
    shutil.rmtree(tmp_path / "other")


def test_what_was_read_is_read_once(store: LinkStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(KEY, *link())
    reader, read, names = fresh(store), ObjectPath.read_bytes, list[str]()
    monkeypatch.setattr(ObjectPath, "read_bytes", lambda path: names.append(path.name) or read(path))
    assert whole(reader)
    assert whole(reader)
    assert len([name for name in names if name != MANIFEST]) == 3
    monkeypatch.setattr("cl2r.engine.store.RECALLED_BYTES", 0)
    assert whole(fresh(store))


def epoch(number: int) -> Partial:
    return Partial(0, number, {"w": torch.full((3,), float(number))}, {"seconds": number})


def test_epochs_replace_each_other(store: LinkStore) -> None:
    assert store.partial(KEY) is None
    for number in (1, 2, 3):
        store.save_partial(KEY, epoch(number))
        found = fresh(store).partial(KEY)
        assert found is not None
        assert (found.epoch, float(found.tensors["w"][0])) == (number, number)
    assert len((store.partials / KEY).below()) == 2  # type: ignore[union-attr]
    store.save(KEY, *link())
    assert store.partial(KEY) is None


@pytest.mark.parametrize("puts", [0, 1])
def test_an_epoch_that_was_cut_off_leaves_the_one_before(
    store: LinkStore, warned: list[str], monkeypatch: pytest.MonkeyPatch, puts: int
) -> None:
    store.save_partial(KEY, epoch(1))
    with monkeypatch.context() as patch:
        cut_after(puts, patch)
        with pytest.raises(CutError):
            store.save_partial(KEY, epoch(2))
    found = fresh(store).partial(KEY)
    assert found is not None
    assert found.epoch == 1
    assert warned == []


def test_a_bucket_that_is_not_there_is_refused(remote: ObjectPath) -> None:
    check_writable(remote)
    assert remote.below() == []
    with pytest.raises(InputError, match=r"cannot write to s3://nowhere/x\?.*bucket does not exist"):
        check_writable(ObjectPath(f"s3://nowhere/x{remote.query}"))
