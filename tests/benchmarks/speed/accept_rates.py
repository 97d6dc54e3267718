"""TAR at given FARs for as many pairs as IJB-C has: counting at every threshold of a grid, and one partition."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cl2r.verification import tars_at_fars
from tests.benchmarks.speed.harness import (
    DisagreementError,
    Measured,
    Sizes,
    compared,
    interleaved,
    peak_alone,
    seconds,
)
from tests.benchmarks.speed.plain import THRESHOLDS, Bools, Floats

PART, FARS = "TAR@FAR", (1e-1, 1e-2, 1e-4)
CHUNK = 2**18


def made_up(pairs: int, positives: int) -> tuple[Floats, Bools]:
    """Return float64 distances, drawn chunk by chunk, and labels; positives are nearer and spread over the list."""
    rng = np.random.default_rng(3)
    same = np.zeros(pairs, np.bool_)
    same[np.linspace(0, pairs - 1, positives).astype(np.int64)] = True
    distances = np.empty(pairs)
    for start in range(0, pairs, CHUNK):
        labels = same[start : start + CHUNK]
        drawn = np.where(labels, 1.2, 2.0) + np.where(labels, 0.4, 0.2) * rng.standard_normal(len(labels))
        distances[start : start + CHUNK] = np.clip(drawn, 0, 4)
    return distances, same


def measure(sizes: Sizes, folder: Path) -> Iterator[Measured]:
    """Measure seconds in turns, then memory, each in a process of its own."""
    shape = sizes.compared_pairs, sizes.positive_pairs
    distances, same = made_up(*shape)
    sampled = THRESHOLDS[np.linspace(0, len(THRESHOLDS) - 1, sizes.timed_thresholds).astype(np.int64)]
    share = len(THRESHOLDS) / len(sampled)
    ours, right = tars_at_fars(distances, same, FARS), sorted_tars(distances, same, FARS)
    if ours != right:
        raise DisagreementError(f"TAR at {FARS}: {ours}, by a full sort {right}")
    variants = {
        "plain": lambda: share * seconds(lambda: plain_rates(distances, same, sampled)),
        "engine": lambda: seconds(lambda: tars_at_fars(distances, same, FARS)),
    }
    samples = interleaved(variants, sizes.rounds)
    what = f"{shape[0]:,} pairs, {len(FARS)} rates"
    note = (
        f"reference: {len(sampled)} of its {len(THRESHOLDS):,} thresholds timed, times {share:g}; "
        "cl2r is exact, as a full sort confirms"
    )
    yield compared(PART, what, "s", samples["plain"], samples["engine"], note)
    peaks = [peak_alone(work, *shape) for work in (plain_alone, engine_alone)]
    note = f"{(distances.nbytes + same.nbytes) / 1e6:,.0f} MB of it are distances and labels"
    yield compared(PART, f"{what}, peak memory", "MB", peaks[:1], peaks[1:], note)


def plain_rates(distances: Floats, same: Bools, thresholds: Floats) -> list[tuple[float, float]]:
    """Return FAR and TAR at each threshold, counted over all pairs."""
    positives, rates = int(np.sum(same)), []
    for threshold in thresholds:
        accepted = np.less(distances, threshold)
        true = np.sum(np.logical_and(accepted, same))
        false = np.sum(np.logical_and(accepted, np.logical_not(same)))
        rates.append((float(false) / (len(same) - positives), float(true) / positives))
    return rates


def sorted_tars(distances: Floats, same: Bools, fars: Sequence[float]) -> list[float]:
    """Return the TARs by a full sort: θ is the first negative that would be one too many."""
    negatives, positives = np.sort(distances[~same]), distances[same]
    shares: npt.NDArray[np.float64] = np.arange(1, len(negatives) + 1) / len(negatives)
    return [float(np.mean(positives < negatives[np.searchsorted(shares, far, side="right")])) for far in fars]


def plain_alone(pairs: int, positives: int) -> None:
    """Run the reference in a process of its own; a few thresholds take as much memory as all."""
    plain_rates(*made_up(pairs, positives), THRESHOLDS[1000:1003])


def engine_alone(pairs: int, positives: int) -> None:
    """Run the engine in a process of its own."""
    tars_at_fars(*made_up(pairs, positives), FARS)
