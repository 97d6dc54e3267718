"""Run a function on two processes joined by gloo."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from cl2r.engine.workers import Workers

WORLD = 2


def spawned(work: Callable[[Workers, Any], Any], argument: Any) -> list[Any]:
    """What `work` returns on each of the two."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_join, (work, argument, folder), nprocs=WORLD)  # type: ignore[no-untyped-call]
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(WORLD)]


def _join(rank: int, work: Callable[[Workers, Any], Any], argument: Any, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    try:
        torch.save(work(Workers(rank, WORLD), argument), f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()
