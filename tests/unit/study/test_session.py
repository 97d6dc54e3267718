"""A study session: everything is checked and named before anything starts."""

from pathlib import Path

import pytest
import yaml

from cl2r.errors import InputError
from cl2r.study.calibrate import TrialLayout
from cl2r.study.folder import StudyFolder, digest
from cl2r.study.resources import Resources
from cl2r.study.session import StudySession
from cl2r.study.spec import StudySpec
from tests.support.quick import flat_quick
from tests.support.small_study import finish, small_session, small_study, small_sweep, tree

GRID = {"method.name": ["er", "cl2r"]}


@pytest.fixture(scope="module")
def spec(tiny: Path) -> StudySpec:
    return small_study(tiny, grid=GRID)


def test_the_name_holds_file_data_and_digest(tiny: Path, spec: StudySpec, tmp_path: Path) -> None:
    with StudySession.open(spec, tmp_path) as session:
        stem, data, eight = session.folder.name.rsplit("-", 2)
        assert (stem, data, len(eight)) == ("study", "tiny", 8)
        assert [job.runs[0].config.method.name for job in session.jobs] == ["er", "cl2r"]
        assert session.expected_runs() == len(session.unfinished()) == 2
        first, second = session.jobs
        finish(session.folder, first, {"AC": 0.5})
        assert session.unfinished() == [second]
        trained_by, name = session.trained_by, session.folder.name
    with StudySession.open(small_study(tiny, grid=GRID), tmp_path) as again:
        assert (again.trained_by, again.folder.name) == (trained_by, name)
    with StudySession.open(spec, tmp_path, name="mine") as named:
        assert named.folder.name == "mine"
        assert named.trained_by != trained_by


def test_without_a_lock_nothing_is_written_and_the_name_is_that_of_the_file(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "sizes.yaml"
    file.write_text(yaml.safe_dump({"set": {**flat_quick(), "data.name": str(tiny)}}))
    with StudySession.open(StudySpec.load(file), tmp_path, lock=False) as session:
        assert session.trained_by == ""
        assert session.folder.name.startswith("sizes-tiny-")
    assert tree(tmp_path) == [str(file)]


def test_a_second_session_is_refused_but_a_plan_is_not(spec: StudySpec, tmp_path: Path) -> None:
    with StudySession.open(spec, tmp_path, name="x") as first:
        with pytest.raises(InputError, match="is being run by"), StudySession.open(spec, tmp_path, name="x"):
            pytest.fail("two drivers")
        with StudySession.open(spec, tmp_path, name="x", lock=False) as plan:
            assert plan.trained_by == first.trained_by


@pytest.mark.parametrize("lock", [True, False])
def test_a_name_of_another_specification_is_refused(tiny: Path, spec: StudySpec, tmp_path: Path, lock: bool) -> None:
    with StudySession.open(spec, tmp_path, name="x"):
        pass
    other = small_study(tiny, grid=GRID, seeds=[1])
    with pytest.raises(InputError, match="seeds"), StudySession.open(other, tmp_path, name="x", lock=lock):
        pytest.fail("opened")


def test_batches_that_are_too_small_for_the_workers_are_refused(spec: StudySpec, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="99 workers"), StudySession.open(spec, tmp_path, Resources(workers=99)):
        pytest.fail("opened")
    assert tree(tmp_path) == []


@pytest.mark.parametrize("resources", [Resources(workers=2), Resources(gpus_per_worker=1)])
def test_a_layout_is_measured_for_single_cpu_workers_only(
    spec: StudySpec, tmp_path: Path, resources: Resources
) -> None:
    with pytest.raises(InputError, match="auto"), StudySession.open(spec, tmp_path, resources, measure_layout=True):
        pytest.fail("opened")


def test_the_trial_layout_is_used_for_the_runs_that_are_left(
    spec: StudySpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def measured(_: object, runs: int) -> tuple[TrialLayout, str]:
        asked.append(runs)
        return TrialLayout(4, 2, 1.0, 1), "4 × 2"

    monkeypatch.setattr("cl2r.study.calibrate.trial_layout", measured)
    for limit, trials in ((None, 4), (3, 3)):
        with StudySession.open(spec, tmp_path, Resources(max_concurrent=limit), measure_layout=True) as session:
            assert session.resources == Resources(cpus_per_worker=2, max_concurrent=trials)
            finish(session.folder, session.jobs[0], {"AC": 0.5})
    assert asked == [2, 1]


def test_a_trial_that_repeats_a_point_has_no_run_of_its_own(tiny: Path, tmp_path: Path) -> None:
    session = small_session(StudyFolder(tmp_path, "x"), small_sweep(tiny, trials=5, seeds=[0, 1]))
    assert session.expected_runs() == 10
    session.ledger.write("repeated", "3", {"params": {}})
    assert session.expected_runs() == 8


def test_the_identity_of_a_sweep_covers_the_data_of_every_corner(tiny: Path, tmp_path: Path) -> None:
    spec = small_sweep(tiny)
    with StudySession.open(spec, tmp_path, lock=False) as session:
        assert not session.folder.name.endswith(digest(spec.identity([])))
