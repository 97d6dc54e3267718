"""What `scaling.py` measures: steps that workers share on Ray Train, their all-reduces, trials side by side, chains.

What is timed are real steps of the second task of a chain (`Steps`), on a config that was checked before.
"""

import contextlib
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
import yaml
from torch.nn.parallel import DistributedDataParallel

from cl2r.config import Config
from cl2r.engine.plan import Plan, plan_run
from cl2r.engine.workers import Workers
from cl2r.errors import TrainingError
from cl2r.layers import override, read_layer, resolve
from cl2r.rayrun.resources import Resources
from cl2r.study.cost import CPU, Steps, gradient_bytes
from cl2r.study.cost_model import GpuAssumption, predict

GPUS = (1, 4, 8, 16, 32, 64)
NETWORKS = {"ResNet-32 at 32²": ("cifar100", 32, 100), "ResNet-50 at 112²": ("casia_lfw", 112, 10_575)}
"""Networks to predict: the preset that trains them, the size of its images, its classes."""
PREDICTED_BATCH = 128
METRICS = ("BC", "mean_accuracy", "FC")
WARM_UP = 2
PlainConfig = dict[str, Any]


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    steps: int = 6
    rounds: int = 7
    sizes: tuple[int, ...] = (4, 10_000, 100_000, 1_000_000, 10_000_000)
    """Bytes of an all-reduce."""
    seconds: float = 8.0
    """Of trials side by side."""


@dataclass(frozen=True)
class StepTime:
    """A step of one global batch; seconds are medians over rounds."""

    workers: int
    batch: int
    """Rows of all workers."""
    seconds: float
    apart_seconds: float
    """Without averaging gradients."""
    row_flops: float
    gradient_bytes: int

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.batch / self.seconds

    @property
    def communication(self) -> float:
        """The share of a step that goes when gradients are not averaged."""
        return 1 - self.apart_seconds / self.seconds


@dataclass(frozen=True)
class ReduceTime:
    """An all-reduce of so many bytes, the median over rounds."""

    workers: int
    size: int
    seconds: float


@dataclass(frozen=True)
class Found:
    """What one group of workers measured."""

    steps: tuple[StepTime, ...]
    reduces: tuple[ReduceTime, ...]


def plain_config(config: Config, batch: int) -> PlainConfig:
    """The config with another batch, and no more tasks than the second; it travels between processes."""
    plain: PlainConfig = config.model_dump(mode="json")
    plain["batches"]["size"], plain["scenario"]["stop_after"] = batch, 2
    return plain


def plan_of(plain: PlainConfig) -> Plan:
    """The plan of a config that has travelled."""
    return plan_run(Config.model_validate(plain))


# ---------------------------------------------------------------- workers that share a step


def step_time(plain: PlainConfig, workers: Workers, effort: Effort) -> StepTime:
    """Rounds with and without averaging in turns, so that a slow moment of the machine hits both."""
    steps = Steps(plan_of(plain), workers.device, workers)
    steps.take(WARM_UP)
    together, apart = [], []
    for _ in range(effort.rounds):
        together.append(steps.take(effort.steps).seconds / effort.steps)
        with _unaveraged(steps):
            apart.append(steps.take(effort.steps).seconds / effort.steps)
    times = statistics.median(together), statistics.median(apart)
    return StepTime(workers.world, plain["batches"]["size"], *times, steps.row_flops, gradient_bytes(steps.stage))


def _unaveraged(steps: Steps) -> contextlib.AbstractContextManager[None]:
    if isinstance(steps.network, DistributedDataParallel):
        return steps.network.no_sync()
    return contextlib.nullcontext()


def reduce_times(workers: Workers, effort: Effort) -> list[ReduceTime]:
    """All-reduces alone, one size after the other."""
    return [ReduceTime(workers.world, size, _reduce_seconds(workers, size, effort)) for size in effort.sizes]


def _reduce_seconds(workers: Workers, size: int, effort: Effort) -> float:
    values, times = torch.ones(max(1, size // 4), device=workers.device), []
    for _ in range(1 + effort.rounds):
        dist.barrier()
        _finish(workers.device)
        began = time.perf_counter()
        for _ in range(effort.steps):
            dist.all_reduce(values, op=dist.ReduceOp.MAX)  # a sum would overflow
        _finish(workers.device)
        times.append((time.perf_counter() - began) / effort.steps)
    return statistics.median(times[1:])


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured_by(plains: Sequence[PlainConfig], resources: Resources, effort: Effort) -> Found:
    """What `resources.workers` workers of Ray Train measure. A Ray is connected."""
    from ray import train  # Ray reads its environment when it is imported
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.util.queue import Queue

    from cl2r.rayrun.worker import run_to_end

    queue = Queue(actor_options={"num_cpus": 0})
    config = {"plains": list(plains), "resources": asdict(resources), "effort": asdict(effort), "queue": queue}
    with tempfile.TemporaryDirectory(prefix="cl2r-scaling-") as folder:
        trainer = TorchTrainer(
            _work,
            train_loop_config=config,
            scaling_config=train.ScalingConfig(
                num_workers=resources.workers,
                use_gpu=resources.gpus_per_worker > 0,
                resources_per_worker=resources.per_worker(),
                placement_strategy="PACK",
            ),
            run_config=train.RunConfig(
                name=f"scaling-{uuid.uuid4().hex[:8]}",
                storage_path=folder,
                failure_config=train.FailureConfig(max_failures=0),
                logging_config=train.LoggingConfig(log_level="ERROR"),
            ),
            torch_config=TorchConfig(backend=resources.backend),
        )
        run_to_end(trainer)
    found: Found = queue.get(timeout=60)
    queue.shutdown()
    return found


def _work(config: dict[str, Any]) -> None:
    """What every worker runs; the first tells."""
    from ray import train

    resources, effort, context = Resources(**config["resources"]), Effort(**config["effort"]), train.get_context()
    torch.set_num_threads(resources.cpus_per_worker)
    workers = Workers(context.get_world_rank(), context.get_world_size(), device=resources.device())
    found = measure(config["plains"], workers, effort)
    if workers.first:
        config["queue"].put(found)


def measure(plains: Sequence[PlainConfig], workers: Workers, effort: Effort) -> Found:
    """Steps of every config, and all-reduces where there is more than one worker."""
    steps = [step_time(plain, workers, effort) for plain in plains]
    return Found(tuple(steps), tuple(reduce_times(workers, effort)) if workers.world > 1 else ())


# ---------------------------------------------------------------- trials side by side


def layouts(trials: Sequence[int], threads: int, cores: int) -> list[tuple[str, int, int]]:
    """Name, processes, threads of each: trials with cores of their own, and what one gets without thinking of cores."""
    own = [(f"{count} side by side", count, threads) for count in trials]
    return [*own, ("one, all cores", 1, cores), ("one a core, all cores each", cores, cores)]


# ---------------------------------------------------------------- what is counted, not timed


def counted(preset: str, size: int, classes: int) -> tuple[float, int]:
    """FLOPs of a row and bytes of gradients of a CL²R step at task 2, on images of noise: only shapes matter."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 8)
    images = rng.integers(0, 255, (len(labels), size, size, 3), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "noise.npz"
        np.savez(path, x_train=images, y_train=labels, x_open=images, y_open=labels + 4)
        changes = (f"data.name={path}", "scenario.n_tasks=2", f"head.k_max={classes}", "memory.per_class=4")
        pairs = ("eval.positives=10", "eval.negatives=10", "eval.tuning_share=0", f"batches.size={PREDICTED_BATCH}")
        plan = plan_run(resolve([read_layer(preset), *map(override, (*changes, *pairs))]))
        steps = Steps(plan, CPU)
    return steps.row_flops, gradient_bytes(steps.stage)


def predictions(gpu: GpuAssumption, networks: Sequence[str] = tuple(NETWORKS)) -> pd.DataFrame:
    """Steps of the paper's networks on such GPUs, a row a network, mode and number of them."""
    rows = []
    for network in networks:
        flops, size = counted(*NETWORKS[network])
        for mode in ("strong", "weak"):
            steps = predict(gpu.model, flops, size, PREDICTED_BATCH, GPUS, weak=mode == "weak")
            about = {"network": network, "mode": mode, "row_flops": flops, "gradient_bytes": size}
            rows += [{**about, **asdict(step)} for step in steps]
    return pd.DataFrame(rows)


# ---------------------------------------------------------------- chains


def drifted(
    preset: str, overrides: Sequence[str], workers: Sequence[int], seeds: Sequence[int], epochs: int, storage: Path
) -> pd.DataFrame:
    """Metrics of short chains by number of workers; each has a storage of its own, as links do not tell them apart."""
    from cl2r.study.custom import main as run_study

    storage.mkdir(parents=True, exist_ok=True)
    path, frames = storage / "drift.yaml", []
    settings = {"scenario.stop_after": 3, "optim.epochs": epochs}
    path.write_text(yaml.safe_dump({"preset": preset, "seeds": list(seeds), "set": settings}))
    for world in workers:
        place = storage / f"workers{world}"
        words = ["--workers", str(world), "--storage", str(place), "--name", "drift"]
        words += [word for text in overrides for word in ("--set", text)]
        with contextlib.redirect_stdout(sys.stderr):
            if run_study(path, words):
                raise TrainingError(f"the chains of {world} workers did not all finish, see above")
        runs = pd.read_parquet(place / "studies" / "drift" / "runs.parquet")
        frames.append(runs[["seed", *METRICS]].assign(workers=world))
    return pd.concat(frames, ignore_index=True)
