"""The space of a sweep: for each config field a list of choices or a range."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import Field, model_validator

from cl2r.config.section import Section

Scalar = bool | int | float | str | None


class Range(Section):
    """low ≤ x ≤ high; integers if both ends are integers."""

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


Space = dict[str, Range | Annotated[list[Scalar], Field(min_length=1)]]


def distribution(entry: Range | list[Scalar]) -> BaseDistribution:
    """Return the entry as an Optuna distribution."""
    if isinstance(entry, list):
        return CategoricalDistribution(entry)
    if isinstance(entry.low, int) and isinstance(entry.high, int):
        return IntDistribution(entry.low, entry.high, log=entry.log)
    return FloatDistribution(entry.low, entry.high, log=entry.log)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return the space as Optuna distributions."""
    return {name: distribution(entry) for name, entry in space.items()}


def corner_values(entry: Range | list[Scalar]) -> list[Any]:
    """Return the values that decide whether every value is valid: all choices, or both ends of a range."""
    return entry if isinstance(entry, list) else [entry.low, entry.high]


def check_space(space: Space, config: Callable[[Mapping[str, Any]], object]) -> None:
    """Build a config at every end and choice; `config` raises InputError for an invalid value."""
    for name, entry in space.items():
        values = list(corner_values(entry))
        if isinstance(entry, Range) and isinstance(distribution(entry), FloatDistribution):
            # An integer field accepts 1.0 and 4.0, but not the fractions between them.
            values.append(entry.low + (entry.high - entry.low) / math.e)
        for value in values:
            config({name: value})


def random_points(space: Space, count: int, seed: int) -> list[dict[str, Any]]:
    """Return points of a random search, to estimate beforehand what a search may cost."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return [study.ask(distributions(space)).params for _ in range(count)]
