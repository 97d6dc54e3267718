"""`cl2r report --watch`: the page of a study that is still running, built again as the study goes on."""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from analysis.study import Study, read_about
from cl2r.errors import InputError
from cl2r.files import listed, stamp
from cl2r.privacy import without_secrets
from cl2r.study import status
from cl2r.study.report import Say, Source

SHARE = 4
"""A pause lasts at least so many times as long as building the page took: runs need the processors more."""
STOPPED = 130
UNREADABLE = (OSError, InputError, json.JSONDecodeError)
"""A disk or a network that may be back soon, or a file that is only half copied yet."""
CHANCES = 3
"""How often the study is read at its end before the page is left as it was."""


class Watch:
    """Builds the page at `path` whenever frames, ledger or live files have changed, every `interval` seconds at most.

    While the study runs, the page loads itself again; the last page does not. A study on this machine's disk tells its
    end by its ledger and its driver's lock; elsewhere about.json does and, without one, only Ctrl-C ends the watch.
    """

    def __init__(
        self,
        source: Source,
        path: Path,
        interval: float,
        say: Say,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source, self.path, self.interval, self.say = source, path, interval, say
        self.sleep, self.clock = sleep, clock
        self._built: Any = None
        self._read: Study | None = None
        self._said: set[str] = set()

    def run(self) -> int:
        """Until the study has ended (0) or Ctrl-C (130); either way the last page stands still. 1: there is none."""
        code, study = 0, None
        try:
            self._follow()
            study = self._latest(CHANCES)
        except KeyboardInterrupt:
            code = STOPPED
        with _uninterrupted():
            if code == STOPPED:
                self.say(f"stopped watching {self.source.name}")
                study = self._latest(1)
            return self._leave(study, code)

    def _follow(self) -> None:
        self._say_once(f"watching {self.source.name}; Ctrl-C ends")
        while True:
            began = self.clock()
            try:
                if not self.is_running():
                    self.say(self._farewell())
                    return
                self._refresh()
            except UNREADABLE as error:
                self._say_unreadable(error)
            self.sleep(max(self.interval, SHARE * (self.clock() - began)))

    def _latest(self, chances: int) -> Study | None:
        """The study as it is now or, if it cannot be read, as it was last; None if no run has ended."""
        for left in reversed(range(chances)):
            try:
                return self.source.load() if self.source.has_runs() else None
            except UNREADABLE as error:
                self._say_unreadable(error)
                if left:
                    self.sleep(self.interval)
                elif self._read is None:
                    raise
        return self._read

    def _leave(self, study: Study | None, code: int) -> int:
        """The last page, which does not load itself again."""
        if study is None:
            self.say(f"no run of {self.source.name} has ended: there is no report")
            return code or 1
        self._write(study)
        self.say(f"report: {self.path}")
        return code

    def is_running(self) -> bool:
        """Whether more is to come, as far as can be known."""
        if self.source.folder is not None:
            return status.phase(self.source.folder) == "running"
        return read_about(self.source.place).get("ended") is None

    def _refresh(self) -> None:
        """Build the page if anything has changed since the last one."""
        stamp = self.stamp()
        if not self.source.has_runs():
            self._say_once(f"no run of {self.source.name} has ended yet: waiting for the first")
        elif stamp != self._built:
            self._build(self.live(), self.interval)
            self._built = stamp
            self._say_once(f"report: {self.path} (built again as runs go on)")

    def stamp(self) -> Any:
        """What changes when the study moves."""
        folder = self.source.folder
        if folder is None:
            return self.source.place.stamp()
        events = [event.path.name for event in folder.ledger.events()]
        live = [(path.name, stamp(path)) for path in listed(folder.live, "*.json")]
        return (self.source.place.stamp(), events, live)

    def live(self) -> list[str]:
        """How far the study is, and what is running."""
        folder = self.source.folder
        return [status.counts(folder), *status.running(folder)] if folder else []

    def _build(self, live: list[str], refresh: float) -> None:
        self._read = self.source.load()
        self._write(self._read, live, refresh)

    def _write(self, study: Study, live: list[str] | None = None, refresh: float | None = None) -> None:
        from analysis.report import write_report

        write_report(study, self.path, live=live or [], refresh=refresh)

    def _farewell(self) -> str:
        folder = self.source.folder
        if folder is None or status.phase(folder) == "closed":
            return f"{self.source.name} has ended"
        return f"{self.source.name} is not being run: {status.counts(folder)}"

    def _say_unreadable(self, error: Exception) -> None:
        self._say_once(without_secrets(f"cannot read {self.source.name} at the moment: {error}"))

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self.say(line)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits: a page that loads itself again for ever would be the worse end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
