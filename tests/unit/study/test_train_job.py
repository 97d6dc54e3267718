"""What a training process records in the ledger when it cannot succeed."""

import logging
from pathlib import Path
from typing import Any

import pytest

from cl2r.config.keys import AcceptLinks
from cl2r.engine.workers import ALONE, Workers
from cl2r.errors import InputError, TrainingError
from cl2r.study import train_job
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job, plan_job
from cl2r.study.resources import Resources
from cl2r.study.spec import Point
from tests.support.pretended import pretended
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


def test_a_study_resumed_with_other_workers_keeps_its_own_links(tiny: Path, folder: StudyFolder) -> None:
    """The first command ends after two of three tasks; the second one has two workers."""
    (run,) = (job := plan_job(small_study(tiny), Point(None, {}), 0)).runs
    for resources, whole in ((Resources(), Job(-1, None, job.runs, 0, 2)), (Resources(workers=2), job)):
        folder.ledger.write("opened", "driver", {"made_by": resources.made_by})
        train_job.train_job(whole, folder, f"by {resources.workers}", pretended(resources.workers), lambda _: None)
    frames = folder.ledger.outcomes()[run.name].read()["frames"]
    assert [row["workers"] for row in frames["tasks"]] == [1, 1, 2]
    assert [row["device"] for row in frames["tasks"]] == ["cpu"] * 3
    assert [row["key"] for row in frames["tasks"]][:2] == list(run.keys[:2])
    assert frames["tasks"][2]["key"].startswith(f"{run.keys[2]}-mixed")
    assert frames["runs"][0]["mixed"] is True
    assert frames["runs"][0]["links_trained"] == 1


@pytest.mark.parametrize(("accept", "trained"), [("same", 3), ("any", 0)])
def test_links_of_other_studies_are_used_if_asked_for(
    tiny: Path, folder: StudyFolder, accept: AcceptLinks, trained: int
) -> None:
    """The other study had one worker. What is reported names links as they are stored."""
    (run,) = (job := plan_job(small_study(tiny), Point(None, {}), 0)).runs
    reports = list[dict[str, Any]]()
    for study, count in ((StudyFolder(folder.storage, "other"), 1), (folder, 2)):
        study.ledger.write("opened", "driver", {"made_by": Resources(workers=count).made_by})
        train_job.train_job(job, study, f"by {count}", pretended(count), reports.append, accept)
    (row,) = folder.ledger.outcomes()[run.name].read()["frames"]["runs"]
    assert (row["links_trained"], row["mixed"]) == (trained, False)
    ending = "-cpu2" if trained else ""
    assert reports[-1]["keys"] == [[f"{key}{ending}" for key in run.keys]]
