"""Sweeps: points from Optuna on tuning pairs, shared first tasks, more trials later, early stopping."""

import itertools
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


def open_journal(storage: Path, name: str) -> optuna.Study:
    """As optuna-dashboard opens it."""
    journal = JournalStorage(JournalFileBackend(str(storage / "studies" / name / "optuna.journal")))
    return optuna.load_study(study_name=name, storage=journal)


def table_rows(out: str) -> list[str]:
    """The printed table, from its rule to the blank line below it."""
    lines = out.splitlines()
    rule = next(place for place, line in enumerate(lines) if line and set(line) == {"-"})
    return list(itertools.takewhile(bool, lines[rule + 1 :]))


def test_a_sweep_shares_its_first_task_and_can_be_extended(
    small_ray: None, spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--spec", str(spec), "--storage", str(tmp_path / "out"), "--name", "lambda"]
    assert sweep.main([*words, "--trials", "5"]) == 0
    assert len(list((tmp_path / "out" / "links").iterdir())) == 1 + 5 * (TASKS - 1)
    study = load_study(tmp_path / "out" / "studies" / "lambda")
    assert (~study.tasks["reused"]).sum() == 1 + 5 * (TASKS - 1)
    assert study.tasks.query("task == 1")["key"].nunique() == 1
    journal = open_journal(tmp_path / "out", "lambda")
    assert journal.metric_names == ["BC"]
    by_trial, trials = study.runs.set_index("trial"), journal.trials
    for trial in trials:
        row: Any = by_trial.loc[trial.number]
        assert trial.state == TrialState.COMPLETE
        assert trial.value == row["tuning_BC"], "trials are judged on tuning pairs"
        assert trial.params == {name: row[name] for name in SPACE}
    assert any(by_trial["tuning_BC"] != by_trial["BC"])
    out = capsys.readouterr().out
    best = int(by_trial["tuning_BC"].astype(float).idxmax())
    assert table_rows(out)[0].split()[0] == str(best), out

    assert sweep.main([*words, "--trials", "5"]) == 0
    assert "; 0 links trained" in capsys.readouterr().out
    assert sweep.main([*words, "--trials", "7"]) == 0
    assert f"; {2 * (TASKS - 1)} links trained" in capsys.readouterr().out
    later = open_journal(tmp_path / "out", "lambda").trials
    assert [trial.params for trial in later[:5]] == [trial.params for trial in trials]
    points = [tuple(trial.params.values()) for trial in later]
    assert len(set(points)) == 7, "no start-up point is repeated"


def test_an_interrupted_sweep_with_two_objectives_resumes(
    small_ray: None, spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C when a trial has ended; the same command ends the study: no trial lost, none run twice."""
    words = ["--spec", str(spec), "--storage", str(tmp_path / "out"), "--name", "pareto", "--trials", "6"]
    words += ["--objectives", "BC", "stored_bytes", "--sampler", "nsga2", "--set", "optim.epochs=40"]
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
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 6
    assert [trial.params for trial in trials[: len(before)]] == [trial.params for trial in before]
    # A point of the second generation may repeat one of the first, and is not trained twice.
    first = {tuple(trial.params.values()): trial.number for trial in reversed(trials)}
    runs = finished_events(tmp_path / "out", "pareto")
    assert len(runs) == len(set(runs)) == len(first)
    assert len(list((tmp_path / "out" / "links").iterdir())) == 1 + len(first) * (TASKS - 1)
    by_trial = load_study(tmp_path / "out" / "studies" / "pareto").runs.set_index("trial")
    for trial in trials:
        row = by_trial.loc[first[tuple(trial.params.values())]]
        assert trial.values == [row["tuning_BC"], row["stored_bytes"]]
    best = {tuple(trial.params.values()) for trial in open_journal(tmp_path / "out", "pareto").best_trials}
    assert len(best) == len(table_rows(capsys.readouterr().out))


def test_poor_trials_stop_early_and_several_seeds_are_averaged(small_ray: None, spec: Path, tmp_path: Path) -> None:
    words = ["--spec", str(spec), "--storage", str(tmp_path / "out"), "--name", "halving", "--seeds", "0", "1"]
    assert sweep.main([*words, "--trials", "6", "--early-stopping"]) == 0
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
            assert trial.value == pytest.approx(np.mean(rows["tuning_BC"].astype(float)))
    bc = {trial.number: trial.intermediate_values[2] for trial in journal.trials}
    worst = min(bc, key=lambda number: bc[number])
    first = min(bc)
    assert states[worst] == TrialState.PRUNED or worst == first, "the first trial has no other to compare with"
