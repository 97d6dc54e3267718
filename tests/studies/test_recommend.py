"""A race of methods on a tiny data set: rounds, resume after a kill, and a config that can be run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analysis import load_study
from analysis.recommendation import recommendation
from cl2r.errors import InputError
from cl2r.study.folder import StudyFolder
from cl2r.study.ledger import read_events
from studies import recommend
from tests.support.command_line import Command
from tests.support.study_frames import finished_events

NAME = "race"


def words(preset: Path, storage: Path) -> list[str]:
    """A race of three methods and one adapter, with two seeds in the final."""
    few = ["--methods", "er_fdm", "--adapters", "procrustes", "--seeds", "0", "1", "--hours", "0.1"]
    return ["--preset", str(preset), "--storage", str(storage), "--name", NAME, *few]


def test_a_killed_race_resumes_and_its_choice_can_be_run(
    small_ray: None, preset: Path, tmp_path: Path, cl2r: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    storage, out = tmp_path / "out", tmp_path / "chosen.yaml"
    command = [sys.executable, recommend.__file__, *words(preset, storage)]
    with (tmp_path / "log").open("w") as log:
        driver = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "RAY_ADDRESS": "local"}, start_new_session=True
        )
        while driver.poll() is None and not finished_events(storage, NAME):
            time.sleep(0.05)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    folder = StudyFolder(storage, NAME)
    before, ended = folder.ledger.events("round"), finished_events(storage, NAME)
    assert [event.subject for event in before] == ["screening"], (tmp_path / "log").read_text()
    assert recommend.main([*words(preset, storage), "--out", str(out)]) == 0
    text = capsys.readouterr().out

    rounds = folder.ledger.events("round")
    assert rounds[:1] == before, "the recorded round is followed, not decided again"
    assert [event.subject for event in rounds][:3] == ["screening", "tuning", "final"]
    runs = finished_events(storage, NAME)
    assert set(ended) <= set(runs)
    assert len(runs) == len(set(runs)), "no run is trained twice"
    study = load_study(storage / "studies" / NAME)
    assert set(study.runs["variant"]) == {"screening", "tuning", "final"}
    assert (study.runs["status"] == "finished").all()
    assert study.about["expected_runs"] == len(study.runs)
    screening = study.runs[study.runs["variant"] == "screening"]
    assert set(screening["method.name"]) == {"er", "cl2r", "er_fdm"}
    assert set(screening["optim.epochs"]) == {2}
    final = study.runs[study.runs["variant"] == "final"]
    assert {"er", "cl2r"} <= set(final["method.name"])
    assert {0, 1} <= set(final["seed"])
    tuning = study.runs[study.runs["variant"] == "tuning"]
    assert any("+procrustes" in name for name in tuning["method.name"])
    (decided,) = read_events([event for event in rounds if event.subject == "tuning"])
    assert len(tuning[~tuning["method.name"].str.contains("+", regex=False)]) > len(decided["candidates"])

    found = recommendation(study)
    assert found.sentence in text
    assert "screening: 3 candidates" in text
    assert out.read_text() == (storage / "studies" / NAME / "recommended.yaml").read_text()
    code, shown, err = cl2r("run", out, "--storage", storage)
    assert code == 0, err
    assert "\n0 links trained" in shown, "the race has trained all of them"
    assert str(found.run) in shown

    assert recommend.main(words(preset, storage)) == 0
    assert "; 0 links trained" in capsys.readouterr().out


def test_a_race_that_does_not_fit_into_its_time_is_refused(preset: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the smallest race of 3 methods takes about .* give --hours 0\.\d+"):
        recommend.main([*words(preset, tmp_path / "out"), "--hours", "0.00001"])
    assert not (tmp_path / "out" / "studies" / NAME / "ledger").exists()
