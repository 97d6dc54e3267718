"""SIGTERM: somebody wants this machine back (a spot node, SLURM, `ray job stop`, Kubernetes).

Training processes finish their epoch and save it, nothing new starts, and the program ends with a code that says: run
the same command again. A driver cannot signal processes of other machines, so it leaves a marker in the study's folder,
at which they look. Whoever cannot wait sends a second SIGTERM.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

from cl2r.errors import REQUEUE
from cl2r.files import Place, write_file
from cl2r.privacy import without_secrets

GRACE_SECONDS = 60.0
HARD_SECONDS = 10.0
"""How long a process that was told to end may tidy up."""

Stop = Callable[[], bool]


def never() -> bool:
    """Nobody asks to stop."""
    return False


class Marker:
    """The file that asks the training processes of a study to stop. Looked at once a second at most.

    By listing its folder: NFS answers a question after one file from a cache that may be a minute old.
    """

    def __init__(self, folder: Place, interval: float = 1.0) -> None:
        self.folder, self.path, self.interval = folder, folder / "stop", interval
        self._seen, self._next = False, 0.0

    def __call__(self) -> bool:
        """Whether it is there."""
        if not self._seen and time.monotonic() >= self._next:
            self._seen = any(found.name == self.path.name for found in self.folder.glob("stop*"))
            self._next = time.monotonic() + self.interval
        return self._seen

    def put(self) -> None:
        """Ask."""
        write_file(self.path, b"")

    def remove(self) -> None:
        """Take it back: a new driver is at work."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


class Termination:
    """What SIGTERM does to this process: at first it ends at once, but within `patience` only the second one does."""

    def __init__(self, grace: float = GRACE_SECONDS) -> None:
        self.grace = grace
        self.requested = False
        self._process = os.getpid()
        self._announce: Callable[[], None] | None = None
        self._ended = threading.Event()
        self._hard: threading.Timer | None = None

    def asked(self) -> bool:
        """Whether SIGTERM has come."""
        return self.requested

    def listen(self) -> None:
        """Install the handler; again after `ray.init`, which installs its own. Only the main thread hears signals."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._signalled)

    @contextlib.contextmanager
    def listening(self) -> Iterator["Termination"]:
        """Listen, and leave things as they were."""
        before = signal.getsignal(signal.SIGTERM)
        self.listen()
        try:
            yield self
        except SystemExit as end:  # Ray's handler was there first: while it starts
            if end.code == REQUEUE:
                raise
            _say("stopped by SIGTERM; the same command goes on")
            raise SystemExit(REQUEUE) from end
        finally:
            self._ended.set()
            if self._hard:
                self._hard.cancel()
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)

    @contextlib.contextmanager
    def patience(self, announce: Callable[[], None] = lambda: None) -> Iterator[None]:
        """In here the first SIGTERM calls `announce` and starts the grace; who trains looks at `asked`."""
        self._announce = announce
        try:
            yield
        finally:
            self._announce = None

    def _signalled(self, *_: object) -> None:
        if os.getpid() != self._process:  # forked, and has inherited the handler
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        if self._ended.is_set():
            return
        if self.requested or self._announce is None:
            self._end()
        self.requested = True
        # Not in here: whatever lock the interrupted code holds, `announce` might want.
        threading.Thread(target=self._wait, args=(self._announce,), name="grace", daemon=True).start()

    def _wait(self, announce: Callable[[], None]) -> None:
        _say(f"SIGTERM: epochs under way are finished and saved, for {self.grace:g} s at most")
        try:
            announce()
        except OSError as error:
            _say(f"cannot ask training processes to stop: {error}")
        if not self._ended.wait(self.grace):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _end(self) -> NoReturn:
        """Unwind; whoever hangs in that is not waited for."""
        self._ended.set()
        _say("stopped by SIGTERM; the same command goes on")
        self._hard = threading.Timer(HARD_SECONDS, os._exit, (REQUEUE,))
        self._hard.daemon = True
        self._hard.start()
        raise SystemExit(REQUEUE)


def _say(line: str) -> None:
    """Straight to standard error: a handler may have interrupted a print."""
    os.write(2, f"{without_secrets(line)}\n".encode())
