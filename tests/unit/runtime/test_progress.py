"""The progress line on a terminal and in a log, and the time left."""

import io
import logging

import pytest

from cl2r.runtime.logs import configure
from cl2r.runtime.progress import EpochReport, ProgressLine


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def report(task: int = 1, epoch: int = 1, epochs: int = 10, seconds: float = 2.0) -> EpochReport:
    return EpochReport(task, "train", epoch, epochs, 0.1, 3000, seconds, {"ce": 0.75, "fd": 0.5})


def test_nothing_is_written_to_a_stream_that_is_no_terminal() -> None:
    stream = io.StringIO()
    progress = ProgressLine(3, "[er] ", stream)
    progress.begin([1, 2, 3])
    progress.epoch(report())
    progress.close()
    assert stream.getvalue() == ""


def test_a_terminal_sees_where_the_run_is() -> None:
    terminal = Terminal()
    progress = ProgressLine(5, "[er] ", terminal)
    progress.begin([2, 3, 4, 5])
    progress.epoch(report(task=2, epoch=4))
    shown = terminal.getvalue()
    assert shown.endswith("[er] task 2/5 · epoch 4/10 · 1,500 images/s · loss 1.250 · 1:12 left")
    assert "\n" not in shown


def test_the_line_is_rewritten_gives_way_to_log_lines_and_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    configure()
    progress = ProgressLine(1, stream=terminal)
    progress.begin([1])
    progress.epoch(report(epoch=1))
    progress.epoch(report(epoch=2))
    logging.getLogger("cl2r").info("kept")
    progress.close()
    screen = terminal.getvalue().split("\n")
    assert screen[0].split("\r\033[K")[-1] == "kept"
    assert screen[1] == "\r\033[K"
    assert len(screen) == 2


def test_time_left_counts_the_tasks_to_train_only() -> None:
    progress = ProgressLine(5, stream=io.StringIO())
    progress.begin([2, 4])
    last = report(task=2, epoch=7, epochs=10, seconds=3.0)
    progress.epoch(last)
    assert progress.seconds_left(last) == pytest.approx((3 + 10) * 3.0)
    end = report(task=4, epoch=10, epochs=10, seconds=3.0)
    progress.epoch(end)
    assert progress.seconds_left(end) == 0


def test_time_left_follows_the_last_ten_epochs() -> None:
    progress = ProgressLine(1, stream=io.StringIO())
    progress.begin([1])
    for epoch in range(1, 6):
        progress.epoch(report(epoch=epoch, epochs=40, seconds=100.0))
    progress.epoch(report(epoch=6, epochs=40, seconds=4.0))
    assert progress.seconds_left(report(epoch=6, epochs=40)) == pytest.approx(34 * (5 * 100 + 4) / 6)
    for epoch in range(7, 17):
        progress.epoch(report(epoch=epoch, epochs=40, seconds=4.0))
    assert progress.seconds_left(report(epoch=16, epochs=40)) == pytest.approx(24 * 4.0)
