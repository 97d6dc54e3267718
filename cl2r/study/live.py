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
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, TextIO

from cl2r.runtime.logs import without_secrets
from cl2r.runtime.progress import EpochReport, TimeLeft, epoch_values, progress_text
from cl2r.runtime.text import clock
from cl2r.storage.path import StoragePath

if TYPE_CHECKING:
    from rich.console import RenderableType

log = logging.getLogger(__name__)

STALE_SECONDS = 60.0


@dataclass(frozen=True)
class LiveRow:
    """Progress of one training process; `stale` if its file has not been written for a minute."""

    label: str
    run: str
    title: str
    pid: int
    host: str
    time: float
    task: int
    tasks: int
    epoch: int
    epochs: int
    images_per_second: float
    loss: float
    seconds_left: float
    stale: bool = False

    @property
    def text(self) -> str:
        """How far the run is, as text without its title."""
        where = progress_text(
            task=self.task,
            tasks=self.tasks,
            epoch=self.epoch,
            epochs=self.epochs,
            images_per_second=self.images_per_second,
            loss=self.loss,
            seconds_left=self.seconds_left,
        )
        return where + (f" · silent for {clock(max(0.0, time.time() - self.time))}" if self.stale else "")


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
        """Receive the tasks that will be trained, for the time left."""
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
    known = {entry.name for entry in fields(LiveRow)}
    rows = []
    for path in folder.list("*.json"):
        try:
            entry = json.loads(path.read_text())
        except FileNotFoundError:  # its run ended between listing and reading
            continue
        info = path.info()
        if info is None:
            continue
        stale = time.time() - info.mtime_ns / 1e9 > STALE_SECONDS
        rows.append(LiveRow(**{name: value for name, value in entry.items() if name in known}, stale=stale))
    return rows


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
            console=self.console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._reported: set[str] = set()
        self._beat = time.monotonic()
        self._stopping = threading.Event()
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
        if self.console.is_terminal:
            rows = self._render()
            if not self._live.is_started:
                self._write(self._live.start)
                self._write(self.console.show_cursor)  # or a driver that is killed would leave it hidden
            self._write(lambda: self._live.update(rows, refresh=True))
        elif time.monotonic() - self._beat >= self.heartbeat:
            self._beat = time.monotonic()
            self.say(self._totals())

    def _loop(self) -> None:
        while not self._stopping.is_set():
            self.refresh()
            self._stopping.wait(self.interval)

    def _render(self) -> "RenderableType":
        from rich.cells import cell_len, set_cell_size
        from rich.console import Group
        from rich.text import Text

        totals, lines = self._totals(), list[str]()
        try:
            rows = read_live(self.folder)
            shown = rows[: max(0, self.console.height - 3)]
            width = max((cell_len(row.title) for row in shown), default=0)
            lines = [f"{set_cell_size(row.title, width)}   {row.text}" for row in shown]
            lines += [f"… and {len(rows) - len(shown)} more"] if len(rows) > len(shown) else []
        except Exception as error:  # whatever it is, the study continues
            self._report_once("its running trials", error)
        return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in [*lines, totals]))

    def _totals(self) -> str:
        try:
            return self.totals().replace("\n", " ")
        except Exception as error:  # whatever it is, the study continues
            self._report_once("its totals", error)
            return "totals unknown"

    def _report_once(self, what: str, error: Exception) -> None:
        if what not in self._reported:
            self._reported.add(what)
            self.say(f"note: the live view cannot show {what}: {' '.join(f'{type(error).__name__}: {error}'.split())}")

    def _write(self, write: Callable[[], object]) -> None:
        if self.lost:
            return
        try:
            write()
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            self.lost = error
