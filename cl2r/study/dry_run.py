"""Walk a chain with untrained networks and random inputs to count steps and FLOPs.

The walk shows what follows from a plan alone: the stages and rows of every task, and the FLOPs (two per multiply-add)
of one row, counted on two real images whenever they may have changed.
"""

import json
from collections.abc import Callable, Hashable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from cl2r.batches import Batch, RowKind, batches_per_epoch
from cl2r.config.methods import method_info
from cl2r.config.schema import fields, matters_from
from cl2r.engine.chain import training_images
from cl2r.engine.loop import TaskLoop
from cl2r.engine.plan import Plan
from cl2r.memory import sample_task
from cl2r.methods.base import Rows, Stage, TaskData, TaskInfo, build_method

COUNTED_ROWS = 2  # the fewest that batch norm takes


class FlopCount(NamedTuple):
    """FLOPs of one row, and the shape of its features (empty for a training step)."""

    flops: float
    shape: tuple[int, ...] = ()


FlopCache = dict[Hashable, FlopCount]
"""Earlier counts by what decides them; chains that share a cache count each thing once."""


class EpochShape(NamedTuple):
    """The number of batches of one epoch of a stage, the rows of each, and how many of those are from memory."""

    steps: int
    batch: int
    memory_share: float


def epoch_shape(plan: Plan, stage: Stage, data: TaskData) -> EpochShape:
    """Return the batches of one epoch. A balanced batch is always full; any other has at most all rows there are."""
    new, memory = map(len, stage.rows or (data.new, data.memory))
    size, total = plan.config.batches.size, new + memory
    steps = batches_per_epoch(new, memory, size)
    if memory and (stage.batching or plan.config.batches.batching) == "balanced":
        return EpochShape(steps, size, size // 2 / size)
    return EpochShape(steps, min(size, total), memory / total if total else 0.0)


class DryChain:
    """The tasks of a plan, begun in order."""

    def __init__(self, plan: Plan, device: torch.device, cache: FlopCache | None = None, loaders: int = 0) -> None:
        self.plan, self.device, self.cache = plan, device, {} if cache is None else cache
        self.info = method_info(plan.config.method.name)
        self.method = build_method(plan.config, plan.dataset.channels, plan.num_outputs)
        self.method.network.to(device)
        self.loop = TaskLoop(plan.config, training_images(plan, device, loaders), report=lambda _: None)
        self.task, self.extracted_rows, self.extracted_flops = 0, 0, 0.0
        self.data = TaskData(np.empty(0, np.int64), np.empty(0, np.int64), plan.scenario.labels, self._apply)
        self._work, self._applied = "", dict[nn.Module, FlopCount]()

    def begin(self) -> TaskData:
        """Begin the next task with the memory it will have; count what the method embeds outside stages from now on.

        Memory is drawn at random: which rows herding chooses changes no count.
        """
        config, scenario, rows, info = self.plan.config, self.plan.scenario, self.data.new, self.info
        if info.memory == "quota":
            rows = sample_task(rows, scenario.labels[rows], config.memory.per_class, "random", config.seed, self.task)
        task, memory = scenario.tasks[self.task], np.concatenate([self.data.memory, rows])
        self.data = TaskData(task.rows, memory, scenario.labels, self._apply)
        self.task, self.extracted_rows, self.extracted_flops = self.task + 1, 0, 0.0
        # What decides the FLOPs of a row: the fields of the link's key, float weights only by whether they are 0. The
        # growth of heads with the classes is small and left out; a method whose φ grows is counted at every task.
        family = info.first_task if self.task == 1 and info.first_task else info.family
        parts, since = {"backbone", "head", "method", info.section}, matters_from()
        chosen = {
            name: value != 0 if isinstance(value, float) else value
            for name, value in fields(config).items()
            if name.split(".")[0] in parts and since[name] in range(1, self.task + 1)
        }
        sizes = [*self.plan.dataset.x_train.shape[1:], self.plan.num_outputs]
        stage = self.task if info.grows else min(self.task, 2)
        self._work = json.dumps([family, stage, len(memory) > 0, sizes, chosen])
        self._applied.clear()
        self.method.begin_task(TaskInfo(task.index, task.labels.start, len(task.labels), len(memory)), self.data)
        return self.data

    def stages(self) -> list[Stage]:
        """Return the stages of the current task that will be trained."""
        return [stage for stage in self.method.stages() if stage.epochs]

    def features(self) -> FlopCount:
        """Count one image through the current model, as `extract` runs it."""
        return self._cached(("features",), lambda: self._passed(self.method.extractor()))

    def row_flops(self, number: int, stage: Stage) -> float:
        """Return FLOPs per row of a training step, forward and backward. Terms quadratic in the batch are left out."""
        new, memory = stage.rows or (self.data.new, self.data.memory)
        share = epoch_shape(self.plan, stage, self.data).memory_share
        parts: tuple[tuple[RowKind, Rows, float], ...] = (("new", new, 1 - share), ("memory", memory, share))
        return sum(
            part * self._cached((number, stage.name, kind), partial(self._step, stage, kind, rows)).flops
            for kind, rows, part in parts
            if part
        )

    def _cached(self, name: tuple[Hashable, ...], count: Callable[[], FlopCount]) -> FlopCount:
        key = (self._work, *name)
        if key not in self.cache:
            self.cache[key] = count()
        return self.cache[key]

    def _step(self, stage: Stage, kind: RowKind, rows: Rows) -> FlopCount:
        """Count one training step as the loop makes it; nothing is learned."""
        index = torch.from_numpy(np.resize(rows, COUNTED_ROWS)).to(self.device)
        memory = range(COUNTED_ROWS) if kind == "memory" else ()
        batch = Batch.of_one_worker(self._images(rows), self.loop.data.labels[index], memory)
        optimiser = self.loop.optimiser(self.method, stage)
        self.method.network.train(stage.statistics)
        with FlopCounterMode(display=False) as counter:
            losses = stage.loss(batch, self.method.network)
            torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        optimiser.zero_grad()
        return FlopCount(counter.get_total_flops() / COUNTED_ROWS)

    def _passed(self, module: nn.Module) -> FlopCount:
        """Count one pass in eval mode without gradients."""
        images = self._images(self.data.new)
        module.eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            out: Tensor = module(images)
        return FlopCount(counter.get_total_flops() / len(images), tuple(out.shape[1:]))

    def _images(self, rows: Rows) -> Tensor:
        data = self.loop.data
        return data.normalise(*data.pixels.stream([np.resize(rows, COUNTED_ROWS)]))

    def _apply(self, module: nn.Module, rows: Rows) -> Tensor:
        """Return noise of the right shape; a module is run on two images only."""
        if module not in self._applied:
            self._applied = {module: self._passed(module)}
        count = self._applied[module]
        self.extracted_rows += len(rows)
        self.extracted_flops += len(rows) * count.flops
        generator = torch.Generator().manual_seed(len(rows))
        return torch.randn(len(rows), *count.shape, generator=generator).to(self.device)
