"""The matrix and its metrics against slow loops, intervals, ties, and accept rates of templates."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from cl2r.config.schema import EvalConfig
from cl2r.data import load_dataset
from cl2r.data.dataset import ImageSet, Templates
from cl2r.engine.chain import RunResult, execute
from cl2r.engine.evaluation import ChainFeatures, Evaluator
from cl2r.engine.frames import frames, summary
from cl2r.engine.plan import Plan, plan_run
from cl2r.errors import InputError
from cl2r.features import Features
from cl2r.pair_distances import pair_distances
from cl2r.verification import Pairs, tar_at_far, verification_accuracy
from tests.support.quick import TASKS, Recorder, open_features, quick_config

FAR = [0.2, 0.1]


def slow_cell(new: npt.NDArray[np.float32], old: npt.NDArray[np.float32], pairs: Pairs) -> float:
    """C[t, k] pair by pair."""
    distances = []
    for query, gallery in zip(pairs.query, pairs.gallery, strict=True):
        q, g = new[query].tolist(), old[gallery].tolist()
        dot, q_length, g_length = (math.fsum(map(float.__mul__, a, b)) for a, b in ((q, g), (q, q), (g, g)))
        distances.append(2 - 2 * dot / (math.sqrt(q_length) * math.sqrt(g_length)))
    return verification_accuracy(np.clip(distances, 0, 4), pairs.same, pairs.folds)


@pytest.mark.parametrize("kind", ["report", "tuning"])
def test_evaluation_equals_a_slow_one(finished: RunResult, finished_root: Path, kind: str) -> None:
    pairs = finished.plan.report_pairs if kind == "report" else finished.plan.tuning_pairs
    evaluation = finished.report if kind == "report" else finished.tuning
    assert pairs is not None
    assert evaluation is not None
    features, c = open_features(finished, finished_root), evaluation.matrix
    for t in range(TASKS):
        for k in range(t + 1):
            assert c[t, k] == pytest.approx(slow_cell(features[t], features[k], pairs), abs=1e-12)
    assert evaluation.values["BC"] == pytest.approx(((c[2, 0] - c[0, 0]) + (c[2, 1] - c[1, 1])) / 2)
    assert evaluation.values["FC"] == pytest.approx(((c[1, 0] - c[1, 1]) + (c[2, 1] - c[2, 2])) / 2)
    assert evaluation.values["AC"] == pytest.approx(sum([c[1, 0] > c[0, 0], c[2, 0] > c[0, 0], c[2, 1] > c[1, 1]]) / 3)


def test_intervals_contain_the_matrix_and_can_be_left_out(finished: RunResult, finished_root: Path) -> None:
    bounds, lower = finished.report.cells, np.tri(TASKS, dtype=bool)
    assert bounds is not None
    assert (bounds.low[lower] <= finished.report.matrix[lower]).all()
    assert (bounds.high[lower] >= finished.report.matrix[lower]).all()
    features = ChainFeatures([Features(rows) for rows in open_features(finished, finished_root)])
    plain = Evaluator(finished.plan.report_pairs, EvalConfig(bootstrap=0))(features)
    assert (plain.cells, plain.intervals) == (None, {})


@pytest.mark.parametrize("ties", [False, True])
def test_metrics_intervals_and_frames_follow_the_rule_for_ties(
    finished: RunResult, finished_root: Path, ties: bool
) -> None:
    """The same model twice ties in every draw."""
    features = ChainFeatures([Features(open_features(finished, finished_root)[-1])] * 2)
    evaluation = Evaluator(finished.plan.report_pairs, EvalConfig(bootstrap=20, ties=ties))(features)
    assert evaluation.values["AC"] == ties
    assert evaluation.intervals["AC"] == (ties, ties)
    assert evaluation.cells is not None
    assert evaluation.cells.compatible[1, 0] == ties
    tables = frames(dataclasses.replace(finished, report=evaluation, tuning=None), "x")
    assert [row["compatible"] for row in tables["matrix"]] == [None, ties, None]


def test_a_growing_chain_is_judged_cell_by_cell_only_once(
    finished: RunResult, finished_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [Features(rows) for rows in open_features(finished, finished_root)]
    evaluator, calls = Evaluator(finished.plan.report_pairs, finished.plan.config.eval), []
    monkeypatch.setattr("cl2r.engine.evaluation.pair_distances", lambda *a: calls.append(1) or pair_distances(*a))
    for tasks in (1, 2, 3):
        grown = evaluator(ChainFeatures(models[:tasks]), bootstrap=False)
    np.testing.assert_array_equal(grown.matrix, finished.report.matrix)
    assert len(calls) == TASKS * (TASKS + 1) // 2


def with_templates(data: ImageSet) -> ImageSet:
    """Put the open images into templates of one class each, and pair all templates."""
    rng = np.random.default_rng(2)
    template = np.unique(data.y_open * 100 + rng.integers(0, 5, len(data.y_open)), return_inverse=True)[1]
    label = np.empty(template.max() + 1, np.int64)
    label[template] = data.y_open
    query, gallery = np.triu_indices(len(label), k=1)
    pairs = Pairs(query, gallery, label[query] == label[gallery], np.zeros(len(query), np.int64))
    return dataclasses.replace(data, pairs=pairs, templates=Templates(template, rng.integers(0, 2, len(template))))


def templates_plan(tiny: Path, monkeypatch: pytest.MonkeyPatch, metric: str = "tar") -> Plan:
    data = with_templates(load_dataset(str(tiny)))
    monkeypatch.setattr("cl2r.engine.plan.load_dataset", lambda *args: data)
    short = {"scenario": {"n_tasks": 2}, "optim": {"epochs": 1, "milestones": []}}
    return plan_run(quick_config(tiny, short, {"eval": {"metric": metric, "far": FAR}}))


@pytest.fixture(scope="module")
def by_templates(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, Path]:
    root = tmp_path_factory.mktemp("templates")
    with pytest.MonkeyPatch.context() as patch:
        plan = templates_plan(tiny, patch)
    assert plan.tuning_pairs is None
    return execute(plan, root, Recorder()), root


def test_templates_have_no_accuracy(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"tiny .*templates .*eval\.metric=tar"):
        templates_plan(tiny, monkeypatch, metric="accuracy")


def test_accept_rates_of_templates_and_their_frames(by_templates: tuple[RunResult, Path]) -> None:
    result, root = by_templates
    pairs = result.plan.report_pairs
    first, second = map(Features, open_features(result, root))
    assert len(first) == result.plan.dataset.num_items < len(result.plan.dataset.y_open)
    assert result.report.metric == "TAR@0.2"
    distances = pair_distances(second, first, pairs.query, pairs.gallery)
    for far in FAR:
        assert result.report.at[far].matrix[1, 0] == tar_at_far(distances, pairs.same, far)
    np.testing.assert_array_equal(result.report.matrix, result.report.at[0.2].matrix)
    bounds = result.report.cells
    assert bounds is not None
    assert bounds.low[1, 0] <= result.report.matrix[1, 0] <= bounds.high[1, 0]
    tables = frames(result, "x")
    (row,) = tables["runs"]
    assert row["AC"] == row["AC@0.2"]
    assert result.report.recall is None
    assert all(math.isnan(value) for value in (row["service_recall"], *(cell["recall@1"] for cell in tables["matrix"])))
    assert row["BC@0.1"] == result.report.at[0.1].values["BC"]
    assert [cell["metric"] for cell in tables["matrix"]] == ["TAR@0.2"] * 3 + ["TAR@0.1"] * 3
    assert summary(result, "x")["report@0.1"]["metric"] == "TAR@0.1"
