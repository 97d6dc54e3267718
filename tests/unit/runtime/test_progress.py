"""The progress line on a terminal and in a log, and the time left."""

import io
import logging
import threading
from types import SimpleNamespace

import pytest

from cl2r.runtime import progress as module
from cl2r.runtime.logs import configure
from cl2r.runtime.progress import EpochReport, ProgressLine, TimeLeft, announced


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def report(task: int = 1, epoch: int = 1, epochs: int = 10, seconds: float = 2.0) -> EpochReport:
    return EpochReport(task, "train", epoch, epochs, 0.1, 3000, seconds, {"ce": 0.75, "fd": 0.5})


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (io.StringIO, ""),
        (Terminal, "\r\033[Ktask 2/5 · epoch 4/10 · 1,500 images/s · loss 1.250 · 1:12 left\r\033[K"),
    ],
)
def test_only_a_terminal_sees_where_the_run_is(kind: type[io.StringIO], shown: str) -> None:
    stream = kind()
    progress = ProgressLine(5, stream)
    progress.begin([2, 3, 4, 5])
    progress.epoch(report(task=2, epoch=4))
    progress.close()
    assert stream.getvalue() == shown


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
    line, rest = terminal.getvalue().split("\n")
    assert (line.split("\r\033[K")[-1], rest) == ("kept", "\r\033[K")


def test_a_log_gets_a_line_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "FIRST_LINE_S", 10.0)
    log = io.StringIO()
    progress = ProgressLine(1, log)
    progress.begin([1])
    for epoch, clock.now in enumerate([101.0, 111.0, 120.0, 140.9, 141.0], start=1):
        progress.epoch(report(epoch=epoch))
    progress.close()
    assert [line.split(" · ")[1] for line in log.getvalue().splitlines()] == ["epoch 2/10", "epoch 5/10"]


def test_what_takes_a_while_is_announced(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    said = threading.Event()
    monkeypatch.setattr(module.log, "info", lambda *words: said.set() if words[-1] == "reading…" else None)
    with announced("reading…"):
        pass
    assert not said.is_set()
    monkeypatch.setattr(module, "SLOW_S", 0.0)
    with announced("reading…"):
        assert said.wait(60)


def test_time_left_counts_the_tasks_to_train_only() -> None:
    left = TimeLeft()
    left.begin([2, 4])
    for epoch, expected in ((report(task=2, epoch=7, seconds=3.0), (3 + 10) * 3.0), (report(task=4, epoch=10), 0)):
        left.epoch(epoch)
        assert left.after(epoch) == pytest.approx(expected)


def test_time_left_follows_the_last_ten_epochs() -> None:
    left = TimeLeft()
    left.begin([1])
    for epoch in range(1, 17):
        left.epoch(report(epoch=epoch, epochs=40, seconds=100.0 if epoch < 6 else 4.0))
        if epoch == 6:
            assert left.after(report(epoch=6, epochs=40)) == pytest.approx(34 * (5 * 100 + 4) / 6)
    assert left.after(report(epoch=16, epochs=40)) == pytest.approx(24 * 4.0)
