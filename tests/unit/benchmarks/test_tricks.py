"""What the study of speed tricks takes away is really gone, comes back, and is judged by the numbers alone."""

import json
from pathlib import Path

import pytest

from analysis.tables.formats import render
from cl2r.errors import TrainingError
from tests.benchmarks import tricks
from tests.benchmarks.tricks import ENGINE, KNOWN, Outcome, compare, run_chain, table
from tests.support.quick import quick_config
from tests.support.small_study import write_preset

SHORT = {"optim": {"epochs": 1, "milestones": []}, "augment": {"flip": True}}


def test_chains_that_must_be_equal(tiny: Path, tmp_path: Path) -> None:
    engine, *others = (
        run_chain(KNOWN[name], quick_config(tiny, SHORT), tmp_path / name) for name in (ENGINE, "again", "augmentation")
    )
    for other in others:
        assert (other.losses, other.cells, other.digest) == (engine.losses, engine.cells, engine.digest)


def test_a_patch_that_is_never_used_is_refused(tiny: Path, tmp_path: Path) -> None:
    config = quick_config(tiny, SHORT, {"method": {"name": "er"}})
    with pytest.raises(TrainingError, match=r"simplex: the engine never called SimplexClassifier\.forward"):
        run_chain(KNOWN["simplex"], config, tmp_path)


def test_from_the_command_line_to_files(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preset, out = write_preset(tmp_path, tiny), tmp_path / "new" / "tricks"
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


def test_the_kept_table_is_that_of_the_kept_chains() -> None:
    kept = Path(__file__).parents[3] / "studies" / "results" / "tricks"
    content = json.loads(kept.with_suffix(".json").read_text(encoding="utf-8"))
    outcomes = [Outcome(**row) for row in content["outcomes"]]
    rows = [compare(outcomes, row["variant"]) for row in content["rows"]]
    shown = kept.with_suffix(".md").read_text(encoding="utf-8").splitlines()
    made = render(table(rows), "markdown").splitlines()
    assert [line for line in shown if line.startswith("|")] == [line for line in made if line.startswith("|")]
