"""Seconds and memory of one cell of IJB-C's size: distances of 15.66 million template pairs, TAR at three FARs.

    python tests/benchmarks/tar_at_far.py [--pairs 15658489] [--templates 23124] [--dim 2048] [--classes 10575]

Templates of a few thousand subjects are made up, as bodies of `dim` dimensions and a projection to classes − 1; every
enrolled template meets many others, 19 557 of the pairs are of one subject. The cell runs in a process of its own and
its peak memory is what that process ever held. Norms are measured apart: a model's are computed once and serve
all its cells. On a sample, distances are compared with float64 features that are expanded, and TARs with a full sort.
"""

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from cl2r.features import Features
from cl2r.pair_distances import pair_distances
from cl2r.verification import tars_at_fars

FARS = (1e-1, 1e-2, 1e-4)
POSITIVES, SUBJECTS, PAIRS = 19_557, 3531, 15_658_489
SAMPLE_PAIRS, SAMPLE_TEMPLATES = 200_000, 2000
MEGABYTE = 2**20

Result = TypeVar("Result")


@dataclass
class Case:
    """Two models' features of the same templates and the pairs to compare."""

    query: Features
    gallery: Features
    query_rows: npt.NDArray[np.int64]
    gallery_rows: npt.NDArray[np.int64]
    same: npt.NDArray[np.bool_]


def made_up(pairs: int, templates: int, dim: int, classes: int, seed: int = 0) -> Case:
    """One enrolled template a subject, the first ones; the others are searched for."""
    rng = np.random.default_rng(seed)
    subjects = max(2, templates * SUBJECTS // 23_124)
    subject = np.concatenate([np.arange(subjects), rng.integers(subjects, size=templates - subjects)])
    centres = rng.standard_normal((subjects, dim), np.float32)
    models, projections = [], []
    for noise in (3.0, 4.0):
        body = rng.standard_normal((templates, dim), np.float32)
        body *= noise
        for start in range(0, templates, 1000):
            body[start : start + 1000] += centres[subject[start : start + 1000]]
        np.maximum(body, 0, out=body)
        projections.append(rng.standard_normal((classes - 1, dim), np.float32))
        models.append(Features(body, projections[-1]))
    # The later model is compatible with the earlier one, so that cross distances tell subjects apart.
    shared = Features(models[1].body, projections[0] + 0.3 * projections[1])
    query_rows = rng.integers(subjects, templates, size=pairs)
    gallery_rows = rng.integers(subjects, size=pairs)
    positives = rng.choice(pairs, max(1, pairs * POSITIVES // PAIRS), replace=False)
    same = np.zeros(pairs, np.bool_)
    same[positives] = True
    gallery_rows[same] = subject[query_rows[same]]
    chance = ~same & (gallery_rows == subject[query_rows])
    gallery_rows[chance] = (gallery_rows[chance] + 1) % subjects
    return Case(shared, models[0], query_rows, gallery_rows, same)


def measure(pairs: int, templates: int, dim: int, classes: int) -> list[tuple[str, str]]:
    """The rows of the table for one cell."""
    case = made_up(pairs, templates, dim, classes)
    before = _peak()
    norms, _ = _timed(
        lambda: [features.squared_norms(np.arange(len(features))) for features in (case.query, case.gallery)]
    )
    cell, distances = _timed(lambda: pair_distances(case.query, case.gallery, case.query_rows, case.gallery_rows))
    rates, tars = _timed(lambda: tars_at_fars(distances, case.same, FARS))
    return [
        ("pairs, of one subject", f"{pairs}, {int(case.same.sum())}"),
        ("norms of two models, once each", norms),
        ("distances of the cell", cell),
        ("TAR at three FARs", rates),
        ("peak memory before, after", f"{before} MB, {_peak()} MB"),
        *((f"TAR at {far:g}", f"{tar:.4f}") for far, tar in zip(FARS, tars, strict=True)),
    ]


def check(dim: int, classes: int) -> list[tuple[str, str]]:
    """Distances against expanded features and TARs against a full sort, on a sample."""
    case = made_up(SAMPLE_PAIRS, SAMPLE_TEMPLATES, dim, classes, seed=1)
    distances = pair_distances(case.query, case.gallery, case.query_rows, case.gallery_rows)
    expected = _expanded_distances(case)
    error = float(np.abs(distances - expected).max())
    tars = tars_at_fars(distances, case.same, FARS)
    assert error <= 1e-6, error
    assert tars == _sorted_tars(distances, case.same)
    assert tars == _sorted_tars(expected, case.same)
    return [
        (f"largest error of {SAMPLE_PAIRS} distances", f"{error:.1e}"),
        ("TARs as those of a full sort", "equal"),
    ]


def _expanded_distances(case: Case) -> npt.NDArray[np.float64]:
    sides = []
    for features in (case.query, case.gallery):
        assert features.projection is not None
        rows = features.body.astype(np.float64) @ features.projection.astype(np.float64).T
        sides.append(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    cosines = sides[0] @ sides[1].T
    expected: npt.NDArray[np.float64] = 2 - 2 * cosines[case.query_rows, case.gallery_rows]
    return expected


def _sorted_tars(distances: npt.NDArray[np.float64], same: npt.NDArray[np.bool_]) -> list[float]:
    negatives = np.sort(distances[~same])
    shares = np.arange(1, len(negatives) + 1) / len(negatives)
    thresholds = [negatives[np.count_nonzero(shares <= far)] for far in FARS]
    return [float(np.mean(distances[same] < threshold)) for threshold in thresholds]


def _timed(work: Callable[[], Result]) -> tuple[str, Result]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return f"{time.perf_counter() - wall:.1f} s ({time.process_time() - cpu:.1f} s of all cores)", result


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // MEGABYTE


def main() -> None:
    """Measure, check and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--templates", type=int, default=23_124)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=10_575)
    args = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as process:
        rows = process.apply(measure, (args.pairs, args.templates, args.dim, args.classes))
    print("| one cell | |\n|---|---|")
    for name, value in rows + check(args.dim, args.classes):
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
