"""The contract between a method and the one training loop.

A method contributes its network, its loss and what it carries from task to task; it never owns an epoch loop. More
than one phase of training in a task is declared as stages, which the same loop runs one after the other.
"""

import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cl2r.batches import Batching
from cl2r.config import Config
from cl2r.engine.workers import ALONE, Workers

Losses = dict[str, Tensor]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TaskInfo:
    """What a method may know of task t when it begins."""

    index: int
    old_classes: int
    new_classes: int
    memory_rows: int

    @property
    def seen_classes(self) -> int:
        """N_t = k_0 + k_n."""
        return self.old_classes + self.new_classes


@dataclass(frozen=True)
class TaskData:
    """T_t = D_t ∪ M_t before training begins: rows of the training set, and a look at them without augmentation."""

    new: Rows
    memory: Rows
    labels: npt.NDArray[np.int64]
    """Of the whole training set, in task order."""
    apply: Callable[[nn.Module, Rows], Tensor]
    """A module's output for some rows, in eval mode and without gradients, on the method's device."""


@dataclass(frozen=True)
class Batch:
    """Rows of one step. A row is a memory row if its task id is below the current task, wherever it stands."""

    x: Tensor
    y: Tensor
    task_id: Tensor
    task: int
    workers: Workers = ALONE

    @property
    def is_memory(self) -> Tensor:
        """Mask of the memory rows."""
        return self.task_id < self.task

    def weight(self, rows: int) -> Tensor | float:
        """Every mean over rows of a loss is to be multiplied by this: then it is the mean over all workers' rows."""
        return self.workers.weight(rows)


@dataclass(frozen=True)
class Outputs:
    """φ(x) and the logits."""

    features: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Stage:
    """One phase of training inside a task: which parameters, how long, at which rate, on which loss and rows.

    Only `parameters` have gradients during the stage, and `loss` must use every one of them in one call of its network.
    """

    name: str
    epochs: int
    lr: float
    parameters: Callable[[], Iterable[nn.Parameter]]
    loss: Callable[[Batch, nn.Module], Losses]
    rows: tuple[Rows, Rows] | None = None
    """New and memory rows to train on; None: D_t and M_t."""
    batching: Batching | None = None
    """None: as configured."""
    statistics: bool = True
    """Whether batch norm uses and updates batch statistics. Stages of the classifier only must leave φ as it is."""
    schedule: Literal["optim", "constant"] = "optim"
    """optim: as configured, stretched to the stage's epochs."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    weight_decay: float | None = None
    """None: as configured."""
    clamp: float | None = None
    """Largest entry of a gradient."""
    save_every: int = 1
    """Epochs from one that is remembered, for an interrupted run to go on from, to the next."""


class Method(abc.ABC):
    """A chain of models φ_1..φ_T in the making.

    `network` is what the loop trains. From `begin_task` on it holds every tensor that a stage of the task changes, so
    that an epoch can be resumed from its state; other state of a task must follow from `restore` and `begin_task`.
    """

    network: nn.Module

    def __init__(self, config: Config, channels: int, num_outputs: int) -> None:
        self.config, self.channels, self.num_outputs = config, channels, num_outputs

    @abc.abstractmethod
    def begin_task(self, task: TaskInfo, data: TaskData) -> None:
        """Get ready for a task: grow the head, keep a teacher. Called once a task, before any of its stages."""

    @abc.abstractmethod
    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        """Named terms; their sum is minimised. `network` is `self.network`, possibly wrapped for many workers."""

    def stages(self) -> list[Stage]:
        """The stages of the current task; by default one that trains the whole network on `loss`."""
        return [Stage("train", self.config.optim.epochs, self.learning_rate, self.network.parameters, self.loss)]

    @property
    def learning_rate(self) -> float:
        """The configured rate of the current task."""
        optim = self.config.optim
        return optim.lr if self.task.index == 1 or optim.lr_later is None else optim.lr_later

    @property
    @abc.abstractmethod
    def task(self) -> TaskInfo:
        """The task begun last."""

    @abc.abstractmethod
    def extractor(self) -> nn.Module:
        """A frozen copy of φ_t for evaluation: images in, feature rows of a size that never changes out."""

    def metrics(self) -> dict[str, float]:
        """Figures of the current task worth keeping in the `tasks` frame, e.g. λ_t."""
        return {}

    def adapt_gallery(self, features: Tensor) -> Tensor:
        """A gallery stored in the space of φ_{t-1} (by it, or brought there before) in the space of φ_t.

        Called only for methods whose `MethodInfo.gallery` is true, after `end_task`.
        """
        return features

    def end_task(self) -> None:  # noqa: B027  (a hook most methods do not need)
        """Called once a task, after its last stage."""

    @abc.abstractmethod
    def carry(self) -> dict[str, Tensor]:
        """Every tensor the next task needs, besides the memory, which the engine keeps."""

    @abc.abstractmethod
    def restore(self, tensors: dict[str, Tensor], task: TaskInfo) -> None:
        """Become the method whose `carry()` was `tensors` at the end of `task`."""


def channels_last(module: nn.Module) -> nn.Module:
    """3×3 convolutions on small maps run several times faster on a CPU in this layout, and no slower on a GPU."""
    module.to(memory_format=torch.channels_last)
    return module
