"""The only SGD loop. It runs the stages of a task epoch by epoch and can go on after any of them."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cl2r.augment import Augmentation, Normalise, crop_and_flip, draw
from cl2r.backbones import compile_backbones
from cl2r.batches import Batching, epoch_batches, shard
from cl2r.config import Config
from cl2r.engine.pixels import Look, Pixels
from cl2r.engine.store import Partial
from cl2r.engine.workers import ALONE, Workers
from cl2r.errors import StoppedError, TrainingError
from cl2r.methods.base import Batch, Method, Stage
from cl2r.seeding import numpy_stream, torch_stream
from cl2r.stopping import Stop, never

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TrainingImages:
    """The training set: its pixels, labels in task order and the task that owns each row, both on the device."""

    pixels: Pixels
    labels: Tensor
    task_of_row: Tensor
    normalise: Normalise


@dataclass(frozen=True)
class EpochReport:
    """What the progress line and the `curves` frame know of an epoch."""

    task: int
    stage: str
    epoch: int
    epochs: int
    lr: float
    images: int
    seconds: float
    losses: dict[str, float]


@dataclass
class TaskRecord:
    """What a finished task leaves behind besides tensors; JSON-ready."""

    curves: list[dict[str, Any]] = field(default_factory=list)
    images: int = 0
    seconds: float = 0.0

    def add(self, report: EpochReport) -> None:
        """Append an epoch."""
        row = {"stage": report.stage, "epoch": report.epoch, "lr": report.lr, "seconds": report.seconds}
        self.curves.append({**row, **{f"loss_{name}": value for name, value in report.losses.items()}})
        self.images += report.images
        self.seconds += report.seconds


@dataclass
class TaskLoop:
    """Trains one task. `report` hears of every epoch; those to be remembered are saved.

    The first worker asks `stop` after every epoch; if it says so, that epoch is saved and all workers leave.
    """

    config: Config
    data: TrainingImages
    report: Callable[[EpochReport], None]
    workers: Workers = ALONE
    stop: Stop = never

    def run(
        self, method: Method, new: Rows, memory: Rows, resume: Partial | None, save: Callable[[Partial], None]
    ) -> TaskRecord:
        """Run all stages of the task that `method` has begun, from `resume` on."""
        record = TaskRecord(**resume.record) if resume else TaskRecord()
        network = self.network(method)
        for number, stage in enumerate(method.stages()):
            if resume and number < resume.stage:
                continue
            if stage.epochs == 0:
                continue
            optimiser = self.optimiser(method, stage)
            start = 0
            if resume and number == resume.stage:
                _restore(resume.tensors, method.network, optimiser)
                start = resume.epoch
            wrapped = self.workers.wrap(network)
            for epoch in range(start, stage.epochs):
                rows = stage.rows or (new, memory)
                batches = self.batches(method.task.index, *rows, number, epoch, stage.batching)
                report = self.epoch(method, wrapped, stage, optimiser, epoch, batches)
                record.add(report)
                stopping = self.workers.from_first(self.stop)
                if self.workers.first:
                    self.report(report)
                    if stopping or (epoch + 1) % stage.save_every == 0:
                        save(Partial(number, epoch + 1, _snapshot(method.network, optimiser), vars(record)))
                if stopping:
                    raise stopped(f"after epoch {epoch + 1} of task {method.task.index}")
        return record

    def network(self, method: Method) -> nn.Module:
        """What the stages train, compiled where asked for."""
        if self.config.optim.compile:
            compile_backbones(method.network)
        return method.network

    def batches(
        self, task: int, new: Rows, memory: Rows, stage: int, epoch: int, batching: Batching | None = None
    ) -> Iterator[Batch]:
        """This worker's part of the augmented batches of one epoch."""
        config, data, workers = self.config, self.data, self.workers
        rng = numpy_stream(config.seed, "batches", task, stage, epoch)
        generator = torch_stream(config.seed, "augmentation", task, stage, epoch)
        spec, asked = config.augment, deque[tuple[Rows, Augmentation]]()
        padding = spec.padding if spec.crop == "padded" else 0

        def looks() -> Iterator[Look]:
            for rows in epoch_batches(batching or config.batches.batching, new, memory, config.batches.size, rng):
                drawn = draw(len(rows), padding, spec.flip, generator, spec.crop).shard(workers.rank, workers.world)
                mine = shard(rows, workers.rank, workers.world)
                asked.append((mine, drawn))
                yield Look(mine, drawn.boxes)

        for images in data.pixels.stream(looks()):
            mine, drawn = asked.popleft()
            index = torch.from_numpy(mine).to(data.labels.device)
            x = data.normalise(crop_and_flip(images, drawn, padding))
            yield Batch(x, data.labels[index], data.task_of_row[index], task, workers)

    def _precision(self) -> torch.autocast:
        """bf16 needs no loss scaling; the weights stay fp32."""
        enabled = self.config.optim.precision == "bf16"
        return torch.autocast(self.data.labels.device.type, torch.bfloat16, enabled=enabled)

    def optimiser(self, method: Method, stage: Stage) -> torch.optim.Optimizer:
        """A fresh one: momentum does not outlive a stage. Whatever else the network holds is frozen meanwhile."""
        optim, chosen = self.config.optim, list(stage.parameters())
        method.network.requires_grad_(False)
        for parameter in chosen:
            parameter.requires_grad_(True)
        decay = optim.weight_decay if stage.weight_decay is None else stage.weight_decay
        if stage.optimiser == "adam":
            return torch.optim.Adam(chosen, stage.lr, weight_decay=decay)
        return torch.optim.SGD(chosen, stage.lr, optim.momentum, weight_decay=decay, fused=True)

    def _learning_rate(self, stage: Stage, epoch: int) -> float:
        optim = self.config.optim
        if stage.schedule == "constant":
            return stage.lr
        if optim.schedule == "cosine":
            return stage.lr * (1 + math.cos(math.pi * epoch / stage.epochs)) / 2
        return stage.lr * optim.gamma ** sum(m * stage.epochs <= epoch * optim.epochs for m in optim.milestones)

    def epoch(
        self,
        method: Method,
        network: nn.Module,
        stage: Stage,
        optimiser: torch.optim.Optimizer,
        epoch: int,
        batches: Iterator[Batch],
    ) -> EpochReport:
        """One pass over `batches`; raises if a loss is not a number."""
        began, lr = time.perf_counter(), self._learning_rate(stage, epoch)
        for group in optimiser.param_groups:
            group["lr"] = lr
        method.network.train(stage.statistics)
        steps, images, totals = 0, 0, dict[str, Tensor]()
        for batch in batches:
            with self._precision():
                losses = stage.loss(batch, network)
            optimiser.zero_grad()
            torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
            if stage.clamp is not None:
                nn.utils.clip_grad_value_(optimiser.param_groups[0]["params"], stage.clamp)
            optimiser.step()
            steps, images = steps + 1, images + len(batch.y)
            for name, value in losses.items():
                totals[name] = totals.get(name, torch.zeros_like(value)) + value.detach()
        means = self.workers.mean({name: float(total) / steps for name, total in totals.items()})
        images = round(self.workers.world * self.workers.mean({"images": images})["images"])
        task = method.task.index
        _check_finite(means, task, epoch + 1)
        seconds = time.perf_counter() - began
        return EpochReport(task, stage.name, epoch + 1, stage.epochs, lr, images, seconds, means)


def stopped(when: str) -> StoppedError:
    """What is raised on all workers when they were asked to stop."""
    return StoppedError(f"stopped by SIGTERM {when}; the same command goes on from there")


def _check_finite(losses: dict[str, float], task: int, epoch: int) -> None:
    for name, value in losses.items():
        if not math.isfinite(value):
            raise TrainingError(f"task {task}, epoch {epoch}: loss term {name!r} is {value}; try a lower optim.lr")


def _snapshot(network: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {f"network/{name}": tensor for name, tensor in network.state_dict().items()}
    for number, parameter in enumerate(optimiser.param_groups[0]["params"]):
        for name, tensor in optimiser.state[parameter].items():
            if isinstance(tensor, Tensor):
                tensors[f"optimiser/{number}/{name}"] = tensor
    return tensors


def _restore(tensors: dict[str, Tensor], network: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    prefix = "network/"
    network.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
    parameters = optimiser.param_groups[0]["params"]
    for key, tensor in tensors.items():
        if key.startswith("optimiser/"):
            _, number, name = key.split("/")
            parameter = parameters[int(number)]
            kept = torch.empty_like(parameter) if tensor.shape == parameter.shape else torch.empty_like(tensor)
            optimiser.state[parameter][name] = kept.copy_(tensor)
