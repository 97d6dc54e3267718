"""SIGTERM: the machine is needed for something else (a spot node, SLURM, `ray job stop`, Kubernetes).

Training processes finish and save their epoch, nothing new starts, and the program ends with an exit code that means:
run the same command again. A driver cannot signal processes of other machines, so it writes a marker into the study's
folder, which they poll. A second SIGTERM ends the program at once.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

from cl2r.errors import REQUEUE
from cl2r.runtime.logs import without_secrets
from cl2r.storage.path import StoragePath

GRACE_SECONDS = 60.0
HARD_SECONDS = 10.0  # for a process to clean up after it was told to end at once
Stop = Callable[[], bool]


def never_stop() -> bool:
    """Return False: there is no request to stop."""
    return False


class Marker:
    """The file that asks the training processes of a study to stop; checked once per second at most.

    Its folder is listed, because NFS answers whether a single file exists from a cache that may be a minute old.
    """

    def __init__(self, folder: StoragePath, interval: float = 1.0) -> None:
        self.folder, self.path, self.interval = folder, folder / "stop", interval
        self._seen, self._next = False, 0.0

    def __call__(self) -> bool:
        """Return whether the marker exists."""
        if not self._seen and time.monotonic() >= self._next:
            self._seen = any(found.name == self.path.name for found in self.folder.list("stop*"))
            self._next = time.monotonic() + self.interval
        return self._seen

    def put(self) -> None:
        """Ask the training processes to stop."""
        self.path.write_file(b"")

    def remove(self) -> None:
        """Withdraw the request: a new driver is at work."""
        self.path.unlink(missing_ok=True)


class Termination:
    """How this process reacts to SIGTERM: it ends at once, but inside `graceful` only at the second signal."""

    def __init__(self, grace: float = GRACE_SECONDS) -> None:
        self.grace, self.requested, self._process = grace, False, os.getpid()
        self._announce: Callable[[], None] | None = None
        self._ended = threading.Event()
        self._hard: threading.Timer | None = None

    def asked(self) -> bool:
        """Return whether SIGTERM was received."""
        return self.requested

    def listen(self) -> None:
        """Install the handler, in the main thread only; call it again after `ray.init`, which installs its own."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._signalled)

    @contextlib.contextmanager
    def listening(self) -> Iterator["Termination"]:
        """Install the handler and restore the previous one at the end."""
        before = signal.getsignal(signal.SIGTERM)
        self.listen()
        try:
            yield self
        except SystemExit as end:  # Ray's handler was faster: Ray was starting
            if end.code == REQUEUE:
                raise
            _say("stopped by SIGTERM; run the same command again to resume")
            raise SystemExit(REQUEUE) from end
        finally:
            self._ended.set()
            if self._hard:
                self._hard.cancel()
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)

    @contextlib.contextmanager
    def graceful(self, announce: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Inside, the first SIGTERM calls `announce` and starts the grace period; training code polls `asked`."""
        self._announce = announce
        try:
            yield
        finally:
            self._announce = None

    def _signalled(self, *_: object) -> None:
        if os.getpid() != self._process:  # a forked process inherited the handler
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        if self._ended.is_set():
            return
        if self.requested or self._announce is None:  # unwind the stack, but exit after HARD_SECONDS if that hangs
            self._ended.set()
            _say("stopped by SIGTERM; run the same command again to resume")
            self._hard = threading.Timer(HARD_SECONDS, os._exit, (REQUEUE,))
            self._hard.daemon = True
            self._hard.start()
            raise SystemExit(REQUEUE)
        self.requested = True
        # In a thread, because `announce` might need a lock that the interrupted code holds.
        threading.Thread(target=self._wait, args=(self._announce,), name="grace", daemon=True).start()

    def _wait(self, announce: Callable[[], None]) -> None:
        _say(f"SIGTERM: current epochs are finished and saved, for {self.grace:g} s at most")
        try:
            announce()
        except OSError as error:
            _say(f"cannot ask training processes to stop: {error}")
        if not self._ended.wait(self.grace):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _say(line: str) -> None:
    """Write straight to standard error: the signal handler may have interrupted a print."""
    os.write(2, f"{without_secrets(line)}\n".encode())
