"""The only SGD loop. It runs the stages of a task epoch by epoch and can resume after any epoch."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cl2r.augment import Augmentation, Normalise, crop_and_flip
from cl2r.backbones import compile_backbones
from cl2r.batches import Batch, Batching, Rows, draw_epoch
from cl2r.config.schema import AugmentConfig, Config
from cl2r.engine.links import Partial
from cl2r.engine.pixels import Pixels, moved
from cl2r.engine.workers import ALONE, Workers
from cl2r.errors import StoppedError, TrainingError
from cl2r.methods.base import Method, Stage
from cl2r.runtime.progress import EpochReport
from cl2r.runtime.stop import Stop, never_stop

Batches = Iterator[Batch]


@dataclass(frozen=True)
class TrainingImages:
    """The training set: pixels, and labels in task order on the device."""

    pixels: Pixels
    labels: Tensor
    normalise: Normalise


@dataclass
class TaskRecord:
    """Losses, images and seconds of a task, ready for JSON."""

    curves: list[dict[str, Any]] = field(default_factory=list)
    images: int = 0
    seconds: float = 0.0

    def add(self, report: EpochReport) -> None:
        row = {"stage": report.stage, "epoch": report.epoch, "lr": report.lr, "seconds": report.seconds}
        self.curves.append({**row, **{f"loss_{name}": value for name, value in report.losses.items()}})
        self.images += report.images
        self.seconds += report.seconds


@dataclass
class TaskLoop:
    """Train one task. Call `report` after every epoch and save every `save_every`-th one of a stage.

    The first worker asks `stop` after every epoch; if it returns true, that epoch is saved and all workers leave.
    """

    config: Config
    data: TrainingImages
    report: Callable[[EpochReport], None]
    workers: Workers = ALONE
    stop: Stop = never_stop

    def run(
        self, method: Method, new: Rows, memory: Rows, resume: Partial | None, save: Callable[[Partial], None]
    ) -> TaskRecord:
        """Run all stages of the task that `method` has begun, or those that follow `resume`."""
        record = TaskRecord(**resume.record) if resume else TaskRecord()
        network = self.network(method)
        for number, stage in enumerate(method.stages()):
            if stage.epochs == 0 or (resume and number < resume.stage):
                continue
            optimiser, start = self.optimiser(method, stage), 0
            if resume and number == resume.stage:
                _restore(resume.tensors, method.network, optimiser)
                start = resume.epoch
            wrapped = self.workers.wrap(network)
            for epoch in range(start, stage.epochs):
                rows = stage.rows or (new, memory)
                batches = self.batches(method.task.index, *rows, number, epoch, stage.batching, stage.augmented)
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
        """Return the network that the stages train, compiled if the config asks for it."""
        if self.config.optim.compile:
            compile_backbones(method.network)
        return method.network

    def batches(
        self,
        task: int,
        new: Rows,
        memory: Rows,
        stage: int,
        epoch: int,
        batching: Batching | None = None,
        augmented: bool = True,
    ) -> Batches:
        """Yield this worker's batches of an epoch; all but the pixels is on the device before the first."""
        data, workers = self.data, self.workers
        spec = self.config.augment if augmented else AugmentConfig(crop="padded", padding=0, flip=False)
        part, config = slice(workers.rank, None, workers.world), self.config.model_copy(update={"augment": spec})
        drawn = draw_epoch(config, new, memory, (task, stage, epoch), batching, part)
        rows, draws = [batch.rows for batch in drawn], [batch.augmentation for batch in drawn]
        boxes = [draw.boxes for draw in draws if draw.boxes is not None]
        device, padding = data.labels.device, spec.padding if spec.crop == "padded" else 0
        parts = zip(
            drawn,
            data.pixels.stream(rows, boxes),
            moved([torch.from_numpy(batch) for batch in rows], device),
            moved([torch.from_numpy(batch.memory) for batch in drawn], device),
            moved([draw.offsets for draw in draws], device),
            moved([draw.flips for draw in draws], device),
            moved([draw.flipped for draw in draws], device),
            strict=True,
        )
        for batch, images, index, positions, *crops in parts:
            x = data.normalise(crop_and_flip(images, Augmentation(*crops), padding))
            gather = partial(workers.gather, total=batch.counts["all"][1])
            yield Batch(x, data.labels[index], positions, batch.counts, workers.world, gather)

    def optimiser(self, method: Method, stage: Stage) -> Optimizer:
        """Return a new optimiser for a stage, without momentum, and freeze the rest of the network."""
        optim, chosen = self.config.optim, list(stage.parameters())
        method.network.requires_grad_(False)
        for parameter in chosen:
            parameter.requires_grad_(True)
        decay = optim.weight_decay if stage.weight_decay is None else stage.weight_decay
        if stage.optimiser == "adam":
            return torch.optim.Adam(chosen, stage.lr, weight_decay=decay)
        fused = chosen[0].device.type != "meta"
        return torch.optim.SGD(chosen, stage.lr, optim.momentum, weight_decay=decay, fused=fused)

    def epoch(
        self, method: Method, network: nn.Module, stage: Stage, optimiser: Optimizer, epoch: int, batches: Batches
    ) -> EpochReport:
        """Train on `batches` once. Raise TrainingError if a loss is not finite."""
        began, optim, lr = time.perf_counter(), self.config.optim, stage.lr
        if stage.schedule == "optim" and optim.schedule == "cosine":
            lr *= (1 + math.cos(math.pi * epoch / stage.epochs)) / 2
        elif stage.schedule == "optim":
            lr *= optim.gamma ** sum(m * stage.epochs <= epoch * optim.epochs for m in optim.milestones)
        for group in optimiser.param_groups:
            group["lr"] = lr
        method.network.train(stage.statistics)
        steps, images, totals = self.steps(network, stage, optimiser, batches)
        means = self.workers.mean({name: float(total) / steps for name, total in totals.items()})
        images = round(self.workers.world * self.workers.mean({"images": images})["images"])
        task, seconds = method.task.index, time.perf_counter() - began
        for name, value in means.items():
            if not math.isfinite(value):
                message = f"task {task}, epoch {epoch + 1}: loss term {name!r} is {value}; try a lower optim.lr"
                raise TrainingError(message)
        return EpochReport(task, stage.name, epoch + 1, stage.epochs, lr, images, seconds, means)

    def steps(
        self, network: nn.Module, stage: Stage, optimiser: Optimizer, batches: Batches
    ) -> tuple[int, int, dict[str, Tensor]]:
        """Take one step per batch, never waiting for the device; return numbers of steps and images, sums of losses."""
        # bf16 needs no loss scaling; the weights stay fp32.
        device, rounded = self.data.labels.device.type, self.config.optim.precision == "bf16"
        steps, images, totals = 0, 0, dict[str, Tensor]()
        for batch in batches:
            with torch.autocast(device, torch.bfloat16, enabled=rounded):
                losses = stage.loss(batch, network)
            optimiser.zero_grad()
            torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
            if stage.clamp is not None:
                nn.utils.clip_grad_value_(optimiser.param_groups[0]["params"], stage.clamp)
            optimiser.step()
            steps, images = steps + 1, images + len(batch.y)
            for name, value in losses.items():
                totals[name] = totals.get(name, torch.zeros_like(value)) + value.detach()
        return steps, images, totals


def stopped(when: str) -> StoppedError:
    """Return the error that all workers raise when they were asked to stop."""
    return StoppedError(f"stopped by SIGTERM {when}; run the same command again to resume")


def _snapshot(network: nn.Module, optimiser: Optimizer) -> dict[str, Tensor]:
    # Copies, because a tensor under two names is stored twice, and safetensors refuses tensors that share memory.
    tensors = {f"network/{name}": tensor.clone() for name, tensor in network.state_dict().items()}
    for number, parameter in enumerate(optimiser.param_groups[0]["params"]):
        for name, tensor in optimiser.state[parameter].items():
            if isinstance(tensor, Tensor):
                tensors[f"optimiser/{number}/{name}"] = tensor
    return tensors


def _restore(tensors: dict[str, Tensor], network: nn.Module, optimiser: Optimizer) -> None:
    prefix = "network/"
    network.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
    parameters = optimiser.param_groups[0]["params"]
    for key, tensor in tensors.items():
        if key.startswith("optimiser/"):
            _, number, name = key.split("/")
            parameter = parameters[int(number)]
            kept = torch.empty_like(parameter) if tensor.shape == parameter.shape else torch.empty_like(tensor)
            optimiser.state[parameter][name] = kept.copy_(tensor)
