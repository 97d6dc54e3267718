"""Tables of many runs and their frames: means, deviations, intervals and marks computed by hand."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.tables import runs as tables
from analysis.tables.table import Table, command_line_names, deviation_note, field_cell, interval_notes
from cl2r.errors import InputError

BEST = [0.50, 0.60, 0.70]
CLOSE = [0.40, 0.50, 0.50]
"""Differences to BEST 0.1, 0.1, 0.2: t = 0.1333/(0.0577/√3) = 4, p = 0.057."""
WORSE = [0.20, 0.29, 0.38]
"""Differences 0.30, 0.31, 0.32: t = 0.31/(0.01/√3) = 53.7, p = 0.00035, twice that after Holm's correction."""
THREE = {"er": CLOSE, "er_fd": BEST, "cl2r": WORSE}
CELLS = {"er": ("trainable", "none"), "er_fd": ("trainable", "all"), "cl2r": ("fixed", "memory"), "fan": ("x", "x")}
T_2 = 4.302652729911275
"""t(0.975, 2)"""
T_1 = 12.706204736174698
"""t(0.975, 1)"""


def runs_of(values: dict[str, list[float]], metric: str = "AC", **columns: Any) -> pd.DataFrame:
    """One run per method and seed; all metrics except one are the same in all runs, NaN is a run that failed."""
    rows = []
    for name, own in values.items():
        classifier, fd = CELLS[name.partition("+")[0]]
        for seed, value in enumerate(own):
            status = "failed" if math.isnan(value) else "finished"
            row = {"run": f"{name}{seed}", "method.name": name, "method.classifier": classifier, "method.fd": fd}
            row |= {"seed": seed, "status": status, "AC": 0.5, "BC": 0.1, "FC": 0.1, "mean_accuracy": 0.7}
            rows.append({**row, "train_seconds": 60.0 + 10 * seed, metric: value, **columns})
    return pd.DataFrame(rows)


def marks(table: Table, column: str) -> list[str]:
    return [cell.mark for cell in table.column(column)]


def texts(table: Table, column: str) -> list[str]:
    return [cell.text for cell in table.column(column)]


def test_the_ablation_by_hand() -> None:
    table = tables.ablation_table(runs_of(THREE))  # as in older frames: without the metrics of a service
    assert table.columns == ("method", "BC", "AC", "FC", "mean accuracy", "s/run")
    assert texts(table, "method") == ["ER", "Trainable, FD", "CL²R"]
    assert table.data["classifier"].tolist() == ["trainable", "trainable", "fixed"]
    assert table.data["distillation"].tolist() == ["none", "FD", "FD^M"]
    assert table.data["method"].tolist() == ["er", "er_fd", "cl2r"], "data keep the names of the command line"
    assert texts(table, "AC") == ["0.467 [0.323, 0.610]", "0.600 [0.352, 0.848]", "0.290 [0.066, 0.514]"]
    assert [cell.value for cell in table.column("AC")] == pytest.approx([1.4 / 3, 0.6, 0.29])
    assert texts(table, "BC") == ["+0.100"] * 3, "a difference has its sign; equal seeds have no interval"
    assert texts(table, "s/run") == ["70"] * 3, "the median"
    assert marks(table, "AC") == ["", "best", "worse"]
    assert marks(table, "BC") == ["", "", ""], "all are equal"
    assert table.tested
    assert table.data["AC_sd"].tolist() == pytest.approx([math.sqrt(0.02 / 3 / 2), 0.1, 0.09])
    assert table.notes[:2] == (
        "Brackets: 95 % t-interval of the mean over 3 seeds.",
        "A mean without brackets is the same for all seeds.",
    )


@pytest.mark.parametrize(
    "make",
    [
        tables.ablation_table,
        tables.methods_table,
        lambda runs, **given: tables.points_table(runs, ["method.name"], **given),
    ],
)
def test_deviations_on_request(make: Callable[..., Table]) -> None:
    table = make(runs_of(THREE), deviations=True)
    assert texts(table, "AC") == ["0.467 ± 0.058", "0.600 ± 0.100", "0.290 ± 0.090"]
    assert texts(table, "BC") == ["+0.100 ± 0.000"] * 3
    assert table.notes[0] == "± is one standard deviation over 3 seeds."
    assert make(runs_of({"er": [0.1], "cl2r": [0.2]}), deviations=True).notes[0] == "One seed: no deviation."
    frames = (make(runs_of(THREE), deviations=wanted).data for wanted in (True, False))
    pd.testing.assert_frame_equal(*frames)


def test_the_data_have_mean_interval_and_deviation_of_every_metric() -> None:
    runs = runs_of(THREE, service_accuracy=0.7, reindexed_recall=0.8)
    for table in (tables.ablation_table(runs), tables.methods_table(runs), tables.points_table(runs, ["method.name"])):
        for metric in ("AC", "BC", "FC", "mean_accuracy", "service_accuracy", "reindexed_recall"):
            assert {metric, f"{metric}_low", f"{metric}_high", f"{metric}_sd"} <= set(table.data)
        assert not {"FC", "mean accuracy", "re-indexed recall"} & set(table.columns), "they are in the data only"


def test_metrics_come_in_one_order() -> None:
    served = dict.fromkeys(["service_accuracy", "service_recall", "reindexed_accuracy", "reindexed_recall"], 0.7)
    runs = runs_of(THREE, **served)
    expected = ("service accuracy", "BC", "AC", "re-indexed accuracy", "service recall")
    for make in (tables.ablation_table, tables.methods_table):
        assert make(runs).columns == ("method", *expected, "s/run")
        stored = runs.assign(stored_bytes=[7e5] * 6 + [2e6] * 3)
        assert make(stored).columns == ("method", *expected, "s/run", "stored MB"), "it differs enough for a column"
    assert tables.points_table(runs, ["method.name"]).columns == ("method", *expected)
    both = pd.concat([runs.assign(**{"optim.lr": rate}) for rate in (0.1, 0.2)])
    heads = [table.title.partition(" by ")[0] for table in tables.comparison_tables(both, "optim.lr")]
    assert heads == [*expected, "FC"]


def test_methods_come_in_the_one_order_whatever_the_order_of_the_runs() -> None:
    runs = runs_of({"cl2r": BEST, "fan": BEST, "er_fd": BEST, "er+slerp": BEST, "er": BEST})
    backwards = pd.concat([runs.assign(**{"optim.lr": rate}) for rate in (0.1, 0.2)])
    expected = ["ER", "ER+slerp", "Trainable, FD", "FAN", "CL²R"]
    names = ["er", "er+slerp", "er_fd", "fan", "cl2r"]
    assert texts(tables.methods_table(runs), "method") == expected
    assert tables.methods_frame(runs).index.tolist() == names
    assert texts(tables.points_table(runs, ["method.name"]), "method") == expected
    assert tables.points_table(runs, ["method.name"]).data["method.name"].tolist() == names
    (table,) = tables.comparison_tables(backwards, "optim.lr", ["AC"])
    assert texts(table, "method") == expected
    assert table.data["method.name"].unique().tolist() == names
    differences = tables.differences_table(runs_of({"cl2r": BEST, "er": WORSE}))
    assert [cell.text for cell in differences.rows[0]][:2] == ["ER", "CL²R"]
    assert differences.data[["one", "other"]].to_numpy().tolist() == [["er", "cl2r"]]


def test_a_note_lists_the_names_of_the_command_line() -> None:
    table = tables.methods_table(runs_of({"er": BEST, "er_fd": BEST, "fan": BEST}))
    assert table.hints == ("On the command line: Trainable, FD is er_fd.",)
    assert command_line_names(["cl2r+slerp", "cl2r", "lwf"]) == ("On the command line: CL²R is cl2r.",)
    assert command_line_names(["er", "lwf", "mine"]) == (), "their titles are their names"
    many = ["er_fd", "er_fdm", "fixed_fd", "lwf_er", "bic_inclearn", "lifelong_bct", "der_trunc", "cl2r"]
    assert command_line_names(many)[0].count(" is ") == 8
    assert command_line_names([*many, "upper_bound"]) == ("`cl2r methods` lists the names of the command line.",)


def test_one_seed_has_intervals_over_its_pairs() -> None:
    runs = runs_of({"er": [0.4], "cl2r": [0.5]}).assign(AC_low=[0.3, 0.4], AC_high=[0.45, 0.6])
    table = tables.ablation_table(runs)
    assert texts(table, "AC") == ["0.400 [0.300, 0.450]", "0.500 [0.400, 0.600]"]
    assert table.notes[0] == (
        "One seed. Brackets: 95 % bootstrap interval over its pairs, which says nothing about other seeds."
    )
    rates = runs.rename(columns={"AC": "AC@0.1", "AC_low": "AC_low@0.1", "AC_high": "AC_high@0.1"})
    assert texts(tables.points_table(rates, ["method.name"], ["AC@0.1"]), "AC@0.1") == texts(table, "AC")


@pytest.mark.parametrize(
    ("seeds", "ends", "expected"),
    [
        ([3, 3], [0.1, 0.1], "Brackets: 95 % t-interval of the mean over 3 seeds."),
        ([3, 2, 0], [0.1, 0.1, math.nan], "Brackets: 95 % t-interval of the mean over seeds."),
        ([3, 1], [0.1, math.nan], "Brackets: 95 % t-interval of the mean over seeds; one seed has none."),
        ([1, 1], [math.nan, math.nan], "One seed: no interval."),
        (
            [3, 1],
            [0.1, 0.1],
            "Brackets: 95 % t-interval of the mean over seeds; with one seed, 95 % bootstrap interval over its pairs.",
        ),
        ([0, 0], [math.nan, math.nan], None),
    ],
)
def test_what_the_brackets_are_over(seeds: list[int], ends: list[float], expected: str | None) -> None:
    cells = pd.DataFrame({"seeds": seeds, "low": np.negative(ends), "high": ends})
    assert interval_notes(cells) == ([expected] if expected else [])


def test_seeds_have_a_column_only_if_their_numbers_differ() -> None:
    table = tables.methods_table(runs_of({"er": BEST, "cl2r": [0.4, 0.5]}))
    assert texts(table, "seeds") == ["3", "2"]
    assert "seeds" not in tables.methods_table(runs_of(THREE)).columns
    points = tables.points_table(runs_of({"er": BEST, "cl2r": [0.4, 0.5]}), ["method.name"])
    assert texts(points, "seeds") == ["3", "2"]


def test_ablation_rows_come_in_the_order_of_the_paper_without_other_methods() -> None:
    cells = [(c, d) for d in ("memory", "none", "all") for c in ("fixed", "trainable")]
    rows = [{"method.classifier": c, "method.fd": d, "AC": 0.5} for c, d in cells]
    table = tables.ablation_frame(pd.DataFrame(rows))
    assert table.index.tolist() == [(c, d) for c in ("trainable", "fixed") for d in ("none", "FD", "FD^M")]
    assert np.isnan(table["AC_sd"]).all(), "one seed has no deviation"
    others = tables.ablation_frame(runs_of({"er": BEST, "fan": BEST, "er+slerp": BEST}))
    assert others.index.tolist() == [("trainable", "none")]


def test_a_cell_of_the_ablation_is_named_by_its_classifier_and_distillation() -> None:
    runs = runs_of({"er": BEST}).assign(**{"method.fd": "memory"})
    table = tables.ablation_table(runs)
    assert (texts(table, "method"), table.data["method"].tolist()) == (["Trainable, FD^M"], ["er_fdm"])


def test_runs_that_did_not_finish_count_for_no_seed() -> None:
    runs = runs_of({"er": [0.5], "cl2r": [0.2, 0.4, 0.9, 0.1]})
    runs = runs.assign(status=["failed", "finished", "finished", "pruned", "failed"])
    frame = tables.ablation_frame(pd.concat([runs[:3], runs[3:].reset_index(drop=True)]))
    assert frame["seeds"].tolist() == [0, 2]
    assert frame.loc[("fixed", "FD^M"), "AC"] == pytest.approx(0.3)
    for make in (tables.ablation_table, tables.methods_table, lambda runs: tables.points_table(runs, ["method.name"])):
        table = make(runs)
        assert texts(table, "AC")[0] == "failed"
        assert texts(make(runs.assign(status="pruned")), "AC") == ["stopped early"] * 2
        mixed = runs.assign(status=["pruned", "pruned", "failed", "pruned", "pruned"])
        assert texts(make(mixed), "AC") == ["stopped early", "failed"]


def test_one_task_has_no_ac_but_has_not_failed() -> None:
    runs = runs_of({"er": [0.5]}).assign(AC=np.nan, BC=np.nan, FC=np.nan)
    table = tables.ablation_table(runs)
    assert [texts(table, name) for name in ("AC", "mean accuracy")] == [["–"], ["0.700"]]


@pytest.mark.parametrize("plain", [None, ""])
def test_variants_are_the_first_level(plain: str | None) -> None:
    runs = pd.concat([runs_of({"cl2r": [0.1]}), runs_of({"er": [0.2], "cl2r": [0.5]})])
    runs = runs.assign(variant=[plain, "masked", "masked"])
    frame = tables.ablation_frame(runs)
    expected = [("plain", "fixed", "FD^M"), ("masked", "trainable", "none"), ("masked", "fixed", "FD^M")]
    assert frame.index.tolist() == expected
    assert frame["AC"].tolist() == pytest.approx([0.1, 0.2, 0.5])
    assert tables.ablation_table(runs).columns[0] == "variant"
    assert "variant" not in tables.ablation_table(runs[1:].assign(variant=None)).columns, "a single one is left out"


def test_methods_have_t_intervals_and_costs() -> None:
    runs = runs_of({"er": [-0.03, -0.01, -0.02], "er+slerp": [0.0], "fan": [0.01, 0.03, 0.02]}, "BC")
    costs = {"stored_bytes": [1e6] * 4 + [2e6] * 3, "adapter_flops": [0.0] * 3 + [9e3] + [4096.0] * 3}
    runs = runs.assign(AC=[0.0, 0.1, 0.2, 0.5, 1.0, 1.0, 0.7], gallery_items_touched=0, **costs)
    frame = tables.methods_frame(runs)
    half = T_2 * 0.01 / math.sqrt(3)
    assert frame.loc["er", ["BC", "BC_low", "BC_high"]].tolist() == pytest.approx([-0.02, -0.02 - half, -0.02 + half])
    assert (frame.loc["er", "AC_low"], frame.loc["fan", "AC_high"]) == (0.0, 1.0), "a share stays one"
    assert np.isnan(frame.loc["er+slerp", "BC_low"])
    table = tables.methods_table(runs)
    assert texts(table, "BC") == ["-0.020 [-0.045, +0.005]", "0.000", "+0.020 [-0.005, +0.045]"]
    assert [texts(table, name) for name in table.columns[-2:]] == [["1.0", "1.0", "2.0"], ["0", "9,000", "4,096"]]
    assert tables.methods_table(runs[:3]).columns[-1] == "s/run", "adaptation that costs nothing is left out"


def test_equal_seeds_have_no_brackets() -> None:
    table = tables.methods_table(runs_of({"er": [0.0] * 3, "cl2r": [0.01, 0.03, 0.02]}, "BC"))
    assert texts(table, "BC") == ["0.000", "+0.020 [-0.005, +0.045]"]
    assert table.data.loc[0, ["BC_low", "BC_high"]].tolist() == [0, 0]


def comparison_runs() -> pd.DataFrame:
    """Two sizes, two seeds; one run failed, one was pruned with good values, two cells have no run."""
    cells = [
        ("er", 10, 0, -0.2, "finished"),
        ("er", 10, 1, -0.4, "finished"),
        ("er", 5, 0, -0.1, "finished"),
        ("er", 5, 1, 9.0, "pruned"),
        ("cl2r", 10, 0, np.nan, "failed"),
        ("lwf", 5, 0, 0.25, "finished"),
    ]
    names = ["method.name", "scenario.n_tasks", "seed", "BC", "status"]
    return pd.DataFrame(cells, columns=names).assign(AC=0.5, FC=0.125)


def test_comparison_by_hand() -> None:
    frame = tables.comparison_frame(comparison_runs(), "scenario.n_tasks", ("AC", "BC"))
    means = frame["BC", "mean"]
    assert means.index.tolist() == ["er", "lwf", "cl2r"]
    assert means.columns.tolist() == [5, 10]
    np.testing.assert_allclose(means, [[-0.1, -0.3], [0.25, np.nan], [np.nan, np.nan]])
    np.testing.assert_allclose(frame["BC", "sd"].loc["er"], [np.nan, np.sqrt(0.02)])
    half = T_1 * np.sqrt(0.02) / np.sqrt(2)
    np.testing.assert_allclose(frame["BC", "low"].loc["er"], [np.nan, -0.3 - half])
    np.testing.assert_allclose(frame["BC", "high"].loc["er"], [np.nan, -0.3 + half])
    assert frame["AC", "seeds"].to_numpy().tolist() == [[1, 2], [1, 0], [0, 0]]
    _, table = tables.comparison_tables(comparison_runs(), "scenario.n_tasks", ("AC", "BC"))
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["ER", "-0.100 (1 of 2)", "-0.300 [-1.571, +0.971]"],
        ["LwF", "+0.250 (1 of 2)", "–"],
        ["CL²R", "–", "failed"],
    ]
    assert marks(table, "5") == ["", "best", ""]
    assert table.title == "BC by number of tasks"
    _, table = tables.comparison_tables(comparison_runs(), "scenario.n_tasks", ("AC", "BC"), deviations=True)
    assert texts(table, "10")[0] == "-0.300 ± 0.141"
    assert {"mean", "low", "high", "sd", "seeds"} <= set(table.data)


def test_comparison_of_pruned_runs_and_of_variants() -> None:
    pruned = pd.DataFrame({"method.name": "lwf", "scenario.n_tasks": 10, "seed": [0, 1], "status": "pruned"})
    runs = pd.concat([comparison_runs(), pruned]).astype({"scenario.n_tasks": "Int64", "status": "string"})
    (table,) = tables.comparison_tables(runs, "scenario.n_tasks", ["BC"])
    assert texts(table, "10") == ["-0.300 [-1.571, +0.971]", "stopped early", "failed"]
    runs = pd.concat([comparison_runs().assign(variant=name) for name in (None, "masked")])
    (table,) = tables.comparison_tables(runs, "scenario.n_tasks", ["BC"])
    assert texts(table, "variant") == ["plain"] * 3 + ["masked"] * 3
    assert texts(table, "5")[3] == "-0.100 (1 of 2)"


def test_the_same_marks_by_method_by_field_and_by_point() -> None:
    runs = runs_of(THREE)
    assert marks(tables.methods_table(runs), "AC") == ["", "best", "worse"]
    assert marks(tables.points_table(runs, ["method.name"]), "AC") == ["", "best", "worse"]
    two = pd.concat([runs.assign(**{"optim.lr": 0.1}), runs_of({**THREE, "er": WORSE}).assign(**{"optim.lr": 0.2})])
    (table,) = tables.comparison_tables(two, "optim.lr", ["AC"])
    assert marks(table, "0.1") == ["", "best", "worse"]
    assert marks(table, "0.2") == ["worse", "best", "worse"], "each column is for itself"
    assert table.data.query("`optim.lr` == 0.2")["mean"].tolist() == pytest.approx([0.29, 0.6, 0.29])
    assert table.data["seeds"].tolist() == [3] * 6


@pytest.mark.parametrize(
    "make",
    [tables.methods_frame, tables.ablation_frame, lambda runs: tables.comparison_frame(runs, "scenario.n_tasks")],
)
def test_runs_that_must_not_be_averaged_are_refused(make: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    runs = runs_of(THREE, **{"scenario.n_tasks": 5})
    for field, values in {"method.budget": ["cl2r", "native", "cl2r"], "optim.lr": [0.1, 0.1, 0.2]}.items():
        with pytest.raises(InputError, match=field):
            make(runs.assign(**{field: values * 3}))
    with pytest.raises(InputError, match="seed"):
        make(pd.concat([runs, runs]))
    with pytest.raises(InputError, match=r"scenario\.ntasks.*scenario\.n_tasks"):
        tables.comparison_frame(runs, "scenario.ntasks")


def test_what_cannot_be_compared_is_not_marked() -> None:
    runs = pd.concat([runs_of(THREE, **{"scenario.n_tasks": tasks}) for tasks in (2, 3)])
    table = tables.points_table(runs, ["method.name", "scenario.n_tasks"])
    assert table.marks == set()
    assert any("scenario.n_tasks" in note for note in table.notes)
    mixed = runs_of(THREE).assign(**{"method.budget": ["cl2r"] * 6 + ["native"] * 3})
    assert "method.budget" in tables.points_table(mixed, ["method.name"]).notes[-1]


def test_one_seed_has_a_best_but_no_test() -> None:
    table = tables.ablation_table(runs_of({"er": [0.1], "cl2r": [0.2]}))
    assert marks(table, "AC") == ["", "best"]
    assert not table.tested
    assert table.notes[0] == "One seed: no interval."
    assert table.notes[1].startswith("ER is the trainable classifier without distillation, CL²R the fixed one")


def test_heads_of_fields_are_short_if_that_tells_them_apart() -> None:
    fields = ["method.name", "variant", "scenario.n_tasks", "lwf.temperature", "wa.temperature"]
    assert tables.field_heads(fields) == ["method", "variant", "T", "lwf.temperature", "wa.temperature"]


@pytest.mark.parametrize(
    ("seeds", "word"), [([3, 3], "3 seeds"), ([3, 0], "3 seeds"), ([3, 1], "cell"), ([1, 1], None), ([], None)]
)
def test_what_the_deviation_is_over(seeds: list[int], word: str | None) -> None:
    assert (word in deviation_note(seeds)) if word else deviation_note(seeds) == ""


@pytest.mark.parametrize(
    ("value", "text", "number"),
    [(3, "3", 3.0), (0.12345, "0.1235", 0.12345), (np.int64(4), "4", 4.0), ("er", "er", None), (True, "True", None)],
)
def test_cells_of_config_values(value: Any, text: str, number: float | None) -> None:
    assert (field_cell(value).text, field_cell(value).value) == (text, number)
    assert field_cell(None).text == field_cell(pd.NA).text == "–"


def test_differences_by_hand() -> None:
    table = tables.differences_table(runs_of(THREE, "BC"), baseline="er_fd")
    half = T_2 * math.sqrt(0.01 / 3) / math.sqrt(3)
    interval = f"{-0.4 / 3 - half:+.3f} to {-0.4 / 3 + half:+.3f}"
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["ER", "Trainable, FD", "-0.133", interval, "3", "0.057", "0.057", "not shown"],
        ["CL²R", "Trainable, FD", "-0.310", "-0.335 to -0.285", "3", "< 0.001", "< 0.001", "worse"],
    ]
    assert table.data["difference"].tolist() == pytest.approx([-0.4 / 3, -0.31])
    assert len(tables.differences_table(runs_of(THREE), "AC").rows) == 3, "every two"


def test_differences_without_an_interval() -> None:
    table = tables.differences_table(runs_of({"er": [0.1, 0.2], "er_fd": [0.1, 0.2], "cl2r": [0.2, 0.3]}, "BC"))
    assert texts(table, "95 % interval") == ["–"] * 3
    assert texts(table, "p") == ["1.000", "–", "–"]
    assert texts(table, "verdict") == ["not shown", "no spread", "no spread"]
    assert len(table.notes) == len(tables.differences_table(runs_of(THREE, "BC")).notes) + 1
    one = tables.differences_table(runs_of({"er": [0.1], "cl2r": [0.2]}, "BC"))
    assert [cell.text for cell in one.rows[0]] == ["ER", "CL²R", "-0.100", "–", "1", "–", "–", "n too small"]
