"""One Ray for all fault tests, and a very small undisturbed study."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from studies import ablation
from tests.faults import injection
from tests.faults.faulty import EPOCHS, NAME, TASKS, Faulty
from tests.support.small_ray import start_ray
from tests.support.small_study import write_preset

HERE = Path(__file__).parent


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Shut Ray down after the last test of this folder: other folders start their own in this process."""
    if nextitem is None or HERE not in nextitem.path.parents:
        ray.shutdown()


@pytest.fixture(scope="session", autouse=True)
def no_report() -> Iterator[None]:
    """Write no report: it takes seconds and has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cl2r.cli.report.leave_report", lambda *_: None)
        yield


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """Folder for Ray's sockets, whose paths must be short."""
    folder = Path(tempfile.mkdtemp(prefix="f-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def injected_ray(short_folder: Path) -> Iterator[None]:
    """A Ray with two CPUs, and two GPUs in name only, whose processes find `injection`.

    Studies in this process use it, and so do drivers that join it.
    """
    (short_folder / "tokens").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(short_folder))
        patch.setenv("PYTHONPATH", str(HERE.parents[1]))
        patch.setenv(injection.VARIABLE, str(short_folder / "tokens"))
        start_ray()
        yield
        ray.shutdown()


@pytest.fixture(scope="session")
def preset(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks of five epochs."""
    optim = {"epochs": EPOCHS, "milestones": [3]}
    return write_preset(tmp_path_factory.mktemp("preset"), tiny, scenario={"n_tasks": TASKS}, optim=optim)


@pytest.fixture(scope="session")
def undisturbed(injected_ray: None, preset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The storage of an undisturbed study of one run, called `calm`."""
    storage = tmp_path_factory.mktemp("undisturbed")
    assert (
        ablation.main(
            ["--preset", str(preset), "--storage", str(storage), "--name", "calm", "--seeds", "0", "--cells", "cl2r"]
        )
        == 0
    )
    return storage


@pytest.fixture
def faulty(
    undisturbed: Path, preset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Faulty:
    """The same study in another storage, with faults."""
    monkeypatch.setattr("cl2r.rayrun.tune.run_trial", injection.run_trial)
    injection.clear()
    return Faulty(undisturbed, preset, tmp_path / "storage", capfd)


@pytest.fixture(scope="session")
def half_storage(undisturbed: Path, preset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study after its process was killed in the third epoch of the second task, without retries; to be copied."""
    storage = tmp_path_factory.mktemp("half")
    injection.clear()
    injection.lay("batch", task=TASKS, epoch=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cl2r.rayrun.tune.run_trial", injection.run_trial)
        words = ["--preset", str(preset), "--storage", str(storage), "--name", NAME, "--seeds", "0", "--cells", "cl2r"]
        assert ablation.main([*words, "--retries", "0"]) == 1
    assert injection.left() == []
    return storage
