"""Quick runs for tests: a small config, a listener that remembers, and how to train and to read back a chain."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cl2r.config import Config
from cl2r.engine.plan import Plan, plan_run
from cl2r.engine.run import RunResult, execute
from cl2r.engine.store import LinkStore
from cl2r.engine.task_loop import EpochReport
from cl2r.files import Place
from cl2r.layers import resolve
from cl2r.methods.base import TaskData

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


@dataclass
class Recorder:
    """A listener that remembers what it heard."""

    lines: list[str] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    reports: list[EpochReport] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.lines.append(line)

    def warn(self, line: str) -> None:
        self.lines.append(line)

    def begin(self, tasks: list[int]) -> None:
        self.begun = list(tasks)

    def epoch(self, report: EpochReport) -> None:
        self.reports.append(report)


@dataclass
class Interrupter(Recorder):
    """A user who presses Ctrl-C while the `after`-th epoch of the run is reported, before it is remembered."""

    after: int = 1

    def epoch(self, report: EpochReport) -> None:
        super().epoch(report)
        if len(self.reports) == self.after:
            raise KeyboardInterrupt


def blobs(classes: int, rng: np.random.Generator) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """16×16 grey images: each class is a random mosaic of 4×4 tiles, each image that mosaic with noise."""
    labels = np.repeat(np.arange(classes), PER_CLASS)
    mosaics = np.kron(rng.integers(0, 256, (classes, 4, 4)), np.ones((1, 4, 4)))
    images = mosaics[labels] + rng.normal(0, 20, (len(labels), 16, 16))
    return np.clip(images, 0, 255).astype(np.uint8)[..., None], labels.astype(np.int64)


def quick_config(data: Path, *layers: Mapping[str, Any]) -> Config:
    """The quick config on `data`, with `layers` on top."""
    return resolve([QUICK, {"data": {"name": str(data)}}, *layers])


def train(config: Config, root: Place, listener: Recorder | None = None) -> RunResult:
    """Plan and execute."""
    return execute(plan_run(config), root, listener or Recorder())


def chain_tensors(plan: Plan, root: Place) -> list[dict[str, torch.Tensor]]:
    """Everything every link holds, features included, task by task."""
    store = LinkStore(root, lambda line: None)
    links = [(store.state(key), store.features(key)) for key in plan.keys]
    return [state | {f"features/{name}": tensor for name, tensor in features.items()} for state, features in links]


def assert_same_chain(plan: Plan, root: Place, other: Place) -> None:
    """Bit for bit the same weights, memory and features in both stores."""
    for one, two in zip(chain_tensors(plan, root), chain_tensors(plan, other), strict=True):
        assert one.keys() == two.keys()
        for name, tensor in one.items():
            assert tensor.dtype == two[name].dtype
            assert np.array_equal(tensor.numpy(), two[name].numpy()), name


def set_options(settings: Mapping[str, Any]) -> list[str]:
    """`--set a.b=value` for every setting, for the command line."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def flat_quick() -> dict[str, Any]:
    """The quick config by dotted names."""
    flat: dict[str, Any] = {}
    for name, value in QUICK.items():
        flat |= {f"{name}.{key}": entry for key, entry in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def no_data() -> TaskData:
    """For methods that look at no image before training."""
    none = np.empty(0, dtype=np.int64)
    return TaskData(none, none, none, lambda module, rows: torch.empty(0))


def flip_bit(path: Path) -> None:
    """Damage one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
