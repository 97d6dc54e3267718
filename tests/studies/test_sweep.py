"""Sweeps: points from Optuna on tuning pairs, shared first tasks, more trials later, contexts, early stopping."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from analysis import load_study
from studies import sweep
from tests.support.study_frames import finished_events

TASKS = 3
SPACE = {"method.lambda_base": {"low": 0.1, "high": 100.0, "log": True}, "memory.per_class": {"low": 1, "high": 6}}


@pytest.fixture
def spec(preset: Path, tmp_path: Path) -> Path:
    """λ × memory for CL²R; three short tasks."""
    content = {"preset": str(preset), "set": {"optim.epochs": 4}, "space": SPACE, "search": {"startup": 3}}
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def open_journal(storage: Path, name: str, context: str = "") -> optuna.Study:
    """As optuna-dashboard opens it."""
    journal = JournalStorage(JournalFileBackend(str(storage / "studies" / name / "optuna.journal")))
    return optuna.load_study(study_name=f"{name} {context}".strip(), storage=journal)


def test_a_sweep_shares_its_first_task_and_can_be_extended(
    small_ray: None, spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--spec", str(spec), "--storage", str(tmp_path / "out"), "--name", "lambda"]
    assert sweep.main([*words, "--trials", "5"]) == 0
    links = 1 + 5 * (TASKS - 1) + TASKS  # of CL²R, and of ER
    assert len(list((tmp_path / "out" / "links").iterdir())) == links
    study = load_study(tmp_path / "out" / "studies" / "lambda")
    assert (~study.tasks["reused"]).sum() == links
    reference = study.runs[study.runs["variant"] == "reference"].iloc[0]
    assert (reference["method.name"], len(study.runs)) == ("er", 6)
    journal = open_journal(tmp_path / "out", "lambda")
    assert journal.metric_names == ["service_accuracy"]
    by_trial, trials = study.runs.dropna(subset=["trial"]).set_index("trial"), journal.trials
    for trial in trials:
        row: Any = by_trial.loc[trial.number]
        assert trial.state == TrialState.COMPLETE
        assert trial.value == row["tuning_service_accuracy"], "trials are judged on tuning pairs"
        assert trial.user_attrs["tuning_BC"] == row["tuning_BC"]
        bound = reference["tuning_reindexed_accuracy"] - 0.01
        assert list(trial.constraints.values()) == [pytest.approx((bound - row["tuning_reindexed_accuracy"]) / bound)]
        assert trial.params == {name: row[name] for name in SPACE}
    assert any(by_trial["tuning_service_accuracy"] != by_trial["service_accuracy"])

    capsys.readouterr()
    assert sweep.main([*words, "--trials", "5"]) == 0
    assert "; 0 links trained" in capsys.readouterr().out
    assert sweep.main([*words, "--trials", "7"]) == 0
    assert f"; {2 * (TASKS - 1)} links trained" in capsys.readouterr().out
    later = open_journal(tmp_path / "out", "lambda").trials
    assert [trial.params for trial in later[:5]] == [trial.params for trial in trials]
    points = [tuple(trial.params.values()) for trial in later]
    assert len(set(points)) == 7, "no start-up point is repeated"


def test_each_number_of_tasks_has_its_own_search_and_its_best_trials_are_confirmed(
    small_ray: None, preset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed while trials are running, the same command finishes every search and confirms each winner."""
    content = {
        "preset": str(preset),
        "space": {**SPACE, "scenario.n_tasks": [2, 3]},
        "search": {"startup": 2, "trials": 3, "confirm": {"top": 1, "seeds": [5]}, "constraints": {"AC": ">= -1"}},
    }
    path = tmp_path / "counts.yaml"
    path.write_text(yaml.safe_dump(content))
    words = ["--spec", str(path), "--storage", str(tmp_path / "out"), "--name", "counts"]
    command = [sys.executable, sweep.__file__, *words]
    with (tmp_path / "log").open("w") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "RAY_ADDRESS": "local"})
        while driver.poll() is None and len(finished_events(tmp_path / "out", "counts")) < 5:
            time.sleep(0.05)
        driver.kill()
        driver.wait(60)
    assert sweep.main(words) == 0
    study = load_study(tmp_path / "out" / "studies" / "counts")
    assert study.runs["run"].is_unique
    trials, others = study.runs[study.runs["variant"].isna()], study.runs[study.runs["variant"].notna()]
    assert trials.groupby("scenario.n_tasks").size().tolist() == [3, 3]
    for tasks, own in others.groupby("scenario.n_tasks"):
        assert sorted(zip(own["variant"], own["seed"], strict=True)) == [
            *(("confirmed", 5), ("default", 0), ("default", 5), ("reference", 0), ("reference", 5))
        ]
        best = trials[trials["scenario.n_tasks"] == tasks].set_index("trial")["tuning_service_accuracy"].idxmax()
        assert set(own.loc[own["variant"] == "confirmed", "trial"]) == {best}
        journal = open_journal(tmp_path / "out", "counts", f"T={tasks}")
        states = [trial.state for trial in journal.trials]
        assert states.count(TrialState.COMPLETE) == 3
        assert set(states) <= {TrialState.COMPLETE, TrialState.FAIL}, "one that was killed while its point was chosen"
    assert study.about["expected_runs"] == len(study.runs) == 2 * (3 + 5)
    assert "; 0 links trained" not in capsys.readouterr().out
    assert sweep.main(words) == 0
    assert "; 0 links trained" in capsys.readouterr().out


def test_an_interrupted_sweep_with_two_objectives_resumes(small_ray: None, spec: Path, tmp_path: Path) -> None:
    """Ctrl-C when a trial has ended; the same command ends the study: no trial lost, none run twice."""
    words = ["--spec", str(spec), "--storage", str(tmp_path / "out"), "--name", "pareto", "--trials", "6"]
    words += ["--objectives", "BC", "stored_bytes", "--sampler", "nsga2", "--set", "optim.epochs=40"]
    words += ["--no-constraints"]
    command = [sys.executable, sweep.__file__, *words]
    with (tmp_path / "log").open("w") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "RAY_ADDRESS": "local"})
        while driver.poll() is None and not finished_events(tmp_path / "out", "pareto"):
            time.sleep(0.05)
        driver.send_signal(signal.SIGINT)
        assert driver.wait(60) == 130, (tmp_path / "log").read_text()
    before = open_journal(tmp_path / "out", "pareto").trials
    assert 0 < len(finished_events(tmp_path / "out", "pareto")) < 6
    assert sweep.main(words) == 0
    trials = open_journal(tmp_path / "out", "pareto").trials
    assert [trial.params for trial in trials[: len(before)]] == [trial.params for trial in before]
    # A trial that was interrupted while its point was being chosen has failed, and another one takes its place.
    whole = [trial for trial in trials if trial.params.keys() == SPACE.keys()]
    assert {trial.state for trial in trials if trial not in whole} <= {TrialState.FAIL}
    trials = whole
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 6
    # A point of the second generation may repeat one of the first, and is not trained twice.
    first = {tuple(trial.params.values()): trial.number for trial in reversed(trials)}
    runs = finished_events(tmp_path / "out", "pareto")
    assert len(runs) == len(set(runs)) == len(first)
    assert len(list((tmp_path / "out" / "links").iterdir())) == 1 + len(first) * (TASKS - 1)
    by_trial = load_study(tmp_path / "out" / "studies" / "pareto").runs.set_index("trial")
    for trial in trials:
        row = by_trial.loc[first[tuple(trial.params.values())]]
        assert trial.values == [row["tuning_BC"], row["stored_bytes"]]


def test_poor_trials_stop_early_and_several_seeds_are_averaged(small_ray: None, spec: Path, tmp_path: Path) -> None:
    words = ["--spec", str(spec), "--storage", str(tmp_path / "out"), "--name", "halving", "--seeds", "0", "1"]
    assert sweep.main([*words, "--trials", "6", "--pruner", "halving"]) == 0
    study = load_study(tmp_path / "out" / "studies" / "halving")
    journal = open_journal(tmp_path / "out", "halving")
    states = [trial.state for trial in journal.trials]
    assert set(states) == {TrialState.COMPLETE, TrialState.PRUNED}
    for trial in journal.trials:
        rows = study.runs[study.runs["trial"] == trial.number]
        assert list(rows["seed"]) == [0, 1]
        if trial.state == TrialState.PRUNED:
            assert set(rows["status"]) == {"pruned"}
            assert set(rows["tasks"]) == {2}
            assert rows["reason"].str.contains("stopped early after task 2").all()
        else:
            assert trial.value == pytest.approx(np.mean(rows["tuning_service_accuracy"].astype(float)))
    after_two = {trial.number: trial.intermediate_values[2] for trial in journal.trials}
    worst = min(after_two, key=lambda number: after_two[number])
    first = min(after_two)
    assert states[worst] == TrialState.PRUNED or worst == first, "the first trial has no other to compare with"
