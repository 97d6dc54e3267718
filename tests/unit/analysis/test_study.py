"""Studies and runs loaded from a disk and from object storage, and several studies joined to one."""

import dataclasses
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import Study, concat, load_runs, load_study, study_tables
from analysis.study import SEARCH_FRAMES, read_paper, read_search
from cl2r.engine.frames import write_run
from cl2r.errors import InputError
from cl2r.metrics import METRICS
from cl2r.storage.path import ObjectPath, at
from cl2r.study.folder import StudyFolder
from tests.support.made_search import made_search
from tests.support.made_study import ABOUT, made_study, write_made
from tests.support.object_server import upload
from tests.support.quick import quick_config, train

FRAMES = ("runs", "tasks", "matrix", "curves")


@pytest.fixture(scope="module")
def root(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, the first without bootstrap, hence with fewer columns."""
    folder = tmp_path_factory.mktemp("study")
    for method, draws in (("er", 0), ("cl2r", 20)):
        layer = {"method": {"name": method}, "optim": {"epochs": 1, "milestones": []}, "eval": {"bootstrap": draws}}
        write_run(train(quick_config(tiny, layer), folder), folder)
    return folder


def test_load_runs_joins_the_frames_of_all_runs(root: Path) -> None:
    frames = load_runs(str(root))
    runs = frames.runs.set_index("method.name")
    assert sorted(runs.index) == ["cl2r", "er"]
    for table, rows in ((frames.tasks, 3), (frames.matrix, 12), (frames.curves, 3)):
        assert table.groupby("run").size().to_dict() == dict.fromkeys(runs["run"], rows)
    assert runs["AC_low"].isna().to_dict() == {"er": True, "cl2r": False}


def test_metrics_can_be_recomputed_from_the_matrix_frame(root: Path) -> None:
    frames = load_runs(root)
    for _, run in frames.runs.iterrows():
        cells = frames.matrix[(frames.matrix["run"] == run["run"]) & (frames.matrix["pairs"] == "report")]
        below = cells[cells["k"] < cells["t"]]
        assert run["AC"] == pytest.approx(below["compatible"].astype(float).mean())
        assert run["mean_accuracy"] == pytest.approx(cells["accuracy"].mean())


def test_load_runs_of_an_empty_folder_names_it(tmp_path: Path) -> None:
    (tmp_path / "runs" / "unfinished").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=str(folder / "runs")):
            load_runs(folder)


def test_a_run_without_seals_is_not_read(root: Path, tmp_path: Path) -> None:
    for path in shutil.copytree(root / "runs", tmp_path / "runs").glob("*/*.seal"):
        path.unlink()
    for path in (tmp_path / "runs").glob("*/runs.parquet"):
        pd.read_parquet(path).assign(BC=0.99).to_parquet(path, index=False)
    with pytest.raises(InputError, match=r"runs\.parquet at .* is damaged \(it has no seal"):
        load_runs(tmp_path)


def test_load_runs_from_an_object_store(root: Path, remote: ObjectPath) -> None:
    with pytest.raises(FileNotFoundError, match=f"no finished runs below {re.escape(str(remote / 'runs'))}"):
        load_runs(str(remote))
    upload(root, remote)
    found, expected = load_runs(str(remote)), load_runs(root)
    for name in FRAMES:
        pd.testing.assert_frame_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize(
    ("modules", "slow"),
    [
        ("analysis, cl2r.cli.main", {"torch", "ray", "matplotlib", "plotly", "optuna", "scipy.stats"}),
        ("analysis.plots", {"torch", "ray", "matplotlib.pyplot"}),
        ("analysis.report", {"torch", "ray", "optuna"}),
    ],
)
def test_slow_packages_are_loaded_only_if_needed(modules: str, slow: set[str]) -> None:
    script = f"import sys, {modules}; print(*({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def write_study(folder: Path) -> Path:
    return write_made(made_study(seeds=[0]), folder)


def test_a_folder_a_text_and_an_address_are_the_same_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_study(tmp_path / "my studies" / "k=5")
    monkeypatch.chdir(folder)
    for source in (folder, str(folder), f"{folder}/", folder.as_uri(), f"{folder.as_uri()}/", "."):
        study = load_study(source)
        assert study.name == "k=5"
        for name in FRAMES:
            pd.testing.assert_frame_equal(getattr(study, name), pd.read_parquet(folder / f"{name}.parquet"))
        assert "k" not in study.runs, "a folder's name is no column"


def test_frames_from_before_a_metric_existed_have_empty_cells(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "old")
    for name in ("runs", "matrix"):
        frame = pd.read_parquet(folder / f"{name}.parquet")
        later = [
            column for column in frame if any(part in column for part in ("service", "reindexed", "first_", "recall"))
        ]
        frame.drop(columns=later).to_parquet(folder / f"{name}.parquet", index=False)
    study = load_study(folder)
    for metric in METRICS.of_matrix():
        assert {metric.column(), metric.column("tuning")} <= set(study.runs)
    assert study.runs["service_recall"].isna().all()
    assert study.matrix["recall@1"].isna().all()
    assert study.runs["AC"].notna().any()


def test_a_storage_root_with_one_study_or_several(tmp_path: Path) -> None:
    write_study(tmp_path / "studies" / "sizes")
    (tmp_path / "studies" / "notes").mkdir()
    assert load_study(tmp_path).name == load_study(tmp_path.as_uri()).name == "sizes"
    write_study(tmp_path / "studies" / "ablation")
    with pytest.raises(FileNotFoundError, match=f"ablation, sizes.*{tmp_path}/studies/ablation"):
        load_study(tmp_path)


def test_nothing_there_names_the_place_and_a_study_without_frames_its_status(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/nowhere"):
        load_study(tmp_path / "nowhere")
    (tmp_path / "studies").mkdir()
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/studies"):
        load_study(tmp_path)
    with pytest.raises(InputError, match="gopher://host"):
        load_study("gopher://host/study")
    folder = tmp_path / "studies" / "young"
    folder.mkdir()
    (folder / "study.yaml").touch()
    for source in (tmp_path, folder):
        with pytest.raises(FileNotFoundError, match=f"runs.parquet at {folder}.*`cl2r status young`"):
            load_study(source)


@pytest.mark.parametrize("content", [None, "", "id: x\n", "id: x\nspecification:\n"])
def test_a_study_without_a_record_has_empty_ones(tmp_path: Path, content: str | None) -> None:
    folder = write_study(tmp_path / "old")
    for name in ("study.yaml", "about.json"):
        (folder / name).unlink()
    if content is not None:
        (folder / "study.yaml").write_text(content)
    study = load_study(folder)
    assert (study.specification, study.about) == ({}, {})


def test_a_study_of_the_paper_says_which_item_it_shows(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "paper")
    assert load_study(folder).paper == {}
    (folder / "paper.json").write_text('{"item": "figure bc", "preset": "tiny_imagenet200"}')
    assert load_study(folder).paper == {"item": "figure bc", "preset": "tiny_imagenet200"}


def test_a_paper_json_of_which_the_seal_is_left_is_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_made(made_study(), tmp_path / "some")
    assert read_paper(StudyFolder.at(at(folder))) == {}
    assert caplog.text == ""
    (folder / "paper.json.seal").write_text("{}")
    assert read_paper(StudyFolder.at(at(folder))) == {}
    assert f"{folder / 'paper.json'} is missing" in caplog.text


def test_frames_of_a_search_study_need_seals_where_there_is_a_ledger(tmp_path: Path) -> None:
    made = made_search()
    folder = write_made(made, tmp_path / "search")
    (folder / "search").mkdir()
    for name, frame in made.search.items():
        frame.to_parquet(folder / "search" / f"{name}.parquet", index=False)
    study = StudyFolder(tmp_path / "copy", "search")
    shutil.copytree(folder / "search", Path(str(study.path)) / "search")
    study.ledger.write("opened", "driver", {})
    with pytest.raises(InputError, match=r"retrieval.parquet at .* is damaged \(it has no seal"):
        read_search(study, made.runs)
    assert read_search(StudyFolder.at(at(folder)), made.runs).keys() == SEARCH_FRAMES.keys()


def test_a_search_study_has_its_frames_once_all_are_written(
    tmp_path: Path, remote: ObjectPath, caplog: pytest.LogCaptureFixture
) -> None:
    made = made_search()
    folder = write_made(made, tmp_path / "search")
    (folder / "search").mkdir()
    for name, frame in made.search.items():
        assert load_study(folder).search == {}, f"{name} is missing"
        assert (caplog.text != "") == (name != "retrieval"), "some are missing, or none has been written"
        frame.to_parquet(folder / "search" / f"{name}.parquet", index=False)
    assert f"{folder / 'search' / 'indexes.parquet'} is missing" in caplog.text
    upload(folder, remote)
    for source in (folder, str(remote)):
        found = load_study(source).search
        assert list(found) == list(SEARCH_FRAMES)
        for name, frame in made.search.items():
            pd.testing.assert_frame_equal(found[name], frame)
    made.runs[1:].to_parquet(folder / "runs.parquet", index=False)
    assert made.runs["run"].iloc[0] not in set(load_study(folder).search["indexes"]["run"]), "a run that is not there"
    made.search["backfill"].drop(columns="order").to_parquet(folder / "search" / "backfill.parquet", index=False)
    with pytest.raises(InputError, match=r"backfill.parquet at .* is damaged \(it has no column order"):
        load_study(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("study.yaml", "a: [b"),
        ("study.yaml", "specification: [1]"),
        ("study.yaml", "specification: x"),
        ("runs.parquet", "PAR1 and no more"),
        ("curves.parquet", ""),
        ("paper.json", '{"item": "table 99", "preset": "cifar100"}'),
        ("paper.json", '{"item": "table 2", "preset": "/etc/passwd"}'),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    folder = write_study(tmp_path / "hurt")
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=f"{name} at {folder} is damaged|{folder / name}: ") as error:
        load_study(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_damaged_about_file_is_named_and_left_out(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_study(tmp_path / "hurt")
    (folder / "about.json").write_text(content)
    assert load_study(folder).about == {}
    assert str(folder / "about.json") in caplog.text


def test_a_frame_that_is_half_copied_is_named(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "hurt")
    whole = (folder / "matrix.parquet").read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-9] + b"\0" * 5 + whole[-4:], whole[:4] + b"\0" * 80 + whole[84:]):
        (folder / "matrix.parquet").write_file(content)
        with pytest.raises(InputError, match=f"matrix.parquet at {folder}"):
            load_study(folder)


def test_a_study_that_is_still_running(tmp_path: Path) -> None:
    """`runs` is written last and read first; other frames may lag as well."""
    made = made_study(name="made")
    folder = write_made(made, tmp_path / "made")
    first = made.runs["run"].iloc[0]
    made.runs.iloc[:2].to_parquet(folder / "runs.parquet", index=False)
    made.matrix[made.matrix["run"] != first].to_parquet(folder / "matrix.parquet", index=False)
    study = load_study(folder)
    assert (study.specification, study.about) == (made.specification, {**ABOUT, "expected_runs": 4})
    assert set(study.tasks["run"]) == set(study.curves["run"]) == set(made.runs["run"].iloc[:2])
    assert set(study.matrix["run"]) == {made.runs["run"].iloc[1]}
    assert study.matrix.index.tolist() == list(range(len(study.matrix)))


def test_a_study_in_object_storage(tmp_path: Path, remote: ObjectPath) -> None:
    local = write_study(tmp_path / "sizes")
    folder, root = remote / "studies" / "sizes", str(remote)
    upload(local, folder)
    for address in (str(folder), root, root.replace("?", "/?")):
        study = load_study(address)
        assert study.name == "sizes"
        expected = load_study(local)
        for name in FRAMES:
            pd.testing.assert_frame_equal(getattr(study, name), getattr(expected, name))
        assert (study.specification, study.about) == (expected.specification, expected.about)
    with pytest.raises(FileNotFoundError, match=r"no study at s3://lab/\w+/nowhere"):
        load_study(str(remote / "nowhere"))
    upload(local, remote / "studies" / "again")
    with pytest.raises(FileNotFoundError, match=r"again, sizes; name one: s3://lab/\w+/studies/again\?region="):
        load_study(root)


def renamed(study: Study, old: str, new: str) -> Study:
    """The same study with other names of runs: other runs."""
    frames = {name: getattr(study, name) for name in FRAMES}
    frames = {name: frame.assign(run=frame["run"].str.replace(old, new)) for name, frame in frames.items()}
    return dataclasses.replace(study, **frames)


def without(study: Study, *runs: str, **changes: Any) -> Study:
    """The study after some of its runs, in all frames, were taken away."""
    frames = {name: getattr(study, name) for name in FRAMES}
    return dataclasses.replace(study, **{k: f[~f["run"].isin(runs)] for k, f in frames.items()}, **changes)


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    """The values; one kind of emptiness, no types."""
    return frame.astype(object).where(frame.notna(), None)


@pytest.fixture
def one() -> Study:
    return made_study(("er", "cl2r"), (0, 1), name="one")


@pytest.fixture
def other() -> Study:
    """Four runs that `one` does not have."""
    return renamed(made_study(("er", "bct"), (0, 1), name="other", random=1), "icons", "faces")


def test_runs_of_both_with_their_rows(one: Study, other: Study) -> None:
    both = concat([one, other])
    assert both.name == "one + other"
    assert both.runs["run"].tolist() == [*one.runs["run"], *other.runs["run"]]
    assert both.runs["study"].tolist() == ["one"] * 4 + ["other"] * 4
    for name in FRAMES[1:]:
        frame, expected = getattr(both, name), [getattr(study, name) for study in (one, other)]
        assert len(frame) == sum(map(len, expected))
    np.testing.assert_array_equal(both.matrix["accuracy"], [*one.matrix["accuracy"], *other.matrix["accuracy"]])
    assert concat([one, other], name="mine").name == "mine"


def test_trials_never_collide(one: Study, other: Study) -> None:
    third = renamed(other, "faces", "birds")
    runs = concat([one, other, third]).runs
    assert runs["trial"].tolist() == list(range(12))
    pairs = dataclasses.replace(one, runs=one.runs.assign(trial=[3, 3, 7, 7]))
    assert concat([pairs, other]).runs["trial"].tolist() == [3, 3, 7, 7, 8, 9, 10, 11]


def test_a_run_that_both_have_counts_once(one: Study) -> None:
    again = dataclasses.replace(one, name="again", runs=one.runs.assign(study="again", BC=9.0))
    shared = one.runs["run"].iloc[1]
    both = concat([without(one, *one.runs["run"].iloc[2:]), without(again, one.runs["run"].iloc[0])])
    assert both.runs["run"].tolist() == one.runs["run"].tolist()
    assert both.runs["study"].tolist() == ["one", "one", "again", "again"]
    assert both.runs["BC"].iloc[1] != 9.0, "the first that has it"
    for name in FRAMES[1:]:
        assert (getattr(both, name)["run"] == shared).sum() == (getattr(one, name)["run"] == shared).sum()
    assert both.runs["trial"].is_unique


@pytest.mark.parametrize("status", ["failed", "pruned"])
@pytest.mark.parametrize("turned", [False, True])
def test_where_it_finished_goes_before_where_it_did_not(status: str, turned: bool) -> None:
    whole, hurt = made_study(name="whole"), made_study(failed=[2], name="hurt")
    hurt = dataclasses.replace(hurt, runs=hurt.runs.assign(status=hurt.runs["status"].replace("failed", status)))
    both = concat([whole, hurt] if turned else [hurt, whole])
    assert sorted(both.runs["run"]) == sorted(whole.runs["run"])
    assert set(both.runs["status"]) == {"finished"}
    run = hurt.runs["run"].iloc[2]
    assert both.runs.set_index("run").loc[run, "study"] == "whole"
    assert (both.matrix["run"] == run).sum() == (whole.matrix["run"] == run).sum() > 0
    assert both.runs["reason"].isna().all()
    nowhere = concat([hurt, hurt, dataclasses.replace(hurt, name="later")])
    assert (nowhere.name, (nowhere.runs["status"] == status).sum()) == ("hurt + later", 1)


def test_one_study_twice_is_that_study(tmp_path: Path) -> None:
    study = load_study(write_made(made_study(grid={"memory.per_class": [2, 4]}, failed=[1]), tmp_path / "sizes"))
    for group in ([study], [study, study], [study, load_study(tmp_path / "sizes")]):
        both = concat(group)
        assert (both.name, both.specification, both.about) == ("sizes", study.specification, study.about)
        for name in FRAMES:
            pd.testing.assert_frame_equal(plain(getattr(both, name)), plain(getattr(study, name)))
    assert concat([study]).runs["trial"].tolist() == list(range(8))


def test_what_they_agree_on_stays_key_by_key(one: Study, other: Study) -> None:
    both = concat([one, other])
    assert (both.specification, both.about) == ({"preset": "icons", "seeds": [0, 1]}, one.about)
    machine = {**ABOUT["environment"], "cpus": 64, "packages": {**ABOUT["environment"]["packages"], "ray": "3"}}
    later = {**other.about, "began": "2030-01-01T00:00:00+00:00", "environment": machine}
    about = concat([one, dataclasses.replace(other, about=later)]).about
    environment = {key: value for key, value in ABOUT["environment"].items() if key != "cpus"}
    environment["packages"] = {"torch": "2.15.0", "optuna": "5.0.0"}
    kept = {key: value for key, value in one.about.items() if key not in ("began", "expected_runs")}
    assert about == {**kept, "environment": environment}, "each expected 4 runs, but not both"
    assert concat([one, dataclasses.replace(other, about={}, specification={})]).about == {}


def sweep(space: dict[str, Any], name: str, **search: Any) -> Study:
    search = {"objectives": ["AC"], **search}
    grid = {"method.lambda_base": [1.0, 3.0]}
    made = made_study(["cl2r"], (0, 1), grid=grid, name=name, space=space, search=search)
    return renamed(dataclasses.replace(made, runs=made.runs.assign(trial=made.runs["trial"] // 2)), "icons", name)


def test_sweeps_of_the_same_space_make_a_sweep() -> None:
    one = sweep({"method.lambda_base": {"low": 0.5, "high": 3.0}}, "one", seed=0)
    both = concat([one, sweep(one.specification["space"], "other", seed=1)])
    assert both.specification["space"] == one.specification["space"]
    assert both.specification["search"] == {"objectives": ["AC"]}
    assert both.runs.groupby("trial").size().tolist() == [2] * 4, "equal points stay two trials"
    assert [table.marks for table in study_tables(both)] == [set(), set()]
    ranged = sweep({"method.lambda_base": {"low": 0.5, "high": 9.0}}, "ranged")
    wider = sweep({**one.specification["space"], "optim.lr": [0.1]}, "wider")
    for another in (ranged, wider, made_study(name="grid"), dataclasses.replace(one, specification={"space": {}})):
        assert "space" not in concat([one, another]).specification


def test_columns_of_either_keep_their_types(one: Study, other: Study) -> None:
    """Integers do not become floats, nor truth values objects, because the other study lacks the column."""
    longer = dataclasses.replace(
        other,
        runs=other.runs.assign(**{"podnet.proxies": 10, "lucir.flag": True, "note": "x", "AC@0.01": 0.5}),
        tasks=other.tasks.assign(gamma=1.5),
    )
    for group in ([one, longer], [longer, one]):
        both = concat(group)
        kinds = [str(both.runs[column].dtype) for column in ("podnet.proxies", "lucir.flag", "note", "AC@0.01")]
        assert kinds == ["Int64", "boolean", "string", "float64"]
        assert both.runs.groupby("study")["podnet.proxies"].count().to_dict() == {"one": 0, "other": 4}
        assert (str(both.runs["seed"].dtype), str(both.runs["BC"].dtype)) == ("Int64", "float64")
        assert str(both.matrix["compatible"].dtype) == "boolean"
        assert both.tasks["gamma"].count() == len(other.tasks)
        assert [name for name in both.runs if both.runs[name].dtype == object and both.runs[name].notna().any()] == []


def test_a_column_without_a_value_takes_the_type_of_the_other(one: Study, other: Study) -> None:
    empty = dataclasses.replace(one, runs=one.runs.assign(**{"scenario.stop_after": None, "reason": np.nan}))
    told = dataclasses.replace(other, runs=other.runs.assign(**{"scenario.stop_after": 3, "reason": "why"}))
    runs = concat([empty, told]).runs
    assert runs["scenario.stop_after"].tolist() == [pd.NA] * 4 + [3] * 4
    assert (str(runs["scenario.stop_after"].dtype), str(runs["reason"].dtype)) == ("Int64", "string")
    wide = dataclasses.replace(other, runs=other.runs.assign(**{"memory.per_class": 2.5}))
    column = concat([one, wide]).runs["memory.per_class"]
    assert (str(column.dtype), column.iloc[-1]) == ("float64", 2.5), "integers and floats become floats"


def test_a_study_without_a_run_adds_nothing(one: Study) -> None:
    nothing = without(one, *one.runs["run"], name="nothing")
    both = concat([nothing, one])
    assert len(both.runs) == 4
    assert both.runs["trial"].tolist() == [0, 1, 2, 3]
    assert concat([nothing]).runs.empty
    hopeless = concat([made_study(failed=range(4), name="hopeless"), one])
    assert (len(hopeless.runs), len(hopeless.matrix)) == (4, len(one.matrix))


def test_a_study_whose_other_frames_lag_behind(one: Study, other: Study) -> None:
    run = one.runs["run"].iloc[0]
    both = concat([dataclasses.replace(one, matrix=one.matrix[one.matrix["run"] != run]), other])
    assert (run in set(both.runs["run"]), run in set(both.matrix["run"])) == (True, False)
    with pytest.raises(InputError, match="no studies"):
        concat([])
