"""Every training process of a fake cluster appends one line per epoch to a file; the product does not know of it.

Ray's processes call `install` when they start (`fake_nodes`); the training loop is wrapped when it is imported. Their
wall clock is off by the number of seconds in another file, if it exists.
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "CL2R_TEST_EPOCHS"
CLOCK_VARIABLE = "CL2R_TEST_CLOCK"
WATCHED = "cl2r.engine.loop"


@dataclass(frozen=True)
class Epoch:
    """One epoch that a process finished."""

    time: float
    """Seconds since the machine's start, which no fault changes."""
    run: str
    task: int
    stage: str
    epoch: int
    rank: int
    pid: int
    node: str
    placement_group: str
    assigned: dict[str, float]


def read_epochs(path: Path) -> list[Epoch]:
    """Return the epochs that were trained; half-written lines are left out."""
    return _parsed(path.read_text()) if path.exists() else []


def read_last(path: Path) -> Epoch | None:
    """Return the last epoch."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2000))
        epochs = _parsed(file.read().decode())
    return epochs[-1] if epochs else None


def _parsed(text: str) -> list[Epoch]:
    whole = (line for line in text.splitlines() if line.startswith("{") and line.endswith("}}"))
    return [Epoch(**json.loads(line)) for line in whole]


def install() -> None:
    """Called by Ray in every process it starts."""
    sys.meta_path.insert(0, _Finder())
    _disturb_clock(Path(os.environ[CLOCK_VARIABLE]))


def _disturb_clock(file: Path) -> None:
    seconds, nanoseconds = time.time, time.time_ns

    def wrong_by() -> int:
        return int(file.read_text()) if file.exists() else 0

    time.time = lambda: seconds() + wrong_by()
    time.time_ns = lambda: nanoseconds() + wrong_by() * 10**9


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != WATCHED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            _watch(module.TaskLoop)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def _watch(loop: Any) -> None:
    original = loop.epoch

    def epoch(self: Any, *given: Any, **named: Any) -> Any:
        report = original(self, *given, **named)
        _append(self, report)
        return report

    loop.epoch = epoch


def _append(loop: Any, report: Any) -> None:
    import ray

    context = ray.get_runtime_context()
    config = loop.config
    entry = {
        "time": time.monotonic(),
        "run": f"{config.method.name}-{config.seed}",
        "task": report.task,
        "stage": report.stage,
        "epoch": report.epoch,
        "rank": loop.workers.rank,
        "pid": os.getpid(),
        "node": context.get_node_id(),
        "placement_group": context.get_placement_group_id(),
        "assigned": context.get_assigned_resources(),
    }
    line = (json.dumps(entry) + "\n").encode()
    file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)  # one write: lines of several processes do not mix
    os.close(file)
