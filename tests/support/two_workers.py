"""Run a function in two processes joined by gloo, and split batches between them."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from cl2r.batches import Batch, Counts
from cl2r.engine.workers import Workers

WORLD = 2


def spawned(work: Callable[[Workers, Any], Any], argument: Any) -> list[Any]:
    """Return what `work` returns in each of the two processes."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_join, (work, argument, folder), nprocs=WORLD)  # type: ignore[no-untyped-call]
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(WORLD)]


def part(batch: Batch, workers: Workers) -> Batch:
    """Return this worker's part of a global batch."""
    mine, total = slice(workers.rank, None, workers.world), len(batch.y)
    local = Batch.of_one_worker(batch.x[mine], batch.y[mine], positions(batch, mine))
    counts: Counts = {kind: (local.counts[kind][0], batch.counts[kind][1]) for kind in batch.counts}
    return replace(local, counts=counts, world=workers.world, gather=partial(workers.gather, total=total))


def positions(batch: Batch, rows: slice) -> list[int]:
    """Return the positions of memory rows among some rows of a batch."""
    in_memory = torch.zeros(len(batch.y), dtype=torch.bool)
    in_memory[batch.memory] = True
    found: list[int] = in_memory[rows].nonzero()[:, 0].tolist()
    return found


def _join(rank: int, work: Callable[[Workers, Any], Any], argument: Any, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    try:
        torch.save(work(Workers(rank, WORLD), argument), f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()
    os._exit(0)  # gloo's threads sometimes abort a process whose interpreter ends
