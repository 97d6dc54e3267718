"""Means over seeds and their intervals. `analysis.comparisons` tests whether one group of runs is better than another.

Runs are the sample: an interval says where the mean over many more seeds may lie. A run that did not finish has no
value; NaN stands for it and is left out.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import special  # scipy.stats takes a second to import

from analysis.groups import Integers, check_cells, check_name, finished, numbered_groups, pair_column
from analysis.names import metric_of
from cl2r.errors import InputError

Floats = npt.NDArray[np.float64]

CONFIDENCE = 0.95
DRAWS = 2000
ROUNDING = 1e-9
"""Metrics are means of counts over pairs: values that are closer than this, or than this share of them, are equal."""
EVERYWHERE = (-math.inf, math.inf)
NO_RUNS = "no runs"
NO_VALUES = "no values"  # note on runs that finished without the metric: with one task AC, BC and FC do not exist
NO_SPREAD = "no spread"
TOO_SMALL = "n too small"


@dataclass(frozen=True)
class Estimate:
    """A mean and its interval; `note` says why there is no interval, or why not to trust it."""

    mean: float
    low: float
    high: float
    n: int
    note: str = ""


def half_width(deviation: Any, n: Any, confidence: float = CONFIDENCE) -> Any:
    """Return t · s/√n, half the width of Student's t-interval; NaN if n < 2. Works on numbers and on arrays."""
    count = np.maximum(n, 2)
    half = special.stdtrit(count - 1, (1 + confidence) / 2) * (deviation / np.sqrt(count))
    return np.where(np.asarray(n) > 1, half, np.nan)


def t_interval(values: npt.ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """Return the mean and its Student-t interval, n − 1 degrees of freedom; equal values have one of width 0."""
    _check_confidence(confidence)
    known = _known(values)
    mean = float(known.mean()) if len(known) else math.nan
    if len(known) < 2:
        return Estimate(mean, math.nan, math.nan, len(known), shortage([len(known)]))
    if equal(known):
        return Estimate(mean, mean, mean, len(known), NO_SPREAD)
    half = float(half_width(known.std(ddof=1), len(known), confidence))
    return Estimate(mean, mean - half, mean + half, len(known))


def bootstrap_interval(
    values: npt.ArrayLike,
    strata: Sequence[Hashable] | npt.NDArray[Any] | None = None,
    confidence: float = CONFIDENCE,
    draws: int = DRAWS,
    seed: int = 0,
    statistic: Literal["mean", "iqm"] = "mean",
) -> Estimate:
    """Return the percentile interval of a bootstrap that resamples runs within every stratum, as rliable does.

    `mean` is the mean over the means of strata, `iqm` the mean of the middle half of all values. Use it with many
    strata; with one it covers too little (README.md has the numbers).
    """
    numbers = np.asarray(values, dtype=np.float64)
    given = pd.DataFrame({"stratum": np.zeros(len(numbers)) if strata is None else list(strata)})
    cells, kinds = numbered_groups(given, ["stratum"])
    if len(cells) != len(numbers):
        raise ValueError(f"{len(numbers)} values, but {len(cells)} strata")
    return _bootstrap(by_stratum(numbers, cells, max(len(kinds), 1)), confidence, draws, seed, statistic)


def summarise(
    runs: pd.DataFrame,
    metric: str,
    by: Sequence[str],
    interval: Literal["t", "bootstrap"] = "t",
    strata: Sequence[str] = (),
) -> pd.DataFrame:
    """Return one row per group of runs with mean, low, high, sd, n and note.

    Runs of a group and stratum may differ in their seed only. With strata, the mean is the mean of their means, and
    `sd` is the deviation of runs from the mean of their stratum.
    """
    check_name(interval, ("t", "bootstrap"), "interval")
    if strata and interval == "t":
        raise InputError("a t-interval cannot use strata; set interval='bootstrap'")
    names, parts = group_columns(runs, by), known_columns(runs, strata)
    values = checked_values(runs, metric, [*names, *parts])
    (codes, groups), (cells, kinds) = numbered_groups(runs, names), numbered_groups(runs, parts)
    rows = []
    for number in range(len(groups)):
        own = by_stratum(values[codes == number], cells[codes == number], len(kinds))
        estimate = t_interval(own[0]) if interval == "t" else _bootstrap(own)
        note = estimate.note if estimate.n else no_value_note(runs[codes == number])
        # √(Σ (x − mean of its stratum)² / (n − strata))
        free = sum(len(part) - 1 for part in own if len(part))
        squares = sum(float(((part - part.mean()) ** 2).sum()) for part in own if len(part))
        rows.append({**asdict(estimate), "note": note, "sd": math.sqrt(squares / free) if free else math.nan})
    index: pd.Index = pd.MultiIndex.from_tuples(groups, names=names)
    if len(names) == 1:
        index = pd.Index([group[0] for group in groups], name=names[0])
    table = pd.DataFrame(rows, index, columns=["mean", "low", "high", "sd", "n", "note"])
    known = metric_of(metric)
    if known is not None:
        table[["low", "high"]] = table[["low", "high"]].clip(*known.bounds)
    return table


def shown_estimates(runs: pd.DataFrame, metric: str, by: Sequence[str]) -> pd.DataFrame:
    """Return `summarise` with intervals for single seeds: one row per group, and `over` says what the interval shows.

    `over` is "seeds" for a t-interval, "pairs" if the group has one run with a recorded bootstrap interval over its
    pairs, else empty.
    """
    table = summarise(runs, metric, by)
    table["over"] = np.where(table["n"] > 1, "seeds", "")
    name, at, rate = metric.partition("@")
    ends = [f"{name}_{end}{at}{rate}" for end in ("low", "high")]
    if (table["n"] == 1).any() and set(ends) <= set(runs):
        codes, groups = numbered_groups(runs, group_columns(runs, by))
        known = (finished(runs) & runs[metric].notna()).to_numpy(dtype=bool)
        for number in range(len(groups)):
            own = runs[(codes == number) & known]
            if len(own) == 1 and own[ends].notna().all(axis=None):
                places = [table.columns.get_loc(name) for name in ("low", "high", "over")]
                table.iloc[number, places] = [*own[ends].iloc[0].astype(float), "pairs"]
    return table


def line_points(rows: pd.DataFrame, by: Sequence[str], bounds: tuple[float, float] = EVERYWHERE) -> pd.DataFrame:
    """Return mean, low, high and n of the column `y` by columns, for lines with bands: 95 % t-intervals.

    A point of one row has the ends that the row has in `y_low` and `y_high`, if there are such columns.
    """
    known = rows.dropna(subset=["y"])
    found = known.groupby(list(by), sort=True)
    table = found["y"].agg(["mean", "std", "count"]).rename(columns={"count": "n"})
    half = half_width(table["std"].to_numpy(), table["n"].to_numpy())
    table["low"], table["high"] = table["mean"] - half, table["mean"] + half
    for end in {"y_low", "y_high"} & set(known):
        table[end[2:]] = table[end[2:]].where(table["n"] > 1, found[end].mean())
    table[["low", "high"]] = table[["low", "high"]].clip(*bounds)
    return table[["mean", "low", "high", "n"]]


LEAST_SPAN = 0.02  # of an axis of accuracies or of their differences
BAND_SHARE = 0.75


def shown_range(means: npt.ArrayLike, ends: npt.ArrayLike = ()) -> tuple[float, float]:
    """Return the range of an axis that shows means and ends of their intervals without exaggerating.

    It spans `LEAST_SPAN` at least, and long intervals leave it: they widen it on either side by `BAND_SHARE` of what
    the means span.
    """
    known, reach = _known(means), _known(ends)
    low, high = float(known.min()), float(known.max())
    beyond = BAND_SHARE * max(high - low, LEAST_SPAN)
    bottom = min(low, max(float(reach.min(initial=low)), low - beyond))
    top = max(high, min(float(reach.max(initial=high)), high + beyond))
    more = max(0.05 * (top - bottom), (LEAST_SPAN - (top - bottom)) / 2)
    return bottom - more, top + more


def holm(p_values: npt.ArrayLike) -> Floats:
    """Return p values after Holm's correction for their number; NaN stays NaN and does not count."""
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values)[: int((~np.isnan(values)).sum())]  # NaN sorts last
    corrected = np.full(values.shape, np.nan)
    corrected[order] = np.minimum(np.maximum.accumulate(values[order] * np.arange(len(order), 0, -1)), 1.0)
    return corrected


def equal(values: Floats) -> bool:
    """Return whether the values differ by rounding only."""
    return bool(np.ptp(values) <= ROUNDING * max(1.0, float(np.abs(values).max())))


def shortage(counts: Sequence[int]) -> str:
    """Return why strata with so many runs have no interval, or an empty text if they have one."""
    empty, single = counts.count(0), counts.count(1)
    if not sum(counts):
        return NO_RUNS
    if len(counts) == 1:
        return f"{TOO_SMALL}: 1 seed" if single else ""
    if empty:
        return f"{NO_RUNS} in {empty} of {len(counts)} strata"
    return f"{TOO_SMALL}: 1 seed in {single} of {len(counts)} strata" if single else ""


def no_value_note(runs: pd.DataFrame) -> str:
    """Return why none of the runs has a value."""
    return NO_VALUES if finished(runs).fillna(False).any() else NO_RUNS


def percentiles(mean: float, drawn: Floats, n: int, confidence: float = CONFIDENCE) -> Estimate:
    """Return the estimate whose interval holds the middle part of the drawn values."""
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(mean, float(low), float(high), n, NO_SPREAD if equal(drawn) else "")


def by_stratum(values: Floats, cells: Integers, count: int) -> list[Floats]:
    """Return the known values of each of `count` strata; sorted, so that the order of runs changes no draw."""
    return [np.sort(_known(values[cells == cell])) for cell in range(count)]


def known_columns(runs: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the names as a list; raise InputError if one is not a column."""
    columns = [names] if isinstance(names, str) else list(names)
    for name in columns:
        check_name(name, runs.columns, "column")
    return columns


def group_columns(runs: pd.DataFrame, by: Sequence[str]) -> list[str]:
    """Return the columns that make a group; raise InputError if there is none."""
    if not by:
        raise InputError("by names no column; give one or more, e.g. by=['method.name']")
    return known_columns(runs, by)


def checked_values(runs: pd.DataFrame, metric: str, cell: list[str], pairs: str = "report") -> Floats:
    """Return the metric of every run, NaN if it did not finish; runs of a cell may differ in their seed only."""
    column, done = pair_column(metric, pairs), finished(runs).fillna(False).to_numpy(dtype=bool)
    if column not in runs and not done.any() and metric_of(metric) is not None:
        return np.full(len(runs), np.nan)  # no run has measured anything
    check_name(column, runs.columns, "metric")
    try:
        values = np.where(done, runs[column].astype(float).to_numpy(), np.nan)
    except (TypeError, ValueError) as error:
        raise InputError(f"column {column!r} of runs holds no numbers") from error
    check_cells(runs[~np.isnan(values)], cell)
    return values


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise InputError(f"confidence={confidence:g}: must be between 0 and 1, e.g. 0.95")


def _known(values: npt.ArrayLike) -> Floats:
    numbers = np.asarray(values, dtype=np.float64)
    return numbers[~np.isnan(numbers)]


def _bootstrap(
    strata: list[Floats], confidence: float = CONFIDENCE, draws: int = DRAWS, seed: int = 0, statistic: str = "mean"
) -> Estimate:
    _check_confidence(confidence)
    check_name(statistic, ("mean", "iqm"), "statistic")

    def measure(drawn: list[Floats]) -> Floats:
        if statistic == "mean":
            return np.asarray(np.mean([own.mean(axis=1) for own in drawn], axis=0))
        values = np.sort(np.concatenate(drawn, axis=1), axis=1)
        cut = values.shape[1] // 4  # a quarter of the values, rounded down, at either end
        return np.asarray(values[:, cut : values.shape[1] - cut].mean(axis=1))

    counts = [len(own) for own in strata]
    mean = float(measure([own[None] for own in strata])[0]) if all(counts) else math.nan
    if min(counts) < 2:
        return Estimate(mean, math.nan, math.nan, sum(counts), shortage(counts))
    stream = np.random.default_rng(seed)
    strata = sorted(strata, key=lambda own: own.tolist())  # as in `by_stratum`
    drawn = measure([own[stream.integers(0, len(own), (draws, len(own)))] for own in strata])
    return percentiles(mean, drawn, sum(counts), confidence)
