"""The driver before and after Ray Tune: ledger, frames and outcome. Training runs in this process."""

import errno
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pandas as pd
import pytest

from cl2r.engine.workers import ALONE
from cl2r.errors import InputError, StoppedError
from cl2r.rayrun import driver
from cl2r.storage.path import at
from cl2r.study.jobs import prefix_jobs
from cl2r.study.session import StudySession
from cl2r.study.train_job import record_failed, train_job
from tests.support.small_study import small_study

KEYS = 3 + 3
"""Links of two methods that share nothing, with three tasks each."""


@pytest.fixture
def session(tiny: Path, tmp_path: Path) -> Iterator[StudySession]:
    spec = small_study(tiny, grid={"method.name": ["er", "cl2r"]}, set={"optim.epochs": 1, "optim.milestones": []})
    with StudySession.open(spec, at(str(tmp_path)), name="x") as opened:
        yield opened


def train_alone(session: StudySession) -> None:
    """Train job after job in this process."""
    for job in [*prefix_jobs(session.unfinished(), []), *session.unfinished()]:
        train_job(job, session.folder, session.trained_by, ALONE, lambda _: None)


def test_the_outcome_has_the_frames_and_a_repeated_run_trains_nothing(
    session: StudySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(driver, "run_jobs", train_alone)
        outcome = driver.run(session)
    assert (outcome.finished, outcome.failed, outcome.pruned, outcome.missing) == (2, 0, 0, 0)
    assert outcome.links_trained == KEYS
    for name, frame in outcome.frames.items():
        stored = pd.read_parquet(BytesIO((session.folder.path / f"{name}.parquet").read_bytes()))
        pd.testing.assert_frame_equal(stored, frame)
    began, ended = session.ledger.events("opened", "closed")
    assert (began.kind, ended.kind) == ("opened", "closed")
    assert (began.read()["runs_per_trial"], ended.read()["runs"]) == (len(session.spec.seeds), 2)
    assert session.folder.read_about()["ended"]

    monkeypatch.setattr(driver, "cluster", lambda *_: pytest.fail("nothing is left to do"))
    again = driver.run(session)
    assert (again.finished, again.links_trained) == (2, 0)
    pd.testing.assert_frame_equal(again.frames["runs"], outcome.frames["runs"])


def test_starting_ray_is_said_first(
    session: StudySession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    def refuse(*_: object) -> None:
        raise InputError("no room")

    monkeypatch.setattr(driver, "cluster", refuse)
    for address, line in [(None, "starting Ray…\n"), ("auto", "joining Ray at auto…\n")]:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        if address:
            monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(InputError, match="no room"):
            driver.run_jobs(session)
        assert capsys.readouterr().err == line


def test_tune_is_imported_only_once_the_head_has_answered(
    session: StudySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    begun: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", begun.append)
    with pytest.raises(InputError, match="no Ray head answers"):
        driver.run_jobs(session)
    assert begun == []


def test_an_error_of_tunes_import_is_left_to_the_main_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(driver.importlib, "import_module", broken)
    driver._load_tune()


def test_failed_and_missing_runs_are_counted(session: StudySession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "run_jobs", lambda _: record_failed(session.jobs[0], session.folder, "a reason"))
    outcome = driver.run(session)
    assert (outcome.finished, outcome.failed, outcome.missing) == (0, 1, 1)
    assert outcome.frames["runs"]["reason"].tolist() == ["a reason"]


def test_after_sigterm_the_study_stays_open(session: StudySession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "run_jobs", lambda _: setattr(session.stop, "requested", True))
    with pytest.raises(StoppedError, match="0 of 2 runs"):
        driver.run(session)
    assert session.ledger.events("closed") == []
    assert (session.folder.path / "runs.parquet").exists()


def raised(session: StudySession, monkeypatch: pytest.MonkeyPatch, jobs: Callable[[StudySession], object]) -> str:
    """What the driver says about the error of `jobs`."""
    monkeypatch.setattr(driver, "run_jobs", jobs)
    with pytest.raises(OSError) as caught:  # noqa: PT011
        driver.run(session)
    return str(caught.value)


def test_an_error_of_the_storage_names_the_study(session: StudySession, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def write(session: StudySession) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("cl2r.storage.path.os.fsync", full)
            (session.folder.path / "x").write_file(b"x")

    said = raised(session, monkeypatch, write)
    assert said.startswith(f"{session.folder.path}: No space left on device; ")
    assert "run the same command again" in said


def test_an_error_of_another_path_names_that_path(session: StudySession, monkeypatch: pytest.MonkeyPatch) -> None:
    said = raised(session, monkeypatch, lambda _: Path("/proc/nowhere").mkdir())
    assert said.startswith("/proc/nowhere: No such file or directory; ")
    assert str(session.folder.path) not in said
    said = raised(session, monkeypatch, lambda _: os.rename("/proc/here", "/proc/there"))
    assert said.startswith("/proc/here → /proc/there: ")


def test_an_error_without_a_path_does_not_blame_the_study(
    session: StudySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(_: StudySession) -> None:
        raise TimeoutError("an actor did not answer")

    said = raised(session, monkeypatch, late)
    assert said.startswith("an actor did not answer; the study is intact; ")
    assert str(session.folder.path) not in said


@pytest.mark.parametrize(
    "error", [socket.gaierror(-2, "Name or service not known"), ssl.SSLError(1, "certificate verify failed")]
)
def test_an_error_with_a_number_of_its_own_keeps_its_text(
    session: StudySession, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def fail(_: StudySession) -> None:
        raise error

    assert raised(session, monkeypatch, fail).startswith(f"{error.strerror}; the study is intact; ")
