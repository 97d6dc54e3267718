"""Verification pairs of open-set images: same class or not, in folds.

All pairs of a kind are numbered, and distinct numbers are drawn: every pair is equally likely, none is drawn twice.
Folds are dealt round robin over each kind, so every fold has the same share of positives.
Sweeps use tuning images only, tables use report images only, and no image is both. Open images are split inside every
class or, with eval.split=classes, class by class.
"""

from typing import Literal

import numpy as np

from cl2r.data.dataset import ImageSet, Labels
from cl2r.errors import InputError
from cl2r.seeding import numpy_stream
from cl2r.verification import Pairs

Split = Literal["images", "classes"]


def draw_pairs(
    labels: Labels, rows: Labels, positives: int, negatives: int, folds: int, rng: np.random.Generator
) -> Pairs:
    """Draw distinct pairs of the given rows, positives first, each pair in a random orientation."""
    grouped = rows[np.argsort(labels[rows], kind="stable")]
    sizes, supply = _class_sizes(labels[rows]), available_pairs(labels, rows)
    if not 1 <= folds <= min(positives, negatives):
        asked = f"eval.folds = {folds} with {positives} positive and {negatives} negative pairs"
        raise InputError(f"{asked}: folds must be at least 1 and each needs a pair of either kind")
    if positives > supply[0] or negatives > supply[1]:
        asked, allowed = f"eval.positives = {positives}, eval.negatives = {negatives}", f"{supply[0]} and {supply[1]}"
        raise InputError(f"{asked}: the {len(rows)} open images to draw from allow {allowed} such pairs; lower them")
    same = _unrank_positives(sizes, rng.choice(supply[0], positives, replace=False))
    different = _unrank_negatives(sizes, rng.choice(supply[1], negatives, replace=False))
    first, second = np.concatenate([same, different], axis=1)
    swap = rng.random(positives + negatives) < 0.5
    return Pairs(
        query=grouped[np.where(swap, second, first)],
        gallery=grouped[np.where(swap, first, second)],
        same=np.repeat([True, False], [positives, negatives]),
        folds=np.concatenate([np.arange(positives) % folds, np.arange(negatives) % folds]),
    )


def available_pairs(labels: Labels, rows: Labels) -> tuple[int, int]:
    """Return how many distinct positive and negative pairs the given rows allow."""
    sizes, total = _class_sizes(labels[rows]), len(rows)
    positives = int((sizes * (sizes - 1) // 2).sum())
    return positives, total * (total - 1) // 2 - positives


def tuning_and_report_images(
    dataset: ImageSet, seed: int, tuning_share: float = 0.5, split: Split = "images"
) -> tuple[Labels, Labels]:
    """Return the open images to tune on, none if tuning_share is 0, and those to report; rows ascend.

    Official pairs show the images to report; the others, or those of other classes, are to tune on.
    """
    if not 0 <= tuning_share < 1:
        raise InputError(f"eval.tuning_share = {tuning_share}: must be at least 0 and below 1")
    labels, rows = dataset.y_open, np.arange(len(dataset.y_open))
    if dataset.pairs is not None:
        shown = np.unique(np.concatenate([dataset.pairs.query, dataset.pairs.gallery]))
        others = ~np.isin(labels, labels[shown]) if split == "classes" else ~np.isin(rows, shown)
        return rows[others & (tuning_share > 0)], shown
    if split == "classes" and tuning_share > 0:
        return _split_classes(labels, tuning_share, numpy_stream(seed, "pair_split"))
    return _split_images(labels, tuning_share, numpy_stream(seed, "pair_split"))


def tuning_and_report_pairs(
    dataset: ImageSet,
    positives: int,
    negatives: int,
    folds: int,
    seed: int,
    tuning_share: float = 0.5,
    split: Split = "images",
) -> tuple[Pairs | None, Pairs]:
    """Return pairs to tune on and pairs to report, without a common image; no tuning pairs if tuning_share is 0.

    Official pairs are reported as they are; tuning pairs then come from other open images, if these suffice.
    """
    labels, report = dataset.y_open, dataset.pairs
    if report is not None and dataset.templates is not None:
        return None, report  # nothing else is known of templates
    tuning_rows, report_rows = tuning_and_report_images(dataset, seed, tuning_share, split)
    if report is None:
        stream = numpy_stream(seed, "report_pairs")
        report = draw_pairs(labels, report_rows, positives, negatives, folds, stream)
    else:
        supply = available_pairs(labels, tuning_rows)
        if supply[0] < positives or supply[1] < negatives:
            return None, report
    if tuning_share == 0:
        return None, report
    stream = numpy_stream(seed, "tuning_pairs")
    return draw_pairs(labels, tuning_rows, positives, negatives, folds, stream), report


def _split_images(labels: Labels, share: float, rng: np.random.Generator) -> tuple[Labels, Labels]:
    """Split every class at random: the first `share` of its images, rounded down, and the others."""
    shuffled = rng.permutation(len(labels))
    grouped = shuffled[np.argsort(labels[shuffled], kind="stable")]
    sizes = _class_sizes(labels)
    place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    first = place < np.repeat(np.floor(share * sizes), sizes)
    return np.sort(grouped[first]), np.sort(grouped[~first])


def _split_classes(labels: Labels, share: float, rng: np.random.Generator) -> tuple[Labels, Labels]:
    """Cut the shuffled classes where the images of the first ones are nearest to `share` of all images."""
    classes, sizes = np.unique(labels, return_counts=True)
    shuffled = rng.permutation(len(classes))
    count = 1 + int(np.argmin(np.abs(np.cumsum(sizes[shuffled]) - share * len(labels))))
    if not 2 <= count <= len(classes) - 2:
        asked = f"eval.split = classes, eval.tuning_share = {share:g}"
        raise InputError(f"{asked}: {count} of {len(classes)} open classes to tune on; both sides need at least 2")
    first = np.isin(labels, classes[shuffled[:count]])
    return np.flatnonzero(first), np.flatnonzero(~first)


def _class_sizes(labels: Labels) -> Labels:
    return np.unique(labels, return_counts=True)[1].astype(np.int64)


def _unrank_positives(sizes: Labels, ranks: Labels) -> Labels:
    """Return the positive pairs with these numbers as places (2, n) among images grouped by class."""
    pairs_before = np.cumsum(sizes * (sizes - 1) // 2)
    group = np.searchsorted(pairs_before, ranks, side="right")
    inside = ranks - np.concatenate([[0], pairs_before])[group]
    # pair number j(j-1)/2 + i is (i, j) with i < j; the square root may be off by one for large numbers
    j = ((1 + np.sqrt(1 + 8 * inside.astype(np.float64))) / 2).astype(np.int64)
    j -= j * (j - 1) // 2 > inside
    j += j * (j + 1) // 2 <= inside
    start = np.concatenate([[0], np.cumsum(sizes)])[group]
    return np.stack([start + inside - j * (j - 1) // 2, start + j])


def _unrank_negatives(sizes: Labels, ranks: Labels) -> Labels:
    """Return the negative pairs with these numbers as places (2, n) among images grouped by class."""
    total = int(sizes.sum())
    class_end = np.repeat(np.cumsum(sizes), sizes)
    partners_before = np.cumsum(total - class_end)  # each image is paired with all images of later classes
    first = np.searchsorted(partners_before, ranks, side="right")
    inside = ranks - np.concatenate([[0], partners_before])[first]
    return np.stack([first, class_end[first] + inside])
