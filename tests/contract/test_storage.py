"""Every kind of storage keeps the same promises: a folder on a disk, and a prefix of an S3 store."""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from cl2r.storage import claims
from cl2r.storage.claims import HeldError
from cl2r.storage.path import ObjectPath, StoragePath, at, sha256

COUNTING = """
import sys, time
from cl2r.storage import claims
from cl2r.storage.path import at
claims.PAUSE_SECONDS = 0.02
root = at(sys.argv[1])
for _ in range(int(sys.argv[2])):
    with (root / "claim").lock():
        count = int((root / "count").read_text())
        time.sleep(0.01)
        (root / "count").write_file(str(count + 1).encode())
"""
HOLD = """
import sys, time
from cl2r.storage.path import at
with at(sys.argv[1]).lock():
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=["disk", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> StoragePath:
    """An empty folder of either kind."""
    return at(tmp_path / "root") if request.param == "disk" else request.getfixturevalue("remote")


def names(paths: Any) -> list[str]:
    return [path.name for path in paths]


def files_below(storage: StoragePath) -> dict[str, int]:
    return {file.path: file.size for file in storage.walk_files()}


def test_a_file_is_written_read_replaced_and_removed(storage: StoragePath) -> None:
    path = storage / "deep" / "er" / "file.json"
    assert (path.exists(), path.file_info()) == (False, None)
    with pytest.raises(FileNotFoundError):
        path.read_bytes()
    path.write_file(b"one")
    path.write_file("zwei φ".encode(), durable=False)
    assert (path.read_bytes(), path.read_text()) == ("zwei φ".encode(), "zwei φ")
    info = path.file_info()
    assert info is not None
    assert (info.path, info.size) == ("file.json", 7)
    assert info.mtime_ns > 1.7e18
    assert (path.name, path.parent) == ("file.json", storage / "deep" / "er")
    assert path.parent.exists()
    assert path.parent.file_info() is None, "a folder is no file"
    path.unlink()
    assert not path.exists()
    path.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        path.unlink()


def test_an_address_leads_to_the_same_path(storage: StoragePath) -> None:
    assert at(str(storage)) == at(storage) == storage
    assert storage.absolute() == storage.resolve() == storage
    assert sorted([storage / "b", storage / "a"]) == [storage / "a", storage / "b"]


def test_listings_are_sorted_and_match_within_one_folder(storage: StoragePath) -> None:
    for name in ("studies/b/study.yaml", "studies/a/study.yaml", "studies/c/other", "top.json", "x.json", "top.txt"):
        (storage / name).write_file(name.encode())
    assert names(storage.list()) == ["studies", "top.json", "top.txt", "x.json"]
    assert names(storage.list("*.json")) == ["top.json", "x.json"]
    assert [path.parent.name for path in storage.list("studies/*/study.yaml")] == ["a", "b"]
    assert names(storage.list("studies/c/other")) == ["other"]
    assert storage.list("nowhere/*") == (storage / "nowhere").list() == storage.list("studies/c/none") == []
    for _ in range(2):
        (storage / "studies").remove_tree()
    assert files_below(storage) == {"top.json": 8, "top.txt": 7, "x.json": 6}


def test_a_folder_is_written_with_its_last_file_last(storage: StoragePath, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, write = type(storage), type(storage).write_file

    def full(path: Any, content: bytes, durable: bool = True) -> None:
        if path.name == "manifest":
            raise OSError(28, "No space left on device")
        write(path, content, durable)

    files = {"manifest": b"{}", "a": b"1", "b": b"2"}
    with monkeypatch.context() as patch:
        patch.setattr(kind, "write_file", full)
        with pytest.raises(OSError, match="No space"):
            (storage / "folder").write_folder(files, last="manifest")
    assert not (storage / "folder" / "manifest").exists()
    (storage / "folder").write_folder(files, last="manifest")
    assert files_below(storage / "folder") == {"a": 1, "b": 1, "manifest": 2}


def test_staged_files_arrive(storage: StoragePath) -> None:
    with (storage / "figures").staging() as here:
        (here / "sub" / "one.png").write_file(b"1")
        (here / "two.png").write_file(b"2")
    assert files_below(storage) == {"figures/sub/one.png": 1, "figures/two.png": 1}


def test_nothing_is_uploaded_after_an_error(remote: ObjectPath) -> None:
    with contextlib.suppress(RuntimeError), remote.staging() as here:
        (here / "one.png").write_file(b"1")
        raise RuntimeError("cut off")
    assert files_below(remote) == {}


def test_a_local_copy_has_the_checksum(storage: StoragePath) -> None:
    path = storage / "vectors.npy"
    path.write_file(b"content")
    local = path.local(sha256(b"content"))
    assert local.read_bytes() == b"content"
    if storage.remote:
        path.unlink()
        assert path.local(sha256(b"content")) == local, "read once"
        path.write_file(b"damaged")
        with pytest.raises(ValueError, match="checksum"):
            path.local(sha256(b"other"))


def test_processes_take_turns(storage: StoragePath) -> None:
    """Three processes increment a number that none may read while another is about to write it."""
    (storage / "count").write_file(b"0")
    words = [sys.executable, "-c", COUNTING, str(storage), "4"]
    adding = [subprocess.Popen(words) for _ in range(3)]
    assert [process.wait(120) for process in adding] == [0, 0, 0]
    assert files_below(storage) == {"count": 2}
    assert (storage / "count").read_text() == "12"


def test_a_held_lock_is_refused_by_the_name_of_its_holder(
    storage: StoragePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = storage / "claim"
    monkeypatch.setattr(claims, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(claims, "PAUSE_SECONDS", 0.02)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with path.lock():
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold, daemon=True)
    assert path.holder() is None
    thread.start()
    assert held.wait(60)
    before, holder = files_below(storage), path.holder()
    with pytest.raises(HeldError) as refused, path.lock(wait=False):
        pass
    assert files_below(storage) == before, "neither looking nor a refusal changes anything"
    with (storage / "other").lock(wait=False):
        pass
    done.set()
    thread.join()
    assert str(refused.value) == holder == claims.this_process()
    assert path.holder() is None


def test_a_lock_ends_although_a_process_forked_meanwhile_lives_on(tmp_path: Path) -> None:
    """Processes that decode images are forked while a link is trained, and outlive its lock."""
    reading, writing = os.pipe()
    with at(tmp_path / "lock").lock():
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)  # until the test is over
            os._exit(0)
        with pytest.raises(HeldError), at(tmp_path / "lock").lock(wait=False):
            pass
    with at(tmp_path / "lock").lock(wait=False):
        pass
    os.close(writing)
    os.close(reading)
    os.waitpid(child, 0)


def test_the_lock_of_a_killed_process_is_free_at_once(storage: StoragePath) -> None:
    path = storage / "claim"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert path.holder() is not None
    holder.kill()
    holder.wait()
    assert path.holder() is None
    taken = threading.Event()

    def take() -> None:
        with path.lock():
            taken.set()

    threading.Thread(target=take, daemon=True).start()
    assert taken.wait(30)


PARTS = st.sampled_from(["a", "b", "c.json", "d"])
FILES = st.lists(PARTS, min_size=1, max_size=3).map("/".join)
CONTENTS = st.binary(max_size=20)


class Storage(RuleBasedStateMachine):
    """Any sequence of operations leaves the files that a dictionary would hold."""

    root: StoragePath
    runs = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).runs += 1
        self.path = self.root / f"run{self.runs}"
        self.files: dict[str, bytes] = {}
        self.folders: set[str] = set()
        """Names that were folders: a disk keeps them when they are empty, and no file can take their place."""

    @rule(name=FILES, content=CONTENTS, durable=st.booleans())
    def write(self, name: str, content: bytes, durable: bool) -> None:
        # A name is either a file or a folder: stores allow both at once, disks do not.
        if name in self.folders or any(name.startswith(f"{other}/") for other in self.files):
            return
        (self.path / name).write_file(content, durable)
        self.files[name] = content
        parts = name.split("/")
        self.folders |= {"/".join(parts[:depth]) for depth in range(1, len(parts))}

    @rule(name=FILES)
    def unlink(self, name: str) -> None:
        if name not in self.folders:
            with contextlib.suppress(NotADirectoryError):
                (self.path / name).unlink(missing_ok=True)
            self.files.pop(name, None)

    @rule(name=FILES)
    def remove_tree(self, name: str) -> None:
        if name not in self.files:
            (self.path / name).remove_tree()
            self.files = {other: held for other, held in self.files.items() if not other.startswith(f"{name}/")}
            self.folders = {other for other in self.folders if other != name and not other.startswith(f"{name}/")}

    @rule(name=FILES)
    def read(self, name: str) -> None:
        if name in self.files:
            assert (self.path / name).read_bytes() == self.files[name]

    @invariant()
    def holds_what_the_dictionary_holds(self) -> None:
        assert files_below(self.path) == {name: len(content) for name, content in self.files.items()}
        found = [path.name for path in self.path.list("*.json") if path.file_info()]  # a disk keeps empty folders
        assert found == sorted(name for name in self.files if name.endswith(".json") and "/" not in name)


def test_any_sequence_of_operations_agrees_with_a_dictionary(storage: StoragePath) -> None:
    machine = type("StorageHere", (Storage,), {"root": storage})
    examples, checks = 6 if storage.remote else 25, [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    limits = settings(max_examples=examples, stateful_step_count=12, deadline=None, suppress_health_check=checks)
    run_state_machine_as_test(machine, settings=limits)
