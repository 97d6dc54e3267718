"""`cl2r fsck`: what it finds below a storage, its exit codes, and what is left after repairs."""

import contextlib
import json
import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch

from cl2r.cli.fsck import DAMAGED, LEFT_BEHIND, RUN_FILES, check_storage
from cl2r.engine.links import Link, LinkStore, Partial
from cl2r.gallery.model import CARD, STATE
from cl2r.rayrun.optuna_source import open_journal
from cl2r.storage import seal
from cl2r.storage.leftovers import DAY
from cl2r.storage.path import ASIDE, LocalPath, StoragePath, at
from cl2r.storage.seal import run_owner, seal_path, write_beside
from cl2r.study.folder import StudyFolder
from cl2r.study.frames import write_frames
from tests.support.command_line import Command
from tests.support.galleries import filled, made_version
from tests.support.object_server import upload
from tests.support.quick import flip_bit
from tests.support.small_study import tree

USED, ALSO_USED, BEGUN = "aaaa0001", "aaaa0002", "bbbb0001"
"""Keys of a link of the study, of a link of the run, and of a link that is being trained."""
STUDY = "small"
Files = dict[str, bytes]


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No pauses, and a temporary directory without the leftovers of others."""
    monkeypatch.setattr(seal, "PAUSE_SECONDS", 0)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


@pytest.fixture
def storage(tmp_path: LocalPath) -> LocalPath:
    """A sound storage with one of everything."""
    root = tmp_path / "storage"
    for key in (USED, ALSO_USED):
        add_link(root, key)
    add_study(root)
    add_run(root)
    LinkStore(root).save_partial(BEGUN, Partial(0, 1, {"x": torch.zeros(2)}, {}))
    filled(root / "galleries" / "mine", made_version(1), made_version(2))
    return root


def add_link(root: StoragePath, key: str) -> None:
    numbers = torch.full((2,), float(int(key, 16)))
    LinkStore(root).save(key, Link({"x": numbers}, {"open": numbers}, {"key": key}))


def add_study(root: StoragePath) -> StudyFolder:
    """Record a study of one run whose only link is USED."""
    folder = StudyFolder(root, STUDY)
    folder.claim_name({"a": 1})
    folder.ledger.write("opened", "driver", {"runs": 1, "resources": {}, "made_by": "cpu"})
    frames: dict[str, Any] = {"runs": [{"run": "r", "AC": 0.5}], "tasks": [{"run": "r", "task": 1, "key": USED}]}
    frames["tasks"][0]["reused"] = False
    entry = {"trial": None, "variant": None, "config": {"seed": 0}, "frames": frames}
    folder.ledger.write("finished", "r", entry)
    folder.write_about({}, 1)
    folder.ledger.write("closed", "driver", {"finished": 1})
    write_frames(folder)
    if not root.remote:
        study = optuna.create_study(storage=open_journal(folder), study_name="s")
        study.tell(study.ask(), 1.0)
    return folder


def add_run(root: StoragePath, name: str = "run") -> None:
    for file in sorted(RUN_FILES):
        content = json.dumps({"links": [{"key": ALSO_USED}]}).encode() if file == "result.json" else b"content"
        write_beside(root / "runs" / name / file, content, run_owner(name, file))


def found(root: StoragePath) -> list[tuple[str, str]]:
    """Return kind and path of what is found, its path from the storage on."""
    return [(one.kind, str(one.path).partition("?")[0].removeprefix(f"{plain(root)}/")) for one in check_storage(root)]


def plain(path: StoragePath) -> str:
    return str(path).partition("?")[0]


def only(root: LocalPath, pattern: str) -> LocalPath:
    """Return the only file that fits, or the first of two shards."""
    path, *others = root.list(pattern)
    assert not others or "shards" in pattern
    return path


def age(path: Path) -> None:
    """Make it, and what it holds, two days old."""
    for one in [path, *path.rglob("*")]:
        os.utime(one, (time.time() - 2 * DAY,) * 2)


def test_a_sound_storage_is_code_0_and_nothing_is_changed(cl2r: Command, storage: LocalPath) -> None:
    before = tree(storage)
    code, out, err = cl2r("fsck", storage)
    assert (code, out, err) == (0, f"{storage}: all is sound\n", "")
    assert cl2r("fsck", storage, "--repair", "--remove-unused")[0] == 0
    assert tree(storage) == before
    assert json.loads(cl2r("fsck", storage, "--json")[1]) == {"storage": str(storage), "findings": [], "left": 0}


def test_a_storage_that_does_not_exist_is_bad_input(cl2r: Command, tmp_path: Path) -> None:
    code, _, err = cl2r("fsck", tmp_path / "nowhere")
    assert code == 2
    assert "nowhere" in err


DAMAGES = {
    "link": f"links/{USED}/*-state.safetensors",
    "manifest": f"links/{USED}/manifest.json",
    "event": f"studies/{STUDY}/ledger/*.finished.*.json",
    "study.yaml": f"studies/{STUDY}/study.yaml",
    "frame": f"studies/{STUDY}/runs.parquet",
    "seal of a frame": f"studies/{STUDY}/tasks.parquet.seal",
    "about": f"studies/{STUDY}/about.json",
    "journal": f"studies/{STUDY}/optuna.journal",
    "epoch": f"partials/{BEGUN}/stage*.safetensors",
    "record of an epoch": f"partials/{BEGUN}/partial.json",
    "run": "runs/run/matrix.parquet",
    "vectors": "galleries/mine/shards/*/vectors.npy",
    "older commit": "galleries/mine/commits/00000001.json",
    "mark": "galleries/mine/gallery.json",
}
NOT_REPAIRED = {"study.yaml", "run", "vectors", "mark"}  # the commands that wrote them do that, or a copy


@pytest.mark.parametrize("kind", DAMAGES)
def test_what_is_damaged_is_code_5_and_named(cl2r: Command, storage: LocalPath, kind: str) -> None:
    path = only(storage, DAMAGES[kind])
    flip_bit(path)
    before = tree(storage)
    code, out, _ = cl2r("fsck", storage)
    assert code == DAMAGED
    damaged = [line for line in out.splitlines() if line.startswith("damaged: ")]
    assert len(damaged) == 1
    named = path.name.removesuffix(".seal")
    assert str(path.parent / named) in damaged[0] or f"damaged: {path.parent}:" in damaged[0]
    assert tree(storage) == before, "nothing is changed unless asked"

    code, out, _ = cl2r("fsck", storage, "--repair")
    assert ("; repaired" in out) == (kind not in NOT_REPAIRED)
    assert (code == DAMAGED) == (kind in NOT_REPAIRED)
    if kind not in NOT_REPAIRED:
        kinds = {one for one, _ in found(storage)}
        assert kinds <= {"left behind", "unused"}, "what was damaged is only set aside"
        assert "left behind" in kinds
        cl2r("fsck", storage, "--repair", "--remove-unused")
        assert found(storage) == ([("unused", f"links/{USED}")] if kind == "event" else [])


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


def test_a_link_that_was_set_aside_is_gone_but_not_removed(cl2r: Command, storage: LocalPath) -> None:
    flip_bit(only(storage, DAMAGES["link"]))
    age(storage / "links" / USED)
    assert cl2r("fsck", storage, "--repair")[0] == 0, "what is set aside now is listed next time"
    aside = only(storage, f"links/{ASIDE}{USED}.*")
    assert (aside / "manifest.json").exists()
    code, out, _ = cl2r("fsck", storage)
    assert (code, str(aside) in out) == (LEFT_BEHIND, True)
    assert "bytes" in out
    assert cl2r("fsck", storage, "--repair")[0] == 0
    assert not aside.exists()


@pytest.mark.parametrize("name", ["runs.parquet", "tasks.parquet"])
@pytest.mark.parametrize("way", ["damaged", "missing"])
def test_frames_are_made_again_from_the_ledger(cl2r: Command, storage: LocalPath, name: str, way: str) -> None:
    path = storage / "studies" / STUDY / name
    before = path.read_bytes()
    flip_bit(path) if way == "damaged" else path.unlink()
    assert cl2r("fsck", storage)[0] == DAMAGED
    assert cl2r("fsck", storage, "--repair")[0] == 0
    assert path.read_bytes() == before


def test_frames_are_not_made_from_a_ledger_with_a_damaged_event(cl2r: Command, storage: LocalPath) -> None:
    """They would lack its run without a word."""
    flip_bit(only(storage, DAMAGES["event"]))
    flip_bit(storage / "studies" / STUDY / "runs.parquet")
    cl2r("fsck", storage, "--repair")
    assert not (storage / "studies" / STUDY / "runs.parquet").exists()


@pytest.mark.parametrize("file", sorted(RUN_FILES))
@pytest.mark.parametrize("lost", ["", ".seal"])
def test_a_missing_file_of_a_run_or_its_seal_is_damage(storage: LocalPath, file: str, lost: str) -> None:
    (storage / "runs" / "run" / f"{file}{lost}").unlink()
    findings = [one for one in found(storage) if one[0] == "damaged"]
    assert findings == [("damaged", f"runs/run/{file}")]


def test_a_run_in_the_folder_of_another_is_damage(storage: LocalPath) -> None:
    (storage / "runs" / "run").rename(storage / "runs" / "renamed")
    assert {path for kind, path in found(storage) if kind == "damaged"} == {f"runs/renamed/{f}" for f in RUN_FILES}


def test_a_gallery_without_its_mark_and_exports_are_found(storage: LocalPath) -> None:
    (storage / "galleries" / "mine" / "gallery.json").unlink()
    (storage / "given" / STATE.format(1)).write_file(b"no tensors")
    assert found(storage) == [("damaged", "galleries/mine"), ("damaged", "given")]
    (storage / "given" / CARD).write_file(b"{}")
    assert ("damaged", "given") in found(storage)


FOREIGN = {
    "links/notes.txt": "links/notes.txt",
    "links/old backup/manifest.json": "links/old backup",
    "partials/notes.txt": "partials/notes.txt",
    "studies/mine/notes.txt": "studies/mine",
    "runs/mine/notes.txt": "runs/mine",
    "studies/x.json": "studies/x.json",
    "runs/x.json": "runs/x.json",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files_are_code_6_and_stay(cl2r: Command, storage: LocalPath, name: str) -> None:
    (storage / name).write_file(b"mine")
    assert found(storage) == [("foreign", FOREIGN[name])]
    assert cl2r("fsck", storage, "--repair", "--remove-unused")[0] == LEFT_BEHIND
    assert (storage / name).exists()


def test_what_killed_processes_left_is_code_6_and_removed(cl2r: Command, storage: LocalPath) -> None:
    half = storage / "studies" / STUDY / "ledger" / f".1.json.{'0' * 32}"
    attempt = storage / "links" / USED / "0000000000000000-state.safetensors"
    unwritten = storage / "links" / "cccc0001" / "0000000000000000-state.safetensors"
    fresh = storage / "runs" / f".x.{'1' * 32}"
    for path in (half, attempt, unwritten, fresh):
        path.write_file(b"half")
    age(half)
    (storage / "partials" / USED).parent.mkdir(exist_ok=True)
    LinkStore(storage).save_partial(USED, Partial(0, 1, {"x": torch.zeros(2)}, {}))
    names = {str(path.relative_to(storage)) for path in (half, attempt, unwritten.parent, storage / "partials" / USED)}
    assert {one for one in found(storage)} == {("left behind", name) for name in names}
    assert cl2r("fsck", storage)[0] == LEFT_BEHIND
    assert cl2r("fsck", storage, "--repair")[0] == 0
    assert found(storage) == []
    assert fresh.exists(), "its writer may be at work"


def test_unused_links_are_listed_and_removed_only_if_asked(cl2r: Command, storage: LocalPath) -> None:
    add_link(storage, "dddd0001")
    assert found(storage) == [("unused", "links/dddd0001")]
    assert cl2r("fsck", storage, "--repair")[0] == LEFT_BEHIND
    assert cl2r("fsck", storage, "--remove-unused")[0] == 0
    assert LinkStore(storage).keys() == {USED, ALSO_USED}


@contextlib.contextmanager
def driver(storage: StoragePath) -> Iterator[None]:
    with StudyFolder(storage, STUDY).driver_lock():
        yield


@contextlib.contextmanager
def training(storage: StoragePath) -> Iterator[None]:
    with LinkStore(storage).lock("eeee0001"):
        yield


@pytest.mark.parametrize("work", [driver, training])
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


def test_a_study_whose_driver_is_at_work_is_left_alone(cl2r: Command, storage: LocalPath) -> None:
    flip_bit(only(storage, DAMAGES["event"]))
    flip_bit(storage / "studies" / STUDY / "runs.parquet")
    with driver(storage):
        before = tree(storage / "studies")
        assert [one for one in found(storage) if one[0] == "damaged"] == []
        cl2r("fsck", storage, "--repair")
        assert tree(storage / "studies") == before
    assert len([one for one in found(storage) if one[0] == "damaged"]) == 2


def test_an_epoch_that_is_being_trained_is_left_alone(storage: LocalPath) -> None:
    only(storage, DAMAGES["epoch"]).unlink()
    with LinkStore(storage).lock(BEGUN):
        assert found(storage) == []
    assert found(storage) == [("damaged", f"partials/{BEGUN}")]


def test_json_has_every_finding_and_what_is_left(cl2r: Command, storage: LocalPath) -> None:
    flip_bit(only(storage, DAMAGES["link"]))
    flip_bit(only(storage, DAMAGES["run"]))
    code, out, err = cl2r("fsck", storage, "--json", "--repair")
    assert (code, err) == (DAMAGED, "")
    told = json.loads(out)
    assert told["left"] == 1
    by_path = {entry["path"]: entry for entry in told["findings"]}
    link, file = storage / "links" / USED, storage / "runs" / "run" / "matrix.parquet"
    assert by_path.keys() == {str(link), str(file)}
    assert by_path[str(link)]["repaired"] is True
    assert by_path[str(file)]["repaired"] is False
    assert by_path[str(link)]["kind"] == "damaged"
    assert by_path[str(link)]["bytes"] > 0
    assert "checksum" in by_path[str(link)]["what"]


def test_a_file_that_cannot_be_read_does_not_stop_the_check(
    storage: LocalPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: LocalPath) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(LocalPath, "checksum", refuse)
    findings = {one.path.name: one.what for one in check_storage(storage) if one.kind == "damaged"}
    assert {USED, ALSO_USED} <= findings.keys()
    assert "Permission denied" in findings[USED]


def test_an_object_store_is_checked_and_repaired(cl2r: Command, storage: LocalPath, remote: StoragePath) -> None:
    upload(storage / "links", remote / "links")
    upload(storage / "runs", remote / "runs")
    upload(storage / "galleries", remote / "galleries")
    add_study(remote)
    assert found(remote) == []
    event = next(path for path in (remote / "studies" / STUDY / "ledger").list("*.finished.*.json"))
    frame, link = remote / "studies" / STUDY / "runs.parquet", next(iter((remote / "links" / USED).list("*-state*")))
    whole = frame.read_bytes()
    for path in (link, frame):
        path.write_file(b"x" + path.read_bytes())
    assert cl2r("fsck", remote)[0] == DAMAGED
    code, out, _ = cl2r("fsck", remote, "--repair")
    assert code == 0, out
    assert frame.read_bytes() == whole
    assert USED not in LinkStore(remote)
    event.write_file(b"{}")
    assert ("damaged", f"studies/{STUDY}/ledger/{event.name}") in found(remote)
    assert cl2r("fsck", remote, "--repair")[0] == 0, "it also removes what was set aside before"
    assert {kind for kind, _ in found(remote)} == {"left behind"}
    assert cl2r("fsck", remote, "--repair")[0] == 0
    assert found(remote) == []
    (remote / "links" / ALSO_USED / "manifest.json").unlink()
    assert found(remote) == [("left behind", f"links/{ALSO_USED}")]


def test_a_thousand_links_need_no_more_memory_than_a_hundred(tmp_path: Path) -> None:
    """Every link is read in pieces and forgotten; only the names of what is there are kept."""

    def peak(count: int) -> int:
        root, monkey = at(tmp_path / str(count)), pytest.MonkeyPatch()
        with monkey.context() as patch:
            patch.setattr("os.fsync", lambda _: None)
            for number in range(count):
                add_link(root, f"{number:08x}")
        tracemalloc.start()
        listed = sum(one.kind == "unused" for one in check_storage(root))
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert listed == count
        return highest

    peak(10)  # imports
    few, many = peak(100), peak(1000)
    assert many - few < 900 * 2000, "less than a link's own bytes for each"


def test_lines_that_another_program_added_to_a_journal_are_found(storage: LocalPath) -> None:
    journal = storage / "studies" / STUDY / "optuna.journal"
    journal.write_bytes(journal.read_bytes() + b"{}\n")
    assert found(storage) == [("damaged", f"studies/{STUDY}/optuna.journal")]


def test_the_seal_of_a_journal_is_set_aside_with_it(cl2r: Command, storage: LocalPath) -> None:
    folder = StudyFolder(storage, STUDY)
    flip_bit(storage / "studies" / STUDY / "optuna.journal")
    assert cl2r("fsck", storage, "--repair")[0] == 0
    assert not folder.journal.exists()
    assert not seal_path(folder.journal).exists()
