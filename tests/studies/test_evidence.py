"""The study of which method when: its variants are valid, and its runs are kept as JSON."""

from pathlib import Path

import pytest

from analysis.kept import load_kept
from cl2r.errors import InputError
from cl2r.study.spec import StudySpec
from studies import evidence

STUDY = StudySpec.load(Path(evidence.__file__).with_suffix(".yaml"))


def test_every_variant_is_a_valid_setting_of_every_cell() -> None:
    for point in STUDY.points():
        config = STUDY.config(point, 0)
        assert config.data.name == "cifar100"
    assert len(STUDY.points()) == 4 * len(evidence.VARIANTS)


def test_a_file_that_cannot_take_the_runs_is_refused_before_training(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"base": {"data": {}}, "variants": {}, "origins": [], "runs": []}')
    for file in (other, tmp_path / "kept.txt", tmp_path / "nowhere" / "kept.json"):
        with pytest.raises(InputError, match=file.name):
            evidence.main(["--only", "three", "--keep", str(file), "--storage", str(tmp_path / "store")])
    assert not (tmp_path / "store").exists()


def test_finished_runs_are_kept(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "kept.json"
    words = [
        "--only",
        "three",
        "--cells",
        "er",
        "--seeds",
        "0",
        "--data",
        str(tiny),
        "--storage",
        str(tmp_path / "store"),
    ]
    for setting in (
        "optim.epochs=1",
        "optim.milestones=[]",
        "scenario.n_tasks=3",
        "batches.size=16",
        "memory.per_class=2",
    ):
        words += ["--set", setting]
    assert evidence.main([*words, "--keep", str(kept)]) == 0
    study = load_kept(kept)
    assert list(study.runs["variant"]) == ["three"]
    assert len(study.tasks) == 3
