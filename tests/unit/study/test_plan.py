"""The text of `cl2r plan`: counts from the plans of all runs; nothing is written."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from cl2r.config.builtin import ABLATION_CELLS
from cl2r.data import published_sizes
from cl2r.engine.plan import Plan, plan_run
from cl2r.errors import InputError
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job, fixed_jobs, grid_jobs
from cl2r.study.plan import estimate, plan_text
from cl2r.study.resources import Resources
from cl2r.study.session import StudySession
from cl2r.study.spec import StudySpec
from tests.support.small_study import finish, small_study, tree


def text_of(spec: StudySpec, jobs: Sequence[Job], folder: StudyFolder, resources: Resources, price: float) -> str:
    return plan_text(StudySession(spec, folder, resources, list(jobs)), price)


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Plans whose speed was measured; measuring takes no time."""
    plans: list[Plan] = []

    def measure_flops(plan: Plan, device: torch.device) -> float:
        assert device == torch.device("cpu"), "no GPU was asked for"
        plans.append(plan)
        return 1000.0

    monkeypatch.setattr("cl2r.study.plan.measure_flops", measure_flops)
    return plans


@pytest.fixture
def study(tiny: Path) -> StudySpec:
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


def test_counts_are_those_of_the_plans(
    study: StudySpec, tmp_path: Path, calibrated: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    jobs = grid_jobs(study)
    folder = StudyFolder(tmp_path / "results", "name")
    text = text_of(study, jobs, folder, Resources(max_concurrent=3), 2.5)
    assert text.splitlines()[0] == "study name"
    lines = lines_of(text)
    assert lines["runs"] == "12"
    total = len(keys_of(jobs))
    assert total == 2 * (2 + 6 * 2)
    assert lines["links"] == f"{total} to train, 0 of {total} present"
    assert "3 at a time" in lines["this machine"]
    assert "$2.50 per hour" in lines["A100"]
    assert lines["finished"] == "0 of 12 runs; nothing was started"
    assert not list(tmp_path.iterdir())
    assert len(calibrated) == 1, "one speed for all cells"


def test_adapters_need_no_links_of_their_own(tiny: Path, tmp_path: Path, calibrated: list[Plan]) -> None:
    """WA and LwF begin alike, and slerp needs the links of WA only."""
    names = ["wa", "wa+slerp", "lwf_er"]
    jobs = grid_jobs(small_study(tiny, grid={"method.name": names}, seeds=[0]))
    lines = lines_of(text_of(small_study(tiny), jobs, StudyFolder(tmp_path, "name"), Resources(), 4.1))
    assert lines["runs"] == "3"
    assert lines["links"] == "5 to train, 0 of 5 present"


@pytest.mark.parametrize("present", [2, 12])
def test_stored_links_are_not_trained_again(
    study: StudySpec, tmp_path: Path, calibrated: list[Plan], present: int
) -> None:
    jobs, folder = grid_jobs(study), StudyFolder(tmp_path, "name")
    total, stored = len(keys_of(jobs)), keys_of(jobs[:present])
    have_links(tmp_path, stored)
    for job in jobs[:present]:
        finish(folder, job, {})
    before = tree(tmp_path)
    lines = lines_of(text_of(study, jobs, folder, Resources(), 4.1))
    assert lines["links"] == f"{total - len(stored)} to train, {len(stored)} of {total} present"
    assert lines["finished"] == f"{present} of 12 runs; nothing was started"
    assert tree(tmp_path) == before
    if present == 12:
        assert lines["images"] == "0 to train on, 0 to extract"
        assert lines["this machine"].startswith("0 s")
        assert lines["A100"].startswith("0.00 GPU-hours, about $0.00")
        assert calibrated == []


def test_links_of_several_workers_are_present_for_as_many_workers(
    tiny: Path, tmp_path: Path, calibrated: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    study = small_study(tiny, grid={"method.name": ["er"]}, seeds=[0])
    jobs, folder = grid_jobs(study), StudyFolder(tmp_path, "name")
    keys = keys_of(jobs)
    have_links(tmp_path, [f"{key}-cpu2" for key in keys])
    for resources, there in (
        (Resources(), 0),
        (Resources(workers=2), len(keys)),
        (Resources(accept_links="any"), len(keys)),
    ):
        found = estimate(StudySession(study, folder, resources, jobs), 4.1)
        assert (found.links, found.links_to_train) == (len(keys), len(keys) - there)
    folder.ledger.write("opened", "driver", {"made_by": "cpu2"})
    assert estimate(StudySession(study, folder, Resources(), jobs), 4.1).links_to_train == 0, "its own, from before"


def test_a_sweep_is_planned_by_points_drawn_at_random(tiny: Path, tmp_path: Path, calibrated: list[Plan]) -> None:
    space = {"method.lambda_base": {"low": 0.1, "high": 10.0}, "memory.per_class": {"low": 1, "high": 9}}
    sweep = small_study(tiny, space=space, search={"trials": 5, "constraints": {}}, seeds=[0, 1])
    text = text_of(sweep, [], StudyFolder(tmp_path, "name"), Resources(), 4.1)
    assert text.splitlines()[0] == "study name (about: 5 points of the space drawn at random)"
    lines = lines_of(text)
    assert lines["runs"] == "10"
    assert lines["links"] == "22 to train, 0 of 22 present", "two first tasks, and ten times two others"
    two = {"space": {**space, "scenario.n_tasks": [2, 3]}, "search": {"trials": 5, "confirm": {"top": 2, "seeds": [7]}}}
    sweep = small_study(tiny, **two)
    fixed = [job for context in sweep.contexts() for job in fixed_jobs(sweep, context, sweep.seeds)]
    lines = lines_of(text_of(sweep, fixed, StudyFolder(tmp_path, "name"), Resources(), 4.1))
    assert lines["runs"] == str(2 * (5 + 2 + 2 + 2)), (
        "trials, ER and the preset, the best ones, ER and the preset again"
    )
    assert not list(tmp_path.iterdir())


def test_no_more_runs_at_a_time_than_fit_into_this_machine(
    study: StudySpec, tmp_path: Path, calibrated: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    folder, jobs = StudyFolder(tmp_path, "name"), grid_jobs(study)
    two, many = (estimate(StudySession(study, folder, Resources(max_concurrent=most), jobs), 4.1) for most in (2, 100))
    assert many.seconds == two.seconds
    assert (many.concurrent, many.concurrent_here) == (100, 2)
    lines = lines_of(str(many))
    assert "(2 at a time" in lines["this machine"]
    assert "with 100 at a time" in lines["A100"]


def test_workers_share_a_run(
    study: StudySpec, tmp_path: Path, calibrated: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    folder, jobs = StudyFolder(tmp_path, "name"), grid_jobs(study)
    one, two = (
        lines_of(text_of(study, jobs, folder, Resources(workers=workers, max_concurrent=1), 4.1))["this machine"]
        for workers in (1, 2)
    )
    hours = [int(line.split()[0].replace(",", "")) for line in (one, two)]
    assert hours[0] == pytest.approx(2 * hours[1], rel=0.01)
    assert "2 workers" in two
    assert "calibrated in 2 s" in two


def test_a_plan_for_gpus_that_are_elsewhere(
    study: StudySpec, tmp_path: Path, calibrated: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder, jobs = StudyFolder(tmp_path, "name"), grid_jobs(study)
    session = StudySession(study, folder, Resources(gpus_per_worker=1, accelerator="A100", max_concurrent=8), jobs)
    lines = lines_of(plan_text(session, 4.1))
    assert lines["this machine"] == "has no room for such a run: planned for others"
    assert "with 8 at a time" in lines["A100"]
    found = estimate(session, 4.1)
    assert (found.seconds, found.concurrent) == (None, 8)
    assert found.gpu_seconds == pytest.approx(3600 * found.gpu_hours / 8)
    alone = estimate(StudySession(study, folder, Resources(gpus_per_worker=0.5), jobs), 4.1)
    assert alone.concurrent == 1
    assert alone.gpu_seconds == pytest.approx(2 * 3600 * alone.gpu_hours), "it has half of a GPU"
    assert calibrated == []


def test_a_benchmark_that_is_not_there_is_planned_from_its_published_size(
    tmp_path: Path, calibrated: list[Plan]
) -> None:
    spec = StudySpec.load(
        {"preset": "cifar100", "grid": {"method.name": ["er", "cl2r"], "scenario.n_tasks": [2]}},
        [f"data.root={tmp_path / 'data'}", "optim.epochs=2", "optim.milestones=[]"],
    )
    with pytest.raises(InputError, match="cl2r datasets check"), StudySession.open(spec, tmp_path / "results"):
        pass
    with published_sizes(), StudySession.open(spec, tmp_path / "results", lock=False) as session:
        found = estimate(session, 4.1)
        text = plan_text(session, 4.1)
    assert found.study == "study-cifar100", "its digest would be another one"
    assert (found.runs, found.links) == (2, 4)
    new, memory, batch = 25_000, 50 * 20, 128
    assert found.images >= 2 * 2 * (2 * new - 2 * batch)
    assert found.images <= 2 * 2 * (2 * (new + batch) + memory)
    (note,) = found.notes
    assert "100 classes of equal size, 60,000 images" in note
    assert note in text
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="cl2r datasets check"):
        plan_run(spec.config(spec.points()[0], 0))


def test_workers_that_do_not_fit_into_this_machine_are_refused(
    study: StudySpec, tmp_path: Path, calibrated: list[Plan]
) -> None:
    folder, jobs = StudyFolder(tmp_path, "name"), grid_jobs(study)[:1]
    with pytest.raises(InputError, match="4096 workers do not fit into this machine"):
        text_of(study, jobs, folder, Resources(workers=4096), 4.1)
    lines = lines_of(text_of(study, jobs, folder, Resources(workers=4096, max_concurrent=2), 4.1))
    assert "with 2 at a time" in lines["A100"]
    assert lines["this machine"].startswith("has no room for such a run")
    assert calibrated == []
