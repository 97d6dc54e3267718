"""The live view of a study: the files of the training processes, and what a terminal and a log see of them."""

import io
import json
import os
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cl2r.runtime.progress import EpochReport
from cl2r.storage.path import at
from cl2r.study import live
from cl2r.study.live import LiveFile, LiveView, read_live


class Screen(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True

    def shown(self) -> list[str]:
        """The lines on the screen: rich erases line by line before it draws again."""
        lines = [""]
        for token in re.findall(r"\033\[[?\d]*[A-Za-z]|[^\033]", self.getvalue()):
            if token == "\n":
                lines.append("")
            elif token == "\033[1A":
                lines.pop()
            elif token == "\033[2K":
                lines[-1] = ""
            elif len(token) == 1 and token != "\r":
                lines[-1] += token
        return [line.rstrip() for line in lines]


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace the module `time`: it is always `now`."""
    fake = SimpleNamespace(now=1000.0, monotonic=lambda: fake.now, time=lambda: 1.7e9 + fake.now)
    monkeypatch.setattr(live, "time", fake)
    return fake


@pytest.fixture(autouse=True)
def terminal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "24")


def report(task: int = 1, epoch: int = 1, epochs: int = 10, seconds: float = 2.0) -> EpochReport:
    return EpochReport(task, "train", epoch, epochs, 0.1, 3000, seconds, {"ce": 0.75, "fd": 0.5})


def write_progress(folder: Path, label: str, title: str, **fields: Any) -> Path:
    file = LiveFile(at(folder) / f"{label}.json", title, tasks=5)
    file.begin([1, 2, 3, 4, 5])
    file.epoch(report(**fields))
    return folder / f"{label}.json"


def test_the_file_says_where_the_run_is(tmp_path: Path) -> None:
    path = at(tmp_path / "live" / "prefix1-a.json")
    file = LiveFile(path, "cl2r seed 0", tasks=5)
    file.begin([2, 4])
    file.epoch(report(task=2, epoch=7))
    progress = {"task": 2, "tasks": 5, "epoch": 7, "epochs": 10, "images_per_second": 1500.0, "loss": 1.25}
    entry = {"title": "cl2r seed 0", "progress": {**progress, "seconds_left": (3 + 10) * 2.0}}
    assert json.loads(path.read_text()) == entry
    file.close()
    file.close()
    assert list((tmp_path / "live").iterdir()) == []


def test_the_file_is_rewritten_at_most_once_an_interval_but_every_epoch_counts(
    tmp_path: Path, fake_time: SimpleNamespace
) -> None:
    path = at(tmp_path / "a.json")
    file = LiveFile(path, "t", tasks=1)
    file.begin([1])
    seen = []
    for epoch, now in enumerate([0.0, 0.5, 0.999, 1.0, 1.5, 2.25], start=1):
        fake_time.now = now
        file.epoch(report(epoch=epoch, seconds=epoch))
        seen.append(json.loads(path.read_text())["progress"])
    assert [row["epoch"] for row in seen] == [1, 1, 1, 4, 4, 6]
    assert seen[-1]["seconds_left"] == pytest.approx((10 - 6) * 3.5)


def test_rows_come_in_the_order_of_labels_and_only_whole_files_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a file that vanishes while it is read."""
    for label in "cab":
        write_progress(tmp_path, label, f"run {label}")
    (tmp_path / ".d.json.0123").write_text('{"label": ')
    assert [(row.title, row.stale) for row in read_live(tmp_path)] == [(f"run {label}", False) for label in "abc"]
    assert read_live(tmp_path / "nowhere") == []
    read_bytes = Path.read_bytes

    def vanishing(path: Path) -> bytes:
        if path.name == "b.json":
            path.unlink()
        content = read_bytes(path)
        if path.name == "c.json":
            path.unlink()
        return content

    monkeypatch.setattr(Path, "read_bytes", vanishing)
    assert [row.title for row in read_live(tmp_path)] == ["run a"]


def endless(seconds: str, speed: str = "1") -> str:
    values = f'"task": 1, "tasks": 2, "epoch": 1, "epochs": 2, "images_per_second": {speed}, "loss": 1'
    return f'{{"title": "a", "progress": {{{values}, "seconds_left": {seconds}}}}}'


NO_PROGRESS = ["{", "[]", "{}", '{"title": "a", "progress": 3}', "[" * 100_000, "\xff", endless("1e999")]


@pytest.mark.parametrize("content", [*NO_PROGRESS, endless("1", "9" * 400), endless("NaN")])
def test_a_damaged_file_is_named_and_ignored(content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_progress(tmp_path, "b", "run b")
    (tmp_path / "a.json").write_text(content, encoding="latin-1")
    assert [row.title for row in read_live(tmp_path)] == ["run b"]
    (line,) = caplog.messages
    assert line.startswith(f"{tmp_path / 'a.json'} is not a progress file (")


@pytest.mark.parametrize(("age", "stale"), [(50, False), (70, True)])
def test_a_file_not_touched_for_a_minute_is_stale(tmp_path: Path, age: float, stale: bool) -> None:
    path = write_progress(tmp_path, "a", "run a")
    then = time.time() - age
    os.utime(path, (then, then))
    row = read_live(tmp_path)[0]
    assert row.stale is stale
    assert ("silent for 1:1" in row.text) is stale


def test_a_terminal_shows_one_row_per_trial_and_the_totals_below_said_lines(tmp_path: Path) -> None:
    write_progress(tmp_path, "a", "er seed 0")
    other = write_progress(tmp_path, "b", "cl2r seed 10", task=2, epoch=4)
    screen = Screen()
    view = LiveView(tmp_path, lambda: "3 of 9 [runs]", screen)
    view.say("before")
    view.refresh()
    view.say("while it runs")
    assert screen.shown() == [
        "before",
        "while it runs",
        "er seed 0      task 1/5 · epoch 1/10 · 1,500 images/s · loss 1.250 · 1:38 left",
        "cl2r seed 10   task 2/5 · epoch 4/10 · 1,500 images/s · loss 1.250 · 1:12 left",
        "3 of 9 [runs]",
    ]
    other.unlink()
    view.refresh()
    assert [line.split("  ")[0] for line in screen.shown()[2:]] == ["er seed 0", "3 of 9 [runs]"]
    view.stop()
    view.say("after")
    assert screen.shown() == ["before", "while it runs", "after", ""]


def test_the_rows_fit_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    monkeypatch.setenv("LINES", "6")
    for number in range(9):
        write_progress(tmp_path, f"{number}", f"run {number}")
    screen = Screen()
    LiveView(tmp_path, lambda: "two\nlines" + "t" * 99, screen).refresh()
    assert [line[:5] for line in screen.shown()] == ["run 0", "run 1", "run 2", "… and", "two l"]
    assert all(len(line) <= 24 for line in screen.shown())


def test_a_log_gets_said_lines_and_a_heartbeat(tmp_path: Path, fake_time: SimpleNamespace) -> None:
    write_progress(tmp_path, "a", "a")
    log = io.StringIO()
    view = LiveView(tmp_path, lambda: f"totals at {fake_time.now:.0f}", log, heartbeat=60)
    for now in (1000, 1030, 1059, 1061, 1100, 1120, 1121, 1150):
        fake_time.now = now
        view.refresh()
        if now == 1030:
            view.say("kept")
    row = "a: task 1/5 · epoch 1/10 · 1,500 images/s · loss 1.250 · 1:38 left"
    assert log.getvalue().splitlines() == [
        f"totals at 1000 · {row}",
        "kept",
        f"totals at 1061 · {row}",
        f"totals at 1121 · {row}",
    ]
    log.close()
    view.say("unheard, because the stream is gone")
    view.stop()
    assert isinstance(view.lost, ValueError)


def test_a_log_gets_a_line_when_the_first_trial_makes_progress(tmp_path: Path, fake_time: SimpleNamespace) -> None:
    log = io.StringIO()
    view = LiveView(tmp_path, lambda: f"totals at {fake_time.now:.0f}", log)
    for now in range(1000, 1065, 5):
        fake_time.now = now
        if now == 1010:
            write_progress(tmp_path, "a", "a")
            write_progress(tmp_path, "b", "b")
        view.refresh()
    lines = log.getvalue().splitlines()
    assert [line.split(" · ")[0] for line in lines] == ["totals at 1010", "totals at 1040"]
    assert all(line.endswith(" left and 1 more") for line in lines)
    idle = io.StringIO()
    view = LiveView(tmp_path / "nothing", lambda: f"totals at {fake_time.now:.0f}", idle)
    for now in range(2000, 2065, 5):
        fake_time.now = now
        view.refresh()
    assert idle.getvalue().splitlines() == ["totals at 2000", "totals at 2030", "totals at 2060"]


def test_what_cannot_be_shown_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_progress(tmp_path, "a", "a")
    path.write_text(path.read_text().replace("1.25", "null"))
    screen = Screen()

    def totals() -> str:
        raise RuntimeError("no\nledger")

    view = LiveView(tmp_path, totals, screen)
    view.refresh()
    view.refresh()
    note, last = screen.shown()
    assert "totals: RuntimeError: no ledger" in note
    (line,) = caplog.messages
    assert line.startswith(f"{path} is not a progress file")
    assert last == "totals unknown"


def test_the_thread_survives_failing_totals_and_many_speakers(tmp_path: Path) -> None:
    write_progress(tmp_path, "a", "a")
    screen, turns, enough = Screen(), iter(range(10**6)), threading.Event()

    def totals() -> str:
        turn = next(turns)
        if turn > 20:
            enough.set()
        return f"{1 // (turn % 2)}"

    def speak(name: str) -> None:
        for n in range(30):
            view.say(f"{name}{n}")

    view = LiveView(tmp_path, totals, screen, interval=0.0005)
    view.start()
    speakers = [threading.Thread(target=speak, args=name) for name in "xyz"]
    for speaker in speakers:
        speaker.start()
    for speaker in speakers:
        speaker.join()
    assert enough.wait(10)
    view.stop()
    lines = screen.shown()
    said = [line for line in lines if line and not line.startswith("note")]
    assert sorted(said) == sorted(f"{name}{n}" for name in "xyz" for n in range(30))
    assert sum("ZeroDivisionError" in line for line in lines) == 1
    assert view.lost is None
