"""The faults of the soak: six kinds, in an order and at times that a seed determines."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.faults.fake_nodes import FakeNodes
from tests.support.quick import flip_bit

ROUND = ("training process", "link", "training process", "node", "driver", "training process", "clock", "link", "stop")
NAMES = {
    "training process": "SIGKILL of a training process",
    "driver": "SIGKILL of the driver",
    "stop": "SIGTERM of the driver",
    "node": "SIGKILL of a node",
    "link": "bit flip or truncation of the newest link",
    "clock": "clock of the nodes off by an hour",
}
WITHIN_AN_EPOCH_SECONDS = 0.2
CPUS = 1


@dataclass(frozen=True)
class Fault:
    """What was done, when, and to which run, if that is known."""

    kind: str
    time: float
    detail: str


class Killer:
    """Injects a fault about every `pace` epochs, independent of the machine's speed."""

    def __init__(
        self, ray: FakeNodes, seed: int, pace: int, links: Path, unfinished: Callable[[], Mapping[str, str]]
    ) -> None:
        self.ray, self.rng, self.links, self.unfinished = ray, random.Random(seed), links, unfinished
        self.pace, self.due = pace, 1
        self.faults: list[Fault] = []
        self.nodes = ["node1", "node2"]
        self.coming: list[str] = []
        for name in self.nodes:
            ray.add(name, num_cpus=CPUS)

    def look(self, driver: subprocess.Popen[bytes]) -> None:
        """Inject the next fault if it is due."""
        if self.ray.epochs_so_far >= self.due:
            time.sleep(self.rng.uniform(0, WITHIN_AN_EPOCH_SECONDS))
            self._strike(driver)

    def _strike(self, driver: subprocess.Popen[bytes]) -> None:
        if not self.coming:
            self.coming = self.rng.sample(ROUND, len(ROUND))
        kind, began = self.coming[0], time.monotonic()
        detail = getattr(self, f"_{kind.replace(' ', '_')}")(driver)
        if detail is None:
            return  # no victim at this moment: try again later
        self.coming.pop(0)
        self.faults.append(Fault(kind, began, detail))
        self.due = self.ray.epochs_so_far + self.rng.randint(1, 2 * self.pace)

    def _training_process(self, driver: subprocess.Popen[bytes]) -> str | None:
        victim = self.ray.last_epoch
        if victim is None or not _is_ray(victim.pid):
            return None
        os.kill(victim.pid, signal.SIGKILL)
        return victim.run

    def _node(self, driver: subprocess.Popen[bytes]) -> str | None:
        victim = self.nodes.pop(self.rng.randrange(len(self.nodes)))
        self.ray.kill(victim)
        self.nodes.append(f"node{len(self.ray.ids)}")
        self.ray.add(self.nodes[-1], num_cpus=CPUS)
        return victim

    def _driver(self, driver: subprocess.Popen[bytes]) -> str | None:
        driver.kill()
        driver.wait()
        return ""

    def _stop(self, driver: subprocess.Popen[bytes]) -> str | None:
        driver.terminate()
        driver.wait()
        return f"exit code {driver.returncode}"

    def _link(self, driver: subprocess.Popen[bytes]) -> str | None:
        runs = self.unfinished()
        found = [path for path in self.links.iterdir() if path.name in runs]
        if not found:
            return None
        newest = max(found, key=lambda path: path.stat().st_mtime)
        victim = self.rng.choice(sorted(newest.iterdir()))
        if self.rng.random() < 0.5:
            flip_bit(victim)
        else:
            os.truncate(victim, victim.stat().st_size // 2)
        return runs[newest.name]

    def _clock(self, driver: subprocess.Popen[bytes]) -> str | None:
        seconds = self.rng.choice([-3600, 3600])
        self.ray.clock.write_text(str(seconds))
        return f"{seconds} s"


def _is_ray(pid: int) -> bool:
    try:
        return b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
