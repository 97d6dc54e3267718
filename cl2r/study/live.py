"""What a study shows while it runs: one progress file per training process, and one view of all of them.

Training processes may run on other machines, so they write files into the study's folder, and the driver, which owns
the terminal, reads them. Nothing here is a result: a file is removed when its run ends.
"""

import contextlib
import json
import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO, TypeVar

from cl2r.runtime.logs import without_secrets
from cl2r.runtime.progress import EpochReport, TimeLeft, epoch_values, progress_text
from cl2r.runtime.text import clock
from cl2r.storage.path import StoragePath

T = TypeVar("T")
log = logging.getLogger(__name__)

STALE_SECONDS = 60.0
PROGRESS = ("task", "tasks", "epoch", "epochs", "images_per_second", "loss", "seconds_left")


@dataclass(frozen=True)
class LiveRow:
    """Progress of one training process; `stale` if its file has not been written for a minute."""

    title: str
    time: float
    progress: dict[str, Any]
    """The values of `PROGRESS`."""
    stale: bool

    @property
    def text(self) -> str:
        """How far the run is, as text without its title."""
        silent = f" · silent for {clock(max(0.0, time.time() - self.time))}" if self.stale else ""
        return progress_text(self.progress) + silent


@dataclass
class LiveFile:
    """A listener that keeps `<folder>/<label>.json` current."""

    folder: StoragePath
    label: str
    run: str
    title: str
    tasks: int
    interval: float = 1.0
    _left: TimeLeft = field(default_factory=TimeLeft)
    _written: float = -math.inf

    @property
    def path(self) -> StoragePath:
        """The progress file."""
        return self.folder / f"{self.label}.json"

    def begin(self, tasks: list[int]) -> None:
        self._left.begin([task for task in tasks if task <= self.tasks])

    def epoch(self, report: EpochReport) -> None:
        """Write the file, unless it was written less than `interval` seconds ago."""
        self._left.epoch(report)
        if time.monotonic() - self._written < self.interval:
            return
        entry = {
            "label": self.label,
            "run": self.run,
            "title": self.title,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "time": time.time(),
            **epoch_values(report, self.tasks, self._left.after(report)),
        }
        try:  # not flushed to disk, because it is useless after a crash
            self.path.write_file(json.dumps(entry).encode(), durable=False)
        except OSError as error:  # progress is not a result: training continues
            log.info("note: cannot write the progress of %s: %s", self.label, error)
        self._written = time.monotonic()

    def close(self) -> None:
        """Remove the file: the run has ended."""
        with contextlib.suppress(OSError):  # the next driver removes it
            self.path.unlink(missing_ok=True)


def read_live(folder: StoragePath) -> list[LiveRow]:
    """Return the progress of every running training process, sorted by label."""
    rows = []
    for path in folder.list("*.json"):
        try:
            entry = json.loads(path.read_text())
        except FileNotFoundError:  # its run ended between listing and reading
            continue
        if info := path.info():
            stale = time.time() - info.mtime_ns / 1e9 > STALE_SECONDS
            rows.append(LiveRow(entry["title"], entry["time"], {name: entry[name] for name in PROGRESS}, stale))
    return rows


def aligned(rows: Sequence[LiveRow]) -> list[str]:
    """Return one line per row; the text begins at the same column in all of them."""
    from rich.cells import cell_len, set_cell_size

    width = max((cell_len(row.title) for row in rows), default=0)
    return [f"{set_cell_size(row.title, width)}   {row.text}" for row in rows]


class LiveView:
    """Shows a study from its own thread, with rich.

    A terminal shows one row per running trial, then `totals()`, and said lines above them. Any other stream gets the
    said lines, and the totals every `heartbeat` seconds. The study outlives its view: an error in here is reported
    once, and a stream that is gone (a closed terminal) is written to no more; `lost` then holds the error.
    """

    def __init__(
        self,
        folder: StoragePath,
        totals: Callable[[], str],
        stream: TextIO | None = None,
        interval: float = 0.5,
        heartbeat: float = 60.0,
    ) -> None:
        from rich.console import Console  # training processes import this module too, and only write files
        from rich.live import Live

        self.folder, self.totals, self.interval, self.heartbeat = folder, totals, interval, heartbeat
        self.console = Console(file=sys.stderr if stream is None else stream, highlight=False, markup=False)
        self.lost: Exception | None = None
        self._live = Live(
            console=self.console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._reported: set[str] = set()
        self._beat = time.monotonic()
        self._stopping, self._writing = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="live view", daemon=True)

    def start(self) -> None:
        """Begin to show."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and clear the rows."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._write(self._live.stop)

    def say(self, line: str) -> None:
        """Show a line that stays, above the rows. Any thread may call this."""
        self._write(lambda: self.console.print(without_secrets(line), soft_wrap=True))

    def refresh(self) -> None:
        """Redraw the rows on a terminal; elsewhere print the totals if the time of the heartbeat has come."""
        from rich.console import Group
        from rich.text import Text

        if not self.console.is_terminal:
            if time.monotonic() - self._beat >= self.heartbeat:
                self._beat = time.monotonic()
                self.say(self._totals())
            return
        totals, room = self._totals(), max(0, self.console.height - 3)
        rows = self._shown("its running trials", lambda: read_live(self.folder), list[LiveRow]())
        lines = self._shown("its running trials", lambda: aligned(rows[:room]), list[str]())
        lines += [f"… and {len(rows) - room} more"] if len(rows) > room else []
        block = Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in [*lines, totals]))
        if not self._live.is_started:
            self._write(self._live.start)
            self._write(self.console.show_cursor)  # or a driver that is killed would leave it hidden
        self._write(lambda: self._live.update(block, refresh=True))

    def _loop(self) -> None:
        while not self._stopping.is_set():
            self.refresh()
            self._stopping.wait(self.interval)

    def _totals(self) -> str:
        return self._shown("its totals", lambda: self.totals().replace("\n", " "), "totals unknown")

    def _shown(self, what: str, produce: Callable[[], T], otherwise: T) -> T:
        try:
            return produce()
        except Exception as error:  # whatever it is, the study continues
            if what not in self._reported:
                self._reported.add(what)
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                self.say(f"note: the live view cannot show {what}: {reason}")
            return otherwise

    def _write(self, write: Callable[[], object]) -> None:
        if self.lost:
            return
        try:
            with self._writing:  # rich lets two threads draw from the same position of the cursor
                write()
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            self.lost = error
