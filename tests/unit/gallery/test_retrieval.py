"""The search matrices of a chain, against a slow version that ranks one query at a time."""

from pathlib import Path

import numpy as np
import pytest

from cl2r.adapters import QueryAdapter, Support
from cl2r.compatibility import average_compatibility, backward_compatibility, forward_compatibility
from cl2r.config.schema import AdapterConfig
from cl2r.engine.evaluation import ChainFeatures
from cl2r.errors import InputError
from cl2r.features import Features
from cl2r.gallery.retrieval import evaluate
from cl2r.retrieval import SEARCH_METRICS, SearchImages, retrieved
from tests.support.galleries import trained
from tests.support.searches import all_images, search_by_hand


def chain(tasks: int = 3, rows: int = 40) -> tuple[ChainFeatures, SearchImages]:
    """Return models that drift: noise around class centres, more of it in every model."""
    rng = np.random.default_rng(8)
    labels = np.repeat(np.arange(8), rows // 8)
    centres = rng.normal(size=(8, 5))
    noise = [rng.normal(size=(rows, 5)) for _ in range(tasks)]
    models = [Features((centres[labels] + sum(noise[: t + 1])).astype(np.float32)) for t in range(tasks)]
    return ChainFeatures(models), all_images(labels)


def test_the_matrix_and_its_summaries() -> None:
    features, images = chain()
    found = evaluate(features, images, samples=50)
    assert tuple(found) == SEARCH_METRICS == ("recall@1", "recall@5", "recall@10", "mAP")
    for place, metric in enumerate(SEARCH_METRICS):
        evaluation, slow = found[metric], np.full((3, 3), np.nan)
        for t in range(3):
            for k in range(t + 1):
                judged = search_by_hand(features.models[t].unit(), features.models[k].unit(), images)
                slow[t, k] = np.mean([row[place] for row in judged])
        assert np.allclose(evaluation.matrix, slow, equal_nan=True)
        assert evaluation.metric == metric
        assert (evaluation.values["AC"], evaluation.values["BC"], evaluation.values["FC"]) == (
            average_compatibility(slow),
            pytest.approx(backward_compatibility(slow)),
            pytest.approx(forward_compatibility(slow)),
        )


def test_intervals_are_as_wide_as_theory_says() -> None:
    features, images = chain(tasks=2, rows=400)
    found = evaluate(features, images, samples=2000)["recall@1"]
    low, high = found.intervals["BC"]
    assert low < found.values["BC"] < high
    units = [model.unit() for model in features.models]
    first, second = (retrieved(units[t], units[0], images)[:, 0] for t in (1, 0))
    error = (first - second).std(ddof=1) / np.sqrt(400)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1), "the interval of a paired difference"
    again = evaluate(features, images, samples=2000)["recall@1"]
    assert again.intervals["BC"] == (low, high), "the same seed gives the same draws"


def test_a_model_that_does_not_change_is_never_compatible_by_rounding() -> None:
    features, images = chain(tasks=1)
    still = evaluate(ChainFeatures([features.models[0]] * 3), images, samples=200)
    for evaluation in still.values():
        assert (evaluation.values["AC"], evaluation.values["BC"]) == (0, 0)
        assert evaluation.intervals["AC"] == (0, 0), "not in any draw"
    assert evaluate(ChainFeatures([features.models[0]] * 3), images, ties=True)["mAP"].values["AC"] == 1


def test_features_that_are_not_finite_are_refused() -> None:
    features, images = chain(tasks=1)
    body = features.models[0].body.copy()
    body[7, 0] = np.nan
    with pytest.raises(InputError, match="open image 7"):
        evaluate(ChainFeatures([Features(body)]), images)


def test_adapters_growth_and_mapped_galleries_are_applied() -> None:
    """If they undo what the second model does, it is as good as the first model on its gallery."""
    features, images = chain(tasks=1)
    old = features.models[0].body
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0].astype(np.float32)
    own = evaluate(features, images)["mAP"].matrix[0, 0]
    adapter = QueryAdapter(AdapterConfig(name="procrustes"), [Support(old @ turn, old)])
    turned = [Features(old), Features(old @ turn)]
    assert evaluate(ChainFeatures(turned), images)["mAP"].matrix[1, 0] < own - 0.1
    assert evaluate(ChainFeatures(turned, adapter=adapter), images)["mAP"].matrix[1, 0] == pytest.approx(own)
    carried = ChainFeatures(turned, galleries={(1, 0): Features(old @ turn)})
    assert evaluate(carried, images)["mAP"].matrix[1, 0] == pytest.approx(own)
    wide = np.concatenate([old, 9 * np.random.default_rng(0).normal(size=old.shape).astype(np.float32)], axis=1)
    grown = ChainFeatures([Features(old), Features(wide)], grows=True)
    assert evaluate(grown, images)["mAP"].matrix[1, 0] == pytest.approx(own)


@pytest.mark.parametrize("name", ["cl2r", "fan", "der_trunc"])
def test_the_matrix_of_a_finished_run(tiny: Path, name: str) -> None:
    run = trained(tiny, name)
    features, images = run.evaluated(), run.plan.report_images
    assert images is not None
    matrix = evaluate(features, images, samples=20)["mAP"].matrix
    judged = search_by_hand(*features.searched(2, 0, images), images)
    assert matrix[2, 0] == pytest.approx(np.mean([row[3] for row in judged]))
    assert ((matrix[np.tril_indices(3)] > 1 / 6) & (matrix[np.tril_indices(3)] <= 1)).all()
