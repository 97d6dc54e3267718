"""The head of the Ray cluster, and what becomes of a driver that has lost it.

Ray waits a minute for a head that is gone, and then ends the process. Links, epochs and ledger are in the storage, so
the same command goes on with another head; a driver that ends a little earlier can say so, and by its exit code too.
"""

import os
import socket
import threading
from collections.abc import Callable

import ray

from cl2r.errors import REQUEUE

Say = Callable[[str], None]
LOOK_SECONDS = 5.0
RAY_WAITS = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Ray's own patience with a head that does not answer, for those whose head can be started again."""


def patience() -> float:
    """A little less than Ray's, in seconds."""
    return 0.8 * float(os.environ.get(RAY_WAITS, "60"))


class HeadWatch(threading.Thread):
    """Looks whether the head answers; says so when it does not, and ends the process if it stays silent.

    Nothing is tidied up then: every call of Ray would wait.
    """

    def __init__(
        self, say: Say, address: str | None = None, look: float = LOOK_SECONDS, end: Callable[[int], object] = os._exit
    ) -> None:
        super().__init__(name="head", daemon=True)
        self.address = address or ray.get_runtime_context().gcs_address
        self.say, self.look, self.end = say, look, end
        self.done = threading.Event()

    def run(self) -> None:
        """Look now and then until `done`."""
        silent = 0.0
        while not self.done.wait(self.look):
            if self.answers():
                silent = 0.0
                continue
            if not silent:
                self.say(f"the head of the Ray cluster, {self.address}, does not answer")
            silent += self.look
            if silent >= patience():
                self.say(f"the head of the Ray cluster, {self.address}, is gone; the same command goes on with another")
                self.end(REQUEUE)
                return

    def answers(self) -> bool:
        """Whether somebody listens there."""
        host, _, port = self.address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=self.look):
                return True
        except OSError:
            return False
