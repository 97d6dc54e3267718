"""k-means: centres are means of their nearest points, clouds are found, too few points are repeated."""

import math

import numpy as np
import pytest

from cl2r.methods.podnet import cluster_centres


def clouds(rng: np.random.Generator, count: int, each: int) -> np.ndarray:
    middles = 10 * rng.normal(size=(count, 5))
    return (middles[:, None] + 0.1 * rng.normal(size=(count, each, 5))).reshape(-1, 5)


@pytest.mark.parametrize("seed", range(5))
def test_k_means_ends_in_means_of_nearest_points(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(60, 4))
    centres = cluster_centres(points, 7, np.random.default_rng(seed))
    nearest = [min(range(7), key=lambda c: math.dist(point, centres[c])) for point in points]
    for number in range(7):
        members = [point for point, own in zip(points, nearest, strict=True) if own == number]
        np.testing.assert_allclose(centres[number], np.mean(members, 0), atol=1e-12)
    np.testing.assert_array_equal(centres, cluster_centres(points, 7, np.random.default_rng(seed)))


def test_k_means_finds_clouds_that_lie_apart() -> None:
    points = clouds(np.random.default_rng(0), 4, 20)
    centres = cluster_centres(points, 4, np.random.default_rng(0))
    means = points.reshape(4, 20, 5).mean(1)
    np.testing.assert_allclose(sorted(centres.tolist()), sorted(means.tolist()), atol=1e-9)


@pytest.mark.parametrize("copies", [1, 3])
def test_fewer_points_than_centres_are_repeated_with_noise(copies: int) -> None:
    points = np.eye(3)
    centres = cluster_centres(np.repeat(points, copies, 0), 8, np.random.default_rng(0))
    assert centres.shape == (8, 3)
    assert sorted(centres[:3].tolist()) == sorted(points.tolist())
    assert len({tuple(row) for row in centres.tolist()}) == 8
    for number in range(3, 8):
        assert 0 < np.abs(centres[number] - centres[number % 3]).max() < 0.1
