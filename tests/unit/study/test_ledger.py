"""The ledger: events are whole, ordered, and never lost or overwritten."""

import errno
import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cl2r.errors import InputError
from cl2r.storage import path as files
from cl2r.study.ledger import Ledger, finished


def write_many(folder: Path, writer: int, count: int) -> None:
    for number in range(count):
        Ledger(folder).write("finished", f"run{number}", {"writer": writer, "number": number})


def test_an_event_has_time_kind_subject_and_content(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    before = time.time_ns()
    ledger.write("failed", "run", {"reason": "λ too large", "values": [1, None, 0.5]})
    (event,) = ledger.events()
    assert before <= event.time_ns <= time.time_ns()
    assert (event.kind, event.subject) == ("failed", "run")
    assert event.read() == {"reason": "λ too large", "values": [1, None, 0.5]}


@pytest.mark.parametrize("subject", ["v1.2.npz-er-T2-s0-0123abcd", "a.finished.b", "3", "."])
def test_subjects_may_have_dots(tmp_path: Path, subject: str) -> None:
    ledger = Ledger(tmp_path)
    ledger.write("started", subject, {})
    assert [(event.kind, event.subject) for event in ledger.events()] == [("started", subject)]
    assert ledger.events("finished") == []


def test_a_ledger_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "nowhere")
    assert ledger.events() == []
    assert ledger.outcomes() == {}
    assert not (tmp_path / "nowhere").exists()


def test_events_come_in_the_order_they_were_written(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for number in (7, 3, 9, 1):
        ledger.write("trial", str(number), {})
    ledger.write("closed", "driver", {})
    assert [event.subject for event in ledger.events("trial")] == ["7", "3", "9", "1"]
    assert [event.kind for event in ledger.events("closed", "trial")] == ["trial"] * 4 + ["closed"]
    assert len(ledger.events()) == 5


def test_events_are_sorted_by_time(tmp_path: Path) -> None:
    for time_ns in (10, 9, 100):
        (tmp_path / f"{time_ns:020d}.noted.run.00000000.json").write_text("{}")
    assert [event.time_ns for event in Ledger(tmp_path).events()] == [9, 10, 100]


@pytest.mark.parametrize(
    ("kinds", "outcome"),
    [
        (["failed", "failed", "finished"], "finished"),
        (["finished", "failed"], "finished"),
        (["finished", "pruned", "started"], "finished"),
        (["failed", "pruned"], "pruned"),
        (["pruned", "started", "failed"], "failed"),
        (["started", "noted"], None),
    ],
)
def test_outcomes(tmp_path: Path, kinds: list[str], outcome: str | None) -> None:
    ledger = Ledger(tmp_path)
    for kind in kinds:
        ledger.write(kind, "run", {})  # type: ignore[arg-type]
    outcomes = ledger.outcomes()
    assert {run: event.kind for run, event in outcomes.items()} == ({"run": outcome} if outcome else {})
    assert finished(outcomes, ["run"]) == (outcome == "finished")
    assert not finished(outcomes, ["run", "another"])
    assert finished(outcomes, [])


def test_a_half_written_file_is_not_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the flush ends: the bytes are under another name."""

    def killed(_: int) -> None:
        raise KeyboardInterrupt

    ledger = Ledger(tmp_path)
    ledger.write("started", "run", {})
    (first,) = tmp_path.iterdir()
    before = first.stat()
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            ledger.write("finished", "run", {"frames": {}})
    assert len(list(tmp_path.iterdir())) == 2, "the half-written file is there"
    assert [event.kind for event in ledger.events()] == ["started"]
    assert ledger.outcomes() == {}
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_processes_and_threads_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    processes = [
        multiprocessing.get_context("fork").Process(target=write_many, args=(tmp_path, writer, 25)) for writer in (0, 1)
    ]
    for process in processes:
        process.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda writer: write_many(tmp_path, writer, 25), range(2, 6)))
    for process in processes:
        process.join()
        assert process.exitcode == 0
    found = [event.read() for event in Ledger(tmp_path).events("finished")]
    assert sorted((entry["writer"], entry["number"]) for entry in found) == [
        (w, n) for w in range(6) for n in range(25)
    ]
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".json"]


def test_times_never_decrease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is set back by an hour between events; their order is still the order of writing."""
    ledger, hour = Ledger(tmp_path), 3600 * 10**9
    now = time.time_ns()
    for number, kind in enumerate(("opened", "failed", "failed", "closed")):
        monkeypatch.setattr(time, "time_ns", lambda late=number: now - late * hour)
        ledger.write(kind, "run", {"number": number})
    assert [event.read()["number"] for event in ledger.events()] == [0, 1, 2, 3]
    assert ledger.outcomes()["run"].read()["number"] == 2
    monkeypatch.setattr(time, "time_ns", lambda: now + hour)
    ledger.write("noted", "run", {"number": 4})
    assert ledger.events()[-1].time_ns == now + hour, "a correct clock is used"


def test_a_damaged_event_is_named_and_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every single bit counts, and so does the name: events of other studies or of other times are not ours."""
    ledger = Ledger(tmp_path / "one", lambda: "a" * 32)
    other = Ledger(tmp_path / "two", lambda: "b" * 32)
    for one in (ledger, other):
        one.write("finished", "run", {"value": 0.5})
        one.write("closed", "driver", {})
    finished, closed = ledger.events()
    content = Path(str(finished.path)).read_bytes()
    for place in range(8 * len(content)):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        Path(str(finished.path)).write_bytes(changed)
        with pytest.raises(InputError, match=finished.path.name):
            finished.read()
    for foreign in (other.events()[0].path, closed.path):
        Path(str(finished.path)).write_bytes(Path(str(foreign)).read_bytes())
        with pytest.raises(InputError, match="it belongs to study"):
            finished.read()
    ledger.set_damaged_aside()
    assert str(finished.path) in caplog.text
    assert [event.kind for event in ledger.events()] == ["closed"]
    assert len(list((tmp_path / "one").iterdir())) == 2  # renamed, not removed


NO_FILE = {
    "dangling": lambda path: path.symlink_to("nowhere"),
    "looping": lambda path: path.symlink_to(path.name),
    "pipe": os.mkfifo,
    "folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("kind", NO_FILE)
def test_an_event_that_is_no_file_is_set_aside(tmp_path: Path, kind: str) -> None:
    ledger = Ledger(tmp_path)
    ledger.write("started", "a", {})
    ledger.write("started", "b", {})
    event, other = ledger.events()
    event.path.unlink()
    NO_FILE[kind](event.path)
    with pytest.raises(InputError, match="no file is in its place"):
        event.read()
    ledger.set_damaged_aside()
    assert ledger.events() == [other]


def test_an_unreachable_disk_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path)
    ledger.write("started", "a", {})

    def refuse(path: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files.LocalPath, "read_bytes", refuse)
    with pytest.raises(OSError, match="Input/output"):
        ledger.set_damaged_aside()
    assert len(ledger.events()) == 1


def test_a_file_in_place_of_the_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("mine")
    with pytest.raises(InputError, match=f"{tmp_path / 'ledger'}: a file"):
        Ledger(tmp_path / "ledger").events()


@pytest.mark.parametrize("name", ["x.json", "._x.json", "00000000000000000001.boiled.run.0123abcd.json", ".DS_Store"])
def test_foreign_files_are_ignored_with_one_note(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger(tmp_path)
    ledger.write("closed", "driver", {})
    (tmp_path / name).write_text("?")
    caplog.set_level("INFO", "cl2r")
    for _ in range(3):
        assert [event.kind for event in ledger.events()] == ["closed"]
    ledger.write("closed", "driver", {})
    assert caplog.text.count(name) == 1
