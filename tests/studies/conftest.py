"""A small Ray for the whole session, and studies small enough for it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from studies import ablation
from tests.support.small_ray import start_ray
from tests.support.small_study import write_preset

EPOCHS = 4


@pytest.fixture(scope="session")
def ray_folder() -> Iterator[Path]:
    """Folder for Ray's own files, with a short path for its sockets."""
    folder = Path(tempfile.mkdtemp(prefix="cl2r-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def small_ray(ray_folder: Path, object_query: str) -> Iterator[None]:
    """A Ray with two CPUs, and two GPUs in name only; studies in this process share it.

    Its processes inherit the credentials of the object store, which therefore comes first.
    """
    os.environ["RAY_TMPDIR"] = str(ray_folder)
    start_ray()
    yield
    ray.shutdown()


@pytest.fixture(scope="session", autouse=True)
def no_figures() -> Iterator[None]:
    """Draw no figures: they take seconds and have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("analysis.plots.write_figures", lambda study, folder: [])
        yield


@pytest.fixture(scope="session")
def preset(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three short tasks."""
    return write_preset(tmp_path_factory.mktemp("preset"), tiny, optim={"epochs": EPOCHS, "milestones": [3]})


@pytest.fixture(scope="session")
def undisturbed(small_ray: None, preset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The storage of an undisturbed ablation study called `calm`."""
    storage = tmp_path_factory.mktemp("undisturbed")
    words = ["--preset", str(preset), "--storage", str(storage), "--name", "calm", "--seeds", "0"]
    assert ablation.main(words) == 0
    assert (storage / "studies" / "calm" / "report.html").exists()
    return storage
