"""A node is lost in the middle of a run. The study continues elsewhere; its frames equal those without Ray."""

import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cl2r.engine.workers import ALONE
from cl2r.study.jobs import prefix_jobs
from cl2r.study.session import StudySession
from cl2r.study.train_job import train_job
from studies import ablation
from tests.faults.fake_nodes import A100, H100, FakeNodes, wait_for
from tests.support.small_study import write_preset
from tests.support.study_frames import assert_same_frames, finished_events

TASKS, EPOCHS, CELLS = 2, 10, ("er", "fixed", "cl2r")
WISH = ("--gpus-per-worker", "1", "--accelerator", "A100", "--max-concurrent", "2")


@pytest.fixture(scope="module")
def preset(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks, long enough to lose a node in the middle."""
    optim = {"epochs": EPOCHS, "milestones": [7]}
    return write_preset(tmp_path_factory.mktemp("preset"), tiny, scenario={"n_tasks": TASKS}, optim=optim)


def train_alone(session: StudySession) -> None:
    """What a driver does, without Ray: job after job in this process."""
    for job in [*prefix_jobs(session.jobs, []), *session.jobs]:
        train_job(job, session.folder, session.trained_by, ALONE, lambda _: None)


def without_ray(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("cl2r.rayrun.driver.run_jobs", train_alone)
        patch.setattr("analysis.plots.write_figures", lambda study, folder: [])
        assert ablation.main([*words, "--storage", "calm", "--name", "calm"]) == 0


def killed_in_the_second_task(ray: FakeNodes, driver: subprocess.Popen[str]) -> tuple[str, str]:
    """Kill the node of the first run that is in its second task; return the run and the node's name."""

    def second() -> list[Any]:
        assert driver.poll() is None
        return [epoch for epoch in ray.epochs if epoch.task == 2]

    wait_for(second, "a run in its second task")
    found = second()[-1]
    ray.kill(ray.name(found.node))
    return found.run, ray.name(found.node)


def assert_little_was_lost(ray: FakeNodes, at_once: int) -> None:
    """Check that only epochs under way on the lost node were trained twice."""
    trained = Counter((epoch.run, epoch.task, epoch.epoch) for epoch in ray.epochs if epoch.rank == 0)
    assert len(trained) == (2 + len(CELLS) * (TASKS - 1)) * EPOCHS
    assert trained.total() - len(trained) <= at_once


def test_a_node_dies(preset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker per trial, on A100 nodes only."""
    monkeypatch.chdir(tmp_path)
    words = ["--preset", str(preset), "--seeds", "0", "--cells", *CELLS]
    with FakeNodes() as ray:
        for name in ("a", "b"):
            ray.add(name, **A100)
        ray.add("other", **H100)
        driver = ray.drive([*words, *WISH, "--storage", str(tmp_path / "hunted"), "--name", "hunted"])
        run, node = killed_in_the_second_task(ray, driver)
        without_ray(words, monkeypatch)  # meanwhile
        _, said = driver.communicate()
        assert driver.returncode == 0, said
        assert "its process died; it resumes" in said
        assert {ray.name(epoch.node) for epoch in ray.epochs if epoch.run == run} == {"a", "b"} >= {node}
        assert_little_was_lost(ray, at_once=2)
    assert_same_frames((tmp_path / "hunted", "hunted"), (tmp_path / "calm", "calm"))
    runs = finished_events(tmp_path / "hunted", "hunted")
    assert len(runs) == len(set(runs)) == len(CELLS)


@pytest.mark.slow
def test_a_node_of_train_workers_dies(preset: Path, tmp_path: Path) -> None:
    """Two workers per trial: both resume on the other node from the last epoch."""
    words = ["--preset", str(preset), "--seeds", "0", "--cells", "cl2r", "--workers", "2", "--gpus-per-worker", "1"]
    with FakeNodes() as ray:
        for name in ("a", "b"):
            ray.add(name, **A100)
        calm = ray.drive([*words, "--storage", str(tmp_path / "calm"), "--name", "calm"])
        _, said = calm.communicate()
        assert calm.returncode == 0, said
        undisturbed = len(ray.epochs)
        driver = ray.drive([*words, "--storage", str(tmp_path / "hunted"), "--name", "hunted"])
        wait_for(lambda: len(ray.epochs) > undisturbed + 2 * (EPOCHS + 2), "the second task")
        ray.kill(ray.name(ray.epochs[-1].node))
        _, said = driver.communicate()
        assert driver.returncode == 0, said
        assert {ray.name(epoch.node) for epoch in ray.epochs[undisturbed:]} == {"a", "b"}
        assert 0 <= len(ray.epochs) - 2 * undisturbed <= 2
    assert_same_frames((tmp_path / "hunted", "hunted"), (tmp_path / "calm", "calm"))
    assert len(finished_events(tmp_path / "hunted", "hunted")) == 1
