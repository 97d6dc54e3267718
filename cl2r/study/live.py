"""What a study shows while it runs: a small file a training process, and one view of all of them.

Training processes may sit on other machines, so they leave word in files of the study's folder, and the driver, who
owns the terminal, reads them. Nothing here is a result: the files are gone when their runs are.
"""

import contextlib
import json
import math
import os
import shutil
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, TextIO, TypeVar

from cl2r.files import Place, listed, modified
from cl2r.objects import ObjectPath
from cl2r.privacy import without_secrets
from cl2r.progress import TimeLeft, clock, figures, whereabouts

if TYPE_CHECKING:
    from cl2r.engine.task_loop import EpochReport

STALE_SECONDS = 60.0
Read = TypeVar("Read")


@dataclass(frozen=True)
class LiveRow:
    """Where one training process is; `stale` if its file has not been touched for a minute."""

    label: str
    run: str
    title: str
    trunk: bool
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

    def line(self, title_width: int) -> str:
        """The row as the live view shows it."""
        where = whereabouts(
            task=self.task,
            tasks=self.tasks,
            epoch=self.epoch,
            epochs=self.epochs,
            images_per_second=self.images_per_second,
            loss=self.loss,
            seconds_left=self.seconds_left,
        )
        silent = f" · silent for {clock(max(0.0, time.time() - self.time))}" if self.stale else ""
        return f"{self.title:<{title_width}}   {where}{silent}"


@dataclass
class LiveFile:
    """Listens to a run and keeps `<folder>/<label>.json` current. Lines that must be seen go to `on_warn`."""

    folder: Place
    label: str
    run: str
    title: str
    tasks: int
    trunk: bool = False
    interval: float = 1.0
    on_warn: Callable[[str], None] | None = None
    _left: TimeLeft = field(default_factory=TimeLeft)
    _written: float = -math.inf

    @property
    def path(self) -> Place:
        """The file."""
        return self.folder / f"{self.label}.json"

    def say(self, line: str) -> None:
        """For the log of the process."""
        print(f"{self.label}: {without_secrets(line)}", flush=True)

    def warn(self, line: str) -> None:
        """For the log, and for whoever should hear of it."""
        self.say(line)
        if self.on_warn:
            self.on_warn(line)

    def begin(self, tasks: list[int]) -> None:
        """Remember what is to come, for the time left."""
        self._left.begin([task for task in tasks if task <= self.tasks])

    def epoch(self, report: "EpochReport") -> None:
        """Rewrite the file, unless that was done less than `interval` seconds ago."""
        self._left.epoch(report)
        if time.monotonic() - self._written >= self.interval:
            try:
                self._write(self._row(report))
            except OSError as error:  # nothing here is a result: training goes on
                self.say(f"note: cannot say how far it is: {error}")
            self._written = time.monotonic()

    def close(self) -> None:
        """The run has ended: remove the file."""
        with contextlib.suppress(OSError):  # whoever starts a driver next removes it
            self.path.unlink(missing_ok=True)

    def _row(self, report: "EpochReport") -> LiveRow:
        return LiveRow(
            label=self.label,
            run=self.run,
            title=self.title,
            trunk=self.trunk,
            pid=os.getpid(),
            host=socket.gethostname(),
            time=time.time(),
            **figures(report, self.tasks, self._left.after(report)),
        )

    def _write(self, row: LiveRow) -> None:
        """Seen whole or not at all; never flushed to disk, for it is worth nothing after a crash."""
        entry = asdict(row)
        del entry["stale"]  # for the reader to judge
        path, content = self.path, json.dumps(entry).encode()
        if isinstance(path, ObjectPath):
            path.write_bytes(content)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        aside.write_bytes(content)
        aside.replace(path)


def read_live(folder: Place) -> list[LiveRow]:
    """The training processes that left word below `folder`, in the order of their labels."""
    rows = []
    for path in listed(folder, "*.json"):
        try:
            entry = json.loads(path.read_text())
            touched = modified(path)
        except FileNotFoundError:  # its run ended between the listing and the reading
            continue
        rows.append(LiveRow(**entry, stale=time.time() - touched > STALE_SECONDS))
    return rows


class LiveView:
    """Shows a study from a thread of its own.

    On a terminal a block is redrawn: a line a running trial, then `totals()`. Elsewhere there are only the lines said,
    and the totals every `heartbeat` seconds. A study outlives its view: whatever goes wrong in here is said once, and
    a stream that is gone (a closed terminal) is written to no more; `lost` then holds the error.
    """

    def __init__(
        self,
        folder: Place,
        totals: Callable[[], str],
        stream: TextIO | None = None,
        interval: float = 0.5,
        heartbeat: float = 60.0,
    ) -> None:
        self.folder, self.totals, self.interval, self.heartbeat = folder, totals, interval, heartbeat
        self.stream = sys.stderr if stream is None else stream
        self.lost: Exception | None = None
        self._terminal = self.stream.isatty()
        self._block: list[str] = []
        self._complaints: set[str] = set()
        self._beat = time.monotonic()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="live view", daemon=True)

    def start(self) -> None:
        """Begin to show."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and clear the block."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            self._draw([])

    def say(self, line: str) -> None:
        """A line worth keeping, above the block. Any thread may call this."""
        with self._lock:
            self._draw(self._block, above=f"{without_secrets(line)}\n")

    def refresh(self) -> None:
        """Redraw the block, or let the heart beat if its time has come."""
        if self._terminal:
            block = self._compose()
            with self._lock:
                self._draw(block)
        elif time.monotonic() - self._beat >= self.heartbeat:
            self._beat = time.monotonic()
            self.say(self._totals_line())

    def _loop(self) -> None:
        while not self._stopping.is_set():
            self.refresh()
            self._stopping.wait(self.interval)

    def _compose(self) -> list[str]:
        size = shutil.get_terminal_size()
        nothing: list[str] = []
        running = self._attempt("running trials", lambda: self._running(size.lines - 2), nothing)
        return [line[: size.columns] for line in [*running, self._totals_line()]]

    def _running(self, room: int) -> list[str]:
        rows = read_live(self.folder)
        shown = rows[: max(0, room)]
        width = max((len(row.title) for row in shown), default=0)
        more = [f"… and {len(rows) - len(shown)} more"] if len(rows) > len(shown) else []
        return [row.line(width) for row in shown] + more

    def _totals_line(self) -> str:
        return self._attempt("totals", lambda: self.totals().replace("\n", " "), "totals unknown")

    def _attempt(self, what: str, read: Callable[[], Read], otherwise: Read) -> Read:
        try:
            return read()
        except Exception as error:  # of whatever kind: the study goes on
            if what not in self._complaints:
                self._complaints.add(what)
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                self.say(f"note: the live view cannot show its {what}: {reason}")
            return otherwise

    def _draw(self, block: list[str], above: str = "") -> None:
        """Replace the block on the screen. Who calls this holds the lock."""
        up = f"\033[{len(self._block) - 1}A" if len(self._block) > 1 else ""
        clear = f"\r{up}\033[J" if self._block else ""
        text = clear + above + "\n".join(block)
        self._block = block
        if not text or self.lost:
            return
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            self.lost = error
