"""The ablation on Ray: links are shared, counted and reused; a failed run is a row, not the end of the study."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from analysis import load_study
from analysis.names import METHODS
from cl2r.cli.main import main as cli
from cl2r.cli.study import load_command
from cl2r.config.builtin import ABLATION_CELLS
from cl2r.engine.plan import plan_run
from studies import ablation
from tests.support.quick import quick_config, train
from tests.support.study_frames import finished_events, frames_of

TASKS = 3


def test_the_first_tasks_are_trained_once(undisturbed: Path) -> None:
    study = load_study(undisturbed / "studies" / "calm")
    links = 2 + 6 * (TASKS - 1)
    assert len(list((undisturbed / "links").iterdir())) == links
    assert (~study.tasks["reused"]).sum() == links
    assert study.runs["links_trained"].sum() == links
    trained = study.tasks[~study.tasks["reused"]]
    assert trained["key"].is_unique
    assert (trained.groupby("task")["key"].count() == [2, 6, 6]).all()
    assert list(study.runs["method.name"]) == list(ABLATION_CELLS)
    assert set(study.runs["status"]) == {"finished"}


def test_every_task_is_logged_while_it_runs(undisturbed: Path) -> None:
    logged = undisturbed / "studies" / "calm" / "tensorboard"
    assert {path.name for path in logged.iterdir()} == set(load_study(undisturbed / "studies" / "calm").runs["run"])
    for run in logged.iterdir():
        files = {path.name.rpartition(".")[2]: path.read_bytes() for path in run.iterdir()}
        assert sorted(files) == ["final", *(f"task000{task}" for task in range(1, TASKS + 1))]
        assert b"\x07task/BC" in files["task0002"], "the objective, which the ledger has no value of after two tasks"


def test_a_study_equals_single_runs(undisturbed: Path, tiny: Path, preset: Path, tmp_path: Path) -> None:
    layer = yaml.safe_load(preset.read_text())
    del layer["preset"]
    result = train(quick_config(tiny, layer, {"method": {"name": "er_fdm"}}), tmp_path)
    matrix = frames_of(undisturbed, "calm")["matrix"].query("run.str.contains('er_fdm') and pairs == 'report'")
    cells = [result.report.matrix[t - 1, k - 1] for t, k in zip(matrix["t"], matrix["k"], strict=True)]
    np.testing.assert_array_equal(matrix["accuracy"], cells)


def test_a_repeated_study_trains_nothing_and_needs_no_ray(
    undisturbed: Path, preset: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = finished_events(undisturbed, "calm")
    monkeypatch.setattr("cl2r.rayrun.driver.cluster", lambda *_: pytest.fail("nothing is left to do"))
    words = ["--preset", str(preset), "--storage", str(undisturbed), "--name", "calm", "--seeds", "0"]
    assert ablation.main(words) == 0
    out = capsys.readouterr().out
    assert "6 runs finished, 0 failed" in out
    assert "; 0 links trained" in out
    rows = out.partition("-----\n")[2].partition("\n\n")[0]
    assert [name for name in METHODS if f"\n{METHODS[name]} " in f"\n{rows}"] == list(ABLATION_CELLS)
    assert finished_events(undisturbed, "calm") == before
    assert len(before) == 6


def test_another_study_reuses_the_links(undisturbed: Path, preset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--preset", str(preset), "--storage", str(undisturbed), "--name", "second", "--cells", "er", "cl2r"]
    words += ["--seeds", "0"]
    assert ablation.main(words) == 0
    assert "; 0 links trained" in capsys.readouterr().out
    second = load_study(undisturbed / "studies" / "second")
    assert second.tasks["reused"].all()
    expected = frames_of(undisturbed, "calm")["matrix"].query("run in @second.runs.run").reset_index(drop=True)
    pd.testing.assert_frame_equal(frames_of(undisturbed, "second")["matrix"], expected)


def test_a_name_is_kept_for_its_specification(undisturbed: Path, preset: Path) -> None:
    words = ["--preset", str(preset), "--storage", str(undisturbed), "--name", "calm", "--seeds", "0", "1"]
    with pytest.raises(ValueError, match=r"seeds: \[0\] there, \[0, 1\] here"):
        ablation.main(words)


def test_a_failed_run_is_a_row_with_its_reason(
    small_ray: None, preset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loss that is not a number, and a disk that refuses one run; the third run finishes."""
    spec = tmp_path / "spec.yaml"
    grid = {"method.name": ["er", "fixed"], "optim.lr": [0.1, 1e30]}
    spec.write_text(yaml.safe_dump({"preset": str(preset), "set": {"scenario.stop_after": 2}, "grid": grid}))
    layers = [yaml.safe_load(preset.read_text()), {"scenario": {"stop_after": 2}, "method": {"name": "fixed"}}]
    del layers[0]["preset"]
    blocked = plan_run(quick_config(Path(layers[0]["data"]["name"]), *layers)).keys[1]
    (tmp_path / "out" / "partials").mkdir(parents=True)
    (tmp_path / "out" / "partials" / blocked).write_text("a file where a folder should be")
    assert load_command(str(spec))(["--storage", str(tmp_path / "out"), "--name", "hurt", "--retries", "1"]) == 1
    study = load_study(tmp_path / "out" / "studies" / "hurt")
    runs = study.runs.set_index(["method.name", "optim.lr"])
    assert runs["status"].to_dict() == {
        ("er", 0.1): "finished",
        ("er", 1e30): "failed",
        ("fixed", 0.1): "failed",
        ("fixed", 1e30): "failed",
    }
    assert "loss term 'ce' is" in runs.loc[("er", 1e30), "reason"]
    assert blocked in runs.loc[("fixed", 0.1), "reason"]
    assert pd.isna(runs.loc[("er", 1e30), "AC"])
    assert pd.notna(runs.loc[("er", 0.1), "AC"])
    out = capsys.readouterr().out
    assert "1 runs finished, 3 failed" in out
    assert "failed: " in out


def test_the_command_line_runs_a_file(
    undisturbed: Path, preset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cl2r study FILE` with the same content is the same study as the one by name."""
    path = tmp_path / "same.yaml"
    path.write_text(yaml.safe_dump({"preset": str(preset), "grid": {"method.name": list(ABLATION_CELLS)}}))
    words = ["cl2r", "study", str(path), "--storage", str(undisturbed), "--name", "calm"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        cli()
    assert ended.value.code == 0
    assert "; 0 links trained" in capsys.readouterr().out
