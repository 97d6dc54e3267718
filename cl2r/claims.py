"""Claims: one process at a time may do a thing. The claim of a process that died is freed.

On a disk it is a lock of the operating system (which NFS hands on to other machines). An object store has no locks and
no way to write only where nothing is. There a claimant puts a ticket, then lists: if it sees no other ticket, it holds
the claim; if it does, it takes its own away and tries again later. Of two that both hold, the one that put its ticket
later must have seen the other's, for listings are consistent; so two never hold at once. A holder touches its ticket
every few seconds. A ticket that nobody touches for a minute, by the clock of whoever looks, belongs to the dead.
"""

import contextlib
import fcntl
import json
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from cl2r.files import Place
from cl2r.objects import ObjectPath

BEAT_SECONDS = 10.0
DEAD_SECONDS = 60.0
PAUSE_SECONDS = 1.0


class HeldError(Exception):
    """Another process holds the claim; the message says which."""


@contextlib.contextmanager
def claimed(place: Place) -> Iterator[None]:
    """Wait for the claim at `place`, hold it, free it."""
    if isinstance(place, ObjectPath):
        with Ticket(place).held(wait=True):
            yield
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    file = _locked(place)
    try:
        yield
    finally:
        place.unlink(missing_ok=True)
        fcntl.flock(file, fcntl.LOCK_UN)  # a process forked meanwhile holds the file open too
        file.close()


def _locked(path: Path) -> BinaryIO:
    """An exclusive lock on the file that is at `path` once it is granted; the holder before may have removed it."""
    while True:
        file = path.open("ab")
        fcntl.flock(file, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
        file.close()


class Ticket:
    """This process's ticket for `claim`. `on_loss` is called if others took it for dead while it held the claim."""

    def __init__(self, claim: ObjectPath, on_loss: Callable[[], None] | None = None) -> None:
        self.claim, self.on_loss = claim, on_loss
        self.path = claim.parent / f"{claim.name}.{uuid.uuid4().hex}.json"
        self.beats = 0
        self._seen: dict[ObjectPath, tuple[int, float]] = {}
        self._done = threading.Event()

    @contextlib.contextmanager
    def held(self, wait: bool) -> Iterator[None]:
        """Hold the claim; without `wait`, HeldError once a living holder is seen."""
        self._acquire(wait)
        beating = threading.Thread(target=self._beat, name="claim", daemon=True)
        beating.start()
        try:
            yield
        finally:
            self._done.set()
            beating.join()
            self.path.unlink(missing_ok=True)

    def _acquire(self, wait: bool) -> None:
        while True:
            self._put()
            try:
                others = self._others()
            except BaseException:
                self.path.unlink(missing_ok=True)
                raise
            if not others:
                return
            self.path.unlink(missing_ok=True)
            alive = [ticket for path, ticket in others.items() if self._look(path, ticket)]
            if alive and not wait:
                raise HeldError(alive[0]["who"])
            time.sleep(PAUSE_SECONDS * random.uniform(0.5, 1.5))

    def _put(self) -> None:
        self.beats += 1
        ticket = {"who": f"process {os.getpid()} on {socket.gethostname()}", "pid": os.getpid()}
        self.path.write_bytes(json.dumps(ticket | {"kernel": _kernel(), "beats": self.beats}).encode())

    def _others(self) -> dict[ObjectPath, dict[str, Any]]:
        found = {}
        for path in _tickets(self.claim):
            if path != self.path:
                with contextlib.suppress(FileNotFoundError):  # taken away after the listing
                    found[path] = json.loads(path.read_bytes())
        return found

    def _look(self, path: ObjectPath, ticket: dict[str, Any]) -> bool:
        """Whether the ticket was touched since this process first saw it; a dead one's is removed."""
        beats, since = self._seen.setdefault(path, (ticket["beats"], time.monotonic()))
        if ticket["beats"] != beats:
            self._seen[path] = (ticket["beats"], time.monotonic())
            return True
        if _is_gone(ticket) or time.monotonic() - since > DEAD_SECONDS:
            path.unlink(missing_ok=True)
        return False

    def _beat(self) -> None:
        while not self._done.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):  # the store cannot be reached: there will be another beat
                if not self.path.exists():
                    if self.on_loss:
                        self.on_loss()
                    return
                self._put()


def _tickets(claim: ObjectPath) -> Iterator[ObjectPath]:
    return claim.parent.glob(f"{claim.name}.*.json")


def is_held(claim: ObjectPath) -> bool:
    """Whether somebody seems to hold the claim, judged by the clocks of the store and of this machine."""
    for path in _tickets(claim):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.modified() < DEAD_SECONDS and not _is_gone(json.loads(path.read_bytes())):
                return True
    return False


def _kernel() -> list[str]:
    """What process numbers are counted by: this start of this machine, and its namespace."""
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    return [boot.read_text().strip(), os.readlink(namespace)] if boot.exists() else []


def _is_gone(ticket: dict[str, Any]) -> bool:
    """Whether the process is known to be dead: only those of this machine are."""
    if not _kernel() or ticket["kernel"] != _kernel():
        return False
    try:
        os.kill(ticket["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
