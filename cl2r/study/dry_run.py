"""A chain walked without training: its methods are real, but untrained, and what they look at is random.

It tells what follows from a plan alone: the stages and rows of every task, and the FLOPs (two a multiply-add) of a row,
counted on a few real images where they may have changed.
"""

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from cl2r.batches import batches_per_epoch
from cl2r.config import fields, matters_from
from cl2r.engine.pixels import Look
from cl2r.engine.plan import Plan
from cl2r.engine.run import training_images
from cl2r.engine.task_loop import TaskLoop
from cl2r.memory import sample_task
from cl2r.methods.base import Batch, Rows, Stage, TaskData, TaskInfo
from cl2r.methods.catalog import method_info
from cl2r.methods.registry import build_method

COUNTED_ROWS = 2  # the fewest that batch norm takes


@dataclass(frozen=True)
class Counted:
    """FLOPs of one row's way through something, and the shape that comes out (of features; a step has none)."""

    flops: float
    shape: tuple[int, ...] = ()


Known = dict[Hashable, Counted]
"""What was counted before, by what decides it; chains that share it count each thing once."""


@dataclass(frozen=True)
class Drawn:
    """The batches of one epoch of a stage."""

    steps: int
    batch: int
    """Rows of each."""
    memory_share: float


def drawn(plan: Plan, stage: Stage, data: TaskData) -> Drawn:
    """A balanced batch is always full, rows repeat where need be; any other is at most all there is."""
    new, memory = map(len, stage.rows or (data.new, data.memory))
    size, total = plan.config.batches.size, new + memory
    steps = batches_per_epoch(new, memory, size)
    if memory and (stage.batching or plan.config.batches.batching) == "balanced":
        return Drawn(steps, size, size // 2 / size)
    return Drawn(steps, min(size, total), memory / total if total else 0.0)


class DryChain:
    """The tasks of a plan, begun in order."""

    def __init__(self, plan: Plan, device: torch.device, known: Known | None = None, loaders: int = 0) -> None:
        self.plan, self.device, self.known = plan, device, {} if known is None else known
        self.info = method_info(plan.config.method.name)
        self.method = build_method(plan.config, plan.dataset.channels, plan.num_outputs)
        self.method.network.to(device)
        self.loop = TaskLoop(plan.config, training_images(plan, device, loaders), report=lambda _: None)
        self.task, self.looked, self._work = 0, Looked(), ""
        self.data = TaskData(np.empty(0, np.int64), np.empty(0, np.int64), plan.scenario.labels, self._apply)

    def begin(self) -> TaskData:
        """Begin the next task, with the memory it will have. `looked` tells what the method looks at from now on."""
        self.data, self.looked = self._next_data(), Looked()
        self.task += 1
        self._work = work_of(self.plan, self.task, len(self.data.memory))
        task = self.plan.scenario.tasks[self.task - 1]
        info = TaskInfo(task.index, task.labels.start, len(task.labels), len(self.data.memory))
        self.method.begin_task(info, self.data)
        return self.data

    def stages(self) -> list[Stage]:
        """Those of the task begun that will be trained."""
        return [stage for stage in self.method.stages() if stage.epochs]

    def _next_data(self) -> TaskData:
        """Which rows herding would choose does not change any count, so it is spared its features."""
        config, scenario, rows = self.plan.config, self.plan.scenario, self.data.new
        if self.info.memory == "quota":
            rows = sample_task(rows, scenario.labels[rows], config.memory.per_class, "random", config.seed, self.task)
        memory = np.concatenate([self.data.memory, rows])
        return TaskData(scenario.tasks[self.task].rows, memory, scenario.labels, self._apply)

    def _apply(self, module: nn.Module, rows: Rows) -> Tensor:
        """Noise of the right shape: the module sees two images only."""
        counted = self.looked.at(module, len(rows), self._images(self.data.new))
        generator = torch.Generator().manual_seed(len(rows))
        return torch.randn(len(rows), *counted.shape, generator=generator).to(self.device)

    def _images(self, rows: Rows) -> Tensor:
        data = self.loop.data
        return data.normalise(*data.pixels.stream([Look(np.resize(rows, COUNTED_ROWS))]))

    def features(self) -> Counted:
        """Of the current model, as `extract` runs it."""
        return self._recall(("features",), lambda: passed(self.method.extractor(), self._images(self.data.new)))

    def row_flops(self, number: int, stage: Stage) -> float:
        """FLOPs of a training step, forward and backward, over its rows. Terms quadratic in the batch are left out."""
        new, memory = stage.rows or (self.data.new, self.data.memory)
        share = drawn(self.plan, stage, self.data).memory_share
        parts = (("new", new, 1 - share), ("memory", memory, share))
        return sum(part * self._step(number, stage, kind, rows).flops for kind, rows, part in parts if part)

    def _step(self, number: int, stage: Stage, kind: str, rows: Rows) -> Counted:
        return self._recall((number, stage.name, kind), lambda: self._counted_step(stage, rows))

    def _counted_step(self, stage: Stage, rows: Rows) -> Counted:
        """One step as the loop makes it, but nothing is learnt."""
        data, index = self.loop.data, torch.from_numpy(np.resize(rows, COUNTED_ROWS)).to(self.device)
        batch = Batch(self._images(rows), data.labels[index], data.task_of_row[index], self.task)
        optimiser = self.loop.optimiser(self.method, stage)
        self.method.network.train(stage.statistics)
        with FlopCounterMode(display=False) as counter:
            losses = stage.loss(batch, self.method.network)
            torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        optimiser.zero_grad()
        return Counted(counter.get_total_flops() / COUNTED_ROWS)

    def _recall(self, name: tuple[Hashable, ...], count: Callable[[], Counted]) -> Counted:
        key = (self._work, *name)
        if key not in self.known:
            self.known[key] = count()
        return self.known[key]


def work_of(plan: Plan, task: int, memory: int) -> str:
    """What decides the FLOPs of a row: the fields that decide the link's key, weights only as far as they are not 0.

    Heads grow with the classes, so little that it is left out; a method whose φ grows is counted at every task.
    """
    info, values, since = method_info(plan.config.method.name), fields(plan.config), matters_from()
    family = info.first_task if task == 1 and info.first_task else info.family
    chosen = {
        name: value != 0 if isinstance(value, float) else value
        for name, value in values.items()
        if name.split(".")[0] in {"backbone", "head", "method", info.section} and since[name] in range(1, task + 1)
    }
    sizes = [*plan.dataset.x_train.shape[1:], plan.num_outputs]
    return json.dumps([family, task if info.grows else min(task, 2), memory > 0, sizes, chosen])


class Looked:
    """The passes over images that a method asks for outside of its stages."""

    def __init__(self) -> None:
        self.rows, self.flops = 0, 0.0
        self._last: tuple[nn.Module, Counted] | None = None

    def at(self, module: nn.Module, rows: int, images: Tensor) -> Counted:
        """Count `rows` more; the module is run on `images` unless it was the last one too."""
        if self._last is None or self._last[0] is not module:
            self._last = module, passed(module, images)
        counted = self._last[1]
        self.rows, self.flops = self.rows + rows, self.flops + rows * counted.flops
        return counted


def passed(module: nn.Module, images: Tensor) -> Counted:
    """A pass in eval mode without gradients."""
    module.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        out: Tensor = module(images)
    return Counted(counter.get_total_flops() / len(images), tuple(out.shape[1:]))
