"""The space of a sweep: for each config field a list of choices or a range."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import Field, model_validator

from cl2r.section import Section

Scalar = bool | int | float | str | None


class Range(Section):
    """low ≤ x ≤ high; whole numbers where both ends are."""

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> "Range":
        if not self.low < self.high:
            raise ValueError(f"low must be below high (got {self.low} and {self.high})")
        if self.log and self.low <= 0:
            raise ValueError(f"log needs low above 0 (got {self.low})")
        return self

    @property
    def ends(self) -> list[Any]:
        """Both ends."""
        return [self.low, self.high]


Space = dict[str, Range | Annotated[list[Scalar], Field(min_length=1)]]


def distribution(entry: Range | list[Scalar]) -> BaseDistribution:
    """The entry in Optuna's words."""
    if isinstance(entry, list):
        return CategoricalDistribution(entry)
    if isinstance(entry.low, int) and isinstance(entry.high, int):
        return IntDistribution(entry.low, entry.high, log=entry.log)
    return FloatDistribution(entry.low, entry.high, log=entry.log)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The whole space in Optuna's words."""
    return {name: distribution(entry) for name, entry in space.items()}


def corner_values(entry: Range | list[Scalar]) -> list[Any]:
    """The values that decide whether every value is allowed: all choices, or both ends."""
    return entry if isinstance(entry, list) else entry.ends


def check_space(space: Space, config: Callable[[Mapping[str, Any]], object]) -> None:
    """Refuse a field whose ends or choices the config would refuse; `config` raises InputError."""
    for name, entry in space.items():
        for value in [*corner_values(entry), *_between(entry)]:
            config({name: value})


def _between(entry: Range | list[Scalar]) -> list[float]:
    """A broken number inside a range of such: a field of whole numbers takes 1.0 and 4.0, but not what lies between."""
    if isinstance(entry, list) or isinstance(distribution(entry), IntDistribution):
        return []
    return [entry.low + (entry.high - entry.low) / math.e]


def random_points(space: Space, count: int, seed: int) -> list[dict[str, Any]]:
    """Points that a random search would try, to say beforehand what a search may cost."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return [study.ask(distributions(space)).params for _ in range(count)]
