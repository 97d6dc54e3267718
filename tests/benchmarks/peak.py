"""The roofline of this machine, the share of it that a training step of CL²R reaches, and where the rest goes.

    python -m tests.benchmarks.peak                               # all threads that torch takes
    python -m tests.benchmarks.peak --threads 1 --rounds 15 --out results/peak      # peak.json and peak.md too

The step is that of task 2: ResNet-32, 128 generated images of 32×32×3, half of them memory. Beside it, in the same
rounds, so that a slow moment of the machine hits all alike: fp32 matrix products, copies and sums of large arrays, and
every convolution of the step by itself, channels-last, with the passes that it makes in the step. All times are medians
over rounds. A convolution must move its input, weights and output once; FLOPs per byte times bandwidth, or the peak of
matrix products where that is less, is its roof. What the step does besides convolutions is read off a profile,
which slows it down by the bookkeeping of every operator.
"""

import argparse
import itertools
import json
import math
import re
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function

from analysis.tables.formats import render
from analysis.tables.table import Cell, Table, number_cell
from cl2r.batches import Batch
from cl2r.config.schema import Config
from cl2r.engine.plan import plan_run
from cl2r.errors import InputError
from cl2r.methods.incremental import Incremental
from cl2r.runtime.logs import exit_code
from cl2r.storage.path import at
from cl2r.study.cost import CPU, StepTimer
from cl2r.study.dry_run import epoch_shape
from tests.benchmarks.speed.harness import Sizes, interleaved, seconds
from tests.benchmarks.speed.images import config_of, write_training_set

GEMM_SIZES = (512, 1024, 2048)
ELEMENTS = 2**25
"""Size of each array that is copied or summed: 128 MiB, more than caches hold."""
ARRAYS = {"copy": 2, "add": 3}
"""How many of them are read or written."""
STEPS, FLOAT = 4, 4
DATA, STEP, OTHER, BETWEEN = "data", "step", "other operators", "between operators"
RANGES = (
    (DATA, re.compile(f"^{DATA}$")),
    ("optimiser", re.compile("^Optimizer[.]|fused_sgd")),
    ("loss", re.compile("cross_entropy|nll_loss|NllLoss|log_softmax|LogSoftmax|cosine_similarity")),
)
"""All that happens inside of these belongs to them."""
OPERATORS = (
    ("add", re.compile("^aten::add_?$|AddBackward")),
    ("convolution backward", re.compile("convolution_backward|ConvolutionBackward")),
    ("batch norm backward", re.compile("batch_norm_backward|BatchNormBackward")),
    ("ReLU backward", re.compile("threshold_backward|ReluBackward")),
    ("convolution forward", re.compile("^aten::.*conv")),
    ("batch norm forward", re.compile("^aten::.*batch_norm")),
    ("ReLU forward", re.compile("^aten::relu")),
)
"""What an operator does; the innermost that is known decides, e.g. a copy inside of a convolution is the latter's."""


def group_of(path: Sequence[str]) -> str:
    """The group of an operator, by its name and those of whatever it runs in, innermost first."""
    if path[0] == STEP:  # the time of the range itself, in none of its operators
        return BETWEEN
    for group, pattern in RANGES:
        if any(pattern.search(name) for name in path):
            return group
    for name in path:
        for group, pattern in OPERATORS:
            if pattern.search(name):
                return group
    return OTHER


def shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """Each group's part of all; largest first, they sum to 1."""
    total = math.fsum(seconds.values())
    return {group: seconds[group] / total for group in sorted(seconds, key=lambda group: -seconds[group])}


def profiled(run: Callable[[], object]) -> dict[str, float]:
    """Seconds of self CPU time by group."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded, record_function(STEP):
        run()
    groups = dict[str, float]()
    for event in recorded.events() or ():
        path, outer = list[str](), event
        while outer is not None:
            path.append(outer.name)
            outer = outer.cpu_parent
        group = group_of(path)
        groups[group] = groups.get(group, 0.0) + event.self_cpu_time_total / 1e6
    return groups


def told_apart(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches, each made in a range of its own."""
    for _ in itertools.count():
        with record_function(DATA):
            batch = next(batches)
        yield batch


@dataclass(frozen=True)
class Convolution:
    """A convolution as the step calls it. Passes: 1 forward; 2 with the gradient of weights; 3 with that of inputs."""

    rows: int
    channels_in: int
    channels: int
    size: int
    """Height and width of the input."""
    kernel: int
    stride: int
    padding: int
    passes: int

    @property
    def out(self) -> int:
        """Size of the output, a side."""
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def flops(self) -> float:
        """Two a multiply-add, in all passes."""
        return 2.0 * self.passes * self.rows * self.out**2 * self.kernel**2 * self.channels_in * self.channels

    @property
    def intensity(self) -> float:
        """FLOPs per byte, if a pass moves input, weights and output once."""
        maps = self.rows * (self.channels_in * self.size**2 + self.channels * self.out**2)
        return self.flops / (FLOAT * self.passes * (maps + self.channels_in * self.channels * self.kernel**2))

    def __str__(self) -> str:
        gradients = {1: "forward", 2: "forward, weights", 3: "forward, weights, inputs"}[self.passes]
        stride = f", stride {self.stride}" if self.stride > 1 else ""
        return f"{self.rows} × {self.channels_in}→{self.channels} @ {self.out}²{stride}; {gradients}"


def convolutions(training: StepTimer) -> dict[Convolution, int]:
    """Those of one step, of network and teacher, and how often each is called."""
    found: Counter[Convolution] = Counter()

    def note(module: nn.Module, words: tuple[Tensor, ...], out: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        x, (channels, channels_in, *_) = words[0], module.weight.shape
        passes = 1 + int(out.requires_grad) + int(x.requires_grad)
        sides = (x.shape[-1], module.kernel_size[0], module.stride[0], int(module.padding[0]))
        found[Convolution(len(x), channels_in, channels, *sides, passes)] += 1

    method = training.chain.method
    assert isinstance(method, Incremental)
    parts = [*method.network.modules(), *(method.teacher.modules() if method.teacher is not None else ())]
    hooks = [part.register_forward_hook(note) for part in parts if isinstance(part, nn.Conv2d)]
    training.take(1)
    for hook in hooks:
        hook.remove()
    return dict(found)


def convolution_call(shape: Convolution) -> Callable[[], object]:
    """That convolution alone, channels-last, forward and backward as in the step."""

    def made(*size: int) -> Tensor:
        return torch.randn(size).to(memory_format=torch.channels_last)

    x = made(shape.rows, shape.channels_in, shape.size, shape.size).requires_grad_(shape.passes == 3)
    weight = made(shape.channels, shape.channels_in, shape.kernel, shape.kernel).requires_grad_(shape.passes > 1)
    forward = partial(functional.conv2d, x, weight, stride=shape.stride, padding=shape.padding)
    gradient, inputs = made(shape.rows, shape.channels, shape.out, shape.out), [weight, x][: shape.passes - 1]
    return (lambda: torch.autograd.grad(forward(), inputs, gradient)) if inputs else forward


# Measuring


@dataclass(frozen=True)
class Rate:
    """A convolution of the step: how often it is called, and the seconds of one call by itself."""

    shape: Convolution
    calls: int
    seconds: float

    @property
    def rate(self) -> float:
        """FLOP/s."""
        return self.shape.flops / self.seconds

    def roof(self, peak: float, bandwidth: float) -> float:
        """FLOP/s at most: min(peak, FLOPs per byte · bytes per second)."""
        return min(peak, self.shape.intensity * bandwidth)


@dataclass(frozen=True)
class PeakReport:
    """Rates are FLOP/s and bytes per second."""

    threads: int
    rounds: int
    gemm: dict[int, float]
    """By the side of the matrices."""
    bandwidth: dict[str, float]
    convolutions: list[Rate]
    images: int
    flops: float
    seconds: float
    data_seconds: float
    optimiser_seconds: float
    profile: dict[str, float]
    """Shares of self CPU time by group."""

    @property
    def peak(self) -> float:
        """The best rate of matrix products."""
        return max(self.gemm.values())

    @property
    def most_bytes(self) -> float:
        """The best rate of large arrays."""
        return max(self.bandwidth.values())

    @property
    def share_of_peak(self) -> float:
        """FLOP/s of the step over the peak."""
        return self.flops / self.seconds / self.peak

    @property
    def convolution_seconds(self) -> float:
        """What the step's convolutions take at the rates that they reach by themselves."""
        return sum(entry.calls * entry.seconds for entry in self.convolutions)

    @property
    def share_of_convolutions(self) -> float:
        """That, over the step."""
        return self.convolution_seconds / self.seconds

    @property
    def roof_seconds(self) -> float:
        """What they would take at their roofs."""
        return sum(row.calls * row.shape.flops / row.roof(self.peak, self.most_bytes) for row in self.convolutions)


def measure_peak(
    given: StepTimer | Config,
    rounds: int,
    threads: int,
    sizes: Sequence[int] = GEMM_SIZES,
    elements: int = ELEMENTS,
) -> PeakReport:
    """Machine and step, side by side; `given` is what is stepped, at task 2."""
    if rounds < 1 or threads < 1 or not sizes or min(*sizes, elements) < 1:
        raise InputError("rounds, threads, sizes and elements: at least 1")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        training = given if isinstance(given, StepTimer) else StepTimer.at_second_task(plan_run(given), CPU)
        return _measured(training, rounds, sizes, elements)
    finally:
        torch.set_num_threads(before)


def _measured(training: StepTimer, rounds: int, sizes: Sequence[int], elements: int) -> PeakReport:
    shapes, chain = convolutions(training), training.chain
    calls: dict[str, Callable[[], object]] = {f"gemm {size}": _product(size) for size in sizes}
    calls |= _streams(elements) | {str(shape): convolution_call(shape) for shape in shapes}
    calls |= {"step": lambda: training.take(STEPS), "optimiser": training.optimiser.step}
    calls |= {"data": lambda: list(itertools.islice(training.batches, STEPS))}
    samples = interleaved({name: partial(seconds, call) for name, call in calls.items()}, rounds)
    middle = {name: statistics.median(times) for name, times in samples.items()}
    training.batches = told_apart(training.batches)
    images = epoch_shape(chain.plan, training.stage, chain.data).batch
    return PeakReport(
        threads=torch.get_num_threads(),
        rounds=rounds,
        gemm={size: 2 * size**3 / middle[f"gemm {size}"] for size in sizes},
        bandwidth={name: arrays * FLOAT * elements / middle[name] for name, arrays in ARRAYS.items()},
        convolutions=[Rate(shape, count, middle[str(shape)]) for shape, count in shapes.items()],
        images=images,
        flops=images * training.row_flops,
        seconds=middle["step"] / STEPS,
        data_seconds=middle["data"] / STEPS,
        optimiser_seconds=middle["optimiser"],
        profile=shares(profiled(lambda: training.take(STEPS))),
    )


def _product(size: int) -> Callable[[], object]:
    a, b, out = (torch.randn(size, size) for _ in range(3))
    return lambda: torch.mm(a, b, out=out)


def _streams(elements: int) -> dict[str, Callable[[], object]]:
    a, b, out = (torch.ones(elements) for _ in range(3))
    return {"copy": lambda: out.copy_(a), "add": lambda: torch.add(a, b, out=out)}


def table(report: PeakReport) -> list[str]:
    """Markdown sections: the machine, the convolutions, the step, its profile."""
    return [render(part(report), "markdown") for part in (_machine, _convolutions, _step, _profile)]


def _plain(title: str, heads: Sequence[str], rows: Iterable[Sequence[Cell]], *notes: str) -> Table:
    body = tuple(map(tuple, rows))
    return Table(tuple(heads), body, pd.DataFrame(body, columns=list(heads)), title, notes)


def _machine(report: PeakReport) -> Table:
    rates = [(f"{side} × {side} matrix product", rate, "GFLOP/s") for side, rate in report.gemm.items()]
    rates += [(f"{name} of large arrays", rate, "GB/s") for name, rate in report.bandwidth.items()]
    rows = [(Cell(name), number_cell(rate / 1e9, ",.1f"), Cell(unit)) for name, rate, unit in rates]
    seen = f"{report.threads} threads, fp32, medians of {report.rounds} rounds, torch {torch.__version__}."
    balance = f"Below {report.peak / report.most_bytes:.0f} FLOPs per byte, memory is the roof."
    return _plain("The machine", ("what", "rate", "unit"), rows, seen, balance)


def _convolutions(report: PeakReport) -> Table:
    heads = ("convolution", "calls", "ms each", "GFLOP/s", "of the GEMM peak", "FLOPs per byte", "of its roof")
    rows = []
    for entry in report.convolutions:
        shape, rate, roof = entry.shape, entry.rate, entry.roof(report.peak, report.most_bytes)
        values = (entry.calls, 1e3 * entry.seconds, rate / 1e9, rate / report.peak, shape.intensity, rate / roof)
        forms = ("d", ".2f", ",.1f", ".0%", ".0f", ".0%")
        rows.append((Cell(str(shape)), *map(number_cell, values, forms)))
    return _plain("Convolutions of the step, each by itself", heads, rows)


def _step(report: PeakReport) -> Table:
    parts = {
        "the step": report.seconds,
        "its FLOPs at the GEMM peak": report.flops / report.peak,
        "its convolutions at their roofs": report.roof_seconds,
        "its convolutions as each runs by itself": report.convolution_seconds,
        "its data by itself (crop, flip, normalise)": report.data_seconds,
        "its optimiser by itself": report.optimiser_seconds,
    }
    whole = report.seconds
    rows = [
        (Cell(name), number_cell(1e3 * part, ".2f"), number_cell(part / whole, ".1%")) for name, part in parts.items()
    ]
    speed = f"{report.images} images per step, {report.images / whole:,.0f} images/s"
    flops = f"{report.flops / 1e9:,.1f} GFLOPs per step, {report.flops / whole / 1e9:,.1f} GFLOP/s"
    text = f"{speed}; {flops}, {report.share_of_peak:.0%} of the GEMM peak."
    return _plain("The step", ("what", "ms", "of the step"), rows, text)


def _profile(report: PeakReport) -> Table:
    rows = [(Cell(group), number_cell(share, ".1%")) for group, share in report.profile.items()]
    note = f"Self CPU time of {STEPS} steps under a profiler; between operators: Python, and the profiler itself."
    return _plain("Where a step spends its time", ("group", "share"), rows, note)


def content(report: PeakReport) -> dict[str, Any]:
    """All that was measured, and what is read off it."""
    derived = ("peak", "most_bytes", "share_of_peak", "convolution_seconds", "share_of_convolutions", "roof_seconds")
    return {**asdict(report), **{name: getattr(report, name) for name in derived}}


def main(words: list[str] | None = None) -> int:
    """Measure and print Markdown."""
    parser = argparse.ArgumentParser("peak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), metavar="N", help="default: %(default)s"
    )
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="default: %(default)s")
    parser.add_argument("--out", type=Path, metavar="DIR/peak", help="write DIR/peak.json and DIR/peak.md")
    args = parser.parse_args(words)
    if args.rounds < 1 or args.threads < 1:
        raise InputError("--rounds and --threads: at least 1")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cl2r-peak-") as folder:
        config = config_of(write_training_set(Path(folder), Sizes()), Sizes(), "cl2r")
        report = measure_peak(config, args.rounds, args.threads)
    text = "\n\n".join(table(report))
    if args.out:
        at(f"{args.out}.json").write_file(json.dumps(content(report), indent=1).encode())
        at(f"{args.out}.md").write_file(f"{text}\n".encode())
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code("peak", main))
