"""What a study shows while it runs: one progress file per training process, and one view of all of them.

Training processes may run on other machines, so they write files into the study's folder, and the driver, which owns
the terminal, reads them. Nothing here is a result: a file is removed when its run ends.
"""

import contextlib
import json
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TextIO, TypeVar

from cl2r.runtime.logs import without_secrets
from cl2r.runtime.progress import EpochReport, TimeLeft, epoch_values, progress_text
from cl2r.runtime.text import clock, printable
from cl2r.storage.path import StoragePath

T = TypeVar("T")
log = logging.getLogger(__name__)
_noted: set[StoragePath] = set()  # files that are no progress, which the log has mentioned

STALE_SECONDS = 60.0
REMOTE_SECONDS = 5.0  # how often progress is written to an object store, and read there


class LiveRow(NamedTuple):
    """Progress of one training process; `stale` if its file has not been written for a minute."""

    title: str
    text: str
    stale: bool
    progress: Mapping[str, Any] = {}
    """The values that `text` shows."""


class LiveFile(TimeLeft):
    """A listener that keeps a progress file current."""

    def __init__(self, path: StoragePath, title: str, tasks: int) -> None:
        super().__init__()
        self.path, self.title, self.tasks = path, title, tasks
        self.interval, self._written = REMOTE_SECONDS if path.remote else 1.0, -math.inf

    def begin(self, tasks: list[int]) -> None:
        super().begin([task for task in tasks if task <= self.tasks])

    def epoch(self, report: EpochReport) -> None:
        """Write the file, unless it was written less than `interval` seconds ago."""
        super().epoch(report)
        if time.monotonic() - self._written < self.interval:
            return
        entry = {"title": self.title, "progress": epoch_values(report, self.tasks, self.after(report))}
        try:  # not flushed to disk, because it is useless after a crash
            self.path.write_file(json.dumps(entry).encode(), durable=False)
        except OSError as error:  # progress is not a result: training continues
            log.info("note: cannot write the progress of %s: %s", self.title, error)
        self._written = time.monotonic()

    def close(self) -> None:
        """Remove the file: the run has ended."""
        with contextlib.suppress(OSError):  # the next driver removes it
            self.path.unlink(missing_ok=True)


def read_live(folder: StoragePath) -> list[LiveRow]:
    """Return the progress of every running training process, sorted by the names of the files."""
    rows = []
    for path in folder.list("*.json"):
        try:
            title, progress, text = read_progress(path)
        except FileNotFoundError:  # its run ended between listing and reading
            continue
        except (OSError, ValueError) as error:
            if path not in _noted:
                log.warning("%s is not a progress file (%s); it is ignored", printable(str(path)), error)
                _noted.add(path)
            continue
        if info := path.file_info():
            silent = time.time() - info.mtime_ns / 1e9
            stale = silent > STALE_SECONDS
            rows.append(LiveRow(title, text + (f" · silent for {clock(silent)}" if stale else ""), stale, progress))
    return rows


def read_progress(path: StoragePath) -> tuple[str, dict[str, Any], str]:
    """Return title, values and text of a progress file. Raise ValueError if it is none."""
    try:
        entry = json.loads(path.read_bytes())  # may hold NaN, the loss of a run that fails
        return str(entry["title"]), entry["progress"], progress_text(entry["progress"])
    except (ArithmeticError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def aligned(rows: Sequence[LiveRow]) -> list[str]:
    """Return one line per row; the text begins at the same column in all of them."""
    from rich.cells import cell_len, set_cell_size

    titles = [printable(row.title) for row in rows]
    width = max(map(cell_len, titles), default=0)
    return [f"{set_cell_size(title, width)}   {row.text}" for title, row in zip(titles, rows, strict=True)]


class LiveView(threading.Thread):
    """Shows a study from its own thread, with rich.

    A terminal shows one row per running trial, then `totals()`, and said lines above them. Any other stream gets the
    said lines, and the totals with one running trial: as soon as there is one, then every `heartbeat` seconds. The
    study outlives its view: an error in here is reported once, and a stream that is gone (a closed terminal) is written
    to no more; `lost` then holds the error.
    """

    def __init__(
        self,
        folder: StoragePath,
        totals: Callable[[], str],
        stream: TextIO | None = None,
        interval: float | None = None,
        heartbeat: float = 30.0,
    ) -> None:
        from rich.console import Console  # training processes import this module too, and only write files
        from rich.live import Live

        super().__init__(name="live view", daemon=True)
        self.folder, self.totals, self.heartbeat = folder, totals, heartbeat
        self.interval = interval or (REMOTE_SECONDS if folder.remote else 0.5)
        self.console = Console(file=sys.stderr if stream is None else stream, highlight=False, markup=False)
        self.lost: Exception | None = None
        self._live = Live(
            console=self.console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._reported: set[str] = set()
        self._beat, self._begun = time.monotonic(), False  # the last line of totals; whether it named a trial
        self._stopping, self._writing = threading.Event(), threading.Lock()

    def run(self) -> None:
        while not self._stopping.is_set():
            self.refresh()
            self._stopping.wait(self.interval)

    def stop(self) -> None:
        """End the thread and clear the rows."""
        self._stopping.set()
        if self.is_alive():
            self.join()
        self._write(self._live.stop)

    def say(self, line: str) -> None:
        """Show a line that stays, above the rows. Any thread may call this."""
        self._write(lambda: self.console.print(without_secrets(line), soft_wrap=True))

    def refresh(self) -> None:
        """Redraw the rows on a terminal; elsewhere print the totals if it is time."""
        from rich.console import Group
        from rich.text import Text

        terminal, due = self.console.is_terminal, time.monotonic() - self._beat >= self.heartbeat
        if not terminal and self._begun and not due:
            return
        rows = self._shown("its running trials", lambda: read_live(self.folder), list[LiveRow]())
        if not terminal and not rows and not due:
            return
        totals = self._shown("its totals", lambda: self.totals().replace("\n", " "), "totals unknown")
        if not terminal:
            self._beat, self._begun = time.monotonic(), self._begun or bool(rows)
            others = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
            self.say(" · ".join([totals, *(f"{row.title}: {row.text}{others}" for row in rows[:1])]))
            return
        lines = aligned(rows)
        room = max(0, self.console.height - 3)
        more = [f"… and {len(lines) - room} more"] if len(lines) > room else []
        block = Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in [*lines[:room], *more, totals]))
        if not self._live.is_started:
            self._write(self._live.start)
            self._write(self.console.show_cursor)  # or a driver that is killed would leave it hidden
        self._write(lambda: self._live.update(block, refresh=True))

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
