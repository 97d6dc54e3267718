"""What a study will cost, before anything is started: images, time here, GPU-hours and their price, disk.

Counts follow from the plan: every method is walked through its tasks without training (`dry_run`), which tells the rows
of its stages, the FLOPs of a row and the tensors of its links. Time here is FLOPs over a rate, which differs little
between methods of one backbone; it is taken from links trained earlier or from a few steps of real training. GPU-hours
are FLOPs over an assumed rate: nothing measured. What several workers of a run gain and lose is `cost_model`.
"""

import dataclasses
import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cl2r.engine.extraction import split_projection
from cl2r.engine.figures import flops as flops_of
from cl2r.engine.figures import support_rows
from cl2r.engine.link_features import GALLERY, OPEN, PROJECTION, SUPPORT, SUPPORT_OLD
from cl2r.engine.plan import Plan
from cl2r.engine.store import DamagedError, LinkStore
from cl2r.engine.task_loop import EpochReport
from cl2r.engine.workers import ALONE, Workers
from cl2r.files import Place
from cl2r.methods.base import Batch, Stage
from cl2r.study.cost_model import GLOO, GpuAssumption, Ring, StepModel
from cl2r.study.dry_run import Counted, DryChain, Known, drawn

CALIBRATION_SECONDS = 2.0
WARM_UP, FEWEST_STEPS = 2, 3
CPU = torch.device("cpu")

SpeedGroup = str


# ---------------------------------------------------------------- counts


@dataclass(frozen=True)
class LinkCost:
    """What training one link takes."""

    key: str
    task: int
    images: int
    """Rows drawn in all epochs of all stages."""
    steps: int
    flops: float
    """Of the training."""
    extracted: int
    """Images to look at besides: for features to store, for herding, for what a method begins with."""
    extracted_flops: float
    disk_bytes: int
    """Tensors of the link, as files."""
    speed_group: SpeedGroup
    gradient_bytes: int = 0
    """Of all steps: what workers that share them have to average."""


def link_costs(plan: Plan, known: Known | None = None) -> list[LinkCost]:
    """The cost of every link of a run, task by task. Runs that share `known` count the FLOPs of alike steps once."""
    chain = DryChain(plan, CPU, known)
    costs: list[LinkCost] = []
    previous: Counted | None = None
    for key in plan.keys:
        chain.begin()
        images, steps, flops, gradients = _training(chain)
        chain.method.end_task()
        features = chain.features()
        extracted, extracted_flops = _extraction(chain, previous, features)
        disk, group = _link_bytes(chain, previous, features), speed_group(plan)
        counts = images, steps, flops, extracted, extracted_flops, disk
        costs.append(LinkCost(key, chain.task, *counts, group, gradients))
        previous = features
    return costs


def speed_group(plan: Plan) -> SpeedGroup:
    """What decides FLOP/s, as text: links of one group train at about one rate, whatever their method."""
    config, (height, width, channels) = plan.config, plan.dataset.x_train.shape[1:]
    network = f"{config.backbone.name} {height}x{width}x{channels}"
    compiled = ", compiled" if config.optim.compile else ""
    return f"{network}, batch {config.batches.size}, {config.optim.precision}{compiled}"


def smallest_batch(plan: Plan) -> int:
    """Rows of the smallest batch of a run that batch norm takes its statistics from."""
    chain, rows = DryChain(plan, CPU), [plan.config.batches.size]
    for _ in plan.keys:
        data = chain.begin()
        rows += [drawn(plan, stage, data).batch for stage in chain.stages() if stage.statistics]
        chain.method.end_task()
    return min(rows)


def _training(chain: DryChain) -> tuple[int, int, float, int]:
    """Images, steps, FLOPs and bytes of gradients of all stages of the task begun."""
    images, steps, flops, gradients = 0, 0, 0.0, 0
    for number, stage in enumerate(chain.stages()):
        epoch = drawn(chain.plan, stage, chain.data)
        own = epoch.steps * stage.epochs
        images, steps = images + own * epoch.batch, steps + own
        flops += own * epoch.batch * chain.row_flops(number, stage)
        gradients += own * gradient_bytes(stage)
    return images, steps, flops, gradients


def gradient_bytes(stage: Stage) -> int:
    """Of one step: what a stage does not train has no gradient."""
    return sum(parameter.numel() * parameter.element_size() for parameter in stage.parameters())


def _extraction(chain: DryChain, previous: Counted | None, features: Counted) -> tuple[int, float]:
    """Images and FLOPs of all passes but training: by φ_t, by φ_{t-1}, and by what the method began with."""
    support, now, before = _support(chain), len(chain.plan.dataset.x_open), 0
    now += support
    if previous is not None:
        before = 0 if _projection(chain) is not None else support
        if chain.info.memory == "quota" and chain.plan.config.memory.selection == "herding":
            before += len(chain.plan.scenario.tasks[chain.task - 2].rows)
    flops = now * features.flops + (before * previous.flops if previous else 0.0) + _gallery_flops(chain, features)
    return now + before + chain.looked.rows, flops + chain.looked.flops


def _gallery_flops(chain: DryChain, features: Counted) -> float:
    """Of the galleries stored so far, mapped to the space of φ_t."""
    rows = (chain.task - 1) * chain.plan.dataset.num_items
    if not chain.info.gallery or not rows:
        return 0.0
    return rows * flops_of(chain.method.adapt_gallery, torch.zeros(1, *features.shape))


def _support(chain: DryChain) -> int:
    return len(support_rows(chain.data.new, chain.data.memory, chain.plan.config.seed, chain.task))


def _projection(chain: DryChain) -> Tensor | None:
    """P, where links keep b(x) and P."""
    return None if chain.info.gallery else split_projection(chain.method.extractor())[1]


def _link_bytes(chain: DryChain, previous: Counted | None, features: Counted) -> int:
    """Weights, memory and features, as `Chain` stores them."""
    state = {f"method/{name}": tensor for name, tensor in chain.method.carry().items()}
    state["memory"] = torch.empty(len(chain.data.memory), dtype=torch.int64, device="meta")
    items, support = chain.plan.dataset.num_items, _support(chain)
    projection = _projection(chain)
    if projection is not None:
        sizes = {OPEN: (items, projection.shape[1]), PROJECTION: tuple(projection.shape)}
    else:
        sizes = {OPEN: (items, *features.shape), SUPPORT: (support, *features.shape)}
        if previous is not None:
            sizes[SUPPORT_OLD] = (support, *previous.shape)
    if chain.info.gallery:
        sizes |= {GALLERY.format(k): (items, *features.shape) for k in range(1, chain.task)}
    kind = {"float32": torch.float32, "float16": torch.float16}[chain.plan.config.eval.features]
    stored = {name: torch.empty(size, dtype=kind, device="meta") for name, size in sizes.items()}
    return _file_bytes(state) + _file_bytes(stored)


def _file_bytes(tensors: Mapping[str, Tensor]) -> int:
    """A safetensors file: 8 bytes, a JSON header, the data."""
    data = sum(tensor.nbytes for tensor in tensors.values())
    header = {
        name: {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [data, data]}
        for name, tensor in tensors.items()
    }
    return 8 + len(json.dumps(header, separators=(",", ":"))) + data


# ---------------------------------------------------------------- speed on this machine


def measured_speed(root: Place, costs: Sequence[LinkCost]) -> dict[SpeedGroup, float]:
    """FLOP/s of each group: the median over those of its links below `root` that one process trained."""
    return {group: statistics.median(speeds) for group, speeds in _stored_speeds(root, costs).items()}


def speed_source(
    root: Place, costs: Sequence[LinkCost], calibrated: Collection[SpeedGroup], parts: bool = False
) -> str:
    """How the speeds came about, for `describe`: the groups in `calibrated` from steps, the others from links.

    With `parts` of batches, those were tried in steps in any case.
    """
    stored = sum(len(v) for group, v in _stored_speeds(root, costs).items() if group not in calibrated)
    links = [f"from {stored} stored link{'s' * (stored != 1)}"] if stored else []
    steps = [f"calibrated in {CALIBRATION_SECONDS:g} s"] if calibrated or parts else []
    return " and ".join(links + steps)


def _stored_speeds(root: Place, costs: Sequence[LinkCost]) -> dict[SpeedGroup, list[float]]:
    speeds: defaultdict[SpeedGroup, list[float]] = defaultdict(list)
    store = LinkStore(root, lambda line: None)
    there = store.among(cost.key for cost in costs)
    for cost in (cost for cost in _distinct(costs) if cost.key in there):
        try:
            record = store.record(cost.key)
            if record.get("workers", 1) == 1:
                speeds[cost.speed_group].append(cost.flops / record["seconds"])
        except (DamagedError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
            continue  # a damaged link, which the run reports and trains again, tells no speed
    return {group: found for group, found in speeds.items() if found}


def _distinct(costs: Sequence[LinkCost]) -> list[LinkCost]:
    """Each link once: runs that share it train it once."""
    return list({cost.key: cost for cost in costs}.values())


class Steps:
    """Real training steps of the second task (the first where there is no other). Nothing is learnt or written."""

    def __init__(self, plan: Plan, device: torch.device, workers: Workers = ALONE) -> None:
        self.chain = DryChain(plan, device, loaders=plan.config.data.loaders)
        data = self.chain.begin()
        if len(plan.keys) > 1:
            self.chain.method.end_task()
            data = self.chain.begin()
        loop, method, number = self.chain.loop, self.chain.method, 0
        loop.workers = workers
        self.stage = dataclasses.replace(self.chain.stages()[number], lr=0.0)  # no slower, and no loss can overflow
        self.row_flops = self.chain.row_flops(number, self.stage)
        self.optimiser = loop.optimiser(method, self.stage)
        self.network = workers.wrap(loop.network(method))
        rows = self.stage.rows or (data.new, data.memory)
        task, batching = self.chain.task, self.stage.batching
        epochs = (loop.batches(task, *rows, number, epoch, batching) for epoch in itertools.count())
        self.batches = itertools.chain.from_iterable(epochs)

    def take(self, steps: int) -> EpochReport:
        """The next so many steps, as one epoch."""
        return self._epoch(itertools.islice(self.batches, steps))

    def take_for(self, seconds: float) -> EpochReport:
        """Steps until the time is up, but a few at least."""
        return self._epoch(_until(self.batches, seconds))

    def _epoch(self, batches: Iterator[Batch]) -> EpochReport:
        return self.chain.loop.epoch(self.chain.method, self.network, self.stage, self.optimiser, 0, batches)


def calibrate(plan: Plan, device: torch.device, seconds: float = CALIBRATION_SECONDS, workers: int = 1) -> float:
    """FLOP/s of one process in real training steps; of several workers, one has its part of every batch only."""
    steps = Steps(_shared(plan, workers), device)
    steps.take(WARM_UP)
    report = steps.take_for(seconds)
    return steps.row_flops * report.images / report.seconds


def _shared(plan: Plan, workers: int) -> Plan:
    """The plan with the batches that one of so many workers has; batch norm takes no fewer than two rows."""
    size = max(2, plan.config.batches.size // workers)
    batches = plan.config.batches.model_copy(update={"size": size})
    return dataclasses.replace(plan, config=plan.config.model_copy(update={"batches": batches}))


def _until(batches: Iterator[Batch], seconds: float) -> Iterator[Batch]:
    """Batches until the time is up, but a few at least."""
    ends = time.perf_counter() + seconds
    for done, batch in enumerate(batches):
        if done >= FEWEST_STEPS and time.perf_counter() > ends:
            return
        yield batch


# ---------------------------------------------------------------- the estimate


@dataclass(frozen=True)
class Team:
    """The workers of a run: how many, FLOP/s of each with its part of a batch, and how they average gradients."""

    workers: int = 1
    speeds: Mapping[SpeedGroup, float] = dataclasses.field(default_factory=dict)
    ring: Ring = GLOO


@dataclass(frozen=True)
class Estimate:
    """What is ahead: counted, then timed for this machine and, by assumption, for GPUs."""

    links: int
    images: int
    extracted: int
    seconds_here: float
    concurrency: int
    gpu: GpuAssumption
    gpu_hours: float
    gpu_price: float
    disk_bytes: int
    team: Team = dataclasses.field(default_factory=Team)
    efficiency: float = 1.0
    """Of the workers of a run here: the time that one takes alone, over the time that all spend."""
    gpu_seconds: float = 0.0
    """From beginning to end, with a GPU a worker and as many runs at a time as here."""
    gpu_efficiency: float = 1.0


def estimate(
    costs_to_train: Sequence[LinkCost],
    speeds: Mapping[SpeedGroup, float],
    concurrency: int,
    gpu: GpuAssumption,
    team: Team | None = None,
) -> Estimate:
    """Add up the links, each once. `speeds` are FLOP/s of one process that has whole batches.

    Times suppose `concurrency` runs that are never idle, so chains, whose links follow one another, take longer where
    there are fewer of them.
    """
    costs, team = _distinct(costs_to_train), team or Team()
    alone = sum(_seconds(StepModel(1 / speeds[cost.speed_group], 0.0, team.ring), cost, 1) for cost in costs)
    here, gpu_alone = alone, sum(_seconds(gpu.model, cost, 1) for cost in costs)
    if team.workers > 1:
        models = {group: StepModel(1 / speed, 0.0, team.ring) for group, speed in team.speeds.items()}
        here = sum(_seconds(models[cost.speed_group], cost, team.workers) for cost in costs)
    gpu_here = sum(_seconds(gpu.model, cost, team.workers) for cost in costs)
    gpu_hours = team.workers * gpu_here / 3600
    return Estimate(
        links=len(costs),
        images=sum(cost.images for cost in costs),
        extracted=sum(cost.extracted for cost in costs),
        seconds_here=here / concurrency,
        concurrency=concurrency,
        gpu=gpu,
        gpu_hours=gpu_hours,
        gpu_price=gpu_hours * gpu.dollars_per_hour,
        disk_bytes=sum(cost.disk_bytes for cost in costs),
        team=team,
        efficiency=_efficiency(alone, here, team.workers),
        gpu_seconds=gpu_here / concurrency,
        gpu_efficiency=_efficiency(gpu_alone, gpu_here, team.workers),
    )


def _seconds(model: StepModel, cost: LinkCost, workers: int) -> float:
    """Of a link. Only the first worker extracts features; the others wait."""
    return model.seconds(workers, cost.flops, cost.gradient_bytes, cost.steps, cost.extracted_flops)


def _efficiency(alone: float, together: float, workers: int) -> float:
    return alone / (workers * together) if together else 1.0
