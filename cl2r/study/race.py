"""A race of methods: who takes part, what each method may choose, and who reaches the next round.

A race has three rounds, each with fewer candidates and longer training than the one before: `screening` (every method
with its default settings), `tuning` (the best methods at several points of their own spaces) and `final` (the best
candidates, whole training, several seeds). Candidates are judged on tuning pairs; report pairs decide nothing here.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, TypeAdapter, model_validator

from cl2r.config.methods import ADAPTERS, METHODS, method_info, split_name
from cl2r.config.schema import Config, fields
from cl2r.config.section import Section
from cl2r.errors import InputError
from cl2r.study.constraints import Constraint
from cl2r.study.space import Range, Space

Size = TypeVar("Size")
RoundName = Literal["screening", "tuning", "final"]
SCREENING: RoundName = "screening"
TUNING: RoundName = "tuning"
FINAL: RoundName = "final"
REFERENCES = ("er", "cl2r")
"""Methods that take part in every round with their default settings."""
SHARES: dict[RoundName, float] = {SCREENING: 1 / 3, TUNING: 1 / 2, FINAL: 1.0}  # of the epochs
LEAST_EPOCHS: dict[RoundName, int] = {SCREENING: 2, TUNING: 3, FINAL: 4}  # runs of two rounds must never be equal
SCREENING_TASKS = 3
LEAST_TUNED = 3
POINTS = (1, 12)  # fewest and most points of each tuned method, its default settings among them
FINALISTS = (1, 4)  # fewest and most, besides the references
MORE_SEEDS = 2  # at most, after those of the specification, if time is left
MORE_MEMORY = 4  # times the preset's memory, if the stored bytes are constrained


class RaceSpec(Section):
    """How much time a race has and who takes part."""

    hours: Annotated[float, Field(gt=0)] = 2.0
    """All commands on the study share them."""
    methods: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """None: all that do not keep all data and whose features do not grow. ER and CL²R always take part."""
    adapters: tuple[str, ...] = tuple(ADAPTERS)
    """Tried on the best rehearsal candidates; they train nothing."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name in self.methods or ():
            try:
                _, adapter = split_name(name)
            except InputError as error:
                raise ValueError(str(error)) from error
            if adapter != "none":
                raise ValueError(f"race.methods: {name}: give the method here and {adapter} in race.adapters")
        for name in self.adapters:
            if name not in ADAPTERS:
                raise ValueError(f"race.adapters: no adapter {name!r}; there are {', '.join(ADAPTERS)}")
        return self

    def entrants(self, constraints: Iterable[Constraint] = ()) -> list[str]:
        """Return the methods of the first round: the references, those of constraints, and the others."""
        needed = (one.reference for one in constraints if one.reference)
        return list(dict.fromkeys([*REFERENCES, *needed, *contenders(self.methods)]))


def contenders(methods: Iterable[str] | None) -> list[str]:
    """Return who can be tuned and recommended, from `race.methods`; others of a race only bound a constraint."""
    if methods is None:
        methods = (info.name for info in METHODS.values() if info.memory == "quota" and not info.grows)
    return list(dict.fromkeys([*REFERENCES, *methods]))


_WEIGHT, _TEMPERATURE = Range(low=0.1, high=10.0, log=True), Range(low=1.0, high=4.0)
OWN_KNOBS: dict[str, Space] = {
    "lwf": {"lwf.weight": _WEIGHT, "lwf.temperature": _TEMPERATURE},
    "lucir": {"lucir.margin_weight": _WEIGHT, "lucir.margin": Range(low=0.1, high=1.0)},
    "bic": {"bic.temperature": _TEMPERATURE},
    "podnet": {"podnet.spatial": Range(low=0.3, high=30.0, log=True), "podnet.flat": _WEIGHT},
    "wa": {"wa.temperature": _TEMPERATURE},
    "foster": {"foster.weight": _WEIGHT, "foster.temperature": _TEMPERATURE},
    "fan": {"fan.alpha": Range(low=1.0, high=1000.0, log=True)},
    "bct": {"bct.weight": _WEIGHT, "bct.new_classes": ["ignore", "synth"]},
    "der_trunc": {"der_trunc.auxiliary": _WEIGHT},
    "hoc": {"hoc.weight": Range(low=0.02, high=0.5, log=True), "hoc.mu": Range(low=1.0, high=30.0, log=True)},
}
"""What a race chooses of the sections that only one family has, by section."""


def knobs_of(method: str) -> list[str]:
    """Return the fields that a race may choose of a method: those of its own, never of another."""
    info, names = method_info(method), list[str]()
    names += ["method.lambda_base"] if info.defaults["method.fd"] != "none" else []
    names += ["memory.per_class"] if info.memory == "quota" else []
    names += ["head.centre"] if info.family == "rehearsal" else []
    return [*names, *OWN_KNOBS.get(info.section, {})]


def space_of(config: Config, fixed: Collection[str] = (), more_memory: bool = False) -> Space:
    """Return what a race may choose of the method of `config`, which has the method's default settings.

    Fields in `fixed` are left alone: the user has set them. Memory goes up to what `config` has, because the largest
    one would win only by storing more; with `more_memory`, which needs a constraint, up to four times as much. A
    range always includes the default; a weight that is 0 is a term that is switched off, and is not searched.
    """
    memory, values, space = config.memory.per_class, fields(config), Space()
    most = memory * (MORE_MEMORY if more_memory else 1)
    common: Space = {"method.lambda_base": Range(low=0.1, high=100.0, log=True), "head.centre": [False, True]}
    if most > 1:
        common["memory.per_class"] = Range(low=max(1, memory // 4), high=most, log=True)
    choices = common | OWN_KNOBS.get(method_info(config.method.name).section, {})
    for name in knobs_of(config.method.name):
        if name in fixed or name not in choices:
            continue
        entry = choices[name]
        if isinstance(entry, Range):
            default = values[name]
            if default <= 0:
                continue
            entry = Range(low=min(entry.low, default), high=max(entry.high, default), log=entry.log)
        space[name] = entry
    return space


def round_settings(config: Config, name: RoundName, tasks: int) -> dict[str, Any]:
    """Return the fields that a round sets in `config`: epochs, milestones at the same share of them, tasks.

    `tasks` is how many the whole chain has. Raise InputError if there are too few epochs for three different rounds.
    """
    whole = config.optim.epochs
    if whole < LEAST_EPOCHS[FINAL]:
        raise InputError(f"optim.epochs={whole}: a race needs at least {LEAST_EPOCHS[FINAL]}")
    if name == FINAL:
        return {}
    epochs = max(LEAST_EPOCHS[name], round(whole * SHARES[name]))
    places = {round(milestone * epochs / whole) for milestone in config.optim.milestones}
    settings: dict[str, Any] = {"optim.epochs": epochs}
    settings["optim.milestones"] = sorted(place for place in places if 0 < place < epochs)
    if name == SCREENING and tasks > SCREENING_TASKS:
        settings["scenario.stop_after"] = SCREENING_TASKS
    return settings


@dataclass(frozen=True)
class Candidate:
    """A method, perhaps with an adapter, and its own settings; without any it has its defaults."""

    number: int
    method: str
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """The fields that the candidate sets."""
        return {"method.name": self.method, **self.values}


@dataclass(frozen=True)
class Round:
    """What was decided when a round began; one event of the ledger."""

    name: RoundName
    candidates: tuple[Candidate, ...]
    """Those that are known at its beginning; Optuna and the adapters add others to `tuning`."""
    seeds: tuple[int, ...]
    tuned: tuple[str, ...] = ()
    points: int = 1
    """Points of each tuned method, its default settings among them."""
    seconds: float = 0.0
    """Predicted."""
    reserve: float = 0.0
    """Seconds that the rest of the race needs at least: with less time left no further point is chosen."""
    why: str = ""

    @classmethod
    def from_event(cls, content: Mapping[str, Any]) -> "Round":
        """Return the round that an event of the ledger describes."""
        return TypeAdapter(cls).validate_python(dict(content))


@dataclass(frozen=True)
class Result:
    """What a candidate reached in a round, on tuning pairs: means over seeds."""

    candidate: Candidate
    value: float
    violation: float
    """By how much the worst constraint is missed; 0 or less if all are met."""

    @property
    def feasible(self) -> bool:
        """Whether all constraints are met."""
        return self.violation <= 0


def judged(
    rows: Mapping[int, Mapping[str, float]],
    candidates: Mapping[int, Candidate],
    column: str,
    constraints: Sequence[Constraint],
) -> list[Result]:
    """Return the results of one round from the columns of its finished candidates, by number.

    A constraint relative to a method is judged against its candidate with default settings in the same round; without
    that one nothing is feasible. Candidates without a value of the objective are left out.
    """
    defaults = {candidates[number].method: row for number, row in rows.items() if not candidates[number].values}
    results = []
    for number, row in sorted(rows.items()):
        if math.isnan(row[column]):
            continue
        missed = [-math.inf]
        for one in constraints:
            reference = defaults.get(one.reference, {}).get(one.column, math.nan) if one.reference else math.nan
            missed.append(one.violation(row[one.column], reference))
        results.append(Result(candidates[number], row[column], max(missed)))
    return results


def ranking(results: Iterable[Result], maximise: bool = True) -> list[Result]:
    """Return the best first: feasible ones by value, then the others by how little they miss."""
    sign = -1.0 if maximise else 1.0

    def place(result: Result) -> tuple[bool, float, float, int]:
        missed = 0.0 if result.feasible else result.violation
        return not result.feasible, missed, sign * result.value, result.candidate.number

    return sorted(results, key=place)


def tuned_count(contenders: int) -> int:
    """Return how many methods reach the tuning round: a third of all that began, at least three."""
    return max(LEAST_TUNED, math.ceil(contenders / 3))


def tuned_methods(ranked: Sequence[Result], contenders: int) -> tuple[str, ...]:
    """Return the methods that reach the tuning round, the best first."""
    return tuple(result.candidate.method for result in ranked[: tuned_count(contenders)])


def adapter_bases(ranked: Sequence[Result]) -> list[Candidate]:
    """Return the candidates that the adapters are tried on: the best of the rehearsal family, and the best ER."""
    known = [one.candidate for one in ranked if "+" not in one.candidate.method]
    family = [one for one in known if method_info(one.method).family == "rehearsal"]
    chosen = [*family[:1], *[one for one in family if one.method == "er"][:1]]
    return list({one.number: one for one in chosen}.values())


def finalists(ranked: Sequence[Result], count: int) -> list[Candidate]:
    """Return the best candidate, perhaps with an adapter, of each of the `count` best methods."""
    best: dict[str, Candidate] = {}
    for result in ranked:
        best.setdefault(result.candidate.method.partition("+")[0], result.candidate)
    return list(best.values())[:count]


def largest(sizes: Sequence[Size], seconds: Callable[[Size], float], left: float) -> Size | None:
    """Return the largest of the ascending sizes that takes no longer than the time that is left; None if none does."""
    fitting = None
    for size in sizes:
        if seconds(size) > left:
            break
        fitting = size
    return fitting
