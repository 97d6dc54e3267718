"""Locks: one process at a time may do a thing, and the lock of a process that died is freed.

On a disk the operating system locks (NFS passes locks on to other machines). In an object store a process puts a
ticket, then lists all tickets: if it sees no other ticket, it holds the lock. Listings are consistent, so of two
processes the later one sees the ticket of the other. If several see each other, the one whose name comes first keeps
its ticket and waits; the others remove theirs and add none while one exists. A holder rewrites its ticket every few
seconds; one that did not change for a minute of the observer's clock belongs to a dead process.

Tickets need nothing but listings, which every store has. pyarrow 26 has no put that fails if the object exists: it
ignores `If-None-Match`. obstore 0.12 has one, which worked on the S3 of the tests, but it was not taken. It is a second
client, 16 MB, with its own credentials: it did not find those of an AWS profile, which pyarrow uses. And such a put
replaces the listing only. Beats and the removal of a dead holder's lock would stay, and as long as one process of a
store cannot use it, the others would have to look for tickets too.

So no lock here is a fence: a process that sleeps for longer than a minute may go on after its ticket was removed. It
learns of that at its next beat, by `on_loss`. A driver stops then; a gallery compares its newest commit right before it
writes the next one, so two writers could only meet within that one request; of a link's manifests the first one stays.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

if TYPE_CHECKING:
    from cl2r.storage.path import ObjectPath

BEAT_SECONDS = 10.0
DEAD_SECONDS = 60.0
PAUSE_SECONDS = 1.0
GLANCE_SECONDS = 0.5  # a lock on a disk is tried for this long without waiting: `disk_holder` may be testing it
HOLDER = ".holder"  # suffix of the file that names the holder of a lock on a disk


class HeldError(Exception):
    """Another process holds the lock; the message names it."""


class LostError(OSError):
    """This process has lost a lock because others took it for dead; the message says of what and what to do."""


def this_process() -> str:
    """Return the name of this process as other processes show it."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def process_mark() -> str:
    """Return a mark of this process for file names: its number and eight digits of boot and PID namespace."""
    return f"{os.getpid()}-{_kernel_digits()}"


def mark_is_gone(mark: str) -> bool | None:
    """Return whether the process of a `process_mark` is dead; None if that cannot be known on this machine now."""
    number, _, kernel = mark.partition("-")
    return _is_gone({"pid": int(number), "kernel": _kernel()}) if _kernel() and kernel == _kernel_digits() else None


@contextlib.contextmanager
def disk_lock(path: Path, wait: bool) -> Iterator[None]:
    """Hold the lock file at `path`; without `wait`, raise HeldError if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    holder = path.with_name(path.name + HOLDER)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=-1 if wait else GLANCE_SECONDS)
    except Timeout as error:
        raise HeldError(last_disk_holder(path)) from error
    try:
        holder.write_text(this_process(), encoding="utf-8")
        yield
    finally:
        holder.unlink(missing_ok=True)
        path.unlink(missing_ok=True)  # FileLock notices if the file it waited for has been removed
        lock.release()


def last_disk_holder(path: Path) -> str:
    """Return the name of the process that holds the lock, or died while it held it; empty if there is none."""
    try:
        return path.with_name(path.name + HOLDER).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def disk_holder(path: Path) -> str | None:
    """Return the name of the process that holds the lock, None if there is none. Nothing is written."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except BlockingIOError:
        return last_disk_holder(path)
    return None


class Ticket:
    """This process's ticket for the lock at `claim`; `on_loss` is called if another process took this one for dead."""

    def __init__(self, claim: "ObjectPath", on_loss: Callable[[], None] | None = None) -> None:
        self.claim, self.on_loss = claim, on_loss
        self.path, self.beats = claim.parent / f"{claim.name}.{uuid.uuid4().hex}.json", 0
        self._seen: dict[ObjectPath, tuple[int, float]] = {}
        self._done = threading.Event()

    @contextlib.contextmanager
    def held(self, wait: bool) -> Iterator[None]:
        """Hold the lock; without `wait`, raise HeldError once a living holder is seen."""
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
        tickets: list[ObjectPath] = []
        try:
            while True:
                if not tickets:
                    self._put()
                tickets = self.claim.parent.list(f"{self.claim.name}.*.json")
                if tickets == [self.path]:
                    return
                others = [path for path in tickets if path != self.path]
                if not others:  # also if this process slept for so long that its ticket was removed
                    continue
                if wait and tickets[0] == self.path:
                    self._put()
                elif self.path in tickets:
                    self.path.unlink(missing_ok=True)
                holder = self._living(others[0])
                if holder is not None and not wait:
                    raise HeldError(holder)
                time.sleep(PAUSE_SECONDS * random.uniform(0.5, 1.5))
        except BaseException:
            self.path.unlink(missing_ok=True)
            raise

    def _put(self) -> None:
        self.beats += 1
        ticket = {"who": this_process(), "pid": os.getpid(), "kernel": _kernel(), "beats": self.beats}
        self.path.write_file(json.dumps(ticket).encode())

    def _living(self, path: "ObjectPath") -> str | None:
        """Return the owner of a ticket if it changed since this process first saw it; remove that of a dead process."""
        try:
            ticket = _ticket(path)
        except FileNotFoundError:
            return None
        beats, since = self._seen.setdefault(path, (ticket["beats"], time.monotonic()))
        if ticket["beats"] != beats:
            self._seen[path] = (ticket["beats"], time.monotonic())
            return str(ticket["who"])
        if _is_gone(ticket) or time.monotonic() - since > DEAD_SECONDS:
            path.unlink(missing_ok=True)
        return None

    def _beat(self) -> None:
        while not self._done.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):  # the store cannot be reached: try again at the next beat
                if not self.path.exists():
                    if self.on_loss:
                        self.on_loss()
                    return
                self._put()


def ticket_holder(claim: "ObjectPath") -> str | None:
    """Return the name of the process that seems to hold the lock, judged by the clocks of store and machine."""
    for path in claim.parent.list(f"{claim.name}.*.json"):
        with contextlib.suppress(FileNotFoundError):
            info, ticket = path.file_info(), _ticket(path)
            if info and time.time() - info.mtime_ns / 1e9 < DEAD_SECONDS and not _is_gone(ticket):
                return str(ticket["who"])
    return None


def _ticket(path: "ObjectPath") -> dict[str, Any]:
    """Return a ticket. One that does not parse is treated like one from another machine: it expires after a minute."""
    entry: dict[str, Any] = {"who": str(path), "pid": 0, "kernel": None, "beats": 0}
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        entry |= json.loads(path.read_bytes())
    return entry


def _kernel() -> list[str]:
    """Return what process numbers belong to: this boot of this machine, and its process namespace."""
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    return [boot.read_text(encoding="utf-8").strip(), os.readlink(namespace)] if boot.exists() else []


def _kernel_digits() -> str:
    return hashlib.sha256("\n".join(_kernel()).encode()).hexdigest()[:8]


def _is_gone(ticket: dict[str, Any]) -> bool:
    """Return whether the process is known to be dead, which can be known of processes of this machine only."""
    if _kernel() and ticket["kernel"] == _kernel():
        try:
            os.kill(ticket["pid"], 0)
        except OSError as error:  # PermissionError: a process of another user
            return isinstance(error, ProcessLookupError)
    return False
