"""What a finished run writes: columns, rows, and the same values in all files."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import load_runs
from cl2r.config.layers import read_layer, resolve
from cl2r.config.schema import fields
from cl2r.engine.chain import RunResult
from cl2r.engine.frames import run_name, write_run
from cl2r.engine.plan import plan_run
from cl2r.metrics import METRICS as REGISTRY
from cl2r.metrics import End
from tests.support.quick import EPOCHS, TASKS, quick_config, train

CELLS = TASKS * (TASKS + 1) // 2
ENDS: tuple[End, ...] = ("", "low", "high")
METRICS = [m.column(end=end) for m in REGISTRY.of_matrix() for end in (ENDS if m.interval else ENDS[:1])]
COLUMNS = {
    "runs": [
        *("run", "status", "tasks", *fields(resolve([])), *METRICS, *(f"tuning_{metric}" for metric in METRICS)),
        *("adapter_flops", "gallery_items_touched", "stored_bytes", "train_seconds", "links_trained", "wall_seconds"),
        *("peak_bytes", "mixed"),
    ],
    "tasks": [
        *("run", "task", "key", "reused", "images", "seconds", "memory", "extract_seconds", "images_per_second"),
        *("peak_bytes", "device"),
        *(
            "common_direction",
            "train_accuracy",
            "drift_cosine",
            "rotated_cosine",
            "cka",
            "vertex_cosine",
            "vertex_bound",
        ),
        *("feature_size", "model_bytes", "forward_flops", "workers", "sync_batchnorm", "lambda", "loss_ce", "loss_fd"),
    ],
    "matrix": ["run", "pairs", "metric", "t", "k", "accuracy", "recall@1", "compatible", "low", "high", "p_compatible"],
    "curves": ["run", "task", "stage", "epoch", "lr", "seconds", "loss_ce", "loss_fd"],
}


@pytest.fixture
def folder(finished: RunResult, tmp_path: Path) -> Path:
    return write_run(finished, tmp_path)


def frame(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(folder / f"{name}.parquet")


def written(folder: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    entry: dict[str, Any] = json.loads((folder / "result.json").read_text(), parse_constant=refuse)
    return entry


def test_files_and_columns(folder: Path, finished: RunResult, tmp_path: Path) -> None:
    assert folder == tmp_path / "runs" / run_name(finished.plan)
    parquet = [f"{name}.parquet" for name in COLUMNS]
    files = [*parquet, "config.yaml", "result.json"]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*files, *(f"{name}.seal" for name in files)])
    assert resolve([read_layer(str(folder / "config.yaml"))]) == finished.plan.config
    for name, columns in COLUMNS.items():
        table = frame(folder, name)
        assert sorted(table.columns) == sorted(columns)
        assert (table["run"] == folder.name).all()


def test_rows(folder: Path) -> None:
    assert len(frame(folder, "runs")) == 1
    assert frame(folder, "tasks")["task"].tolist() == [1, 2, 3]
    matrix = frame(folder, "matrix")
    expected = [(t, k) for t in range(1, TASKS + 1) for k in range(1, t + 1)]
    for pairs in ("report", "tuning"):
        rows = matrix[matrix["pairs"] == pairs]
        assert list(zip(rows["t"], rows["k"], strict=True)) == expected
    assert len(matrix) == 2 * CELLS
    curves = frame(folder, "curves")
    assert list(zip(curves["task"], curves["epoch"], strict=True)) == [
        (task, epoch) for task in range(1, TASKS + 1) for epoch in range(1, EPOCHS + 1)
    ]
    assert curves["loss_fd"].isna().tolist() == [True] * EPOCHS + [False] * EPOCHS * (TASKS - 1)


def test_values_of_the_run_row(folder: Path, finished: RunResult) -> None:
    row = frame(folder, "runs").iloc[0]
    assert (row["status"], row["tasks"], row["links_trained"]) == ("finished", TASKS, TASKS)
    assert (row["method.name"], row["optim.milestones"], row["optim.epochs"]) == ("cl2r", "[2]", EPOCHS)
    assert {name: row[name] for name in finished.report.values} == finished.report.values
    assert finished.tuning is not None
    assert row["tuning_AC"] == finished.tuning.values["AC"]
    assert row["train_seconds"] == pytest.approx(frame(folder, "tasks")["seconds"].sum())


def test_compatible_is_empty_on_the_diagonal_and_correct_below_it(folder: Path) -> None:
    for _, group in frame(folder, "matrix").groupby("pairs"):
        own = {row.k: row.accuracy for row in group.itertuples() if row.t == row.k}
        for row in group.itertuples():
            assert row.compatible == (None if row.t == row.k else row.accuracy > own[row.k])


def test_json_has_the_values_of_the_frames_and_null_above_the_diagonal(folder: Path, finished: RunResult) -> None:
    entry, row, matrix = written(folder), frame(folder, "runs").iloc[0], frame(folder, "matrix")
    for pairs, prefix in (("report", ""), ("tuning", "tuning_")):
        assert {metric: entry[pairs][metric] for metric in METRICS} == {m: row[prefix + m] for m in METRICS}
        cells = {(cell.t, cell.k): cell.accuracy for cell in matrix[matrix["pairs"] == pairs].itertuples()}
        assert entry[pairs]["C"] == [[cells.get((t, k)) for k in (1, 2, 3)] for t in (1, 2, 3)]
        rows = matrix[matrix["pairs"] == pairs]
        found = dict(zip(zip(rows["t"], rows["k"], strict=True), rows["recall@1"], strict=True))
        assert entry[pairs]["R"] == [[found.get((t, k)) for k in (1, 2, 3)] for t in (1, 2, 3)]
        assert (entry[pairs]["BC(t)"][0], entry[pairs]["BC(t)"][-1]) == (None, entry[pairs]["BC"])
    assert [link["key"] for link in entry["links"]] == frame(folder, "tasks")["key"].tolist()
    assert entry["config"] == finished.plan.config.model_dump(mode="json")


def test_one_task_without_bootstrap(tiny: Path, tmp_path: Path) -> None:
    layer = {"scenario": {"n_tasks": 1}, "optim": {"epochs": 1}, "eval": {"bootstrap": 0, "tuning_share": 0}}
    folder = write_run(train(quick_config(tiny, layer), tmp_path), tmp_path)
    entry = written(folder)
    assert [entry["report"][metric] for metric in ("AC", "BC", "FC")] == [None, None, None]
    assert entry["report"]["C"] == [[entry["report"]["mean_accuracy"]]]
    assert "tuning" not in entry
    row = frame(folder, "runs").iloc[0]
    assert all(math.isnan(row[metric]) for metric in ("AC", "BC", "FC"))
    columns = {"run", "pairs", "metric", "t", "k", "accuracy", "recall@1", "compatible"}
    assert set(frame(folder, "matrix").columns) == columns


def test_an_equal_run_writes_the_same_folder(folder: Path, finished: RunResult, tmp_path: Path) -> None:
    before = written(folder)
    assert write_run(finished, tmp_path) == folder
    after = written(folder)
    assert after.pop("finished") > before.pop("finished"), "the times are ISO 8601 in UTC, which sort as texts"
    assert after == before
    assert len(load_runs(tmp_path).runs) == 1


def test_runs_with_other_results_have_other_names(finished: RunResult, tiny: Path) -> None:
    layers = [{"threads": 2}, {"seed": 1}, {"eval": {"folds": 4}}, {"method": {"name": "er"}}, {"optim": {"lr": 1}}]
    names = [run_name(plan_run(quick_config(tiny, layer))) for layer in layers]
    assert names[0] == run_name(finished.plan)
    assert len(set(names)) == len(layers)


def test_other_labels_of_the_open_images_rename_a_run(finished: RunResult, tiny: Path, tmp_path: Path) -> None:
    """The links are the same, the pairs and so the matrix are not."""
    arrays = dict(np.load(tiny))
    arrays["y_open"] = np.roll(arrays["y_open"], 7)
    np.savez(tmp_path / "tiny.npz", **arrays)
    other = plan_run(quick_config(tmp_path / "tiny.npz"))
    assert other.keys == finished.plan.keys
    assert not np.array_equal(other.report_pairs.query, finished.plan.report_pairs.query)
    assert run_name(other) != run_name(finished.plan)


def test_a_run_interrupted_while_written_does_not_look_finished(
    finished: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = pd.DataFrame.to_parquet, []

    def interrupted(self: pd.DataFrame, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == len(COLUMNS):
            raise KeyboardInterrupt
        return write(self, *args, **kwargs)

    monkeypatch.setattr(pd.DataFrame, "to_parquet", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_run(finished, tmp_path)
    with pytest.raises(FileNotFoundError, match="no finished runs"):
        load_runs(tmp_path)
