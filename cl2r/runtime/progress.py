"""Progress of a run: its events, the time left, and a line on the terminal."""

import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
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
    """A listener that rewrites one line on a terminal and prints nothing elsewhere."""

    def __init__(self, tasks: int, stream: TextIO | None = None) -> None:
        super().__init__()
        self.tasks, self.stream = tasks, stream or sys.stderr

    def epoch(self, report: EpochReport) -> None:
        super().epoch(report)
        self._show(progress_text(epoch_values(report, self.tasks, self.after(report))))

    def close(self) -> None:
        """Remove the line."""
        self._show("")

    def _show(self, line: str) -> None:
        if self.stream.isatty():
            print(f"\r\033[K{line}", end="", file=self.stream, flush=True)
