"""1:N search judged by classes, against a slow version that ranks one query at a time."""

import numpy as np
import pytest

from cl2r import retrieval
from cl2r.features import Features
from cl2r.retrieval import (
    QUERIES,
    SearchImages,
    Vectors,
    answerable,
    cosines,
    query_rows,
    recall_at_1,
    resampled_matrices,
    retrieved,
)
from tests.support.searches import all_images, search_by_hand


def vectors(rows: int, dim: int = 6, seed: int = 0) -> Vectors:
    return Features(np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)).unit()


@pytest.mark.parametrize("seed", range(5))
def test_every_query_agrees_with_the_definitions(seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 9, 60)
    labels[:1] = 99  # alone in its class
    images = all_images(labels)
    given = vectors(60, seed=seed + 100)[images.queries], vectors(60, seed=seed), images
    found, expected = retrieved(*given), np.array(search_by_hand(*given))
    assert np.array_equal(found[:, :3], expected[:, :3])
    assert np.array_equal(recall_at_1(*given), expected[:, 0])
    assert np.allclose(found, expected, atol=1e-12)
    assert 0 not in images.queries
    assert 0 < found[:, 0].mean() < found[:, 1].mean() < 1, "the metrics are neither 0 nor 1"


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
        images = all_images(labels)
        judged = retrieved(queries, gallery, images)[0]
        assert judged.tolist() == pytest.approx([float(place < top) for top in (1, 5, 10)] + [1 / (place + 1)])
        assert recall_at_1(queries, gallery, images)[0] == (place == 0)


def test_an_image_is_never_its_own_hit() -> None:
    """Every image is nearest to itself, and next to an image of the other class."""
    angles = np.array([0.0, 0.1, 2.0, 2.1])
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    images = all_images(np.array([0, 1, 0, 1]))
    assert not recall_at_1(points, points, images).any()
    assert not retrieved(points, points, images)[:, 0].any()
    pairs = all_images(np.array([0, 0, 1, 1]))
    assert recall_at_1(points, points, pairs).all()


def test_the_block_size_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    images = all_images(np.random.default_rng(0).integers(0, 5, 53))
    given = vectors(53), vectors(53, seed=1), images
    whole, hits = retrieved(*given), recall_at_1(*given)
    drawn = resampled_matrices(whole[:, -1:].T, 1, 20, seed=0)
    for numbers in (7 * 53, 1):
        monkeypatch.setattr(retrieval, "BLOCK_NUMBERS", numbers)
        assert np.array_equal(retrieved(*given), whole)
        assert np.array_equal(recall_at_1(*given), hits)
        assert np.array_equal(resampled_matrices(whole[:, -1:].T, 1, 20, seed=0), drawn)


def test_queries_are_a_fixed_sample_of_answerable_images() -> None:
    labels = np.random.default_rng(0).integers(0, 3000, 9000)
    rows = np.arange(0, 9000, 2)
    asked = query_rows(labels, rows, seed=5)
    assert len(asked) == QUERIES == 2000
    assert (np.diff(asked) > 0).all()
    assert set(asked) <= set(rows)
    counts = np.bincount(labels[rows])
    assert (counts[labels[asked]] > 1).all()
    assert np.array_equal(query_rows(labels, rows, seed=5), asked)
    assert not np.array_equal(query_rows(labels, rows, seed=6), asked)


def test_up_to_the_limit_all_answerable_images_are_queries() -> None:
    labels = np.array([4, 4, 5, 6, 6, 6])
    assert answerable(labels).tolist() == [True, True, False, True, True, True]
    assert query_rows(labels, np.array([1, 2, 3, 4, 5]), seed=0, limit=3).tolist() == [3, 4, 5], "row 1 is now alone"
    images = SearchImages.of(labels, np.array([1, 2, 3, 4]), seed=0)
    assert images is not None
    assert (images.queries.tolist(), images.labels.tolist()) == ([2, 3], [4, 5, 6, 6])
    assert SearchImages.of(labels, np.array([0, 2, 3]), seed=0) is None
