"""Join a Ray cluster or start one on this machine, quietly; watch its head and its room for trials."""

import contextlib
import functools
import logging
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cl2r.errors import REQUEUE, InputError
from cl2r.rayrun.private import check_folder, private_ray
from cl2r.rayrun.probes import check_head
from cl2r.study.resources import Node, Resources, amounts_text

Say = Callable[[str], None]
FIRST_WARNING_S, LAST_WARNING_S = 30.0, 3600.0  # intervals between warnings that no node has room for a trial
HEAD_CHECK_S = 5.0
RAY_HEAD_TIMEOUT = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""How long Ray itself waits for a head that does not answer; users whose head restarts can raise it."""

_ALWAYS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",  # each report waits for the next poll; the default is 2 s
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(7 * 24 * 3600),  # workers wait for CPUs, or for a cluster to grow
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # one process less per trial; SIGTERM is handled by the driver
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",  # replaced after three failures: no answers for 5 s, not for 30
    "RAY_prestart_worker_first_driver": "0",  # trials have an environment of their own and could not use such workers
    "RAY_worker_niceness": "0",  # the default, 15, leaves trials next to nothing of cores that other programs use
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths keep their meaning
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the ledger has the same, and they keep every trial in memory
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
    """Set what Ray reads when it is imported and passes on to its workers; call this before `import ray`.

    Variables that the user has set keep their values.
    """
    for name, value in (_ALWAYS if verbose else _ALWAYS | _QUIET).items():
        os.environ.setdefault(name, value)


def check_address(verbose: bool, dashboard: bool = False) -> None:
    """Raise InputError within 10 s if the cluster at RAY_ADDRESS cannot be joined; call this before work starts.

    Without RAY_ADDRESS, check that Ray has a folder on this machine. The `dashboard`, which trials with several workers
    need, allows only a shorter path.
    """
    set_environment(verbose)
    ray = sys.modules.get("ray")  # importing it takes a while, and one that was not imported was not started
    if ray is None or not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS") or "local"
        check_head(address)
        if address == "local":
            check_folder(dashboard)


@contextlib.contextmanager
def cluster(
    resources: Resources, verbose: bool, say: Say | None = None, meanwhile: Callable[[], object] = lambda: None
) -> Iterator[int]:
    """Connect to Ray and yield how many trials run at a time. Call `meanwhile` once the head has answered.

    With RAY_ADDRESS (set inside a Ray job) that cluster is joined; otherwise a private Ray for this process is started.
    The address file of another cluster on this machine is never followed. Raise InputError within 10 s if there is no
    such cluster, or if it asks for another token.
    """
    import ray

    address = os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"address": address, "log_to_driver": verbose}
    if not verbose:
        options["logging_level"] = logging.CRITICAL  # failures are in the ledger, in fewer words
    if address == "local":
        # Without the dashboard's state service a stopped trial with Train workers would keep their CPUs.
        options |= {"include_dashboard": resources.workers > 1, "object_store_memory": 256 * 2**20}
    check_address(verbose, resources.workers > 1)
    meanwhile()
    watcher = RoomWatcher(resources, say or functools.partial(print, file=sys.stderr, flush=True))
    with contextlib.ExitStack() as stack:
        if not ray.is_initialized():
            stack.enter_context(private_ray(options) if address == "local" else _joined(options))
        stack.callback(watcher.stop)
        yield _concurrency(resources, alive_nodes(), address == "local", watcher)


@contextlib.contextmanager
def _joined(options: dict[str, Any]) -> Iterator[None]:
    """Join a cluster, and leave it after the block."""
    import ray

    try:
        ray.init(**options)
    except RuntimeError as error:
        if "Version mismatch" not in str(error):
            raise
        raise InputError(f"RAY_ADDRESS={options['address']}: {' '.join(str(error).split())}") from error
    try:
        yield
    finally:
        ray.shutdown()


def alive_nodes() -> list[Node]:
    """Return the resources of every node of the cluster, free or not."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _concurrency(resources: Resources, nodes: Sequence[Node], local: bool, watcher: "RoomWatcher") -> int:
    fitting = resources.fit_into(*resources.suitable(nodes))
    if local and fitting < 1:
        raise InputError(f"this machine ({_inventory(nodes)}) has no room for {resources}")
    if local:
        return min(resources.max_concurrent or fitting, fitting)
    if fitting < 1 and resources.max_concurrent is None:
        # Only the autoscaler knows how far a cluster can grow; it grows for what is asked.
        watcher.say("note: the cluster has no room for a trial now: it grows to 1; --max-concurrent N: to N")
    watcher.start()
    return resources.max_concurrent or max(1, fitting)


class RoomWatcher(threading.Thread):
    """Warns with growing intervals while no node has room for a trial.

    A cluster that is about to grow needs a while; one that will never have what is asked for (a misspelt accelerator)
    would otherwise wait for ever in silence.
    """

    def __init__(self, resources: Resources, say: Say) -> None:
        super().__init__(name="room watcher", daemon=True)
        self.resources, self.say, self.done = resources, say, threading.Event()

    def run(self) -> None:
        pause = FIRST_WARNING_S
        while not self.done.wait(pause):
            nodes = alive_nodes()
            if self.resources.fit_into(*self.resources.suitable(nodes)):
                pause = FIRST_WARNING_S
            else:
                self.say(f"no room for a trial ({self.resources}) in the cluster: {_inventory(nodes)}")
                pause = min(2 * pause, LAST_WARNING_S)

    def stop(self) -> None:
        """End the thread, if it was started."""
        self.done.set()
        if self.is_alive():
            self.join()


class HeadWatch(threading.Thread):
    """Ends the process with code 75 when the Ray head is unreachable.

    Ray waits a minute for a head that is gone and then ends the process. Links, epochs and ledger are in the storage,
    so the same command resumes with another head; a driver that ends a little earlier can report that.
    Nothing is cleaned up then, because every call of Ray would wait.
    """

    def __init__(self, say: Say, address: str, end: Callable[[int], object] = os._exit) -> None:
        super().__init__(name="head watch", daemon=True)
        self.address, self.say, self.interval, self.end = address, say, HEAD_CHECK_S, end
        self.done = threading.Event()

    def run(self) -> None:
        silent, patience = 0.0, 0.8 * float(os.environ.get(RAY_HEAD_TIMEOUT, "60"))
        while not self.done.wait(self.interval):
            if self.answers():
                silent = 0.0
                continue
            if not silent:
                self.say(f"the head of the Ray cluster, {self.address}, does not answer")
            silent += self.interval
            if silent >= patience:
                self.say(f"the head of the Ray cluster, {self.address}, is gone; run the same command again to resume")
                self.end(REQUEUE)
                return

    def answers(self) -> bool:
        """Return whether a process listens at the head's address."""
        host, _, port = self.address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=self.interval):
                return True
        except OSError:
            return False


def _inventory(nodes: Sequence[Node]) -> str:
    """Return the nodes as text, e.g. `1 node with 0 CPU; 2 nodes with 8 CPU, 4 GPU, accelerator H100`."""
    kinds = sorted(Counter(map(amounts_text, nodes)).items())
    return "; ".join(f"{count} node{'s' * (count > 1)} with {kind}" for kind, count in kinds) or "no nodes"
