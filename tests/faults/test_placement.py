"""Where trials run, according to Ray's own tables, on nodes whose GPUs are names."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.fake_nodes import A100, H100, FakeNodes, wait_for
from tests.support.cluster_rules import environment, read
from tests.support.small_study import write_preset

pytestmark = pytest.mark.slow
ONE_A100 = {"CPU": 1.0, "GPU": 1.0, "accelerator_type:A100": 0.001}


@pytest.fixture(scope="module")
def words(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A study of two runs with no link in common."""
    path = write_preset(tmp_path_factory.mktemp("preset"), tiny, scenario={"n_tasks": 2})
    return ["--preset", str(path), "--seeds", "0", "--cells", "er", "cl2r", "--gpus-per-worker", "1"]


@pytest.fixture(scope="module")
def ray() -> Iterator[FakeNodes]:
    """A head without CPUs, two nodes with A100s, one with others."""
    with FakeNodes() as nodes:
        nodes.add("a", **A100)
        nodes.add("b", **A100)
        nodes.add("other", **H100)
        yield nodes


def test_two_workers_per_trial(ray: FakeNodes, words: list[str], tmp_path: Path) -> None:
    """Two bundles per trial, on one node; drivers and controllers on the head; nothing on the other node."""
    wish = ["--workers", "2", "--accelerator", "A100", "--max-concurrent", "2", "--storage", str(tmp_path)]
    known, trained_before = {entry["id"] for entry in [*ray.groups(), *ray.actors()]}, len(ray.epochs)
    driver = ray.drive([*words, *wish])
    _, said = driver.communicate()
    assert driver.returncode == 0, said
    groups = [group for group in ray.groups() if group["id"] not in known]
    drivers = [group for group in groups if "node:__internal_head__" in group["bundles"][0]]
    trials = [group for group in groups if group not in drivers]
    assert [group["nodes"] for group in drivers] == [["head"]] * len(drivers)
    assert [group["bundles"] for group in trials] == [[ONE_A100, ONE_A100]] * 2
    assert {group["strategy"] for group in trials} == {"PACK"}
    assert all(group["nodes"] in (["a", "a"], ["b", "b"]) for group in trials)
    trained = {(epoch.run, epoch.rank): epoch for epoch in ray.epochs[trained_before:]}
    assert set(trained) == {(run, rank) for run in ("er-0", "cl2r-0") for rank in (0, 1)}
    assert all(epoch.assigned == ONE_A100 for epoch in trained.values())
    actors = [actor for actor in ray.actors() if actor["id"] not in known]
    workers = [actor for actor in actors if actor["kind"] == "RayTrainWorker"]
    others = [actor for actor in actors if actor not in workers]
    assert len(workers) == 4
    assert {actor["node"] for actor in workers} <= {"a", "b"}
    assert {actor["node"] for actor in others} == {"head"}
    assert {actor["kind"] for actor in others} >= {"ImplicitFunc", "TrainController"}


def test_the_environment_of_a100_yaml_gives_every_trial_an_a100(tiny: Path, tmp_path: Path) -> None:
    """No options: what the containers of the file have in their environment decides."""
    variables = {name: value for name, value in environment(read("a100.yaml")).items() if name.startswith("CL2R_")}
    variables |= {"CL2R_STORAGE": str(tmp_path), "OMP_THREAD_LIMIT": "1"}
    path = write_preset(tmp_path, tiny, scenario={"n_tasks": 2})
    with FakeNodes() as nodes:
        for name in ("a", "b"):
            nodes.add(name, num_cpus=96, num_gpus=8, resources={"accelerator_type:A100": 1})
        nodes.add("other", num_cpus=96, num_gpus=8, resources={"accelerator_type:H100": 1})
        nodes.environment |= variables
        driver = nodes.drive(["--preset", str(path), "--seeds", "0", "--cells", "er", "cl2r"])
        _, said = driver.communicate()
        assert driver.returncode == 0, said
        groups = nodes.groups()
        assert groups
        assert all(group["bundles"] == [{**ONE_A100, "CPU": 11.0}] for group in groups)
        assert {node for group in groups for node in group["nodes"]} <= {"a", "b"}
        assert len({(epoch.run, epoch.rank) for epoch in nodes.epochs}) == 2


def test_a_study_waits_for_its_accelerator(ray: FakeNodes, words: list[str], tmp_path: Path) -> None:
    """It notes at once that there is no room, warns after a while, and trains on the node that joins."""
    log, trained_before = tmp_path / "log", len(ray.epochs)
    with log.open("w") as file:
        driver = ray.drive([*words, "--accelerator", "L4", "--storage", str(tmp_path / "out")], output=file)
    wait_for(lambda: "no room for a trial (" in log.read_text() or driver.poll() is not None, "a warning")
    assert "--max-concurrent N" in log.read_text()
    assert "accelerator L4" in log.read_text()
    assert "2 nodes with 4 CPU, 4 GPU, accelerator A100; 1 node with 4 CPU, 4 GPU, accelerator H100" in log.read_text()
    assert len(ray.epochs) == trained_before
    ray.add("new", num_cpus=1, num_gpus=1, resources={"accelerator_type:L4": 1})
    driver.wait()
    assert driver.returncode == 0, log.read_text()
    assert {ray.name(epoch.node) for epoch in ray.epochs[trained_before:]} == {"new"}
