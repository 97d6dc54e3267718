"""What a training process records in the ledger when it cannot succeed."""

import logging
from pathlib import Path

import pytest

from cl2r.engine.workers import ALONE, Workers
from cl2r.errors import InputError, TrainingError
from cl2r.study import train_job
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job, plan_job
from cl2r.study.spec import Point
from tests.support.small_study import small_study


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path, "study")


@pytest.fixture
def job(tiny: Path) -> Job:
    return plan_job(small_study(tiny, seeds=[0, 1]), Point(None, {}), 7)


@pytest.mark.parametrize("error", [TrainingError("not a number"), InputError("no such file")])
def test_training_that_cannot_succeed_is_a_failed_run(
    job: Job, folder: StudyFolder, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_job, "_train_job", lambda *_: (_ for _ in ()).throw(error))
    train_job.train_job(job, folder, "x", ALONE, lambda _: None)
    outcomes = folder.ledger.outcomes()
    assert outcomes.keys() == {run.name for run in job.runs}
    assert {event.read()["reason"] for event in outcomes.values()} == {str(error)}


def test_a_prefix_that_fails_is_noted(job: Job, folder: StudyFolder) -> None:
    train_job.record_failed(Job(-1, None, job.runs[:1], 0, 1), folder, "not a number")
    assert folder.ledger.outcomes() == {}
    (note,) = folder.ledger.events("noted")
    assert "not a number" in note.read()["line"]


def test_warnings_of_the_process_are_notes_without_secrets(
    job: Job, folder: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warns(*_: object) -> None:
        logging.getLogger("cl2r.engine").warning("link %s is damaged; see s3://me:hidden@bucket/x", "abc")
        logging.getLogger("cl2r.engine").info("not a warning")

    monkeypatch.setattr(train_job, "_train_job", warns)
    for workers in (ALONE, Workers(rank=1, world=2)):
        train_job.train_job(job, folder, "x", workers, lambda _: None)
    (note,) = folder.ledger.events("noted")
    assert note.subject == job.runs[0].name
    assert "link abc is damaged" in note.read()["line"]
    assert "hidden" not in note.read()["line"]
