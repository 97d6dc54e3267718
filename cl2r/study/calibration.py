"""Which way of computing trains a run fastest on this machine: fp32 or bf16, compiled or not.

None of them changes what is computed, all of them change its rounding; so the choice is part of a run's config and
keys, and is made by whoever starts the run, never behind their back.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import torch

from cl2r.engine.plan import Plan, plan_run
from cl2r.progress import clock
from cl2r.study.cost import Steps, calibrate, link_costs

Precision = Literal["fp32", "bf16"]
ROUNDS, SECONDS = 3, 1.0
HOPELESS = 3.0
"""How many times slower a precision must be in one step to be given up."""
WORTH_COMPILING = 300.0
"""Seconds of training below which compiling is not even tried: it takes about a minute and saves a third at best."""


@dataclass(frozen=True)
class Way:
    """One way of computing, and what was measured of it."""

    precision: Precision
    compile: bool
    flops: float
    """A second."""
    setup_seconds: float = 0.0
    """Compiling, once a process."""

    def seconds(self, work: float) -> float:
        """For `work` FLOPs in one process."""
        return self.setup_seconds + work / self.flops

    @property
    def name(self) -> str:
        """`bf16, compiled`."""
        return self.precision + ", compiled" * self.compile

    @property
    def overrides(self) -> str:
        """As options of a command."""
        return f"--set optim.precision={self.precision} --set optim.compile={str(self.compile).lower()}"


def fastest_way(plan: Plan, device: torch.device) -> tuple[Way, list[Way], float]:
    """The fastest for all links of `plan` in one process, all that were measured, and the FLOPs of those links."""
    work = sum(cost.flops for cost in link_costs(plan))
    ways = eager_ways(plan, device)
    best = choose(ways, work)
    if best.seconds(work) > WORTH_COMPILING:
        ways.append(compiled_way(plan, device, best.precision))
    return choose(ways, work), ways, work


def choose(ways: Sequence[Way], work: float) -> Way:
    """The one that is done first with `work` FLOPs, compiling included; the first of equals."""
    return min(ways, key=lambda way: way.seconds(work))


def eager_ways(plan: Plan, device: torch.device) -> list[Way]:
    """Both precisions, in turns, so that a slow moment of the machine hits both alike.

    A processor that only emulates bf16 takes ten times as long: one step tells, and is all that is made of it.
    """
    precisions: tuple[Precision, ...] = ("fp32", "bf16")
    speeds = {precision: [one_step(_with(plan, precision, False), device)] for precision in precisions}
    best = max(found[0] for found in speeds.values())
    close = [precision for precision in precisions if speeds[precision][0] * HOPELESS > best]
    for precision in close:
        speeds[precision].clear()
    for _, precision in product(range(ROUNDS), close):
        speeds[precision].append(calibrate(_with(plan, precision, False), device, SECONDS))
    return [Way(precision, False, statistics.median(found)) for precision, found in speeds.items()]


def one_step(plan: Plan, device: torch.device) -> float:
    """FLOP/s of the second step of a process."""
    steps = Steps(plan, device)
    steps.take(1)
    report = steps.take(1)
    return steps.row_flops * report.images / report.seconds


def compiled_way(plan: Plan, device: torch.device, precision: Precision) -> Way:
    """Compiles for real; torch keeps the result on disk, so a run that follows finds most of it."""
    compiled, began = _with(plan, precision, True), time.perf_counter()
    calibrate(compiled, device, 0.0)
    setup = time.perf_counter() - began
    speeds = [calibrate(compiled, device, SECONDS) for _ in range(ROUNDS)]
    return Way(precision, True, statistics.median(speeds), setup)


def _with(plan: Plan, precision: Precision, compile: bool) -> Plan:
    optim = plan.config.optim.model_copy(update={"precision": precision, "compile": compile})
    return plan_run(plan.config.model_copy(update={"optim": optim}))


def described(chosen: Way, ways: Sequence[Way], work: float) -> str:
    """A line a way: speed, compiling, all links; then the fastest as options."""
    rows = [("way", "GFLOP/s", "compiling", "all links")]
    for way in ways:
        setup = f"{way.setup_seconds:.0f} s" if way.compile else "–"
        rows.append((way.name, f"{way.flops / 1e9:,.1f}", setup, clock(way.seconds(work))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if not any(way.compile for way in ways):
        lines.append(f"compiling was not tried: it cannot pay for {clock(chosen.seconds(work))} of training")
    return "\n".join([*lines, f"fastest: {chosen.name}  ({chosen.overrides})"])
