"""The frames of a study, joined from a ledger that the test writes."""

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis import load_study
from cl2r.config.layers import override, resolve
from cl2r.config.schema import fields
from cl2r.storage.path import LocalPath
from cl2r.study.folder import StudyFolder
from cl2r.study.frames import FRAMES, study_frames, write_frames
from tests.support.quick import QUICK

METRICS = {"AC": 0.5, "BC": -0.1, "FC": 0.2, "mean_accuracy": 0.8, "tuning_BC": -0.2}


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path, "study")


def config_fields(seed: int = 0, *settings: str) -> dict[str, Any]:
    return fields(resolve([QUICK, *map(override, settings), {"seed": seed}]))


def task_rows(run: str, links: dict[str, bool]) -> list[dict[str, Any]]:
    """Links by key, with whether each was found."""
    common = {"images": 64, "seconds": 0.5, "workers": 1, "lambda": 0}
    entries = enumerate(links.items(), start=1)
    return [{"run": run, "task": task, "key": key, "reused": reused, **common} for task, (key, reused) in entries]


def enter_finished(
    folder: StudyFolder, run: str, trial: int = 0, seed: int = 0, links: dict[str, bool] | None = None, **values: Any
) -> None:
    config = config_fields(seed)
    row = {"run": run, "status": "finished", "tasks": 2, **config, "optim.milestones": "[2]", **METRICS, **values}
    matrix = [{"run": run, "pairs": "report", "t": 1, "k": 1, "accuracy": 0.9, "compatible": None}]
    curves = [{"run": run, "task": 1, "stage": "train", "epoch": 1, "lr": 0.1, "seconds": 0.1, "loss_ce": 1.0}]
    rows = {
        "tasks": task_rows(run, {f"{run}1": False, f"{run}2": False} if links is None else links),
        "matrix": matrix,
        "curves": curves,
        "runs": [row | {"stored_bytes": 10, "links_trained": 9}],
    }
    folder.ledger.write("finished", run, {"trial": trial, "variant": None, "config": config, "frames": rows})


def enter_failed(folder: StudyFolder, run: str, trial: int = 0, *settings: str) -> None:
    entry = {"trial": trial, "variant": "masked", "config": config_fields(3, *settings)}
    folder.ledger.write("failed", run, entry | {"reason": "task 2, epoch 1: loss term 'ce' is nan"})


def test_an_empty_study_has_the_columns_of_another_and_can_be_written(tmp_path: Path) -> None:
    none, one = StudyFolder(tmp_path, "none"), StudyFolder(tmp_path, "one")
    none.ledger.write("opened", "driver", {"runs": 3})
    none.ledger.write("started", "run", {"trial": 0})
    enter_failed(one, "run")
    empty = write_frames(none)
    for name in FRAMES:
        assert pd.read_parquet(none.path / f"{name}.parquet").empty
        something = dtypes(study_frames(one)[name])
        assert something.items() - {("links_trained", "Int64")} == dtypes(empty[name]).items(), name


def test_a_finished_run(folder: StudyFolder) -> None:
    enter_finished(folder, "run", trial=4, seed=2)
    frames = study_frames(folder)
    row = frames["runs"].iloc[0]
    assert (row["study"], row["run"], row["trial"], row["status"], row["seed"]) == ("study", "run", 4, "finished", 2)
    assert {name: row[name] for name in METRICS} == METRICS
    assert pd.isna(row["variant"])
    assert pd.isna(row["reason"])
    assert row["memory.per_class"] == 3
    assert [len(frames[name]) for name in FRAMES] == [1, 2, 1, 1]


def test_a_failed_run_keeps_its_config_and_the_reason(folder: StudyFolder) -> None:
    enter_finished(folder, "good")
    enter_failed(folder, "bad", 1, "memory.per_class=7", "optim.lr_later=0.5", "method.name=er")
    runs = study_frames(folder)["runs"].set_index("run")
    row = runs.loc["bad"]
    assert (row["status"], row["variant"], row["trial"]) == ("failed", "masked", 1)
    assert row["reason"] == "task 2, epoch 1: loss term 'ce' is nan"
    assert (row["memory.per_class"], row["optim.lr_later"], row["method.name"], row["seed"]) == (7, 0.5, "er", 3)
    assert row["optim.milestones"] == runs.loc["good", "optim.milestones"] == "[2]"
    assert runs.loc["bad", list(config_fields())].isna().sum() == sum(v is None for v in config_fields().values()) - 1
    assert runs.loc["bad", [*METRICS, "tasks", "stored_bytes"]].isna().all()
    assert row["links_trained"] == 0


def test_a_pruned_run_has_its_number_of_tasks(folder: StudyFolder) -> None:
    entry = {"trial": 0, "variant": None, "config": config_fields(), "reason": "stopped early", "metrics": {"tasks": 2}}
    folder.ledger.write("pruned", "run", entry)
    row = study_frames(folder)["runs"].iloc[0]
    assert (row["status"], row["reason"], row["tasks"]) == ("pruned", "stopped early", 2)


def test_a_run_that_failed_first_is_one_finished_row(folder: StudyFolder) -> None:
    enter_failed(folder, "run")
    enter_finished(folder, "run")
    enter_failed(folder, "run")
    runs = study_frames(folder)["runs"]
    assert runs["status"].tolist() == ["finished"]
    assert runs["reason"].isna().all()


def test_rows_are_sorted_by_trial_and_seed(folder: StudyFolder) -> None:
    for trial, seed in ((10, 0), (2, 1), (2, 0), (0, 5)):
        enter_finished(folder, f"run{trial}-{seed}", trial, seed)
    frames = study_frames(folder)
    expected = ["run0-5", "run2-0", "run2-1", "run10-0"]
    assert frames["runs"]["run"].tolist() == expected
    assert list(dict.fromkeys(frames["tasks"]["run"])) == expected


def test_a_link_counts_as_trained_once_and_for_the_first_run(folder: StudyFolder) -> None:
    """Link `a` is shared by three runs; `d` was found by the second and trained for the third."""
    enter_finished(folder, "late", 2, links={"a": False, "d": False, "e": False})
    enter_finished(folder, "first", 0, links={"a": False, "b": False, "old": True})
    enter_finished(folder, "second", 1, links={"a": False, "c": False, "d": True})
    frames = study_frames(folder)
    trained = frames["tasks"][~frames["tasks"]["reused"]]
    assert trained.groupby("run")["key"].agg("".join).to_dict() == {"first": "ab", "second": "c", "late": "de"}
    assert frames["runs"].set_index("run")["links_trained"].to_dict() == {"first": 2, "second": 1, "late": 2}


def dtypes(frame: pd.DataFrame) -> dict[str, str]:
    return {name: str(dtype) for name, dtype in frame.dtypes.items()}


def test_types_do_not_depend_on_values(tmp_path: Path) -> None:
    """A study with all values, one where some are missing, one where most are."""
    whole, mixed, bare = (StudyFolder(tmp_path, name) for name in ("whole", "mixed", "bare"))
    given = {"threads": 2, "optim.lr_later": 0.5, "scenario.stop_after": 1, "simplex.scale": "legacy"}
    enter_finished(whole, "run", **given)
    enter_finished(mixed, "run", AC=None, BC=None, stored_bytes=None)
    enter_failed(mixed, "bad")
    enter_failed(bare, "bad")
    frames = {folder.name: write_frames(folder) for folder in (whole, mixed, bare)}
    for name in FRAMES:
        expected = dtypes(frames["whole"][name])
        for other in ("mixed", "bare"):
            assert dtypes(frames[other][name]).items() <= expected.items(), (other, name)
    runs = dtypes(frames["whole"]["runs"])
    assert (runs["BC"], runs["seed"], runs["reason"], runs["augment.flip"]) == ("float64", "Int64", "string", "boolean")
    assert [runs[name] for name in given] == ["Int64", "float64", "Int64", "string"]
    assert (runs["optim.milestones"], runs["data.channels"]) == ("string", "Int64")
    assert dtypes(frames["whole"]["matrix"])["compatible"] == "boolean"
    for name, frame in frames["mixed"].items():
        pd.testing.assert_frame_equal(pd.read_parquet(mixed.path / f"{name}.parquet"), frame)


def test_runs_are_written_last(folder: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_finished(folder, "run")
    written, names = list[str](), ["tasks", "matrix", "curves", "runs"]
    monkeypatch.setattr(LocalPath, "write_file", lambda path, _: written.append(path.name))
    write_frames(folder)
    assert [name for name in written if name.endswith(".parquet")] == [f"{name}.parquet" for name in names]


def test_the_module_imports_neither_torch_nor_ray() -> None:
    script = "import sys, cl2r.study.frames; print(*({'torch', 'ray', 'optuna'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_seed_that_no_float_can_hold(folder: StudyFolder) -> None:
    enter_finished(folder, "run", seed=2**62 + 1)
    enter_failed(folder, "bad")
    assert study_frames(folder)["runs"]["seed"].tolist() == [3, 2**62 + 1]


def test_a_ledger_from_before_recall_was_measured_has_empty_cells(folder: StudyFolder) -> None:
    enter_finished(folder, "old")
    tables = study_frames(folder)
    for frame, column in (("runs", "service_recall"), ("runs", "service_accuracy"), ("matrix", "recall@1")):
        assert tables[frame][column].isna().all()
        assert tables[frame][column].dtype == "float64"


def turned_into_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: list[Callable[[Path], object]] = [
    lambda path: path.write_bytes(path.read_bytes()[:-5]),
    lambda path: path.write_bytes(b""),
    Path.unlink,
    lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 4]) + path.read_bytes()[1:]),
    turned_into_a_folder,
]


def test_damaged_and_lost_frames_are_made_again_from_the_ledger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever happens to a frame or its seal, the values are those that were written, and the log names the study."""
    folder = StudyFolder(tmp_path, "mine")
    folder.claim_name({"seeds": [0]})
    enter_finished(folder, "first")
    enter_finished(folder, "second")
    write_frames(folder)
    whole = load_study(str(folder.path))
    assert not caplog.text
    for name, damage in itertools.product(["runs.parquet", "matrix.parquet", "runs.parquet.seal"], DAMAGES):
        path = Path(str(folder.path / name))
        content = path.read_bytes()
        caplog.clear()
        damage(path)
        again = load_study(str(folder.path))
        assert str(folder.path) in caplog.text
        for frame in ("runs", "tasks", "matrix", "curves"):
            pd.testing.assert_frame_equal(getattr(again, frame), getattr(whole, frame))
        if path.is_dir():
            path.rmdir()
        path.write_bytes(content)
