"""Quick runs for tests: a small config, a recording listener, and functions to train and read back a chain."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cl2r.config.layers import resolve
from cl2r.config.schema import Config
from cl2r.engine.chain import RunResult, execute
from cl2r.engine.links import LinkStore
from cl2r.engine.plan import Plan, plan_run
from cl2r.methods.base import TaskData
from cl2r.runtime.progress import EpochReport
from cl2r.storage.path import StoragePath

TASKS, EPOCHS, PER_CLASS = 3, 3, 14
QUICK: dict[str, Any] = {
    "threads": 1,
    "scenario": {"n_tasks": TASKS},
    "backbone": {"name": "resnet8s"},
    "memory": {"per_class": 3},
    "batches": {"size": 16},
    "optim": {"epochs": EPOCHS, "milestones": [2]},
    "augment": {"padding": 1, "flip": False},
    "eval": {"positives": 60, "negatives": 60, "folds": 5, "bootstrap": 50},
}


class Recorder(logging.Handler):
    """A listener that keeps all events. The newest one also keeps the engine's log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.begun: list[int] = []
        self.reports: list[EpochReport] = []
        logger = logging.getLogger("cl2r.engine")
        logger.handlers = [self]
        logger.setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def begin(self, tasks: list[int]) -> None:
        self.begun = list(tasks)

    def epoch(self, report: EpochReport) -> None:
        self.reports.append(report)


class Interrupter(Recorder):
    """Simulate Ctrl-C when the `after`-th epoch of the run is reported, before it is saved."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def epoch(self, report: EpochReport) -> None:
        super().epoch(report)
        if len(self.reports) == self.after:
            raise KeyboardInterrupt


def blobs(classes: int, rng: np.random.Generator) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return 16×16 grey images: each class is a random mosaic of 4×4 tiles, each image that mosaic with noise."""
    labels = np.repeat(np.arange(classes), PER_CLASS)
    mosaics = np.kron(rng.integers(0, 256, (classes, 4, 4)), np.ones((1, 4, 4)))
    images = mosaics[labels] + rng.normal(0, 20, (len(labels), 16, 16))
    return np.clip(images, 0, 255).astype(np.uint8)[..., None], labels.astype(np.int64)


def quick_config(data: Path, *layers: Mapping[str, Any]) -> Config:
    """Return the quick config on `data`, with `layers` on top."""
    return resolve([QUICK, {"data": {"name": str(data)}}, *layers])


def train(config: Config, root: StoragePath, listener: Recorder | None = None) -> RunResult:
    """Plan and execute a run."""
    return execute(plan_run(config), root, listener or Recorder())


def chain_tensors(plan: Plan, root: StoragePath) -> list[dict[str, torch.Tensor]]:
    """Return all tensors of every link, features included, task by task."""
    store = LinkStore(root)
    links = [(store.state(key), store.features(key)) for key in plan.keys]
    return [state | {f"features/{name}": tensor for name, tensor in features.items()} for state, features in links]


def assert_same_chain(plan: Plan, root: StoragePath, other: StoragePath) -> None:
    """Assert that both stores have the same weights, memory and features, bit for bit."""
    for one, two in zip(chain_tensors(plan, root), chain_tensors(plan, other), strict=True):
        assert one.keys() == two.keys()
        for name, tensor in one.items():
            assert tensor.dtype == two[name].dtype
            assert np.array_equal(tensor.numpy(), two[name].numpy()), name


def open_features(result: RunResult, root: StoragePath) -> list[npt.NDArray[np.float32]]:
    """Return φ_t of the open images, task by task."""
    return [tensors["features/open"].numpy() for tensors in chain_tensors(result.plan, root)]


def set_options(settings: Mapping[str, Any]) -> list[str]:
    """Return `--set a.b=value` for every setting."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def flat_quick() -> dict[str, Any]:
    """Return the quick config by dotted names."""
    flat: dict[str, Any] = {}
    for name, value in QUICK.items():
        flat |= {f"{name}.{key}": entry for key, entry in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def no_data() -> TaskData:
    """Return data for methods that use no image before training."""
    none = np.empty(0, dtype=np.int64)
    return TaskData(none, none, none, lambda module, rows: torch.empty(0))


def flip_bit(path: Path) -> None:
    """Damage one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_file(bytes(content))
