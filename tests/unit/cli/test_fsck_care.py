"""`cl2r fsck` removes nothing that is needed or not ours, disturbs no command, and goes on after errors."""

import contextlib
import errno
import os
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cl2r.cli import api
from cl2r.cli.findings import Finding
from cl2r.cli.fsck import DAMAGED, LEFT_BEHIND
from cl2r.cli.storage_check import check_storage
from cl2r.engine.links import LinkStore
from cl2r.errors import InputError
from cl2r.gallery.gallery import Gallery
from cl2r.gallery.indexing import rewritten
from cl2r.gallery.maintenance import verify
from cl2r.storage.path import LocalPath, StoragePath
from cl2r.study.folder import StudyFolder
from tests.support.command_line import Command, quick_options
from tests.support.one_of_each import (
    ALSO_USED,
    BEGUN,
    DAMAGES,
    STUDY,
    USED,
    add_link,
    add_run,
    found,
    only,
)
from tests.support.quick import flip_bit, quick_config
from tests.support.small_study import tree

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_links_that_a_damaged_event_or_result_may_need_are_not_removed(cl2r: Command, storage: LocalPath) -> None:
    for pattern, key in ((DAMAGES["event"], USED), ("runs/run/result.json", ALSO_USED)):
        path = only(storage, pattern)
        content = path.read_bytes()
        flip_bit(path)
        for options in (["--remove-unused"], ["--repair", "--remove-unused"]):
            code, out, _ = cl2r("fsck", storage, *options)
            assert code in (DAMAGED, LEFT_BEHIND)
            assert f"{storage / 'links' / key}: no finished run refers to this link, but " in out
        assert LinkStore(storage).keys() == {USED, ALSO_USED}
        path.write_file(content)
        cl2r("fsck", storage, "--repair")


def test_links_of_a_lost_event_stay_after_any_number_of_repairs(cl2r: Command, storage: LocalPath) -> None:
    flip_bit(only(storage, DAMAGES["event"]))
    for _ in range(3):
        cl2r("fsck", storage, "--repair", "--remove-unused")
    assert USED in LinkStore(storage)
    assert f"{storage / 'studies' / STUDY} has not ended: resume it" in cl2r("fsck", storage)[1]


def test_links_of_a_study_that_was_killed_are_not_removed(cl2r: Command, storage: LocalPath) -> None:
    add_link(storage, "dddd0001")
    killed = StudyFolder(storage, "killed")
    killed.claim_name({"b": 1})
    killed.ledger.write("opened", "driver", {"runs": 3, "resources": {}, "made_by": "cpu1"})
    code, out, _ = cl2r("fsck", storage, "--remove-unused")
    assert (code, "dddd0001" in LinkStore(storage)) == (LEFT_BEHIND, True)
    assert f"{killed.path} has not ended: resume it, or remove its folder" in out


def refused_access(monkeypatch: pytest.MonkeyPatch, forbidden: Path, error: int = errno.EACCES) -> None:
    """Let every look into a file or folder fail, as it does for users without the right to read it."""

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Path, *args: Any, **settings: Any) -> Any:
            if path == forbidden:
                raise OSError(error, os.strerror(error), str(path))
            return original(path, *args, **settings)

        return call

    for name in ("read_bytes", "iterdir", "checksum", "open"):
        monkeypatch.setattr(LocalPath, name, guarded(getattr(LocalPath, name)))


@pytest.mark.parametrize("what", ["studies", "studies/small/ledger", DAMAGES["event"], "runs", "runs/run/result.json"])
def test_links_that_something_unreadable_may_need_are_not_removed(
    cl2r: Command, storage: LocalPath, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    refused_access(monkeypatch, only(storage, what))
    code, out, _ = cl2r("fsck", storage, "--remove-unused")
    assert code == DAMAGED
    assert "Permission denied" in out
    assert LinkStore(storage).keys() == {USED, ALSO_USED}


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("kind", ["link", "epoch", "event", "run", "vectors"])
def test_a_file_that_cannot_be_read_does_not_stop_the_check(
    storage: LocalPath, monkeypatch: pytest.MonkeyPatch, kind: str, error: int
) -> None:
    flip_bit(only(storage, DAMAGES["manifest"]).parent.parent / ALSO_USED / "manifest.json")
    flip_bit(only(storage, DAMAGES["about"]))
    flip_bit(only(storage, DAMAGES["mark"])) if kind != "vectors" else None
    unreadable = only(storage, DAMAGES[kind])
    refused_access(monkeypatch, unreadable, error)
    findings = {str(one.path): one.what for one in check_storage(storage) if one.kind == "damaged"}
    assert str(storage / "links" / ALSO_USED) in findings
    assert kind == "vectors" or str(storage / "galleries" / "mine") in findings
    assert any(os.strerror(error) in what for what in findings.values())


def test_a_folder_that_cannot_be_read_does_not_stop_the_check(
    cl2r: Command, storage: LocalPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_bit(only(storage, DAMAGES["vectors"]))
    (storage / "lost+found").mkdir()
    listed = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name in ("lost+found", "partials"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", refuse)
    code, out, _ = cl2r("fsck", storage)
    assert code == DAMAGED
    for name in ("lost+found", "partials"):
        assert f"damaged: {storage / name}: it cannot be read" in out
    assert f"damaged: {storage / 'galleries' / 'mine'}" in out


def test_unused_links_are_listed_and_removed_only_if_asked(cl2r: Command, storage: LocalPath) -> None:
    add_link(storage, "dddd0001")
    assert found(storage) == [("unused", "links/dddd0001")]
    assert cl2r("fsck", storage, "--repair")[0] == LEFT_BEHIND
    assert cl2r("fsck", storage, "--remove-unused")[0] == 0
    assert LinkStore(storage).keys() == {USED, ALSO_USED}


def test_an_unused_link_with_foreign_files_stays(cl2r: Command, storage: LocalPath) -> None:
    add_link(storage, "dddd0001")
    (storage / "links" / "dddd0001" / "notes.txt").write_file(b"mine")
    assert cl2r("fsck", storage, "--remove-unused", "--repair")[0] == LEFT_BEHIND
    assert (storage / "links" / "dddd0001" / "notes.txt").exists()


@pytest.mark.parametrize("kind", ["link", "epoch"])
def test_what_is_damaged_is_not_set_aside_with_foreign_files(cl2r: Command, storage: LocalPath, kind: str) -> None:
    """What is set aside is removed later."""
    path = only(storage, DAMAGES[kind])
    flip_bit(path)
    (path.parent / "notes.txt").write_bytes(b"mine")
    for _ in range(2):
        assert cl2r("fsck", storage, "--repair")[0] == DAMAGED
    assert (path.parent / "notes.txt").exists()
    (path.parent / "notes.txt").unlink()
    assert cl2r("fsck", storage, "--repair")[0] in (0, LEFT_BEHIND)


@contextlib.contextmanager
def driver(storage: StoragePath) -> Iterator[None]:
    with StudyFolder(storage, STUDY).driver_lock():
        yield


@contextlib.contextmanager
def training(storage: StoragePath) -> Iterator[None]:
    with LinkStore(storage).lock("eeee0001"):
        yield


@contextlib.contextmanager
def running(storage: StoragePath) -> Iterator[None]:
    with LinkStore(storage).in_use(), LinkStore(storage).in_use():  # no run waits for another one
        yield


@pytest.mark.parametrize("work", [driver, training, running])
def test_links_are_not_removed_while_a_command_is_at_work(
    cl2r: Command, storage: LocalPath, work: Callable[[StoragePath], Any]
) -> None:
    """They may be of a run that has not finished."""
    add_link(storage, "dddd0001")
    with work(storage):
        code, out, _ = cl2r("fsck", storage, "--remove-unused", "--repair")
        assert code == LEFT_BEHIND
        assert "at work" in out
    assert "dddd0001" in LinkStore(storage)
    assert USED in LinkStore(storage), "the study's links count as used while its driver is at work"


def test_a_command_that_begins_during_the_check_keeps_the_links(storage: LocalPath) -> None:
    add_link(storage, "dddd0001")
    [unused] = check_storage(storage)
    assert unused.repair is not None
    with training(storage), pytest.raises(InputError, match="at work"):
        unused.repair()
    add_run(storage, "another")
    with pytest.raises(InputError, match="since the check began"):
        unused.repair()
    assert "dddd0001" in LinkStore(storage)


@pytest.mark.parametrize("way", ["command", "API"])
@pytest.mark.parametrize("moment", ["cl2r.engine.chain.Chain.ensure_link", "cl2r.engine.chain.Chain.result", "write"])
def test_a_run_keeps_its_links_until_it_is_written(
    cl2r: Command, tiny: Path, tmp_path: LocalPath, monkeypatch: pytest.MonkeyPatch, moment: str, way: str
) -> None:
    root, told = tmp_path / "runs", list[str]()
    if moment == "write":
        moment = "cl2r.engine.frames.write_run" if way == "command" else "cl2r.cli.api.write_run"
    original = pkgutil.resolve_name(moment)

    def looked(*args: Any) -> Any:
        told.extend(one.what for one in check_storage(root) if one.kind == "unused" or one.repair)
        return original(*args)

    monkeypatch.setattr(moment, looked)
    if way == "command":
        options = quick_options(tiny, optim__epochs=1, optim__milestones="[]")
        assert cl2r("run", *options, "--tasks", 2, "--storage", root)[0] == 0
    else:
        api.run(quick_config(tiny, {"optim": {"epochs": 1, "milestones": []}}), storage=root)
    assert set(told) == {"no finished run refers to this link, but a command is at work"}
    assert found(root) == []


def test_a_study_whose_driver_is_at_work_is_left_alone(cl2r: Command, storage: LocalPath) -> None:
    flip_bit(only(storage, DAMAGES["event"]))
    flip_bit(storage / "studies" / STUDY / "runs.parquet")
    with driver(storage):
        before = tree(storage / "studies")
        assert [one for one in found(storage) if one[0] == "damaged"] == []
        cl2r("fsck", storage, "--repair")
        assert tree(storage / "studies") == before
    assert len([one for one in found(storage) if one[0] == "damaged"]) == 2


def test_a_driver_on_another_machine_is_at_work_too(storage: LocalPath) -> None:
    folder = StudyFolder(storage, STUDY)
    flip_bit(storage / "studies" / STUDY / "runs.parquet")
    folder.ledger.write("opened", "driver", {"runs": 1, "resources": {}, "made_by": "cpu"})
    (folder.path / "driver.lock.holder").write_file(b"process 1 on elsewhere")
    assert found(storage) == []


def test_a_study_is_repaired_under_the_lock_of_its_driver(storage: LocalPath) -> None:
    flip_bit(storage / "studies" / STUDY / "runs.parquet")
    before = tree(storage / "studies")
    [damaged] = check_storage(storage)
    assert damaged.repair is not None
    with driver(storage), pytest.raises(InputError, match="being run by"):
        damaged.repair()
    assert tree(storage / "studies") == before


def test_an_epoch_that_is_being_trained_is_left_alone(storage: LocalPath) -> None:
    only(storage, DAMAGES["epoch"]).unlink()
    with LinkStore(storage).lock(BEGUN):
        assert found(storage) == []
    assert found(storage) == [("damaged", f"partials/{BEGUN}")]


def free_gallery(root: StoragePath) -> list[Finding]:
    """Return what is found as if no command were at work on a gallery."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalPath, "holder", lambda path: None)
        return list(check_storage(root))


def test_shards_that_a_command_is_about_to_commit_stay(cl2r: Command, storage: LocalPath) -> None:
    gallery = Gallery(storage / "galleries" / "mine")
    with gallery.writing():
        old, *others = gallery.commit.shards
        items, vectors = gallery.shards.items(old).iloc[:1], gallery.shards.vectors(old)[:1]
        made = rewritten(gallery, old, items, old.version, vectors)
        assert found(storage) == []
        assert cl2r("fsck", storage, "--repair")[0] == 0
        left = [one for one in free_gallery(storage) if one.repair]
        with pytest.raises(InputError, match="at work"):
            left[0].repair()
        gallery.change({}, [*others, made], "the command ends")
    assert [str(one.path) for one in left] == [str(gallery.shards.folder / made.name)]
    left[0].repair()
    assert verify(Gallery(gallery.root), prune=False) == [], "what has been committed since it was found stays too"


def test_a_repair_that_fails_is_told_and_the_others_go_on(
    cl2r: Command, storage: LocalPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("link", "frame"):
        flip_bit(only(storage, DAMAGES[kind]))

    def refuse(path: LocalPath, target: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(LocalPath, "rename", refuse)
    code, out, _ = cl2r("fsck", storage, "--repair")
    assert code == DAMAGED
    assert out.count("; not repaired: ") == 2
    assert "; repaired" not in out


def test_a_folder_that_cannot_be_removed_is_not_repaired(
    cl2r: Command, storage: LocalPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    unwritten = storage / "links" / "cccc0001" / "0000000000000000-state.safetensors"
    unwritten.write_file(b"half")

    def refuse(path: object, **settings: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        code, out, _ = cl2r("fsck", storage, "--repair")
    assert (code, unwritten.exists()) == (LEFT_BEHIND, True)
    assert "; not repaired: " in out
    assert "; repaired" not in out
