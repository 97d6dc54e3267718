"""Which tables a study gets, their figures and marks by hand, and studies that a table could stumble over."""

import dataclasses
import io
import math
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
from made_study import made_study

from analysis import Study
from analysis.cells import deviation_note, field_cell
from analysis.formats import Form, render
from analysis.methods import shown_methods
from analysis.shown import differences_table, shown_ablation, shown_comparison, shown_points
from analysis.study_tables import study_tables
from analysis.table import Table
from analysis.trials import best_trials
from cl2r.errors import InputError

# Figures and marks, by hand

BEST = [0.50, 0.60, 0.70]
CLOSE = [0.40, 0.50, 0.50]
"""Differences to BEST 0.1, 0.1, 0.2: t = 0.1333/(0.0577/√3) = 4, p = 0.057."""
WORSE = [0.20, 0.29, 0.38]
"""Differences 0.30, 0.31, 0.32: t = 0.31/(0.01/√3) = 53.7, p = 0.00035, twice that after Holm's correction."""


def runs_of(values: dict[str, list[float]], metric: str = "AC", **columns: Any) -> pd.DataFrame:
    """Runs of ablation cells, a run a seed; the metrics but one are the same in all."""
    parts = {
        "er": ("trainable", "none"),
        "er_fd": ("trainable", "all"),
        "cl2r": ("fixed", "memory"),
    }
    rows = []
    for name, figures in values.items():
        classifier, fd = parts.get(name, ("trainable", "none"))
        for seed, figure in enumerate(figures):
            row = {"method.name": name, "method.classifier": classifier, "method.fd": fd, "seed": seed}
            row |= {"status": "finished", "AC": 0.5, "BC": 0.1, "FC": 0.1, "mean_accuracy": 0.7, "train_seconds": 60.0}
            rows.append({**row, metric: figure, **columns})
    return pd.DataFrame(rows)


THREE = {"er": CLOSE, "er_fd": BEST, "cl2r": WORSE}


def marks_of(table: Table, column: str) -> list[str]:
    return [cell.mark for cell in table.column(column)]


def test_the_ablation_by_hand() -> None:
    table = shown_ablation(runs_of(THREE))
    assert table.columns == ("classifier", "distillation", "seeds", "AC", "BC", "FC", "mean accuracy", "s/run")
    assert [cell.text for cell in table.column("AC")] == ["0.467 ± 0.058", "0.600 ± 0.100", "0.290 ± 0.090"]
    assert [cell.value for cell in table.column("AC")] == pytest.approx([1.4 / 3, 0.6, 0.29])
    assert marks_of(table, "AC") == ["close", "best", ""]
    assert marks_of(table, "BC") == ["", "", ""], "all are equal"
    assert table.notes == ("± is one standard deviation over 3 seeds.",)
    assert table.tested
    assert table.data["AC_sd"].tolist() == pytest.approx([math.sqrt(0.02 / 3 / 2), 0.1, 0.09])


def test_the_same_marks_by_method_by_field_and_by_point() -> None:
    runs = runs_of(THREE)
    assert marks_of(shown_methods(runs), "AC") == ["close", "best", ""]
    assert marks_of(shown_points(runs, ["method.name"]), "AC") == ["close", "best", ""]
    two = pd.concat([runs.assign(**{"optim.lr": 0.1}), runs_of({**THREE, "er": WORSE}).assign(**{"optim.lr": 0.2})])
    (table,) = shown_comparison(two, "optim.lr", ["AC"])
    assert marks_of(table, "0.1") == ["close", "best", ""]
    assert marks_of(table, "0.2") == ["", "best", ""], "each column is for itself"
    assert table.data.query("`optim.lr` == 0.2")["mean"].tolist() == pytest.approx([0.29, 0.6, 0.29])
    assert table.data["seeds"].tolist() == [3] * 6


def test_one_seed_has_a_best_but_no_test() -> None:
    table = shown_ablation(runs_of({"er": [0.1], "cl2r": [0.2]}))
    assert marks_of(table, "AC") == ["", "best"]
    assert not table.tested
    assert table.notes == ()
    assert "no test was made" in render(table, "terminal")


def test_what_cannot_be_compared_is_not_marked() -> None:
    runs = pd.concat([runs_of(THREE, **{"scenario.n_tasks": tasks}) for tasks in (2, 3)])
    table = shown_points(runs, ["method.name", "scenario.n_tasks"])
    assert table.marks == set()
    (note,) = (note for note in table.notes if note.startswith("Without marks: "))
    assert "differ in scenario.n_tasks" in note
    mixed = runs_of(THREE).assign(**{"method.budget": ["cl2r"] * 6 + ["native"] * 3})
    assert "method.budget=cl2r and native" in shown_points(mixed, ["method.name"]).notes[-1]


@pytest.mark.parametrize(
    ("seeds", "note"),
    [
        ([3, 3], "± is one standard deviation over 3 seeds."),
        ([3, 0], "± is one standard deviation over 3 seeds."),
        ([3, 1], "± is one standard deviation over the seeds of a cell; one seed has none."),
        ([1, 1], ""),
        ([], ""),
    ],
)
def test_what_the_deviation_is_over(seeds: list[int], note: str) -> None:
    assert deviation_note(seeds) == note


@pytest.mark.parametrize(
    ("value", "text", "number"),
    [(3, "3", 3.0), (0.12345, "0.1235", 0.12345), (np.int64(4), "4", 4.0), ("er", "er", None), (True, "True", None)],
)
def test_cells_of_config_values(value: Any, text: str, number: float | None) -> None:
    assert (field_cell(value).text, field_cell(value).value) == (text, number)
    assert field_cell(None).text == field_cell(pd.NA).text == "–"


def test_differences_by_hand() -> None:
    table = differences_table(runs_of(THREE, "BC"), baseline="er_fd")
    rows = [[cell.text for cell in row] for row in table.rows]
    half = 4.302652729911275 * math.sqrt(0.01 / 3) / math.sqrt(3)  # t(0.975, 2) · s/√n
    assert rows == [
        [
            "er",
            "er_fd",
            "-0.133",
            f"{-0.4 / 3 - half:+.3f} to {-0.4 / 3 + half:+.3f}",
            "3",
            "0.057",
            "0.057",
            "not shown",
        ],
        ["cl2r", "er_fd", "-0.310", "-0.335 to -0.285", "3", "< 0.001", "< 0.001", "worse"],
    ]
    assert table.data["difference"].tolist() == pytest.approx([-0.4 / 3, -0.31])
    assert len(differences_table(runs_of(THREE), "AC").rows) == 3, "every two"


def test_equal_differences_have_no_interval() -> None:
    table = differences_table(runs_of({"er": [0.1, 0.2], "er_fd": [0.1, 0.2], "cl2r": [0.2, 0.3]}, "BC"))
    assert [cell.text for cell in table.column("95 % interval")] == ["–"] * 3
    assert [cell.text for cell in table.column("p")] == ["1.000", "–", "–"]
    assert [cell.text for cell in table.column("verdict")] == ["not shown", "no spread", "no spread"]
    assert "A difference without an interval" in table.notes[-1]
    assert len(differences_table(runs_of(THREE, "BC")).notes) == len(table.notes) - 1


def test_points_say_why_they_have_no_figures() -> None:
    runs = runs_of({"er": [0.1, 0.2], "er_fd": [0.1, 0.2], "cl2r": [0.2, 0.3]})
    runs["status"] = ["pruned", "pruned", "pruned", "failed", "finished", "pruned"]
    texts = [cell.text for cell in shown_points(runs, ["method.name"]).column("AC")]
    assert texts == ["stopped early", "failed", "0.200"]


def test_a_point_of_runs_older_than_a_field() -> None:
    runs = runs_of({"er": [0.1, 0.2], "cl2r": [0.2, 0.3]}).assign(**{"eval.order": [None, "stratified"] * 2})
    table = shown_points(runs, ["method.name", "eval.order"])
    assert [[cell.text for cell in row[:3]] for row in table.rows] == [
        ["er", "stratified", "2"],
        ["cl2r", "stratified", "2"],
    ]


def test_differences_of_one_seed() -> None:
    table = differences_table(runs_of({"er": [0.1], "cl2r": [0.2]}, "BC"))
    assert [cell.text for cell in table.rows[0]] == ["er", "cl2r", "-0.100", "–", "1", "–", "–", "n too small"]


# The choice of tables


def titles(study: Study) -> list[str]:
    return [table.title for table in study_tables(study)]


def test_an_ablation() -> None:
    assert titles(made_study()) == ["Classifier × distillation", "Methods"]


def test_methods() -> None:
    assert titles(made_study(["er", "fan", "cl2r+aligner"])) == ["Methods"]
    assert titles(made_study(["cl2r"], [0])) == ["Methods"], "one method is no ablation"


def test_methods_by_one_field() -> None:
    tasks = titles(made_study(grid={"scenario.n_tasks": [2, 3]}))
    assert tasks == [*(f"{metric} by scenario.n_tasks" for metric in ("AC", "BC", "FC")), "Points"]
    memory = titles(made_study(grid={"memory.per_class": [0, 5]}))
    assert memory[1] == "BC by memory.per_class (images a class in memory)"
    assert titles(made_study(["cl2r"], grid={"optim.lr": [0.1, 0.2]})) == ["Points"], "one method has no comparison"


def test_several_fields_budgets_and_variants_have_points() -> None:
    assert titles(made_study(grid={"scenario.n_tasks": [2, 3], "memory.per_class": [0, 5]})) == ["Points"]
    mixed = made_study(["er", "fan"], grid={"method.budget": ["cl2r", "native"]})
    assert titles(mixed) == ["Points"]
    ablation = made_study()
    budgets = ablation.runs.assign(**{"method.budget": ["cl2r", "cl2r", "native", "native"]})
    assert titles(dataclasses.replace(ablation, runs=budgets)) == ["Points"]
    named = made_study(["er", "fan"])
    regimes = named.runs.assign(variant=["a", "a", "b", "b"])
    assert titles(dataclasses.replace(named, runs=regimes)) == ["Points"]
    ablation = made_study()
    both = pd.concat([ablation.runs.assign(variant=None), ablation.runs.assign(variant="masked", trial=9)])
    (table,) = study_tables(dataclasses.replace(ablation, runs=both))
    assert [cell.text for cell in table.column("variant")] == ["plain", "plain", "masked", "masked"]


def sweep(**entries: Any) -> Study:
    grid = {"method.lambda_base": [0.1, 3.0, 10.0]}
    return made_study(["cl2r"], [0], grid=grid, space={"method.lambda_base": {"low": 0.1, "high": 10.0}}, **entries)


def test_a_sweep_shows_its_best_trials_and_marks_none() -> None:
    study = sweep()
    best, points = study_tables(study)
    assert (best.title, points.title) == ("Best trials by BC", "All trials")
    pd.testing.assert_frame_equal(best.data, best_trials(study.runs, {"BC": "max"}))
    assert best.marks == points.marks == set(), "report pairs are not there to choose by"
    front = study_tables(sweep(search={"objectives": ["AC", "stored_bytes"]}))[0]
    assert front.title == "Pareto front of AC and stored_bytes"
    assert titles(sweep(failed=[0, 1, 2])) == ["All trials"]
    untuned = study.runs.drop(columns=[name for name in study.runs if name.startswith("tuning_")])
    assert titles(dataclasses.replace(study, runs=untuned)) == ["All trials"]


def test_rates_have_a_table_and_are_no_config_fields() -> None:
    study = made_study(["er", "fan"])
    rates = {f"{metric}@{rate}": study.runs[metric] for metric in ("AC", "BC", "AC_low") for rate in ("0.01", "0.1")}
    measured = dataclasses.replace(study, runs=study.runs.assign(**rates))
    methods, table = study_tables(measured)
    assert methods.title == "Methods"
    assert table.columns == ("method.name", "seeds", "AC@0.01", "AC@0.1", "BC@0.01", "BC@0.1")
    assert table.column("BC@0.1")[0].text.startswith("-0.0"), "with its sign"
    assert marks_of(table, "BC@0.1")[1] == "best"
    trials = sweep().runs.assign(**{"AC@0.01": [0.1, 0.2, 0.3]})
    assert "AC@0.01" not in best_trials(trials, {"BC": "max"})


STUDIES = {
    "one run": made_study(["cl2r"], [0]),
    "one task": made_study(tasks=1),
    "a failed run": made_study(failed=[1]),
    "failed runs": made_study(failed=[0, 1, 2, 3]),
    "no runs": dataclasses.replace(made_study(), runs=made_study().runs.iloc[:0]),
    "sweep": sweep(),
    "sizes": made_study(grid={"memory.per_class": [0, 5]}, failed=[0, 1]),
}


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_can_be_written_in_every_form(name: str) -> None:
    tables = study_tables(STUDIES[name])
    assert tables
    for form in get_args(Form):
        assert "seeds" in render(tables, form), form


def test_columns_of_later_versions_may_be_missing() -> None:
    study = made_study(["er", "fan"], failed=[0, 1, 2, 3])
    later = ["adapter_flops", "gallery_items_touched", "stored_bytes", "variant", "AC", "BC", "FC", "mean_accuracy"]
    bare = study.runs.drop(columns=[name for name in later if name in study.runs])
    (table,) = study_tables(dataclasses.replace(study, runs=bare))
    assert [cell.text for cell in table.column("BC")] == ["failed", "failed"]


def test_csv_of_a_study_reads_back() -> None:
    for table in study_tables(made_study(grid={"memory.per_class": [0, 5]})):
        back = pd.read_csv(io.StringIO(render(table, "csv")))
        pd.testing.assert_frame_equal(back, table.data, check_dtype=False, rtol=1e-14)


def test_a_refused_table_says_why_to_those_who_ask_for_it() -> None:
    with pytest.raises(InputError, match=r"differ in scenario\.n_tasks"):
        shown_methods(made_study(grid={"scenario.n_tasks": [2, 3]}).runs)
