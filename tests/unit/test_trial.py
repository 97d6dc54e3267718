"""What a trial does about trouble: which kind ends as a failed row, which one is left to Ray for another attempt."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_study import small_study

from cl2r.errors import InputError, TrainingError
from cl2r.rayrun import trial
from cl2r.rayrun.resources import Resources
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job, plan_job
from cl2r.study.spec import Point


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    found = StudyFolder(tmp_path, "study")
    found.claim_name({})
    return found


@pytest.fixture
def job(tiny: Path) -> Job:
    return plan_job(small_study(tiny, seeds=[0, 1]), Point(None, {}), 7)


def run(job: Job, folder: StudyFolder, monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> list[Any]:
    """Run the trial with a walk that raises; what Tune would hear."""
    reports: list[Any] = []

    def walk(*_: Any) -> None:
        if error:
            raise error

    monkeypatch.setattr(trial, "walk", walk)
    monkeypatch.setattr(trial.tune, "report", reports.append)
    resources = {"workers": 1, "cpus_per_worker": 1}
    config = {"job": json.dumps(job.to_plain()), "study": str(folder.path), "owner": "x", "resources": resources}
    config |= {"starting": None, "patience": 0.0}
    trial.run_trial(config)
    return reports


def test_a_bug_is_a_failed_row_at_once(job: Job, folder: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(job, folder, monkeypatch, ValueError("two\nlines")) == [{"ended": True}]
    outcomes = folder.ledger.outcomes()
    assert {name: event.kind for name, event in outcomes.items()} == {run.name: "failed" for run in job.runs}
    assert {event.read()["reason"] for event in outcomes.values()} == {"ValueError: two lines"}


def test_a_disk_may_recover(job: Job, folder: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="full"):
        run(job, folder, monkeypatch, OSError("full"))
    assert folder.ledger.outcomes() == {}


def test_a_node_that_does_not_share_the_storage_says_so(
    job: Job, folder: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.specification.unlink()
    with pytest.raises(OSError, match="is not the storage of the driver"):
        run(job, folder, monkeypatch, None)


def test_a_walk_enters_what_cannot_succeed(job: Job, folder: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    from cl2r.engine.workers import ALONE
    from cl2r.study import walk

    for error in (TrainingError("not a number"), InputError("no such file")):
        monkeypatch.setattr(walk, "_walk", lambda *_, error=error: (_ for _ in ()).throw(error))
        walk.walk(job, folder, "x", ALONE, lambda _: None)
        assert {event.read()["reason"] for event in folder.ledger.outcomes().values()} == {str(error)}


def test_a_trunk_that_fails_is_noted(job: Job, folder: StudyFolder) -> None:
    from cl2r.study.walk import enter_failures

    enter_failures(Job(-1, None, job.runs[:1], 0, 1), folder, "not a number")
    assert folder.ledger.outcomes() == {}
    (note,) = folder.ledger.events("noted")
    assert note.read()["line"] == "its first 1 tasks failed: not a number"


def test_a_gpu_is_used_only_if_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert Resources().device() == torch.device("cpu")
    assert Resources(gpus_per_worker=1).device() == torch.device("cuda")
    assert Resources(workers=2, gpus_per_worker=1, backend="gloo").device() == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="torch sees no GPU"):
        Resources(gpus_per_worker=1).device()
