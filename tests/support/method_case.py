"""A method without a run: small random images, tasks begun by hand, batches with chosen labels."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cl2r.batches import Batch
from cl2r.config.layers import override, resolve
from cl2r.methods.base import TaskData, TaskInfo, build_method
from tests.support.quick import QUICK

CLASSES, PER_CLASS, SIZE = 12, 6, 16


@dataclass
class Case:
    """12 classes of 6 grey 16×16 images; rows of class c are 6c..6c+5, and labels are in task order."""

    method: Any
    images: Tensor
    labels: npt.NDArray[np.int64]
    tasks: list[range]

    def apply(self, module: nn.Module, rows: npt.NDArray[np.int64]) -> Tensor:
        """Return the module's output for some rows, in eval mode."""
        module.eval()
        with torch.no_grad():
            out: Tensor = module(self.images[torch.from_numpy(rows)])
        return out

    def rows(self, classes: range, per_class: int = PER_CLASS) -> npt.NDArray[np.int64]:
        """Return the first rows of every class."""
        return np.array([PER_CLASS * c + i for c in classes for i in range(per_class)], dtype=np.int64)

    def data(self, task: int, memory_per_class: int = 2) -> TaskData:
        """Return T_t with a memory of `memory_per_class` rows per class."""
        old = range(self.tasks[task - 1].start)
        return TaskData(self.rows(self.tasks[task - 1]), self.rows(old, memory_per_class), self.labels, self.apply)

    def begin(self, task: int, memory_per_class: int = 2) -> TaskData:
        """Begin a task and return its data."""
        data, classes = self.data(task, memory_per_class), self.tasks[task - 1]
        self.method.begin_task(TaskInfo(task, classes.start, len(classes), len(data.memory)), data)
        return data

    def batch(self, task: int, rows: npt.NDArray[np.int64]) -> Batch:
        """Return some rows as a batch of task t."""
        labels, index = self.labels[rows], torch.from_numpy(rows)
        memory = np.flatnonzero(labels < self.tasks[task - 1].start)
        return Batch.of_one_worker(self.images[index], torch.from_numpy(labels), memory.tolist())

    def batch_of(self, task: int, classes: range, per_class: int = 2) -> Batch:
        """Return a batch with the first rows of some classes."""
        return self.batch(task, self.rows(classes, per_class))

    def losses(self, batch: Batch, stage: int = 0) -> dict[str, float]:
        """Return the loss terms of a stage, without a step."""
        terms = self.method.stages()[stage].loss(batch, self.method.network)
        return {name: value.item() for name, value in terms.items()}

    def step(self, batch: Batch, lr: float = 0.05, stage: int = 0) -> dict[str, Tensor]:
        """Take one plain SGD step of a stage of the current task and return its losses."""
        spec = self.method.stages()[stage]
        parameters = list(spec.parameters())
        self.method.network.requires_grad_(False)
        for parameter in parameters:
            parameter.requires_grad_(True)
        self.method.network.train(spec.statistics)
        losses = spec.loss(batch, self.method.network)
        gradients = torch.autograd.grad(torch.stack(list(losses.values())).sum(), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= lr * gradient
        return losses


def case(name: str, *overrides: str, tasks: int = 3, **layer: Any) -> Case:
    """Return the method `name` before the first of `tasks` equal tasks."""
    config = resolve([QUICK, {"method": {"name": name}}, layer, *map(override, overrides)])
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(CLASSES * PER_CLASS, 1, SIZE, SIZE, generator=generator)
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    size = CLASSES // tasks
    ranges = [range(size * i, size * (i + 1)) for i in range(tasks)]
    return Case(build_method(config, 1, CLASSES), images, labels, ranges)


def mixed(made: Case, task: int, memory: int = 2) -> Batch:
    """Return a batch with rows of all classes seen, or of the new ones if there is no memory."""
    classes = made.tasks[task - 1]
    return made.batch_of(task, range(0 if memory else classes.start, classes.stop))


def advanced(
    name: str, *overrides: str, task: int = 2, steps: int = 2, memory: int = 2, tasks: int = 3, sure: bool = False
) -> Case:
    """Return the method in eval mode after `steps` of the first stage of `task`, and two of each task before.

    `sure` makes the first model sure of itself, so that no answer of the teacher is next to uniform.
    """
    made = case(name, *overrides, tasks=tasks)
    for index in range(1, task + 1):
        if index > 1:
            made.method.end_task()
        made.begin(index, memory)
        for _ in range(steps if index == task else 2):
            made.step(mixed(made, index, memory))
        if sure and index == 1:
            made.method.network.classifier.weight.detach().mul_(30)
    made.method.network.eval().requires_grad_(True)
    return made


def ended(name: str, *overrides: str, task: int = 1) -> Case:
    """Return the method at the end of a task, two steps into each of which it ended."""
    made = advanced(name, *overrides, task=task)
    made.method.end_task()
    return made


def fingerprint(module: nn.Module) -> str:
    """Return a hash of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
