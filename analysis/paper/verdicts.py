"""Whether runs agree with what the paper's text states.

Orders and signs are judged at any budget, on means over seeds. Numbers (values, differences, factors) are judged only
if every setting is that of the paper's preset, and nothing is judged on other data. A difference that is smaller than
its standard deviation over seeds (paired by seed if the seeds are the same) is "within noise"; with one seed, noise is
unknown.
"""

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.names import title
from analysis.paper.statements import (
    ABOUT_NUMBERS,
    AnyCheck,
    BoundCheck,
    DifferenceCheck,
    FactorCheck,
    NearestZeroCheck,
    OrderCheck,
    Statement,
    TrendCheck,
    ValueCheck,
)
from analysis.paper.tables import value_text
from analysis.paper.values import Values
from cl2r.metrics import BC

AGREES, DIFFERS, NOT_COMPARABLE, NOT_RUN = "agrees", "differs", "not comparable at this budget", "not run"
RULE = (
    "Orders, signs and trends are judged at any budget, on means over seeds; numbers (a value, a difference, a factor) "
    "only if all settings are those of the paper's preset; nothing is judged on other data. Within noise: the "
    "difference is smaller than its standard deviation over seeds, paired by seed if the seeds are the same. "
    "One seed: noise is unknown. Of those run: some of the methods are missing."
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
class Change:
    """A setting that is not the preset's, and the methods it was changed for (none: for all)."""

    field: str
    preset: str
    used: str
    methods: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = f" ({', '.join(self.methods)})" if self.methods else ""
        return f"{self.field}: {self.preset} -> {self.used}{names}"


@dataclass(frozen=True)
class Subject:
    """What one judgement is about: a method, a metric, a number of tasks and a size of memory (None: any)."""

    values: Values
    method: str
    metric: str
    tasks: int | None
    memory: int | None

    def by_seed(self, method: str | None = None) -> pd.Series:
        """Return the metric by seed, of another method if one is given; empty if it was not run."""
        return self.values.of(self.metric, method or self.method, self.tasks, self.memory)

    def text(self, found: pd.Series, method: str | None = None) -> str:
        """Return the title of the method and mean ± deviation of `found`."""
        return f"{title(method or self.method)} {value_text(self.metric, found)}"


@dataclass(frozen=True)
class Judgement:
    """One row of the verdicts: what was examined, what was found, and the verdict."""

    statement: Statement
    where: str
    metric: str
    here: str
    verdict: str


@dataclass(frozen=True)
class Margin:
    """By how much a statement holds (positive) or fails; `noise` is the deviation over seeds, NaN if unknown."""

    mean: float
    noise: float

    @property
    def within_noise(self) -> bool:
        """Whether the margin is smaller than its deviation."""
        return abs(self.mean) < self.noise


Finding = tuple[str, str]
"""The values as text, and the verdict."""
MISSING: Finding = ("", NOT_RUN)


def judge(statements: Iterable[Statement], values: Values, changes: Sequence[Change] = ()) -> list[Judgement]:
    """Return one judgement for every method, metric, number of tasks and size of memory that a statement names.

    `changes` are the settings in which runs, or the runs of some methods, differ from the paper's preset.
    """
    rows = []
    for statement in statements:
        check, comparable = statement.check, _comparable(statement, changes)
        lowest = isinstance(check, BoundCheck) and check.over == "lowest"
        tasks: Sequence[int | None] = [None] if lowest else check.tasks or [None]
        for place in itertools.product(check.method, check.metric, tasks, check.memory or [None]):
            subject = Subject(values, *place)
            metric = NAMES.get(subject.metric, subject.metric)
            for text, verdict in _findings(check, subject):
                here, word = text or title(subject.method), verdict if comparable else NOT_COMPARABLE
                judged = NOT_RUN if verdict == NOT_RUN else word
                rows.append(Judgement(statement, _where(check, subject), metric, here, judged))
    return rows


def _comparable(statement: Statement, changes: Sequence[Change]) -> bool:
    """Return whether the runs can decide: orders at any budget, numbers at the paper's, nothing on other data."""
    if any(change.field == "data.name" for change in changes):
        return False
    content = statement.check.model_dump(include={"method", "minus", "of"})
    named = {name for entry in content.values() if entry for name in ([entry] if isinstance(entry, str) else entry)}
    changed = any(not change.methods or named & set(change.methods) for change in changes)
    return statement.check.kind not in ABOUT_NUMBERS or not changed


def _where(check: AnyCheck, subject: Subject) -> str:
    words = [f"T={subject.tasks}"] if subject.tasks is not None else []
    if isinstance(check, TrendCheck):
        words.append(f"{'T' if check.along == 'tasks' else 'memory'}={check.start} to {check.end}")
    elif subject.tasks is None:
        words.append(f"T={', '.join(map(str, check.tasks))}")
    if subject.memory is not None:
        words.append(f"memory={subject.memory}")
    return " ".join(words)


def _findings(check: AnyCheck, subject: Subject) -> list[Finding]:
    match check:
        case ValueCheck():
            return [_value(check, subject)]
        case BoundCheck():
            return [_bound(check, subject)]
        case OrderCheck():
            return [_order(check.above, subject)]
        case NearestZeroCheck():
            return [_order(check.others, subject, nearest_zero=True)]
        case DifferenceCheck():
            return [_difference(check, subject, other) for other in check.minus]
        case FactorCheck():
            return [_factor(check, subject)]
        case TrendCheck():
            return [_trend(check, subject)]


def _value(check: ValueCheck, subject: Subject) -> Finding:
    found = subject.by_seed()
    if found.empty:
        return MISSING
    away = Margin(abs(found.mean() - check.value), found.std())
    return subject.text(found), _near(away, check.within)


def _difference(check: DifferenceCheck, subject: Subject, other: str) -> Finding:
    memory = subject.memory if check.minus_memory is None else check.minus_memory
    one, two = subject.by_seed(), subject.values.of(subject.metric, other, subject.tasks, memory)
    if one.empty or two.empty:
        return MISSING
    gap = margin(one, two)
    with_memory = "" if check.minus_memory is None else f" with {memory}"
    here = f"{subject.text(one)}; {subject.text(two, other)}{with_memory}"
    return f"{here}: {gap.mean:+.3f}", _near(Margin(abs(gap.mean - check.value), gap.noise), check.within)


def _near(away: Margin, within: float) -> str:
    holds = away.mean <= within + EXACT
    return verdict_word(holds, math.isnan(away.noise), not holds and away.within_noise)


def _bound(check: BoundCheck, subject: Subject) -> Finding:
    if check.over == "lowest":
        parts = [subject.values.of(subject.metric, subject.method, count, subject.memory) for count in check.tasks]
        found = pd.concat(parts, axis=1).dropna().min(axis=1) if all(map(len, parts)) else pd.Series(dtype=float)
    else:
        found = subject.by_seed()
    if found.empty:
        return MISSING
    holds = RELATIONS[check.relation](found.mean(), check.value)
    noisy = Margin(found.mean() - check.value, found.std()).within_noise
    return subject.text(found), verdict_word(holds, len(found) < 2, noisy)


def _factor(check: FactorCheck, subject: Subject) -> Finding:
    one, two = subject.by_seed(), subject.by_seed(check.of)
    if one.empty or two.empty:
        return MISSING
    lead = margin(one, two * check.factor)
    here = f"{subject.text(one)}; {subject.text(two, check.of)}"
    return here, verdict_word(lead.mean > 0, math.isnan(lead.noise), lead.within_noise)


def _order(others: Sequence[str], subject: Subject, nearest_zero: bool = False) -> Finding:
    """Compare the subject with each rival: one that is not below decides; missing ones are named."""
    own = subject.by_seed()
    rivals = {name: found for name in others if not (found := subject.by_seed(name)).empty}
    if own.empty or not rivals:
        return MISSING
    score = {name: -found.abs() if nearest_zero else found for name, found in [*rivals.items(), (subject.method, own)]}
    margins = {name: margin(score[subject.method], score[name]) for name in rivals}
    nearest = min(margins, key=lambda name: margins[name].mean)
    missing = [title(name) for name in others if name not in rivals]
    word = "" if len(rivals) == 1 else "next: " if margins[nearest].mean > 0 else "ahead: "
    here = f"{subject.text(own)}; {word}{subject.text(rivals[nearest], nearest)}"
    here += f"; not run: {', '.join(missing)}" if missing else ""
    failing = [one for one in margins.values() if one.mean <= 0]
    deciding = failing or list(margins.values())
    noisy = all(one.within_noise for one in failing) if failing else any(one.within_noise for one in deciding)
    verdict = verdict_word(not failing, any(math.isnan(one.noise) for one in deciding), noisy)
    return here, f"{verdict}, of those run" if missing and not failing else verdict


def _trend(check: TrendCheck, subject: Subject) -> Finding:
    ends = []
    for point in (check.start, check.end):
        tasks, memory = (point, subject.memory) if check.along == "tasks" else (subject.tasks, point)
        found = subject.values.of(subject.metric, subject.method, tasks, memory)
        if check.minus is not None:  # on the seeds that both have
            found = (found - subject.values.of(subject.metric, check.minus, tasks, memory)).dropna()
        ends.append(found)
    start, end = ends
    if start.empty or end.empty:
        return MISSING
    change = margin(end, start)
    holds = change.mean > 0 if check.direction == "rises" else change.mean < 0
    name = title(subject.method) + ("" if check.minus is None else f" − {title(check.minus)}")
    metric = subject.metric if check.minus is None else BC.name  # a difference has a sign
    here = f"{name}: {value_text(metric, start)} to {value_text(metric, end)}"
    return here, verdict_word(holds, math.isnan(change.noise), change.within_noise)


def margin(one: pd.Series, two: pd.Series) -> Margin:
    """Return one − two: paired by seed if both have the same seeds, else from the means and both deviations."""
    if set(one.index) == set(two.index):
        difference = one - two
        return Margin(float(difference.mean()), float(difference.std()))
    return Margin(float(one.mean() - two.mean()), math.hypot(one.std(), two.std()))


def verdict_word(holds: bool, unknown: bool, noisy: bool) -> str:
    """Return `agrees` or `differs`, with a remark if noise is unknown or larger than the margin."""
    word = AGREES if holds else DIFFERS
    if unknown:
        return f"{word}, one seed"
    return f"{word}, within noise" if noisy else word
