"""Drawn and official verification pairs."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cl2r.data import pairs as pairs_module
from cl2r.data.dataset import ImageSet, Labels
from cl2r.data.images import ArrayImages
from cl2r.data.pairs import available_pairs, draw_pairs, tuning_and_report_images, tuning_and_report_pairs
from cl2r.errors import InputError
from cl2r.verification import Pairs

labels_strategy = st.lists(st.integers(0, 5), min_size=4, max_size=30).map(lambda y: np.array(y, np.int64))


def open_set(y_open: Labels, pairs: Pairs | None = None) -> ImageSet:
    x_train, x_open = (ArrayImages(np.zeros((count, 1, 1, 1), np.uint8)) for count in (2, len(y_open)))
    return ImageSet("test", x_train, np.array([0, 1], np.int64), x_open, y_open, ("a", "b"), pairs)


def unordered(pairs: Pairs) -> list[tuple[int, int]]:
    return [tuple(sorted(pair)) for pair in zip(pairs.query.tolist(), pairs.gallery.tolist(), strict=True)]


def images(pairs: Pairs) -> set[int]:
    return {*pairs.query.tolist(), *pairs.gallery.tolist()}


def all_pairs(labels: Labels, rows: Labels, same: bool) -> set[tuple[int, int]]:
    chosen = itertools.combinations(sorted(rows.tolist()), 2)
    return {(i, j) for i, j in chosen if (labels[i] == labels[j]) == same}


def check_pairs(pairs: Pairs, labels: Labels, positives: int, negatives: int, folds: int) -> None:
    assert len(pairs) == len(pairs.gallery) == positives + negatives
    assert pairs.same.tolist() == [True] * positives + [False] * negatives
    assert (labels[pairs.query] == labels[pairs.gallery]).tolist() == pairs.same.tolist()
    assert not np.any(pairs.query == pairs.gallery)
    assert len(set(unordered(pairs))) == len(pairs)
    for kind in (True, False):
        per_fold = np.bincount(pairs.folds[pairs.same == kind], minlength=folds)
        assert len(per_fold) == folds
        assert per_fold.max() - per_fold.min() <= 1
    assert {a.dtype for a in (pairs.query, pairs.gallery, pairs.folds)} == {np.dtype(np.int64)}


@settings(deadline=None, max_examples=60)
@given(labels_strategy, st.integers(0, 1000), st.data())
def test_drawn_pairs(labels: Labels, seed: int, data: st.DataObject) -> None:
    rows = np.flatnonzero(np.random.default_rng(seed).random(len(labels)) < 0.8)
    supply = len(all_pairs(labels, rows, True)), len(all_pairs(labels, rows, False))
    assert available_pairs(labels, rows) == supply
    assume(min(supply) > 0)
    positives, negatives = (data.draw(st.integers(1, count)) for count in supply)
    folds = data.draw(st.integers(1, min(positives, negatives)))
    pairs = draw_pairs(labels, rows, positives, negatives, folds, np.random.default_rng(seed))
    check_pairs(pairs, labels, positives, negatives, folds)
    assert images(pairs) <= set(rows.tolist())


@settings(deadline=None, max_examples=30)
@given(labels_strategy)
def test_every_existing_pair_can_be_drawn(labels: Labels) -> None:
    rows = np.arange(len(labels))
    positive, negative = all_pairs(labels, rows, True), all_pairs(labels, rows, False)
    assume(positive and negative)
    pairs = draw_pairs(labels, rows, len(positive), len(negative), 1, np.random.default_rng(0))
    drawn = unordered(pairs)
    assert set(drawn[: len(positive)]) == positive
    assert set(drawn[len(positive) :]) == negative


def test_pairs_are_equally_likely_in_either_orientation() -> None:
    labels = np.array([0, 0, 0, 1, 1], np.int64)
    rng = np.random.default_rng(0)
    counts: dict[tuple[int, int], int] = {}
    for _ in range(2000):
        pairs = draw_pairs(labels, np.arange(5), 1, 1, 1, rng)
        pair = int(pairs.query[0]), int(pairs.gallery[0])
        counts[pair] = counts.get(pair, 0) + 1
    assert len(counts) == 8  # 3 + 1 pairs, both ways
    assert min(counts.values()) > 2000 / 8 * 0.75
    assert max(counts.values()) < 2000 / 8 * 1.25


def test_pair_numbers_of_large_sets() -> None:
    sizes = np.array([3, 2_000_000, 2], np.int64)
    pairs_of_first, pairs_of_second = 3, 2_000_000 * 1_999_999 // 2
    last = np.array([0, pairs_of_first - 1, pairs_of_first, pairs_of_first + pairs_of_second - 1])
    places = pairs_module._unrank_positives(sizes, np.append(last, last[-1] + 1))
    assert places.T.tolist() == [[0, 1], [1, 2], [3, 4], [2_000_001, 2_000_002], [2_000_003, 2_000_004]]
    negatives = pairs_module._unrank_negatives(sizes, np.array([0, 2_000_002, 3 * 2_000_002 + 2 * 2_000_000 - 1]))
    assert negatives.T.tolist() == [[0, 3], [1, 3], [2_000_002, 2_000_004]]


@pytest.mark.parametrize("folds", [0, -1, 3])
def test_folds_without_a_pair_of_each_kind_are_refused(folds: int) -> None:
    labels = np.array([0, 0, 0, 1, 1], np.int64)
    with pytest.raises(InputError, match=rf"eval\.folds = {folds}: .* 2 positive and 4 negative .*; lower eval\.folds"):
        draw_pairs(labels, np.arange(5), 2, 4, folds, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("asked", "balanced", "drawn"),
    [
        ((4, 6), True, (4, 6)),
        ((8, 6), True, (4, 3)),
        ((40, 40), True, (4, 4)),
        ((4, 12), True, (2, 6)),
        ((40, 40), False, (4, 6)),
        ((3, 40), False, (3, 6)),
    ],
)
def test_no_more_pairs_are_drawn_than_there_are(asked: tuple[int, int], balanced: bool, drawn: tuple[int, int]) -> None:
    """Five images have four positive and six negative pairs; a balance that was asked for is kept."""
    labels = np.array([0, 0, 0, 1, 1], np.int64)
    pairs = draw_pairs(labels, np.arange(5), *asked, 2, np.random.default_rng(0), balanced)
    check_pairs(pairs, labels, *drawn, 2)


def notes(labels: Labels, caplog: pytest.LogCaptureFixture, *asked: int, **settings: object) -> list[str]:
    """Return what is said while pairs are drawn twice."""
    caplog.set_level("INFO", "cl2r")
    pairs_module._say_once.cache_clear()
    for _ in range(2):
        tuning_and_report_pairs(open_set(labels), *asked, folds=10, seed=0, **settings)  # type: ignore[arg-type]
    found = list(caplog.messages)
    caplog.clear()
    return found


def test_a_note_says_once_that_there_are_fewer_pairs(caplog: pytest.LogCaptureFixture) -> None:
    five = np.repeat(np.arange(5), 30)
    fewer = "note: 525 of 3,000 positive pairs: the open classes have no more"
    assert notes(five, caplog, 3000, 3000) == [f"{fewer}; 525 of 3,000 negative pairs: to keep the balance"]
    assert notes(five, caplog, 3000, 2000, balanced=False) == [fewer]
    assert notes(five, caplog, 525, 525) == []
    odd = "note: 600 (to report) and 525 (to tune on) of 3,000 positive pairs: the open classes have no more"
    assert notes(np.repeat(np.arange(5), 31), caplog, 3000, 2000, balanced=False) == [odd]
    lopsided = np.repeat([0, 1], [200, 4])
    assert notes(lopsided, caplog, 300, 300) == [
        "note: 200 of 300 positive pairs: to keep the balance; 200 of 300 negative pairs: the open classes have no more"
    ]
    assert notes(five, caplog, 3000, 3000, tuning_share=0)[0].startswith("note: 2,175 of 3,000 positive pairs")


def test_capped_pairs_are_the_same_every_time_and_share_no_image() -> None:
    labels = np.repeat(np.arange(5), 30)
    (tuning, report), again = (tuning_and_report_pairs(open_set(labels), 3000, 3000, 10, 0) for _ in range(2))
    assert tuning is not None
    for pairs, other in zip((tuning, report), again, strict=True):
        check_pairs(pairs, labels, 525, 525, 10)
        assert other is not None
        assert (pairs.query.tolist(), pairs.gallery.tolist()) == (other.query.tolist(), other.gallery.tolist())
    assert not images(tuning) & images(report)


@pytest.mark.parametrize(
    ("sizes", "settings", "advice"),
    [
        ([30], {}, "need at least two open classes, there is one; add a second class folder"),
        ([30], {"tuning_share": 0}, "need at least two open classes, there is one; add a second class folder"),
        ([1, 1, 1], {}, "need two images of an open class, each has one; give every open class at least 4 images"),
        ([2, 2, 2], {}, "no open class has two images to report; give every open class"),
        ([3] * 12, {}, r"no open class has two images to tune on; .* at least 4 images, or set eval\.tuning_share=0"),
        ([30, 1], {}, "the open images to tune on are of one class only; give every open class at least 4 images"),
        ([4, 4], {}, r"eval\.folds = 10: there are 2 positive and 2 negative pairs to report, .* more open images"),
        ([30], {"split": "classes"}, r"eval\.split = classes.*1 of 1 open classes.*; add open classes"),
    ],
)
def test_open_sets_without_pairs_get_advice(sizes: list[int], settings: dict[str, object], advice: str) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    with pytest.raises(InputError, match=advice) as error:
        tuning_and_report_pairs(open_set(labels), 3000, 3000, 10, 0, **settings)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(4, 20), min_size=2, max_size=6),
    st.integers(0, 100),
    st.sampled_from([0.3, 0.5, 0.7]),
)
def test_tuning_and_report_share_no_image(sizes: list[int], seed: int, share: float) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    counts = [(int(share * size), size - int(share * size)) for size in sizes]
    supply = min(sum(part[side] * (part[side] - 1) // 2 for part in counts) for side in (0, 1))
    assume(supply > 0)
    tuning, report = tuning_and_report_pairs(open_set(labels), supply, len(sizes) - 1, 1, seed, share)
    assert tuning is not None
    for pairs in (tuning, report):
        check_pairs(pairs, labels, supply, len(sizes) - 1, 1)
    assert not images(tuning) & images(report)


def test_both_parts_take_their_share_of_every_class() -> None:
    labels = np.repeat(np.arange(3), [10, 11, 4])
    tuning, report = tuning_and_report_pairs(open_set(labels), 21, 45, 10, seed=5)
    assert tuning is not None
    assert set(np.bincount(labels[sorted(images(tuning))])) <= {5, 2}  # 21 positives: all that 5 + 5 + 2 allow
    assert len(images(tuning)) == 12
    assert not images(tuning) & images(report)


def test_pairs_depend_on_the_seed_alone() -> None:
    data = open_set(np.repeat(np.arange(5), 20))
    first, again, other = (tuning_and_report_pairs(data, 30, 30, 10, seed)[1] for seed in (1, 1, 2))
    assert first.query.tolist() == again.query.tolist()
    assert first.gallery.tolist() == again.gallery.tolist()
    assert first.query.tolist() != other.query.tolist()


def test_share_zero_reports_on_all_images() -> None:
    labels = np.repeat(np.arange(2), [2, 1])
    tuning, report = tuning_and_report_pairs(open_set(labels), 1, 2, 1, seed=0, tuning_share=0)
    assert tuning is None
    assert images(report) == {0, 1, 2}


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5, float("nan")])
def test_impossible_shares_are_refused(share: float) -> None:
    with pytest.raises(InputError, match=r"eval\.tuning_share"):
        tuning_and_report_pairs(open_set(np.array([0, 0, 1, 1])), 1, 1, 1, 0, share)


OFFICIAL = Pairs(np.array([0, 1]), np.array([2, 4]), np.array([True, False]), np.array([3, 7]))


def test_official_pairs_are_reported_and_tuning_takes_the_rest() -> None:
    labels = np.array([0, 0, 0, 1, 1, 0, 0, 1, 1, 2], np.int64)
    tuning, report = tuning_and_report_pairs(open_set(labels, OFFICIAL), 4, 9, 2, seed=0)
    assert unordered(report) == [(0, 2), (1, 4)]
    assert report.folds.tolist() == [3, 7]
    assert report.same.tolist() == [True, False]
    assert tuning is not None
    check_pairs(tuning, labels, 4, 9, 2)
    assert images(tuning) == {3, 5, 6, 7, 8, 9}


@pytest.mark.parametrize(
    ("rest", "positives", "share"),
    [([1, 1, 2], 2, 0.5), ([1, 1, 1], 1, 0.5), ([], 1, 0.5), ([1, 1, 2, 2], 1, 0.0)],
)
def test_no_tuning_pairs_if_the_rest_does_not_suffice(rest: list[int], positives: int, share: float) -> None:
    labels = np.array([0, 0, 0, 1, 1, *rest], np.int64)
    official = Pairs(np.array([0, 1, 3]), np.array([2, 4, 4]), np.array([True, False, True]), np.zeros(3, np.int64))
    tuning, report = tuning_and_report_pairs(open_set(labels, official), positives, 1, 1, 0, share)
    assert tuning is None
    assert len(report) == 3


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(4, 8), min_size=10, max_size=30), st.integers(0, 100), st.sampled_from([0.3, 0.5, 0.7]))
def test_split_by_classes_shares_neither_class_nor_image(sizes: list[int], seed: int, share: float) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    tuning, report = tuning_and_report_images(open_set(labels), seed, share, "classes")
    assert sorted([*tuning, *report]) == list(range(len(labels)))
    assert not set(labels[tuning]) & set(labels[report])
    assert min(len(set(labels[side])) for side in (tuning, report)) >= 2
    assert abs(len(tuning) - share * len(labels)) <= max(sizes) / 2


def test_pairs_of_classes_that_are_split() -> None:
    labels = np.repeat(np.arange(10), 8)
    tuning, report = tuning_and_report_pairs(open_set(labels), 50, 50, 5, 3, 0.4, "classes")
    rows = tuning_and_report_images(open_set(labels), 3, 0.4, "classes")
    assert tuning is not None
    for pairs, own in zip((tuning, report), rows, strict=True):
        check_pairs(pairs, labels, 50, 50, 5)
        assert images(pairs) <= set(own.tolist())
    assert [len(set(labels[own])) for own in rows] == [4, 6]
    other = tuning_and_report_images(open_set(labels), 4, 0.4, "classes")
    assert other[0].tolist() != rows[0].tolist(), "the seed chooses the classes"


def test_share_zero_splits_no_class() -> None:
    tuning, report = tuning_and_report_images(open_set(np.array([0, 0, 1])), 0, 0.0, "classes")
    assert (tuning.tolist(), report.tolist()) == ([], [0, 1, 2])


@pytest.mark.parametrize(("classes", "share"), [(3, 0.5), (20, 0.05), (20, 0.95), (1, 0.5)])
def test_a_side_with_fewer_than_two_classes_is_refused(classes: int, share: float) -> None:
    with pytest.raises(
        InputError, match=r"eval\.split = classes.*at least 2; add open classes, or set eval\.split=images"
    ):
        tuning_and_report_images(open_set(np.repeat(np.arange(classes), 4)), 0, share, "classes")


def test_official_pairs_leave_the_classes_that_they_do_not_show_to_tuning() -> None:
    labels = np.array([0, 0, 0, 1, 1, 0, 2, 2, 3, 3], np.int64)
    tuning, report = tuning_and_report_pairs(open_set(labels, OFFICIAL), 2, 4, 2, 0, 0.5, "classes")
    assert tuning is not None
    assert images(tuning) == {6, 7, 8, 9}
    assert unordered(report) == [(0, 2), (1, 4)]
    rows = tuning_and_report_images(open_set(labels, OFFICIAL), 0, 0.5, "images")
    assert [own.tolist() for own in rows] == [[3, 5, 6, 7, 8, 9], [0, 1, 2, 4]]
