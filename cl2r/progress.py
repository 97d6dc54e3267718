"""The live line of a run, and quiet lines where there is no terminal."""

import sys
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from cl2r.privacy import without_secrets

if TYPE_CHECKING:  # who only shows progress need not wait for torch
    from cl2r.engine.task_loop import EpochReport


def clock(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def whereabouts(
    *, task: int, tasks: int, epoch: int, epochs: int, images_per_second: float, loss: float, seconds_left: float
) -> str:
    """`task 2/5 · epoch 4/10 · 1,500 images/s · loss 1.250 · 1:12 left`."""
    parts = [
        f"task {task}/{tasks}",
        f"epoch {epoch}/{epochs}",
        f"{images_per_second:,.0f} images/s",
        f"loss {loss:.3f}",
        f"{clock(seconds_left)} left",
    ]
    return " · ".join(parts)


def figures(report: "EpochReport", tasks: int, seconds_left: float) -> dict[str, Any]:
    """What `whereabouts` says of an epoch."""
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
    """Epochs to come times the mean of the recent ones."""

    _waiting: list[int] = field(default_factory=list)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=10))

    def begin(self, tasks: list[int]) -> None:
        """The tasks that will be trained."""
        self._waiting = tasks

    def epoch(self, report: "EpochReport") -> None:
        """An epoch took its time."""
        self._recent.append(report.seconds)

    def after(self, report: "EpochReport") -> float:
        """Seconds from the end of that epoch to the end of the run."""
        later = sum(task > report.task for task in self._waiting)
        epochs = report.epochs - report.epoch + later * report.epochs
        return epochs * sum(self._recent) / len(self._recent)


@dataclass
class ProgressLine:
    """Listens to a run. On a terminal one line is rewritten; elsewhere only whole lines are printed."""

    tasks: int
    label: str = ""
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    _left: TimeLeft = field(default_factory=TimeLeft)

    def say(self, line: str) -> None:
        """A line worth keeping."""
        self._clear()
        print(f"{self.label}{without_secrets(line)}", file=self.stream, flush=True)

    def warn(self, line: str) -> None:
        """A line that must be seen."""
        self.say(line)

    def begin(self, tasks: list[int]) -> None:
        """Remember what is to come, for the time left."""
        self._left.begin(tasks)

    def epoch(self, report: "EpochReport") -> None:
        """Rewrite the live line."""
        self._left.epoch(report)
        if not self.stream.isatty():
            return
        line = whereabouts(**figures(report, self.tasks, self.seconds_left(report)))
        self._clear()
        print(self.label + line, end="", file=self.stream, flush=True)

    def seconds_left(self, report: "EpochReport") -> float:
        """Seconds from the end of that epoch to the end of the run."""
        return self._left.after(report)

    def close(self) -> None:
        """Leave a clean terminal behind."""
        self._clear()

    def _clear(self) -> None:
        if self.stream.isatty():
            print("\r\033[K", end="", file=self.stream, flush=True)
