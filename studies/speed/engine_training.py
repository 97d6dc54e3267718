"""cl2r's training step, as its one loop makes it."""

import itertools
from collections.abc import Iterator

import torch

from cl2r.config import Config
from cl2r.engine.plan import plan_run
from cl2r.methods.base import Batch
from cl2r.study.dry_run import DryChain

CPU = torch.device("cpu")


def begun(config: Config, task: int) -> DryChain:
    """An untrained chain at the beginning of a task."""
    chain = DryChain(plan_run(config), CPU)
    chain.begin()
    for _ in range(task - 1):
        chain.method.end_task()
        chain.begin()
    return chain


def epochs(chain: DryChain) -> Iterator[Batch]:
    """The batches of a task, epoch after epoch."""
    for epoch in itertools.count():
        yield from chain.loop.batches(chain.task, chain.data.new, chain.data.memory, 0, epoch)


class EngineTraining:
    """Task 2 of a config, or the only stage of the task that a chain has begun."""

    def __init__(self, given: Config | DryChain) -> None:
        self.chain = given if isinstance(given, DryChain) else begun(given, task=2)
        (self.stage,) = self.chain.stages()
        self.network = self.chain.loop.network(self.chain.method)
        self.optimiser = self.chain.loop.optimiser(self.chain.method, self.stage)
        self.batches = epochs(self.chain)

    def steps(self, count: int) -> None:
        """On the next batches."""
        some = itertools.islice(self.batches, count)
        self.chain.loop.epoch(self.chain.method, self.network, self.stage, self.optimiser, 0, some)
