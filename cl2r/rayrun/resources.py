"""What a run may use of the cluster. None of it is part of what a study is: it may change between two commands."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from cl2r.errors import InputError

Node = Mapping[str, float]
"""Amounts by Ray's names of resources."""
ACCELERATOR = "accelerator_type:"


@dataclass(frozen=True)
class Resources:
    """`workers` processes a run, each with so many CPUs and GPUs."""

    workers: int = 1
    cpus_per_worker: int = 1
    gpus_per_worker: float = 0
    accelerator: str | None = None
    """Only nodes with this accelerator, e.g. A100."""
    max_concurrent: int | None = None
    """Trials side by side; None: as many as fit into the cluster as it is."""
    sync_batchnorm: bool = False
    backend: Literal["nccl", "gloo"] | None = None
    """None: NCCL between GPUs, gloo between CPUs. `gloo` with GPUs trains on CPUs: to try placement without any."""
    retries: int = 2
    """How often a trial whose process died goes on from its last epoch before it counts as failed."""

    def __post_init__(self) -> None:
        for name in ("workers", "cpus_per_worker", "max_concurrent"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')} {value}: must be at least 1")
        if self.gpus_per_worker < 0 or self.retries < 0:
            raise InputError("--gpus-per-worker and --retries must not be negative")
        if self.accelerator and not self.gpus_per_worker:
            raise InputError(f"--accelerator {self.accelerator} needs --gpus-per-worker")
        if self.workers > 1 and self.gpus_per_worker % 1:
            raise InputError(f"--gpus-per-worker {self.gpus_per_worker:g}: workers of one run cannot share a GPU")
        if self.sync_batchnorm and not (self.workers > 1 and self.gpus_per_worker):
            raise InputError("--sync-batchnorm needs several workers with GPUs: torch has none on the CPU")

    def device(self) -> torch.device:
        """Where a worker trains. A GPU only if one was asked for: Ray does not hide those of others."""
        if self.gpus_per_worker and self.backend != "gloo":
            if not torch.cuda.is_available():
                raise InputError("--gpus-per-worker: torch sees no GPU on this node")
            return torch.device("cuda")
        return torch.device("cpu")

    def per_worker(self) -> dict[str, float]:
        """What Ray reserves for one worker."""
        wanted: dict[str, float] = {"CPU": self.cpus_per_worker}
        if self.gpus_per_worker:
            wanted["GPU"] = self.gpus_per_worker
        if self.accelerator:
            wanted[ACCELERATOR + self.accelerator] = 0.001
        return wanted

    def per_trial(self) -> dict[str, float]:
        """What Ray Tune reserves: the worker itself, or, for several, a driver on the head that takes no CPU.

        Ray Train reserves its workers on its own; a driver that held a CPU could starve them.
        """
        return self.per_worker() if self.workers == 1 else {"node:__internal_head__": 0.001}

    def suitable(self, nodes: Iterable[Node]) -> list[Node]:
        """Those of `nodes` that have the accelerator."""
        return [node for node in nodes if not self.accelerator or ACCELERATOR + self.accelerator in node]

    def fit_into(self, *nodes: Node) -> int:
        """How many trials fit side by side into empty suitable nodes. A trial may span nodes, a worker may not."""
        return sum(map(self._worker_places, nodes)) // self.workers

    def _worker_places(self, node: Node) -> int:
        """Amounts are counted as Ray counts them, in ten-thousandths."""
        needs = {name: amount for name, amount in self.per_worker().items() if name in ("CPU", "GPU")}
        return min(round(node.get(name, 0) * 1e4) // round(amount * 1e4) for name, amount in needs.items())

    def described(self) -> str:
        """A trial's wishes, e.g. `2 workers of 1 CPU, 1 GPU, accelerator A100 each`."""
        wishes = described(self.per_worker())
        return f"a worker of {wishes}" if self.workers == 1 else f"{self.workers} workers of {wishes} each"

    def loader_note(self, loaders: int) -> str | None:
        """What to say of decoding processes that have no CPU of their own."""
        if self.cpus_per_worker >= 1 + loaders:
            return None
        return (
            f"note: data.loaders={loaders} are processes beside the one that trains, and --cpus-per-worker is "
            f"{self.cpus_per_worker}: {1 + loaders} would give each a CPU"
        )


def described(amounts: Node) -> str:
    """CPUs, GPUs and accelerators among Ray's names of resources."""
    shown = [f"{amounts.get(name, 0):g} {name}" for name in ("CPU", "GPU") if name == "CPU" or amounts.get(name)]
    kinds = (name.removeprefix(ACCELERATOR) for name in sorted(amounts) if name.startswith(ACCELERATOR))
    return ", ".join([*shown, *(f"accelerator {kind}" for kind in kinds)])
