"""Recall@1 and mAP of a run: against slow loops, on the images of each side, and NaN if there is no search."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from cl2r.config.schema import EvalConfig
from cl2r.data import load_dataset
from cl2r.engine.chain import Chain, RunResult, execute
from cl2r.engine.evaluation import ChainFeatures, Evaluator
from cl2r.engine.frames import frames, run_name, summary
from cl2r.engine.plan import plan_run
from cl2r.features import Features
from cl2r.metrics import METRICS
from cl2r.retrieval import recall_at_1
from tests.support.quick import TASKS, Recorder, open_features, quick_config, train
from tests.support.searches import all_images, search_by_hand

RECALLS = [metric for metric in METRICS.of_matrix() if metric.matrix == "recall"]


@pytest.mark.usefixtures("finished")  # whose links these tests reuse
@pytest.mark.parametrize("pairs", ["report", "tuning"])
def test_recall_and_map_equal_slow_loops(tiny: Path, finished_root: Path, pairs: str) -> None:
    result = train(quick_config(tiny, {"eval": {"average_precision": True}}), finished_root)
    images = result.plan.report_images if pairs == "report" else result.plan.tuning_images
    evaluation = result.report if pairs == "report" else result.tuning
    assert images is not None
    assert evaluation is not None
    models = [Features(rows).unit() for rows in open_features(result, finished_root)]
    tables = frames(result, "x")
    cells = {(row["t"], row["k"]): row for row in tables["matrix"] if row["pairs"] == pairs}
    for t in range(TASKS):
        for k in range(t + 1):
            queries, gallery = models[t][images.rows[images.queries]], models[k][images.rows]
            slow = np.array(search_by_hand(queries, gallery, images))
            assert cells[t + 1, k + 1]["recall@1"] == slow[:, 0].mean()
            assert cells[t + 1, k + 1]["mAP"] == pytest.approx(slow[:, -1].mean(), abs=1e-12)
    (row,), c = tables["runs"], evaluation.recall
    assert c is not None
    prefix = "" if pairs == "report" else "tuning_"
    assert row[f"{prefix}service_recall"] == pytest.approx(c[-1].mean())
    assert (row[f"{prefix}reindexed_recall"], row[f"{prefix}first_recall"]) == (c[-1, -1], c[0, 0])
    for metric in RECALLS:
        name = prefix + metric.name
        assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]


def test_average_precision_changes_no_other_value(tiny: Path, finished: RunResult, finished_root: Path) -> None:
    with_precision = train(quick_config(tiny, {"eval": {"average_precision": True}}), finished_root)
    assert with_precision.report.values == finished.report.values
    assert with_precision.report.intervals == finished.report.intervals
    assert with_precision.plan.keys == finished.plan.keys
    assert finished.report.average_precision is None
    assert "mAP" not in frames(finished, "x")["matrix"][0]


def test_each_side_searches_among_its_own_images(finished: RunResult) -> None:
    plan = finished.plan
    assert plan.report_images is not None
    assert plan.tuning_images is not None
    assert sorted([*plan.report_images.rows, *plan.tuning_images.rows]) == list(range(len(plan.dataset.y_open)))
    for pairs, images in ((plan.report_pairs, plan.report_images), (plan.tuning_pairs, plan.tuning_images)):
        assert pairs is not None
        assert {*pairs.query, *pairs.gallery} <= set(images.rows)


@pytest.mark.parametrize("order", [{}, {"order": "official_order"}])
def test_without_tuning_pairs_all_open_images_are_reported(tiny: Path, order: dict[str, str]) -> None:
    plan = plan_run(quick_config(tiny, {"eval": {"tuning_share": 0, **order}}))
    assert plan.tuning_images is None
    assert plan.report_images is not None
    assert len(plan.report_images.rows) == len(plan.dataset.y_open)


def test_a_run_split_by_classes_keeps_its_links(tiny: Path, finished: RunResult, finished_root: Path) -> None:
    result = train(quick_config(tiny, {"eval": {"split": "classes"}}), finished_root)
    plan, labels = result.plan, result.plan.dataset.y_open
    assert plan.keys == finished.plan.keys
    assert run_name(plan) != run_name(finished.plan)
    assert plan.report_images is not None
    assert plan.tuning_images is not None
    assert not set(plan.report_images.labels) & set(plan.tuning_images.labels)
    assert set(labels[plan.report_pairs.query]) <= set(plan.report_images.labels)
    assert math.isfinite(result.report.values["service_recall"])


def test_intervals_are_as_wide_as_theory_says(finished: RunResult) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 40)
    images = all_images(labels)
    centres = rng.normal(size=(20, 5))
    features = ChainFeatures([Features((centres[labels] + rng.normal(size=(800, 5))).astype(np.float32))])
    pairs = finished.plan.report_pairs
    evaluation = Evaluator(pairs, EvalConfig(bootstrap=2000), images)(features)
    hits = recall_at_1(*features.searched(0, 0, images), images)
    low, high = evaluation.intervals["reindexed_recall"]
    assert evaluation.values["reindexed_recall"] == hits.mean()
    assert high - low == pytest.approx(2 * 1.96 * hits.std(ddof=1) / np.sqrt(800), rel=0.1)


def test_a_growing_chain_is_searched_cell_by_cell_only_once_and_only_if_asked(
    finished: RunResult, finished_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr("cl2r.engine.evaluation.recall_at_1", lambda *a: calls.append(1) or recall_at_1(*a))
    chain = Chain(finished.plan, finished_root, Recorder(), trained_by="")
    assert math.isnan(chain.evaluate_so_far(2).values["service_recall"])
    assert not calls
    for task in (1, 2, 3):
        grown = chain.evaluate_so_far(task, search=True)
    assert finished.tuning is not None
    assert grown.values["service_recall"] == finished.tuning.values["service_recall"]
    assert len(calls) == TASKS * (TASKS + 1) // 2
    again = chain.result(0.0)
    assert len(calls) == TASKS * (TASKS + 1), "the report images are searched now, the tuning images are not again"
    np.testing.assert_array_equal(again.report.recall, finished.report.recall)


def test_a_list_of_pairs_has_no_recall(
    tiny: Path, finished: RunResult, finished_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = dataclasses.replace(load_dataset(str(tiny)), pairs=finished.plan.report_pairs)
    monkeypatch.setattr("cl2r.engine.plan.load_dataset", lambda *args: data)
    plan = plan_run(quick_config(tiny, {"eval": {"average_precision": True, "positives": 10, "negatives": 10}}))
    result = execute(plan, finished_root, Recorder())
    assert result.tuning is not None
    tables = frames(result, "x")
    (row,) = tables["runs"]
    for metric in RECALLS:
        for name in (metric.name, f"tuning_{metric.name}", f"{metric.name}_low"):
            assert math.isnan(row[name])
    assert all(math.isnan(cell["recall@1"]) and math.isnan(cell["mAP"]) for cell in tables["matrix"])
    assert math.isfinite(row["service_accuracy"])
    assert "R" not in summary(result, "x")["report"]


@pytest.mark.usefixtures("finished")
def test_recall_does_not_depend_on_the_accept_rate(tiny: Path, finished_root: Path) -> None:
    result = train(quick_config(tiny, {"eval": {"metric": "tar", "far": [0.2, 0.1]}}), finished_root)
    tables = frames(result, "x")
    (row,) = tables["runs"]
    rated = {name.partition("@")[0] for name in row if "@0.1" in name}
    assert {metric.name for metric in METRICS.of_matrix() if metric.matrix == "accuracy"} <= rated
    assert not [name for name in rated if "recall" in name]
    assert math.isfinite(row["service_recall"])
    assert "R" not in summary(result, "x")["report@0.1"]
    recalls = [cell["recall@1"] for cell in tables["matrix"] if cell["pairs"] == "report"]
    assert recalls[: len(recalls) // 2] == recalls[len(recalls) // 2 :]
