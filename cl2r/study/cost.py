"""What a study will cost, before anything is started: images, time here, GPU-hours and their price, disk.

Counts are exact, they follow from the plan: task t trains on T_t = D_t ∪ M_t, and |M_t| is the sum of
min(quota, class size) over the classes seen before. Time here is counts over speed, the speed taken from links trained
earlier or from a few steps of real training. GPU-hours are counts times FLOPs over an assumed rate: nothing measured.
"""

import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from cl2r.augment import Normalise
from cl2r.batches import batches_per_epoch
from cl2r.config import Config
from cl2r.engine.run import Plan, training_images
from cl2r.engine.task_loop import TaskLoop
from cl2r.memory import sample_task
from cl2r.methods.base import Batch, Method, Outputs, TaskInfo
from cl2r.methods.registry import build_method

CALIBRATION_SECONDS = 2.0
WARM_UP, FEWEST_STEPS = 2, 3
FORWARD_SHARE = 1 / 3  # a trained image costs a forward pass and a backward pass twice as dear

SpeedGroup = str
Rows = npt.NDArray[np.int64]


# ---------------------------------------------------------------- counts


@dataclass(frozen=True)
class LinkCost:
    """What training one link takes. Herding's one more pass over D_{t-1} is left out."""

    key: str
    task: int
    images: int
    """Rows drawn in all epochs."""
    steps: int
    open_images: int
    """Images to extract features of."""
    disk_bytes: int
    """Tensors of the link, as files."""
    teacher_share: float
    """Share of the rows drawn that φ_{t-1} sees too."""
    speed_group: SpeedGroup


def link_costs(plan: Plan) -> list[LinkCost]:
    """The cost of every link of a run, task by task."""
    method, config = _method(plan, len(plan.scenario.tasks[0].labels)), plan.config
    feature_size = _forward(method, _open_images(plan)).features.shape[1]
    costs = []
    for key, task in zip(plan.keys, plan.scenario.tasks, strict=False):
        new, memory = len(task.rows), memory_rows(plan, task.index)
        # The classes seen as if all came first: the same tensors and epochs, and no teacher has to be copied.
        method.begin_task(TaskInfo(1, 0, task.labels.stop, 0))
        epochs = sum(stage.epochs for stage in method.stages())
        costs.append(
            LinkCost(
                key,
                task.index,
                _rows_per_epoch(config, new, memory) * epochs,
                batches_per_epoch(new, memory, config.batches.size) * epochs,
                len(plan.dataset.x_open),
                _link_bytes(method, memory, len(plan.dataset.x_open), feature_size),
                _teacher_share(config, task.index, new, memory),
                speed_group(plan),
            )
        )
    return costs


def memory_rows(plan: Plan, task: int) -> int:
    """|M_t|: the quota, or all there is, of each class of the tasks before."""
    old = plan.scenario.tasks[task - 1].labels.start
    sizes = np.bincount(plan.scenario.labels, minlength=plan.scenario.num_classes)
    return int(np.minimum(sizes[:old], plan.config.memory.per_class).sum())


def speed_group(plan: Plan) -> SpeedGroup:
    """What decides images/s, as text: links of one group train at about one speed."""
    config, (height, width, channels) = plan.config, plan.dataset.x_train.shape[1:]
    distillation = config.method.fd if config.method.lambda_base else "none"
    network = f"{config.backbone.name} {height}x{width}x{channels} to {plan.num_outputs} ({config.head.projection})"
    return f"{network}, batch {config.batches.size}, fd {distillation}, {config.optim.precision}"


def _rows_per_epoch(config: Config, new: int, memory: int) -> int:
    """A balanced batch is always full, rows repeat where need be; any other is at most all of T_t."""
    size = config.batches.size
    full = config.batches.batching == "balanced" and memory > 0
    return batches_per_epoch(new, memory, size) * (size if full else min(size, new + memory))


def smallest_batch(plan: Plan) -> int:
    """Rows of the smallest batch of a run."""
    config = plan.config
    tasks = [(len(task.rows), memory_rows(plan, task.index)) for task in plan.scenario.tasks[: len(plan.keys)]]
    return min(
        _rows_per_epoch(config, new, memory) // batches_per_epoch(new, memory, config.batches.size)
        for new, memory in tasks
    )


def _teacher_share(config: Config, task: int, new: int, memory: int) -> float:
    """0, the share of memory in a batch, or 1."""
    method, size = config.method, config.batches.size
    if task == 1 or method.fd == "none" or method.lambda_base == 0:
        return 0.0
    if memory == 0:
        return float(method.fd_when_no_memory == "on_new")
    if method.fd == "all":
        return 1.0
    return size // 2 / size if config.batches.batching == "balanced" else memory / (new + memory)


def _link_bytes(method: Method, memory: int, open_images: int, feature_size: int) -> int:
    state = {f"method/{name}": tensor for name, tensor in method.carry().items()}
    state["memory"] = torch.empty(memory, dtype=torch.int64, device="meta")
    features = torch.empty(open_images, feature_size, device="meta")
    return _file_bytes(state) + _file_bytes({"open": features})


def _file_bytes(tensors: Mapping[str, Tensor]) -> int:
    """A safetensors file: 8 bytes, a JSON header, the data."""
    data = sum(tensor.nbytes for tensor in tensors.values())
    header = {
        name: {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [data, data]}
        for name, tensor in tensors.items()
    }
    return 8 + len(json.dumps(header, separators=(",", ":"))) + data


def _method(plan: Plan, classes: int) -> Method:
    """Untrained, at the start of a first task of that many classes."""
    method = build_method(plan.config, plan.dataset.channels, plan.num_outputs)
    method.begin_task(TaskInfo(1, 0, classes, 0))
    return method


def _open_images(plan: Plan) -> Tensor:
    """Two of them, which every data set has, ready for a network."""
    dataset = plan.dataset
    return Normalise(dataset.mean, dataset.std, torch.device("cpu"))(torch.from_numpy(dataset.x_open[:2]))


def _forward(method: Method, images: Tensor) -> Outputs:
    with torch.no_grad():
        outputs: Outputs = method.network.eval()(images)
    return outputs


def flops_per_image(plan: Plan) -> float:
    """FLOPs (two a multiply-add) of one image's way forward through the network with all its outputs."""
    method, images = _method(plan, plan.num_outputs), _open_images(plan)
    with FlopCounterMode(display=False) as counter:
        _forward(method, images)
    return float(counter.get_total_flops() / len(images))


def link_flops(cost: LinkCost, forward: float) -> float:
    """Training at three forward passes an image, one more where the teacher looks, and the extraction."""
    return forward * (cost.images * (3 + cost.teacher_share) + cost.open_images)


# ---------------------------------------------------------------- speed on this machine


def measured_speed(root: Path, costs: Sequence[LinkCost]) -> dict[SpeedGroup, float]:
    """Images/s of each group: the median over those of its links that are below `root`."""
    return {group: statistics.median(speeds) for group, speeds in _stored_speeds(root, costs).items()}


def speed_source(root: Path, costs: Sequence[LinkCost], calibrated: Collection[SpeedGroup]) -> str:
    """How the speeds came about, for `describe`: the groups in `calibrated` from steps, the others from links."""
    stored = sum(len(v) for group, v in _stored_speeds(root, costs).items() if group not in calibrated)
    links = [f"from {stored} stored link{'s' * (stored != 1)}"] if stored else []
    steps = [f"calibrated in {CALIBRATION_SECONDS:g} s"] if calibrated else []
    return " and ".join(links + steps)


def _stored_speeds(root: Path, costs: Sequence[LinkCost]) -> dict[SpeedGroup, list[float]]:
    speeds: defaultdict[SpeedGroup, list[float]] = defaultdict(list)
    for cost in _distinct(costs):
        try:
            record = json.loads((root / "links" / cost.key / "record.json").read_bytes())
            speeds[cost.speed_group].append(record["images"] / record["seconds"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            continue  # no link, or a damaged one, which the run reports and trains again: it tells no speed
    return {group: found for group, found in speeds.items() if found}


def _distinct(costs: Sequence[LinkCost]) -> list[LinkCost]:
    """Each link once: runs that share it train it once."""
    return list({cost.key: cost for cost in costs}.values())


def calibrate(plan: Plan, device: torch.device, seconds: float = CALIBRATION_SECONDS) -> float:
    """Images/s of real training steps of the second task (the first where there is no other). Writes nothing."""
    method, memory = _begun(plan, device)
    loop = TaskLoop(plan.config, training_images(plan, device), report=lambda _: None)
    stage, task = method.stages()[0], method.task.index
    new, optimiser = plan.scenario.tasks[task - 1].rows, loop.optimiser(stage)
    epochs = (loop.batches(task, new, memory, 0, epoch) for epoch in itertools.count())
    batches = itertools.chain.from_iterable(epochs)
    loop.epoch(method, method.network, stage, optimiser, 0, itertools.islice(batches, WARM_UP))
    report = loop.epoch(method, method.network, stage, optimiser, 0, _until(batches, seconds))
    return report.images / report.seconds


def _until(batches: Iterator[Batch], seconds: float) -> Iterator[Batch]:
    """Batches until the time is up, but a few at least."""
    ends = time.perf_counter() + seconds
    for done, batch in enumerate(batches):
        if done >= FEWEST_STEPS and time.perf_counter() > ends:
            return
        yield batch


def _begun(plan: Plan, device: torch.device) -> tuple[Method, Rows]:
    """An untrained method at the start of the task to time, and its memory."""
    memory = np.empty(0, dtype=np.int64)
    first, *later = plan.scenario.tasks[: len(plan.keys)]
    method = _method(plan, len(first.labels))
    method.network.to(device)
    if later:
        labels, spec = plan.scenario.labels[first.rows], plan.config.memory
        # Which rows are remembered does not change the speed, so herding is spared its features.
        memory = sample_task(first.rows, labels, spec.per_class, "random", plan.config.seed, 1)
        method.begin_task(TaskInfo(2, len(first.labels), len(later[0].labels), len(memory)))
    return method, memory


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


@dataclass(frozen=True)
class Estimate:
    """What is ahead: counted, then timed for this machine and, by assumption, for a GPU."""

    links: int
    images: int
    open_images: int
    seconds_here: float
    concurrency: int
    gpu: GpuAssumption
    gpu_hours: float
    gpu_price: float
    disk_bytes: int


def _gpu_seconds(cost: LinkCost, forward: float, gpu: GpuAssumption) -> float:
    return max(link_flops(cost, forward) / gpu.sustained_flops, cost.steps * gpu.step_seconds)


def estimate(
    costs_to_train: Sequence[LinkCost],
    speeds: Mapping[SpeedGroup, float],
    concurrency: int,
    gpu: GpuAssumption,
    flops: Mapping[SpeedGroup, float],
) -> Estimate:
    """Add up the links, each once. `speeds` are images/s of one process, `flops` those of one image forward.

    Time here supposes `concurrency` processes that are never idle, so chains, whose links follow one another, take
    longer where there are fewer of them than processes.
    """
    costs = _distinct(costs_to_train)
    work = [(cost.images + FORWARD_SHARE * cost.open_images) / speeds[cost.speed_group] for cost in costs]
    gpu_hours = sum(_gpu_seconds(cost, flops[cost.speed_group], gpu) for cost in costs) / 3600
    return Estimate(
        links=len(costs),
        images=sum(cost.images for cost in costs),
        open_images=sum(cost.open_images for cost in costs),
        seconds_here=sum(work) / concurrency,
        concurrency=concurrency,
        gpu=gpu,
        gpu_hours=gpu_hours,
        gpu_price=gpu_hours * gpu.dollars_per_hour,
        disk_bytes=sum(cost.disk_bytes for cost in costs),
    )


# ---------------------------------------------------------------- text


def describe(estimate: Estimate, trials: int, links_total: int, links_present: int, source: str = "") -> str:
    """The estimate as aligned lines. `source` says where the speeds come from, see `speed_source`."""
    gpu = estimate.gpu
    speed = f"; speed {source}" if source else ""
    rate = f"{gpu.sustained_flops / 1e12:g} TFLOP/s, at least {1000 * gpu.step_seconds:g} ms a step"
    assumed = f"{rate}, ${gpu.dollars_per_hour:.2f} an hour"
    lines = {
        "runs": f"{trials:,}",
        "links": f"{estimate.links:,} to train, {links_present:,} of {links_total:,} present",
        "images": f"{estimate.images:,} to train on, {estimate.open_images:,} to extract",
        "this machine": f"{_duration(estimate.seconds_here)} ({estimate.concurrency} at a time{speed})",
        gpu.name: f"{_gpu(estimate)} (an assumption, not measured: {assumed})",
        "disk": _size(estimate.disk_bytes),
    }
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines.items())


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if whole or not seconds else "under 1 s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{seconds / 3600:,.1f} h"


def _size(count: int) -> str:
    value, units = float(count), iter(("bytes", "kB", "MB", "GB"))
    unit = next(units)
    while value >= 999.5 and (larger := next(units, None)):
        value, unit = value / 1000, larger
    return f"{value:,.1f} {unit}" if unit != "bytes" and value < 9.95 else f"{value:,.0f} {unit}"


def _gpu(estimate: Estimate) -> str:
    if 0 < estimate.gpu_hours < 0.01:
        price = max(estimate.gpu_price, 0.01)
        return f"under 0.01 GPU-hours, {'about' if estimate.gpu_price >= 0.01 else 'under'} ${price:.2f}"
    return f"{estimate.gpu_hours:,.2f} GPU-hours, about ${estimate.gpu_price:,.2f}"
