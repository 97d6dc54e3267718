"""Joining a Ray cluster, or starting one on this machine, quietly."""

import contextlib
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cl2r.errors import InputError
from cl2r.rayrun.resources import Node, Resources, described

Say = Callable[[str], None]
FIRST_COMPLAINT_SECONDS = 30.0
LAST_COMPLAINT_SECONDS = 3600.0

_ALWAYS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",  # each report waits for the next poll; the default is 2 s
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(7 * 24 * 3600),  # workers wait for CPUs, or for a cluster to grow
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths keep their meaning
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the ledger keeps what they would, and they hold every trial in memory
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C stops at once; the links make that safe
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # nothing is ever restored from Tune's own state
}
_QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "TUNE_WARN_SLOW_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "3600",
}


def set_environment(verbose: bool) -> None:
    """What Ray reads when it is imported, and hands on to its workers; what the user has set stays."""
    for name, value in (_ALWAYS if verbose else _ALWAYS | _QUIET).items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def cluster(resources: Resources, verbose: bool, say: Say | None = None) -> Iterator[int]:
    """A connected Ray; yields how many trials run side by side.

    With RAY_ADDRESS (set inside a Ray job) that cluster is joined; else a Ray of this process alone is started. An
    address file left behind by another cluster on this machine is never followed. `set_environment` came before.
    """
    import ray

    address = os.environ.get("RAY_ADDRESS", "local")
    if address.startswith("http"):
        raise InputError(f"RAY_ADDRESS={address} is for `ray job submit`; a study joins `auto` or HOST:PORT")
    options: dict[str, Any] = {"address": address, "log_to_driver": verbose}
    if not verbose:
        options["logging_level"] = logging.CRITICAL  # what fails is in the ledger, in fewer words
    if address == "local":
        # Without the dashboard's state service a stopped trial with Train workers would keep their CPUs.
        options |= {"include_dashboard": resources.workers > 1, "object_store_memory": 256 * 2**20}
    started = not ray.is_initialized()
    if started:
        ray.init(**options)
    complaints = Complaints(resources, say or _to_stderr)
    try:
        yield _concurrency(resources, alive_nodes(), address == "local", complaints)
    finally:
        complaints.stop()
        if started:
            ray.shutdown()


def alive_nodes() -> list[Node]:
    """What every node of the cluster has, free or not."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _concurrency(resources: Resources, nodes: Sequence[Node], local: bool, complaints: "Complaints") -> int:
    fitting = resources.fit_into(*resources.suitable(nodes))
    if local:
        if fitting < 1:
            raise InputError(f"this machine ({_inventory(nodes)}) has no room for {resources.described()}")
        return min(resources.max_concurrent or fitting, fitting)
    if fitting < 1 and resources.max_concurrent is None:
        # How far a cluster may grow is known to its autoscaler alone; it grows for what is asked.
        complaints.say("note: the cluster has no room for a trial now: it grows to 1; --max-concurrent N: to N")
    complaints.start()
    return resources.max_concurrent or max(1, fitting)


class Complaints(threading.Thread):
    """Says, less and less often, that no trial can be placed while the nodes of the cluster are what they are.

    A cluster that is about to grow needs a while; one that will never have what is asked for (an accelerator
    misspelt) would keep everyone waiting for ever.
    """

    def __init__(self, resources: Resources, say: Say) -> None:
        super().__init__(name="complaints", daemon=True)
        self.resources, self.say, self.done = resources, say, threading.Event()

    def run(self) -> None:
        """Look now and then until `stop`."""
        pause = FIRST_COMPLAINT_SECONDS
        while not self.done.wait(pause):
            nodes = alive_nodes()
            if self.resources.fit_into(*self.resources.suitable(nodes)):
                pause = FIRST_COMPLAINT_SECONDS
            else:
                self.say(f"no room for a trial ({self.resources.described()}) in the cluster: {_inventory(nodes)}")
                pause = min(2 * pause, LAST_COMPLAINT_SECONDS)

    def stop(self) -> None:
        """End the thread, if there is one."""
        self.done.set()
        if self.is_alive():
            self.join()


def _inventory(nodes: Sequence[Node]) -> str:
    """What there is, e.g. `1 node with 0 CPU; 2 nodes with 8 CPU, 4 GPU, accelerator H100`."""
    kinds = Counter(map(described, nodes))
    return "; ".join(f"{count} node{'s' * (count > 1)} with {kind}" for kind, count in kinds.items()) or "no nodes"


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
