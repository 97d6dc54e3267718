"""What a study would cost: counted from the plans of all runs, and nothing is written."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from small_study import finish, small_study, tree

from cl2r.engine.plan import Plan, plan_run
from cl2r.errors import InputError
from cl2r.methods.catalog import ABLATION_CELLS
from cl2r.rayrun.resources import Resources
from cl2r.study import plan as plan_module
from cl2r.study.cost import speed_group
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job, grid_jobs
from cl2r.study.plan import plan_text
from cl2r.study.spec import Study
from cl2r.study.sweep import representative_jobs


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans whose speed was measured, each in no time."""
    plans: list[Plan] = []

    def calibrate(plan: Plan, device: torch.device, workers: int = 1) -> float:
        """With half a batch, 9 tenths of the speed."""
        assert device == torch.device("cpu"), "no GPU was asked for"
        plans.append(plan)
        return 1000.0 * 0.9 ** (workers - 1)

    monkeypatch.setattr("cl2r.study.plan.calibrate", calibrate)
    return plans


@pytest.fixture
def study(tiny: Path) -> Study:
    return small_study(tiny, grid={"method.name": list(ABLATION_CELLS)}, seeds=[0, 1])


def keys_of(jobs: Sequence[Job]) -> set[str]:
    return {key for job in jobs for run in job.runs for key in run.keys}


def lines_of(text: str) -> dict[str, str]:
    """The aligned lines by their first words."""
    return {line[:12].strip(): line[12:].strip() for line in text.splitlines()[1:]}


def have_links(storage: Path, keys: set[str]) -> None:
    for key in keys:
        (storage / "links" / key).mkdir(parents=True)
        (storage / "links" / key / "manifest.json").write_text("{}")


def test_counts_are_those_of_the_plans(study: Study, tmp_path: Path, calibrated: list[Plan]) -> None:
    jobs = grid_jobs(study)
    folder = StudyFolder(tmp_path / "results", "name")
    text = plan_text(study, jobs, folder, Resources(max_concurrent=3), 2.5)
    assert text.splitlines()[0] == "study name"
    lines = lines_of(text)
    assert lines["runs"] == "12"
    total = len(keys_of(jobs))
    assert total == 2 * (2 + 6 * 2)
    assert lines["links"] == f"{total} to train, 0 of {total} present"
    assert "3 at a time" in lines["this machine"]
    assert "$2.50 an hour" in lines["A100"]
    assert lines["finished"] == "0 of 12 runs; nothing was started"
    assert not list(tmp_path.iterdir())
    assert len(calibrated) == 1, "one speed for all cells"


def test_adapters_bring_no_links(tiny: Path, tmp_path: Path, calibrated: list[Plan]) -> None:
    """WA and LwF begin alike, and slerp needs the links of WA only."""
    names = ["wa", "wa+slerp", "lwf_er"]
    jobs = grid_jobs(small_study(tiny, grid={"method.name": names}, seeds=[0]))
    costs = plan_module._costs([plan_run(run.config) for job in jobs for run in job.runs])
    assert set(costs) == keys_of(jobs)
    lines = lines_of(plan_text(small_study(tiny), jobs, StudyFolder(tmp_path, "name"), Resources(), 4.1))
    assert lines["runs"] == "3"
    assert lines["links"] == "5 to train, 0 of 5 present"


def test_links_that_are_there_need_not_be_trained(study: Study, tmp_path: Path, calibrated: list[Plan]) -> None:
    jobs = grid_jobs(study)
    present = keys_of(jobs[:2])
    have_links(tmp_path, present)
    folder = StudyFolder(tmp_path, "name")
    finish(folder, jobs[0], {})
    before = tree(tmp_path)
    lines = lines_of(plan_text(study, jobs, folder, Resources(), 4.1))
    total = len(keys_of(jobs))
    assert lines["links"] == f"{total - len(present)} to train, {len(present)} of {total} present"
    assert lines["finished"] == "1 of 12 runs; nothing was started"
    assert tree(tmp_path) == before


def test_a_repeated_study_costs_nothing(study: Study, tmp_path: Path, calibrated: list[Plan]) -> None:
    jobs = grid_jobs(study)
    have_links(tmp_path, keys_of(jobs))
    folder = StudyFolder(tmp_path, "name")
    for job in jobs:
        finish(folder, job, {})
    lines = lines_of(plan_text(study, jobs, folder, Resources(), 4.1))
    assert lines["links"].startswith("0 to train")
    assert lines["images"] == "0 to train on, 0 to extract"
    assert lines["this machine"].startswith("0 s")
    assert lines["finished"] == "12 of 12 runs; nothing was started"
    assert calibrated == []


def test_a_sweep_is_planned_by_points_drawn_at_random(tiny: Path, tmp_path: Path, calibrated: list[Plan]) -> None:
    space = {"method.lambda_base": {"low": 0.1, "high": 10.0}, "memory.per_class": {"low": 1, "high": 9}}
    sweep = small_study(tiny, space=space, search={"trials": 5}, seeds=[0, 1])
    text = plan_text(sweep, representative_jobs(sweep), StudyFolder(tmp_path, "name"), Resources(), 4.1)
    assert text.splitlines()[0] == "study name (about: 5 points of the space drawn at random)"
    lines = lines_of(text)
    assert lines["runs"] == "10"
    assert lines["links"] == "22 to train, 0 of 22 present", "two first tasks, and ten times two others"
    assert not list(tmp_path.iterdir())


def figure(text: str, pattern: str) -> float:
    """The number that a pattern finds."""
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found[1].replace(",", ""))


def test_workers_of_a_run_are_accounted_for(study: Study, tmp_path: Path, calibrated: list[Plan]) -> None:
    """Of one run at a time, two workers need more than half as long, and more than one GPU's hours."""
    folder, jobs = StudyFolder(tmp_path, "name"), grid_jobs(study)
    one, two, four = (
        lines_of(plan_text(study, jobs, folder, Resources(workers=workers, max_concurrent=1), 1e6))
        for workers in (1, 2, 4)
    )
    hours = [figure(lines["this machine"], r"^([\d.,]+) h") for lines in (one, two, four)]
    assert hours[0] / 2 / 0.9 < hours[1] < hours[0]
    assert hours[2] < hours[1]
    assert "workers" not in one["this machine"] + one["A100"]
    shares = [figure(lines["this machine"], r"workers at (\d+) % efficiency") for lines in (two, four)]
    assert 90 > shares[0] > shares[1]
    prices = [figure(lines["A100"], r"about \$([\d.,]+)") for lines in (one, two, four)]
    assert prices[0] < prices[1] < prices[2]
    assert figure(two["A100"], r"workers at (\d+) % efficiency") <= 50, "tiny steps only launch kernels"
    assert "speed calibrated in 2 s" in two["this machine"]


def test_a_stored_speed_is_scaled_to_the_part_of_a_batch(
    study: Study, tmp_path: Path, calibrated: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times the calibrated speed, as links tell: a tenth of the time, whatever the number of workers."""
    folder, jobs = StudyFolder(tmp_path, "name"), grid_jobs(study)

    def hours(workers: int) -> float:
        text = plan_text(study, jobs, folder, Resources(workers=workers, max_concurrent=1), 4.1)
        return figure(lines_of(text)["this machine"], r"^([\d.,]+) h")

    before = [hours(workers) for workers in (1, 2)]
    stored = {speed_group(plan): 10_000.0 for plan in calibrated}
    monkeypatch.setattr("cl2r.study.plan.measured_speed", lambda root, costs: dict(stored))
    assert [hours(workers) for workers in (1, 2)] == pytest.approx([value / 10 for value in before], rel=0.01)


def test_what_does_not_fit_into_this_machine(study: Study, tmp_path: Path, calibrated: list[Plan]) -> None:
    folder, jobs = StudyFolder(tmp_path, "name"), grid_jobs(study)[:1]
    with pytest.raises(InputError, match="4096 workers do not fit into this machine"):
        plan_text(study, jobs, folder, Resources(workers=4096), 4.1)
    assert "2 at a time" in plan_text(study, jobs, folder, Resources(workers=4096, max_concurrent=2), 4.1)
