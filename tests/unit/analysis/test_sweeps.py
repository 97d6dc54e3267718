"""Trials of a sweep: ranked by context, on tuning pairs and under constraints; work saved by early stopping."""

import dataclasses
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.sweeps import (
    best_part,
    best_trials,
    feasible,
    link_counts,
    ranked_trials,
    saved_work,
    sweep_contexts,
    sweep_goals,
    too_few,
)
from analysis.tables.sweep import NOT_BETTER, nothing_beats_never, trials_table, trials_tables
from cl2r.errors import InputError
from tests.support.made_study import made_sweep

LIMIT = {"search": {"objectives": ["service_accuracy"], "constraints": {"reindexed_accuracy": ">= er - 0.01"}}}


def sweep_runs() -> pd.DataFrame:
    """Four trials of two seeds, tuning BC 0.1, 0.3, 0.2 and (a seed pruned) 0.9; report BC is the negative."""
    rows: list[dict[str, Any]] = []
    for trial, (tuning, size) in enumerate([(0.1, 1e6), (0.3, 3e6), (0.2, 4e6), (0.9, 5e5)]):
        for seed, shift in ((0, -0.01), (1, 0.01)):
            row = {"trial": trial, "seed": seed, "status": "finished", "method.lambda_base": trial / 8, "optim.lr": 0.1}
            row |= {"tuning_BC": tuning + shift, "BC": -tuning + shift, "stored_bytes": size, "train_seconds": 60.0}
            rows.append(row)
    rows[-1]["status"] = "pruned"
    return pd.DataFrame(rows)


def service_runs(frozen: float = 0.80, learned: float = 0.77) -> pd.DataFrame:
    """A frozen model (lr 0), a model that learns, one that learns a little, and the reference ER.

    The frozen model serves with `frozen` = C[1,1] and has BC 0; the learning one serves with `learned`.
    """
    cells = [  # trial, variant, method, lr, service, re-indexed, BC
        (0, None, "cl2r", 0.0, frozen, frozen, 0.0),
        (1, None, "cl2r", 0.1, learned, 0.86, -0.03),
        (2, None, "cl2r", 0.01, learned - 0.01, 0.845, -0.02),
        (None, "reference", "er", 0.1, 0.60, 0.85, -0.2),
    ]
    rows = []
    for trial, variant, method, lr, service, last, bc in cells:
        for seed in (0, 1):
            row: dict[str, Any] = {"trial": trial, "variant": variant, "method.name": method, "seed": seed, "tasks": 3}
            row |= {"optim.lr": lr, "status": "finished", "stored_bytes": 1e6, "train_seconds": 60.0}
            values = {"service_accuracy": service, "reindexed_accuracy": last, "BC": bc, "AC": 0.0, "FC": bc}
            values |= {"first_accuracy": 0.80, "mean_accuracy": service, "service_recall": math.nan}
            values |= {"reindexed_recall": math.nan, "first_recall": math.nan}
            rows.append(row | values | {f"tuning_{name}": value for name, value in values.items()})
    return pd.DataFrame(rows).astype({"trial": "Int64"})


@pytest.mark.parametrize("objective", ["BC", "service_accuracy"])
def test_a_frozen_model_wins_by_one_metric_alone_and_loses_under_the_constraint(objective: str) -> None:
    runs, goals = service_runs(), {objective: "max"}
    assert best_trials(runs, goals)["trial"].tolist()[0] == 0, "BC 0 and the first model's accuracy"
    table = best_trials(runs, goals, specification=LIMIT)
    assert 0 not in table["trial"].tolist()
    assert table["trial"].tolist() == ([1, 2] if objective == "service_accuracy" else [2, 1])
    assert feasible(runs, LIMIT).iloc[:, 0].tolist() == pytest.approx([0.04 / 0.84, -0.02 / 0.84, -0.005 / 0.84])
    assert trials_table(runs, goals, specification=LIMIT).rows[0][0].text != "0"


def test_nothing_beats_never_upgrading() -> None:
    goals = {"service_accuracy": "max"}
    worse, better = service_runs(), service_runs(learned=0.81)
    assert nothing_beats_never(worse, ranked_trials(worse, goals, LIMIT))
    assert not nothing_beats_never(better, ranked_trials(better, goals, LIMIT))
    (table,), (other,) = trials_tables(worse, LIMIT), trials_tables(better, LIMIT)
    assert NOT_BETTER in table.notes
    assert NOT_BETTER not in other.notes
    lucky = service_runs(frozen=0.82)  # above never upgrading, but it misses the constraint
    assert nothing_beats_never(lucky, ranked_trials(lucky, goals, LIMIT))


def test_reference_rows_stand_below_the_trials() -> None:
    (table,) = trials_tables(service_runs(), LIMIT)
    assert table.references == 2
    assert [cell.text for cell in table.column("trial")] == ["1", "2", "never upgrade (ER)", "re-index (ER)"]
    service = ["0.770 ± 0.000", "0.760 ± 0.000", "0.800 ± 0.000", "0.850 ± 0.000"]
    assert [cell.text for cell in table.column("service accuracy")] == service
    assert [cell.text for cell in table.column("BC")][2:] == ["0.000 ± 0.000", "–"]
    assert table.data["reference"].tolist() == [False, False, True, True]
    assert table.marks == set()
    assert any("re-indexed accuracy >= er - 0.01 = 0.840 (tuning pairs)" in note for note in table.notes)
    assert any("pairs or templates" in note for note in table.notes)
    heads = ["trial", "lr", "seeds", "service accuracy", "service recall", "re-indexed accuracy", "AC", "BC", "FC"]
    assert list(table.columns) == [*heads, "service accuracy, tuning", "stored MB", "training s"]


def test_without_a_feasible_trial_those_that_miss_least_are_shown_and_none_is_best() -> None:
    strict = {"search": {"objectives": ["BC"], "constraints": {"reindexed_accuracy": ">= er + 0.1"}}}
    (table,) = trials_tables(service_runs(), strict)
    assert [cell.text for cell in table.column("trial")][:3] == ["1", "2", "0"]
    assert any(note.startswith("No trial met the constraint") for note in table.notes)
    ranked = ranked_trials(service_runs(), {"BC": "max"}, strict)
    assert (best_part(ranked), ranked["front"].any()) == ([], False)


def test_a_constraint_is_judged_by_the_same_seeds_of_the_same_context() -> None:
    runs = service_runs()
    other = runs.assign(**{"scenario.n_tasks": 5, "trial": runs["trial"] + 3})
    other.loc[other["variant"] == "reference", "tuning_reindexed_accuracy"] = 0.9
    both = pd.concat([runs.assign(**{"scenario.n_tasks": 2}), other], ignore_index=True)
    missed = feasible(both, LIMIT).iloc[:, 0]
    shares = [0.04 / 0.84, -0.02 / 0.84, -0.005 / 0.84, 0.09 / 0.89, 0.03 / 0.89, 0.045 / 0.89]
    assert missed.tolist() == pytest.approx(shares)
    third = runs.assign(seed=runs["seed"].where(runs["variant"].isna(), runs["seed"] + 5))
    assert np.isinf(feasible(third, LIMIT)).all(axis=None), "the reference has other seeds"
    (table,) = trials_tables(third, LIMIT)
    assert any("not known" in note for note in table.notes)
    failed = runs.assign(status=["failed" if value == "reference" else "finished" for value in runs["variant"]])
    assert np.isinf(feasible(failed, LIMIT)).all(axis=None)
    assert feasible(runs, {"search": {}}).shape == (3, 0), "an older study has no constraints"


def test_a_constraint_on_a_cost_needs_no_reference() -> None:
    runs = service_runs().assign(stored_bytes=[1e6, 1e6, 2e6, 2e6, 3e6, 3e6, 9e6, 9e6])
    limit = {"search": {"objectives": ["BC"], "constraints": {"stored_bytes": "<= 2e6"}}}
    assert best_trials(runs, {"BC": "max"}, specification=limit)["trial"].tolist() == [0, 1]
    (table,) = trials_tables(runs, limit)
    assert "Only trials with stored_bytes <= 2e+06 count." in table.notes


def test_rows_with_a_variant_are_no_trials() -> None:
    runs = service_runs()
    again = runs[runs["trial"] == 2].assign(variant="confirmed", seed=[7, 8], tuning_service_accuracy=0.99)
    both = pd.concat([runs, again], ignore_index=True)
    table = best_trials(both, {"service_accuracy": "max"}, specification=LIMIT)
    assert table["trial"].tolist() == [1, 2]
    assert table["seeds"].tolist() == [2, 2]


def test_contexts_are_never_ranked_in_one_list() -> None:
    study = made_sweep(3, (5, 2))
    assert [label for label, _ in sweep_contexts(study.runs)] == ["T=2", "T=5"]
    for _, rows in sweep_contexts(study.runs):
        assert rows["variant"].notna().sum() == 1, "with its reference"
    with pytest.raises(InputError, match=r"scenario\.n_tasks"):
        best_trials(study.runs, {"BC": "max"})
    titles = [table.title for table in trials_tables(study.runs, study.specification)]
    assert titles == ["Best trials by service accuracy, T=2", "Best trials by service accuracy, T=5"]
    one = made_sweep(3, (2,)).runs
    assert [label for label, _ in sweep_contexts(one)] == [""]


def test_best_trials_are_chosen_on_tuning_pairs() -> None:
    table = best_trials(sweep_runs(), {"BC": "max"}, count=2)
    costs = ["stored_bytes", "stored_bytes_sd", "train_seconds", "train_seconds_sd"]
    columns = ["trial", "method.lambda_base", "seeds", "BC", "BC_sd", "tuning_BC", "tuning_BC_sd", *costs]
    assert table.columns.tolist() == columns
    assert table["trial"].tolist() == [1, 2], "trial 3 did not finish, trial 0 is third"
    assert table["tuning_BC"].tolist() == pytest.approx([0.3, 0.2])
    assert table["BC"].tolist() == pytest.approx([-0.3, -0.2])
    assert table["BC_sd"].tolist() == pytest.approx([np.sqrt(0.0002)] * 2)
    assert best_trials(sweep_runs(), {"BC": "min"})["trial"].tolist() == [0, 2, 1]


def test_trials_that_still_run_or_lack_the_metric_are_no_candidates() -> None:
    runs = sweep_runs()
    running = runs[~((runs["trial"] == 1) & (runs["seed"] == 1))]
    assert best_trials(running, {"BC": "max"})["trial"].tolist() == [2, 0]
    assert best_trials(runs[runs["seed"] == 0], {"BC": "max"})["trial"].tolist() == [3, 1, 2, 0], "all have one seed"
    runs.loc[runs["trial"] == 1, "tuning_BC"] = [np.nan, 0.7]
    assert best_trials(runs, {"BC": "max"})["trial"].tolist() == [2, 0]
    failed = runs.assign(status="failed", tuning_BC=None, BC=None)
    assert trials_table(failed, {"BC": "max", "stored_bytes": "min"}).rows == ()


def test_several_objectives_make_a_pareto_front() -> None:
    table = best_trials(sweep_runs(), {"BC": "max", "stored_bytes": "min"}, count=1)
    assert table["trial"].tolist() == [1, 0], "trial 2 is worse and larger than trial 1"
    assert best_trials(sweep_runs(), {"stored_bytes": "min", "BC": "max"})["trial"].tolist() == [0, 1]
    goals = sweep_goals({"search": {"objectives": ["BC", "stored_bytes", "seconds"]}})
    assert goals == {"BC": "max", "stored_bytes": "min", "seconds": "min"}
    shown = trials_table(sweep_runs(), goals)
    assert [[cell.text for cell in row] for row in shown.rows] == [
        ["1", "0.125", "2", "-0.300 ± 0.014", "+0.300 ± 0.014", "3.00", "60"],
        ["0", "0", "2", "-0.100 ± 0.014", "+0.100 ± 0.014", "1.00", "60"],
    ]
    assert shown.columns == ("trial", "λ_base", "seeds", "BC", "BC, tuning", "stored MB", "training s")
    one_seed = trials_table(sweep_runs().query("seed == 0"), {"BC": "max"})
    assert not any("±" in cell.text for row in one_seed.rows for cell in row)


@pytest.mark.parametrize(
    ("objectives", "named"),
    [({"tuning_BC": "max"}, "tuning_BC"), ({"BC": "maximise"}, "maximise"), ({"AC": "max"}, "tuning_AC"), ({}, "obj")],
)
def test_a_bad_objective_is_named(objectives: dict[str, str], named: str) -> None:
    with pytest.raises(InputError, match=named):
        best_trials(sweep_runs(), objectives)


def test_few_trials_have_no_best() -> None:
    assert too_few(6) == "6 trials: too few to call one the best (10 needed)."
    assert too_few(10) == ""
    ranked = pd.DataFrame({"miss": [-1.0] * 20 + [1.0] * 5}, index=range(25))
    assert best_part(ranked) == [0, 1, 2, 3]
    assert best_part(ranked[:10]) == [0, 1, 2], "at least three"
    assert best_part(ranked[19:]) == [19]


def test_work_saved_by_early_stopping() -> None:
    done = pd.DataFrame({"trial": range(16), "status": "finished", "tasks": 3, "seed": 0})
    early = pd.DataFrame({"trial": range(16, 20), "status": "pruned", "tasks": [1, 1, 1, None], "seed": 0})
    early.loc[3, "tasks"] = 0
    runs = pd.concat([done, early], ignore_index=True)
    assert saved_work(runs) == "4 of 20 trials were stopped early, which saved 9 of 60 tasks (15 %)."
    five = runs.assign(**{"scenario.n_tasks": 5, "tasks": 5}, trial=runs["trial"] + 20, status="finished")
    both = pd.concat([runs.assign(**{"scenario.n_tasks": 3}), five], ignore_index=True)
    assert saved_work(both) == "4 of 40 trials were stopped early, which saved 9 of 160 tasks (6 %)."
    assert saved_work(done) == ""
    others = runs.assign(variant=[None] * 16 + ["confirmed"] * 4)
    assert saved_work(others) == "", "only trials count"


def test_links_that_were_shared() -> None:
    study = made_sweep(2, (2,))
    runs = study.runs["run"].tolist()
    tasks = pd.DataFrame({"run": [runs[0], runs[0], runs[1], runs[1]], "key": ["a", "b", "a", "c"]})
    tasks = tasks.assign(reused=[False, False, True, False])
    assert link_counts(study.runs, dataclasses.replace(study, tasks=tasks).tasks) == (3, 4)
    assert link_counts(study.runs, pd.DataFrame()) == (0, 0)
