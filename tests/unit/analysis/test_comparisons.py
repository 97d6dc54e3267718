"""Paired differences between groups of runs, the probability of improvement, and which group is best."""

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.comparisons import paired_differences, probability_of_improvement, standings
from analysis.stats import holm
from cl2r.errors import InputError
from tests.support.made_study import made_study

COLUMNS = ["one", "other", "difference", "low", "high", "n", "p", "p_corrected", "verdict"]


def frame(values: dict[str, dict[int, float]], metric: str = "BC", **columns: Any) -> pd.DataFrame:
    """A run for every method and seed; NaN is a run that failed."""
    rows = [
        {"method.name": method, "seed": seed, metric: value, "status": "failed" if math.isnan(value) else "finished"}
        for method, own in values.items()
        for seed, value in own.items()
    ]
    return pd.DataFrame(rows).assign(**columns)


def seeds(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def verdict(one: dict[int, float], other: dict[int, float], metric: str = "BC") -> tuple[str, float, int]:
    row = paired_differences(frame({"a": one, "b": other}, metric), metric).iloc[0]
    return row["verdict"], row["p"], row["n"]


def test_differences_of_a_study_are_those_of_scipy() -> None:
    runs = made_study(("er", "lwf", "cl2r", "bic"), seeds=range(5)).runs.sample(frac=1, random_state=0)
    table = paired_differences(runs, "BC")
    assert table.columns.tolist() == COLUMNS
    order = list(dict.fromkeys(runs["method.name"]))
    assert list(zip(table["one"], table["other"], strict=True)) == list(itertools.combinations(order, 2))
    by_seed = runs.pivot(index="seed", columns="method.name", values="BC")
    for row in table.itertuples():
        test = stats.ttest_rel(by_seed[row.one], by_seed[row.other])
        ends = test.confidence_interval(0.95)
        assert row.p == pytest.approx(test.pvalue)
        assert (row.low, row.high) == pytest.approx((ends.low, ends.high))
        assert (row.difference, row.n) == (pytest.approx((by_seed[row.one] - by_seed[row.other]).mean()), 5)
    assert table["p_corrected"].tolist() == pytest.approx(holm(table["p"]).tolist())
    shown = np.where(table["difference"] > 0, "better", "worse")
    assert table["verdict"].tolist() == np.where(table["p_corrected"] < 0.05, shown, "not shown").tolist()
    assert table["verdict"].nunique() == 3


def test_a_baseline_is_the_other_of_every_row() -> None:
    runs = made_study(("er", "lwf", "cl2r"), seeds=range(4)).runs
    table = paired_differences(runs, "BC", baseline="lwf")
    assert table["one"].tolist() == ["er", "cl2r"]
    assert table["other"].tolist() == ["lwf", "lwf"]
    assert table["verdict"].tolist() == ["worse", "better"]
    assert table["p_corrected"].tolist() == pytest.approx(holm(table["p"]).tolist())
    for ask in (
        lambda: paired_differences(runs, "BC", baseline="cl2"),
        lambda: probability_of_improvement(runs, "BC", "er", "cl2"),
    ):
        with pytest.raises(InputError, match=r"'cl2'.*'cl2r'"):
            ask()
    assert paired_differences(runs[:4], "BC").empty, "one group has nothing to differ from"


def test_tuning_pairs() -> None:
    runs = made_study(seeds=range(3)).runs
    table = paired_differences(runs, "BC", pairs="tuning")
    assert table["p"].tolist() == pytest.approx([stats.ttest_rel(runs["tuning_BC"][:3], runs["tuning_BC"][3:]).pvalue])
    with pytest.raises(InputError, match="tuning_BC"):
        paired_differences(runs.drop(columns="tuning_BC"), "BC", pairs="tuning")


def test_only_common_seeds_count_and_one_is_too_few() -> None:
    runs = frame({"a": {0: 0.1, 1: 0.3, 2: math.nan, 3: 0.2}, "b": {1: 0.2, 2: 0.9, 3: 0.0, 7: 5.0}})
    row = paired_differences(runs, "BC").iloc[0]
    assert (row["n"], row["difference"]) == (2, pytest.approx((0.1 + 0.2) / 2))
    assert row["p"] == pytest.approx(stats.ttest_rel([0.3, 0.2], [0.2, 0.0]).pvalue)
    assert verdict({0: 0.1, 1: 0.2}, {1: 0.3, 2: 0.4}) == ("n too small", pytest.approx(math.nan, nan_ok=True), 1)
    assert verdict({0: 0.1, 1: 0.2}, {2: 0.3, 3: 0.4})[::2] == ("n too small", 0)
    row = paired_differences(frame({"a": seeds(0.1), "b": seeds(0.3)}), "BC").iloc[0]
    assert row["difference"] == pytest.approx(-0.2)
    assert np.isnan([row["low"], row["high"], row["p_corrected"]]).all()


def test_equal_differences_are_no_proof() -> None:
    assert verdict(seeds(1.0, 1.0, 1.0), seeds(0.0, 0.0, 0.0), "AC")[0] == "no spread"
    assert verdict(seeds(0.9, 0.8, 0.7), seeds(0.8, 0.7, 0.6), "AC")[0] == "no spread", "equal up to rounding"
    assert verdict(seeds(0.3, 0.3), seeds(0.1 + 0.2, 0.3), "AC") == ("not shown", 1.0, 2)
    three = frame({"a": seeds(1.0, 1.0, 1.0), "b": seeds(0.0, 0.0, 0.0), "c": seeds(0.5, 0.51, 0.52)}, "AC")
    table = paired_differences(three, "AC")
    assert table["verdict"].tolist() == ["no spread", "better", "worse"]
    small, large = sorted(table["p"].dropna())
    assert sorted(table["p_corrected"].dropna()) == pytest.approx([2 * small, max(2 * small, large)]), "two, not three"


def test_correction_can_take_a_verdict_back() -> None:
    values = {"a": seeds(0.50, 0.61, 0.72), "b": seeds(0.40, 0.50, 0.63)}
    assert paired_differences(frame(values), "BC").loc[0, "verdict"] == "better"
    crowd = {f"c{number}": seeds(0.4, 0.5 + 0.1 * number, 0.6) for number in range(6)}
    table = paired_differences(frame(values | crowd), "BC")
    assert table.loc[0, "p"] < 0.05 < table.loc[0, "p_corrected"]
    assert table.loc[0, "verdict"] == "not shown"


def test_lower_costs_are_better() -> None:
    small, large = seeds(100.0, 101.0, 102.0), seeds(200.0, 203.0, 202.0)
    for metric in ("stored_bytes", "train_seconds"):
        assert verdict(small, large, metric)[0] == "better"
        table = standings(frame({"large": large, "small": small}, metric), metric, ["method.name"])
        assert table["mark"].tolist() == ["worse", "best"]
    assert verdict(small, large, "BC")[0] == "worse"
    with pytest.raises(InputError, match="links_trained"):
        verdict(small, large, "links_trained")


def test_labels_of_several_columns_are_tuples() -> None:
    runs = made_study(seeds=range(3), grid={"memory.per_class": [5, 20]}).runs
    by = ["method.name", "memory.per_class"]
    table = paired_differences(runs, "BC", by, baseline=("cl2r", 5))
    assert table["one"].tolist() == [("er", 5), ("er", 20), ("cl2r", 20)]
    assert table["other"].tolist() == [("cl2r", 5)] * 3
    assert standings(runs, "BC", by)["mark"].to_dict()["cl2r", 20] == "best"
    with pytest.raises(InputError, match=r"differ in memory\.per_class"):
        paired_differences(runs, "BC")


def test_an_empty_label_can_be_named() -> None:
    runs = frame({"a": seeds(0.1, 0.2), "b": seeds(0.4, 0.6)}).assign(variant=[None, None, "long", "long"])
    assert paired_differences(runs, "BC", ["variant"], baseline=math.nan)["one"].tolist() == ["long"]
    assert probability_of_improvement(runs, "BC", "long", None, ["variant"]).mean == 1


UNLIKE = {"eval.pairs_seed": 7, "eval.normalise": "own", "data.name": "cifar100", "data.size": 64, "tasks": 9}


@pytest.mark.parametrize(("field", "value"), [*UNLIKE.items(), ("scenario.class_order", "identity")])
def test_runs_that_were_not_measured_alike_are_refused(field: str, value: Any) -> None:
    runs = made_study(seeds=(0, 1)).runs
    runs.loc[runs["method.name"] == "er", field] = value
    for by in (["method.name"], ["method.name", field]):
        for compare in (paired_differences, standings):
            with pytest.raises(InputError, match=f"er.* and .*cl2r.* differ in {field}"):
                compare(runs, "BC", by)
    with pytest.raises(InputError, match=f"differ in {field}"):
        probability_of_improvement(runs, "BC", "er", "cl2r")


def test_only_paired_runs_must_be_alike() -> None:
    runs = frame({"a": seeds(0.1, 0.2, 0.3), "b": seeds(0.2, 0.3, 0.5)})
    runs["tasks"] = [2, 3, 5, 2, 3, 5]
    assert paired_differences(runs, "BC")["n"].tolist() == [3]
    runs.loc[5, ["tasks", "status"]] = [7, "failed"]
    assert paired_differences(runs, "BC")["n"].tolist() == [2]
    with pytest.raises(InputError, match=r"a and b .* differ in tasks"):
        paired_differences(runs.assign(status="finished"), "BC")
    with pytest.raises(InputError, match=r"a cell would mix runs that differ in scenario\.n_tasks;"):
        paired_differences(runs.assign(**{"scenario.n_tasks": [2, 3, 5, 2, 3, 5]}), "BC")
    runs = made_study(seeds=(0, 1)).runs
    unimportant = ["eval.bootstrap", "data.root", "data.loaders", "adapter.name"]
    runs.loc[runs["method.name"] == "er", unimportant] = [0, "/elsewhere", 1, "aligner"]
    assert paired_differences(runs, "BC")["n"].tolist() == [2]


def slow_improvement(one: list[list[float]], other: list[list[float]]) -> float:
    """The probability by a loop over all pairs of runs of every stratum."""
    shares = []
    for x, y in zip(one, other, strict=True):
        points = [1.0 if a > b else 0.5 if a == b else 0.0 for a in x for b in y]
        shares.append(sum(points) / len(points))
    return sum(shares) / len(shares)


def strata_frame(values: dict[str, list[list[float]]]) -> pd.DataFrame:
    """Runs by method and stratum; the stratum is the number of tasks."""
    parts = [
        frame({method: seeds(*own)}, tasks=number, **{"scenario.n_tasks": number})
        for method, strata in values.items()
        for number, own in enumerate(strata, 2)
    ]
    return pd.concat(parts)


def test_probability_of_improvement_by_hand() -> None:
    found = probability_of_improvement(frame({"a": seeds(1, 2, 3), "b": seeds(0, 2)}), "BC", "a", "b")
    assert (found.mean, found.n) == (pytest.approx((1 + 1.5 + 2) / 6), 2)
    assert 0 <= found.low < found.mean < found.high <= 1
    costs = frame({"a": seeds(1, 2, 3), "b": seeds(0, 2)}, "train_seconds")
    assert probability_of_improvement(costs, "train_seconds", "a", "b").mean == pytest.approx(1.5 / 6)
    rounded = frame({"a": seeds(0.1 + 0.2, 0.3), "b": seeds(0.3, 0.3)})
    assert probability_of_improvement(rounded, "BC", "a", "b").mean == 0.5
    apart = probability_of_improvement(frame({"a": seeds(1, 2, 3), "b": seeds(4, 5, 6)}), "BC", "a", "b")
    assert (apart.mean, apart.low, apart.high, apart.note) == (0, 0, 0, "no spread")


def test_probability_of_improvement_over_strata_and_its_interval() -> None:
    stream = np.random.default_rng(0)
    values = {m: [stream.integers(0, 6, n).tolist() for n in (3, 5, 4)] for m in ("a", "b")}
    found = probability_of_improvement(strata_frame(values), "BC", "a", "b", strata=["scenario.n_tasks"])
    assert found.mean == pytest.approx(slow_improvement(values["a"], values["b"]))
    assert found.n == 12
    drawn = [
        slow_improvement(*([stream.choice(own, len(own)).tolist() for own in values[m]] for m in ("a", "b")))
        for _ in range(1500)
    ]
    assert (found.low, found.high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.04)
    again = probability_of_improvement(strata_frame(values), "BC", "a", "b", strata=["scenario.n_tasks"])
    back = probability_of_improvement(strata_frame(values), "BC", "b", "a", strata=["scenario.n_tasks"])
    assert again == found
    assert back.mean == pytest.approx(1 - found.mean)


def test_probability_of_improvement_of_too_few_runs() -> None:
    one = probability_of_improvement(frame({"a": seeds(1, 2, 3), "b": seeds(2)}), "BC", "a", "b")
    assert (one.mean, one.n, one.note) == (0.5, 1, "n too small: 1 seed")
    strata = strata_frame({"a": [[1.0, 2.0], [1.0, 3.0]], "b": [[0.0, 1.0], [math.nan, math.nan]]})
    none = probability_of_improvement(strata, "BC", "a", "b", strata=["scenario.n_tasks"])
    assert (none.n, none.note) == (2, "no runs in 1 of 2 strata")
    failed = frame({"a": seeds(1, 2, 3), "b": seeds(math.nan)})
    assert probability_of_improvement(failed, "BC", "a", "b").note == "no runs"
    assert np.isnan([one.low, one.high, none.mean, none.low]).all()


def test_strata_of_other_groups_do_not_count() -> None:
    values = {"a": [[1.0, 2.0], [1.0, 3.0]], "b": [[0.0, 1.0], [2.0, 4.0]]}
    with_third = strata_frame({**values, "c": [[0.0], [0.0], [5.0, 6.0]]})
    found = probability_of_improvement(with_third, "BC", "a", "b", strata=["scenario.n_tasks"])
    assert found == probability_of_improvement(strata_frame(values), "BC", "a", "b", strata=["scenario.n_tasks"])
    assert found.note == ""
    third = probability_of_improvement(with_third, "BC", "a", "c", strata=["scenario.n_tasks"])
    assert third.note == "no runs in 1 of 3 strata"


def test_finished_runs_without_the_metric_have_no_values() -> None:
    runs = made_study(tasks=1, seeds=range(3), failed=(0, 1, 2)).runs
    assert standings(runs, "BC", ["method.name"])["note"].tolist() == ["no runs", "no values"]
    assert probability_of_improvement(runs, "BC", "er", "cl2r").note == "no runs"
    assert probability_of_improvement(runs[3:], "BC", "cl2r", "cl2r").note == "no values"


def test_standings_of_a_study() -> None:
    runs = made_study(("er", "lwf", "cl2r", "bic"), seeds=range(4), failed=(12, 13, 14, 15)).runs
    table = standings(runs, "BC", ["method.name"])
    assert table.index.tolist() == ["er", "lwf", "cl2r", "bic"]
    assert table[["mark", "note"]].to_numpy().tolist() == [["worse", ""], ["worse", ""], ["best", ""], ["", "no runs"]]
    means = runs.groupby("method.name", sort=False)["BC"].mean().tolist()
    assert table["mean"].tolist() == pytest.approx(means, nan_ok=True)
    nothing = standings(runs.assign(status="failed"), "BC", ["method.name"])
    assert (set(nothing["mark"]), set(nothing["note"])) == ({""}, {"no runs"})


STANDINGS = [  # by group: values, mark, note
    {"a": ([0.50, 0.60, 0.70], "best", ""), "b": ([0.49, 0.64, 0.66], "", ""), "c": ([0.30, 0.41, 0.50], "worse", "")},
    {"a": ([0.1], "", "n too small: 1 common seed"), "b": ([0.3], "best", "one seed: no test")},
    {"a": ([0.0, 0.0], "", "no spread"), "b": ([1.0, 1.0], "best", ""), "c": ([], "", "no runs")},
    {"a": ([1.0, 1.1], "best", ""), "b": ([math.nan] * 5 + [0.3, 0.4], "", "n too small: 0 common seeds")},
    {"a": ([0.1, 0.2, 0.3, 2.0], "best", ""), "b": ([0.3, 0.41, 0.5], "", "better on common seeds")},
]


@pytest.mark.parametrize("expected", STANDINGS)
def test_marks_and_notes(expected: dict[str, tuple[list[float], str, str]]) -> None:
    runs = frame({name: seeds(*values or [math.nan]) for name, (values, *_) in expected.items()})
    table = standings(runs, "BC", ["method.name"])
    assert list(zip(table["mark"], table["note"], strict=True)) == [(mark, note) for _, mark, note in expected.values()]


def test_equal_means_are_all_best_and_not_tested() -> None:
    values = {"a": seeds(0.5, 0.6, 0.7), "b": seeds(0.42, 0.5, 0.55), "c": seeds(0.6, 0.5, 0.7)}
    assert 0.025 < paired_differences(frame(values), "BC", baseline="a").loc[0, "p"] < 0.05
    table = standings(frame(values), "BC", ["method.name"])
    assert table["mark"].tolist() == ["best", "worse", "best"], "one comparison is corrected for no other"
    others = {f"x{number}": seeds(0.1, 0.3, 0.1) for number in range(20)}
    assert standings(frame(values | others), "BC", ["method.name"]).loc["b", "mark"] == "worse", "nor for these"
