"""The live line of a run, and quiet lines where there is no terminal."""

import sys
from collections import deque
from dataclasses import dataclass, field
from typing import TextIO

from cl2r.engine.task_loop import EpochReport


def clock(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@dataclass
class ProgressLine:
    """Listens to a run. On a terminal one line is rewritten; elsewhere only whole lines are printed."""

    tasks: int
    label: str = ""
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    _waiting: list[int] = field(default_factory=list)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=10))

    def say(self, line: str) -> None:
        """A line worth keeping."""
        self._clear()
        print(f"{self.label}{line}", file=self.stream, flush=True)

    def begin(self, tasks: list[int]) -> None:
        """Remember what is to come, for the time left."""
        self._waiting = tasks

    def epoch(self, report: EpochReport) -> None:
        """Rewrite the live line."""
        self._recent.append(report.seconds)
        if not self.stream.isatty():
            return
        loss = sum(report.losses.values())
        parts = [
            f"task {report.task}/{self.tasks}",
            f"epoch {report.epoch}/{report.epochs}",
            f"{report.images / report.seconds:,.0f} images/s",
            f"loss {loss:.3f}",
            f"{clock(self.seconds_left(report))} left",
        ]
        self._clear()
        print(self.label + " · ".join(parts), end="", file=self.stream, flush=True)

    def seconds_left(self, report: EpochReport) -> float:
        """Epochs to come times the mean of the recent ones."""
        later = sum(task > report.task for task in self._waiting)
        epochs = report.epochs - report.epoch + later * report.epochs
        return epochs * sum(self._recent) / len(self._recent)

    def close(self) -> None:
        """Leave a clean terminal behind."""
        self._clear()

    def _clear(self) -> None:
        if self.stream.isatty():
            print("\r\033[K", end="", file=self.stream, flush=True)
