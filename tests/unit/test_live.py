"""The live view of a study: the files of the training processes, and what a terminal and a log see of them."""

import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cl2r.engine.run import Listener
from cl2r.engine.task_loop import EpochReport
from cl2r.study import live
from cl2r.study.live import LiveFile, LiveView, read_live


class Screen(io.StringIO):
    """A stream that claims to be a terminal, and can tell what it shows."""

    def isatty(self) -> bool:
        return True

    def interpret(self) -> tuple[list[str], int, int]:
        """Lines, row and column of the cursor, after everything written so far."""
        lines, row, column = [""], 0, 0
        for token in re.findall(r"\033\[\d*[A-Z]|[^\033]", self.getvalue()):
            if token == "\r":
                column = 0
            elif token == "\n":
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            elif token == "\033[J":
                lines[row:] = [lines[row][:column]]
            elif token.endswith("A"):
                row -= int(token[2:-1])
                assert row >= 0
            else:
                assert len(token) == 1
                lines[row] = lines[row][:column] + token + lines[row][column + 1 :]
                column += 1
        return lines, row, column

    def shown(self) -> list[str]:
        return self.interpret()[0]


class FakeTime:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1.7e9 + self.now


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(live, "time", fake)
    return fake


@pytest.fixture(autouse=True)
def terminal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "24")


def report(task: int = 1, epoch: int = 1, epochs: int = 10, seconds: float = 2.0) -> EpochReport:
    return EpochReport(task, "train", epoch, epochs, 0.1, 3000, seconds, {"ce": 0.75, "fd": 0.5})


def leave_word(folder: Path, label: str, title: str, **fields: Any) -> Path:
    file = LiveFile(folder, label, label, title, tasks=5)
    file.begin([1, 2, 3, 4, 5])
    file.epoch(report(**fields))
    return file.path


def test_the_module_does_not_load_torch() -> None:
    code = "import sys, cl2r.study.live; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_file_says_where_the_run_is(tmp_path: Path, fake_time: FakeTime) -> None:
    file = LiveFile(tmp_path / "live", "trunk-a", "a", "cl2r seed 0", tasks=5, trunk=True)
    file.begin([2, 4])
    file.epoch(report(task=2, epoch=7))
    entry = json.loads((tmp_path / "live" / "trunk-a.json").read_text())
    assert entry.pop("host")
    assert entry == {
        "label": "trunk-a",
        "run": "a",
        "title": "cl2r seed 0",
        "trunk": True,
        "pid": os.getpid(),
        "time": fake_time.time(),
        "task": 2,
        "tasks": 5,
        "epoch": 7,
        "epochs": 10,
        "images_per_second": 1500.0,
        "loss": 1.25,
        "seconds_left": (3 + 10) * 2.0,
    }
    file.close()
    file.close()
    assert list((tmp_path / "live").iterdir()) == []


def test_the_file_is_rewritten_at_most_once_an_interval(tmp_path: Path, fake_time: FakeTime) -> None:
    file = LiveFile(tmp_path, "a", "a", "t", tasks=1, interval=1.0)
    file.begin([1])
    seen = []
    for epoch, now in enumerate([0.0, 0.5, 0.999, 1.0, 1.5, 2.25], start=1):
        fake_time.now = now
        file.epoch(report(epoch=epoch))
        seen.append(read_live(tmp_path)[0].epoch)
    assert seen == [1, 1, 1, 4, 4, 6]


def test_epochs_that_were_not_written_count_for_the_time_left(tmp_path: Path, fake_time: FakeTime) -> None:
    file = LiveFile(tmp_path, "a", "a", "t", tasks=1, interval=1.0)
    file.begin([1])
    for epoch, seconds in enumerate([1.0, 2.0, 6.0], start=1):
        fake_time.now = epoch / 2
        file.epoch(report(epoch=epoch, seconds=seconds))
    assert read_live(tmp_path)[0].seconds_left == pytest.approx(7 * 3.0)


def test_lines_go_to_the_log_and_warnings_to_the_callback_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[str] = []
    listener: Listener = LiveFile(tmp_path, "a", "a", "t", tasks=1, on_warn=heard.append)
    listener.say("kept")
    listener.warn("damaged")
    assert heard == ["damaged"]
    assert capsys.readouterr().out == "a: kept\na: damaged\n"
    assert list(tmp_path.iterdir()) == []


def test_rows_come_in_the_order_of_labels_and_only_whole_files_count(tmp_path: Path) -> None:
    for label in "cab":
        leave_word(tmp_path, label, f"run {label}")
    (tmp_path / ".d.json.0123").write_text('{"label": ')
    rows = read_live(tmp_path)
    assert [row.label for row in rows] == ["a", "b", "c"]
    assert not any(row.stale for row in rows)
    assert read_live(tmp_path / "nowhere") == []


def test_a_file_that_vanishes_while_it_is_read_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for label in "abc":
        leave_word(tmp_path, label, label)
    read_text = Path.read_text

    def vanishing(path: Path) -> str:
        if path.name == "b.json":
            path.unlink()
        text = read_text(path)
        if path.name == "c.json":
            path.unlink()
        return text

    monkeypatch.setattr(Path, "read_text", vanishing)
    assert [row.label for row in read_live(tmp_path)] == ["a"]


@pytest.mark.parametrize(("age", "stale"), [(50, False), (70, True)])
def test_a_file_not_touched_for_a_minute_is_stale(tmp_path: Path, age: float, stale: bool) -> None:
    path = leave_word(tmp_path, "a", "run a")
    then = time.time() - age
    path.write_text(json.dumps(json.loads(path.read_text()) | {"time": then}))
    os.utime(path, (then, then))
    row = read_live(tmp_path)[0]
    assert row.stale is stale
    assert bool(re.search(r" left · silent for 1:1\d$", row.line(5))) is stale


def test_a_terminal_sees_a_line_a_trial_and_the_totals(tmp_path: Path) -> None:
    leave_word(tmp_path, "a", "er seed 0")
    leave_word(tmp_path, "b", "cl2r seed 10", task=2, epoch=4)
    screen = Screen()
    LiveView(tmp_path, lambda: "3 of 9 finished", screen).refresh()
    assert screen.shown() == [
        "er seed 0      task 1/5 · epoch 1/10 · 1,500 images/s · loss 1.250 · 1:38 left",
        "cl2r seed 10   task 2/5 · epoch 4/10 · 1,500 images/s · loss 1.250 · 1:12 left",
        "3 of 9 finished",
    ]


def test_the_block_is_redrawn_in_place_as_trials_come_and_go(tmp_path: Path) -> None:
    screen = Screen()
    view = LiveView(tmp_path, lambda: "totals", screen)
    view.refresh()
    assert screen.shown() == ["totals"]
    paths = [leave_word(tmp_path, label, label) for label in "abc"]
    view.refresh()
    assert [line[0] for line in screen.shown()] == ["a", "b", "c", "t"]
    for path in paths[:2]:
        path.unlink()
    view.refresh()
    assert [line[0] for line in screen.shown()] == ["c", "t"]


def test_said_lines_stay_above_the_block_and_stop_clears_it(tmp_path: Path) -> None:
    leave_word(tmp_path, "a", "a")
    screen = Screen()
    view = LiveView(tmp_path, lambda: "totals", screen)
    view.say("before")
    view.refresh()
    view.say("first")
    view.say("second")
    assert [line.split("  ")[0] for line in screen.shown()] == ["before", "first", "second", "a", "totals"]
    view.stop()
    assert screen.interpret() == (["before", "first", "second", ""], 3, 0)
    view.say("after")
    assert screen.interpret() == (["before", "first", "second", "after", ""], 4, 0)


def test_the_block_fits_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    monkeypatch.setenv("LINES", "6")
    for number in range(9):
        leave_word(tmp_path, f"{number}", f"run {number}")
    screen = Screen()
    view = LiveView(tmp_path, lambda: "two\nlines" + "t" * 99, screen)
    view.refresh()
    rows = [f"run {number}   task 1/5 · epoch" for number in range(4)]
    assert screen.shown() == [*rows, "… and 5 more", "two lines" + "t" * 15]
    for number in range(5):
        (tmp_path / f"{number}.json").unlink()
    view.refresh()
    assert [line[:5] for line in screen.shown()] == ["run 5", "run 6", "run 7", "run 8", "two l"]


def test_a_log_gets_said_lines_and_a_heartbeat(tmp_path: Path, fake_time: FakeTime) -> None:
    leave_word(tmp_path, "a", "a")
    log = io.StringIO()
    view = LiveView(tmp_path, lambda: f"totals at {fake_time.now:.0f}", log, heartbeat=60)
    for now in (1000, 1030, 1059, 1061, 1100, 1120, 1121, 1150):
        fake_time.now = now
        view.refresh()
        if now == 1030:
            view.say("kept")
    view.stop()
    assert log.getvalue() == "kept\ntotals at 1061\ntotals at 1121\n"


def test_totals_that_fail_are_reported_once_and_the_rows_go_on(tmp_path: Path) -> None:
    leave_word(tmp_path, "a", "a")
    screen = Screen()

    def totals() -> str:
        raise RuntimeError("no\nledger")

    view = LiveView(tmp_path, totals, screen)
    view.refresh()
    view.refresh()
    lines = screen.shown()
    assert lines[0] == "note: the live view cannot show its totals: RuntimeError: no ledger"
    assert lines[1].startswith("a   task 1/5")
    assert lines[2:] == ["totals unknown"]


def test_a_file_that_cannot_be_shown_is_reported_once(tmp_path: Path) -> None:
    path = leave_word(tmp_path, "a", "a")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"loss": None}))
    screen = Screen()
    view = LiveView(tmp_path, lambda: "totals", screen)
    view.refresh()
    view.refresh()
    note, *block = screen.shown()
    assert note.startswith("note: the live view cannot show its running trials: TypeError: ")
    assert block == ["totals"]


def test_a_view_whose_stream_is_gone_falls_silent(tmp_path: Path) -> None:
    log = io.StringIO()
    view = LiveView(tmp_path, lambda: "totals", log)
    log.close()
    view.say("unheard")
    view.stop()
    assert isinstance(view.lost, ValueError)


def test_the_thread_survives_failing_totals_and_many_speakers(tmp_path: Path) -> None:
    leave_word(tmp_path, "a", "a")
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
    lines, row, column = screen.interpret()
    said = [line for line in lines if line and not line.startswith("note")]
    assert sorted(said) == sorted(f"{name}{n}" for name in "xyz" for n in range(30))
    assert [line for line in lines if line.startswith("note")] == [
        "note: the live view cannot show its totals: ZeroDivisionError: integer division or modulo by zero"
    ]
    assert (lines[-1], row, column) == ("", len(lines) - 1, 0)
    assert view.lost is None
