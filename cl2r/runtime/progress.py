"""Progress of a run: its events, the time left, and a line on the terminal."""

import sys
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

from cl2r.runtime.text import clock


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


def progress_text(
    *, task: int, tasks: int, epoch: int, epochs: int, images_per_second: float, loss: float, seconds_left: float
) -> str:
    """Return `task 2/5 · epoch 4/10 · 1,500 images/s · loss 1.250 · 1:12 left`."""
    parts = [
        f"task {task}/{tasks}",
        f"epoch {epoch}/{epochs}",
        f"{images_per_second:,.0f} images/s",
        f"loss {loss:.3f}",
        f"{clock(seconds_left)} left",
    ]
    return " · ".join(parts)


def epoch_values(report: EpochReport, tasks: int, seconds_left: float) -> dict[str, Any]:
    """Return the arguments of `progress_text` for an epoch."""
    return {
        "task": report.task,
        "tasks": tasks,
        "epoch": report.epoch,
        "epochs": report.epochs,
        "images_per_second": report.images / report.seconds,
        "loss": sum(report.losses.values()),
        "seconds_left": seconds_left,
    }


@dataclass
class TimeLeft:
    """Estimates the rest of a run: remaining epochs times the mean of the last ten."""

    _waiting: list[int] = field(default_factory=list)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=10))

    def begin(self, tasks: list[int]) -> None:
        """Receive the tasks that will be trained."""
        self._waiting = tasks

    def epoch(self, report: EpochReport) -> None:
        """Receive a finished epoch."""
        self._recent.append(report.seconds)

    def after(self, report: EpochReport) -> float:
        """Return the seconds from the end of an epoch to the end of the run."""
        later = sum(task > report.task for task in self._waiting)
        epochs = report.epochs - report.epoch + later * report.epochs
        return epochs * sum(self._recent) / len(self._recent)


@dataclass
class ProgressLine:
    """A listener that rewrites one line on a terminal and prints nothing elsewhere."""

    tasks: int
    label: str = ""
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    _left: TimeLeft = field(default_factory=TimeLeft)

    def begin(self, tasks: list[int]) -> None:
        self._left.begin(tasks)

    def epoch(self, report: EpochReport) -> None:
        self._left.epoch(report)
        if not self.stream.isatty():
            return
        line = progress_text(**epoch_values(report, self.tasks, self.seconds_left(report)))
        self._clear()
        print(self.label + line, end="", file=self.stream, flush=True)

    def seconds_left(self, report: EpochReport) -> float:
        """Return the seconds from the end of an epoch to the end of the run."""
        return self._left.after(report)

    def close(self) -> None:
        """Remove the line."""
        self._clear()

    def _clear(self) -> None:
        if self.stream.isatty():
            print("\r\033[K", end="", file=self.stream, flush=True)
