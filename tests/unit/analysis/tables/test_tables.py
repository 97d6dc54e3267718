"""Which tables a study gets, also studies with unusual or missing runs."""

import dataclasses
import io
import subprocess
import sys
from typing import Any, get_args

import pandas as pd
import pytest

from analysis import Study, study_tables
from analysis.headline import headline
from analysis.sweeps import best_trials
from analysis.tables import grid_tables, study_text
from analysis.tables.formats import Form, render
from analysis.tables.search import search_tables
from cl2r.errors import InputError
from cl2r.metrics import METRICS, Metric
from tests.support.made_search import made_search
from tests.support.made_study import made_study
from tests.unit.analysis.test_recommendation import CLEAR, made

SHOWN = ("service accuracy", "BC", "AC", "re-indexed accuracy", "service recall", "FC")


def titles(study: Study) -> list[str]:
    return [table.title for table in study_tables(study)]


@pytest.mark.parametrize(
    ("study", "expected"),
    [
        (made_study(), ["Classifier × distillation"]),
        (made_study(["er", "fan", "cl2r+aligner"]), ["Methods"]),
        (made_study(["cl2r"], [0]), ["Methods"]),
        (
            made_study(grid={"scenario.n_tasks": [2, 3]}),
            [f"{head} by number of tasks" for head in SHOWN],
        ),
        (made_study(["cl2r"], grid={"optim.lr": [0.1, 0.2]}), ["Points"]),
        (made_study(grid={"scenario.n_tasks": [2, 3], "memory.per_class": [0, 5]}), ["Points"]),
        (made_study(["er", "fan"], grid={"method.budget": ["cl2r", "native"]}), ["Points"]),
    ],
)
def test_tables_follow_from_what_varies(study: Study, expected: list[str]) -> None:
    assert titles(study) == expected


def test_a_new_metric_is_one_entry_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    lowest = Metric("lowest", "lowest accuracy", lambda matrix, ties: matrix.min(axis=(-2, -1)), label="lowest acc.")
    monkeypatch.setitem(METRICS, lowest.name, lowest)
    study = made_study()
    study = dataclasses.replace(study, runs=study.runs.assign(lowest=[0.1, 0.2, 0.4, 0.3]))
    (ablation,) = study_tables(study, deviations=True)
    assert [cell.text for cell in ablation.column("lowest acc.")][:2] == ["0.150 ± 0.071", "0.350 ± 0.071"]
    assert ablation.data["lowest"].tolist()[:2] == pytest.approx([0.15, 0.35])


def test_budgets_and_variants_of_one_study_have_points() -> None:
    study = made_study()
    budgets = study.runs.assign(**{"method.budget": ["cl2r", "cl2r", "native", "native"]})
    assert titles(dataclasses.replace(study, runs=budgets)) == ["Points"]
    both = pd.concat([study.runs.assign(variant=None), study.runs.assign(variant="masked", trial=9)])
    (table,) = study_tables(dataclasses.replace(study, runs=both))
    named = [cell.text for cell in table.column("variant")]
    assert named[:4] == ["plain", "plain", "masked", "masked"]
    assert named[4:] == ["plain", "masked"] * 2, "each has its own first and last model"


def sweep(**entries: Any) -> Study:
    grid = {"method.lambda_base": [0.1, 3.0, 10.0]}
    return made_study(["cl2r"], [0], grid=grid, space={"method.lambda_base": {"low": 0.1, "high": 10.0}}, **entries)


def test_a_sweep_shows_its_best_trials_and_marks_none() -> None:
    study = sweep()
    best, points = study_tables(study)
    assert (best.title, points.title) == ("Best trials by BC", "All trials")
    ranked = best_trials(study.runs, {"BC": "max"})
    assert best.data["trial"].tolist() == [*ranked["trial"], "never upgrade (CL²R)", "re-index (CL²R)"]
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
    assert table.columns == ("method", "AC@0.01", "AC@0.1", "BC@0.01", "BC@0.1")
    assert table.column("BC@0.1")[0].text.startswith("-0.0"), "with its sign"
    assert table.column("BC@0.1")[1].mark == "best"
    trials = sweep().runs.assign(**{"AC@0.01": [0.1, 0.2, 0.3]})
    assert "AC@0.01" not in best_trials(trials, {"BC": "max"})


def test_a_search_study_has_its_own_tables() -> None:
    study = made_search()
    expected = [table.title for table in search_tables(study.search)]
    assert titles(study) == expected
    text = study_text(study, "terminal")
    assert all(name in text for name in expected)
    assert titles(dataclasses.replace(study, search={})) == ["Classifier × distillation"]


def test_a_race_shows_its_finalists_and_marks_none() -> None:
    race = made(CLEAR)
    assert titles(race) == ["Finalists, best first by service accuracy on tuning pairs"]
    assert "Points" not in study_text(race, "markdown")
    (points,) = grid_tables(race)
    assert (points.title, points.marks) == ("Points", set())
    unfinished = dataclasses.replace(race, runs=race.runs[race.runs["variant"] != "final"])
    assert titles(unfinished) == []
    assert "Cannot tell yet: no final round has finished." in study_text(unfinished, "terminal")


def test_a_study_of_the_paper_has_the_tables_of_its_item() -> None:
    study = dataclasses.replace(made_study(["fixed", "er_fdm"]), paper={"item": "table ablation", "preset": "icons"})
    assert titles(study) == ["Ablation, T=3", "What the paper's text states"]
    other = pd.concat([study.runs, study.runs.iloc[:1].assign(**{"run": "other", "optim.lr": 9.0})])
    names = titles(dataclasses.replace(study, runs=other))
    assert names[0] == "service accuracy by optim.lr", "runs that cannot be laid out as in the paper"


def test_only_sweeps_and_races_import_optuna() -> None:
    lines = ["import sys", "from analysis import study_text", "from tests.support.made_search import made_search"]
    lines += ["study_text(made_search(), 'terminal')", "assert 'optuna' not in sys.modules"]
    subprocess.run([sys.executable, "-c", "; ".join(lines)], check=True)


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
        assert "BC" in render(tables, form), form


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_a_text(name: str) -> None:
    for form in ("terminal", "markdown"):
        text = study_text(STUDIES[name], form)  # type: ignore[arg-type]
        first = text.splitlines()[0].removeprefix("## ")
        assert first == headline(STUDIES[name]).title
        assert text == text.strip()


def test_the_text_of_a_study_has_title_tables_finding_certainty_and_command() -> None:
    study, found = made_study(seeds=(0, 1, 2)), headline(made_study(seeds=(0, 1, 2)))
    assert found.command
    table = render(study_tables(study), "terminal")
    text = study_text(study, "terminal")
    assert text.startswith(f"{found.title}\n\n{table}\n\n")
    *sentences, last = text.removeprefix(f"{found.title}\n\n{table}\n\n").splitlines()
    assert " ".join(sentences) == f"{found.finding} {found.certainty} {found.remark}"
    assert max(map(len, sentences)) <= 100
    assert last == f"surer: {found.command}", "a line of its own, which can be copied"
    marked = study_text(study, "markdown", deviations=True)
    assert marked.startswith(f"## {found.title}\n\n**Classifier × distillation**\n\n| method |")
    assert marked.endswith(f"\n\nsurer: `{found.command}`")
    assert "± is one standard deviation over 3 seeds." in marked
    with pytest.raises(InputError, match="latex"):
        study_text(study, "latex")  # type: ignore[arg-type]


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
