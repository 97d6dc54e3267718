"""What a study will cost, before anything is started: images, time here, GPU-hours and their price, disk.

Counts follow from the plan: every method is walked through its tasks without training (`dry_run`), which tells the rows
of its stages, the FLOPs of a row and the tensors of its links. Time here is FLOPs over a rate, which differs little
between methods of one backbone; it is taken from links trained earlier or from a few steps of real training. GPU-hours
are FLOPs over an assumed rate: nothing measured.
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
from cl2r.files import Place
from cl2r.methods.base import Batch
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


def link_costs(plan: Plan, known: Known | None = None) -> list[LinkCost]:
    """The cost of every link of a run, task by task. Runs that share `known` count the FLOPs of alike steps once."""
    chain = DryChain(plan, CPU, known)
    costs: list[LinkCost] = []
    previous: Counted | None = None
    for key in plan.keys:
        chain.begin()
        images, steps, flops = _training(chain)
        chain.method.end_task()
        features = chain.features()
        extracted, extracted_flops = _extraction(chain, previous, features)
        disk, group = _link_bytes(chain, previous, features), speed_group(plan)
        costs.append(LinkCost(key, chain.task, images, steps, flops, extracted, extracted_flops, disk, group))
        previous = features
    return costs


def speed_group(plan: Plan) -> SpeedGroup:
    """What decides FLOP/s, as text: links of one group train at about one rate, whatever their method."""
    config, (height, width, channels) = plan.config, plan.dataset.x_train.shape[1:]
    network = f"{config.backbone.name} {height}x{width}x{channels}"
    return f"{network}, batch {config.batches.size}, {config.optim.precision}"


def smallest_batch(plan: Plan) -> int:
    """Rows of the smallest batch of a run that batch norm takes its statistics from."""
    chain, rows = DryChain(plan, CPU), [plan.config.batches.size]
    for _ in plan.keys:
        data = chain.begin()
        rows += [drawn(plan, stage, data).batch for stage in chain.stages() if stage.statistics]
        chain.method.end_task()
    return min(rows)


def _training(chain: DryChain) -> tuple[int, int, float]:
    """Images, steps and FLOPs of all stages of the task begun."""
    images, steps, flops = 0, 0, 0.0
    for number, stage in enumerate(chain.stages()):
        epoch = drawn(chain.plan, stage, chain.data)
        rows = epoch.steps * epoch.batch * stage.epochs
        images, steps = images + rows, steps + epoch.steps * stage.epochs
        flops += rows * chain.row_flops(number, stage)
    return images, steps, flops


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
    stored = {name: torch.empty(size, device="meta") for name, size in sizes.items()}
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
    """FLOP/s of each group: the median over those of its links that are below `root`."""
    return {group: statistics.median(speeds) for group, speeds in _stored_speeds(root, costs).items()}


def speed_source(root: Place, costs: Sequence[LinkCost], calibrated: Collection[SpeedGroup]) -> str:
    """How the speeds came about, for `describe`: the groups in `calibrated` from steps, the others from links."""
    stored = sum(len(v) for group, v in _stored_speeds(root, costs).items() if group not in calibrated)
    links = [f"from {stored} stored link{'s' * (stored != 1)}"] if stored else []
    steps = [f"calibrated in {CALIBRATION_SECONDS:g} s"] if calibrated else []
    return " and ".join(links + steps)


def _stored_speeds(root: Place, costs: Sequence[LinkCost]) -> dict[SpeedGroup, list[float]]:
    speeds: defaultdict[SpeedGroup, list[float]] = defaultdict(list)
    store = LinkStore(root, lambda line: None)
    there = store.among(cost.key for cost in costs)
    for cost in (cost for cost in _distinct(costs) if cost.key in there):
        try:
            speeds[cost.speed_group].append(cost.flops / store.record(cost.key)["seconds"])
        except (DamagedError, ValueError, KeyError, TypeError, ZeroDivisionError):
            continue  # a damaged link, which the run reports and trains again, tells no speed
    return {group: found for group, found in speeds.items() if found}


def _distinct(costs: Sequence[LinkCost]) -> list[LinkCost]:
    """Each link once: runs that share it train it once."""
    return list({cost.key: cost for cost in costs}.values())


def calibrate(plan: Plan, device: torch.device, seconds: float = CALIBRATION_SECONDS) -> float:
    """FLOP/s of real training steps of the second task (the first where there is no other). Writes nothing."""
    chain = DryChain(plan, device, loaders=plan.config.data.loaders)
    data = chain.begin()
    if len(plan.keys) > 1:
        chain.method.end_task()
        data = chain.begin()
    number, loop, method = 0, chain.loop, chain.method
    stage = dataclasses.replace(chain.stages()[number], lr=0.0)  # as fast as any rate, and no loss can overflow
    flops, optimiser = chain.row_flops(number, stage), loop.optimiser(method, stage)
    rows = stage.rows or (data.new, data.memory)
    epochs = (loop.batches(chain.task, *rows, number, epoch, stage.batching) for epoch in itertools.count())
    batches = itertools.chain.from_iterable(epochs)
    loop.epoch(method, method.network, stage, optimiser, 0, itertools.islice(batches, WARM_UP))
    report = loop.epoch(method, method.network, stage, optimiser, 0, _until(batches, seconds))
    return flops * report.images / report.seconds


def _until(batches: Iterator[Batch], seconds: float) -> Iterator[Batch]:
    """Batches until the time is up, but a few at least."""
    ends = time.perf_counter() + seconds
    for done, batch in enumerate(batches):
        if done >= FEWEST_STEPS and time.perf_counter() > ends:
            return
        yield batch


# ---------------------------------------------------------------- the estimate


@dataclass(frozen=True)
class GpuAssumption:
    """A GPU nobody has measured here.

    A step takes as long as its FLOPs at a sustained rate, but at least as long as launching its kernels does: small
    networks on 32×32 images keep a GPU waiting. Both figures are assumed, not measured. The price is an eighth of a
    p4d.24xlarge on demand; check the price list before use.
    """

    name: str = "A100"
    sustained_flops: float = 10e12
    step_seconds: float = 0.008
    dollars_per_hour: float = 4.10

    def seconds(self, cost: LinkCost) -> float:
        """How long it would take for a link."""
        return max((cost.flops + cost.extracted_flops) / self.sustained_flops, cost.steps * self.step_seconds)


@dataclass(frozen=True)
class Estimate:
    """What is ahead: counted, then timed for this machine and, by assumption, for a GPU."""

    links: int
    images: int
    extracted: int
    seconds_here: float
    concurrency: int
    gpu: GpuAssumption
    gpu_hours: float
    gpu_price: float
    disk_bytes: int


def estimate(
    costs_to_train: Sequence[LinkCost], speeds: Mapping[SpeedGroup, float], concurrency: int, gpu: GpuAssumption
) -> Estimate:
    """Add up the links, each once. `speeds` are FLOP/s of one process.

    Time here supposes `concurrency` processes that are never idle, so chains, whose links follow one another, take
    longer where there are fewer of them than processes.
    """
    costs = _distinct(costs_to_train)
    work = [(cost.flops + cost.extracted_flops) / speeds[cost.speed_group] for cost in costs]
    gpu_hours = sum(map(gpu.seconds, costs)) / 3600
    return Estimate(
        links=len(costs),
        images=sum(cost.images for cost in costs),
        extracted=sum(cost.extracted for cost in costs),
        seconds_here=sum(work) / concurrency,
        concurrency=concurrency,
        gpu=gpu,
        gpu_hours=gpu_hours,
        gpu_price=gpu_hours * gpu.dollars_per_hour,
        disk_bytes=sum(cost.disk_bytes for cost in costs),
    )
