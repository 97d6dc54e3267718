"""The regimes study: its list is valid, and it runs."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from quick import QUICK

from cl2r.config import override, read_layer, resolve

STUDIES = Path(__file__).parents[2] / "studies"
REGIMES = yaml.safe_load((STUDIES / "regimes.yaml").read_text())


@pytest.mark.parametrize("regime", REGIMES)
def test_every_regime_is_a_valid_config_that_differs_from_the_default(regime: str) -> None:
    preset = read_layer("icons")
    config = resolve([preset, *map(override, REGIMES[regime])])
    assert (config == resolve([preset])) == (regime == "default")


def test_the_table_has_a_row_a_regime_and_a_column_a_cell(tiny: Path, tmp_path: Path) -> None:
    preset = tmp_path / "tiny.yaml"
    preset.write_text(yaml.safe_dump({**QUICK, "data": {"name": str(tiny)}}))
    command = [sys.executable, str(STUDIES / "regimes.py"), "--preset", str(preset), "--out", str(tmp_path / "out")]
    command += ["--tasks", "2", "--only", "default", "memory_0", "--cells", "er", "cl2r"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    start = lines.index("tuning_BC")
    assert lines[start + 1].split() == ["method.name", "er", "cl2r"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[start + 3 : start + 5]}
    assert list(rows) == ["default", "memory_0"]
    assert all(-1 <= float(value) <= 1 for values in rows.values() for value in values)
    assert "[3/4 er seed 0] task 1: reused link" in done.stderr
