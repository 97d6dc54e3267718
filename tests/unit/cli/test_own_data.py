"""A newcomer's folder of images: few open classes, pairs by path, a note instead of an error."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cl2r.data import pairs
from tests.support.command_line import Command, quick_options

NOTE = (
    "note: 525 of 3,000 positive pairs: the open classes have no more; 525 of 3,000 negative pairs: to keep the balance"
)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twelve classes to train on and five open ones, with 30 images each."""
    rng = np.random.default_rng(0)
    for number in range(17):
        folder = tmp_path / "photos" / ("train" if number < 12 else "open") / f"class{number:02d}"
        folder.mkdir(parents=True)
        for image in range(30):
            pixels = rng.normal(15 * number, 20, (16, 16)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{image:02d}.png")
    return tmp_path / "photos"


def options(photos: Path, **settings: object) -> list[str]:
    """Return the options of a short run with the default number of pairs."""
    counts = {"eval__positives": 3000, "eval__negatives": 3000, "eval__folds": 10, "eval__bootstrap": 0}
    short = {"data__channels": 1, "data__size": 16, "optim__epochs": 1, "optim__milestones": "[]"}
    return quick_options(photos, **counts, **short, **settings)


def test_a_small_folder_runs_with_the_pairs_that_it_has(cl2r: Command, photos: Path, tmp_path: Path) -> None:
    pairs._say_once.cache_clear()
    code, out, err = cl2r("run", *options(photos), "--tasks", "2", "--storage", tmp_path / "results")
    assert code == 0, err
    assert [line for line in err.splitlines() if line.startswith("note:")] == [NOTE]
    assert "1050 report pairs" in out
    (result,) = (tmp_path / "results" / "runs").glob("*/result.json")
    assert json.loads(result.read_text())["tuning"]["C"][0][0] > 0.5


@pytest.mark.parametrize("study", ["ablation", "recommend"])
@pytest.mark.usefixtures("no_ray")
def test_studies_say_it_once(cl2r: Command, photos: Path, study: str) -> None:
    pairs._say_once.cache_clear()
    code, _, err = cl2r("plan", study, *options(photos), "--tasks", "3", "--set", "optim.epochs=8")
    assert code == 0, err
    assert [line for line in err.splitlines() if line.startswith("note:")] == [NOTE]


def test_pairs_by_path_are_used_as_they_are(cl2r: Command, photos: Path) -> None:
    rows = [f"class12/{i:02d}.png,class12/{i + 1:02d}.png,1" for i in range(6)]
    rows += [f"class12/{i:02d}.png,open/class13/{i:02d}.png,0" for i in range(6)]
    (photos / "pairs.csv").write_text("\n".join(["path,path,same", *rows]))
    code, out, err = cl2r("run", *options(photos, eval__tuning_share=0), "--tasks", "2")
    assert code == 0, err
    assert "12 report pairs" in out
