"""Frames of many runs joined, and the ablation table."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from quick import quick_config, train

from analysis import ablation_table, load_runs
from analysis.tables import markdown
from cl2r.engine.records import write_run

HEADER = "| classifier | distillation | seeds | AC | BC | FC | mean accuracy | s/run |"


def runs_frame(rows: list[tuple[str, str, float]]) -> pd.DataFrame:
    """Runs with a metric each that is easy to average by hand."""
    return pd.DataFrame(
        {
            "run": f"run{number}",
            "method.classifier": classifier,
            "method.fd": fd,
            "AC": value,
            "BC": -value,
            "FC": value / 10,
            "mean_accuracy": 0.5 + value / 10,
            "train_seconds": 10 * value,
        }
        for number, (classifier, fd, value) in enumerate(rows)
    )


@pytest.fixture(scope="module")
def root(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two seeds; one of the runs without bootstrap, hence with fewer columns."""
    folder = tmp_path_factory.mktemp("study")
    for method in ("er", "cl2r"):
        for seed in (0, 1):
            layer = {"method": {"name": method}, "seed": seed, "optim": {"epochs": 1, "milestones": []}}
            bootstrap = {"eval": {"bootstrap": 0 if (method, seed) == ("er", 1) else 20}}
            write_run(train(quick_config(tiny, layer, bootstrap), folder), folder)
    return folder


def test_load_runs_joins(root: Path) -> None:
    frames = load_runs(root)
    assert len(frames.runs) == frames.runs["run"].nunique() == 4
    for table, rows in ((frames.tasks, 3), (frames.matrix, 12), (frames.curves, 3)):
        assert table.groupby("run").size().tolist() == [rows] * 4
        assert set(table["run"]) == set(frames.runs["run"])
    joined = frames.matrix.merge(frames.runs, on="run")
    assert sorted(zip(joined["method.name"], joined["seed"], strict=True)) == sorted(
        [(method, seed) for method in ("er", "cl2r") for seed in (0, 1)] * 12
    )
    plain = frames.runs[(frames.runs["method.name"] == "er") & (frames.runs["seed"] == 1)]
    assert plain["AC_low"].isna().all()
    assert frames.runs["AC_low"].notna().sum() == 3


def test_load_runs_takes_text(root: Path) -> None:
    assert len(load_runs(str(root)).runs) == 4


def test_metrics_can_be_recomputed_from_the_matrix_frame(root: Path) -> None:
    frames = load_runs(root)
    for _, run in frames.runs.iterrows():
        cells = frames.matrix[(frames.matrix["run"] == run["run"]) & (frames.matrix["pairs"] == "report")]
        below = cells[cells["k"] < cells["t"]]
        assert run["AC"] == pytest.approx(below["compatible"].astype(float).mean())
        assert run["mean_accuracy"] == pytest.approx(cells["accuracy"].mean())


def test_load_runs_of_an_empty_folder_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "runs")):
        load_runs(tmp_path)
    with pytest.raises(FileNotFoundError, match="no finished runs"):
        load_runs(tmp_path / "nowhere")


def test_a_folder_without_frames_is_no_run(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "runs", tmp_path / "runs")
    (tmp_path / "runs" / "unfinished").mkdir()
    assert len(load_runs(tmp_path).runs) == 4


def test_ablation_of_real_runs(root: Path) -> None:
    runs = load_runs(root).runs
    table = ablation_table(runs)
    assert table.index.tolist() == [("Trainable", "none"), ("Fixed", "FD^M")]
    er = runs[runs["method.name"] == "er"]["BC"]
    assert table.loc[("Trainable", "none"), "BC"] == pytest.approx(er.mean())
    assert table["seeds"].tolist() == [2, 2]


def test_means_and_deviations_over_seeds() -> None:
    values = [0.2, 0.4, 0.9]
    table = ablation_table(runs_frame([("fixed", "memory", v) for v in values] + [("trainable", "none", 0.5)]))
    er, row = table.reset_index().to_dict("records")
    assert (row["seeds"], row["AC"], row["BC"]) == (3, pytest.approx(0.5), pytest.approx(-0.5))
    assert row["AC_sd"] == pytest.approx(np.std(values, ddof=1))
    assert row["FC_sd"] == pytest.approx(np.std(values, ddof=1) / 10)
    assert (row["mean_accuracy"], row["seconds"]) == (pytest.approx(0.55), pytest.approx(4.0))
    assert np.isnan(er["AC_sd"]), "one seed has no deviation"


def test_rows_come_in_the_order_of_the_paper() -> None:
    cells = [(c, d) for d in ("memory", "none", "all") for c in ("fixed", "trainable")]
    table = ablation_table(runs_frame([(c, d, 0.5) for c, d in cells]))
    assert table.index.tolist() == [(c, d) for c in ("Trainable", "Fixed") for d in ("none", "FD", "FD^M")]


def test_markdown() -> None:
    rows = [("trainable", "none", 0.5), ("fixed", "memory", 0.2), ("fixed", "memory", 0.4)]
    lines = markdown(ablation_table(runs_frame(rows))).splitlines()
    assert lines[0] == HEADER
    assert lines[1].count("---") == HEADER.count("|") - 1
    assert lines[2] == "| Trainable | none | 1 | 0.500 | -0.500 | +0.050 | 0.550 | 5 |"
    assert lines[3] == ("| Fixed | FD^M | 2 | 0.300 ± 0.141 | -0.300 ± 0.141 | +0.030 ± 0.014 | 0.530 ± 0.014 | 3 |")
    assert len(lines) == 4


def test_neither_analysis_nor_the_command_line_loads_torch_to_start() -> None:
    script = "import sys, analysis, cl2r.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
