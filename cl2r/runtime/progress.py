"""Progress of a command and of a run: what takes a while, events, the time left, and a line on the terminal."""

import contextlib
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from typing import Any, Protocol, TextIO

from cl2r.runtime.text import clock

log = logging.getLogger(__name__)
SLOW_S = 1.0  # what takes longer is announced
FIRST_LINE_S, LINE_EVERY_S = 10.0, 30.0  # when a stream that is no terminal gets lines of progress


class ImportNotes(MetaPathFinder):
    """Logs a line before a module is imported that takes seconds to import."""

    def __init__(self, lines: Mapping[str, str]) -> None:
        self.lines = dict(lines)

    @classmethod
    def install(cls, **lines: str) -> None:
        """Announce the modules that are not imported yet; each is named with its line."""
        left = {name: line for name, line in lines.items() if name not in sys.modules}
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, cls)]
        sys.meta_path.insert(0, cls(left))

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        """Find nothing: the other finders are asked next."""
        if line := self.lines.pop(fullname, None):
            log.info("%s", line)


@contextlib.contextmanager
def announced(line: str) -> Iterator[None]:
    """Log `line` if the block has not ended after a second."""
    timer = threading.Timer(SLOW_S, log.info, ("%s", line))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@dataclass(frozen=True)
class EpochReport:
    """A finished epoch, for the progress line and the `curves` frame."""

    task: int
    stage: str
    epoch: int
    epochs: int
    lr: float
    images: int
    seconds: float
    losses: dict[str, float]


class Listener(Protocol):
    """Receives progress events of a run."""

    def begin(self, tasks: list[int]) -> None:
        """Receive the tasks that will be trained."""

    def epoch(self, report: EpochReport) -> None:
        """Receive a finished epoch."""


def epoch_values(report: EpochReport, tasks: int, seconds_left: float) -> dict[str, Any]:
    """Return the values that `progress_text` shows of an epoch."""
    speed, loss = report.images / report.seconds, sum(report.losses.values())
    where = {"task": report.task, "tasks": tasks, "epoch": report.epoch, "epochs": report.epochs}
    return where | {"images_per_second": speed, "loss": loss, "seconds_left": seconds_left}


def progress_text(values: Mapping[str, Any]) -> str:
    """Return `task 2/5 · epoch 4/10 · 1,500 images/s · loss 1.250 · 1:12 left`."""
    text = "task {task}/{tasks} · epoch {epoch}/{epochs} · {images_per_second:,.0f} images/s · loss {loss:.3f}"
    return f"{text.format_map(values)} · {clock(values['seconds_left'])} left"


class TimeLeft:
    """A listener that estimates the rest of a run: remaining epochs times the mean duration of the last ten."""

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._recent: deque[float] = deque(maxlen=10)

    def begin(self, tasks: list[int]) -> None:
        self._waiting = tasks

    def epoch(self, report: EpochReport) -> None:
        self._recent.append(report.seconds)

    def after(self, report: EpochReport) -> float:
        """Return the seconds from the end of an epoch to the end of the run."""
        later = sum(task > report.task for task in self._waiting)
        epochs = report.epochs - report.epoch + later * report.epochs
        return epochs * sum(self._recent) / len(self._recent)


class ProgressLine(TimeLeft):
    """A listener that rewrites one line on a terminal; elsewhere it prints a line from time to time."""

    def __init__(self, tasks: int, stream: TextIO | None = None) -> None:
        super().__init__()
        self.tasks, self.stream = tasks, stream or sys.stderr
        self._next = time.monotonic() + FIRST_LINE_S

    def epoch(self, report: EpochReport) -> None:
        super().epoch(report)
        line = progress_text(epoch_values(report, self.tasks, self.after(report)))
        if self.stream.isatty():
            self._rewrite(line)
        elif time.monotonic() >= self._next:
            print(line, file=self.stream, flush=True)
            self._next = time.monotonic() + LINE_EVERY_S

    def close(self) -> None:
        """Remove the line from a terminal."""
        if self.stream.isatty():
            self._rewrite("")

    def _rewrite(self, line: str) -> None:
        print(f"\r\033[K{line}", end="", file=self.stream, flush=True)
