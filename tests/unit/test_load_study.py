"""Studies read from a disk and from object storage, and their pivot."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_study import ABOUT, made_study, write_made

from analysis import Study, load_study
from analysis.study import find_study
from cl2r.errors import InputError
from cl2r.objects import ObjectPath

ROWS = [  # method, memory.per_class, status, BC, tuning_BC
    ("er", 20, "finished", -0.2, -0.5),
    ("er", 20, "finished", -0.4, -0.7),
    ("er", 5, "pruned", 9.0, 9.0),
    ("er", 5, "finished", -0.1, -0.3),
    ("cl2r", 20, "finished", 0.25, 0.5),
    ("cl2r", 5, "failed", np.nan, np.nan),
    ("bct", 5, "failed", np.nan, np.nan),
]


def write_study(folder: Path) -> Path:
    """A study of seven runs, four of them finished."""
    runs = pd.DataFrame(ROWS, columns=["method.name", "memory.per_class", "status", "BC", "tuning_BC"])
    runs = runs.assign(run=[f"run{n}" for n in range(len(ROWS))], stored_bytes=range(100, 107), variant=None)
    others = {"tasks": {"task": 1}, "matrix": {"accuracy": 0.5}, "curves": {"epoch": 1, "lr": 0.1}}
    folder.mkdir(parents=True)
    (folder / "study.yaml").write_text("id: x\n")
    runs.to_parquet(folder / "runs.parquet")
    for name, columns in others.items():
        runs[["run"]].assign(**columns).to_parquet(folder / f"{name}.parquet")
    return folder


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return load_study(write_study(tmp_path / "studies" / "sizes"))


def test_a_folder_a_text_and_an_address_are_the_same_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_study(tmp_path / "my studies" / "k=5")
    monkeypatch.chdir(folder)
    for source in (folder, str(folder), f"{folder}/", folder.as_uri(), f"{folder.as_uri()}/", "."):
        study = load_study(source)
        assert study.name == "k=5"
        assert study.runs["BC"].tolist()[:2] == [-0.2, -0.4]
        assert "k" not in study.runs, "a folder's name is no column"
        assert study.tasks.columns.tolist() == ["run", "task"]
        assert study.matrix.columns.tolist() == ["run", "accuracy"]
        assert study.curves.columns.tolist() == ["run", "epoch", "lr"]


def test_a_storage_root_with_one_study(tmp_path: Path) -> None:
    write_study(tmp_path / "studies" / "sizes")
    (tmp_path / "studies" / "notes").mkdir()
    assert load_study(tmp_path).name == "sizes"
    assert load_study(tmp_path.as_uri()).name == "sizes"


def test_a_storage_root_with_several_studies_names_them(tmp_path: Path) -> None:
    for name in ("sizes", "ablation"):
        write_study(tmp_path / "studies" / name)
    with pytest.raises(FileNotFoundError, match=f"ablation, sizes; name one: {tmp_path}/studies/ablation"):
        load_study(tmp_path)


def test_nothing_there_says_what_was_looked_for_and_where(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/nowhere: .*runs.parquet, study.yaml, studies/") as error:
        load_study(tmp_path / "nowhere")
    assert "\n" not in str(error.value)
    (tmp_path / "studies").mkdir()
    with pytest.raises(FileNotFoundError, match=f"no study at {tmp_path}/studies: "):
        load_study(tmp_path)


@pytest.mark.parametrize("from_root", [False, True])
def test_a_study_without_frames_points_to_its_status(tmp_path: Path, from_root: bool) -> None:
    folder = tmp_path / "studies" / "young"
    folder.mkdir(parents=True)
    (folder / "study.yaml").touch()
    with pytest.raises(FileNotFoundError, match=f"no runs.parquet at {folder} yet; `cl2r status young`"):
        load_study(tmp_path if from_root else folder)


def test_what_the_study_was_asked_for_and_how_it_was_run(tmp_path: Path) -> None:
    made = made_study(name="made")
    study = load_study(write_made(made, tmp_path / "made"))
    assert study.specification == made.specification
    assert study.about == made.about == {**ABOUT, "expected_runs": 4}


@pytest.mark.parametrize("content", [None, "", "id: x\n", "id: x\nspecification:\n"])
def test_a_study_of_before_has_neither(tmp_path: Path, content: str | None) -> None:
    folder = write_study(tmp_path / "old")
    (folder / "study.yaml").unlink()
    if content is not None:
        (folder / "study.yaml").write_text(content)
    study = load_study(folder)
    assert (study.specification, study.about) == ({}, {})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("about.json", "{"),
        ("about.json", "[1]"),
        ("study.yaml", "a: [b"),
        ("study.yaml", "specification: [1]"),
        ("study.yaml", "specification: x"),
        ("runs.parquet", "PAR1 and no more"),
        ("curves.parquet", ""),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    folder = write_study(tmp_path / "hurt")
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=f"{name} at {folder} is damaged: ") as error:
        load_study(folder)
    assert "\n" not in str(error.value)


def test_a_frame_that_is_half_copied_is_named(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "hurt")
    whole = (folder / "matrix.parquet").read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-9] + b"\0" * 5 + whole[-4:], whole[:4] + b"\0" * 80 + whole[84:]):
        (folder / "matrix.parquet").write_bytes(content)
        with pytest.raises(InputError, match=f"matrix.parquet at {folder} is damaged: ") as error:
            load_study(folder)
        assert "\n" not in str(error.value)


def test_a_study_that_is_still_running(tmp_path: Path) -> None:
    """Between two frames: `runs` is the last to be written and the first to be read; other frames may lag as well."""
    made = made_study(name="made")
    folder = write_made(made, tmp_path / "made")
    first = made.runs["run"].iloc[0]
    made.runs.iloc[:2].to_parquet(folder / "runs.parquet", index=False)
    made.matrix[made.matrix["run"] != first].to_parquet(folder / "matrix.parquet", index=False)
    study = load_study(folder)
    assert set(study.tasks["run"]) == set(study.curves["run"]) == set(made.runs["run"].iloc[:2])
    assert set(study.matrix["run"]) == {made.runs["run"].iloc[1]}
    assert study.matrix.index.tolist() == list(range(len(study.matrix)))


def test_an_address_of_no_known_kind_is_named() -> None:
    with pytest.raises(InputError, match="gopher://host"):
        load_study("gopher://host/study")


def test_finished(study: Study) -> None:
    assert study.finished["run"].tolist() == ["run0", "run1", "run3", "run4"]


def test_pivot_is_the_mean_over_finished_runs_in_order(study: Study) -> None:
    table = study.pivot("BC", columns="memory.per_class")
    assert (table.index.name, table.columns.name) == ("method.name", "memory.per_class")
    assert table.index.tolist() == ["er", "cl2r", "bct"], "text: order of first appearance"
    assert table.columns.tolist() == [5, 20], "numbers ascend"
    np.testing.assert_allclose(table, [[-0.1, -0.3], [np.nan, 0.25], [np.nan, np.nan]])


def test_pivot_without_columns(study: Study) -> None:
    table = study.pivot()
    assert table.columns.tolist() == ["BC"]
    np.testing.assert_allclose(table["BC"], [-0.7 / 3, 0.25, np.nan])
    across = study.pivot("stored_bytes", "memory.per_class", "method.name", "max")
    assert across.columns.tolist() == ["er", "cl2r", "bct"]
    np.testing.assert_allclose(across, [[103, np.nan, np.nan], [101, 104, np.nan]])


def test_pivot_on_tuning_pairs(study: Study) -> None:
    tuning = study.pivot("BC", columns="memory.per_class", pairs="tuning")
    np.testing.assert_allclose(tuning.loc["er"], [-0.3, -0.6])
    assert study.pivot("stored_bytes", pairs="tuning").equals(study.pivot("stored_bytes")), "costs have no pairs"


def test_pivot_aggregates(study: Study) -> None:
    spread = study.pivot("BC", columns="memory.per_class", aggregate="std")
    np.testing.assert_allclose(spread.loc["er"], [np.nan, np.sqrt(0.02)])
    count = study.pivot("BC", columns="memory.per_class", aggregate="count")
    assert count.to_numpy().tolist() == [[1, 2], [0, 1], [0, 0]]


def test_pivot_of_several_fields_keeps_empty_labels(study: Study) -> None:
    runs = study.runs.assign(variant=[None, "masked", None, None, None, None, None])
    some = Study(runs, study.tasks, study.matrix, study.curves, name="some")
    table = some.pivot("BC", ["method.name", "variant"], "memory.per_class")
    assert table.index.get_level_values("method.name").tolist() == ["er", "er", "cl2r", "bct"]
    assert table.index.get_level_values("variant").isna().tolist() == [True, False, True, True]
    np.testing.assert_allclose(table.iloc[:2], [[-0.1, -0.2], [np.nan, -0.4]])


def test_pivot_of_a_study_where_all_failed(study: Study) -> None:
    runs = study.runs.assign(status="failed", BC=None)
    assert Study(runs, study.tasks, study.matrix, study.curves, name="bad").pivot()["BC"].isna().tolist() == [True] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": "BCC"}, "unknown column 'BCC' .did you mean 'BC'"),
        ({"columns": "memory.perclass"}, "did you mean 'memory.per_class'"),
        ({"index": "method"}, "did you mean 'method.name'"),
        ({"aggregate": "meen"}, "did you mean 'mean'"),
        ({"pairs": "tunning"}, "did you mean 'tuning'"),
    ],
)
def test_pivot_names_the_nearest(study: Study, arguments: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        study.pivot(**arguments)


def test_a_study_in_object_storage(tmp_path: Path, remote: ObjectPath) -> None:
    local = write_study(tmp_path / "sizes")
    (local / "study.yaml").write_text("id: x\nspecification: {seeds: [0, 1]}\n")
    (local / "about.json").write_text('{"format": 1}')
    folder, root = remote / "studies" / "sizes", str(remote)
    folder.upload(local)
    for address in (str(folder), root, root.replace("?", "/?")):
        study = load_study(address)
        assert study.name == "sizes"
        pd.testing.assert_frame_equal(study.runs, load_study(local).runs)
        assert len(study.curves) == len(ROWS)
        assert (study.specification, study.about) == ({"seeds": [0, 1]}, {"format": 1})
    place = find_study(root)
    stamp = place.stamp()
    assert place.stamp() == stamp
    (local / "about.json").write_text('{"format": 1, "ended": null}')
    folder.upload(local)
    assert place.stamp() != stamp
    with pytest.raises(FileNotFoundError, match=r"no study at s3://lab/\w+/nowhere"):
        load_study(str(remote / "nowhere"))
    (remote / "studies" / "again").upload(local)
    with pytest.raises(FileNotFoundError, match=r"again, sizes; name one: s3://lab/\w+/studies/again\?region="):
        load_study(root)
