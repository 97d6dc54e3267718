"""Preset `official_code`: the matrix is that of the released evaluation, written here once more, slowly and plainly."""

from pathlib import Path

import numpy as np
import pytest

from cl2r.config.layers import override, read_layer, resolve
from cl2r.config.methods import method_info
from cl2r.config.schema import Config
from cl2r.engine.chain import Chain
from cl2r.engine.evaluation import ChainFeatures, Evaluator
from cl2r.engine.extraction import LinkFeatures
from cl2r.engine.plan import plan_run
from cl2r.engine.workers import ALONE
from cl2r.features import Features
from cl2r.official_code import draw_official_pairs
from tests.support.quick import Recorder, quick_config

FOLDS, TASKS = 10, 3


def official() -> Config:
    return resolve([read_layer("official_code")])


def plain_matrix(features: list[np.ndarray], query: list[int], gallery: list[int], same: list[bool]) -> np.ndarray:
    """Cell by cell, fold by fold, threshold by threshold, pair by pair."""
    matrix = np.full((len(features), len(features)), np.nan)
    size = len(same) // FOLDS
    for t in range(len(features)):
        for k in range(t + 1):
            distances = []
            for q, g in zip(query, gallery, strict=True):
                new, old = features[t][q].astype(np.float64), features[k][g].astype(np.float64)
                difference = new / np.sqrt(np.sum(new * new)) - old / np.sqrt(np.sum(old * old))
                distances.append(float(np.sum(difference * difference)))
            accuracies = [_fold(distances, same, range(fold * size, (fold + 1) * size)) for fold in range(FOLDS)]
            matrix[t, k] = sum(accuracies) / FOLDS
    return matrix


def _fold(distances: list[float], same: list[bool], held_out: range) -> float:
    others = [pair for pair in range(len(same)) if pair not in held_out]
    best, best_share = 0.0, -1.0
    for threshold in np.arange(0, 4, 0.001).tolist():
        share = sum((distances[pair] < threshold) == same[pair] for pair in others) / len(others)
        if share > best_share:
            best, best_share = threshold, share
    return sum((distances[pair] < best) == same[pair] for pair in held_out) / len(held_out)


@pytest.fixture(scope="module")
def clusters() -> tuple[list[np.ndarray], np.ndarray]:
    """Features of three models that drift, and the classes of the images."""
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(10), 12)
    centres = rng.normal(size=(10, 6))
    models = [centres[labels] + drift * rng.normal(size=6) + 0.9 * rng.normal(size=(120, 6)) for drift in (0, 0.3, 0.6)]
    return [model.astype(np.float32) for model in models], labels


def test_the_matrix_is_that_of_the_released_evaluation(clusters: tuple[list[np.ndarray], np.ndarray]) -> None:
    features, labels = clusters
    pairs = draw_official_pairs(labels, 20, 20, FOLDS, np.random.default_rng(0))
    spec = official().eval.model_copy(update={"bootstrap": 0})
    expected = plain_matrix(features, pairs.query.tolist(), pairs.gallery.tolist(), pairs.same.tolist())
    chain = ChainFeatures([Features(model) for model in features])
    found = Evaluator(pairs, spec)(chain).matrix
    np.testing.assert_allclose(found, expected, atol=1e-12, rtol=0)
    stratified = Evaluator(pairs, spec.model_copy(update={"thresholds": "exact"}))(chain).matrix
    assert not np.allclose(stratified[np.tril_indices(TASKS)], expected[np.tril_indices(TASKS)], atol=1e-12)


def test_the_preset_has_every_row_of_the_deviations() -> None:
    config = official()
    assert config.optim.weight_decay == 5e-4
    assert config.optim.milestones == (49, 64)
    assert (config.scenario.initial, config.scenario.increment, config.scenario.n_tasks) == (50, 10, None)
    assert config.scenario.class_order == "identity"
    assert (config.batches.batching, config.memory.selection, config.memory.per_class) == ("balanced", "random", 20)
    assert (config.simplex.scale, config.head.projection, config.head.mask_unseen) == (1.0, "linear", False)
    assert (config.method.name, config.method.lambda_base, config.method.lambda_rule) == ("cl2r", 5, "new_over_old")
    spec = config.eval
    assert (spec.order, spec.thresholds, spec.normalise, spec.ties) == ("official_order", "grid", "own", True)


def test_a_run_in_the_official_order_warns(tiny: Path, tmp_path: Path) -> None:
    plan = plan_run(quick_config(tiny, *map(override, ("eval.order=official_order", "eval.tuning_share=0"))))
    assert plan.tuning_pairs is None
    assert plan.report_pairs.same[-10:].all()  # the negatives' quota fills first
    listener = Recorder()
    Chain(plan, tmp_path, listener, "test")
    assert any("official_order" in line for line in listener.lines)


def test_open_images_have_their_own_moments(tiny: Path) -> None:
    plans = [plan_run(quick_config(tiny, override(f"eval.normalise={value}"))) for value in ("training", "own")]
    ours, own = (LinkFeatures(plan, method_info("cl2r"), ALONE.device).normalise for plan in plans)
    data = plans[0].dataset
    pixels = data.x_open.all() / 255
    assert own.shift.item() == pytest.approx(-pixels.mean() / pixels.std(), rel=1e-5)
    assert ours.shift.item() == pytest.approx(-data.moments[0][0] / data.moments[1][0], rel=1e-5)
    assert plans[0].keys != plans[1].keys
