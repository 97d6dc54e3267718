"""What a run may use of the cluster. None of it identifies a study: it may change between two commands."""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import TypeAdapter, ValidationError

from cl2r.config.keys import AcceptLinks, made_by
from cl2r.errors import InputError

if TYPE_CHECKING:
    import torch

Node = Mapping[str, float]  # amounts by Ray's names of resources
ACCELERATOR = "accelerator_type:"


@dataclass(frozen=True)
class Resources:
    """`workers` processes per run, each with some CPUs and GPUs."""

    workers: int = 1
    cpus_per_worker: int = 1
    gpus_per_worker: float = 0
    accelerator: str | None = None  # use only nodes with this one, e.g. A100
    max_concurrent: int | None = None  # trials at a time; None: as many as fit into the cluster as it is
    sync_batchnorm: bool = False
    backend: Literal["nccl", "gloo"] | None = None
    """None: NCCL between GPUs, gloo between CPUs. `gloo` with GPUs trains on CPUs, to test placement without GPUs."""
    retries: int = 2  # how often a trial that crashes without progress is resumed before it counts as failed
    accept_links: AcceptLinks = "same"
    """Reuse links trained with the same number of workers and kind of device (`same`), or any."""

    def __post_init__(self) -> None:
        for name in ("workers", "cpus_per_worker", "max_concurrent"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')} {value}: must be at least 1")
        if self.gpus_per_worker < 0 or self.retries < 0:
            raise InputError("--gpus-per-worker and --retries must not be negative")
        if self.accelerator and not self.gpus_per_worker:
            hint = "--accelerator '' takes any node"
            raise InputError(f"--accelerator {self.accelerator} needs --gpus-per-worker; {hint}")
        if self.workers > 1 and self.gpus_per_worker % 1:
            raise InputError(f"--gpus-per-worker {self.gpus_per_worker:g}: workers of one run cannot share a GPU")
        if self.sync_batchnorm and not (self.workers > 1 and self.gpus_per_worker):
            raise InputError("--sync-batchnorm needs several workers with GPUs: torch has none on the CPU")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Return resources from options of a command line; other options are ignored.

        A field whose option is None or absent is read from the environment, e.g. $CL2R_WORKERS, or has its default.
        """
        given: dict[str, Any] = {}
        sources = dict[str, str]()
        for name in (field.name for field in dataclasses.fields(cls)):
            value, sources[name] = options.get(name), f"--{name.replace('_', '-')}"
            if value is None:
                sources[name] = f"CL2R_{name.upper()}"
                value = os.environ.get(sources[name]) or None
            given |= {} if value is None else {name: value}
        try:
            return TypeAdapter(cls).validate_python(given)
        except ValidationError as error:
            first = error.errors()[0]
            if not first["loc"]:  # raised by __post_init__
                raise InputError(first["msg"].removeprefix("Value error, ")) from error
            raise InputError(f"{sources[str(first['loc'][0])]}: {first['msg']} (got {first['input']!r})") from error

    @property
    def made_by(self) -> str:
        """What makes links with these resources, see `cl2r.config.keys`."""
        return made_by(self.device_kind, self.workers, self.sync_batchnorm)

    @property
    def device_kind(self) -> str:
        """Where a worker trains: `cuda` or `cpu`."""
        return "cuda" if self.gpus_per_worker and self.backend != "gloo" else "cpu"

    def device(self) -> "torch.device":
        """Return where a worker trains: a GPU only if one was asked for, because Ray does not hide other GPUs."""
        import torch

        if self.gpus_per_worker and self.backend != "gloo":
            if not torch.cuda.is_available():
                raise InputError("--gpus-per-worker: torch sees no GPU on this node")
            return torch.device("cuda")
        return torch.device("cpu")

    def elsewhere(self) -> bool:
        """Return whether a worker needs a GPU and this machine has none."""
        import torch

        return self.gpus_per_worker > 0 and self.backend != "gloo" and not torch.cuda.is_available()

    def fit_here(self) -> int:
        """Return how many trials fit into this machine at a time."""
        import torch

        return self.fit_into({"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())})

    def per_worker(self) -> dict[str, float]:
        """Return what Ray reserves for one worker."""
        gpus = {"GPU": self.gpus_per_worker} if self.gpus_per_worker else {}
        kind = {ACCELERATOR + self.accelerator: 0.001} if self.accelerator else {}
        return {"CPU": self.cpus_per_worker, **gpus, **kind}

    def per_trial(self) -> dict[str, float]:
        """Return what Ray Tune reserves: the worker itself or, for several workers, a driver that takes no CPU.

        Ray Train reserves its workers on its own; a driver that held a CPU could starve them.
        """
        return self.per_worker() if self.workers == 1 else {"node:__internal_head__": 0.001}

    def suitable(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the nodes that have the accelerator."""
        return [node for node in nodes if not self.accelerator or ACCELERATOR + self.accelerator in node]

    def fit_into(self, *nodes: Node) -> int:
        """Return how many trials fit at a time into empty suitable nodes. A trial may span nodes, a worker may not."""
        needs = [(name, amount) for name, amount in self.per_worker().items() if name in ("CPU", "GPU")]
        # Ray counts amounts in ten-thousandths.
        fitting = (min(round(node.get(name, 0) * 1e4) // round(n * 1e4) for name, n in needs) for node in nodes)
        return sum(fitting) // self.workers

    def __str__(self) -> str:
        wanted = amounts_text(self.per_worker())
        return f"a worker of {wanted}" if self.workers == 1 else f"{self.workers} workers of {wanted} each"


def amounts_text(amounts: Node) -> str:
    """Return CPUs, GPUs and accelerators as text, e.g. `1 CPU, 1 GPU, accelerator A100`."""
    shown = [f"{amounts.get(name, 0):g} {name}" for name in ("CPU", "GPU") if name == "CPU" or amounts.get(name)]
    kinds = (name.removeprefix(ACCELERATOR) for name in sorted(amounts) if name.startswith(ACCELERATOR))
    return ", ".join([*shown, *(f"accelerator {kind}" for kind in kinds)])
