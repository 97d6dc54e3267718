"""A Ray with several nodes on this machine, in its own process, because other tests may hold another Ray in this one.

    with FakeNodes() as ray:
        ray.add("a", num_cpus=4, num_gpus=4, resources={"accelerator_type:A100": 1})
        subprocess.run([..., "studies/ablation.py"], env=ray.environment)
        ray.kill("a")

The head has no CPUs, so nothing trains on it. GPUs and accelerators are names.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from tests.faults import epoch_log

ROOT = Path(__file__).parents[2]
MEGABYTE = 2**20
PATIENCE_SECONDS = 240
A100: dict[str, Any] = {"num_cpus": 4, "num_gpus": 4, "resources": {"accelerator_type:A100": 1}}
H100: dict[str, Any] = {"num_cpus": 4, "num_gpus": 4, "resources": {"accelerator_type:H100": 1}}
NOTICED_SOON = {"RAY_health_check_period_ms": "500", "RAY_health_check_initial_delay_ms": "500"}
"""Ray declares a node dead after five failed checks."""
SETUP_HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
Reply = dict[str, Any]


def wait_for(found: Callable[[], object], what: str) -> None:
    """Wait until `found` returns something true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not found():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


class FakeNodes:
    """The head is called `head`; other nodes are added and killed by name. `epochs` lists what was trained where."""

    def __init__(self, **head: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="n-", dir="/tmp"))  # a short path, for sockets
        (self.folder / "ray").mkdir()
        self.clock = self.folder / "clock"
        self.drivers: list[subprocess.Popen[str]] = []
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        self.environment |= {
            "RAY_TMPDIR": str(self.folder),
            "RAY_AUTH_MODE": "disabled",
            **NOTICED_SOON,
            "PYTHONPATH": str(ROOT),
            SETUP_HOOK: "tests.faults.epoch_log.install",
            epoch_log.VARIABLE: str(self.folder / "epochs.jsonl"),
            epoch_log.CLOCK_VARIABLE: str(self.clock),
        }
        with (self.folder / "server.log").open("w") as log:
            self.server = subprocess.Popen(
                [sys.executable, __file__],
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.ids: dict[str, str] = {}
        try:
            started = self._ask("start", **head)
        except BaseException:
            self.close()
            raise
        self.environment["RAY_ADDRESS"] = started["address"]
        self.ids["head"] = started["id"]

    def __enter__(self) -> "FakeNodes":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all nodes and their processes."""
        for driver in self.drivers:
            driver.kill()
            driver.wait()
        assert self.server.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.server.stdin.close()
        try:
            self.server.wait(60)
        except subprocess.TimeoutExpired:
            self.server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, name: str, **options: Any) -> None:
        """Start a node with Ray's options (num_cpus, num_gpus, resources)."""
        self.ids[name] = self._ask("add", name=name, **options)["id"]

    def kill(self, name: str) -> None:
        """Kill the node's processes; Ray's workers on it end with their raylet."""
        self._ask("kill", name=name)

    def drive(self, words: Sequence[str], output: int | IO[str] = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start an ablation on these nodes."""
        command = [sys.executable, str(Path(__file__).with_name("gpus_in_name.py")), *words]
        driver = subprocess.Popen(command, env=self.environment, stdout=output, stderr=output, text=True)
        self.drivers.append(driver)
        return driver

    def groups(self) -> list[Reply]:
        """Return all placement groups in Ray's table: `id`, `bundles`, `nodes` by name, `strategy`, `state`."""
        found: list[Reply] = self._ask("groups")["found"]
        for group in found:
            group["nodes"] = [self.name(node) for node in group["nodes"]]
        return found

    def actors(self) -> list[Reply]:
        """Return all actors in Ray's table: `id`, `kind`, `node` by name, `state`, `pid`."""
        found: list[Reply] = self._ask("actors")["found"]
        return [actor | {"node": self.name(actor["node"])} for actor in found]

    def name(self, node: str) -> str:
        """Return the name of a node's id; empty if it has none yet."""
        return next((name for name, known in self.ids.items() if known == node), "")

    @property
    def epochs(self) -> list[epoch_log.Epoch]:
        """Every epoch trained so far."""
        return epoch_log.read_epochs(Path(self.environment[epoch_log.VARIABLE]))

    @property
    def epochs_so_far(self) -> int:
        """Number of epochs trained so far."""
        path = Path(self.environment[epoch_log.VARIABLE])
        return path.read_bytes().count(b"\n") if path.exists() else 0

    @property
    def last_epoch(self) -> epoch_log.Epoch | None:
        """The epoch that ended last."""
        return epoch_log.read_last(Path(self.environment[epoch_log.VARIABLE]))

    def _ask(self, do: str, **options: Any) -> Reply:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({"do": do, **options}), file=self.server.stdin, flush=True)
        line = self.server.stdout.readline()
        if not line:
            raise RuntimeError(f"the fake cluster is gone: {(self.folder / 'server.log').read_text()[-2000:]}")
        reply: Reply = json.loads(line)
        return reply


class _Server:
    """The process with the nodes and a connection to Ray's tables."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster, self.nodes = Cluster(), dict[str, Any]()

    def start(self, **head: Any) -> Reply:
        import ray

        options = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 100 * MEGABYTE} | head
        node = self.cluster.add_node(wait=False, **options)
        ray.init(address=self.cluster.address, logging_level="CRITICAL", log_to_driver=False)
        return {"address": self.cluster.address, "id": node.node_id}

    def add(self, name: str, **options: Any) -> Reply:
        import ray

        node = self.cluster.add_node(wait=False, object_store_memory=100 * MEGABYTE, **options)
        wait_for(lambda: any(there["NodeID"] == node.node_id and there["Alive"] for there in ray.nodes()), name)
        self.nodes[name] = node
        return {"id": node.node_id}

    def kill(self, name: str) -> Reply:
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)
        return {}

    def groups(self) -> Reply:
        from ray.util import placement_group_table

        lists = {"bundles": "bundles", "nodes": "bundles_to_node_id"}
        names = {"strategy": "strategy", "state": "state", "id": "placement_group_id"}
        found = [
            {name: list(group[key].values()) for name, key in lists.items()}
            | {name: group[key] for name, key in names.items()}
            for group in placement_group_table().values()
        ]
        return {"found": found}

    def actors(self) -> Reply:
        from ray._private.state import actors  # the public one needs the dashboard

        names = {"id": "ActorID", "kind": "ActorClassName", "state": "State", "pid": "Pid"}
        found = [
            {name: actor[key] for name, key in names.items()} | {"node": actor["Address"]["NodeID"]}
            for actor in actors().values()
        ]
        return {"found": found}

    def end(self) -> None:
        import ray

        ray.shutdown()
        self.cluster.shutdown()


def main() -> None:
    """Answer requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints, too
    server = _Server()
    try:
        for line in sys.stdin:
            request = json.loads(line)
            reply = getattr(server, request.pop("do"))(**request)
            print(json.dumps(reply), file=answers, flush=True)
    finally:
        server.end()


if __name__ == "__main__":
    main()
