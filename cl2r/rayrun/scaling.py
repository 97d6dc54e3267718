"""Measure what more workers gain: steps that Ray Train workers share, their all-reduces, trials at the same time.

Timed are real steps of the second task of a chain (`StepTimer`). Strong scaling: one batch for all workers; weak
scaling: as many rows for each. Every round times steps that average gradients, then as many inside DDP's no_sync(): the
difference is communication (what DDP hides behind the computation does not count).
"""

import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from cl2r.config.layers import override, read_layer, resolve
from cl2r.config.schema import Config
from cl2r.engine.plan import plan_run
from cl2r.engine.workers import Workers
from cl2r.methods.base import Stage
from cl2r.rayrun.cluster import cluster, set_environment
from cl2r.storage.path import temporary_folder
from cl2r.study.cost import CPU, WARM_UP, StepTimer
from cl2r.study.resources import Resources
from cl2r.study.scaling_model import GPU_MODEL, Sample, predict

GPUS = (1, 4, 8, 16, 32, 64)
NETWORKS = {"ResNet-32 at 32²": ("cifar100", 32, 100), "ResNet-50 at 112²": ("casia_lfw", 112, 10_575)}
"""Networks to predict: the preset that trains them, the size of its images, its classes."""
PREDICTED_BATCH = 128


@dataclass(frozen=True)
class Effort:
    """How much is measured: rounds of steps, bytes of all-reduces, seconds for which trials train at the same time."""

    steps: int = 6
    rounds: int = 7
    sizes: tuple[int, ...] = (4, 10_000, 100_000, 1_000_000, 10_000_000)
    seconds: float = 8.0


@dataclass(frozen=True)
class StepTime:
    """A step of one global batch of `batch` rows; seconds are medians over rounds."""

    workers: int
    batch: int
    seconds: float
    apart_seconds: float  # without averaging gradients
    row_flops: float
    gradient_bytes: int

    @property
    def communication(self) -> float:
        """The share of a step that vanishes when gradients are not averaged."""
        return 1 - self.apart_seconds / self.seconds if self.workers > 1 else 0.0

    def samples(self) -> list[Sample]:
        """Return what the model is fitted to: the step without averaging and, of several workers, with it."""
        rows, flops = self.batch // self.workers, self.batch / self.workers * self.row_flops
        name = f"{self.workers} × {rows} rows"
        apart = Sample(f"{name}, apart", flops, 1, 0, self.apart_seconds)
        together = Sample(name, flops, self.workers, self.gradient_bytes, self.seconds)
        return [apart, together] if self.workers > 1 else [apart]


Measured = tuple[list[StepTime], list[Sample]]  # steps, and all-reduces by themselves


def with_batch(config: Config, batch: int) -> Config:
    """Return the config with another batch size and two tasks."""
    plain = config.model_dump(mode="json")
    plain["batches"]["size"], plain["scenario"]["stop_after"] = batch, 2
    return Config.model_validate(plain)


def measure_workers(
    config: Config, batch: int, resources: Sequence[Resources], effort: Effort, verbose: bool = False
) -> Iterator[Measured]:
    """Yield what each group of workers measured, on one Ray."""
    set_environment(verbose)  # Ray reads it when it is imported
    with cluster(max(resources, key=lambda one: one.workers), verbose):
        from ray.util.queue import Queue

        from cl2r.rayrun.trial import fit_workers

        for one in resources:
            configs = [with_batch(config, rows) for rows in dict.fromkeys((batch, batch * one.workers))]
            queue = Queue(actor_options={"num_cpus": 0})
            settings = {"configs": configs, "resources": one, "effort": effort, "queue": queue}
            with temporary_folder("scaling") as folder:
                fit_workers(_work, settings, one, "scaling", str(folder))
            found: Measured = queue.get(timeout=60)
            queue.shutdown()
            yield found


def _work(settings: dict[str, Any]) -> None:
    """Run in every worker; the first one reports."""
    from ray import train

    resources: Resources = settings["resources"]
    torch.set_num_threads(resources.cpus_per_worker)
    context = train.get_context()
    workers = Workers(context.get_world_rank(), context.get_world_size(), device=resources.device())
    found = measure(settings["configs"], workers, settings["effort"])
    if workers.first:
        settings["queue"].put(found)


def measure(configs: Sequence[Config], workers: Workers, effort: Effort) -> Measured:
    """Time steps of every config, and all-reduces if there is more than one worker."""
    steps = [step_time(config, workers, effort) for config in configs]
    return steps, [reduce_time(workers, size, effort) for size in effort.sizes if workers.world > 1]


def step_time(config: Config, workers: Workers, effort: Effort) -> StepTime:
    """Time rounds with and without averaging in turns, so that a slow moment of the machine affects both."""
    timer = StepTimer.at_second_task(plan_run(config), workers.device, workers)
    timer.take(WARM_UP)
    network, together, apart = timer.network, [], []
    for _ in range(effort.rounds):
        together.append(timer.take(effort.steps).seconds / effort.steps)
        with network.no_sync() if isinstance(network, DistributedDataParallel) else contextlib.nullcontext():
            apart.append(timer.take(effort.steps).seconds / effort.steps)
    times = statistics.median(together), statistics.median(apart)
    return StepTime(workers.world, config.batches.size, *times, timer.row_flops, gradient_bytes(timer.stage))


def gradient_bytes(stage: Stage) -> int:
    """Return the bytes of gradients of one step."""
    return sum(parameter.nbytes for parameter in stage.parameters())


def reduce_time(workers: Workers, size: int, effort: Effort) -> Sample:
    """Time all-reduces of `size` bytes by themselves; the sample is the median over rounds."""
    values, times = torch.ones(max(1, size // 4), device=workers.device), []
    synchronise = torch.cuda.synchronize if workers.device.type == "cuda" else lambda _: None
    for _ in range(1 + effort.rounds):
        dist.barrier()
        synchronise(workers.device)
        began = time.perf_counter()
        for _ in range(effort.steps):
            dist.all_reduce(values, op=dist.ReduceOp.MAX)  # a sum would overflow
        synchronise(workers.device)
        times.append((time.perf_counter() - began) / effort.steps)
    name = f"{workers.world} workers, all-reduce of {size:,} bytes"
    return Sample(name, 0, workers.world, size, statistics.median(times[1:]))


def predictions(network: str) -> list[dict[str, Any]]:
    """Return one row per mode and number of GPUs for one of the paper's networks.

    FLOPs and gradients are those of a CL²R step at task 2, counted on images of noise.
    """
    preset, size, classes = NETWORKS[network]
    labels = np.repeat(np.arange(4), 8)
    images = np.random.default_rng(0).integers(0, 255, (len(labels), size, size, 3), dtype=np.uint8)
    with temporary_folder("noise") as folder:
        path = folder / "noise.npz"
        np.savez(path, x_train=images, y_train=labels, x_open=images, y_open=labels + 4)
        changes = (f"data.name={path}", "scenario.n_tasks=2", f"head.k_max={classes}", "memory.per_class=4")
        pairs = ("eval.positives=10", "eval.negatives=10", "eval.tuning_share=0", f"batches.size={PREDICTED_BATCH}")
        plan = plan_run(resolve([read_layer(preset), *map(override, (*changes, *pairs))]))
        timer = StepTimer.at_second_task(plan, CPU)
    flops, sent = timer.row_flops, gradient_bytes(timer.stage)
    return [
        {"network": network, "mode": mode, "row_flops": flops, "gradient_bytes": sent, **step}
        for mode in ("strong", "weak")
        for step in predict(GPU_MODEL, flops, sent, PREDICTED_BATCH, GPUS, weak=mode == "weak")
    ]
