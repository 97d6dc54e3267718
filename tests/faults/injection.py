"""Faults at chosen points of training. The product does not know of them.

A test writes tokens, one file per fault: at which point, under which conditions, what happens. It gives Ray Tune the
`run_trial` of this module instead of the real one; every training process then looks for tokens at every point and
takes one by renaming it, so that each fault happens once.
"""

import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

VARIABLE = "CL2R_TEST_FAULTS"
"""Variable with the folder of the tokens; Ray passes the environment on to its processes."""
PATIENCE_SECONDS = 240
HOUR = 3600.0
MOMENT = 1.1
"""Longer than the interval at which a training process looks for the driver's marker."""


def lay(point: str, action: str = "kill", times: int = 1, argument: str = "", **where: int) -> None:
    """Write tokens for a fault that happens `times` times."""
    for _ in range(times):
        token = {"action": action, "argument": argument, "where": where}
        (tokens() / f"{point}.{uuid.uuid4().hex[:8]}.json").write_text(json.dumps(token))


def tokens() -> Path:
    """Return the folder of the tokens."""
    return Path(os.environ[VARIABLE])


def left() -> list[str]:
    """Return the faults that have not happened."""
    return sorted(path.name for path in tokens().glob("*.json"))


def struck() -> int:
    """Return how many faults have happened."""
    return len(list(tokens().glob("*.struck")))


def clear() -> None:
    """Remove all tokens."""
    for path in tokens().iterdir():
        path.unlink()


def strike(point: str, place: Path | None = None, **where: int) -> None:
    """Perform the fault that was planned for this point, if any."""
    for path in sorted(tokens().glob(f"{point}.*.json")):
        try:
            token = json.loads(path.read_text())
            if token["where"].items() <= where.items():
                path.rename(path.with_suffix(".struck"))
                ACTIONS[token["action"]](token["argument"], place)
                return
        except FileNotFoundError:  # another process took it
            continue


def kill(_: str, __: Path | None) -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def hold(until: str, _: Path | None) -> None:
    """Wait for a file, then a moment more."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not Path(until).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(MOMENT)


def flip(_: str, link: Path | None) -> None:
    """Flip one bit of the link."""
    assert link is not None
    (path,) = link.glob("*-state.safetensors")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def tear(_: str, link: Path | None) -> None:
    """Cut off the second half of the link's largest file."""
    assert link is not None
    (path,) = link.glob("*-state.safetensors")
    os.truncate(path, path.stat().st_size // 2)


def turn_back(_: str, __: Path | None) -> None:
    """Set the clock of this process back by an hour."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() - HOUR
    time.time_ns = lambda: now_ns() - int(HOUR * 1e9)


def fill(mount: str, _: Path | None) -> None:
    """Fill the disk to its last block."""
    with (Path(mount) / "filler").open("wb") as file:
        try:
            while True:
                file.write(bytes(4096))
                file.flush()
        except OSError:
            return


ACTIONS: dict[str, Callable[[str, Path | None], None]] = {
    action.__name__: action for action in (kill, hold, flip, tear, turn_back, fill)
}


# ---------------------------------------------------------------- in the processes that train


def run_trial(config: dict[str, Any]) -> None:
    """Run the real trial with faults, also in the workers of Ray Train."""
    from cl2r.rayrun import trial

    install()
    if config["resources"]["workers"] > 1:
        trial._work = work  # type: ignore[assignment]
    trial.run_trial(config)


def work(config: dict[str, Any]) -> None:
    """The training function of every worker of Ray Train, with faults."""
    from cl2r.rayrun import trial

    install()
    trial._work(config)


def install() -> None:
    """Wrap the functions in which faults happen; once per process."""
    from cl2r.engine import chain as run
    from cl2r.engine import loop as task_loop
    from cl2r.storage.path import LocalPath

    if hasattr(task_loop.TaskLoop, "faults"):
        return
    task_loop.TaskLoop.faults = True  # type: ignore[attr-defined]
    task_loop.TaskLoop.batches = _batches(task_loop.TaskLoop.batches)  # type: ignore[method-assign]
    LocalPath.write_file = _write_file(LocalPath.write_file)  # type: ignore[method-assign]
    run.Chain.ensure_link = _reach(run.Chain.ensure_link)  # type: ignore[method-assign]
    run.Evaluator.__call__ = _evaluate(run.Evaluator.__call__)  # type: ignore[method-assign]


def _batches(original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def batches(self: Any, task: int, new: Any, memory: Any, stage: int, epoch: int, *more: Any) -> Any:
        for number, batch in enumerate(original(self, task, new, memory, stage, epoch, *more)):
            if number == 1:
                strike("batch", task=task, epoch=epoch + 1, rank=self.workers.rank)
            yield batch

    return batches


def _write_file(original: Callable[..., None]) -> Callable[..., None]:
    """Strike before the last file of an epoch or a link is written."""

    def write_file(path: Path, content: bytes, durable: bool = True) -> None:
        if path.name == "partial.json":
            strike("checkpoint", epoch=json.loads(content.partition(b"\n")[2])["epoch"])
        if path.name == "manifest.json":
            strike("link")
        original(path, content, durable)

    return write_file


def _reach(original: Callable[..., None]) -> Callable[..., None]:
    def reach(self: Any, task: int) -> None:
        original(self, task)
        strike("between", self.store.root / self.key(task), task=task, rank=self.workers.rank)

    return reach


def _evaluate(original: Callable[..., Any]) -> Callable[..., Any]:
    def evaluate(self: Any, features: Any, *given: Any, **named: Any) -> Any:
        strike("evaluation", tasks=len(features.models))
        return original(self, features, *given, **named)

    return evaluate
