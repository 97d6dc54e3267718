"""Measurements taken in turns, so that a slow moment of the machine hits all alike, and what is read off them."""

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")
RATE = "/s"
"""How units end of which more is better; of all others (seconds, bytes) less is."""


class DisagreementError(RuntimeError):
    """Reference and engine do not compute the same: their times must not be compared."""


@dataclass(frozen=True)
class Measured:
    """A row of the table. `ratio` is how many times better the engine is, by the median of the rounds' ratios.

    It is NaN where a sample is not above zero.
    """

    part: str
    what: str
    unit: str
    reference: float
    """Median, as `engine`."""
    engine: float
    ratio: float
    low: float | None
    """First quartile of the rounds' ratios; None of a single round."""
    high: float | None
    repeats: int
    note: str
    reference_samples: tuple[float, ...]
    engine_samples: tuple[float, ...]


def interleaved(
    variants: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 1
) -> dict[str, tuple[float, ...]]:
    """What each variant says in each round, after some calls that do not count. Every other round runs backwards."""
    for _ in range(warm_up):
        for measure in variants.values():
            measure()
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds):
        for name in reversed(samples) if number % 2 else list(samples):
            samples[name].append(variants[name]())
    return {name: tuple(values) for name, values in samples.items()}


def compared(
    part: str, what: str, unit: str, reference: Sequence[float], engine: Sequence[float], note: str = ""
) -> Measured:
    """A row from the samples of the same rounds."""
    pairs = list(zip(reference, engine, strict=True))
    ratios = [math.nan]
    if min(map(min, pairs)) > 0:  # overheads may vanish
        ratios = [plain / own if better_with_less(unit) else own / plain for plain, own in pairs]
    low, high = quartiles(ratios)
    theirs, ours, ratio = (statistics.median(values) for values in (reference, engine, ratios))
    samples = tuple(reference), tuple(engine)
    return Measured(part, what, unit, theirs, ours, ratio, low, high, len(pairs), note, *samples)


def better_with_less(unit: str) -> bool:
    """Whether the figures of a unit are costs."""
    return not unit.endswith(RATE)


def quartiles(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The first and the third; none of a single value."""
    if len(values) < 2:
        return None, None
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What a piece of work gives, and the seconds it takes."""
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


def seconds(work: Callable[[], object]) -> float:
    """How long a piece of work takes."""
    return timed(work)[1]


def say(line: str) -> None:
    """Progress; the table alone goes to stdout."""
    print(line, file=sys.stderr, flush=True)
