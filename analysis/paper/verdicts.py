"""Whether runs agree with what the paper's text states; RULE says how that is judged."""

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from analysis.names import title
from analysis.paper import statements as paper
from analysis.paper.tables import value_text
from analysis.paper.values import Values
from analysis.stats import half_width
from cl2r.metrics import BC

AGREES, DIFFERS, NOT_COMPARABLE, NOT_RUN = "agrees", "differs", "not comparable at this budget", "not run"
WITHIN_NOISE = "within noise"
HOLDS, FAILS, OPEN, NOT_JUDGED = "holds", "does not hold", "open", "not judged"
RULE = (
    "Orders, signs and trends are judged at any budget, on means over seeds; numbers (a value, a difference, a factor) "
    "only if all settings are those of the paper's preset; nothing is judged on other data. Within noise: the "
    "95 % t-interval over seeds, of the difference paired by seed if the seeds are the same, includes the opposite "
    "verdict. One seed: noise is unknown. Of those run: some of the methods are missing."
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


class NotRunError(Exception):
    """No run has the value that a judgement needs."""


@dataclass(frozen=True)
class Subject:
    """What one judgement is about: a method, a metric, a number of tasks and a size of memory (None: any)."""

    values: Values
    method: str
    metric: str
    tasks: int | None
    memory: int | None

    def by_seed(self, method: str | None = None) -> pd.Series:
        """Return the metric by seed, of another method if one is given; raise NotRunError if there is none."""
        return _not_empty(self.values.of(self.metric, method or self.method, self.tasks, self.memory))

    def text(self, found: pd.Series, method: str | None = None) -> str:
        """Return the title of the method and mean ± deviation of `found`."""
        return f"{title(method or self.method)} {value_text(self.metric, found)}"


@dataclass(frozen=True)
class Judgement:
    """One row of the verdicts: what was examined, what was found, and the verdict."""

    statement: paper.Statement
    where: str
    metric: str
    here: str
    verdict: str


@dataclass(frozen=True)
class Outcome:
    """What the judgements on a statement come to, and how many of those that were possible agree."""

    statement: paper.Statement
    verdict: str
    agreeing: int
    judged: int


def outcomes(judgements: Iterable[Judgement]) -> list[Outcome]:
    """Return one outcome per statement, in their order.

    A statement does not hold if a judgement differs by more than noise, and is open if one is within noise.
    """
    rows = []
    for _, group in itertools.groupby(judgements, key=lambda row: id(row.statement)):
        own = list(group)
        words = [row.verdict for row in own if row.verdict.startswith((AGREES, DIFFERS))]
        verdict = NOT_JUDGED if not words else OPEN if any(WITHIN_NOISE in word for word in words) else HOLDS
        if any(word.startswith(DIFFERS) and WITHIN_NOISE not in word for word in words):
            verdict = FAILS
        agreeing = sum(word.startswith(AGREES) for word in words)
        rows.append(Outcome(own[0].statement, verdict, agreeing, len(words)))
    return rows


@dataclass(frozen=True)
class Margin:
    """By how much a statement holds (positive) or fails; `noise` is half its 95 % t-interval, NaN for one seed."""

    mean: float
    noise: float

    @property
    def within_noise(self) -> bool:
        """Whether the interval around the margin holds 0."""
        return abs(self.mean) < self.noise


def judge(statements: Iterable[paper.Statement], values: Values, changes: Sequence[Change] = ()) -> list[Judgement]:
    """Return one judgement for every method, metric, number of tasks and size of memory that a statement names."""
    rows = []
    for statement in statements:
        check, comparable = statement.check, _comparable(statement, changes)
        lowest = isinstance(check, paper.BoundCheck) and check.over == "lowest"
        tasks: Sequence[int | None] = [None] if lowest else check.tasks or [None]
        others = check.minus if isinstance(check, paper.DifferenceCheck) else [""]
        memories: Sequence[int | None] = check.memory or [None]
        for method, metric, count, memory, other in itertools.product(
            check.method, check.metric, tasks, memories, others
        ):
            subject = Subject(values, method, metric, count, memory)
            try:
                here, verdict = _finding(check, subject, other)
                verdict = verdict if comparable else NOT_COMPARABLE
            except NotRunError:
                here, verdict = title(method), NOT_RUN
            rows.append(Judgement(statement, _where(check, subject), NAMES.get(metric, metric), here, verdict))
    return rows


def _comparable(statement: paper.Statement, changes: Sequence[Change]) -> bool:
    """Return whether the runs can decide: orders at any budget, numbers at the paper's, nothing on other data."""
    if any(change.field == "data.name" for change in changes):
        return False
    content = statement.check.model_dump(include={"method", "minus", "of"})
    named = {name for entry in content.values() if entry for name in ([entry] if isinstance(entry, str) else entry)}
    changed = any(not change.methods or named & set(change.methods) for change in changes)
    return statement.check.kind not in paper.ABOUT_NUMBERS or not changed


def _where(check: paper.AnyCheck, subject: Subject) -> str:
    words = [f"T={subject.tasks}"] if subject.tasks is not None else []
    if isinstance(check, paper.TrendCheck):
        words.append(f"{'T' if check.along == 'tasks' else 'memory'}={check.start} to {check.end}")
    elif subject.tasks is None:
        words.append(f"T={', '.join(map(str, check.tasks))}")
    if subject.memory is not None:
        words.append(f"memory={subject.memory}")
    return " ".join(words)


def _finding(check: paper.AnyCheck, subject: Subject, other: str) -> tuple[str, str]:
    """Return the values as text, and the verdict; `other` is one of the methods that a difference is taken to."""
    match check:
        case paper.ValueCheck():
            found = subject.by_seed()
            return subject.text(found), _near(Margin(found.mean() - check.value, _noise(found)), check.within)
        case paper.DifferenceCheck():
            memory = subject.memory if check.minus_memory is None else check.minus_memory
            one, two = subject.by_seed(), replace(subject, memory=memory).by_seed(other)
            gap = margin(one, two)
            with_memory = "" if check.minus_memory is None else f" with {memory}"
            here = f"{subject.text(one)}; {subject.text(two, other)}{with_memory}: {gap.mean:+.3f}"
            return here, _near(Margin(gap.mean - check.value, gap.noise), check.within)
        case paper.FactorCheck():
            one, two = subject.by_seed(), subject.by_seed(check.of)
            lead = margin(one, two * check.factor)
            here = f"{subject.text(one)}; {subject.text(two, check.of)}"
            return here, verdict_word(lead.mean > 0, math.isnan(lead.noise), lead.within_noise)
        case paper.BoundCheck():
            if check.over == "lowest":
                parts = [replace(subject, tasks=count).by_seed() for count in check.tasks]
                found = _not_empty(pd.concat(parts, axis=1).dropna().min(axis=1))
            else:
                found = subject.by_seed()
            holds = RELATIONS[check.relation](found.mean(), check.value)
            noisy = Margin(found.mean() - check.value, _noise(found)).within_noise
            return subject.text(found), verdict_word(holds, len(found) < 2, noisy)
        case paper.OrderCheck():
            return _order(check.above, subject)
        case paper.NearestZeroCheck():
            return _order(check.others, subject, nearest_zero=True)
        case paper.TrendCheck():
            return _trend(check, subject)


def _near(away: Margin, within: float) -> str:
    holds = abs(away.mean) <= within + EXACT
    return verdict_word(holds, math.isnan(away.noise), not holds and away.within_noise)


def _order(others: Sequence[str], subject: Subject, nearest_zero: bool = False) -> tuple[str, str]:
    """Compare the subject with each rival: one that is not below decides; missing ones are named."""
    own, rivals, missing = subject.by_seed(), {}, []
    for name in others:
        try:
            rivals[name] = subject.by_seed(name)
        except NotRunError:
            missing.append(title(name))
    if not rivals:
        raise NotRunError
    score = {name: -found.abs() if nearest_zero else found for name, found in [*rivals.items(), (subject.method, own)]}
    margins = {name: margin(score[subject.method], score[name]) for name in rivals}
    nearest = min(margins, key=lambda name: margins[name].mean)
    word = "" if len(rivals) == 1 else "next: " if margins[nearest].mean > 0 else "ahead: "
    here = f"{subject.text(own)}; {word}{subject.text(rivals[nearest], nearest)}"
    here += f"; not run: {', '.join(missing)}" if missing else ""
    failing = [one for one in margins.values() if one.mean <= 0]
    deciding = failing or list(margins.values())
    noisy = all(one.within_noise for one in failing) if failing else any(one.within_noise for one in deciding)
    verdict = verdict_word(not failing, any(math.isnan(one.noise) for one in deciding), noisy)
    return here, f"{verdict}, of those run" if missing and not failing else verdict


def _trend(check: paper.TrendCheck, subject: Subject) -> tuple[str, str]:
    ends = []
    for point in (check.start, check.end):
        here = replace(subject, tasks=point) if check.along == "tasks" else replace(subject, memory=point)
        found = here.by_seed()
        if check.minus is not None:  # on the seeds that both have
            found = _not_empty((found - here.by_seed(check.minus)).dropna())
        ends.append(found)
    change = margin(ends[1], ends[0])
    holds = change.mean > 0 if check.direction == "rises" else change.mean < 0
    name = title(subject.method) + ("" if check.minus is None else f" − {title(check.minus)}")
    metric = subject.metric if check.minus is None else BC.name  # a difference has a sign
    text = f"{name}: {value_text(metric, ends[0])} to {value_text(metric, ends[1])}"
    return text, verdict_word(holds, math.isnan(change.noise), change.within_noise)


def _not_empty(found: pd.Series) -> pd.Series:
    if found.empty:
        raise NotRunError
    return found


def margin(one: pd.Series, two: pd.Series) -> Margin:
    """Return one − two: paired by seed if both have the same seeds, else from the means and both intervals."""
    if set(one.index) == set(two.index):
        difference = one - two
        return Margin(float(difference.mean()), _noise(difference))
    return Margin(float(one.mean() - two.mean()), math.hypot(_noise(one), _noise(two)))


def _noise(found: pd.Series) -> float:
    return float(half_width(found.std(), len(found)))


def verdict_word(holds: bool, unknown: bool, noisy: bool) -> str:
    """Return `agrees` or `differs`, with a remark if noise is unknown or larger than the margin."""
    word = AGREES if holds else DIFFERS
    if unknown:
        return f"{word}, one seed"
    return f"{word}, {WITHIN_NOISE}" if noisy else word
