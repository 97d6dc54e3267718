"""`cl2r report --watch`: the page of a study that is still running, built again as the study goes on."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from analysis.study import read_about
from cl2r.study import status
from cl2r.study.report import Say, Source

SHARE = 4
"""A pause lasts at least so many times as long as building the page took: runs need the processors more."""
STOPPED = 130


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
        self._said: set[str] = set()

    def run(self) -> int:
        """Until the study has ended (0) or Ctrl-C (130); either way the last page stands still. 1: there is none."""
        try:
            self._follow()
            code = 0
        except KeyboardInterrupt:
            self.say(f"stopped watching {self.source.name}")
            code = STOPPED
        if not self.source.has_runs():
            self.say(f"no run of {self.source.name} has ended: there is no report")
            return code or 1
        self._build()
        self.say(f"report: {self.path}")
        return code

    def _follow(self) -> None:
        self._say_once(f"watching {self.source.name}; Ctrl-C ends")
        while self.is_running():
            began = self.clock()
            try:
                self._refresh()
            except OSError as error:  # a disk or a network that may be back soon
                self._say_once(f"cannot read {self.source.name} at the moment: {error}")
            self.sleep(max(self.interval, SHARE * (self.clock() - began)))
        self.say(self._farewell())

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
        live = [(path.name, _touched(path)) for path in sorted(folder.live.glob("*.json"))]
        return (self.source.place.stamp(), events, live)

    def live(self) -> list[str]:
        """How far the study is, and what is running."""
        folder = self.source.folder
        return [status.counts(folder), *status.running(folder)] if folder else []

    def _build(self, live: list[str] | None = None, refresh: float | None = None) -> None:
        from analysis.report import write_report

        write_report(self.source.load(), self.path, live=live or [], refresh=refresh)

    def _farewell(self) -> str:
        folder = self.source.folder
        if folder is None or status.phase(folder) == "closed":
            return f"{self.source.name} has ended"
        return f"{self.source.name} is not being run: {status.counts(folder)}"

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self.say(line)


def _touched(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:  # its run has just ended
        return 0
