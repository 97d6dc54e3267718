"""What the study of speed tricks takes away is really gone, comes back, and is judged by the numbers alone."""

import json
from pathlib import Path

import pytest
import yaml

from cl2r.config.schema import Config
from cl2r.errors import TrainingError
from tests.benchmarks import tricks
from tests.benchmarks.tricks import (
    ENGINE,
    KNOWN,
    Outcome,
    run_chain,
)
from tests.support.quick import QUICK, quick_config


@pytest.fixture
def config(tiny: Path) -> Config:
    return quick_config(tiny, {"optim": {"epochs": 1, "milestones": []}, "augment": {"flip": True}})


# Every patch takes effect


# And is undone


# Chains


@pytest.fixture(scope="module")
def engine(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_chain(KNOWN[ENGINE], short(tiny), tmp_path_factory.mktemp("engine"))


def short(tiny: Path) -> Config:
    return quick_config(tiny, {"optim": {"epochs": 1, "milestones": []}, "augment": {"flip": True}})


@pytest.mark.parametrize("name", ["again", "augmentation"])
def test_chains_that_must_be_equal(engine: Outcome, tiny: Path, tmp_path: Path, name: str) -> None:
    own = run_chain(KNOWN[name], short(tiny), tmp_path)
    assert (own.losses, own.cells, own.digest) == (engine.losses, engine.cells, engine.digest)


def test_a_patch_that_is_never_used_is_refused(tiny: Path, tmp_path: Path) -> None:
    config = quick_config(tiny, {"optim": {"epochs": 1, "milestones": []}, "method": {"name": "er"}})
    with pytest.raises(TrainingError, match=r"simplex: the engine never called SimplexClassifier\.forward"):
        run_chain(KNOWN["simplex"], config, tmp_path)


# Verdicts, on made-up numbers


# Command line


@pytest.fixture
def preset(tiny: Path, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({**QUICK, "data": {"name": str(tiny)}}))
    return path


def test_from_the_command_line_to_files(preset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "tricks"
    words = ["--preset", str(preset), "--variants", "augmentation", "--epochs", "1", "--seeds", "0", "1"]
    assert tricks.main([*words, "--processes", "1", "--out", str(out)]) == 0
    text, progress = capsys.readouterr()
    assert Path(f"{out}.md").read_text() == text
    assert "| whole-batch crop and flip: image by image |" in text
    assert "4 of 4: " in progress
    content = json.loads(Path(f"{out}.json").read_text())
    assert [row["verdict"] for row in content["rows"]] == ["equal"]
    assert {(row["variant"], row["seed"]) for row in content["outcomes"]} == {
        (name, seed) for name in (ENGINE, "augmentation") for seed in (0, 1)
    }
