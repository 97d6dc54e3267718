"""A picture of the page, and the values of groups of runs that pictures show."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from analysis.names import LineStyle, method_style, ordered
from analysis.report.figures import Figure
from analysis.stats import shown_estimates
from analysis.tables.references import NEVER, REINDEX, reference_runs
from analysis.tables.table import interval_cell
from cl2r.metrics import BC, SERVICE_ACCURACY, Metric

NOTHING = Markup("")
LONGEST = 26  # letters of a label


@dataclass(frozen=True)
class Picture:
    """A drawing (`svg`), or a figure that Plotly draws; the caption says how to read it."""

    id: str
    title: str
    caption: str
    svg: Markup = NOTHING
    figure: Figure | None = None


class Value(NamedTuple):
    """A mean and the ends of its 95 % interval; NaN if there is none."""

    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan

    def text(self, metric: Metric) -> str:
        """Return `0.774 [0.746, 0.803]`."""
        return interval_cell(metric.name, *self).text

    @property
    def known(self) -> bool:
        """Whether there is a mean."""
        return math.isfinite(self.mean)

    @property
    def ranged(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only."""

    label: str
    method: str
    served: Value
    bc: Value

    @property
    def style(self) -> LineStyle:
        """How the group is drawn."""
        return method_style(self.method)

    @property
    def words(self) -> str:
        """The values as one sentence."""
        gain = f", BC {self.bc.text(BC)}" if self.bc.known else ""
        return f"{self.label}: service accuracy {self.served.text(SERVICE_ACCURACY)}{gain}."


def shown_groups(runs: pd.DataFrame) -> list[Group]:
    """Return the groups that have a service accuracy, in the order of methods; `runs` have their `group`."""
    served, gains = (values_of(runs, metric, ["group"]) for metric in (SERVICE_ACCURACY, BC))
    return [
        Group(label, method, served[label], gains.get(label, Value()))
        for label, method in methods_of(runs).items()
        if label in served and served[label].known
    ]


def methods_of(runs: pd.DataFrame, labels: str = "group") -> dict[str, str]:
    """Return the method by the label of its group, in the order of methods."""
    methods = dict(zip(runs[labels].astype(str), runs["method.name"].astype(str), strict=True))
    places = {method: place for place, method in enumerate(ordered(methods.values()))}
    return dict(sorted(methods.items(), key=lambda item: places[item[1]]))


def values_of(runs: pd.DataFrame, metric: Metric, by: Sequence[str]) -> dict[Any, Value]:
    """Return the metric by group; nothing if frames are older than the metric. Of equal runs one counts."""
    if metric.name not in runs:
        return {}
    table = shown_estimates(runs.drop_duplicates([*by, "seed"]), metric.name, by)
    rows = table[["mean", "low", "high"]].astype(float).itertuples(index=False, name=None)
    return {label: Value(*row) for label, row in zip(table.index, rows, strict=True)}


def references(runs: pd.DataFrame) -> dict[str, float]:
    """Return the mean service accuracy of never upgrading and of re-indexing; nothing if it is not known.

    With one task they are the same, and have one entry.
    """
    values = reference_runs(runs).groupby("method.name", sort=False)
    means = {str(name): float(own[SERVICE_ACCURACY.name].astype(float).mean()) for name, own in values}
    return means if len(set(means.values())) == len(means) else {f"{NEVER}, {REINDEX}": next(iter(means.values()))}


def seeds_note(runs: pd.DataFrame) -> str:
    """Return a sentence if groups differ in their number of seeds; the headline counts common ones only."""
    counts = runs.groupby("group")["seed"].nunique()
    return "" if counts.nunique() < 2 else f" Means are over all seeds of a method ({counts.min()} to {counts.max()})."


def ends_of(values: Iterable[Value]) -> list[float]:
    """Return both ends of every interval."""
    return [end for value in values for end in (value.low, value.high)]


def shortened(label: str) -> str:
    """Return a label of at most LONGEST letters."""
    return label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"
