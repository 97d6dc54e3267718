"""What a method costs relative to ER, and how much of it its extra passes explain.

    python tests/benchmarks/method_cost.py [--preset icons] [--rounds 7] [--methods er lucir ...]

Every method stands at the start of task 2. In each round all stages of all methods make a few training steps one after
the other, so that a slow moment of the machine hits all alike; on a CPU with one thread the clock counts the time of
this process alone, so that other work on the machine hardly matters. A stage's time is its steps a task times the
seconds of a step; a method's, relative to ER's of the same round, is reported as the median over rounds with its
quartiles. FLOPs of the same steps, forward and backward, are counted, not timed. `measured / counted` above 1 is what
the extra passes do not explain: steps of small tensors, data, optimiser.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from cl2r.batches import Batch
from cl2r.config.layers import override, read_layer, resolve
from cl2r.config.methods import METHODS
from cl2r.engine.plan import plan_run
from cl2r.methods.base import Stage
from cl2r.study.dry_run import DryChain, epoch_shape

STEPS, BASELINE = 4, "er"


@dataclass
class Timed:
    """A stage that can be stepped."""

    chain: DryChain
    stage: Stage
    batches: Iterator[Batch]
    steps: int  # per task
    flops: float  # per task

    def seconds(self, clock: Callable[[], float]) -> float:
        """Return the seconds per task at the speed of the next few steps."""
        method = self.chain.method
        optimiser = self.chain.loop.optimiser(method, self.stage)
        batches = itertools.islice(self.batches, STEPS)
        began = clock()
        self.chain.loop.epoch(method, method.network, self.stage, optimiser, 0, batches)
        return self.steps * (clock() - began) / STEPS


def stages_of(name: str, preset: str) -> list[Timed]:
    """All stages of task 2."""
    plan = plan_run(resolve([read_layer(preset), override(f"method.name={name}"), override("optim.lr=0")]))
    chain = DryChain(plan, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    chain.begin()
    chain.method.end_task()
    data = chain.begin()
    timed = []
    for number, stage in enumerate(chain.stages()):
        epoch = epoch_shape(plan, stage, data)
        steps = epoch.steps * stage.epochs
        flops = steps * epoch.batch * chain.row_flops(number, stage)
        timed.append(Timed(chain, stage, _batches(chain, number, stage), steps, flops))
    return timed


def _batches(chain: DryChain, number: int, stage: Stage) -> Iterator[Batch]:
    """Epoch after epoch."""
    rows = stage.rows or (chain.data.new, chain.data.memory)
    for epoch in itertools.count():
        yield from chain.loop.batches(2, *rows, number, epoch, stage.batching)


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="icons")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    alone = args.threads == 1 and not torch.cuda.is_available()
    clock = time.process_time if alone else time.perf_counter
    methods = {name: stages_of(name, args.preset) for name in dict.fromkeys([BASELINE, *args.methods])}
    for stages in methods.values():
        for timed in stages:
            timed.seconds(clock)  # warm-up
    ratios: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(args.rounds):
        seconds = {name: sum(timed.seconds(clock) for timed in stages) for name, stages in methods.items()}
        for name in methods:
            ratios[name].append(seconds[name] / seconds[BASELINE])
    base = sum(timed.flops for timed in methods[BASELINE])
    print("| method | stages (steps a task) | time × ER | quartiles | FLOPs × ER | measured / counted |")
    print("|---|---|---|---|---|---|")
    for name, stages in methods.items():
        ratio, counted = statistics.median(ratios[name]), sum(timed.flops for timed in stages) / base
        low, _, high = statistics.quantiles(ratios[name], n=4) if args.rounds > 1 else (ratio,) * 3
        steps = ", ".join(f"{timed.stage.name} {timed.steps}" for timed in stages)
        print(f"| {name} | {steps} | {ratio:.2f} | {low:.2f}–{high:.2f} | {counted:.2f} | {ratio / counted:.2f} |")


if __name__ == "__main__":
    main()
