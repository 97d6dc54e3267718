"""How long a step takes when several workers share it: fitted to measured steps, or assumed for a GPU.

    t(W) = max(F/(W·r), floor) + fixed + A(W),    A(1) = 0,    A(W) = 2(W−1)·α + 2(W−1)/W · G/β

F are the FLOPs of the global batch and r the FLOP/s of one worker; A is a ring all-reduce of G bytes of gradients:
2(W−1) messages of G/W bytes, each with a latency α, at a bandwidth β. Messages are added to the computation, although
DDP sends the first gradients while the last are being computed: if that hides much, A is an upper bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from cl2r.errors import InputError
from cl2r.study.cost import GpuAssumption

CONSTANTS = 4
NODE = 8  # workers per node


@dataclass(frozen=True)
class AllReduceCost:
    """A ring all-reduce: latency α and 1/β of every message."""

    latency_seconds: float
    seconds_per_byte: float

    def seconds(self, world: int, size: float) -> float:
        """Return A(W) of one all-reduce of `size` bytes."""
        messages, sent = 2 * (world - 1), 2 * (world - 1) / world * size
        return messages * self.latency_seconds + sent * self.seconds_per_byte

    def __str__(self) -> str:
        delay = self.latency_seconds
        latency = f"{1e3 * delay:.2g} ms" if delay >= 1e-4 else f"{1e6 * delay:.2g} µs"
        if not self.seconds_per_byte:
            return f"{latency} per message, whatever its size"
        return f"{latency} per message, {1e-9 / self.seconds_per_byte:.3g} GB/s"


UNIT_RINGS = (AllReduceCost(1, 0), AllReduceCost(0, 1))  # their seconds are the factors of α and of 1/β


@dataclass(frozen=True)
class StepModel:
    """t(W) by its constants. If a group is larger than a node, the slower link, `between`, sets the pace."""

    seconds_per_flop: float
    fixed_seconds: float
    ring: AllReduceCost
    floor_seconds: float = 0.0  # lower bound of the computation of a step
    between: AllReduceCost | None = None

    def seconds(self, world: int, flops: float, gradient_bytes: float) -> float:
        """Return the seconds of a step of a global batch with these FLOPs."""
        computed = max(flops / world * self.seconds_per_flop, self.floor_seconds)
        return computed + self.fixed_seconds + self.ring_of(world).seconds(world, gradient_bytes)

    def ring_of(self, world: int) -> AllReduceCost:
        """Return the all-reduce that a group of this size uses."""
        return self.between if self.between is not None and world > NODE else self.ring


@dataclass(frozen=True)
class Sample:
    """A measured step, or an all-reduce by itself (no FLOPs)."""

    name: str
    flops: float  # FLOPs of one worker
    world: int  # workers that average their gradients; 1 for a step that averages none
    gradient_bytes: float
    seconds: float


def fit(samples: Sequence[Sample]) -> tuple[StepModel, pd.DataFrame]:
    """Return the non-negative constants with the least squares of relative residuals, and one row per sample.

    A row has the `sample`, its seconds as `measured` and as `fitted`, and the relative `residual`.
    """
    if any(sample.seconds <= 0 for sample in samples):
        raise InputError("a step took no time: measure more steps")
    # the factors of seconds per FLOP, fixed seconds, α and 1/β
    rows = [(s.flops, s.flops > 0, *(ring.seconds(s.world, s.gradient_bytes) for ring in UNIT_RINGS)) for s in samples]
    terms = np.array(rows, np.float64).reshape(len(samples), CONSTANTS)
    data = pd.DataFrame([(one.name, one.seconds) for one in samples], columns=["sample", "measured"])
    relative = terms / data["measured"].to_numpy(np.float64)[:, None]
    scale = np.linalg.norm(relative, axis=0)
    scaled = relative / np.where(scale > 0, scale, 1)  # FLOPs are 10⁹ times the messages
    rank = int(np.linalg.matrix_rank(scaled, tol=1e-6)) if len(samples) else 0
    if rank < CONSTANTS:
        raise InputError(
            f"{len(samples)} samples determine {rank} of the {CONSTANTS} constants of a step: measure several "
            "numbers of workers, rows per worker and sizes of an all-reduce"
        )
    constants = nnls(scaled, np.ones(len(samples)))[0] / scale
    data["fitted"] = terms @ constants
    data["residual"] = data["fitted"] / data["measured"] - 1
    rate, fixed, latency, inverse = map(float, constants)
    return StepModel(rate, fixed, AllReduceCost(latency, inverse)), data


def speeds(steps: Sequence[tuple[int, int, float, float]]) -> list[dict[str, float]]:
    """Return one row per step: (workers, rows of all of them, seconds, share of communication).

    `rows` are those of one worker; speed-up and efficiency are relative to the first step.
    """
    first, batch, seconds, _ = steps[0]
    first_rate = batch / seconds
    return [
        {
            "workers": workers,
            "rows": batch / workers,
            "seconds": seconds,
            "images_per_second": batch / seconds,
            "speed_up": batch / seconds / first_rate,
            "efficiency": batch / seconds / first_rate * first / workers,
            "communication": communication,
        }
        for workers, batch, seconds, communication in steps
    ]


def predict(
    model: StepModel, row_flops: float, gradient_bytes: float, batch: int, workers: Sequence[int], weak: bool
) -> list[dict[str, float]]:
    """Return the speeds of steps of `batch` rows for all workers (strong scaling) or for each (weak scaling)."""
    steps = []
    for world in workers:
        rows = batch * (world if weak else 1)
        seconds = model.seconds(world, rows * row_flops, gradient_bytes)
        steps.append((world, rows, seconds, model.ring_of(world).seconds(world, gradient_bytes) / seconds))
    return speeds(steps)


NVLINK = AllReduceCost(3e-6, 1 / 200e9)
NETWORK = AllReduceCost(1e-5, 1 / 20e9)
"""Assumed, not measured: two thirds of NVLink's 300 GB/s each way inside a node of 8 GPUs, and 20 GB/s between nodes
whose network has 400 Gbit/s."""
GPU = GpuAssumption()
GPU_MODEL = StepModel(1 / GPU.sustained_flops, 0.0, NVLINK, GPU.step_seconds, NETWORK)
