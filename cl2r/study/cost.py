"""What a study will cost before anything is started: images, time on this machine, GPU-hours and their price, disk.

Counts follow from the plans: every method is walked through its tasks without training (`dry_run`). Time on this
machine is FLOPs over a measured rate, which differs little between methods of one backbone; it comes from links that
were trained earlier, or from a few real training steps. GPU-hours are FLOPs over an assumed rate.
"""

import dataclasses
import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cl2r.batches import Batch
from cl2r.config.keys import made_by, stored_key
from cl2r.engine.extraction import flops as flops_of
from cl2r.engine.extraction import split_projection
from cl2r.engine.links import DamagedError, LinkStore
from cl2r.engine.plan import Plan
from cl2r.engine.workers import ALONE, Workers
from cl2r.memory import support_rows
from cl2r.runtime.progress import EpochReport
from cl2r.storage.path import StoragePath
from cl2r.study.dry_run import DryChain, FlopCache, FlopCount, epoch_shape

CALIBRATION_SECONDS = 2.0
WARM_UP, MIN_STEPS = 2, 3
CPU = torch.device("cpu")
FLOAT_BYTES = {"float32": 4, "float16": 2}


@dataclass(frozen=True)
class LinkCost:
    """What training one link takes, and what it takes to embed images besides.

    Images are `extracted` for stored features, for herding, and to begin a method's task. Links of one speed group
    train at about the same FLOP/s, whatever their method.
    """

    key: str
    task: int
    images: int  # rows drawn in all epochs of all stages
    steps: int
    flops: float
    extracted: int
    extracted_flops: float
    disk_bytes: int
    speed_group: str


def link_costs(plan: Plan, cache: FlopCache | None = None) -> list[LinkCost]:
    """Return the cost of every link of a run. Runs that share `cache` count the FLOPs of equal steps once."""
    chain, previous, costs = DryChain(plan, CPU, cache), FlopCount(0.0), list[LinkCost]()
    items, size = plan.dataset.num_items, FLOAT_BYTES[plan.config.eval.features]
    for key in plan.keys:
        data, info = chain.begin(), chain.info
        images, steps, flops = 0, 0, 0.0
        for number, stage in enumerate(chain.stages()):
            epoch = epoch_shape(plan, stage, data)
            count = epoch.steps * stage.epochs
            images, steps = images + count * epoch.batch, steps + count
            flops += count * epoch.batch * chain.row_flops(number, stage)
        chain.method.end_task()
        # Images that φ_t and φ_{t-1} embed, and the numbers that are stored.
        features, support = chain.features(), len(support_rows(data.new, data.memory, plan.config.seed, chain.task))
        projection: Tensor | None = None if info.maps_gallery else split_projection(chain.method.extractor())[1]
        now, before = len(plan.dataset.x_open) + support, 0
        numbers = sum(tensor.nbytes for tensor in chain.method.carry().values()) / size + 2 * len(data.memory)
        if projection is not None:
            numbers += items * projection.shape[1] + projection.numel()
        else:
            numbers += (items + support) * features.shape[0]
        if chain.task > 1:
            if projection is None:
                before, numbers = support, numbers + support * previous.shape[0]
            if info.memory == "quota" and plan.config.memory.selection == "herding":
                before += len(plan.scenario.tasks[chain.task - 2].rows)
        work = now * features.flops + chain.extracted_flops + before * previous.flops
        if info.maps_gallery and chain.task > 1:
            mapped = (chain.task - 1) * items
            numbers += mapped * features.shape[0]
            work += mapped * flops_of(chain.method.adapt_gallery, torch.zeros(1, *features.shape))
        embedded, stored = now + before + chain.extracted_rows, round(numbers * size)
        costs.append(LinkCost(key, chain.task, images, steps, flops, embedded, work, stored, speed_group(plan)))
        previous = features
    return costs


def speed_group(plan: Plan) -> str:
    """Return the name of the links that train at about the same rate."""
    config, shape = plan.config, "x".join(map(str, plan.dataset.x_train.shape[1:]))
    compiled = ", compiled" if config.optim.compile else ""
    return f"{config.backbone.name} {shape}, batch {config.batches.size}, {config.optim.precision}{compiled}"


def smallest_batch(plan: Plan) -> int:
    """Return the rows of the smallest batch of a run that batch norm takes its statistics from."""
    chain, rows = DryChain(plan, CPU), [plan.config.batches.size]
    for _ in plan.keys:
        data = chain.begin()
        rows += [epoch_shape(plan, stage, data).batch for stage in chain.stages() if stage.statistics]
        chain.method.end_task()
    return min(rows)


def stored_speeds(root: StoragePath, costs: Sequence[LinkCost], device: str) -> dict[str, list[float]]:
    """Return FLOP/s by group, of the links below `root` that one process trained on this kind of device."""
    speeds: defaultdict[str, list[float]] = defaultdict(list)
    store, made = LinkStore(root), made_by(device, 1, sync_batchnorm=False)
    there = store.planned([made])
    for cost in {cost.key: cost for cost in costs if cost.key in there}.values():
        try:
            record = store.record(stored_key(cost.key, [made]))
            speeds[cost.speed_group].append(cost.flops / record["seconds"])
        except (DamagedError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
            continue  # a damaged link, which the run reports and trains again, tells no speed
    return dict(speeds)


class StepTimer:
    """Real training steps of the task that a chain has begun. Nothing is learned or written."""

    def __init__(self, chain: DryChain, workers: Workers = ALONE) -> None:
        self.chain, loop = chain, chain.loop
        loop.workers = workers
        self.stage = dataclasses.replace(chain.stages()[0], lr=0.0)  # no slower, and no loss can overflow
        self.row_flops = chain.row_flops(0, self.stage)
        self.optimiser = loop.optimiser(chain.method, self.stage)
        self.network = workers.wrap(loop.network(chain.method))
        rows = self.stage.rows or (chain.data.new, chain.data.memory)
        epochs = (loop.batches(chain.task, *rows, 0, epoch, self.stage.batching) for epoch in itertools.count())
        self.batches = itertools.chain.from_iterable(epochs)

    @classmethod
    def at_second_task(cls, plan: Plan, device: torch.device, workers: Workers = ALONE) -> "StepTimer":
        """Begin the second task of an untrained chain, or the first if there is no other."""
        chain = DryChain(plan, device, loaders=plan.config.data.loaders)
        chain.begin()
        if len(plan.keys) > 1:
            chain.method.end_task()
            chain.begin()
        return cls(chain, workers)

    def take(self, steps: int) -> EpochReport:
        """Take the next steps and report them as one epoch."""
        return self._epoch(itertools.islice(self.batches, steps))

    def take_for(self, seconds: float) -> EpochReport:
        """Take steps until the time is up, at least three."""
        taken, end = itertools.count(), time.perf_counter() + seconds
        return self._epoch(
            itertools.takewhile(lambda _: next(taken) < MIN_STEPS or time.perf_counter() <= end, self.batches)
        )

    def _epoch(self, batches: Iterator[Batch]) -> EpochReport:
        return self.chain.loop.epoch(self.chain.method, self.network, self.stage, self.optimiser, 0, batches)


def measure_flops(plan: Plan, device: torch.device, seconds: float = CALIBRATION_SECONDS) -> float:
    """Return FLOP/s of one process in real training steps."""
    timer = StepTimer.at_second_task(plan, device)
    timer.take(WARM_UP)
    report = timer.take_for(seconds)
    return timer.row_flops * report.images / report.seconds


@dataclass(frozen=True)
class GpuAssumption:
    """A GPU that was not measured here.

    A step takes its FLOPs at a sustained rate, but at least as long as launching its kernels: small networks on 32×32
    images keep a GPU waiting.
    """

    name: str = "A100"
    sustained_flops: float = 10e12
    step_seconds: float = 0.008

    def __str__(self) -> str:
        return f"{self.sustained_flops / 1e12:g} TFLOP/s, at least {1000 * self.step_seconds:g} ms per step"

    def seconds(self, cost: LinkCost) -> float:
        """Return the time to train one link."""
        return max((cost.flops + cost.extracted_flops) / self.sustained_flops, cost.steps * self.step_seconds)


def seconds_here(costs: Iterable[LinkCost], speeds: Mapping[str, Sequence[float]], processes: int) -> float:
    """Return the time to train the links on this machine, at the median speed of their groups.

    All `processes` are assumed to be busy until the end, and workers to share a run without loss.
    """
    rates = {group: statistics.median(found) for group, found in speeds.items()}
    return sum((cost.flops + cost.extracted_flops) / rates[cost.speed_group] for cost in costs) / processes
