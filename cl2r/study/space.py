"""The space of a sweep: for each config field a list of choices or a range.

Fields of the scenario, the data and the evaluation are contexts, not knobs: metrics of 2 and of 5 tasks are different
quantities, so each combination of them is searched and ranked by itself.
"""

import itertools
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


CONTEXT_SECTIONS = ("scenario", "data", "eval")


def is_context(name: str) -> bool:
    """Return whether results with different values of this field cannot be ranked in one list."""
    return name.partition(".")[0] in CONTEXT_SECTIONS


def knobs(space: Space) -> Space:
    """Return the part of the space that a search chooses from."""
    return {name: entry for name, entry in space.items() if not is_context(name)}


def contexts(space: Space) -> list[dict[str, Any]]:
    """Return the combinations of context fields, each searched by itself; one empty context if there are none."""
    fields = {name: entry for name, entry in space.items() if is_context(name) and isinstance(entry, list)}
    return [dict(zip(fields, values, strict=True)) for values in itertools.product(*fields.values())]


def context_title(context: dict[str, Any]) -> str:
    """Return a context in a few words, e.g. `T=5`; empty for the empty context."""
    names = {"scenario.n_tasks": "T"}
    return " ".join(f"{names.get(name) or name.partition('.')[2]}={value}" for name, value in context.items())


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return the space as Optuna distributions."""
    found: dict[str, BaseDistribution] = {}
    for name, entry in space.items():
        if isinstance(entry, list):
            found[name] = CategoricalDistribution(entry)
        elif isinstance(entry.low, int) and isinstance(entry.high, int):
            found[name] = IntDistribution(entry.low, entry.high, log=entry.log)
        else:
            found[name] = FloatDistribution(entry.low, entry.high, log=entry.log)
    return found


def corner_values(entry: Range | list[Scalar]) -> list[Any]:
    """Return the values that decide whether every value is valid: all choices, or both ends of a range."""
    return entry if isinstance(entry, list) else [entry.low, entry.high]


def random_points(space: Space, count: int, seed: int) -> list[dict[str, Any]]:
    """Return points of a random search, to estimate beforehand what a search may cost."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return [study.ask(distributions(space)).params for _ in range(count)]
