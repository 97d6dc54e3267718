"""Tests whether one group of runs is better than another. Intervals of a single group are in `analysis.stats`.

Groups are compared by runs of the same seed, which share the order of classes: what a seed does to both cancels out.
"""

import itertools
import math
from collections.abc import Hashable, Sequence

import numpy as np
import pandas as pd
from scipy import special  # scipy.stats takes a second to import

from analysis import stats
from analysis.groups import FREE, Group, Integers, check_name, group_of, label_of, numbered_groups, short
from analysis.names import field_title, metric_of
from cl2r.errors import InputError, nearest
from cl2r.metrics import METRICS
from cl2r.runtime.text import counted

LEVEL = 0.05
ALIKE = ("data.name", "data.size", "data.channels", "tasks")
"""Columns in which compared runs must agree, besides eval.* and scenario.*."""


def paired_differences(
    runs: pd.DataFrame,
    metric: str,
    by: Sequence[str] = ("method.name",),
    baseline: Hashable = None,
    pairs: str = "report",
) -> pd.DataFrame:
    """Compare every two groups, or every group with the baseline: mean of one − other over common seeds, and a t-test.

    `verdict` is about `one`: better, worse, not shown, n too small, no spread. `p_corrected` is Holm's over all rows.
    Raise InputError if runs of one seed were not measured on the same tasks and pairs.
    """
    names, sign = stats.group_columns(runs, by), _direction(metric)
    check_name("seed", runs.columns, "column")
    values, settings = stats.checked_values(runs, metric, names, pairs), _settings(runs)
    codes, groups = numbered_groups(runs, names)
    # groups × seeds: the row of the run that has a value, −1 if there is none
    seeds, kinds = numbered_groups(runs, ["seed"])
    places = np.full((len(groups), len(kinds)), -1, dtype=np.int64)
    known = np.flatnonzero(~np.isnan(values))
    places[codes[known], seeds[known]] = known
    chosen = list(itertools.combinations(range(len(groups)), 2))
    if baseline is not None:
        base = _place(baseline, groups)
        chosen = [(group, base) for group in range(len(groups)) if group != base]
    rows = []
    for one, other in chosen:
        common = (places[[one, other]] >= 0).all(axis=0)
        first, second = places[one, common], places[other, common]
        labels = label_of(groups[one]), label_of(groups[other])
        _check_alike(settings, first, second, "{} and {}".format(*labels))
        differences = values[first] - values[second]
        found, p = stats.t_interval(differences), math.nan
        if found.note == stats.NO_SPREAD:
            # The t statistic is infinite, p = 0. That is no evidence of such strength: AC of a few tasks takes few
            # values, so three seeds may agree on it; if signs were tossed, n equal differences had p = 2^(1 − n).
            p = 1.0 if abs(found.mean) <= stats.ROUNDING else math.nan
        elif found.n > 1:
            error = float(differences.std(ddof=1)) / math.sqrt(found.n)
            p = float(2 * special.stdtr(found.n - 1, -abs(found.mean) / error))  # two-sided
        rows.append((*labels, found.mean, found.low, found.high, found.n, p))
    table = pd.DataFrame(rows, columns=["one", "other", "difference", "low", "high", "n", "p"])
    table["p_corrected"] = stats.holm(table["p"].to_numpy(dtype=np.float64))
    results = zip(table["n"], table["p_corrected"], sign * table["difference"], strict=True)
    return table.assign(verdict=[_verdict(*result) for result in results])


def probability_of_improvement(
    runs: pd.DataFrame,
    metric: str,
    one: Hashable,
    other: Hashable,
    by: Sequence[str] = ("method.name",),
    strata: Sequence[str] = (),
    draws: int = stats.DRAWS,
    seed: int = 0,
) -> stats.Estimate:
    """Return P(a run of `one` is better than a run of `other`), ties counting half, with a bootstrap interval.

    It is the mean over strata; within a stratum every run of one group is compared with every run of the other,
    whatever their seeds. `n` counts the runs of the smaller group. With few runs the interval covers far less than
    95 %, and groups that do not overlap have one of width 0 (README.md has the numbers).
    """
    names, parts = stats.group_columns(runs, by), stats.known_columns(runs, strata)
    codes, groups = numbered_groups(runs, names)
    places = [_place(label, groups) for label in (one, other)]
    runs, codes = runs[np.isin(codes, places)], codes[np.isin(codes, places)]
    values = _direction(metric) * stats.checked_values(runs, metric, [*names, *parts])
    cells, kinds = numbered_groups(runs, parts)
    settings, known = _settings(runs), ~np.isnan(values)
    for stratum in range(len(kinds)):
        rows = np.flatnonzero(known & (cells == stratum))
        _check_alike(settings, rows, rows[:1].repeat(len(rows)), f"runs of {one} and {other}")
    sides = [codes == place for place in places]
    sizes = [int(known[side].sum()) for side in sides]
    if not min(sizes):
        return stats.Estimate(math.nan, math.nan, math.nan, 0, stats.no_value_note(runs[sides[sizes.index(0)]]))
    left, right = (stats.by_stratum(values[side], cells[side], len(kinds)) for side in sides)
    wins = []  # by stratum, for each x and each y: 1 if x is larger and ½ if they are equal
    for x, y in zip(left, right, strict=True):
        gap = np.subtract.outer(x, y)
        size = np.maximum(np.maximum.outer(np.abs(x), np.abs(y)), 1.0)
        wins.append(np.where(np.abs(gap) <= stats.ROUNDING * size, 0.5, (gap > 0).astype(np.float64)))
    counts = [min(table.shape) for table in wins]
    mean = float(np.mean([table.mean() for table in wins])) if all(counts) else math.nan
    if min(counts) < 2:
        return stats.Estimate(mean, math.nan, math.nan, min(sizes), stats.shortage(counts))
    stream = np.random.default_rng(seed)
    drawn = []
    for table in wins:
        shares = [stream.multinomial(size, np.full(size, 1 / size), draws) / size for size in table.shape]
        drawn.append(((shares[0] @ table) * shares[1]).sum(axis=1))
    return stats.percentiles(mean, np.mean(drawn, axis=0), min(sizes))


def standings(runs: pd.DataFrame, metric: str, by: Sequence[str]) -> pd.DataFrame:
    """Return one row per group: mean, n, mark, note. `best` has the best mean; `worse` is significantly worse.

    A group without a mark is not told apart from the best; `note` says if it could not be tested. Each group is tested
    by itself, whatever others there are. If several are best, the others are tested against the first of them.
    """
    names, sign = stats.group_columns(runs, by), _direction(metric)
    table = stats.summarise(runs, metric, names)
    means = sign * table["mean"].to_numpy(dtype=np.float64)
    top = means[~np.isnan(means)].max(initial=-np.inf)
    best = np.array([not math.isnan(mean) and stats.equal(np.array([mean, top])) for mean in means], dtype=np.bool_)
    marks = ["best" if own else "" for own in best]
    notes = [{0: note, 1: "one seed: no test"}.get(n, "") for n, note in zip(table["n"], table["note"], strict=True)]
    if best.any():
        codes, groups = numbered_groups(runs, names)
        first = int(np.argmax(best))
        rivals = np.flatnonzero((table["n"].to_numpy() > 0) & ~best)
        compared = runs[np.isin(codes, [first, *rivals])]
        tests = paired_differences(compared, metric, names, label_of(groups[first]))
        for label, n, p, gain in zip(tests["one"], tests["n"], tests["p"], sign * tests["difference"], strict=True):
            place, verdict = _place(label, groups), _verdict(n, p, gain)
            marks[place] = "worse" if verdict == "worse" else ""
            words = {
                stats.TOO_SMALL: f"{stats.TOO_SMALL}: {counted(n, 'common seed')}",
                stats.NO_SPREAD: stats.NO_SPREAD,
                "better": "better on common seeds",  # possible if the groups have other seeds as well
            }
            notes[place] = words.get(verdict, "")
    return table[["mean", "n"]].assign(mark=marks, note=notes)


def measured_as(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the columns in which compared runs must agree."""
    fields = [name for name in runs.columns if name.startswith(("scenario.", "eval.")) and name not in FREE]
    return runs[[*(name for name in ALIKE if name in runs), *fields]]


def comparable_sets(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Split the runs into sets measured on the same data, tasks and pairs; label each if there are several."""
    values = measured_as(runs)
    names = [str(name) for name in values if values[name].nunique(dropna=False) > 1]
    if not names:
        return [("", runs)]
    titles = {"tasks": "T", "data.name": "data"}
    sets = []
    for label, rows in values.groupby(names, dropna=False, sort=True):
        entries = dict(zip(names, label, strict=True))
        if "scenario.n_tasks" in entries:
            entries.pop("tasks", None)
        words = (f"{titles.get(name) or field_title(name)}={short(value)}" for name, value in entries.items())
        sets.append((", ".join(words), runs.loc[rows.index]))
    return sets


def _direction(metric: str) -> float:
    """Return 1 if higher values are better, −1 if lower ones are."""
    known = metric_of(metric) or METRICS[metric]  # raises InputError with the nearest name
    return 1.0 if known.better == "higher" else -1.0


def _place(label: Hashable, groups: list[Group]) -> int:
    if group_of(label) not in groups:
        raise InputError(f"unknown group {label!r}{nearest(str(label), [str(label_of(group)) for group in groups])}")
    return groups.index(group_of(label))


def _settings(runs: pd.DataFrame) -> dict[str, Integers]:
    """Return, by column that must agree, a number for its value in every run."""
    columns = measured_as(runs)
    return {name: numbered_groups(columns, [name])[0] for name in columns.columns}


def _check_alike(settings: dict[str, Integers], first: Integers, second: Integers, who: str) -> None:
    differ = [name for name, codes in settings.items() if (codes[first] != codes[second]).any()]
    if differ:
        raise InputError(f"{who} cannot be compared: they differ in {', '.join(differ)}; select one value first")


def _verdict(n: int, p: float, gain: float) -> str:
    if n < 2:
        return stats.TOO_SMALL
    if math.isnan(p):
        return stats.NO_SPREAD
    if p >= LEVEL:
        return "not shown"
    return "better" if gain > 0 else "worse"
