"""Verification pairs of open-set images: same class or not, in folds.

All pairs of a kind are numbered, and distinct numbers are drawn: every pair is equally likely, none is drawn twice.
Folds are dealt round robin over each kind, so every fold has the same share of positives. Open classes that do not have
as many pairs as are asked for give all that they have, and the log says so.
Sweeps use tuning images only, tables use report images only, and no image is both. Open images are split inside every
class or, with eval.split=classes, class by class.
"""

import logging
from collections.abc import Mapping
from functools import cache
from typing import Literal

import numpy as np

from cl2r.data.dataset import ImageSet, Labels
from cl2r.errors import InputError
from cl2r.seeding import numpy_stream
from cl2r.verification import Pairs

log = logging.getLogger(__name__)

Split = Literal["images", "classes"]


def draw_pairs(
    labels: Labels,
    rows: Labels,
    positives: int,
    negatives: int,
    folds: int,
    rng: np.random.Generator,
    balanced: bool = True,
    purpose: str = "to draw from",
) -> Pairs:
    """Draw distinct pairs of the given rows, positives first, each pair in a random orientation.

    If the rows do not allow so many, all that they allow are drawn; `balanced` keeps the ratio of the two kinds.
    `purpose` says what the rows are for, in errors.
    """
    grouped = rows[np.argsort(labels[rows], kind="stable")]
    sizes, supply = _class_sizes(labels[rows]), available_pairs(labels, rows)
    if fault := _no_pairs(labels, supply, purpose):
        raise InputError(fault)
    most = (supply[1] * positives // negatives, supply[0] * negatives // positives) if balanced else supply
    positives, negatives = min(positives, supply[0], most[0]), min(negatives, supply[1], most[1])
    if not 1 <= folds <= min(positives, negatives):
        found = f"there are {positives:,} positive and {negatives:,} negative pairs {purpose}"
        advice = "lower eval.folds, or have more pairs: more open images, higher eval.positives and eval.negatives"
        raise InputError(f"eval.folds = {folds}: {found}, and each fold needs one of either kind; {advice}")
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


def _no_pairs(labels: Labels, supply: tuple[int, int], purpose: str) -> str | None:
    """Return what to do if there is no positive or no negative pair at all, otherwise None."""
    sizes = _class_sizes(labels)
    if len(sizes) < 2:
        return "negative pairs need at least two open classes, there is one; add a second class folder to the open set"
    if sizes.max() < 2:
        return "positive pairs need two images of an open class, each has one; give every open class at least 4 images"
    if min(supply) > 0:
        return None
    many = f"no open class has two images {purpose}"
    lacking = many if supply[0] == 0 else f"the open images {purpose} are of one class only"
    return f"{lacking}; give every open class at least 4 images, or set eval.tuning_share=0 to report on all of them"


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
    balanced: bool = True,
) -> tuple[Pairs | None, Pairs]:
    """Return pairs to tune on and pairs to report, without a common image; no tuning pairs if tuning_share is 0.

    Official pairs are reported as they are; tuning pairs then come from other open images, if these suffice. Without
    official pairs, as many are drawn as there are; `balanced` keeps the ratio of positives to negatives.
    """
    labels, report = dataset.y_open, dataset.pairs
    if report is not None and dataset.templates is not None:
        return None, report  # nothing else is known of templates
    tuning_rows, report_rows = tuning_and_report_images(dataset, seed, tuning_share, split)
    drawn, supplies = dict[str, Pairs](), dict[str, tuple[int, int]]()

    def draw(rows: Labels, name: str, purpose: str) -> Pairs:
        stream, supplies[purpose] = numpy_stream(seed, name), available_pairs(labels, rows)
        drawn[purpose] = draw_pairs(labels, rows, positives, negatives, folds, stream, balanced, purpose)
        return drawn[purpose]

    if report is None:
        report = draw(report_rows, "report_pairs", "to report")
    else:
        supply = available_pairs(labels, tuning_rows)
        if supply[0] < positives or supply[1] < negatives:
            return None, report
    tuning = draw(tuning_rows, "tuning_pairs", "to tune on") if tuning_share > 0 else None
    if fewer := _fewer_pairs(drawn, supplies, positives, negatives):
        _say_once(f"note: {fewer}")
    return tuning, report


def _fewer_pairs(
    drawn: Mapping[str, Pairs], supplies: Mapping[str, tuple[int, int]], positives: int, negatives: int
) -> str:
    """Return which pairs are fewer than were asked for, and why; an empty text if none are."""
    parts = []
    for place, (kind, asked) in enumerate((("positive", positives), ("negative", negatives))):
        counts = {purpose: int((pairs.same == (place == 0)).sum()) for purpose, pairs in drawn.items()}
        if min(counts.values(), default=asked) == asked:
            continue
        shown = " and ".join(f"{count:,} ({purpose})" for purpose, count in counts.items())
        if len(set(counts.values())) == 1:
            shown = f"{min(counts.values()):,}"
        scarce = any(count == supplies[purpose][place] < asked for purpose, count in counts.items())
        why = "the open classes have no more" if scarce else "to keep the balance"
        parts.append(f"{shown} of {asked:,} {kind} pairs: {why}")
    return "; ".join(parts)


@cache  # a study plans many runs with the same pairs
def _say_once(line: str) -> None:
    log.info(line)


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
        found = f"{count} of {len(classes)} open classes to tune on, but both sides need at least 2"
        raise InputError(f"{asked}: {found}; add open classes, or set eval.split=images or another share")
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
