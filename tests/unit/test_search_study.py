"""The search study on a tiny data set: what it measures, its tables, figures and files; and indexes of made vectors."""

import dataclasses
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from drawn import bands, legend, lines
from quick import QUICK, train
from small_study import small_study

from analysis.plots.search import plot_backfill, plot_retrieval
from analysis.search_tables import (
    backfill_areas,
    backfill_table,
    formats_table,
    found_table,
    fraction_to,
    queries_table,
    run_figures,
    search_tables,
    upgrade_table,
)
from cl2r.data.dataset import Templates
from cl2r.engine.plan import Plan, plan_run
from cl2r.engine.records import frames as run_frames
from cl2r.engine.records import run_name
from cl2r.engine.run import RunResult
from cl2r.errors import InputError
from cl2r.objects import ObjectPath
from cl2r.search.retrieval import METRICS, Truth, retrieved, unit
from cl2r.study.spec import Study
from studies import search, search_scale
from studies.search import chain_features, check_plan, kept, measure_runs, possible, present

TASKS = 3
Frames = dict[str, pd.DataFrame]


@pytest.fixture(scope="module")
def study(tiny: Path) -> Study:
    return small_study(
        tiny, set={"optim.epochs": 1}, seeds=[0, 1], grid={"method.name": ["cl2r", "er"], "scenario.n_tasks": [TASKS]}
    )


@pytest.fixture(scope="module")
def preset(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `--preset` takes."""
    path = tmp_path_factory.mktemp("preset") / "tiny.yaml"
    path.write_text(yaml.safe_dump({**QUICK, "data": {"name": str(tiny)}}))
    return path


@pytest.fixture(scope="module")
def root(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("search")


@pytest.fixture(scope="module")
def results(study: Study, root: Path) -> list[RunResult]:
    return [train(study.config(point, seed), root) for seed in (0, 1) for point in study.points()]


@pytest.fixture(scope="module")
def frames(results: list[RunResult]) -> Frames:
    """As the driver of a study joins them."""
    parts = [run_frames(result, run_name(result.plan)) for result in results]
    joined = {name: pd.DataFrame([row for part in parts for row in part[name]]) for name in ("runs", "tasks")}
    joined["runs"]["study"] = "made"
    return joined


@pytest.fixture(scope="module")
def measured(study: Study, frames: Frames, root: Path) -> Frames:
    return measure_runs(study, frames["runs"], root, draws=2)


# What is measured


def test_the_cells_of_every_run(measured: Frames, results: list[RunResult], root: Path) -> None:
    cells = measured["retrieval"]
    assert list(cells.columns) == ["run", "method", "seed", "t", "k", "metric", "value", "low", "high", "compatible"]
    assert len(cells) == 4 * len(METRICS) * TASKS * (TASKS + 1) // 2
    for result in results:
        features, labels = chain_features(result.plan, root), result.plan.dataset.y_open
        own = cells[cells["run"] == run_name(result.plan)].set_index(["metric", "t", "k"])
        judged = retrieved(unit(features.models[2]), unit(features.models[1]), Truth.of_same_images(labels))
        for metric, value in zip(METRICS, judged.mean(axis=0), strict=True):
            row = own.loc[(metric, 3, 2)]
            assert row["value"] == pytest.approx(value)
            assert row["low"] <= row["value"] <= row["high"]
            assert row["compatible"] == (row["value"] > own.loc[(metric, 2, 2), "value"])
    assert set(zip(cells["method"], cells["seed"], strict=True)) == {("cl2r", 0), ("er", 0), ("cl2r", 1), ("er", 1)}


def test_summaries_are_those_of_the_cells(measured: Frames) -> None:
    cells = measured["retrieval"].set_index(["run", "metric", "t", "k"])["value"]
    for row in measured["compatibility"].itertuples():
        at = {(t, k): cells[row.run, row.metric, t, k] for t in range(1, TASKS + 1) for k in range(1, t + 1)}
        by_hand = {
            "AC": np.mean([at[t, k] > at[k, k] for t, k in at if k < t]),
            "BC": np.mean([at[3, k] - at[k, k] for k in (1, 2)]),
            "FC": np.mean([at[t, t - 1] - at[t, t] for t in (2, 3)]),
        }
        assert row.value == pytest.approx(by_hand[str(row.summary)])
        assert row.low <= row.value + 1e-12
        assert row.value <= row.high + 1e-12


def cell(measured: Frames, run: str, metric: str, t: int, k: int) -> float:
    rows = measured["retrieval"]
    chosen = (rows["run"] == run) & (rows["metric"] == metric) & (rows["t"] == t) & (rows["k"] == k)
    return float(rows.loc[chosen, "value"].iloc[0])


def test_backfills_begin_and_end_in_the_matrix(measured: Frames) -> None:
    curves = measured["backfill"]
    assert set(zip(curves["order"], curves["draw"], strict=True)) == {
        ("random", 0),
        ("random", 1),
        ("worst_first", 0),
        ("oracle", 0),
    }
    for row in curves[curves["fraction"].isin([0.0, 1.0])].itertuples():
        assert row.value == pytest.approx(cell(measured, row.run, row.metric, TASKS, 1 if row.fraction == 0 else TASKS))


def test_whole_vectors_are_as_in_the_matrix_and_halves_almost(measured: Frames) -> None:
    formats = measured["formats"]
    assert set(formats["format"]) == {"float32", "float16"}, "84 open images are too few to learn codes from"
    for row in formats.itertuples():
        close = 1e-12 if row.format == "float32" else 0.05
        assert row.value == pytest.approx(cell(measured, row.run, row.metric, row.t, row.k), abs=close)
    assert formats.groupby("format")["bytes"].unique().map(list).to_dict() == {"float16": [22], "float32": [44]}


def test_indexes_of_the_own_gallery(measured: Frames) -> None:
    indexes = measured["indexes"].set_index("kind")
    assert set(indexes.index) == {"exact", "ivf", "hnsw"}
    assert (indexes.loc["exact", "recall@10"] == 1).all()
    assert indexes["recall@10"].between(0.9, 1).all()
    assert (indexes["rows"] == 84).all()
    assert (indexes["queries_per_second"] > 0).all()


def test_a_run_that_did_not_finish_is_left_out(study: Study, frames: Frames, root: Path) -> None:
    runs = frames["runs"].copy()
    runs.loc[1:, "status"] = "failed"
    found = measure_runs(study, runs, root, draws=1)
    assert set(found["retrieval"]["run"]) == {runs["run"].iloc[0]}


def test_a_link_that_was_lost_is_trained_again(results: list[RunResult], root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "copy")
    plan = results[0].plan
    shutil.rmtree(tmp_path / "copy" / "links" / plan.keys[1])
    found, right = (chain_features(plan, place) for place in (tmp_path / "copy", root))
    assert all(np.array_equal(one, other) for one, other in zip(found.models, right.models, strict=True))


# Formats


def test_shorter_codes_lose_more() -> None:
    vectors = unit(np.random.default_rng(0).normal(size=(600, 30)).astype(np.float32))
    errors, sizes = {}, {}
    for form in search.FORMATS:
        back, sizes[form] = kept(vectors, form)
        assert (back.shape, back.dtype) == (vectors.shape, np.float32)
        errors[form] = float(np.square(back - vectors).sum(1).mean())
    assert sizes == {"float32": 120, "float16": 60, "pq32": 32, "pq16": 16, "pq8": 8}
    assert errors["float32"] == 0 < errors["float16"] < 1e-6 < errors["pq32"] < errors["pq16"] < errors["pq8"] < 0.5


def test_codes_need_as_many_rows_as_a_byte_has_values() -> None:
    assert possible(search.FORMATS, 255) == ["float32", "float16"]
    assert possible(search.FORMATS, 256) == list(search.FORMATS)


# What is refused before anything is trained


def refused(plan: Plan, **changes: Any) -> None:
    check_plan(dataclasses.replace(plan, dataset=dataclasses.replace(plan.dataset, **changes)))


def test_data_that_cannot_be_searched(results: list[RunResult]) -> None:
    plan = results[0].plan
    check_plan(plan)
    with pytest.raises(InputError, match="no class of the open images has two"):
        refused(plan, y_open=np.arange(len(plan.dataset.y_open)))
    rows = np.arange(len(plan.dataset.y_open))
    with pytest.raises(InputError, match="compares templates"):
        refused(plan, templates=Templates(rows, rows), pairs=plan.report_pairs)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--tasks", "1"], "an upgrade needs two models"),
        (["--set", "scenario.stop_after=1"], "an upgrade needs two models"),
        (["--draws", "0"], "--draws 0"),
        (["--methods", "cl2"], "cl2r"),
    ],
)
def test_commands_without_a_question(
    preset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], fault: str
) -> None:
    monkeypatch.setattr("cl2r.study.command.run_study", lambda *_: pytest.fail("a study was started"))
    with pytest.raises(InputError, match=fault):
        search.main(["--preset", str(preset), "--storage", str(tmp_path / "storage"), *words])
    assert not (tmp_path / "storage").exists()


# Tables


def made(metric: str = "mAP") -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two methods, three seeds, two tasks; figures by hand."""
    cells, summaries = [], []
    for method, shift in (("er", 0.0), ("cl2r", 0.1)):
        for seed, noise in enumerate((0.0, 0.02, 0.04)):
            head = {"run": f"{method}{seed}", "method": method, "seed": seed, "metric": metric}
            values = {(1, 1): 0.5, (2, 1): 0.4 + shift + noise, (2, 2): 0.7}
            cells += [{**head, "t": t, "k": k, "value": value} for (t, k), value in values.items()]
            bc = values[2, 1] - 0.5
            for name, value in {"AC": float(bc > 0), "BC": bc, "FC": values[2, 1] - 0.7}.items():
                summaries.append({**head, "summary": name, "value": value, "low": value - 0.01, "high": value + 0.01})
    return pd.DataFrame(cells), pd.DataFrame(summaries)


def test_means_over_seeds() -> None:
    table = found_table(run_figures(*made()))
    assert table.columns == ("metric", "method", "C[1,1]", "C[2,1]", "C[2,2]", "AC", "BC", "FC")
    assert ["|".join(cell.text for cell in row) for row in table.rows] == [
        "mAP|ER|0.500 ± 0.000|0.420 ± 0.020|0.700 ± 0.000|0.000 ± 0.000|-0.080 ± 0.020|-0.280 ± 0.020",
        "mAP|CL²R|0.500 ± 0.000|0.520 ± 0.020|0.700 ± 0.000|0.667 ± 0.577|+0.020 ± 0.020|-0.180 ± 0.020",
    ]


def test_intervals_over_seeds_and_paired_differences() -> None:
    cells, summaries = (pd.concat(parts) for parts in zip(made(), made("recall@1"), strict=True))
    table = upgrade_table(run_figures(cells, summaries))
    rows = {(row[0].text, row[1].text): row for row in table.rows}
    half = 4.302653 * 0.02 / np.sqrt(3)
    assert rows["mAP", "CL²R"][2].text == f"+0.020 [{0.02 - half:+.3f}, {0.02 + half:+.3f}]"
    assert rows["mAP", "ER"][4].text == f"0.420 [{0.42 - half:.3f}, {0.42 + half:.3f}]", "no sign: no difference"
    assert rows["recall@1", "CL²R − ER"][2].text == "+0.100", "noise of a seed drops out"
    assert list(rows) == [(m, name) for m in ("recall@1", "mAP") for name in ("ER", "CL²R", "CL²R − ER")]


def test_intervals_over_queries_run_by_run() -> None:
    summaries = pd.concat([made()[1], made("recall@1")[1]])
    table = queries_table(summaries)
    assert table.columns == ("method", "seed", "BC by recall@1", "BC by mAP", "FC by recall@1", "FC by mAP")
    assert [cell.text for cell in table.rows[3]][:3] == ["CL²R", "0", "0.000 [-0.010, +0.010]"]
    assert len(table.rows) == 6


def made_backfill() -> pd.DataFrame:
    """Curves of two runs by hand: random goes straight up, worst first is late by a fifth of the way."""
    rows = []
    for seed in (0, 1):
        for order, draw, power in (("random", 0, 0.9), ("random", 1, 1.1), ("worst_first", 0, 2.0), ("oracle", 0, 0.5)):
            for step in range(11):
                head = {"run": f"er{seed}", "method": "er", "seed": seed, "order": order, "draw": draw}
                for metric in ("recall@1", "mAP"):
                    value = 0.4 + 0.1 * seed + 0.3 * (step / 10) ** power
                    rows.append({**head, "fraction": step / 10, "metric": metric, "value": value})
    return pd.DataFrame(rows)


def test_the_mean_height_of_a_curve() -> None:
    areas = backfill_areas(made_backfill()).set_index(["metric", "order", "run"])
    steps = np.linspace(0, 1, 11)

    def height(power: float) -> float:
        curve = 0.4 + 0.3 * steps**power
        return float(sum((a + b) / 2 for a, b in pairwise(curve)) / 10)

    draws = [height(0.9), height(1.1)]
    assert areas.loc[("mAP", "random", "er0"), "area"] == pytest.approx(np.mean(draws))
    assert areas.loc[("mAP", "random", "er0"), "spread"] == pytest.approx(np.std(draws, ddof=1))
    assert areas.loc[("mAP", "worst_first", "er1"), "gain"] == pytest.approx(height(2.0) - np.mean(draws))


def test_backfill_in_figures() -> None:
    start = [{"run": f"er{seed}", "metric": m, "t": 1, "k": 1} for seed in (0, 1) for m in ("recall@1", "mAP")]
    retrieval = pd.DataFrame([{**row, "value": 0.55 + 0.1 * (row["run"] == "er1")} for row in start])
    table = backfill_table(made_backfill(), pd.concat([retrieval, retrieval.assign(t=5, value=9.0)]))
    rows = {(row[0].text, row[2].text): [cell.text for cell in row] for row in table.rows}
    assert rows["mAP", "oracle"][3:10] == [f"{0.45 + 0.3 * x**0.5:.3f}" for x in (0, 0.1, 0.3, 0.5, 0.7, 0.9, 1)]
    assert rows["mAP", "random"][-2] == "–"
    assert rows["recall@1", "worst first"][-2].startswith("-0.0"), "below random"
    assert rows["mAP", "oracle"][-1] == "25", "half of the way up, where the root of x is one half"
    assert rows["mAP", "random"][-1] == "50"
    assert "C[5,1]" in table.notes[0]
    assert "mean of 2 draws" in table.notes[1]


def test_where_a_curve_reaches_a_height() -> None:
    curve = pd.Series([0.2, 0.4, 0.3, 0.8], [0.0, 0.5, 0.6, 1.0])
    assert fraction_to(0.3, curve) == pytest.approx(0.25), "the first time"
    assert fraction_to(0.55, curve) == pytest.approx(0.8)
    assert fraction_to(0.1, curve) == 0
    assert fraction_to(0.8, curve) == 1
    assert np.isnan(fraction_to(0.9, curve))


def test_all_tables_of_a_study(measured: Frames) -> None:
    tables = search_tables(measured)
    assert [table.title for table in tables][:2] == ["1:N search", "What an upgrade brings"]
    assert len(tables) == 6
    assert any("Too few rows" in note for note in formats_table(measured["formats"]).notes)
    assert [cell.text for cell in tables[-1].column("index")] == ["exact", "ivf", "hnsw"]
    assert "84 vectors" in tables[-1].notes[0]


# Figures and files


def test_backfill_curves_are_means_over_draws_and_seeds(frames: Frames, measured: Frames) -> None:
    figure = plot_backfill(frames["runs"], measured["backfill"], measured["retrieval"], "mAP")
    assert [axes.get_title() for axes in figure.axes] == ["ER", "CL²R"]
    rows = measured["backfill"]
    for axes, method in zip(figure.axes, ("er", "cl2r"), strict=True):
        drawn = lines(axes)
        own = rows[(rows["method"] == method) & (rows["metric"] == "mAP") & (rows["fraction"] == 0.3)]
        for label, order in (("random order", "random"), ("worst first", "worst_first")):
            x, y = drawn[label][3]
            assert (x, y) == (pytest.approx(30), pytest.approx(own.loc[own["order"] == order, "value"].mean()))
        before = [cell(measured, run, "mAP", 1, 1) for run in own["run"].unique()]
        dotted = next(points for label, points in drawn.items() if label.startswith("before"))
        assert dotted[0][1] == pytest.approx(np.mean(before))
        assert len(bands(axes)) == 3
    assert legend(figure)[-1] == "before the upgrade: model 1 alone, C[1,1]"


def test_the_matrix_is_by_a_metric_of_search(frames: Frames, measured: Frames) -> None:
    figure = plot_retrieval(frames["runs"], measured["retrieval"], "recall@1")
    texts = {text.get_text() for text in figure.axes[0].texts}
    own = [
        cell(measured, run, "recall@1", 1, 1) for run in measured["retrieval"].query("method == 'er'")["run"].unique()
    ]
    assert f"{100 * np.mean(own):.1f}".removesuffix(".0") in {text.removesuffix(".0") for text in texts}
    assert "recall@1" in figure.axes[-1].get_ylabel()


def test_everything_is_written(frames: Frames, measured: Frames, tmp_path: Path) -> None:
    text = present(frames, measured, tmp_path / "out", "python studies/search.py --seeds 0 1")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {f"{name}.parquet" for name in search.FRAMES} <= names
    assert {f"search_backfill.{kind}" for kind in ("png", "svg", "pdf")} | {"search_matrices.png", "search.md"} <= names
    again = pd.read_parquet(tmp_path / "out" / "retrieval.parquet")
    assert again["value"].tolist() == measured["retrieval"]["value"].tolist()
    document = (tmp_path / "out" / "search.md").read_text()
    for part in ("`python studies/search.py --seeds 0 1`", "- commit: ", "- seeds: 0, 1", "](search_backfill.png)"):
        assert part in document
    assert "| recall@1 | ER |" in document
    assert "1:N search" in text
    assert "|" not in text, "aligned columns for the terminal"
    assert str(tmp_path / "out") in text


def test_an_object_store_gets_the_same(frames: Frames, measured: Frames, remote: ObjectPath) -> None:
    present(frames, measured, remote / "search", "cl2r study search")
    assert {"search.md", "indexes.parquet", "search_matrices.svg"} <= {Path(name).name for name in remote.below()}


def test_the_command_hands_over_what_the_study_found(
    preset: Path, frames: Frames, root: Path, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is trained: the machinery of studies is told apart by its arguments."""
    shown: list[str] = []

    def ran(args: Any, path: Path, changes: dict[str, Any], show: Callable[[Frames, Study], str]) -> int:
        assert (path, changes) == (search.SPEC, {"grid": {"method.name": ["cl2r", "er"]}})
        shown.append(show(frames, study))
        return 0

    monkeypatch.setattr(search, "run_command", ran)
    options = ["--preset", str(preset), "--storage", str(root), "--methods", "cl2r", "er", "--draws", "1"]
    assert search.main(options) == 0
    assert search.main([*options, "--out", str(tmp_path / "mine")]) == 0
    folder = root / "studies" / "made" / "search"
    assert str(folder) in shown[0]
    assert (folder / "search.md").read_text().count("cl2r study search --preset") == 1
    assert (tmp_path / "mine" / "backfill.parquet").exists()


# Indexes of many vectors


def test_vectors_are_made_in_clusters_and_again(tmp_path: Path) -> None:
    given = search_scale.Generated(vectors=1600, queries=7)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        search_scale.generate(tmp_path / name, given)
    one, two = (np.load(tmp_path / name / "vectors.npy") for name in ("one", "two"))
    assert (one.shape, one.dtype) == ((1600, 99), np.float32)
    assert np.array_equal(one, two)
    assert np.allclose(np.linalg.norm(one, axis=1), 1, atol=1e-5)
    cosines = one @ one.T
    np.fill_diagonal(cosines, -1)
    assert 0.88 < np.median(cosines.max(axis=1)) < 0.97, "as near as the docstring says"
    assert abs(np.mean(cosines)) < 0.1
    assert np.load(tmp_path / "one" / "queries.npy").shape == (7, 99)


def test_an_index_is_built_opened_and_held_against_the_exact_search(tmp_path: Path) -> None:
    search_scale.generate(tmp_path, search_scale.Generated(vectors=5000, queries=30))
    exact = search_scale.search_kind(tmp_path, "exact", 1)
    assert exact["recall"] == 1
    vectors, queries = (np.load(tmp_path / f"{name}.npy") for name in ("vectors", "queries"))
    right = np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :10]
    assert np.mean(np.load(tmp_path / "right.npy") == right) > 0.99, "through two shards"
    built = search_scale.build_kind(tmp_path, "ivf")
    assert built["file"] == next((tmp_path / "ivf").glob("*.faiss")).stat().st_size > 5000 * 99 * 4
    assert 0.5 < search_scale.search_kind(tmp_path, "ivf", 1)["recall"] <= 1


def test_the_benchmark_prints_a_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--vectors", "1000", "--queries", "5", "--kinds", "exact", "--repeats", "1", "--folder", str(tmp_path)]
    assert search_scale.main(words) == 0
    lines_out = capsys.readouterr().out.splitlines()
    assert lines_out[0].startswith("| index | options |")
    assert lines_out[2].startswith("| exact |  | – | – | 0 |")
    assert lines_out[2].endswith("| 1.000 |")
    assert "1,000 vectors of 99 dimensions" in lines_out[4]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [["--vectors", "10"], ["--kinds", "tree"], ["--repeats", "0"], ["--decay", "0"], ["--queries", "0"]]
)
def test_a_benchmark_of_nothing(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError):
        search_scale.main([*words, "--folder", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_plan_of_the_study_as_it_comes() -> None:
    """The file that lies beside the study: two methods on icons, five tasks."""
    study = search.read_study(search.SPEC, {}, [], None)
    assert [point.values["method.name"] for point in study.points()] == ["er", "cl2r"]
    check_plan(plan_run(study.config(study.points()[0], 0)))
