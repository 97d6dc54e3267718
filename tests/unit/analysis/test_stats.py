"""Intervals of means over seeds, and Holm's correction."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis.stats import Estimate, bootstrap_interval, equal, holm, line_points, shown_range, summarise, t_interval
from cl2r.errors import InputError
from tests.support.made_study import made_study

VALUES = [0.2, 0.4, 0.9, 0.7]


def slow_holm(p_values: list[float]) -> list[float]:
    """By its definition: the k-th smallest of m is multiplied by m − k + 1, and none may fall below a smaller one."""
    known = sorted(p for p in p_values if not math.isnan(p))
    found = []
    for p in p_values:
        steps = [(len(known) - place) * own for place, own in enumerate(known) if own <= p]
        found.append(math.nan if math.isnan(p) else min(1.0, max(steps)))
    return found


def cells(values: dict[tuple[str, int], list[float]]) -> pd.DataFrame:
    """Runs by method and memory, seeds 0, 1, …"""
    rows = [
        {"method.name": method, "memory.per_class": memory, "seed": seed, "BC": value, "AC": value}
        for (method, memory), own in values.items()
        for seed, value in enumerate(own)
    ]
    return pd.DataFrame(rows)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(-10, 10, width=16), min_size=2, max_size=8), st.sampled_from([0.8, 0.95, 0.99]))
def test_t_interval_is_that_of_scipy(values: list[float], confidence: float) -> None:
    found = t_interval(values, confidence)
    if np.ptp(values) == 0:
        assert (found.low, found.high, found.note) == (found.mean, found.mean, "no spread")
        return
    ends = stats.t.interval(confidence, len(values) - 1, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == pytest.approx(ends)


@pytest.mark.parametrize("interval", [t_interval, bootstrap_interval])
def test_missing_too_few_and_equal_values(interval: Callable[..., Estimate]) -> None:
    assert interval([0.2, math.nan, 0.4, None, 0.9, 0.7]) == interval(VALUES)
    assert interval(pd.Series([0.2, None, 0.4, 0.9, 0.7], dtype="Float64")) == interval(VALUES)
    none, one = interval([math.nan]), interval([math.nan, 0.3])
    assert (none.n, none.note, interval([]).note) == (0, "no runs", "no runs")
    assert np.isnan([none.mean, none.low, none.high, one.low, one.high]).all()
    assert (one.mean, one.n, one.note) == (0.3, 1, "n too small: 1 seed")
    same = interval([0.1 + 0.2, 0.3, 0.3])
    assert same.note == "no spread"
    assert (same.low, same.mean, same.high) == pytest.approx((0.3, 0.3, 0.3))
    assert interval([0.0, 0.0, 1e-4]).note == ""
    assert equal(np.array([1e6, 1e6 + 1e-4]))
    assert not equal(np.array([1e-6, 2e-6]))


def test_bootstrap_of_one_stratum_is_that_of_scipy() -> None:
    values = np.random.default_rng(0).normal(0.5, 0.1, 12)
    found = bootstrap_interval(values, draws=20_000)
    asked = {"method": "percentile", "n_resamples": 20_000, "rng": np.random.default_rng(1)}
    oracle = stats.bootstrap((values,), np.mean, **asked).confidence_interval
    assert (found.low, found.high) == pytest.approx((oracle.low, oracle.high), abs=0.003)
    narrow = bootstrap_interval(values, confidence=0.5)
    assert found.low < narrow.low < found.mean < narrow.high < found.high


def test_bootstrap_of_two_pairs_by_hand() -> None:
    """Each stratum's mean is 0, ½ or 1 times its spread, with probability ¼, ½, ¼; that makes nine means of means."""
    values, strata = [0.0, 1.0, 0.0, 10.0], ["a", "a", "b", "b"]
    found = bootstrap_interval(values, strata, confidence=0.8, draws=20_000)
    # 0 to 0.25 have probability 3/16, so 10 % lies at the second of them; likewise at the other end
    assert (found.mean, found.low, found.high) == (2.75, 0.25, 5.25)
    more = bootstrap_interval([0.0, 0.2, 0.6, 0.8, 1.0, 1.0, 0.6, 0.8], [1, 1, *[2] * 6])
    assert more.mean == pytest.approx((0.1 + 0.8) / 2), "strata with more runs do not weigh more"


def test_iqm_is_the_mean_of_the_middle_half() -> None:
    values = [0.0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 1000]  # the middle six are 3, 4, 5, 6, 7, 11
    found = bootstrap_interval(values, statistic="iqm")
    assert found.mean == pytest.approx(6.0)
    assert found.mean == pytest.approx(stats.trim_mean(values, 0.25))
    assert found.low < 6 < found.high < 100
    draws = np.random.default_rng(3).choice(values, (20_000, 12))
    ends = np.quantile(stats.trim_mean(draws, 0.25, axis=1), [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx(ends, abs=0.5)
    with pytest.raises(InputError, match=r"'iqn'.*'iqm'"):
        bootstrap_interval(values, statistic="iqn")  # type: ignore[arg-type]


def test_bootstrap_repeats_and_ignores_the_order_of_runs() -> None:
    values, strata = np.random.default_rng(0).normal(size=9), np.array([*"aabbbcccc"], dtype=object)
    found = bootstrap_interval(values, strata, seed=3)
    order = np.random.default_rng(1).permutation(9)
    again = bootstrap_interval(values[order], strata[order], seed=3)
    assert (again.low, again.mean, again.high) == pytest.approx((found.low, found.mean, found.high))
    assert bootstrap_interval(values, strata, seed=4).low != found.low


def test_a_stratum_of_one_run_or_none_allows_no_interval() -> None:
    single = bootstrap_interval([0.1, 0.3, 0.7], ["a", "a", "b"])
    assert (single.mean, single.n, single.note) == (pytest.approx(0.45), 3, "n too small: 1 seed in 1 of 2 strata")
    empty = bootstrap_interval([0.1, 0.3, math.nan], ["a", "a", "b"])
    assert (empty.n, empty.note) == (2, "no runs in 1 of 2 strata")
    assert np.isnan([single.low, single.high, empty.mean, empty.low, empty.high]).all()
    with pytest.raises(ValueError, match="3 values, but 2 strata"):
        bootstrap_interval([0.1, 0.3, 0.7], ["a", "b"])


def test_bootstrap_of_three_seeds_covers_less_than_it_says() -> None:
    samples = np.random.default_rng(0).standard_normal((300, 3))
    t = [t_interval(own) for own in samples]
    bootstrap = [bootstrap_interval(own, draws=500, seed=number) for number, own in enumerate(samples)]
    shares = [np.mean([found.low <= 0 <= found.high for found in kind]) for kind in (t, bootstrap)]
    assert shares[0] == pytest.approx(0.95, abs=0.035)
    assert shares[1] == pytest.approx(0.75, abs=0.07)


def test_summary_of_a_study() -> None:
    runs = made_study(("er", "lwf", "cl2r"), seeds=(0, 1, 2), failed=(1, 6, 7, 8)).runs
    table = summarise(runs, "BC", ["method.name"])
    assert table.index.tolist() == ["er", "lwf", "cl2r"]
    assert (table.index.name, table.columns.tolist()) == ("method.name", ["mean", "low", "high", "sd", "n", "note"])
    assert table["n"].tolist() == [2, 3, 0]
    assert table["note"].tolist() == ["", "", "no runs"]
    own = runs[runs["method.name"] == "lwf"]["BC"].astype(float)
    ends = stats.t.interval(0.95, 2, own.mean(), stats.sem(own))
    assert table.loc["lwf", ["mean", "sd"]].tolist() == pytest.approx([own.mean(), own.std()])
    assert table.loc["lwf", ["low", "high"]].tolist() == pytest.approx(ends)
    pruned = runs.assign(status=["finished"] * 5 + ["pruned"] + ["failed"] * 3)
    assert summarise(pruned, "BC", ["method.name"])["n"].tolist() == [2, 2, 0], "it has a value, but did not finish"


def test_a_study_without_a_finished_run_or_without_values_has_a_summary() -> None:
    runs = made_study(seeds=(0,), failed=(0, 1)).runs
    for frame in (runs, runs.drop(columns="AC")):
        assert summarise(frame, "AC", "method.name")["note"].tolist() == ["no runs", "no runs"]
    with pytest.raises(InputError, match="unknown metric 'ACC'"):
        summarise(runs, "ACC", ["method.name"])
    assert summarise(runs[:0], "AC", ["method.name"]).empty
    runs = made_study(tasks=1, failed=(0, 1)).runs
    for interval in ("t", "bootstrap"):
        assert summarise(runs, "BC", ["method.name"], interval)["note"].tolist() == ["no runs", "no values"]
    assert summarise(runs, "mean_accuracy", ["method.name"])["note"].tolist() == ["no runs", ""]


def test_only_shares_are_clipped() -> None:
    runs = cells({("er", 1): [0.0, 0.0, 0.9], ("cl2r", 1): [0.2, 1.0, 1.0]})
    runs = runs.assign(**{"tuning_AC": runs["AC"], "AC@0.01": runs["AC"]})
    for metric in ("AC", "tuning_AC", "AC@0.01"):
        table = summarise(runs, metric, ["method.name"])
        assert (table.loc["er", "low"], table.loc["cl2r", "high"]) == (0, 1)
    assert summarise(runs, "BC", ["method.name"])["low"].max() < 0


def test_groups_of_several_columns_in_order_of_appearance() -> None:
    keys = [("cl2r", 20), ("er", 5), ("cl2r", 5), ("er", 20)]
    runs = cells({key: [0.1 * number, 0.1 * number + 0.2] for number, key in enumerate(keys)})
    table = summarise(runs, "BC", ["method.name", "memory.per_class"])
    assert (table.index.tolist(), table.index.names) == (keys, ["method.name", "memory.per_class"])
    assert table["mean"].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    runs = cells({("er", 1): [0.1, 0.2], ("er", 2): [0.5, 0.6]}).assign(variant=[None, None, "long", "long"])
    table = summarise(runs, "BC", ["method.name", "variant"])
    assert table["mean"].tolist() == pytest.approx([0.15, 0.55])
    assert table.index.get_level_values("variant").isna().tolist() == [True, False], "empty is a group too"


def test_summary_over_strata() -> None:
    values = {("er", 5): [0.1, 0.2, 0.3], ("er", 20): [0.5, 0.9], ("cl2r", 5): [0.4, 0.6]}
    runs = cells(values)
    table = summarise(runs, "BC", ["method.name"], "bootstrap", ["memory.per_class"])
    assert table.loc["er", ["mean", "n", "note"]].tolist() == [pytest.approx((0.2 + 0.7) / 2), 5, ""]
    assert table.loc["er", "sd"] == pytest.approx(math.sqrt((0.02 + 0.08) / 3))
    own = [*values["er", 5], *values["er", 20]]
    found = bootstrap_interval(own, [5, 5, 5, 20, 20])
    assert table.loc["er", ["low", "high"]].tolist() == [found.low, found.high]
    assert table.loc["cl2r", "note"] == "no runs in 1 of 2 strata", "its mean would be one of other strata"
    assert np.isnan(table.loc["cl2r", "mean"])


def test_bad_requests_name_what_is_wrong() -> None:
    runs = cells({("er", 5): [0.1, 0.2], ("er", 20): [0.5, 0.9]}).assign(run="a")
    for metric, by, interval, strata, named in [
        ("BCC", ["method.name"], "t", [], "'BC'"),
        ("BC", ["method.nam"], "t", [], r"'method\.name'"),
        ("BC", ["method.name"], "bootstrap", ["memory"], r"'memory\.per_class'"),
        ("BC", ["method.name"], "boot", [], "'boot'"),
        ("BC", ["method.name"], "t", ["memory.per_class"], "bootstrap"),
        ("BC", [], "t", [], "by"),
        ("run", ["method.name"], "t", [], "'run'"),
        ("BC", ["method.name"], "t", [], r"memory\.per_class"),
    ]:
        with pytest.raises(InputError, match=named):
            summarise(runs, metric, by, interval, strata)  # type: ignore[arg-type]
    for estimate in (t_interval, bootstrap_interval):
        with pytest.raises(InputError, match="confidence=95"):
            estimate(VALUES, confidence=95)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])
    found, expected = holm([math.nan, 0.02, 0.5, math.nan, 0.9]), [math.nan, 0.06, 1.0, math.nan, 1.0]
    assert found.tolist() == pytest.approx(expected, nan_ok=True)
    assert holm([]).tolist() == []


@settings(deadline=None, max_examples=60)
@given(st.lists(st.one_of(st.floats(0, 1), st.just(math.nan), st.sampled_from([0.01, 0.02])), max_size=8))
def test_holm_is_its_definition(p_values: list[float]) -> None:
    found = holm(p_values)
    assert found.tolist() == pytest.approx(slow_holm(p_values), nan_ok=True)
    for one, other in itertools.combinations(range(len(p_values)), 2):
        assert not (p_values[one] < p_values[other] and found[one] > found[other])


def test_points_of_a_line_have_t_intervals_and_single_ones_those_over_pairs() -> None:
    rows = pd.DataFrame({"x": [1, 1, 2], "y": [0.9, 0.8, 0.5], "y_low": [0.1, 0.1, 0.4], "y_high": [0.9, 0.9, 0.7]})
    points = line_points(rows, ["x"], (0.0, 1.0))
    half = 12.706205 * 0.1 / np.sqrt(2) / np.sqrt(2)
    assert points.loc[1].tolist() == pytest.approx([0.85, 0.85 - half, 1.0, 2]), "clipped to the bounds"
    assert points.loc[2].tolist() == pytest.approx([0.5, 0.4, 0.7, 1])
    assert line_points(rows[["x", "y"]], ["x"]).loc[2, ["low", "high"]].isna().all()


def test_the_range_of_an_axis_is_never_narrow_and_bounded_for_long_intervals() -> None:
    assert np.ptp(shown_range([0.7, 0.701])) == pytest.approx(0.02)
    assert shown_range([0.5, 0.6], [0.49, 0.62]) == pytest.approx((0.4835, 0.6265)), "all of it, and a margin"
    low, high = shown_range([0.5, 0.6], [0.0, 1.0, np.nan])
    assert (low, high) == pytest.approx((0.4125, 0.6875))
