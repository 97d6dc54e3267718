"""The regimes study: its list is valid, and its tables are complete."""

from pathlib import Path

import pandas as pd
import pytest

from cl2r.study.spec import Point, StudySpec
from studies import regimes

STUDY = StudySpec.load(Path(regimes.__file__).with_suffix(".yaml"))


@pytest.mark.parametrize("regime", STUDY.variants)
def test_every_regime_is_a_valid_config_that_differs_from_the_default(regime: str) -> None:
    config = STUDY.config(Point(regime, STUDY.variants[regime]), 0)
    assert (config == STUDY.config(Point(None, {}), 0)) == (regime == "default")


def test_regimes_can_be_chosen(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options become changes of the specification; nothing is run."""
    seen = []
    monkeypatch.setattr("cl2r.cli.study.run_recipe", lambda *parts: seen.append(parts) or 0)
    assert regimes.main(["--only", "memory_0", "default", "--cells", "er", "cl2r"]) == 0
    assert regimes.main([]) == 0
    (path, chosen, _), (_, everything, _) = seen
    study = StudySpec.load(path, **chosen.changes)
    names = [(point.variant, study.config(point, 0).method.name) for point in study.points()]
    assert names == [(regime, cell) for regime in ("memory_0", "default") for cell in ("er", "cl2r")]
    assert StudySpec.load(path, **everything.changes).points() == STUDY.points()


def test_the_tables_have_one_row_per_regime_and_one_column_per_cell() -> None:
    rows = [  # regime, cell, seed, status, tuning_BC
        ("default", "er", 0, "finished", -0.2),
        ("default", "cl2r", 0, "finished", 0.1),
        ("default", "er", 1, "finished", -0.4),
        ("default", "cl2r", 1, "finished", 0.2),
        ("memory_0", "er", 0, "finished", -0.5),
        ("memory_0", "cl2r", 0, "failed", None),
    ]
    runs = pd.DataFrame(rows, columns=["variant", "method.name", "seed", "status", "tuning_BC"])
    runs = runs.assign(tuning_AC=runs["tuning_BC"] + 1, tuning_mean_accuracy=0.5, BC=9.0)
    tables = regimes.tables(None, {"runs": runs}).split("\n\n")
    assert [table.splitlines()[0] for table in tables] == ["tuning_BC", "tuning_AC", "tuning_mean_accuracy"]
    lines = tables[0].splitlines()
    assert lines[1].split() == ["variant", "er", "cl2r"]
    assert [line.split() for line in lines[3:]] == [["default", "-0.300", "+0.150"], ["memory_0", "-0.500", "failed"]]
    assert "+0.700" in tables[1]
