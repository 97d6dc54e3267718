"""The comparison of methods on Ray: families, stages, an adapter and a gallery that is mapped, in one table."""

from pathlib import Path

import pytest

from analysis import load_study
from analysis.names import title
from cl2r.errors import InputError
from studies import methods
from tests.support.quick import set_options

NAMES = ["er", "er+procrustes", "lwf", "bic", "fan"]
SHORT = {"optim.epochs": 2, "optim.milestones": "[1]", "bic.bias_epochs": 2, "fan.epochs": 1, "eval.bootstrap": 0}


def test_methods_share_first_tasks_and_meet_in_one_table(
    small_ray: None, preset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--preset", str(preset), "--counts", "2", "--seeds", "0", "1", "--methods", *NAMES]
    assert methods.main([*words, *set_options(SHORT), "--storage", str(tmp_path), "--name", "few"]) == 0
    out = capsys.readouterr().out
    for name in NAMES:
        assert f"\n{title(name)} " in out
    study = load_study(tmp_path / "studies" / "few")
    assert study.runs["links_trained"].sum() == 2 * (3 + 4), "lwf and bic begin alike; the adapter trains nothing"
    runs = study.runs.set_index("method.name")
    assert (runs.loc["bic", "bic.bias_epochs"] == 2).all()
    assert runs["bic.bias_epochs"].drop("bic").isna().all(), "a run has its own method's fields only"
    assert (runs.loc["fan", "gallery_items_touched"] > 0).all()
    assert set(study.curves.query("run.str.contains('-fan-')")["stage"]) == {"train", "adapt"}
    later = study.tasks.query("task == 2")
    assert later[["drift_cosine", "cka"]].notna().all(axis=None)


def test_an_unknown_method_is_refused_before_anything_starts() -> None:
    with pytest.raises(InputError, match="lucir"):
        methods.main(["--methods", "er", "lucri"])
