"""Trials that were handed out and whose processes still start.

Tune gives a trial that waits for its process to the first process that is free, and stops the one that was starting:
very short trials would all end up, one after the other, in one process. So the first trials do not end before those
beside them have begun.
"""

import time

from cl2r.files import Place, listed, write_file
from cl2r.stopping import Stop


class Starting:
    """A file for each such trial, in the study's folder: the driver puts it there, the trial takes it away."""

    def __init__(self, study: Place, interval: float = 0.1) -> None:
        self.folder, self.interval = study / "ray" / "starting", interval

    def hand_out(self, name: str) -> None:
        """The driver: a trial is about to start."""
        write_file(self.folder / name, b"")

    def begun(self, name: str) -> None:
        """The trial: it has a process."""
        (self.folder / name).unlink(missing_ok=True)

    def wait(self, end: float, stop: Stop) -> None:
        """Until all have begun, or `end`: a process that died, or a node without room, must not hold up the others."""
        while time.monotonic() < end and not stop() and listed(self.folder, "*"):
            time.sleep(self.interval)
