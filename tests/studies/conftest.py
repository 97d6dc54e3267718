"""A small Ray for the whole session, and studies small enough for it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import ray
import yaml
from quick import QUICK

from studies import ablation

EPOCHS = 25
VOLATILE = ("seconds", "images_per_second", "extract_seconds", "train_seconds", "wall_seconds", "study")
"""What two equal studies need not agree on."""


@pytest.fixture(scope="session")
def ray_folder() -> Iterator[Path]:
    """Ray's own files; a short path, for its sockets."""
    folder = Path(tempfile.mkdtemp(prefix="cl2r-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def small_ray(ray_folder: Path) -> Iterator[None]:
    """Two CPUs; studies in this process use it instead of starting one each."""
    os.environ |= {"RAY_TMPDIR": str(ray_folder), "RAY_USAGE_STATS_ENABLED": "0"}
    from cl2r.rayrun.cluster import cluster
    from cl2r.rayrun.resources import Resources

    with cluster(Resources(workers=2), verbose=False):
        yield
    assert not ray.is_initialized()


@pytest.fixture(scope="session")
def preset(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks of 25 epochs: time enough to run side by side, and to be killed in the middle."""
    path = tmp_path_factory.mktemp("preset") / "tiny.yaml"
    layer = {**QUICK, "data": {"name": str(tiny)}, "optim": {"epochs": EPOCHS, "milestones": [18]}}
    path.write_text(yaml.safe_dump(layer))
    return path


@pytest.fixture(scope="session")
def undisturbed(small_ray: None, preset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The storage of an ablation study that nothing happened to, called `calm`."""
    storage = tmp_path_factory.mktemp("undisturbed")
    words = ["--preset", str(preset), "--storage", str(storage), "--name", "calm"]
    assert ablation.main(words) == 0
    return storage


def frames_of(storage: Path, name: str) -> dict[str, pd.DataFrame]:
    """The four frames without what depends on the clock, in one order."""
    frames = {}
    for frame in ("runs", "tasks", "matrix", "curves"):
        table = pd.read_parquet(storage / "studies" / name / f"{frame}.parquet")
        table = table.drop(columns=[column for column in VOLATILE if column in table])
        keys = [key for key in ("run", "pairs", "t", "k", "task", "stage", "epoch") if key in table]
        frames[frame] = table.sort_values(keys).reset_index(drop=True)
    return frames


def assert_same_frames(one: tuple[Path, str], two: tuple[Path, str]) -> None:
    """Bit for bit, but for clocks."""
    first, second = frames_of(*one), frames_of(*two)
    for name, frame in first.items():
        pd.testing.assert_frame_equal(frame, second[name], check_exact=True)
