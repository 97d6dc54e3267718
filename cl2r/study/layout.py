"""How many trials side by side, each with how many threads: measured for a few seconds, not guessed.

Threads of one trial wait for one another at every operation, trials do not: many trials of one thread are fastest as
long as there are enough of them. With fewer trials than cores, or a cache too small for so many, they are not.
"""

import math
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier

import torch

from cl2r.config import Config
from cl2r.engine.plan import plan_run
from cl2r.engine.process_memory import peak_bytes
from cl2r.errors import InputError
from cl2r.study.cost import WARM_UP, Steps

SECONDS = 4.0
MEMORY_SHARE = 0.8
"""Of the machine's memory that trials may take together."""
START_SECONDS = 600.0


@dataclass(frozen=True)
class Layout:
    """`trials` processes side by side of `threads` each, and what was measured of them."""

    trials: int
    threads: int
    rate: float
    """Images a second, of all together."""
    bytes: int
    """The most that all together held."""

    def seconds(self, runs: int) -> float:
        """For that many equal runs of one unit of work: the last round may leave trials idle."""
        return math.ceil(runs / self.trials) * self.trials / self.rate

    @property
    def name(self) -> str:
        """`2 × 1`."""
        return f"{self.trials} × {self.threads}"


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def candidates(cores: int, runs: int) -> list[tuple[int, int]]:
    """Trials and threads: powers of two, all cores and all runs, as far as there are runs for them."""
    trials = {1, min(cores, runs), *(2**power for power in range(cores.bit_length()))}
    return [(count, cores // count) for count in sorted(trials) if count <= min(cores, runs)]


def measure(config: Config, trials: int, threads: int, seconds: float = SECONDS) -> Layout:
    """Train for a moment in so many processes at once. Writes nothing."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(trials, context, _begin, (context.Barrier(trials), threads)) as pool:
        measured = list(pool.map(_train, [config] * trials, [seconds] * trials))
    return Layout(trials, threads, sum(rate for rate, _ in measured), sum(held for _, held in measured))


def _begin(barrier: Barrier, threads: int) -> None:
    global _together
    _together = barrier
    torch.set_num_threads(threads)


_together: Barrier


def _train(config: Config, seconds: float) -> tuple[float, int]:
    """Images a second of one of the processes, once all are ready, and the most that it held."""
    try:
        steps = Steps(plan_run(config), torch.device("cpu"))
        steps.take(WARM_UP)
        _together.wait(START_SECONDS)
    except BaseException:
        _together.abort()  # the others would wait
        raise
    report = steps.take_for(seconds)
    return report.images / report.seconds, peak_bytes()


def choose(layouts: Sequence[Layout], runs: int, memory: int) -> Layout:
    """The one that is done first with `runs` runs; of those that fit into memory."""
    fitting = [layout for layout in layouts if layout.bytes <= MEMORY_SHARE * memory]
    if not fitting:
        held = min(layouts, key=lambda layout: layout.bytes)
        raise InputError(f"a run held {held.bytes / 1e6:,.0f} MB, this machine has {memory / 1e6:,.0f} MB")
    return min(fitting, key=lambda layout: layout.seconds(runs))


def fastest_layout(config: Config, runs: int) -> tuple[Layout, list[Layout]]:
    """For `runs` runs like `config` on this machine, and all that were measured."""
    measured = [measure(config, trials, threads) for trials, threads in candidates(cores(), runs)]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return choose(measured, runs, memory), measured


def described(chosen: Layout, measured: Sequence[Layout], runs: int) -> str:
    """One line, e.g. `2 × 1 (trials × threads); 1 × 2 would take 1.15 times as long`."""
    others = [
        f"{layout.name} would take {layout.seconds(runs) / chosen.seconds(runs):.2f} times as long"
        for layout in measured
        if layout is not chosen
    ]
    return "; ".join([f"{chosen.name} (trials × threads)", *others])
