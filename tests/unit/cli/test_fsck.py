"""`cl2r fsck`: what it finds below a storage, its exit codes, and what is left after repairs."""

import itertools
import json
import os
import tempfile
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from analysis.study import SEARCH_FRAMES
from cl2r.cli.fsck import DAMAGED, LEFT_BEHIND
from cl2r.cli.storage_check import RUN_FILES, check_storage
from cl2r.engine.links import LinkStore, Partial
from cl2r.gallery.index import IndexOptions, build_indexes
from cl2r.gallery.model import CARD, STATE
from cl2r.rayrun.optuna_journal import open_journal
from cl2r.storage.leftovers import DAY
from cl2r.storage.path import ASIDE, LocalPath, ObjectPath, StoragePath, at
from cl2r.storage.seal import seal_path, write_beside
from cl2r.study.folder import StudyFolder
from tests.support.command_line import Command, refused
from tests.support.galleries import add_vectors, filled, made_version, unit_rows
from tests.support.object_server import upload
from tests.support.one_of_each import ALSO_USED, BEGUN, DAMAGES, STUDY, USED, add_link, add_study, age, found, only
from tests.support.quick import flip_bit
from tests.support.small_study import tree

pytestmark = pytest.mark.usefixtures("elsewhere")


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


@pytest.mark.parametrize("name", ["search/backfill.parquet", "paper.json"])
def test_what_only_the_command_can_write_again_is_damage_until_it_has(storage: LocalPath, name: str) -> None:
    folder = StudyFolder(storage, STUDY)
    for part in ("paper.json", *(f"search/{frame}.parquet" for frame in SEARCH_FRAMES)):
        write_beside(storage / "studies" / STUDY / part, b"content", folder.owner(part))
    assert found(storage) == []
    path = storage / "studies" / STUDY / name
    path.unlink()
    assert found(storage) == [("damaged", f"studies/{STUDY}/{name}")]
    write_beside(path, b"content", folder.owner(name))
    assert found(storage) == []


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


FOREIGN: dict[str, str | None] = {
    "links/notes.txt": "links/notes.txt",
    "links/old backup/manifest.json": "links/old backup",
    "partials/notes.txt": "partials/notes.txt",
    "studies/mine/notes.txt": "studies/mine",
    "runs/mine/notes.txt": "runs/mine",
    "studies/x.json": "studies/x.json",
    "runs/x.json": "runs/x.json",
    "links/backup/thesis.txt": "links/backup",
    "links/backup/aaaa0001/manifest.json": "links/backup",
    "links/backup/.git/config": "links/backup",
    f"links/{USED}/notes.txt": f"links/{USED}/notes.txt",
    f"links/{USED}/mine/notes.txt": f"links/{USED}/mine",
    "partials/old/thesis.txt": "partials/old/thesis.txt",
    f"partials/{BEGUN}/notes.txt": f"partials/{BEGUN}/notes.txt",
    **dict.fromkeys(
        [
            f"links/{USED}/._manifest.json",
            f"studies/{STUDY}/ledger/x.json",
            f"studies/{STUDY}/ledger/._00000000000000000001.closed.driver.0123abcd.json",
            f"studies/{STUDY}/notes.txt",
            f"studies/{STUDY}/._study.yaml",
            f"studies/{STUDY}/live/x.json",
            f"studies/{STUDY}/live/notes.txt",
            f"studies/{STUDY}/ray",
            "studies/._x",
            "runs/run/notes.txt",
            "runs/._x",
            "claims/notes.txt",
            "claims/notes.json",
            "galleries/mine/x.txt",
            "galleries/mine/._x",
            "galleries/mine/shards/._x",
            "galleries/mine/shards/x.txt",
            "galleries/mine/index/zz.faiss",
            "galleries/mine/commits/x.json",
            "galleries/mine/claims/x.json",
        ]
    ),
    "studies/.x/study.yaml": "studies/.x",
    "galleries/mine/photos/a.png": "galleries/mine/photos",
    "galleries/mine/shards/photos/a.png": "galleries/mine/shards/photos",
}


def test_a_foreign_file_in_a_shard_is_listed(storage: LocalPath) -> None:
    shard = only(storage, "galleries/mine/shards/*")
    (shard / "notes.txt").write_file(b"mine")
    assert found(storage) == [("foreign", str((shard / "notes.txt").relative_to(storage)))]


def test_what_commands_write_is_not_foreign(storage: LocalPath) -> None:
    """Also what only some commands write, and what is there while they are at work."""
    study, hexes = storage / "studies" / STUDY, "0123456789abcdef" * 2
    names = ["report.html", "recommended.yaml", "figures/a.pdf", "tensorboard/r/events", "wandb/x", "search/x.md"]
    names += ["driver.lock", "driver.lock.holder", f"driver.lock.{hexes}.json", "optuna.journal.lock"]
    for name in names:
        (study / name).write_file(b"")
    for name in ("aaaa0001", f"run-{hexes}"):
        for end in ("", ".holder", f".{hexes}.json"):
            (storage / "claims" / f"{name}{end}").write_file(b"")
    for end in ("", ".holder", f".{hexes}.json"):
        (storage / "galleries" / "mine" / "claims" / f"write{end}").write_file(b"")
    assert found(storage) == []


PROGRESS = {"task": 1, "tasks": 2, "epoch": 1, "epochs": 2, "images_per_second": 1.0, "loss": 1.0, "seconds_left": 1.0}


def test_what_a_driver_that_was_killed_left_in_its_study_is_removed(cl2r: Command, storage: LocalPath) -> None:
    study = storage / "studies" / STUDY
    row = study / "live" / "r.json"
    row.write_file(json.dumps({"title": "r", "progress": PROGRESS}).encode())
    (study / "ray" / "tune" / "x").write_file(b"x")
    (study / "stop").write_file(b"")
    left = [("left behind", f"studies/{STUDY}/{name}") for name in ("live/r.json", "ray", "stop")]
    with StudyFolder(storage, STUDY).driver_lock():
        assert found(storage) == []
    assert found(storage) == left
    age(row)
    assert cl2r("fsck", storage, "--repair")[0] == 0
    assert found(storage) == []


def test_a_name_can_neither_forge_a_line_nor_end_the_check(cl2r: Command, storage: LocalPath) -> None:
    for name in (b"a\nfsck: all is sound", b"\x1b[2J", b"\xff"):
        (storage / "links" / os.fsdecode(name)).write_file(b"mine")
    code, out, _ = cl2r("fsck", storage)
    assert code == LEFT_BEHIND
    lines = out.splitlines()
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)
    out.encode("utf-8", "strict")


def test_a_pipe_in_place_of_an_event_ends_no_check(storage: LocalPath) -> None:
    event = only(storage, DAMAGES["event"])
    event.unlink()
    os.mkfifo(event)
    assert ("damaged", str(event.relative_to(storage))) in found(storage)


def test_a_link_of_an_object_store_is_listed_once(remote: StoragePath, monkeypatch: pytest.MonkeyPatch) -> None:
    """One listing, the manifest and its size, three files: every look at a name more would be a request more."""
    calls, real = list[str](), ObjectPath.files.fget

    class Counted:
        def __init__(self, files: Any) -> None:
            self.files = files

        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(self.files, name)

    numbers = []
    monkeypatch.setattr(ObjectPath, "files", property(lambda path: Counted(real(path))))
    for key in ("eeee0001", "eeee0002", "eeee0003"):
        add_link(remote, key)
        calls.clear()
        assert {kind for kind, _ in found(remote)} == {"unused"}
        numbers.append(len(calls))
    assert [later - before for before, later in itertools.pairwise(numbers)] == [6, 6]


def test_findings_of_links_come_in_their_order(remote: StoragePath) -> None:
    keys = [f"{number:08x}" for number in range(70)]
    for key in keys:
        (remote / "links" / key / "notes.txt").write_file(b"")
    assert found(remote) == [("foreign", f"links/{key}") for key in keys]


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files_are_code_6_and_stay(cl2r: Command, storage: LocalPath, name: str) -> None:
    (storage / name).write_file(b"mine")
    assert found(storage) == [("foreign", FOREIGN[name] or name)]
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


@pytest.mark.parametrize("name", ["stage0-epoch0001-01234567.safetensors", f".partial.json.{'0' * 32}", ""])
def test_an_epoch_that_was_not_written_whole_is_left_behind(cl2r: Command, storage: LocalPath, name: str) -> None:
    """Its writer was killed before it had saved anything else of this task."""
    folder = storage / "partials" / "cccc0001"
    folder.mkdir()
    if name:
        (folder / name).write_file(b"half")
    with LinkStore(storage).lock(folder.name):
        assert found(storage) == []
    assert found(storage) == [("left behind", "partials/cccc0001")]
    assert cl2r("fsck", storage, "--repair")[0] == 0
    assert not folder.exists()


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


def test_only_what_was_set_aside_is_removed_from_an_object_store(cl2r: Command, remote: StoragePath) -> None:
    mine = ["notes.aside.txt", f"photos/.aside.x.{'0' * 32}", "runs/.aside.x", f"links/x.aside.y.{'0' * 32}/z"]
    ours = [f"links/{ASIDE}x.{'0' * 32}/a", f"links/{ASIDE}x.{'0' * 32}/b", f"studies/x/{ASIDE}y.{'1' * 32}"]
    for name in (*mine, *ours):
        (remote / name).write_file(b"content")
    left = {path for kind, path in found(remote) if kind == "left behind"}
    assert left == {ours[0].removesuffix("/a"), ours[2]}
    cl2r("fsck", remote, "--repair")
    assert {entry.path for entry in remote.walk_files()} == set(mine)


@pytest.fixture
def days_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written in this test counts as old; the store has no way to change its times."""
    monkeypatch.setattr("cl2r.storage.leftovers.time", SimpleNamespace(time=lambda: time.time() + 2 * DAY))


@pytest.mark.usefixtures("days_later")
def test_what_killed_processes_left_in_an_object_store_is_removed(
    cl2r: Command, remote: StoragePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    hexes = "0123456789abcdef" * 2
    left = [f"runs/.probe-{hexes}", f"claims/aaaa0001.{hexes}.json", f"claims/run-{hexes}.{hexes}.json"]
    left += [f"studies/{STUDY}/driver.lock.{hexes}.json"]
    others = [f"links/.git/.x.{hexes}", f"runs/x.{hexes}.json", "claims/notes.json", f"links/.probe-{hexes[1:]}"]
    for name in (*left, *others):
        (remote / name).write_file(b"{}")
    folder = LocalPath(tempfile.gettempdir()) / "cl2r-1-00000000-abc"
    (folder / "file").write_file(b"half")
    listed = [path for kind, path in found(remote) if kind == "left behind"]
    assert sorted(listed) == sorted([*left, str(folder)])
    cl2r("fsck", remote, "--repair")
    assert {entry.path for entry in remote.walk_files()} == set(others)
    assert not folder.exists()


def test_what_was_just_written_to_an_object_store_is_not_listed(remote: StoragePath) -> None:
    with LinkStore(remote).in_use():
        (remote / "runs" / f".probe-{'0' * 32}").write_file(b"")
        assert found(remote) == []


@pytest.mark.parametrize("where", ["storage", "remote"])
def test_a_shard_without_its_manifest_is_removed(cl2r: Command, request: pytest.FixtureRequest, where: str) -> None:
    """In an object store this is what a process leaves that is killed while it writes a shard."""
    root = request.getfixturevalue(where)
    gallery = filled(root / "gallery", made_version(1))
    shard = add_vectors(gallery, gallery.commit.shards[0].version, unit_rows(2, 4), ["x", "y"])
    (gallery.shards.folder / shard.name / "manifest.json").unlink()
    (gallery.shards.folder / "photos" / "vectors.npy").write_file(b"mine")
    (gallery.shards.folder / "photos" / "notes.txt").write_file(b"mine")
    foreign = ("foreign", "gallery/shards/photos")
    with gallery.writing():
        assert found(root) == [foreign]
    assert found(root) == [foreign, ("left behind", f"gallery/shards/{shard.name}")]
    assert cl2r("fsck", root, "--repair")[0] == LEFT_BEHIND
    assert found(root) == [foreign]
    assert (gallery.shards.folder / "photos" / "vectors.npy").exists()


@pytest.mark.parametrize("where", ["storage", "remote"])
def test_an_index_without_its_description_is_removed(cl2r: Command, request: pytest.FixtureRequest, where: str) -> None:
    root = request.getfixturevalue(where)
    gallery = filled(root / "gallery", made_version(1))
    build_indexes(gallery, IndexOptions("hnsw"))
    [index] = (root / "gallery" / "index").list("*.faiss")
    [description] = (root / "gallery" / "index").list("*.json")
    assert found(root) == []
    content = description.read_bytes()
    description.unlink()
    assert found(root) == [], "its description may be written next"
    request.getfixturevalue("days_later")
    [left] = [one for one in check_storage(root) if one.kind == "left behind"]
    assert left.path == index
    assert left.repair is not None
    description.write_file(content)
    left.repair()
    assert found(root) == [], "it has got its description since"
    older = index.parent / f"{index.name.rpartition('-')[0]}-{'0' * 16}.faiss"
    older.write_file(b"an index that was replaced")
    assert [one.path for one in check_storage(root)] == [older]
    older.unlink()
    description.unlink()
    assert cl2r("fsck", root, "--repair")[0] == 0
    assert not index.exists()


def test_an_object_store_is_checked_without_copies(
    remote: StoragePath, tmp_path: LocalPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = filled(remote / "gallery", made_version(1))
    build_indexes(gallery, IndexOptions("hnsw"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    opened, read = list[str](), ObjectPath.read_bytes
    monkeypatch.setattr(ObjectPath, "read_bytes", lambda path: opened.append(path.name) or read(path))
    assert found(remote) == []
    assert not (tmp_path / "cache").exists()
    assert opened.count("vectors.npy") == len(gallery.commit.shards)
    [index] = (remote / "gallery" / "index").list("*.faiss")
    vectors = remote / "gallery" / "shards" / gallery.commit.shards[0].name / "vectors.npy"
    for path in (index, vectors):
        path.write_file(path.read_bytes()[:-1])
    problems = [one.what for one in check_storage(remote)]
    assert len(problems) == 2
    assert all("the checksum differs" in problem for problem in problems)
    assert not (tmp_path / "cache").exists()


def test_the_lock_of_a_process_that_was_killed_is_removed(cl2r: Command, storage: LocalPath) -> None:
    for name in ("aaaa0001", "run-x"):
        for file in (name, f"{name}.holder"):
            (storage / "claims" / file).write_file(b"")
    assert found(storage) == []
    age(storage / "claims")
    (storage / "claims" / "notes").write_file(b"mine")
    age(storage / "claims" / "notes")
    assert found(storage) == [("left behind", "claims/aaaa0001"), ("left behind", "claims/run-x")]
    with LinkStore(storage).lock("aaaa0001"):
        age(storage / "claims" / "aaaa0001")
        assert found(storage) == [("left behind", "claims/run-x")]
    assert cl2r("fsck", storage, "--repair")[0] == 0
    assert {path.name for path in (storage / "claims").iterdir()} == {"notes"}


def test_files_of_others_beside_a_storage_are_not_looked_at(cl2r: Command, storage: LocalPath) -> None:
    others = [storage / "photos" / f".thumb.{'a' * 32}", storage / "studies" / ".git" / f".x.{'b' * 32}"]
    for path in others:
        path.write_file(b"mine")
        age(path)
    gallery = storage / "galleries" / "mine" / f".gallery.json.{'c' * 32}"
    gallery.write_file(b"half")
    age(gallery)
    hidden = ("foreign", "studies/.git")
    assert found(storage) == [hidden, ("left behind", "galleries/mine/" + gallery.name)]
    assert cl2r("fsck", storage, "--repair")[0] == LEFT_BEHIND
    assert [path.exists() for path in others] == [True, True]


def test_a_folder_that_is_no_storage_is_bad_input(cl2r: Command, tmp_path: LocalPath) -> None:
    (tmp_path / "empty").mkdir()
    assert cl2r("fsck", tmp_path / "empty")[0] == 0, "nothing has been stored yet"
    (tmp_path / "home" / "photos" / "a.png").write_file(b"mine")
    assert "not a storage" in refused(cl2r, tmp_path / "home", "fsck", tmp_path / "home", "--repair")


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


def test_lines_that_another_program_added_to_a_journal_are_found(
    storage: LocalPath, caplog: pytest.LogCaptureFixture
) -> None:
    journal = storage / "studies" / STUDY / "optuna.journal"
    journal.write_bytes(journal.read_bytes() + b"{}\n")
    assert found(storage) == [("damaged", f"studies/{STUDY}/optuna.journal")]
    open_journal(StudyFolder(storage, STUDY))
    assert "1 lines at its end are not covered by its seal: they were cut off, or another program added" in caplog.text


def test_a_journal_that_is_gone_is_said_to_be_missing(storage: LocalPath) -> None:
    (storage / "studies" / STUDY / "optuna.journal").unlink()
    assert [one.what for one in check_storage(storage)] == ["the file is missing; it is rebuilt from the ledger"]


def test_the_seal_of_a_journal_is_set_aside_with_it(cl2r: Command, storage: LocalPath) -> None:
    folder = StudyFolder(storage, STUDY)
    flip_bit(storage / "studies" / STUDY / "optuna.journal")
    assert cl2r("fsck", storage, "--repair")[0] == 0
    assert not folder.journal.exists()
    assert not seal_path(folder.journal).exists()
