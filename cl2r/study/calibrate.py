"""Measure what trains fastest on this machine: fp32 or bf16, compiled or not, and how many trials × threads.

These choices change rounding, so they are part of a run's config and keys, and the user makes them.
"""

import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Literal

import torch

from cl2r.config.schema import Config
from cl2r.engine.plan import Plan, plan_run
from cl2r.errors import InputError
from cl2r.runtime.environment import cores, peak_bytes
from cl2r.runtime.text import clock, megabytes
from cl2r.study.cost import CPU, WARM_UP, StepTimer, link_costs, measure_flops

Precision = Literal["fp32", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
ROUNDS, SECONDS = 3, 1.0
HOPELESS = 3.0  # a precision that is this many times slower in one step is given up
WORTH_COMPILING = 300.0  # seconds of training: compiling takes about a minute and saves a third at best


@dataclass(frozen=True)
class ComputeMode:
    """A precision, compiled or not, and its measured speed."""

    precision: Precision
    compile: bool
    flops: float  # per second
    setup_seconds: float = 0.0  # to compile, once per process

    def seconds(self, work: float) -> float:
        """Return the seconds that one process needs for `work` FLOPs."""
        return self.setup_seconds + work / self.flops

    @property
    def name(self) -> str:
        """Return a name such as `bf16, compiled`."""
        return self.precision + ", compiled" * self.compile


def measure_modes(plan: Plan, device: torch.device) -> tuple[list[ComputeMode], float]:
    """Return the modes that were measured in one process, the fastest first, and the FLOPs of all links of `plan`.

    Precisions are timed in turns, so that a slow moment of the machine affects both. A processor that only emulates
    bf16 takes ten times as long; one step shows it, and no more are made. Torch keeps compiled code on disk, so a later
    run finds most of it.
    """
    work = sum(cost.flops for cost in link_costs(plan))
    plans = {precision: _with(plan, precision, compiled=False) for precision in PRECISIONS}
    first = {precision: one_step(own, device) for precision, own in plans.items()}
    close = [precision for precision in PRECISIONS if first[precision] * HOPELESS > max(first.values())]
    rounds = [{name: measure_flops(plans[name], device, SECONDS) for name in close} for _ in range(ROUNDS)]
    speeds = first | {name: statistics.median(one[name] for one in rounds) for name in close}
    modes = [ComputeMode(precision, False, speed) for precision, speed in speeds.items()]
    best = min(modes, key=lambda mode: mode.seconds(work))
    if best.seconds(work) > WORTH_COMPILING:
        compiled, began = _with(plan, best.precision, compiled=True), time.perf_counter()
        measure_flops(compiled, device, 0.0)
        setup = time.perf_counter() - began
        speed = statistics.median(measure_flops(compiled, device, SECONDS) for _ in range(ROUNDS))
        modes.append(ComputeMode(best.precision, True, speed, setup))
    return sorted(modes, key=lambda mode: mode.seconds(work)), work


def one_step(plan: Plan, device: torch.device) -> float:
    """Return FLOP/s of the second step of a process."""
    steps = StepTimer.at_second_task(plan, device)
    steps.take(1)
    report = steps.take(1)
    return steps.row_flops * report.images / report.seconds


def _with(plan: Plan, precision: Precision, compiled: bool) -> Plan:
    optim = plan.config.optim.model_copy(update={"precision": precision, "compile": compiled})
    return plan_run(plan.config.model_copy(update={"optim": optim}))


def mode_text(modes: Sequence[ComputeMode], work: float) -> str:
    """Return one line per mode (speed, compile time, time for all links) and the first as options."""
    chosen = modes[0]
    lines = [f"{'mode':<14}  {'GFLOP/s':<9}  {'compiling':<9}  all links"]
    for mode in modes:
        setup = f"{mode.setup_seconds:.0f} s" if mode.compile else "–"
        lines.append(f"{mode.name:<14}  {mode.flops / 1e9:<9,.1f}  {setup:<9}  {clock(mode.seconds(work))}")
    if not any(mode.compile for mode in modes):
        lines.append(f"compiling was not tried: it cannot pay for {clock(chosen.seconds(work))} of training")
    options = f"--set optim.precision={chosen.precision} --set optim.compile={str(chosen.compile).lower()}"
    return "\n".join([*lines, f"fastest: {chosen.name}  ({options})"])


# Threads of one trial wait for one another at every operation, trials do not: many trials with one thread each are
# fastest if there are enough of them, unless the cache is too small for so many.

LAYOUT_SECONDS = 4.0
MEMORY_SHARE = 0.8  # of the machine's memory, for all trials together
START_SECONDS = 600.0


@dataclass(frozen=True)
class TrialLayout:
    """`trials` processes at the same time with `threads` each; images per second and peak memory of all together."""

    trials: int
    threads: int
    rate: float
    bytes: int

    def seconds(self, runs: int) -> float:
        """Return the time for equal runs of one unit of work; the last round may leave trials idle."""
        return math.ceil(runs / self.trials) * self.trials / self.rate


def candidates(cores: int, runs: int) -> list[tuple[int, int]]:
    """Return trials and threads to try: powers of two, all cores and all runs."""
    trials = {1, min(cores, runs), *(2**power for power in range(cores.bit_length()))}
    return [(count, cores // count) for count in sorted(trials) if count <= min(cores, runs)]


def measure(config: Config, trials: int, threads: int, seconds: float = LAYOUT_SECONDS) -> TrialLayout:
    """Train for a few seconds in `trials` processes at once. Nothing is written."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(trials, context, _begin, (context.Barrier(trials), threads)) as pool:
        rates, held = zip(*pool.map(_train, [config] * trials, [seconds] * trials), strict=True)
    return TrialLayout(trials, threads, sum(rates), sum(held))


_together: Barrier


def _begin(barrier: Barrier, threads: int) -> None:
    global _together
    _together = barrier
    torch.set_num_threads(threads)


def _train(config: Config, seconds: float) -> tuple[float, int]:
    """Return images per second of one process, once all are ready, and its peak memory."""
    try:
        steps = StepTimer.at_second_task(plan_run(config), CPU)
        steps.take(WARM_UP)
        _together.wait(START_SECONDS)
    except BaseException:
        _together.abort()  # the other processes would wait for ever
        raise
    report = steps.take_for(seconds)
    return report.images / report.seconds, peak_bytes()


def choose_layout(layouts: Sequence[TrialLayout], runs: int, memory: int) -> tuple[TrialLayout, str]:
    """Return the layout that finishes `runs` runs first among those that fit into memory, compared with the others."""
    fitting = [layout for layout in layouts if layout.bytes <= MEMORY_SHARE * memory]
    if not fitting:
        held = min(layouts, key=lambda layout: layout.bytes)
        raise InputError(f"one run takes {megabytes(held.bytes)}, but this machine has {megabytes(memory)}")
    chosen = min(fitting, key=lambda layout: layout.seconds(runs))
    times = ((layout, layout.seconds(runs) / chosen.seconds(runs)) for layout in layouts if layout is not chosen)
    others = [f"{layout.trials} × {layout.threads} would take {time:.2f} times as long" for layout, time in times]
    return chosen, "; ".join([f"{chosen.trials} × {chosen.threads} (trials × threads)", *others])


def trial_layout(config: Config, runs: int) -> tuple[TrialLayout, str]:
    """Measure and return the fastest layout for `runs` runs like `config` on this machine, and a line about it."""
    measured = [measure(config, trials, threads) for trials, threads in candidates(cores(), runs)]
    return choose_layout(measured, runs, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
