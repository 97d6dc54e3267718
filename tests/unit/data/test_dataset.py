"""ImageSet: shapes, moments, fingerprint, and what is refused; weights of templates."""

import hashlib
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cl2r.data.dataset import ImageSet, Templates, require_disjoint
from cl2r.data.images import ArrayImages
from cl2r.errors import InputError
from cl2r.verification import Pairs


def small_set(**changes: object) -> ImageSet:
    rng = np.random.default_rng(0)
    fields: dict[str, object] = {
        "name": "small",
        "x_train": rng.integers(0, 256, (6, 4, 5, 3), np.uint8),
        "y_train": np.array([0, 1, 2, 0, 1, 2], np.int64),
        "x_open": rng.integers(0, 256, (4, 4, 5, 3), np.uint8),
        "y_open": np.array([0, 0, 1, 1], np.int64),
        "class_names": ("a", "b", "c"),
    }
    fields |= changes
    for part in ("x_train", "x_open"):
        fields[part] = ArrayImages(fields[part])  # type: ignore[arg-type]
    return ImageSet(**fields)  # type: ignore[arg-type]


def one_pair(query: int, gallery: int) -> Pairs:
    rows = np.array([query], np.int64), np.array([gallery], np.int64)
    return Pairs(*rows, np.array([True]), np.array([0], np.int64))


def test_mean_and_std_match_a_float_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cl2r.data.dataset.HISTOGRAM_CHUNK", 130)  # two images at a time, the last chunk full
    data = small_set()
    pixels = data.x_train.all().astype(np.float64) / 255
    np.testing.assert_allclose(data.moments[0], pixels.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(data.moments[1], pixels.std(axis=(0, 1, 2)), rtol=1e-12)
    assert (data.num_classes, data.channels, data.image_size) == (3, 3, (4, 5))
    constant = small_set(x_train=np.full((6, 4, 5, 3), 7, np.uint8))
    np.testing.assert_allclose(constant.moments[0], 7 / 255)
    assert constant.moments[1] == (1 / 255,) * 3, "it must not divide by zero"


def test_fingerprint_is_the_hash_of_shapes_types_and_bytes() -> None:
    data = small_set()
    digest = hashlib.sha256()
    for array, kind in ((data.x_train.all(), "|u1"), (data.y_train, "<i8"), (data.x_open.all(), "|u1")):
        digest.update(str(array.shape).encode() + kind.encode() + array.tobytes())
    assert data.fingerprint == digest.hexdigest()


def test_fingerprint_sees_what_a_link_depends_on_and_nothing_else() -> None:
    data = small_set()
    x_train, x_open = data.x_train.all(), data.x_open.all()
    for changes in ({"x_train": x_train[::-1]}, {"y_train": data.y_train[::-1]}, {"x_open": x_open[::-1]}):
        assert small_set(**changes).fingerprint != data.fingerprint
    only_evaluated = {"y_open": np.flip(data.y_open)}, {"pairs": one_pair(0, 1)}
    for other in (*only_evaluated, {"name": "other"}, {"x_train": np.asfortranarray(x_train)}):
        assert small_set(**other).fingerprint == data.fingerprint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((6, 4, 5, 3), np.float32)}, "must be uint8"),
        ({"x_train": np.zeros((6, 4, 5), np.uint8)}, "must be uint8 of shape"),
        ({"x_open": np.zeros((4, 0, 5, 3), np.uint8)}, "must be uint8 of shape"),
        ({"y_open": np.zeros(4, np.int32)}, "y_open must be int64"),
        ({"y_train": np.zeros(5, np.int64)}, "x_train has 6 images but y_train has 5 labels"),
        ({"x_open": np.zeros((4, 4, 5, 1), np.uint8)}, "differ in height, width or channels"),
        ({"x_open": np.zeros((4, 8, 5, 3), np.uint8)}, "differ in height, width or channels"),
        ({"x_open": np.zeros((1, 4, 5, 3), np.uint8), "y_open": np.zeros(1, np.int64)}, "x_open has 1 images"),
        ({"y_train": np.zeros(6, np.int64), "class_names": ("a",)}, "1 training classes, at least 2"),
        ({"y_train": np.array([0, 1, 1, 0, 1, 1], np.int64)}, "every label 0..2"),
        ({"y_train": np.array([0, 1, 2, 3, 1, 2], np.int64)}, "every label 0..2"),
        ({"pairs": one_pair(0, 4)}, "names row 4, but there are 4 to compare"),
        ({"pairs": replace(one_pair(0, 1), folds=np.zeros(2, np.int64))}, "one length above 0"),
    ],
)
def test_inconsistent_arrays_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small_set(**changes)


def test_a_shared_class_is_named() -> None:
    require_disjoint("here", ["cat", "dog"], ["bird"])
    with pytest.raises(InputError, match=r"here: class 'cat' is in both .* \(2 such\)"):
        require_disjoint("here", ["dog", "cat"], ["cat", "dog", "bird"])


def nested_mean(features: npt.NDArray[np.float64], templates: list[int], media: list[int], which: int) -> float:
    """Mean over the media of a template of the mean over the frames of each."""
    frames: dict[int, list[float]] = {}
    for feature, template, medium in zip(features.tolist(), templates, media, strict=True):
        if template == which:
            frames.setdefault(medium, []).append(feature)
    means = [sum(values) / len(values) for values in frames.values()]
    return sum(means) / len(means)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-2, 3)), min_size=1, max_size=30), st.integers(0, 2**31))
def test_weights_are_those_of_the_nested_mean(images: list[tuple[int, int]], seed: int) -> None:
    rows = sorted({template for template, _ in images})
    template, media = [rows.index(t) for t, _ in images], [m for _, m in images]
    features = np.random.default_rng(seed).normal(size=len(images))
    pooled = Templates(np.array(template, np.int64), np.array(media, np.int64))
    weighted = np.bincount(pooled.template, pooled.weights * features)
    expected = [nested_mean(features, template, media, which) for which in range(len(rows))]
    assert len(pooled) == len(rows)
    np.testing.assert_allclose(weighted, expected, atol=1e-12)
