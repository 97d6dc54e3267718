"""`cl2r run`."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import yaml

from cl2r.cli.run import matrix_table, metrics_table
from cl2r.compatibility import empirical_compatibility
from cl2r.config.layers import read_layer, resolve
from cl2r.engine.chain import RunResult
from cl2r.metrics import METRICS
from tests.support.command_line import Command, quick_options


def test_show_config_prints_what_would_run_and_writes_nothing(cl2r: Command, tmp_path: Path) -> None:
    words = ["--tasks", "7", "--method", "er_fdm", "--seed", "3", "--set", "seed=4"]
    code, out, err = cl2r("run", "--data", "nowhere", *words, "--show-config")
    assert (code, err) == (0, "")
    config = resolve([yaml.safe_load(out)])
    assert (config.scenario.n_tasks, config.method.name, config.seed) == (7, "er_fdm", 4)
    assert config.data.name == "nowhere"
    assert config.optim == resolve([read_layer("icons")]).optim
    assert not list((tmp_path / "cwd").iterdir())


def test_a_run_prints_and_writes_its_results(cl2r: Command, tiny: Path, tmp_path: Path) -> None:
    words = ["run", *quick_options(tiny, optim__epochs=1, optim__milestones="[]")]
    code, out, err = cl2r(*words)
    assert code == 0
    assert [line.split(" link")[0] for line in err.splitlines()] == [f"task {t}: trained" for t in (1, 2, 3)]
    assert "120 report pairs" in out
    last = out.splitlines()[-1]
    assert last.startswith("3 links trained, ")
    folder = tmp_path / "cwd" / last.split("; ")[1]
    names = [f"{frame}.parquet" for frame in ("runs", "tasks", "matrix", "curves")]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*names, "config.yaml", "result.json"])
    result = json.loads((folder / "result.json").read_text())
    for number in (*result["report"]["C"][2], result["report"]["mean_accuracy"]):
        assert f"{number:.3f}" in out
    assert "\nAC " in out

    code, out, err = cl2r(*words)
    assert code == 0
    assert "0 links trained" in out
    assert [line.split(" link")[0] for line in err.splitlines()] == [f"task {t}: reused" for t in (1, 2, 3)]


def test_a_folder_with_official_pairs_runs(cl2r: Command, images: Path) -> None:
    """Official pairs use 4 of 24 images of w and x: the others still suffice for tuning pairs."""
    options = quick_options(images, data__channels=1, data__size=16, optim__epochs=1)
    code, out, _ = cl2r("run", *options, "--tasks", "2")
    assert code == 0
    assert "8 report pairs" in out


def test_a_loss_that_is_not_a_number_ends_with_1(cl2r: Command, tiny: Path, tmp_path: Path) -> None:
    code, _, err = cl2r("run", *quick_options(tiny, optim__lr="1e30"))
    assert code == 1
    assert "loss term 'ce'" in err
    assert err.count("\n") == 1
    assert not list((tmp_path / "cwd" / "results" / "runs").iterdir())


def test_ctrl_c_ends_with_130(cl2r: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cl2r.runtime.progress.ProgressLine.epoch", pressed)
    code, _, err = cl2r("run", *quick_options(tiny))
    assert code == 130
    assert err.strip().count("\n") == 0


def test_matrix_and_metrics_on_the_terminal(finished: RunResult) -> None:
    """A star marks cells in which new queries beat the old model on its own gallery; a tie has none."""
    nan = math.nan
    matrix = np.array([[0.5, nan, nan], [0.5012, 0.7, nan], [0.5, 0.6999, 1.0]])
    report = dataclasses.replace(finished.report, matrix=matrix, compatible=empirical_compatibility(matrix))
    assert matrix_table(report).splitlines() == [
        "query\\gallery       φ1      φ2      φ3",
        "φ1              0.500 ",
        "φ2              0.501*  0.700 ",
        "φ3              0.500   0.700   1.000 ",
    ]
    lines = {line[:19].strip(): line for line in metrics_table(finished.report).splitlines()}
    assert list(lines) == [metric.head for metric in METRICS.in_tables()]
    low, high = finished.report.intervals["BC"]
    assert lines["BC"] == f"BC                   {finished.report.values['BC']:+.3f}  [{low:+.3f}, {high:+.3f}]"
    assert lines["mean accuracy"] == f"mean accuracy        {finished.report.values['mean_accuracy']:.3f}"
    pairs_only = dataclasses.replace(finished.report, recall=None)
    assert "recall" not in metrics_table(pairs_only)
