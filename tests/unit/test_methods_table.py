"""The comparison of methods, from frames written here: means, t-intervals by hand, costs."""

import math

import pandas as pd
import pytest

from analysis import comparison_table, methods_table
from analysis.formats import render
from analysis.methods import shown_methods
from analysis.tables import ablation_table
from cl2r.errors import InputError


def runs(**changes: list[object]) -> pd.DataFrame:
    """ER and FAN with three seeds each, and ER with an adapter that has one."""
    frame = pd.DataFrame(
        {
            "method.name": ["er"] * 3 + ["fan"] * 3 + ["er+slerp"],
            "method.classifier": "trainable",
            "method.fd": ["none"] * 3 + ["all"] * 3 + ["none"],
            "method.budget": "cl2r",
            "scenario.n_tasks": 5,
            "seed": [0, 1, 2, 0, 1, 2, 0],
            "status": "finished",
            "AC": [0.0, 0.1, 0.2, 1.0, 1.0, 0.7, 0.5],
            "BC": [-0.03, -0.01, -0.02, 0.01, 0.03, 0.02, 0.0],
            "FC": [-0.01] * 7,
            "mean_accuracy": [0.7, 0.72, 0.74, 0.8, 0.8, 0.8, 0.75],
            "train_seconds": [100.0, 50.0, 80.0, 200.0, 150.0, 80.0, 100.0],
            "stored_bytes": [1_000_000] * 3 + [2_000_000] * 3 + [1_000_000],
            "adapter_flops": [0.0] * 3 + [4096.0] * 3 + [9000.0],
            "gallery_items_touched": [0] * 3 + [640] * 3 + [0],
        }
    )
    return frame.assign(**changes)


def lines_of(frame: pd.DataFrame) -> list[str]:
    return [line for line in render(shown_methods(frame), "markdown").splitlines() if line.startswith("|")]


def test_means_and_t_intervals_over_seeds() -> None:
    table = methods_table(runs())
    assert table.index.tolist() == ["er", "fan", "er+slerp"], "in the order of the study"
    er = table.loc["er"]
    assert er["BC"] == pytest.approx(-0.02)
    half = 4.302652729911275 * 0.01 / math.sqrt(3)  # t(0.975, 2) · s/√n, s = 0.01
    assert (er["BC_low"], er["BC_high"]) == pytest.approx((-0.02 - half, -0.02 + half))
    assert (er["AC_low"], table.loc["fan", "AC_high"]) == (0.0, 1.0), "a share stays one"
    one = table.loc["er+slerp"]
    assert one["seeds"] == 1
    assert math.isnan(one["BC_low"])


def test_runs_that_differ_in_more_than_their_seed_are_refused() -> None:
    with pytest.raises(InputError, match=r"differ in scenario\.n_tasks"):
        methods_table(runs(seed=[0] * 7, **{"scenario.n_tasks": [2, 5, 10, 2, 5, 10, 5]}))


def test_a_failed_run_counts_for_no_seed() -> None:
    frame = runs(status=["finished"] * 3 + ["failed"] * 3 + ["failed"])
    assert methods_table(frame)["seeds"].tolist() == [3, 0, 0]
    assert lines_of(frame)[3].startswith("| fan | 0 | failed |")
    stopped = frame.assign(status=["finished"] * 3 + ["pruned"] * 3 + ["failed"])
    assert [cell.text for cell in shown_methods(stopped).column("AC")][1:] == ["stopped early", "failed"]
    assert [
        cell.text for cell in shown_methods(stopped.assign(status=["pruned", "failed", *["pruned"] * 5])).column("AC")
    ] == [
        "failed",
        "stopped early",
        "stopped early",
    ]


def test_equal_seeds_have_no_brackets() -> None:
    table = shown_methods(runs(BC=[0.0] * 3 + [0.01, 0.03, 0.02, 0.0]))
    assert [cell.text for cell in table.column("BC")] == ["0.000", "+0.020 [-0.005, +0.045]", "0.000"]
    assert table.data.loc[0, ["BC_low", "BC_high"]].tolist() == [0, 0]
    assert table.notes[0].endswith("A mean without brackets has one seed, or the same value for all.")
    assert shown_methods(runs().iloc[[0, 3]]).notes == ()


def test_the_markdown_says_what_adaptation_costs() -> None:
    lines = lines_of(runs())
    assert lines[0].endswith("| stored MB | FLOPs a mapped vector | gallery items touched |")
    assert "| er | 3 | 0.100 [0.000, 0.348] | -0.020 [-0.045, +0.005] |" in lines[2]
    assert lines[3].endswith("| 150 | 2.0 | 4,096 | 640 |")
    assert "| er+slerp | 1 | 0.500 | 0.000 |" in lines[4]
    assert "FLOPs" not in lines_of(runs().iloc[:3])[0]


@pytest.mark.parametrize(
    "table", [methods_table, ablation_table, lambda frame: comparison_table(frame, "scenario.n_tasks")]
)
def test_two_budgets_do_not_meet_in_one_table(table: object) -> None:
    mixed = runs(**{"method.budget": ["cl2r", "cl2r", "native"] * 2 + ["native"]})
    with pytest.raises(InputError, match=r"method\.budget"):
        table(mixed)  # type: ignore[operator]


def test_a_cell_of_the_ablation_may_differ_in_its_seed_only() -> None:
    with pytest.raises(InputError, match=r"a cell would mix runs that differ in scenario\.n_tasks;"):
        ablation_table(runs(**{"scenario.n_tasks": [2, 5, 5, 5, 5, 5, 5]}))
    with pytest.raises(InputError, match="mix runs of one seed that differ in run;"):
        ablation_table(runs(seed=[0, 0, 1, 0, 1, 2, 0]))


def test_the_ablation_leaves_other_methods_and_adapters_out() -> None:
    table = ablation_table(runs())
    assert table.index.tolist() == [("Trainable", "none")]
    assert table["seeds"].tolist() == [3]
