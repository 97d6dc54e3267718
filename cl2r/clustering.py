"""k-means with k-means++ seeds: PODNet's proxies of a new class start as its centres. NumPy."""

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]
ROUNDS = 100
"""Of k-means at most; it has ended long before."""
JITTER = 0.01
"""Standard deviation of an entry of what is added to a repeated centre, so that equal proxies can part."""


def cluster_centres(points: Points, count: int, rng: np.random.Generator) -> Points:
    """`count` centres by Lloyd's rounds from k-means++ seeds.

    Where there are fewer distinct points than that each is a centre, and centres are repeated in turn with a little
    noise.
    """
    centres = _lloyd(points, _seeds(points, count, rng))
    repeated = centres[np.arange(count) % len(centres)]
    repeated[len(centres) :] += rng.normal(0, JITTER, repeated[len(centres) :].shape)
    return repeated


def _seeds(points: Points, count: int, rng: np.random.Generator) -> Points:
    """At most `count` distinct points, each next one with a chance that grows with its squared distance to the rest."""
    chosen = [int(rng.integers(len(points)))]
    gaps = _squared_distances(points, points[chosen])[:, 0]
    while len(chosen) < count and gaps.any():
        chosen.append(int(rng.choice(len(points), p=gaps / gaps.sum())))
        gaps = np.minimum(gaps, _squared_distances(points, points[chosen[-1:]])[:, 0])
    return points[chosen]


def _lloyd(points: Points, centres: Points) -> Points:
    """Until no point changes its centre; a centre that loses all its points stays."""
    nearest = _squared_distances(points, centres).argmin(1)
    for _ in range(ROUNDS):
        groups = [points[nearest == number] for number in range(len(centres))]
        centres = np.stack([group.mean(0) if len(group) else c for group, c in zip(groups, centres, strict=True)])
        before, nearest = nearest, _squared_distances(points, centres).argmin(1)
        if np.array_equal(before, nearest):
            break
    return centres


def _squared_distances(points: Points, centres: Points) -> Points:
    """Differences are squared as they are: a point is at 0 from itself exactly."""
    distances: Points = np.square(points[:, None] - centres).sum(-1)
    return distances
