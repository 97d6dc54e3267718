"""Search while a gallery is re-embedded: it begins with C[t,k], ends with C[t,t], and agrees with a slow loop."""

import numpy as np
import pytest

from cl2r import retrieval
from cl2r.engine.evaluation import ChainFeatures
from cl2r.features import Features
from cl2r.gallery.backfill import FRACTIONS, ORDERS, Order, Upgrade, backfill, neighbourhood, order_rows
from cl2r.gallery.retrieval import evaluate
from cl2r.retrieval import SEARCH_METRICS, Integers, SearchImages, retrieved
from tests.support.searches import all_images

ROWS = 48


def drifting(dims: tuple[int, ...] = (5, 5, 5)) -> tuple[ChainFeatures, SearchImages]:
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(8), ROWS // 8)
    models = []
    for t, dim in enumerate(dims):
        centres = np.random.default_rng(1).normal(size=(8, dim)) + 0.4 * t * rng.normal(size=(8, dim))
        models.append(Features((centres[labels] + 0.8 * rng.normal(size=(ROWS, dim))).astype(np.float32)))
    return ChainFeatures(models), all_images(labels)


def mixed_by_hand(upgrade: Upgrade, order: Integers, fraction: float) -> list[float]:
    """Compute the metrics by their definitions, one query and one row at a time."""
    new = set(order[: round(fraction * ROWS)].tolist())
    labels, rows = upgrade.images.labels, []
    for query in range(ROWS):
        scores = {}
        for row in set(range(ROWS)) - {query}:
            one, other = (
                (upgrade.new[query], upgrade.new[row]) if row in new else (upgrade.to_old[query], upgrade.old[row])
            )
            scores[row] = np.float32(one.astype(float) @ other.astype(float))
        ranked = sorted(scores, key=lambda row: (-scores[row], row))
        right = [labels[row] == labels[query] for row in ranked]
        precisions = [np.mean(right[: place + 1]) for place in range(len(right)) if right[place]]
        rows.append([*(any(right[:top]) for top in (1, 5, 10)), np.mean(precisions)])
    return [float(value) for value in np.mean(rows, axis=0)]


def test_the_ends_are_cells_of_the_matrix() -> None:
    features, images = drifting()
    matrices = evaluate(features, images, samples=5)
    upgrade = Upgrade.of(features, 2, 0, images)
    curves = backfill(upgrade, [order_rows(upgrade, order) for order in ORDERS])
    assert curves.shape == (len(ORDERS), len(FRACTIONS), len(SEARCH_METRICS))
    for place, metric in enumerate(SEARCH_METRICS):
        assert np.allclose(curves[:, 0, place], matrices[metric].matrix[2, 0], atol=1e-12)
        assert np.allclose(curves[:, -1, place], matrices[metric].matrix[2, 2], atol=1e-12)
    assert (curves[:, 0] != curves[:, -1]).any()


@pytest.mark.parametrize("order", ORDERS)
def test_mixed_galleries_agree_with_a_slow_loop(order: Order) -> None:
    features, images = drifting()
    upgrade = Upgrade.of(features, 1, 0, images)
    rows = order_rows(upgrade, order)
    found = backfill(upgrade, [rows], (0.25, 0.5))
    for step, fraction in enumerate((0.25, 0.5)):
        assert found[0, step].tolist() == pytest.approx(mixed_by_hand(upgrade, rows, fraction))


def test_rows_are_compared_in_their_own_space() -> None:
    """A growing model: old rows have fewer dimensions than new ones."""
    features, images = drifting((4, 9))
    grown = ChainFeatures(features.models, grows=True)
    upgrade = Upgrade.of(grown, 1, 0, images)
    assert (upgrade.to_old.shape[1], upgrade.old.shape[1], upgrade.new.shape[1]) == (4, 4, 9)
    rows = order_rows(upgrade, "random", 3)
    assert backfill(upgrade, [rows], (0.5,))[0, 0].tolist() == pytest.approx(mixed_by_hand(upgrade, rows, 0.5))


def test_the_block_size_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    features, images = drifting()
    upgrade = Upgrade.of(features, 2, 1, images)
    orders = [order_rows(upgrade, "random", draw) for draw in (0, 1)]
    whole = backfill(upgrade, orders)
    monkeypatch.setattr(retrieval, "BLOCK_NUMBERS", 5 * ROWS)
    assert np.array_equal(backfill(upgrade, orders), whole)


def test_images_alone_in_their_class_are_left_out() -> None:
    features, images = drifting()
    labels = images.labels.copy()
    labels[0] = 99
    images = all_images(labels)
    upgrade = Upgrade.of(features, 1, 0, images)
    found = backfill(upgrade, [order_rows(upgrade, "random")], (0.0,))[0, 0]
    judged = retrieved(upgrade.to_old[1:], upgrade.old, images)
    assert found.tolist() == pytest.approx(judged.mean(axis=0).tolist())


def test_random_orders_are_reproducible_permutations() -> None:
    features, images = drifting()
    upgrade = Upgrade.of(features, 1, 0, images)
    first, second = (order_rows(upgrade, "random", draw) for draw in (0, 1))
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, order_rows(upgrade, "random", 0))


def test_the_worst_rows_are_far_from_their_old_neighbours() -> None:
    """Only old vectors count: new vectors and labels change nothing."""
    features, images = drifting()
    upgrade = Upgrade.of(features, 1, 0, images)
    cosine = features.models[0].unit().astype(float) @ features.models[0].unit().astype(float).T
    means = [np.mean(sorted(np.delete(cosine[row], row))[-10:]) for row in range(ROWS)]
    assert neighbourhood(upgrade.old).tolist() == pytest.approx(means, abs=1e-6)
    order = order_rows(upgrade, "worst_first")
    assert np.array_equal(order, np.argsort(means))
    other = Upgrade(upgrade.new, upgrade.old, upgrade.to_old[::-1], all_images(images.labels[::-1]))
    assert np.array_equal(order_rows(other, "worst_first"), order)


def test_copies_of_a_row_are_neighbours_but_the_row_itself_is_not() -> None:
    copies = Features(np.ones((30, 4), np.float32)).unit()
    assert neighbourhood(copies).tolist() == pytest.approx([1.0] * 30)
    apart = np.concatenate([copies[:3], -copies[:1]])
    assert neighbourhood(apart).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, -1.0], abs=1e-6), "fewer than ten"


def test_the_oracle_orders_rows_by_how_far_the_upgrade_moves_them() -> None:
    features, images = drifting()
    upgrade = Upgrade.of(features, 2, 0, images)
    new, old = (features.models[t].unit().astype(float) for t in (2, 0))
    assert np.array_equal(order_rows(upgrade, "oracle"), np.argsort((new * old).sum(1)))
