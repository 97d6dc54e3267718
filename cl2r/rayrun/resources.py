"""What a run may use of the cluster. None of it is part of what a study is: it may change between two commands."""

from dataclasses import dataclass
from typing import Literal

import torch

from cl2r.errors import InputError


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
            wanted[f"accelerator_type:{self.accelerator}"] = 0.001
        return wanted

    def per_trial(self) -> dict[str, float]:
        """What Ray Tune reserves: the worker itself, or, for several, a driver on the head that takes no CPU.

        Ray Train reserves its workers on its own; a driver that held a CPU could starve them.
        """
        return self.per_worker() if self.workers == 1 else {"node:__internal_head__": 0.001}

    def fit_into(self, cluster: dict[str, float]) -> int:
        """How many trials fit side by side."""
        needs = {name: amount * self.workers for name, amount in self.per_worker().items() if name in ("CPU", "GPU")}
        return int(min(cluster.get(name, 0) // amount for name, amount in needs.items()))
