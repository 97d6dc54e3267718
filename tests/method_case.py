"""A method without a run: small random images, tasks begun by hand, batches of chosen labels. For property tests."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from quick import QUICK
from torch import Tensor, nn

from cl2r.engine.workers import Workers
from cl2r.layers import override, resolve
from cl2r.methods.base import Batch, Method, TaskData, TaskInfo
from cl2r.methods.registry import build_method

CLASSES, PER_CLASS, SIZE = 12, 6, 16


@dataclass
class Case:
    """12 classes of 6 grey 16×16 images; rows of class c are 6c..6c+5, and labels are in task order."""

    method: Method
    images: Tensor
    labels: npt.NDArray[np.int64]
    tasks: list[range]

    def apply(self, module: nn.Module, rows: npt.NDArray[np.int64]) -> Tensor:
        """The module's output for rows, in eval mode."""
        module.eval()
        with torch.no_grad():
            out: Tensor = module(self.images[torch.from_numpy(rows)])
        return out

    def rows(self, classes: range, per_class: int = PER_CLASS) -> npt.NDArray[np.int64]:
        """The first rows of every class."""
        return np.array([PER_CLASS * c + i for c in classes for i in range(per_class)], dtype=np.int64)

    def data(self, task: int, memory_per_class: int = 2) -> TaskData:
        """T_t, with a memory of so many rows a class."""
        old = range(self.tasks[task - 1].start)
        return TaskData(self.rows(self.tasks[task - 1]), self.rows(old, memory_per_class), self.labels, self.apply)

    def begin(self, task: int, memory_per_class: int = 2) -> TaskData:
        """Begin a task."""
        data, classes = self.data(task, memory_per_class), self.tasks[task - 1]
        self.method.begin_task(TaskInfo(task, classes.start, len(classes), len(data.memory)), data)
        return data

    def batch(self, task: int, rows: npt.NDArray[np.int64]) -> Batch:
        """Those rows as a batch of task t."""
        labels = self.labels[rows]
        owner = np.array([next(i for i, c in enumerate(self.tasks, 1) if label in c) for label in labels])
        index = torch.from_numpy(rows)
        return Batch(self.images[index], torch.from_numpy(labels), torch.from_numpy(owner), task)

    def batch_of(self, task: int, classes: range, per_class: int = 2) -> Batch:
        """A batch of the first rows of some classes."""
        return self.batch(task, self.rows(classes, per_class))

    def step(self, batch: Batch, lr: float = 0.05, stage: int = 0) -> dict[str, Tensor]:
        """One plain SGD step of a stage of the current task; gives its losses."""
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
    """The method `name` on a case of that many equal tasks, before its first."""
    config = resolve([QUICK, {"method": {"name": name}}, layer, *map(override, overrides)])
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(CLASSES * PER_CLASS, 1, SIZE, SIZE, generator=generator)
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    size = CLASSES // tasks
    ranges = [range(size * i, size * (i + 1)) for i in range(tasks)]
    return Case(build_method(config, 1, CLASSES), images, labels, ranges)


def mixed(made: Case, task: int) -> Batch:
    """Rows of all classes seen."""
    return made.batch_of(task, range(made.tasks[task - 1].stop))


def advanced(
    name: str, *overrides: str, task: int = 2, steps: int = 2, memory_per_class: int = 2, tasks: int = 3
) -> Case:
    """The method some steps of its first stage into each task up to `task`, in eval mode."""
    made = case(name, *overrides, tasks=tasks)
    for index in range(1, task + 1):
        made.begin(index, memory_per_class)
        for _ in range(steps):
            made.step(mixed(made, index))
    made.method.network.eval()
    return made


def assert_the_teacher_is_the_old_network(name: str, classes: range) -> None:
    """The whole network of task 1, also after a step of task 2 on those classes; frozen, in eval mode."""
    made = case(name)
    made.begin(1)
    made.step(mixed(made, 1))
    batch = made.batch_of(2, classes)
    with torch.no_grad():
        before = made.method.network.eval()(batch.x).logits
    made.begin(2)
    made.step(batch)
    teacher = getattr(made.method, "teacher", None)
    assert isinstance(teacher, nn.Module)
    torch.testing.assert_close(teacher(batch.x).logits, before, rtol=1e-4, atol=1e-5)
    assert not teacher.training
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


@dataclass(frozen=True)
class Summing(Workers):
    """Weights that turn every mean over rows into a sum: parts of a batch must then add up to the whole."""

    asked: list[int] = field(default_factory=list)

    def weight(self, rows: int) -> float:
        self.asked.append(rows)
        return float(rows)


def fingerprint(module: nn.Module) -> str:
    """A hash of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
