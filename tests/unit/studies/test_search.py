"""The search study on a tiny data set: its frames, tables, figures and files, and what it refuses."""

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from analysis.headline import headline
from analysis.plots.search import plot_backfill, plot_retrieval
from analysis.study import Study, read_search
from analysis.tables.search import formats_table, search_tables
from cl2r.cli.study import Recipe
from cl2r.data.dataset import Templates
from cl2r.engine.chain import RunResult
from cl2r.engine.frames import frames as run_frames
from cl2r.engine.frames import run_name
from cl2r.engine.plan import plan_run
from cl2r.errors import InputError
from cl2r.gallery.retrieval import report_images
from cl2r.retrieval import SEARCH_METRICS, retrieved
from cl2r.storage.path import ObjectPath, StoragePath, at
from cl2r.study.folder import StudyFolder
from cl2r.study.spec import StudySpec
from studies import search
from studies.search import chain_features, measure_runs, present, write_frames
from tests.support.drawn import bands, legend, lines
from tests.support.quick import QUICK, train
from tests.support.small_study import small_study

TASKS = 3
Frames = dict[str, pd.DataFrame]


@pytest.fixture(scope="module")
def study(tiny: Path) -> StudySpec:
    return small_study(
        tiny, set={"optim.epochs": 1}, seeds=[0, 1], grid={"method.name": ["cl2r", "er"], "scenario.n_tasks": [TASKS]}
    )


@pytest.fixture(scope="module")
def preset(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for `--preset`."""
    path = tmp_path_factory.mktemp("preset") / "tiny.yaml"
    path.write_text(yaml.safe_dump({"preset": "none", **QUICK, "data": {"name": str(tiny)}}))
    return path


@pytest.fixture(scope="module")
def root(study: StudySpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("search")


@pytest.fixture(scope="module")
def results(study: StudySpec, root: Path) -> list[RunResult]:
    return [train(study.config(point, seed), root) for seed in (0, 1) for point in study.points()]


@pytest.fixture(scope="module")
def frames(results: list[RunResult]) -> Frames:
    """Frames as the driver of a study joins them."""
    parts = [run_frames(result, run_name(result.plan)) for result in results]
    joined = {name: pd.DataFrame([row for part in parts for row in part[name]]) for name in ("runs", "tasks", "matrix")}
    joined["runs"]["study"] = "made"
    return joined


@pytest.fixture(scope="module")
def measured(study: StudySpec, frames: Frames, root: Path) -> Frames:
    return measure_runs(study, frames["runs"], StudyFolder(root, "made"), draws=2)


def test_every_cell_of_every_run_is_measured(measured: Frames, results: list[RunResult], root: Path) -> None:
    cells = measured["retrieval"]
    assert list(cells.columns) == ["run", "method", "seed", "t", "k", "metric", "value", "low", "high", "compatible"]
    assert len(cells) == 4 * len(SEARCH_METRICS) * TASKS * (TASKS + 1) // 2
    for result in results:
        features, images = chain_features(result.plan, StudyFolder(root, "made")), report_images(result.plan)
        own = cells[cells["run"] == run_name(result.plan)].set_index(["metric", "t", "k"])
        judged = retrieved(*features.searched(2, 1, images), images)
        for metric, value in zip(SEARCH_METRICS, judged.mean(axis=0), strict=True):
            row = own.loc[(metric, 3, 2)]
            assert row["value"] == pytest.approx(value)
            assert row["low"] <= row["value"] <= row["high"]
            assert row["compatible"] == (row["value"] > own.loc[(metric, 2, 2), "value"])
    assert set(zip(cells["method"], cells["seed"], strict=True)) == {("cl2r", 0), ("er", 0), ("cl2r", 1), ("er", 1)}


def test_recall_and_map_are_those_of_the_matrix_frame(
    results: list[RunResult], frames: Frames, measured: Frames, root: Path
) -> None:
    for result in results:
        config = result.plan.config
        precise = config.eval.model_copy(update={"average_precision": True})
        again = train(config.model_copy(update={"eval": precise}), root)
        rows = [row for row in run_frames(again, "x")["matrix"] if row["pairs"] == "report"]
        assert len(rows) == TASKS * (TASKS + 1) // 2
        for row in rows:
            for metric in ("recall@1", "mAP"):
                assert row[metric] == cell(measured, run_name(result.plan), metric, row["t"], row["k"])
    report = frames["matrix"][frames["matrix"]["pairs"] == "report"]
    for run, t, k, recall in zip(report["run"], report["t"], report["k"], report["recall@1"], strict=True):
        assert recall == cell(measured, run, "recall@1", t, k)


def cell(measured: Frames, run: str, metric: str, t: int, k: int) -> float:
    rows = measured["retrieval"]
    chosen = (rows["run"] == run) & (rows["metric"] == metric) & (rows["t"] == t) & (rows["k"] == k)
    return float(rows.loc[chosen, "value"].iloc[0])


def test_backfills_begin_and_end_with_cells_of_the_matrix(measured: Frames) -> None:
    curves = measured["backfill"]
    orders = {*zip(curves["order"], curves["draw"], strict=True)}
    assert orders == {("random", 0), ("random", 1), ("worst_first", 0), ("oracle", 0)}
    for row in curves[curves["fraction"].isin([0.0, 1.0])].itertuples():
        assert row.value == pytest.approx(cell(measured, row.run, row.metric, TASKS, 1 if row.fraction == 0 else TASKS))


def test_float32_gives_the_matrix_and_float16_almost(measured: Frames) -> None:
    formats = measured["formats"]
    assert set(formats["format"]) == {"float32", "float16"}, "42 report images are too few to learn codes from"
    for row in formats.itertuples():
        close = 1e-12 if row.format == "float32" else 0.05
        assert row.value == pytest.approx(cell(measured, row.run, row.metric, row.t, row.k), abs=close)
    assert formats.groupby("format")["bytes"].unique().map(list).to_dict() == {"float16": [22], "float32": [44]}


def test_indexes_of_the_runs_own_gallery(measured: Frames) -> None:
    indexes = measured["indexes"].set_index("kind")
    assert set(indexes.index) == {"exact", "ivf", "hnsw"}
    assert (indexes.loc["exact", "recall@10"] == 1).all()
    assert indexes["recall@10"].between(0.9, 1).all()
    assert (indexes["rows"] == 42).all()
    assert (indexes["queries_per_second"] > 0).all()


def test_a_failed_run_is_left_out(study: StudySpec, frames: Frames, root: Path) -> None:
    runs = frames["runs"].copy()
    runs.loc[1:, "status"] = "failed"
    found = measure_runs(study, runs, StudyFolder(root, "made"), draws=1)
    assert set(found["retrieval"]["run"]) == {runs["run"].iloc[0]}


def test_a_lost_link_is_trained_again(results: list[RunResult], root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "copy")
    plan = results[0].plan
    shutil.rmtree(tmp_path / "copy" / "links" / plan.keys[1])
    found, right = (chain_features(plan, StudyFolder(place, "made")) for place in (tmp_path / "copy", root))
    assert all(np.array_equal(one.body, other.body) for one, other in zip(found.models, right.models, strict=True))


def test_data_without_anything_to_search_for_is_refused(results: list[RunResult]) -> None:
    plan = results[0].plan
    report_images(plan)
    rows = np.arange(len(plan.dataset.y_open))
    for change, part in (
        ({"pairs": plan.report_pairs}, "list of pairs"),
        ({"templates": Templates(rows, rows), "pairs": plan.report_pairs}, "templates"),
    ):
        with pytest.raises(InputError, match=part):
            report_images(dataclasses.replace(plan, dataset=dataclasses.replace(plan.dataset, **change)))
    with pytest.raises(InputError, match="no class"):
        report_images(dataclasses.replace(plan, report_images=None))


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--tasks", "1"], "an upgrade needs two models"),
        (["--set", "scenario.stop_after=1"], "an upgrade needs two models"),
        (["--draws", "0"], "--draws"),
        (["--methods", "cl2"], "cl2r"),
    ],
)
def test_options_that_allow_no_search_are_refused_before_training(
    preset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], fault: str
) -> None:
    monkeypatch.setattr("cl2r.rayrun.driver.run", lambda *_: pytest.fail("a study was started"))
    with pytest.raises(InputError, match=fault):
        search.main(["--preset", str(preset), "--storage", str(tmp_path / "storage"), *words])
    assert not (tmp_path / "storage").exists()


def test_all_tables_of_a_study(measured: Frames) -> None:
    tables = search_tables(measured)
    assert [table.title for table in tables][:2] == ["1:N search", "What an upgrade brings"]
    assert len(tables) == 6
    hint = ("On the command line: CL²R is cl2r.",)
    assert [table.hints for table in tables] == [*[hint] * 5, ()], "the last has no methods"
    assert any("Too few rows" in note for note in formats_table(measured["formats"]).notes)
    assert [cell.text for cell in tables[-1].column("index")] == ["exact", "ivf", "hnsw"]
    assert "42 vectors" in tables[-1].notes[0]


def test_backfill_curves_are_means_over_draws_and_seeds(frames: Frames, measured: Frames) -> None:
    figure = plot_backfill(frames["runs"], measured["backfill"], measured["retrieval"], "mAP")
    assert [axes.get_title() for axes in figure.axes] == ["ER", "CL²R"]
    rows = measured["backfill"]
    for axes, method in zip(figure.axes, ("er", "cl2r"), strict=True):
        drawn = lines(axes)
        own = rows[(rows["method"] == method) & (rows["metric"] == "mAP") & (rows["fraction"] == 0.3)]
        for label, order in (("random order", "random"), ("worst first", "worst_first")):
            x, y = drawn[label][3]
            assert (x, y) == (pytest.approx(0.3), pytest.approx(own.loc[own["order"] == order, "value"].mean()))
        before = [cell(measured, run, "mAP", 1, 1) for run in own["run"].unique()]
        dotted = next(points for label, points in drawn.items() if label.startswith("before"))
        assert dotted[0][1] == pytest.approx(np.mean(before))
        assert len(bands(axes)) == 3
    assert legend(figure).index("before the upgrade: model 1 alone, C[1,1]") == len(legend(figure)) - 1


def test_the_matrix_shows_a_search_metric(frames: Frames, measured: Frames) -> None:
    figure = plot_retrieval(frames["runs"], measured["retrieval"], "recall@1")
    texts = {text.get_text() for text in figure.axes[0].texts}
    own = [
        cell(measured, run, "recall@1", 1, 1) for run in measured["retrieval"].query("method == 'er'")["run"].unique()
    ]
    assert f"{np.mean(own):.3f}".replace("0.", ".", 1) in texts
    assert "recall@1" in figure.axes[-1].get_ylabel()


def test_everything_is_written(frames: Frames, measured: Frames, tmp_path: Path, remote: ObjectPath) -> None:
    found = Study(**frames, curves=pd.DataFrame(), name="made", search=measured, paper={})
    write_frames(measured, at(tmp_path / "out"), StudyFolder(tmp_path, "made"))
    text = present(found, at(tmp_path / "out"), "python studies/search.py --seeds 0 1")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {f"{name}.parquet" for name in measured} <= names
    assert {f"search_backfill.{kind}" for kind in ("png", "svg", "pdf")} | {"search_matrices.png", "search.md"} <= names
    again = pd.read_parquet(tmp_path / "out" / "retrieval.parquet")
    assert again["value"].tolist() == measured["retrieval"]["value"].tolist()
    document = (tmp_path / "out" / "search.md").read_text()
    for part in ("`python studies/search.py --seeds 0 1`", "- commit: ", "- seeds: 0, 1", "](search_backfill.png)"):
        assert part in document
    assert "| recall@1 | ER |" in document
    said = headline(found)
    assert text.startswith(f"{said.title}\n\n"), "as the page begins"
    assert f"{said.finding} {said.certainty}" in " ".join(text.split()), "the sentences of the page"
    assert said.title == "Search after upgrades on tiny: 2 methods, 3 tasks, 2 seeds"
    assert "1:N search" in text
    assert "|" not in text, "aligned columns for the terminal"
    assert str(tmp_path / "out") in text
    write_frames(measured, remote / "search", StudyFolder(remote, "made"))
    present(found, remote / "search", "cl2r study search")
    assert {path.name for path in (remote / "search").list()} == names


def test_the_command_measures_and_writes_what_the_study_found(
    preset: Path, frames: Frames, root: Path, study: StudySpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is trained: `run_recipe` is replaced."""
    shown: list[str] = []
    written: list[str] = []

    def write(measured: Frames, out: StoragePath, folder: StudyFolder) -> None:
        written.append(str(out))
        write_frames(measured, out, folder)

    def ran(path: Path, recipe: Recipe, options: Any) -> int:
        assert recipe.changes == {"grid": {"method.name": ["cl2r", "er"]}}
        session: Any = SimpleNamespace(spec=study, folder=StudyFolder(root, "made"))
        assert recipe.text is not None
        shown.append(recipe.text(session, frames | {"curves": pd.DataFrame()}))
        return 0

    monkeypatch.setattr("cl2r.cli.study.run_recipe", ran)
    monkeypatch.setattr(search, "write_frames", write)
    monkeypatch.setattr("sys.argv", ["cl2r", "study", "search", "--preset", "small.yaml"])
    options = ["--preset", str(preset), "--storage", str(root), "--methods", "cl2r", "er", "--draws", "1"]
    assert search.main(options) == 0
    (tmp_path / "mine").mkdir()
    assert search.main([*options, "--draws", "2", "--out", str(tmp_path / "mine")]) == 0
    folder = root / "studies" / "made" / "search"
    assert written == [str(folder), str(folder), str(tmp_path / "mine")], "each place once per command"
    assert str(folder) in shown[0]
    assert (folder / "search.md").read_text().count("cl2r study search --preset") == 1
    assert (tmp_path / "mine" / "backfill.parquet").exists()
    kept = read_search(StudyFolder(root, "made"), frames["runs"])
    assert kept["backfill"]["draw"].max() == 1, "the page reads what was measured last, wherever tables were written"


def test_the_default_specification_has_two_methods() -> None:
    study = StudySpec.load(Path(search.__file__).with_suffix(".yaml"))
    assert [point.values["method.name"] for point in study.points()] == ["er", "cl2r"]
    report_images(plan_run(study.config(study.points()[0], 0)))
