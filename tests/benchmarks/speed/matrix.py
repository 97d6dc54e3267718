"""The compatibility matrix of T models on verification pairs of open images, from images to accuracies.

The usual way runs φ_t over the queries of every row and φ_k over the gallery of every cell, and tries thresholds in
Python; cl2r runs each model once over each image that the pairs name. Rows of the matrix are taken in turns.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

from cl2r.augment import Normalise
from cl2r.data.dataset import Labels
from cl2r.data.images import Pixels
from cl2r.data.pairs import draw_pairs
from cl2r.engine.extraction import extract
from cl2r.engine.pixels import HeldPixels
from cl2r.features import Features
from cl2r.methods.base import build_method
from cl2r.methods.incremental import Incremental
from cl2r.official_code import grid_accuracy
from cl2r.pair_distances import pair_distances
from cl2r.study.cost import CPU
from cl2r.verification import Pairs, mean_fold_accuracy, pair_correctness
from tests.benchmarks.speed.harness import DisagreementError, Measured, Sizes, compared, say, timed
from tests.benchmarks.speed.images import OPEN_CLASSES, config_of, mosaics
from tests.benchmarks.speed.plain import Floats, Moments, exhaustive_accuracy, plain_accuracy, plain_features

FOLDS, SETTLING = 10, 4
PART = "matrix evaluation"
NEAR = 1e-3
"""Largest difference of a distance between both ways: folded or not, NCHW or channels-last, float32 all the same."""


@dataclass
class Row:
    """Seconds of row t of the matrix, k = 0..t."""

    plain_extraction: float = 0.0
    plain_cells: list[float] = field(default_factory=list)
    engine_extraction: float = 0.0  # images that the pairs name
    engine_rest: float = 0.0  # all other open images, which a run extracts too
    engine_cells: list[float] = field(default_factory=list)
    moved: float = 0.0
    """Largest difference between the accuracies of both ways on the grid."""

    @property
    def plain(self) -> float:
        """Seconds of the whole row."""
        return self.plain_extraction + sum(self.plain_cells)

    @property
    def engine(self) -> float:
        """Seconds of the whole row."""
        return self.engine_extraction + sum(self.engine_cells)


class Case:
    """T untrained models that have seen a few batches, open images, pairs of them."""

    def __init__(self, sizes: Sizes) -> None:
        rng = np.random.default_rng(11)
        self.batch = sizes.batch
        self.images, labels = mosaics(OPEN_CLASSES, sizes.open_images, rng)
        half = sizes.pairs // 2
        self.pairs: Pairs = draw_pairs(labels, np.arange(len(labels)), half, half, FOLDS, rng)
        self.named: Labels = np.unique(np.concatenate([self.pairs.query, self.pairs.gallery]))
        self.rest: Labels = np.setdiff1d(np.arange(len(labels)), self.named)
        self.moments: Moments = moments_of(self.images)
        self.normalise = Normalise(*self.moments, CPU)
        self.pixels = HeldPixels(torch.from_numpy(self.images))
        methods = [self._settled(sizes, seed) for seed in range(sizes.tasks)]
        self.extractors = [method.extractor() for method in methods]
        self.networks = [plain_copy(method.network.phi) for method in methods]
        self.features: list[Floats] = []  # by the engine, one entry per model so far

    def _settled(self, sizes: Sizes, seed: int) -> Incremental:
        """The statistics of batch norms are those of the images; φ_1..φ_T differ in their weights only."""
        config = config_of(Path("generated"), sizes, "cl2r", f"seed={seed}")
        method = build_method(config, 3, sizes.outputs)
        assert isinstance(method, Incremental)
        method.network.train()
        with torch.no_grad():
            for start in range(SETTLING):
                method.network(self.normalise(self.pixels.images[start * self.batch :][: self.batch]))
        return method

    def plain_side(self, model: int, rows: Labels) -> Floats:
        """Return φ of the given rows, extracted again."""
        return plain_features(self.networks[model], self.images, rows, self.moments, self.batch)

    def extract(self, model: int, rows: Labels) -> Floats:
        """Return φ by the engine."""
        found: Floats = extract(self.extractors[model], self.pixels, rows, self.normalise).numpy()
        return found


def moments_of(images: Pixels) -> Moments:
    """Return mean and deviation of every channel, in 0..1."""
    channels = [images[..., channel] for channel in range(images.shape[3])]
    return tuple(float(c.mean()) / 255 for c in channels), tuple(float(c.std()) / 255 for c in channels)


def plain_copy(phi: nn.Module) -> nn.Module:
    """Return a copy in NCHW that keeps its batch norms."""
    copied = copy.deepcopy(phi)
    copied.to(memory_format=torch.contiguous_format)
    return copied


def measure(sizes: Sizes, folder: Path) -> Iterator[Measured]:
    """Measure row by row, both ways."""
    case, rows, checks = Case(sizes), list[Row](), sizes.check_cells
    few = case.named[: case.batch]
    for warm_up in (case.plain_side, case.extract):
        warm_up(0, few)
    for t in range(sizes.tasks):
        rows.append(measured_row(case, t, checks))
        checks = max(0, checks - t - 1)
        say(f"row {t + 1} of {sizes.tasks}: {rows[-1].plain:.1f} s and {rows[-1].engine:.2f} s")
    yield from summary(case, rows, min(sizes.check_cells, sizes.tasks * (sizes.tasks + 1) // 2))


def measured_row(case: Case, t: int, checks: int) -> Row:
    """Measure row t; its first `checks` cells are also checked by exhaustive search."""
    row, pairs = Row(), case.pairs
    engine_model(case, t, row)
    query, spent = timed(lambda: case.plain_side(t, pairs.query))
    row.plain_extraction += spent
    for k in range(t + 1):
        gallery, spent = timed(lambda k=k: case.plain_side(k, pairs.gallery))  # type: ignore[misc]
        row.plain_extraction += spent
        cell(case, t, k, query, gallery, row, exhaustive=k < checks)
    return row


def engine_model(case: Case, t: int, row: Row) -> None:
    """φ_t once over each image: those that the pairs name, then the others."""
    named, row.engine_extraction = timed(lambda: case.extract(t, case.named))
    features = np.empty((len(case.images), named.shape[1]), np.float32)
    features[case.named] = named
    if len(case.rest):
        features[case.rest], row.engine_rest = timed(lambda: case.extract(t, case.rest))
    case.features.append(features)


def cell(case: Case, t: int, k: int, query: Floats, gallery: Floats, row: Row, exhaustive: bool) -> None:
    """Time and compare C[t, k] both ways."""
    same, folds = case.pairs.same, case.pairs.folds
    (near, plain), spent = timed(lambda: plainly(query, gallery, case.pairs))
    row.plain_cells.append(spent)
    (exact, engine), spent = timed(lambda: by_engine(case.features[t], case.features[k], case.pairs))
    row.engine_cells.append(spent)
    row.moved = max(row.moved, abs(grid_accuracy(exact, same, folds) - plain))
    name = f"cell {t + 1}, {k + 1}"
    agree(f"{name}: distances", float(np.abs(near - exact).max()), 0.0, NEAR)
    agree(f"{name}: grid", grid_accuracy(near, same, folds), plain)
    if exhaustive:
        agree(f"{name}: exact", engine, exhaustive_accuracy(exact, same, folds))


def plainly(query: Floats, gallery: Floats, pairs: Pairs) -> tuple[Floats, float]:
    """Return distances and accuracy the usual way."""
    distances: Floats = np.sum(np.square(query - gallery), axis=1)
    return distances, plain_accuracy(distances, pairs.same, pairs.folds)


def by_engine(query: Floats, gallery: Floats, pairs: Pairs) -> tuple[Floats, float]:
    """Return distances and accuracy as a run computes them."""
    distances = pair_distances(Features(query), Features(gallery), pairs.query, pairs.gallery)
    correct = pair_correctness(distances, pairs.same, pairs.folds)
    return distances, mean_fold_accuracy(correct, pairs.folds)


def agree(what: str, one: float, other: float, tolerance: float = 1e-12) -> None:
    """Raise DisagreementError if both values differ by more than the tolerance."""
    if not abs(one - other) <= tolerance:
        raise DisagreementError(f"{what}: {one} and {other} differ by more than {tolerance:g}")


def summary(case: Case, rows: list[Row], checked: int) -> Iterator[Measured]:
    """Yield totals, images per second by row, and seconds per cell."""
    tasks, pairs, named = len(rows), len(case.pairs), len(case.named)
    passes = [pairs * (t + 2) for t in range(tasks)]
    what = f"T = {tasks}, {pairs:,} pairs, end to end"
    plain, engine = sum(row.plain for row in rows), sum(row.engine for row in rows)
    note = (
        f"one pass over the matrix; {sum(passes):,} images through a model, and {tasks * named:,}; "
        f"{checked} cells equal an exhaustive search, all equal the reference on its grid"
    )
    yield compared(PART, what, "s", [plain], [engine], note)
    everything = engine + sum(row.engine_rest for row in rows)
    note = f"as a run of cl2r does it: features of all {len(case.images):,} open images, for pairs to come"
    yield compared(PART, f"{what}, every open image", "s", [plain], [everything], note)
    speeds = [count / row.plain_extraction for count, row in zip(passes, rows, strict=True)]
    ours = [named / row.engine_extraction for row in rows]
    yield compared(PART, "extraction, by row", "images/s", speeds, ours, "from uint8 images to features")
    theirs = [spent for row in rows for spent in row.plain_cells]
    own = [spent for row in rows for spent in row.engine_cells]
    moved = max(row.moved for row in rows)
    note = (
        f"distances and accuracy; 4,000 thresholds a fold, and the exact one. On equal distances both grids agree; "
        f"on those of the other way accuracies move by {moved:.1e} at most"
    )
    yield compared(PART, "verification of a cell", "s", theirs, own, note)
