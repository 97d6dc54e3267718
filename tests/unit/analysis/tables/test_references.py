"""The rows `never upgrade` and `re-index` below methods, and columns that frames lack or leave empty."""

import dataclasses
import math

import pytest

from analysis import ablation_table, comparison_tables, methods_table, render, study_tables
from analysis.tables.references import NOTE
from analysis.tables.runs import NO_COMPATIBILITY, NO_RECALL
from cl2r.metrics import METRICS
from tests.support.made_study import made_study

NAMES = ["never upgrade (ER)", "re-index (ER)"]
NEW = [name for name in METRICS if name.startswith(("service_", "reindexed_", "first_"))]


def test_never_upgrade_and_re_index_stand_below_the_methods() -> None:
    study = made_study(["er", "cl2r"], [0, 1, 2])
    er = study.runs[study.runs["method.name"] == "er"]
    first, last = er["first_accuracy"].mean(), er["reindexed_accuracy"].mean()
    for table in (ablation_table(study.runs), methods_table(study.runs)):
        assert [cell.text for cell in table.column("method")][-2:] == NAMES
        assert table.references == 2
        assert table.data["reference"].tolist() == [False, False, True, True]
        never, index = table.data.iloc[-2], table.data.iloc[-1]
        for metric in ("mean_accuracy", "service_accuracy", "reindexed_accuracy"):
            assert never[metric] == pytest.approx(first)
        assert never["service_recall"] == pytest.approx(er["first_recall"].mean())
        assert [never[metric] for metric in ("AC", "BC", "FC")] == [0, 0, 0]
        assert index["service_accuracy"] == index["reindexed_accuracy"] == pytest.approx(last)
        assert [cell.text for cell in table.rows[-1]].count("–") == 3, "AC, BC and seconds"
        assert never[["service_accuracy_low", "service_accuracy_sd"]].notna().all()
        assert all(cell.mark == "" for row in table.rows[-2:] for cell in row)
        assert NOTE in table.notes


def test_references_change_no_mark() -> None:
    runs = made_study(["er", "cl2r"], [0, 1, 2]).runs.assign(reindexed_accuracy=0.99, first_accuracy=0.98)
    marks = [cell.mark for cell in methods_table(runs).column("service accuracy")]
    assert marks[1:] == ["best", "", ""], "though both serve better"


def test_with_one_seed_they_have_the_intervals_of_their_models_over_pairs() -> None:
    ends = {f"{name}_{end}": place / 100 for place, name in enumerate(NEW, 1) for end in ("low",)}
    ends |= {f"{name}_high": 0.9 + place / 100 for place, name in enumerate(NEW, 1)}
    runs = made_study(["er", "cl2r"], [0]).runs.assign(**ends, BC_low=-0.5, BC_high=0.5)
    data = methods_table(runs).data.set_index("method")
    for metric, first, last in (
        ("service_accuracy", "first_accuracy", "reindexed_accuracy"),
        ("service_recall", "first_recall", "reindexed_recall"),
    ):
        for end in ("low", "high"):
            assert data.loc[NAMES, f"{metric}_{end}"].tolist() == [ends[f"{first}_{end}"], ends[f"{last}_{end}"]]
    assert methods_table(runs).column("BC")[2].text == "0.000", "it ties with itself in every draw"


def test_they_are_of_the_method_that_learns_best_if_er_is_missing() -> None:
    runs = made_study(["lwf", "cl2r", "fan"], [0]).runs
    runs = runs.assign(reindexed_accuracy=[0.7, 0.8, 0.75])
    assert [row[0].text for row in methods_table(runs).rows[-2:]] == ["never upgrade (CL²R)", "re-index (CL²R)"]
    failed = made_study(["er", "cl2r"], [0], failed=[0]).runs
    assert methods_table(failed).rows[-1][0].text == "re-index (CL²R)", "ER has no value"


def test_with_ties_an_unchanged_model_is_compatible() -> None:
    runs = made_study(["er", "cl2r"], [0]).runs.assign(**{"eval.ties": True})
    assert methods_table(runs).column("AC")[-2].text == "1.000"
    single = methods_table(made_study(["er", "fan"], [0], tasks=1).runs)
    assert [cell.text for cell in single.column("BC")] == ["–"] * 4, "one task has no BC"


def test_tables_by_number_of_tasks_have_them_for_services() -> None:
    study = made_study(grid={"scenario.n_tasks": [2, 3]})
    tables = {table.title.partition(" by ")[0]: table for table in comparison_tables(study.runs, "scenario.n_tasks")}
    assert list(tables) == ["service accuracy", "BC", "AC", "re-indexed accuracy", "service recall", "FC"]
    assert [tables[name].references for name in tables] == [2, 0, 0, 2, 2, 0]
    data = tables["service accuracy"].data
    er = study.runs[(study.runs["method.name"] == "er") & (study.runs["tasks"] == 3)]
    never = data[(data["method.name"] == NAMES[0]) & (data["scenario.n_tasks"] == 3)].iloc[0]
    assert (never["mean"], never["seeds"], never["reference"]) == (pytest.approx(er["first_accuracy"].mean()), 2, True)
    assert not data["reference"].iloc[0]


@pytest.mark.parametrize("form", ["markdown", "latex", "csv", "html", "terminal"])
def test_every_format_shows_them(form: str) -> None:
    text = render(study_tables(made_study()), form)  # type: ignore[arg-type]
    for name in NAMES:
        assert name in text


def test_formats_set_them_apart() -> None:
    table = methods_table(made_study().runs)
    assert render(table, "html").count('<tr class="reference">') == 2
    assert render(table, "latex").count(r"\midrule") == 2
    lines = render(table, "terminal").splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith(NAMES[0]))
    assert lines[place - 1] == ""


def test_older_frames_have_neither_the_columns_nor_the_rows() -> None:
    study = made_study()
    old = dataclasses.replace(study, runs=study.runs.drop(columns=[name for name in NEW if name in study.runs]))
    for table in study_tables(old):
        assert table.references == 0
        assert not [head for head in table.columns if "service" in head or "re-indexed" in head]
        assert NO_RECALL not in table.notes
    by_tasks = made_study(grid={"scenario.n_tasks": [2, 3]}).runs.drop(columns=NEW)
    assert len(comparison_tables(by_tasks, "scenario.n_tasks")) == 3


def test_recall_of_pairs_is_empty_and_a_note_says_why() -> None:
    recalls = {name: math.nan for name in NEW if name.endswith("recall")}
    study = made_study()
    pairs = dataclasses.replace(study, runs=study.runs.assign(**recalls))
    for table in study_tables(pairs):
        assert {cell.text for cell in table.column("service recall")} == {"–"}
        assert NO_RECALL in table.notes
    assert NO_RECALL not in methods_table(study.runs).notes
    tables = comparison_tables(made_study(grid={"scenario.n_tasks": [2, 3]}).runs.assign(**recalls), "scenario.n_tasks")
    assert "service recall" not in [table.title.partition(" by ")[0] for table in tables]
    assert NO_RECALL in tables[-1].notes


def test_compatibility_of_one_task_is_empty_and_a_note_says_why() -> None:
    single = made_study(tasks=1)
    for table in study_tables(single):
        assert {cell.text for cell in table.column("BC")} == {"–"}
        assert NO_COMPATIBILITY in table.notes
        assert "nan" not in render(table, "terminal")
    assert "one task has no older model" in NO_COMPATIBILITY
    assert all(NO_COMPATIBILITY not in table.notes for table in study_tables(made_study()))
    some = comparison_tables(made_study(grid={"scenario.n_tasks": [1, 3]}).runs, "scenario.n_tasks")
    assert NO_COMPATIBILITY in some[-1].notes


def test_wide_tables_fit_a_terminal() -> None:
    methods = ["er", "er_fd", "er_fdm", "fixed", "fixed_fd", "cl2r"]
    for table in study_tables(made_study(methods, [0, 1, 2])):
        text = render(table, "terminal")
        assert max(map(len, text.splitlines())) <= 120
        assert len(table.columns) >= 7
        assert "[0." in text, "intervals are still there"
