"""The worked example of cl2r/data/README.md as a user would install it: one module with an entry point."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.installed import REPOSITORY, install, python
from tests.support.quick import blobs

PAGE = REPOSITORY / "cl2r" / "data" / "README.md"
SPECIES = 8

SCRIPT = """
import json, sys
from pathlib import Path
from tests.support.quick import quick_config, train

data, root = sys.argv[1:]
layer = {"data": {"root": data, "size": 16}, "scenario": {"n_tasks": 2}, "eval": {"bootstrap": 0}}
short = {"optim": {"epochs": 1, "milestones": []}, "eval": {"positives": 20, "negatives": 20}}
result = train(quick_config("birds", layer, short), Path(root))
print(json.dumps([result.plan.dataset.num_classes, result.report.matrix.shape[0], result.plan.dataset.fingerprint]))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder that looks like site-packages with `birds` installed."""
    module, project = re.findall(r"```(?:python|toml)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    entry = re.search(r'birds = "(.*)"', project)
    assert entry
    install(tmp_path / "site", "cl2r.datasets", {"birds": entry[1]}, {"birds.py": module})
    return tmp_path / "site"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    images, labels = blobs(SPECIES, np.random.default_rng(0))
    for row, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        path = tmp_path / "data" / "birds" / f"species{label}" / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(path)
    return tmp_path / "data"


def test_an_installed_data_set_is_listed_checked_and_trained_on(site: Path, data: Path, tmp_path: Path) -> None:
    listed = python(site, "-m", "cl2r", "datasets", "list")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "birds/<species>" in listed.stdout
    checked = python(site, "-m", "cl2r", "datasets", "check", "birds", str(data), "--full")
    assert checked.returncode == 0, checked.stdout
    assert "of 6 classes" in checked.stdout
    done = python(site, "-c", SCRIPT, str(data), str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[:2] == [6, 2]


def test_its_user_is_told_what_is_missing_and_how_to_get_it(site: Path, tmp_path: Path) -> None:
    checked = python(site, "-m", "cl2r", "datasets", "check", "birds", str(tmp_path))
    assert checked.returncode == 2
    assert str(tmp_path / "birds") in checked.stdout
    assert "https://example.org/birds" in checked.stdout
