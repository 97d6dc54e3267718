"""Constraints of a search: what a trial must reach, absolutely or relative to a reference run.

`reindexed_accuracy: ">= er - 0.01"` asks that the last model has learned: a model that stays as it is has BC 0 and may
have the best service accuracy, so neither of them may choose alone.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from cl2r.config.methods import split_name
from cl2r.errors import InputError
from cl2r.metrics import METRICS, Metric

REFERENCE, DEFAULT, CONFIRMED = "reference", "default", "confirmed"
"""Variants of the runs of a sweep that are no trials: reference runs of its constraints, the preset's own settings, and
the best trials with further seeds. Trials have no variant."""
_NUMBER = r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?"
_FORM = re.compile(
    rf"\s*(?P<relation>>=|<=)\s*(?:(?P<bound>[+-]?(?:{_NUMBER}))"
    rf"|(?P<reference>[a-z_][\w+]*?)(?:\s*(?P<sign>[+-])\s*(?P<offset>{_NUMBER}))?)\s*"
)
FORMS = '">= 0.7", "<= 2e6" or, relative to a reference run, ">= er - 0.01"'


def seed_mean(rows: Sequence[Mapping[str, Any]], column: str) -> float:
    """Return the mean of a column of `runs` over the rows of one point, i.e. over seeds; NaN if one has no value."""
    values = [row.get(column) for row in rows]
    known = [float(value) for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else math.nan


@dataclass(frozen=True)
class Constraint:
    """`metric` must be at least (or at most) `offset`, added to the value of the method `reference` if there is one."""

    metric: Metric
    relation: Literal[">=", "<="]
    offset: float
    reference: str | None = None

    @classmethod
    def parse(cls, metric: str, text: str) -> Self:
        """Return the constraint of an entry such as `mean_accuracy: ">= er - 0.01"`."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise InputError(f"constraint {metric}: {text!r} has none of the forms {FORMS}")
        known = METRICS.objectives().get(metric) or METRICS[metric]  # `seconds` stands for train_seconds
        relation: Literal[">=", "<="] = ">=" if found["relation"] == ">=" else "<="
        if found["reference"] is None:
            return cls(known, relation, float(found["bound"]))
        split_name(found["reference"])  # raises InputError if there is no such method
        offset = float(found["offset"] or 0) * (-1 if found["sign"] == "-" else 1)
        return cls(known, relation, offset, found["reference"])

    @property
    def column(self) -> str:
        """Column of `runs` that is constrained; accuracies are measured on tuning pairs."""
        return self.metric.column("tuning")

    def bound(self, reference: float = math.nan) -> float:
        """Return the value that must be reached; `reference` is the value of the reference run."""
        return self.offset if self.reference is None else reference + self.offset

    def violation(self, value: float, reference: float = math.nan) -> float:
        """Return by which share of the bound `value` misses it: 0 or less if it is met, ∞ if a value is NaN.

        Shares make constraints of different units comparable; a bound of 0 counts as 1.
        """
        bound = self.bound(reference)
        missing = bound - value if self.relation == ">=" else value - bound
        return math.inf if math.isnan(missing) else missing / (abs(bound) or 1.0)

    def __str__(self) -> str:
        if self.reference is None:
            return f"{self.metric.name} {self.relation} {self.offset:g}"
        sign = "-" if self.offset < 0 else "+"
        tail = f" {sign} {abs(self.offset):g}" if self.offset else ""
        return f"{self.metric.name} {self.relation} {self.reference}{tail}"
