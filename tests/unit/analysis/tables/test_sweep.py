"""Tables of a sweep: the best trial by context, and what further seeds confirm."""

import dataclasses

import pandas as pd
import pytest
from matplotlib.colors import to_hex

from analysis import Study, best_by_context, confirmation_tables, study_tables, trials_tables
from analysis.comparisons import paired_differences
from analysis.names import GOOD, title
from analysis.plots import plot_best_by_tasks
from analysis.plots.sweep import COLOURS
from analysis.sweeps import best_trials, sweep_contexts, sweep_goals
from cl2r.errors import InputError
from tests.support.made_study import made_study, made_sweep


def test_one_row_per_context_with_the_best_knobs_and_their_range() -> None:
    study = made_sweep(20, (2, 5))
    table, goals = best_by_context(study), sweep_goals(study.specification)
    assert [cell.text for cell in table.column("context")] == ["T=2", "T=5"]
    for row, (_, rows) in zip(table.data.to_dict("records"), sweep_contexts(study.runs), strict=True):
        ranked = best_trials(rows, goals, 4, study.specification)
        best = ranked.iloc[0]
        assert (row["best_trial"], row["trials"]) == (best["trial"], 20)
        assert row["method.lambda_base"] == pytest.approx(best["method.lambda_base"])
        assert row["method.lambda_base_median"] == pytest.approx(ranked["method.lambda_base"].median())
        assert row["memory.per_class_low"] == ranked["memory.per_class"].min()
        assert row["memory.per_class_high"] == ranked["memory.per_class"].max()
        assert row["service_accuracy"] == pytest.approx(best["service_accuracy"])
        assert row["links_without_sharing"] == rows["tasks"].sum()
        assert row["links_trained"] <= row["links_without_sharing"]
    assert table.marks == set()


def test_a_context_without_a_feasible_trial_has_no_best() -> None:
    table = best_by_context(made_sweep(3, (2, 5), constraints={"reindexed_accuracy": ">= 0.75"}))
    assert [cell.text for cell in table.column("best trial")] == ["–", table.column("best trial")[1].text]
    assert [cell.text for cell in table.column("feasible")] == ["0", "3"]
    assert table.column("λ_base")[0].text == "–"
    assert "3 trials: too few to call one the best (10 needed)." in table.notes
    with pytest.raises(InputError, match="no sweep"):
        best_by_context(made_study())


def test_the_confirmation_compares_with_er_and_the_default_on_common_seeds() -> None:
    study = made_sweep(3, (2, 5), confirm=(1, 2))
    tables = confirmation_tables(study)
    assert [table.title for table in tables] == [f"Confirmation with further seeds, T={t}" for t in (2, 5)]
    table = tables[0]
    assert [cell.text.partition(" (")[0] for cell in table.column("runs")] == ["trial 0", "ER", "default"]
    assert [cell.text for cell in table.column("seeds")] == ["3", "3", "3"], "that of the search and the new ones"
    (_, rows), _ = sweep_contexts(study.runs)
    named = rows.assign(group=rows["variant"].fillna("trial").replace("confirmed", "trial"))
    named = named[(named["trial"] == 0) | named["trial"].isna()].drop(columns="variant")
    tests = paired_differences(named, "service_accuracy", ("group",), "reference").set_index("one")
    first = table.data.iloc[0]
    assert first["minus_ER"] == pytest.approx(tests.loc["trial", "difference"])
    assert first["minus_ER_low"] == pytest.approx(tests.loc["trial", "low"])
    assert first["service_accuracy"] == pytest.approx(named.query("group == 'trial'")["service_accuracy"].mean())
    assert table.column("service accuracy − ER")[1].text == "–", "ER against itself"
    assert any("Seed 0 chose the trials" in note and "new: 1 and 2." in note for note in table.notes)
    assert confirmation_tables(made_sweep(3)) == []


def test_a_confirmation_with_one_seed_or_failed_runs_has_no_interval() -> None:
    study = made_sweep(2, (2,), confirm=(1,))
    failed = study.runs.assign(
        status=study.runs["status"].mask(study.runs["variant"].fillna("") == "default", "failed")
    )
    (table,) = confirmation_tables(dataclasses.replace(study, runs=failed))
    assert [cell.text for cell in table.column("seeds")] == ["2", "2", "0"]
    assert table.column("service accuracy")[2].text == "–"
    assert "service accuracy − default" not in table.columns


def test_trials_of_several_methods_show_their_titles() -> None:
    space = {"method.name": {"choices": ["er_fd", "cl2r"]}, "method.lambda_base": {"low": 0.1, "high": 10.0}}
    study = made_study(["cl2r", "er_fd"], [0], grid={"method.lambda_base": [0.1, 3.0]}, space=space)
    (table,) = trials_tables(study.runs, study.specification)
    trials = table.data[~table.data["reference"]]
    assert [cell.text for cell in table.column("method")][:4] == [title(name) for name in trials["method.name"]]
    assert set(trials["method.name"]) == {"er_fd", "cl2r"}
    assert table.hints == ("On the command line: Trainable, FD is er_fd; CL²R is cl2r.",)
    new = study.runs[study.runs["trial"] == 2].assign(variant="confirmed", seed=1)
    (confirmed,) = confirmation_tables(dataclasses.replace(study, runs=pd.concat([study.runs, new])))
    assert confirmed.column("runs")[0].text.startswith("trial 2 (Trainable, FD, ")


def test_the_tables_of_a_sweep() -> None:
    titles = [table.title for table in study_tables(made_sweep(3, (2, 5), confirm=(1,)))]
    best = [f"Best trials by service accuracy, T={t}" for t in (2, 5)]
    confirmed = [f"Confirmation with further seeds, T={t}" for t in (2, 5)]
    assert titles == ["Best trial by context", *best, *confirmed, "All trials"]
    every = study_tables(made_sweep(3, (2,), confirm=(1,)))[-1]
    assert len(every.rows) == 3, "reference runs and confirmed ones are no trials"


def test_the_plot_shows_every_knob_with_the_scale_of_the_space() -> None:
    study = made_sweep(12, (2, 3, 5))
    figure = plot_best_by_tasks(study)
    panels = [axes for axes in figure.axes if axes.get_xlabel()]
    assert [axes.get_ylabel() for axes in panels] == ["λ_base", "memory"]
    assert {axes.get_yscale() for axes in panels} == {"log"}
    bests = best_by_context(study).data
    line = next(line for line in panels[0].get_lines() if len(line.get_xdata()) == 3)
    assert list(line.get_ydata()) == pytest.approx(bests["method.lambda_base"].tolist())
    dark, light = (to_hex(COLOURS(value)).upper() for value in (1.0, 0.0))
    assert (dark, light) == (GOOD, "#B9BDC1"), "the best trial is the darkest"
    dots = sum(len(drawn.get_offsets()) for drawn in panels[0].collections if len(drawn.get_offsets()) > 1)
    assert dots == bests["feasible"].sum()


@pytest.mark.parametrize("study", [made_sweep(3, (2,)), made_study(), made_sweep(2, constraints={"BC": ">= 2"})])
def test_a_plot_over_tasks_needs_several_numbers_of_tasks(study: Study) -> None:
    with pytest.raises(InputError):
        plot_best_by_tasks(study)
