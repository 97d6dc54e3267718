"""A study from Python, without a YAML file."""

from pathlib import Path

import pytest
import yaml

import cl2r
from tests.support.quick import QUICK
from tests.unit.test_api import run_examples


@pytest.mark.usefixtures("small_ray")
def test_the_example_of_run_study(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = {**QUICK, "data": {"name": str(tiny)}, "optim": {"epochs": 1, "milestones": []}}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(preset))
    monkeypatch.chdir(tmp_path)
    run_examples(cl2r.run_study)
    assert set(cl2r.load_study("results").runs["study"]) == {"mine"}
