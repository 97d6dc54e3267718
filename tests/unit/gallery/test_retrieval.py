"""1:N search judged by classes, against a slow version that ranks one query at a time."""

from pathlib import Path

import numpy as np
import pytest

from cl2r.adapters import QueryAdapter, Support
from cl2r.compatibility import average_compatibility, backward_compatibility, forward_compatibility
from cl2r.config.schema import AdapterConfig
from cl2r.engine.evaluation import ChainFeatures
from cl2r.errors import InputError
from cl2r.features import Features
from cl2r.gallery import retrieval
from cl2r.gallery.retrieval import METRICS, Integers, Vectors, answerable, cosines, evaluate, retrieved
from tests.support.galleries import trained


def vectors(rows: int, dim: int = 6, seed: int = 0) -> Vectors:
    return Features(np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)).unit()


def ranking(query: Vectors, gallery: Vectors, own: int) -> list[int]:
    """Return rows from the nearest to the farthest, by Python's stable sort."""
    scores = [float(np.float32(sum(float(a) * float(b) for a, b in zip(query, row, strict=True)))) for row in gallery]
    return sorted((row for row in range(len(gallery)) if row != own), key=lambda row: -scores[row])


def by_hand(queries: Vectors, gallery: Vectors, labels: Integers) -> list[list[float]]:
    """Compute the metrics by their definitions; no image is its own hit."""
    table = []
    for own, query in enumerate(queries):
        right = [bool(labels[row] == labels[own]) for row in ranking(query, gallery, own)]
        if not any(right):
            table.append([np.nan] * 4)
            continue
        precisions = [sum(right[: place + 1]) / (place + 1) for place in range(len(right)) if right[place]]
        table.append([*(float(any(right[:top])) for top in (1, 5, 10)), sum(precisions) / len(precisions)])
    return table


@pytest.mark.parametrize("seed", range(5))
def test_every_query_agrees_with_the_definitions(seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 9, 60)
    labels[:1] = 99  # alone in its class
    given = vectors(60, seed=seed + 100), vectors(60, seed=seed), labels
    found, expected = retrieved(*given), by_hand(*given)
    assert np.array_equal(found[:, :3], np.array(expected)[:, :3], equal_nan=True)
    assert np.allclose(found, expected, atol=1e-12, equal_nan=True)
    assert list(answerable(labels)) == [not np.isnan(row[0]) for row in expected]
    assert 0 < np.nanmean(found[:, 0]) < np.nanmean(found[:, 1]) < 1, "the metrics are neither 0 nor 1"


def test_equal_rows_are_in_row_order() -> None:
    """Twelve copies of one vector tie wherever they are in a gallery of odd size. The query has a class with one."""
    one, rest = vectors(1, dim=99, seed=3), vectors(121, dim=99, seed=4)
    gallery = np.concatenate([rest[:50], np.repeat(one, 6, 0), rest[50:], np.repeat(one, 6, 0)])
    scores = cosines(vectors(77, dim=99, seed=5), gallery)
    copies = [*range(50, 56), *range(127, 133)]
    assert (scores[:, copies] == scores[:, copies[:1]]).all()
    queries, labels = np.concatenate([one, gallery[1:]]), np.zeros(len(gallery), np.int64)
    for place, row in enumerate(copies):
        labels[:], labels[[0, row]] = 0, 1
        judged = retrieved(queries, gallery, labels)[0]
        assert judged.tolist() == pytest.approx([float(place < top) for top in (1, 5, 10)] + [1 / (place + 1)])


def test_the_block_size_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.random.default_rng(0).integers(0, 5, 53)
    given = vectors(53), vectors(53, seed=1), labels
    whole = retrieved(*given)
    for numbers in (7 * 53, 1):
        monkeypatch.setattr(retrieval, "BLOCK_NUMBERS", numbers)
        assert np.array_equal(retrieved(*given), whole)


def chain(tasks: int = 3, rows: int = 40) -> tuple[ChainFeatures, Integers]:
    """Return models that drift: noise around class centres, more of it in every model."""
    rng = np.random.default_rng(8)
    labels = np.repeat(np.arange(8), rows // 8)
    centres = rng.normal(size=(8, 5))
    noise = [rng.normal(size=(rows, 5)) for _ in range(tasks)]
    models = [Features((centres[labels] + sum(noise[: t + 1])).astype(np.float32)) for t in range(tasks)]
    return ChainFeatures(models), labels


def test_the_matrix_and_its_summaries() -> None:
    features, labels = chain()
    found = evaluate(features, labels, samples=50)
    assert tuple(found) == METRICS == ("recall@1", "recall@5", "recall@10", "mAP")
    for place, metric in enumerate(METRICS):
        evaluation, slow = found[metric], np.full((3, 3), np.nan)
        for t in range(3):
            for k in range(t + 1):
                judged = by_hand(features.models[t].unit(), features.models[k].unit(), labels)
                slow[t, k] = np.mean([row[place] for row in judged])
        assert np.allclose(evaluation.matrix, slow, equal_nan=True)
        assert evaluation.metric == metric
        assert (evaluation.values["AC"], evaluation.values["BC"], evaluation.values["FC"]) == (
            average_compatibility(slow),
            pytest.approx(backward_compatibility(slow)),
            pytest.approx(forward_compatibility(slow)),
        )


def test_intervals_are_as_wide_as_theory_says() -> None:
    features, labels = chain(tasks=2, rows=400)
    found = evaluate(features, labels, samples=2000)["recall@1"]
    low, high = found.intervals["BC"]
    assert low < found.values["BC"] < high
    units = [model.unit() for model in features.models]
    first, second = (retrieved(units[t], units[0], labels)[:, 0] for t in (1, 0))
    error = (first - second).std(ddof=1) / np.sqrt(400)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1), "the interval of a paired difference"
    again = evaluate(features, labels, samples=2000)["recall@1"]
    assert again.intervals["BC"] == (low, high), "the same seed gives the same draws"


def test_a_model_that_does_not_change_is_never_compatible_by_rounding() -> None:
    features, labels = chain(tasks=1)
    still = evaluate(ChainFeatures([features.models[0]] * 3), labels, samples=200)
    for evaluation in still.values():
        assert (evaluation.values["AC"], evaluation.values["BC"]) == (0, 0)
        assert evaluation.intervals["AC"] == (0, 0), "not in any draw"
    assert evaluate(ChainFeatures([features.models[0]] * 3), labels, ties=True)["mAP"].values["AC"] == 1


def test_images_without_a_second_one_of_their_class_are_refused() -> None:
    with pytest.raises(InputError, match="no class"):
        evaluate(ChainFeatures([Features(vectors(5))]), np.arange(5))


def test_adapters_growth_and_mapped_galleries_are_applied() -> None:
    """If they undo what the second model does, it is as good as the first model on its gallery."""
    features, labels = chain(tasks=1)
    old = features.models[0].body
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0].astype(np.float32)
    own = evaluate(features, labels)["mAP"].matrix[0, 0]
    adapter = QueryAdapter(AdapterConfig(name="procrustes"), [Support(old @ turn, old)])
    turned = [Features(old), Features(old @ turn)]
    assert evaluate(ChainFeatures(turned), labels)["mAP"].matrix[1, 0] < own - 0.1
    assert evaluate(ChainFeatures(turned, adapter=adapter), labels)["mAP"].matrix[1, 0] == pytest.approx(own)
    carried = ChainFeatures(turned, galleries={(1, 0): Features(old @ turn)})
    assert evaluate(carried, labels)["mAP"].matrix[1, 0] == pytest.approx(own)
    wide = np.concatenate([old, 9 * vectors(len(old))], axis=1)
    grown = ChainFeatures([Features(old), Features(wide)], grows=True)
    assert evaluate(grown, labels)["mAP"].matrix[1, 0] == pytest.approx(own)


@pytest.mark.parametrize("name", ["cl2r", "fan", "der_trunc"])
def test_the_matrix_of_a_finished_run(tiny: Path, name: str) -> None:
    run = trained(tiny, name)
    features, labels = run.evaluated(), run.plan.dataset.y_open
    matrix = evaluate(features, labels, samples=20)["mAP"].matrix
    judged = by_hand(features.query(2, 0).unit(), features.gallery(2, 0).unit(), labels)
    assert matrix[2, 0] == pytest.approx(np.mean([row[3] for row in judged]))
    assert ((matrix[np.tril_indices(3)] > 1 / 6) & (matrix[np.tril_indices(3)] <= 1)).all()
