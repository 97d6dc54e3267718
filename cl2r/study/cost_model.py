"""How long a step takes when several workers share it, fitted to measured steps or assumed of a GPU.

    t(W) = max(F/(W·r), floor) + fixed + A(W),    A(1) = 0,    A(W) = 2(W−1)·α + 2(W−1)/W · G/β

F are the FLOPs of the global batch and r those of a worker a second; A is a ring all-reduce of G bytes of gradients:
2(W−1) messages of G/W bytes, each after a latency α, at a bandwidth β. Messages are added to the computation, though
DDP sends the first gradients while the last are being computed: where that hides much, A is an upper bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from cl2r.errors import InputError

CONSTANTS = 4
NODE = 8
"""Workers of one node, where nothing else is said."""


@dataclass(frozen=True)
class Ring:
    """An all-reduce: α and 1/β of every message."""

    latency_seconds: float
    seconds_per_byte: float

    def seconds(self, world: int, size: float, times: int = 1) -> float:
        """A(W) of `times` all-reduces that bring `size` bytes in all."""
        messages, share = ring_terms(world, size)
        return times * messages * self.latency_seconds + share * self.seconds_per_byte

    def described(self) -> str:
        """Its constants, e.g. `3 µs a message, 200 GB/s`."""
        delay = self.latency_seconds
        latency = f"{1e3 * delay:.2g} ms" if delay >= 1e-4 else f"{1e6 * delay:.2g} µs"
        if not self.seconds_per_byte:
            return f"{latency} a message, whatever its size"
        return f"{latency} a message, {1e-9 / self.seconds_per_byte:.3g} GB/s"


def ring_terms(world: int, size: float) -> tuple[int, float]:
    """Messages that follow one another, and the bytes that each worker sends."""
    return 2 * (world - 1), 2 * (world - 1) / world * size


GLOO = Ring(2.6e-4, 1 / 1.13e9)
"""Between CPU processes of one machine: the fit of `studies/scaling.py` to two of them on 2 cores."""


@dataclass(frozen=True)
class StepModel:
    """t(W) by its constants. Where a group spans nodes of `node_workers`, the slowest way, `between`, sets the pace."""

    seconds_per_flop: float
    fixed_seconds: float
    ring: Ring
    floor_seconds: float = 0.0
    """What the computation of a step takes at least."""
    between: Ring | None = None
    node_workers: int = NODE

    def seconds(
        self, world: int, flops: float, gradient_bytes: float, steps: int = 1, alone_flops: float = 0.0
    ) -> float:
        """Of `steps` steps with these FLOPs and bytes in all; `alone_flops` are not shared: others wait meanwhile."""
        computed = max((flops / world + alone_flops) * self.seconds_per_flop, steps * self.floor_seconds)
        return computed + steps * self.fixed_seconds + self.ring_of(world).seconds(world, gradient_bytes, steps)

    def ring_of(self, world: int) -> Ring:
        """Which way gradients go."""
        return self.between if self.between is not None and world > self.node_workers else self.ring


# ---------------------------------------------------------------- fitted


@dataclass(frozen=True)
class Sample:
    """A measured step, or an all-reduce alone (`step` is false)."""

    name: str
    flops: float
    """Of one worker."""
    world: int
    """Workers that average their gradients; 1 for a step that averages none."""
    gradient_bytes: float
    seconds: float
    step: bool = True

    @property
    def terms(self) -> tuple[float, ...]:
        """What seconds a FLOP, fixed seconds, α and 1/β are multiplied by."""
        return (self.flops, float(self.step), *ring_terms(self.world, self.gradient_bytes))


@dataclass(frozen=True)
class Fit:
    """A model, and how far it is from what it was fitted to."""

    model: StepModel
    samples: tuple[Sample, ...]

    def fitted(self, sample: Sample) -> float:
        """Seconds by the model."""
        model = self.model
        constants = (
            model.seconds_per_flop,
            model.fixed_seconds,
            model.ring.latency_seconds,
            model.ring.seconds_per_byte,
        )
        return float(np.dot(sample.terms, constants))

    @property
    def residuals(self) -> npt.NDArray[np.float64]:
        """(fitted − measured) / measured, of every sample."""
        return np.array([self.fitted(sample) / sample.seconds - 1 for sample in self.samples])


def fit(samples: Sequence[Sample]) -> Fit:
    """The constants, none negative, with the least squares of relative residuals."""
    if any(sample.seconds <= 0 for sample in samples):
        raise InputError("a step that took no time fits no model")
    terms = np.array([sample.terms for sample in samples], np.float64).reshape(len(samples), CONSTANTS)
    seconds = np.array([sample.seconds for sample in samples], np.float64)
    relative = terms / seconds[:, None]
    scale = np.linalg.norm(relative, axis=0)
    scaled = relative / np.where(scale > 0, scale, 1)  # FLOPs are 10⁹ times the messages
    rank = int(np.linalg.matrix_rank(scaled, tol=1e-6)) if len(samples) else 0
    if rank < CONSTANTS:
        raise InputError(
            f"{len(samples)} samples tell {rank} of the {CONSTANTS} constants of a step: measure several numbers of "
            "workers, rows a worker and sizes of an all-reduce"
        )
    found = nnls(scaled, np.ones(len(samples)))[0] / scale
    rate, fixed, latency, inverse = map(float, found)
    return Fit(StepModel(rate, fixed, Ring(latency, inverse)), tuple(samples))


# ---------------------------------------------------------------- predicted


@dataclass(frozen=True)
class Prediction:
    """A step by a model."""

    workers: int
    rows: float
    """Of a worker."""
    seconds: float
    communication: float
    """Share of the step."""
    images_per_second: float
    speed_up: float
    """Images a second, relative to one worker with its batch."""
    efficiency: float


def predict(
    model: StepModel, row_flops: float, gradient_bytes: float, batch: int, workers: Sequence[int], weak: bool
) -> list[Prediction]:
    """Steps of `batch` rows shared by all workers (strong scaling), or of as many rows each (weak scaling)."""
    alone = batch / model.seconds(1, batch * row_flops, gradient_bytes)
    found = []
    for world in workers:
        rows = batch * (world if weak else 1)
        seconds = model.seconds(world, rows * row_flops, gradient_bytes)
        sent, rate = model.ring_of(world).seconds(world, gradient_bytes), rows / seconds
        up = rate / alone
        found.append(Prediction(world, rows / world, seconds, sent / seconds, rate, up, up / world))
    return found


@dataclass(frozen=True)
class GpuAssumption:
    """A GPU nobody has measured here.

    A step takes as long as its FLOPs at a sustained rate, but at least as long as launching its kernels does: small
    networks on 32×32 images keep a GPU waiting. Gradients go by NVLink among the 8 GPUs of a node (300 GB/s a way by
    specification) and by the network where there are more (400 Gbit/s a node, that is 50 GB/s); a part of that is
    assumed. None of these figures is measured. The price is an eighth of a p4d.24xlarge on demand; check the price list
    before use.
    """

    name: str = "A100"
    sustained_flops: float = 10e12
    step_seconds: float = 0.008
    dollars_per_hour: float = 4.10
    nvlink: Ring = field(default=Ring(3e-6, 1 / 200e9))
    network: Ring = field(default=Ring(1e-5, 1 / 20e9))

    @property
    def model(self) -> StepModel:
        """Steps on such GPUs."""
        return StepModel(1 / self.sustained_flops, 0.0, self.nvlink, self.step_seconds, self.network)

    def assumed(self, workers: int = 1) -> str:
        """The figures behind a time of so many workers."""
        rate = f"{self.sustained_flops / 1e12:g} TFLOP/s, at least {1000 * self.step_seconds:g} ms a step"
        if workers == 1:
            return rate
        way = "NVLink" if workers <= NODE else f"a network between nodes of {NODE}"
        return f"{rate}, gradients by {way} with {self.model.ring_of(workers).described()}"
