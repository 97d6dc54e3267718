"""A study from Python, without a YAML file."""

from pathlib import Path

import pytest

import cl2r
from tests.support.small_study import write_preset
from tests.unit.test_api import run_examples


@pytest.mark.usefixtures("small_ray")
def test_the_example_of_run_study(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = write_preset(tmp_path, tiny, optim={"epochs": 1, "milestones": []})
    preset.rename(tmp_path / "small.yaml")
    monkeypatch.chdir(tmp_path)
    run_examples("run_study")
    assert set(cl2r.load_study("results").runs["study"]) == {"mine"}
