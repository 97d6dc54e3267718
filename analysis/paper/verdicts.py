"""Whether runs agree with what the paper's text states.

Orders and signs are judged whatever the budget, on means over seeds. Numbers (values, differences, factors) are
comparable only if every setting is that of the paper's preset, and on other data nothing is. A difference that is
smaller than its standard deviation over seeds (paired by seed where the seeds are the same) is "within noise"; from one
seed nothing is known of that.
"""

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.names import title
from analysis.paper.budget import Change
from analysis.paper.statements import (
    ABOUT_NUMBERS,
    BoundCheck,
    DifferenceCheck,
    FactorCheck,
    NearestZeroCheck,
    OrderCheck,
    Statement,
    TrendCheck,
    ValueCheck,
)
from analysis.paper.tables import figure
from analysis.paper.values import Values

AGREES, DIFFERS, NOT_COMPARABLE, NOT_RUN = "agrees", "differs", "not comparable at this budget", "not run"
RULE = (
    "Orders, signs and trends are judged at any budget, on means over seeds; numbers (a value, a difference, a factor) "
    "only if all settings are those of the paper's preset; on other data nothing is judged. Within noise: the "
    "difference is smaller than its standard deviation over seeds, paired by seed where the seeds are the same. "
    "One seed: nothing is known of noise. Of those run: some of the methods are missing."
)
EXACT = 1e-9
RELATIONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "=": lambda one, two: abs(one - two) < EXACT,
}
NAMES = {"self_test": "self-test", "cross_test": "cross-test", "mean_BC_t": "mean BC(t)"}


@dataclass(frozen=True)
class Place:
    """Where a check looks: a method, a metric, a number of tasks and a size of memory (None: whatever there is)."""

    method: str
    metric: str
    tasks: int | None
    memory: int | None


@dataclass(frozen=True)
class Judgement:
    """A row: what was looked at, what was found, and the verdict."""

    statement: Statement
    where: str
    metric: str
    here: str
    verdict: str


@dataclass(frozen=True)
class Margin:
    """By how much something holds (positive) or fails; `noise` is its deviation over seeds, NaN if unknown."""

    mean: float
    noise: float

    @property
    def within_noise(self) -> bool:
        """Smaller than its spread."""
        return abs(self.mean) < self.noise


Finding = tuple[str, str]
"""The figures and the verdict."""
MISSING: Finding = ("", NOT_RUN)


def judge(statements: Iterable[Statement], values: Values, changes: Sequence[Change] = ()) -> list[Judgement]:
    """A row for every method, metric, number of tasks and size of memory that a statement names.

    `changes` say in what the runs, or those of some methods, differ from the paper's preset.
    """
    rows = [_rows(statement, values, _comparable(statement, changes)) for statement in statements]
    return list(itertools.chain.from_iterable(rows))


def _comparable(statement: Statement, changes: Sequence[Change]) -> bool:
    """Whether the runs tell: of an order at any budget, of a number at the paper's, of nothing on other data."""
    if any(change.field == "data.name" for change in changes):
        return False
    content = statement.check.model_dump(include={"method", "minus", "of"})
    named = {name for entry in content.values() if entry for name in ([entry] if isinstance(entry, str) else entry)}
    otherwise = any(not change.methods or named & set(change.methods) for change in changes)
    return statement.check.kind not in ABOUT_NUMBERS or not otherwise


def _rows(statement: Statement, values: Values, comparable: bool) -> Iterable[Judgement]:
    check = statement.check
    lowest = isinstance(check, BoundCheck) and check.over == "lowest"
    tasks: Sequence[int | None] = [None] if lowest else check.tasks or [None]
    for method, metric, count, memory in itertools.product(check.method, check.metric, tasks, check.memory or [None]):
        for here, verdict in _findings(statement, Place(method, metric, count, memory), values):
            where = _where(statement, count, memory)
            yield Judgement(
                statement,
                where,
                NAMES.get(metric, metric),
                here or title(method),
                verdict if comparable or verdict == NOT_RUN else NOT_COMPARABLE,
            )


def _where(statement: Statement, count: int | None, memory: int | None) -> str:
    check = statement.check
    words = [f"T={count}"] if count is not None else []
    if isinstance(check, TrendCheck):
        words.append(f"{'T' if check.along == 'tasks' else 'memory'}={check.start} to {check.end}")
    elif count is None:
        words.append(f"T={', '.join(map(str, check.tasks))}")
    if memory is not None:
        words.append(f"memory={memory}")
    return " ".join(words)


def _findings(statement: Statement, place: Place, values: Values) -> list[Finding]:
    check = statement.check
    match check:
        case ValueCheck():
            return [_value(check, place, values)]
        case BoundCheck():
            return [_bound(check, place, values)]
        case OrderCheck():
            return [_order(check.above, place, values)]
        case NearestZeroCheck():
            return [_order(check.others, place, values, nearest_zero=True)]
        case DifferenceCheck():
            return [_difference(check, place, other, values) for other in check.minus]
        case FactorCheck():
            return [_factor(check, place, values)]
        case TrendCheck():
            return [_trend(check, place, values)]


def _found(values: Values, place: Place, method: str | None = None) -> pd.Series:
    return values.of(place.metric, method or place.method, place.tasks, place.memory)


def _shown(method: str, metric: str, found: pd.Series) -> str:
    return f"{title(method)} {figure(metric, found)}"


def _value(check: ValueCheck, place: Place, values: Values) -> Finding:
    found = _found(values, place)
    if found.empty:
        return MISSING
    away = Margin(abs(found.mean() - check.value), found.std())
    return _shown(place.method, place.metric, found), _near(away, check.within)


def _difference(check: DifferenceCheck, place: Place, other: str, values: Values) -> Finding:
    memory = place.memory if check.minus_memory is None else check.minus_memory
    one, two = _found(values, place), values.of(place.metric, other, place.tasks, memory)
    if one.empty or two.empty:
        return MISSING
    gap = margin(one, two)
    with_memory = "" if check.minus_memory is None else f" with {memory}"
    here = f"{_shown(place.method, place.metric, one)}; {_shown(other, place.metric, two)}{with_memory}"
    return f"{here}: {gap.mean:+.3f}", _near(Margin(abs(gap.mean - check.value), gap.noise), check.within)


def _near(away: Margin, within: float) -> str:
    holds = away.mean <= within + EXACT
    return verdict_word(holds, math.isnan(away.noise), not holds and away.within_noise)


def _bound(check: BoundCheck, place: Place, values: Values) -> Finding:
    if check.over == "lowest":
        parts = [values.of(place.metric, place.method, count, place.memory) for count in check.tasks]
        found = pd.concat(parts, axis=1).dropna().min(axis=1) if all(map(len, parts)) else pd.Series(dtype=float)
    else:
        found = _found(values, place)
    if found.empty:
        return MISSING
    holds = RELATIONS[check.relation](found.mean(), check.value)
    noisy = Margin(found.mean() - check.value, found.std()).within_noise
    return _shown(place.method, place.metric, found), verdict_word(holds, len(found) < 2, noisy)


def _factor(check: FactorCheck, place: Place, values: Values) -> Finding:
    one, two = _found(values, place), _found(values, place, check.of)
    if one.empty or two.empty:
        return MISSING
    lead = margin(one, two * check.factor)
    here = f"{_shown(place.method, place.metric, one)}; {_shown(check.of, place.metric, two)}"
    return here, verdict_word(lead.mean > 0, math.isnan(lead.noise), lead.within_noise)


def _order(others: Sequence[str], place: Place, values: Values, nearest_zero: bool = False) -> Finding:
    """A single rival that is not below decides; one that was not run leaves the rest to be judged."""
    own = _found(values, place)
    rivals = {name: found for name in others if not (found := _found(values, place, name)).empty}
    if own.empty or not rivals:
        return MISSING
    score = {name: -found.abs() if nearest_zero else found for name, found in [*rivals.items(), (place.method, own)]}
    margins = {name: margin(score[place.method], score[name]) for name in rivals}
    nearest = min(margins, key=lambda name: margins[name].mean)
    missing = [title(name) for name in others if name not in rivals]
    word = "" if len(rivals) == 1 else "next: " if margins[nearest].mean > 0 else "ahead: "
    here = f"{_shown(place.method, place.metric, own)}; {word}{_shown(nearest, place.metric, rivals[nearest])}"
    here += f"; not run: {', '.join(missing)}" if missing else ""
    return here, _order_word(list(margins.values()), bool(missing))


def _order_word(margins: Sequence[Margin], partly: bool) -> str:
    failing = [one for one in margins if one.mean <= 0]
    holds = not failing
    noisy = all(one.within_noise for one in failing) if failing else any(one.within_noise for one in margins)
    word = verdict_word(holds, any(math.isnan(one.noise) for one in failing or margins), noisy)
    return f"{word}, of those run" if holds and partly else word


def _trend(check: TrendCheck, place: Place, values: Values) -> Finding:
    ends = []
    for point in (check.start, check.end):
        tasks, memory = (point, place.memory) if check.along == "tasks" else (place.tasks, point)
        found = values.of(place.metric, place.method, tasks, memory)
        if check.minus is not None:  # on the seeds that both have
            found = (found - values.of(place.metric, check.minus, tasks, memory)).dropna()
        ends.append(found)
    start, end = ends
    if start.empty or end.empty:
        return MISSING
    change = margin(end, start)
    holds = change.mean > 0 if check.direction == "rises" else change.mean < 0
    name = title(place.method) + ("" if check.minus is None else f" − {title(check.minus)}")
    metric = place.metric if check.minus is None else "BC"  # a difference has a sign
    here = f"{name}: {figure(metric, start)} to {figure(metric, end)}"
    return here, verdict_word(holds, math.isnan(change.noise), change.within_noise)


def margin(one: pd.Series, two: pd.Series) -> Margin:
    """one − two: paired by seed if both have the same seeds, else from the means and both deviations."""
    if set(one.index) == set(two.index):
        difference = one - two
        return Margin(float(difference.mean()), float(difference.std()))
    return Margin(float(one.mean() - two.mean()), math.hypot(one.std(), two.std()))


def verdict_word(holds: bool, unknown: bool, noisy: bool) -> str:
    """`agrees` or `differs`, and what seeds say of it."""
    word = AGREES if holds else DIFFERS
    if unknown:
        return f"{word}, one seed"
    return f"{word}, within noise" if noisy else word
