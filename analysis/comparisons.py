"""Whether one group of runs is better than another. Intervals of a single group are in `analysis.stats`.

Groups are compared by the differences between runs of one seed, which share the order of classes: what a seed does to
both of them drops out. p values of one table are corrected for their number.
"""

import itertools
import math
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import special  # scipy.stats takes a second to import

from analysis.groups import FREE, Group, group_of, with_defaults
from analysis.pivot import METRICS, check_name
from analysis.stats import (
    DRAWS,
    LOWER_IS_BETTER,
    NO_SPREAD,
    ROUNDING,
    TOO_SMALL,
    Estimate,
    Floats,
    Integers,
    base_metric,
    by_stratum,
    checked_figures,
    equal,
    group_columns,
    holm,
    known_columns,
    label_of,
    nothing,
    numbered_groups,
    percentiles,
    shortage,
    standard_error,
    summarise,
    t_interval,
)
from cl2r.errors import InputError, nearest

LEVEL = 0.05
ALIKE = ("data.name", "data.size", "data.channels", "tasks")
"""Columns in which compared runs must agree, beside eval.* and scenario.*."""


def paired_differences(
    runs: pd.DataFrame,
    metric: str,
    by: Sequence[str] = ("method.name",),
    baseline: Hashable = None,
    pairs: str = "report",
) -> pd.DataFrame:
    """Each two groups, or each other group and the baseline: mean of one − other over common seeds, and its t-test.

    The verdict is about `one`: better, worse, not shown, n too small, no spread. `p_corrected` is Holm's over the rows.
    Runs of one seed must have been measured on the same tasks and pairs; otherwise they cannot be compared.
    """
    names, sign = group_columns(runs, by), _direction(metric)
    check_name("seed", runs.columns, "column")
    figures, settings = checked_figures(runs, metric, names, pairs), _settings(runs)
    codes, groups = numbered_groups(runs, names)
    places = _rows_by_seed(runs, figures, codes, len(groups))
    rows = []
    for one, other in _chosen(groups, baseline):
        common = (places[[one, other]] >= 0).all(axis=0)
        first, second = places[one, common], places[other, common]
        labels = label_of(groups[one]), label_of(groups[other])
        _check_alike(settings, first, second, "{} and {}".format(*labels))
        rows.append((*labels, *_paired_test(figures[first] - figures[second])))
    table = pd.DataFrame(rows, columns=["one", "other", "difference", "low", "high", "n", "p"])
    table["p_corrected"] = holm(table["p"].to_numpy(dtype=np.float64))
    results = zip(table["n"], table["p_corrected"], sign * table["difference"], strict=True)
    return table.assign(verdict=[_verdict(*result) for result in results])


def probability_of_improvement(
    runs: pd.DataFrame,
    metric: str,
    one: Hashable,
    other: Hashable,
    by: Sequence[str] = ("method.name",),
    strata: Sequence[str] = (),
    draws: int = DRAWS,
    seed: int = 0,
) -> Estimate:
    """P(a run of `one` is better than one of `other`), ties counting half; mean over strata, bootstrapped inside them.

    All runs of one meet all of the other in a stratum, whatever their seeds; strata are those that the two have. `n`
    counts the runs of the smaller side. With few runs the interval covers far less than 95 %: in 4000 samples of normal
    values that differed by one standard deviation (P = 0.76) it held P in 71 % with 3 runs a side, 89 % with 5, 92 %
    with 10; by two (P = 0.92) in 38 %, 63 %, 86 %. Runs that do not overlap have an interval of no width at 0 or 1.
    """
    names, parts = group_columns(runs, by), known_columns(runs, strata)
    codes, groups = numbered_groups(runs, names)
    places = [_place(label, groups) for label in (one, other)]
    runs, codes = runs[np.isin(codes, places)], codes[np.isin(codes, places)]
    figures = _direction(metric) * checked_figures(runs, metric, [*names, *parts])
    cells, kinds = numbered_groups(runs, parts)
    settings, known = _settings(runs), ~np.isnan(figures)
    for stratum in range(len(kinds)):
        rows = np.flatnonzero(known & (cells == stratum))
        _check_alike(settings, rows, rows[:1].repeat(len(rows)), f"runs of {one} and {other}")
    sides = [codes == place for place in places]
    left, right = (by_stratum(figures[side], cells[side], len(kinds)) for side in sides)
    wins = [_wins(x, y) for x, y in zip(left, right, strict=True)]
    counts = [int(known[side].sum()) for side in sides]
    if not min(counts):
        return Estimate(math.nan, math.nan, math.nan, 0, nothing(runs[sides[counts.index(0)]]))
    return _mean_wins(wins, min(counts), draws, seed)


def standings(runs: pd.DataFrame, metric: str, by: Sequence[str]) -> pd.DataFrame:
    """A row a group: mean, n, mark, note. `best` has the best mean, `close` is not significantly worse than it.

    Each is tested by itself: a correction for many comparisons would hand out `close` more freely the more groups there
    are. If several are best, the first of them is the one that the others are tested against.
    """
    names = group_columns(runs, by)
    table = summarise(runs, metric, names)
    best = _best(_direction(metric) * table["mean"].to_numpy(dtype=np.float64))
    marks = ["best" if own else "" for own in best]
    notes = [{0: note, 1: "one seed: no test"}.get(n, "") for n, note in zip(table["n"], table["note"], strict=True)]
    codes, groups = numbered_groups(runs, names)
    if best.any():
        first = int(np.argmax(best))
        rivals = np.flatnonzero((table["n"].to_numpy() > 0) & ~best)
        compared = runs[np.isin(codes, [first, *rivals])]
        tests = paired_differences(compared, metric, names, label_of(groups[first]))
        gains = _direction(metric) * tests["difference"]
        for label, n, p, gain in zip(tests["one"], tests["n"], tests["p"], gains, strict=True):
            place = _place(label, groups)
            marks[place], notes[place] = _standing(_verdict(n, p, gain), n)
    return table[["mean", "n"]].assign(mark=marks, note=notes)


def _direction(metric: str) -> float:
    """1 if more of the metric is better, −1 if less is."""
    check_name(base_metric(metric), (*METRICS, *LOWER_IS_BETTER), "metric")
    return -1.0 if metric in LOWER_IS_BETTER else 1.0


def _place(label: Hashable, groups: list[Group]) -> int:
    if group_of(label) not in groups:
        raise InputError(f"unknown group {label!r}{nearest(str(label), [str(label_of(group)) for group in groups])}")
    return groups.index(group_of(label))


def _chosen(groups: list[Group], baseline: Hashable) -> list[tuple[int, int]]:
    if baseline is None:
        return list(itertools.combinations(range(len(groups)), 2))
    base = _place(baseline, groups)
    return [(group, base) for group in range(len(groups)) if group != base]


def _rows_by_seed(runs: pd.DataFrame, figures: Floats, codes: Integers, count: int) -> Integers:
    """Groups × seeds: the row of the run that has a figure, −1 where there is none."""
    seeds, kinds = numbered_groups(runs, ["seed"])
    places = np.full((count, len(kinds)), -1, dtype=np.int64)
    known = np.flatnonzero(~np.isnan(figures))
    places[codes[known], seeds[known]] = known
    return places


def measured_as(runs: pd.DataFrame) -> pd.DataFrame:
    """The columns in which compared runs must agree; runs older than a field have its default."""
    fields = [name for name in runs.columns if name.startswith(("scenario.", "eval.")) and name not in FREE]
    return with_defaults(runs)[[*(name for name in ALIKE if name in runs), *fields]]


def _settings(runs: pd.DataFrame) -> dict[str, Integers]:
    """By column that must agree, a number for its value in every run."""
    columns = measured_as(runs)
    return {name: numbered_groups(columns, [name])[0] for name in columns.columns}


def _check_alike(settings: dict[str, Integers], first: Integers, second: Integers, who: str) -> None:
    differ = [name for name, codes in settings.items() if (codes[first] != codes[second]).any()]
    if differ:
        raise InputError(f"{who} cannot be compared: they differ in {', '.join(differ)}; select one value first")


def _paired_test(differences: Floats) -> tuple[float, float, float, int, float]:
    """Mean difference, ends of its t interval, n, and the two-sided p value of the paired t-test."""
    found, p = t_interval(differences), math.nan
    if found.note == NO_SPREAD:
        # The t statistic is infinite, p = 0. That is no evidence of such strength: AC of a few tasks takes few values,
        # so three seeds may well agree on it; and if signs were tossed, n equal differences would have p = 2^(1 − n).
        p = 1.0 if abs(found.mean) <= ROUNDING else math.nan
    elif found.n > 1:
        p = float(2 * special.stdtr(found.n - 1, -abs(found.mean) / standard_error(differences)))
    return found.mean, found.low, found.high, found.n, p


def _verdict(n: int, p: float, gain: float) -> str:
    if n < 2:
        return TOO_SMALL
    if math.isnan(p):
        return NO_SPREAD
    if p >= LEVEL:
        return "not shown"
    return "better" if gain > 0 else "worse"


def _wins(x: Floats, y: Floats) -> Floats:
    """For each x and each y: 1 if x is more, ½ if they are equal."""
    gap = x[:, None] - y[None, :]
    size = np.maximum(np.maximum(np.abs(x)[:, None], np.abs(y)[None, :]), 1.0)
    return np.where(np.abs(gap) <= ROUNDING * size, 0.5, (gap > 0).astype(np.float64))


def _mean_wins(wins: list[Floats], n: int, draws: int, seed: int) -> Estimate:
    counts = [min(table.shape) for table in wins]
    mean = float(np.mean([table.mean() for table in wins])) if all(counts) else math.nan
    if min(counts) < 2:
        return Estimate(mean, math.nan, math.nan, n, shortage(counts))
    stream = np.random.default_rng(seed)
    return percentiles(mean, np.mean([_drawn(table, draws, stream) for table in wins], axis=0), n)


def _drawn(wins: Floats, draws: int, stream: np.random.Generator) -> Floats:
    """Mean of the wins among runs drawn anew on either side, `draws` times."""
    rows, columns = (stream.multinomial(size, np.full(size, 1 / size), draws) / size for size in wins.shape)
    return np.asarray(((rows @ wins) * columns).sum(axis=1))


def _best(means: Floats) -> npt.NDArray[np.bool_]:
    if np.isnan(means).all():
        return np.zeros(len(means), np.bool_)
    top = float(np.nanmax(means))
    return np.array([not math.isnan(mean) and equal(np.array([mean, top])) for mean in means])


def _standing(verdict: str, n: int) -> tuple[str, str]:
    """Mark and note of a group from its test against the best one."""
    if verdict == TOO_SMALL:
        return "", f"{TOO_SMALL}: {n} common seed{'' if n == 1 else 's'}"
    if verdict == NO_SPREAD:
        return "", NO_SPREAD
    # `better` is possible where the groups have other seeds beside the common ones
    return ("", "") if verdict == "worse" else ("close", "better on common seeds" if verdict == "better" else "")
