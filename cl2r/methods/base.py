"""The contract between a method and the one training loop.

A method contributes its network, its loss and the tensors it carries from task to task; it never owns an epoch loop.
Several phases of training in one task are declared as stages, which the same loop runs one after the other.
"""

import abc
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, cast

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn
from typing_extensions import TypeVar

from cl2r.batches import Batch, Batching
from cl2r.config.methods import method_info
from cl2r.config.schema import Config
from cl2r.errors import InputError

Losses = dict[str, Tensor]
Tensors = dict[str, Tensor]
Rows = npt.NDArray[np.int64]
OptionsT = TypeVar("OptionsT", default=Any)


@dataclass(frozen=True)
class TaskInfo:
    """What a method may know about task t when it begins."""

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
    """T_t = D_t ∪ M_t before training begins, as rows of the training set."""

    new: Rows
    memory: Rows
    labels: npt.NDArray[np.int64]
    """Labels of the whole training set, in task order."""
    apply: Callable[[nn.Module, Rows], Tensor]
    """Return a module's output for some rows without augmentation, in eval mode, on the method's device."""


@dataclass(frozen=True)
class Outputs:
    """φ(x) and the logits."""

    features: Tensor
    logits: Tensor


@dataclass(frozen=True)
class AuxiliaryOutputs(Outputs):
    """φ(x), the logits, and those of a second classifier that sees only the newest backbone."""

    auxiliary: Tensor


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
    """Whether batch norm uses and updates batch statistics. Stages that train only the classifier must not change φ."""
    schedule: Literal["optim", "constant"] = "optim"
    """optim: the configured schedule, stretched to the stage's epochs."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    weight_decay: float | None = None
    """None: as configured."""
    clamp: float | None = None
    """Largest absolute value of a gradient entry."""
    augmented: bool = True
    """Whether images are cropped and flipped as configured."""
    save_every: int = 1
    """Save every n-th epoch, so that an interrupted run resumes after it."""


StageAfterPhi = partial(Stage, batching="natural", statistics=False, schedule="constant")
"""A stage that trains no part of φ."""


class Method(abc.ABC, Generic[OptionsT]):
    """Trains a chain of models φ_1..φ_T.

    `network` is what the loop trains. From `begin_task` on it holds every tensor that a stage of the task changes, so
    that an epoch can be resumed from its state; other state of a task must follow from `restore` and `begin_task`.
    """

    network: nn.Module
    options: OptionsT
    """The method's own config section."""
    task: TaskInfo
    """The task begun last."""

    def __init__(self, config: Config, channels: int, num_outputs: int) -> None:
        self.config, self.channels, self.num_outputs = config, channels, num_outputs
        self.options = cast(OptionsT, config.options)
        self.task = TaskInfo(0, 0, 0, 0)

    @classmethod
    def check(cls, config: Config) -> None:
        """Raise InputError if the method cannot train with this config. Called before any work starts."""

    @abc.abstractmethod
    def begin_task(self, task: TaskInfo, data: TaskData) -> None:
        """Prepare for a task: grow the head, keep a teacher. Called once per task, before its first stage."""

    @abc.abstractmethod
    def loss(self, batch: Batch, network: nn.Module) -> Losses:
        """Return named terms whose sum is minimised. `network` is `self.network`, wrapped if there are many workers.

        Multiply every mean over rows by `batch.weight(kind)`.
        """

    def stages(self) -> list[Stage]:
        """Return the stages of the current task; by default one that trains the whole network on `loss`."""
        return [self.train_stage(self.network)]

    def train_stage(self, *parts: nn.Module, rows: tuple[Rows, Rows] | None = None) -> Stage:
        """Return a stage with the configured epochs and rate that trains these parts of the network on `loss`."""
        epochs, lr = self.config.optim.epochs, self.learning_rate
        return Stage("train", epochs, lr, lambda: [p for part in parts for p in part.parameters()], self.loss, rows)

    @property
    def learning_rate(self) -> float:
        """Rate of the current task."""
        optim = self.config.optim
        return optim.lr if self.task.index == 1 or optim.lr_later is None else optim.lr_later

    def end_task(self) -> None:
        """Finish a task. Called once per task, after its last stage."""

    @abc.abstractmethod
    def extractor(self) -> nn.Module:
        """Return a frozen copy of φ_t for evaluation; it maps images to feature rows of a size that never changes."""

    def adapt_gallery(self, features: Tensor) -> Tensor:
        """Map gallery features from the space of φ_{t-1} (computed or mapped there earlier) to the space of φ_t.

        Called after `end_task`, and only if the method's `MethodInfo` says that it maps galleries.
        """
        return features

    @abc.abstractmethod
    def carry(self) -> Tensors:
        """Return every tensor that the next task needs, except the memory, which the engine keeps."""

    @abc.abstractmethod
    def restore(self, tensors: Tensors, task: TaskInfo) -> None:
        """Become the method whose `carry()` was `tensors` at the end of `task`."""

    def diagnostics(self) -> dict[str, float]:
        """Return values of the current task for the `tasks` frame, e.g. λ_t."""
        return {}


def method_class(name: str) -> type[Method]:
    """Return the class of a method. Raise InputError if it cannot be loaded, as a plug-in's may be."""
    info = method_info(name)
    module, _, attribute = info.build.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"method {info.name}: cannot load {info.build}: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise InputError(f"method {info.name}: {info.build} is not a subclass of Method")
    return kind


def build_method(config: Config, channels: int, num_outputs: int) -> Method:
    """Return the method that `config.method` describes, before its first task."""
    return method_class(config.method.name)(config, channels, num_outputs)
