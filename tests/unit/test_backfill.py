"""Search while a gallery is embedded anew: its ends are C[t,k] and C[t,t], the rest is as a slow loop says."""

import numpy as np
import pytest

from cl2r.engine.evaluation import ChainFeatures
from cl2r.search import retrieval
from cl2r.search.backfill import FRACTIONS, ORDERS, Order, Upgrade, backfill, neighbourhood, order_rows
from cl2r.search.retrieval import METRICS, Integers, Truth, evaluate, retrieved, unit

ROWS = 48


def drifting(dims: tuple[int, ...] = (5, 5, 5)) -> tuple[ChainFeatures, Integers]:
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(8), ROWS // 8)
    models = []
    for t, dim in enumerate(dims):
        centres = np.random.default_rng(1).normal(size=(8, dim)) + 0.4 * t * rng.normal(size=(8, dim))
        models.append((centres[labels] + 0.8 * rng.normal(size=(ROWS, dim))).astype(np.float32))
    return ChainFeatures(models), labels


def mixed_by_hand(upgrade: Upgrade, order: Integers, fraction: float) -> list[float]:
    """A gallery row by row, a query after the other; metrics by their definitions."""
    new = set(order[: round(fraction * ROWS)].tolist())
    labels, rows = upgrade.truth.gallery, []
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


def test_the_ends_are_those_of_the_matrix() -> None:
    features, labels = drifting()
    matrices = evaluate(features, labels, samples=5)
    upgrade = Upgrade.of(features, 2, 0, labels)
    curves = backfill(upgrade, [order_rows(upgrade, order) for order in ORDERS])
    assert curves.shape == (len(ORDERS), len(FRACTIONS), len(METRICS))
    for place, metric in enumerate(METRICS):
        assert np.allclose(curves[:, 0, place], matrices[metric].matrix[2, 0], atol=1e-12)
        assert np.allclose(curves[:, -1, place], matrices[metric].matrix[2, 2], atol=1e-12)
    assert (curves[:, 0] != curves[:, -1]).any()


@pytest.mark.parametrize("order", ORDERS)
def test_mixed_galleries_as_by_hand(order: Order) -> None:
    features, labels = drifting()
    upgrade = Upgrade.of(features, 1, 0, labels)
    rows = order_rows(upgrade, order)
    found = backfill(upgrade, [rows], (0.25, 0.5))
    for step, fraction in enumerate((0.25, 0.5)):
        assert found[0, step].tolist() == pytest.approx(mixed_by_hand(upgrade, rows, fraction))


def test_rows_meet_each_query_in_their_own_space() -> None:
    """A growing model: old rows have fewer dimensions than new ones."""
    features, labels = drifting((4, 9))
    grown = ChainFeatures(features.models, grows=True)
    upgrade = Upgrade.of(grown, 1, 0, labels)
    assert (upgrade.to_old.shape[1], upgrade.old.shape[1], upgrade.new.shape[1]) == (4, 4, 9)
    rows = order_rows(upgrade, "random", 3)
    assert backfill(upgrade, [rows], (0.5,))[0, 0].tolist() == pytest.approx(mixed_by_hand(upgrade, rows, 0.5))


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = drifting()
    upgrade = Upgrade.of(features, 2, 1, labels)
    orders = [order_rows(upgrade, "random", draw) for draw in (0, 1)]
    whole = backfill(upgrade, orders)
    monkeypatch.setattr(retrieval, "BLOCK_NUMBERS", 5 * ROWS)
    assert np.array_equal(backfill(upgrade, orders), whole)


def test_images_without_another_of_their_class_count_for_nothing() -> None:
    features, labels = drifting()
    labels = labels.copy()
    labels[0] = 99
    upgrade = Upgrade.of(features, 1, 0, labels)
    found = backfill(upgrade, [order_rows(upgrade, "random")], (0.0,))[0, 0]
    judged = retrieved(upgrade.to_old, upgrade.old, Truth.of_same_images(labels))
    assert found.tolist() == pytest.approx(judged[1:].mean(axis=0).tolist())


def test_random_orders_are_permutations_that_a_draw_repeats() -> None:
    features, labels = drifting()
    upgrade = Upgrade.of(features, 1, 0, labels)
    first, second = (order_rows(upgrade, "random", draw) for draw in (0, 1))
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, order_rows(upgrade, "random", 0))


def test_the_worst_are_those_apart_from_their_old_neighbours() -> None:
    """By the old vectors alone: new ones, and labels, change nothing."""
    features, labels = drifting()
    upgrade = Upgrade.of(features, 1, 0, labels)
    cosine = unit(features.models[0]).astype(float) @ unit(features.models[0]).astype(float).T
    means = [np.mean(sorted(np.delete(cosine[row], row))[-10:]) for row in range(ROWS)]
    assert neighbourhood(upgrade.old).tolist() == pytest.approx(means, abs=1e-6)
    order = order_rows(upgrade, "worst_first")
    assert np.array_equal(order, np.argsort(means))
    other = Upgrade(upgrade.new, upgrade.old, upgrade.to_old[::-1], Truth.of_same_images(labels[::-1]))
    assert np.array_equal(order_rows(other, "worst_first"), order)


def test_copies_of_a_row_are_its_neighbours_but_it_is_not_its_own() -> None:
    copies = unit(np.ones((30, 4), np.float32))
    assert neighbourhood(copies).tolist() == pytest.approx([1.0] * 30)
    apart = np.concatenate([copies[:3], -copies[:1]])
    assert neighbourhood(apart).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, -1.0], abs=1e-6), "fewer than ten"


def test_the_oracle_looks_at_what_the_upgrade_moved() -> None:
    features, labels = drifting()
    upgrade = Upgrade.of(features, 2, 0, labels)
    new, old = (unit(features.models[t]).astype(float) for t in (2, 0))
    assert np.array_equal(order_rows(upgrade, "oracle"), np.argsort((new * old).sum(1)))
