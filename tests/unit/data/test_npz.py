"""Data sets in .npz files, sound and broken."""

import io
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from cl2r.data import load_dataset
from cl2r.data.npz import load_npz
from tests.support.miniatures import refusal

Arrays = dict[str, npt.NDArray[np.generic]]


def arrays(**changes: npt.ArrayLike) -> Arrays:
    rng = np.random.default_rng(0)
    base: Arrays = {
        "x_train": rng.integers(0, 256, (4, 6, 6, 3), np.uint8),
        "y_train": np.array([30, 10, 10, 20]),
        "x_open": rng.integers(0, 256, (3, 6, 6, 3), np.uint8),
        "y_open": np.array([7, 5, 7], np.uint8),
    }
    return base | {key: np.asarray(value) for key, value in changes.items()}


def write(path: Path, content: Arrays) -> Path:
    np.savez_compressed(path, **content)  # type: ignore[arg-type]
    return path


def test_integer_labels_are_mapped_in_sorted_order(tmp_path: Path) -> None:
    content = arrays()
    data = load_dataset(str(write(tmp_path / "mine.npz", content)))
    assert data.name == "mine"
    assert data.class_names == ("10", "20", "30")
    assert data.y_train.tolist() == [2, 0, 0, 1]
    assert data.y_open.tolist() == [1, 0, 1]
    np.testing.assert_array_equal(data.x_train.all(), content["x_train"])
    np.testing.assert_array_equal(data.x_open.all(), content["x_open"])
    named = write(tmp_path / "a.npz", arrays(y_train=[9, 100, 9, -1], class_names=["minus one", "nine", "hundred"]))
    assert load_npz(named).class_names == ("minus one", "nine", "hundred"), "integers sort as numbers"


@pytest.mark.parametrize("kind", ["U5", "S5"])
def test_string_labels_are_names(tmp_path: Path, kind: str) -> None:
    content = arrays(y_train=np.array(["dog", "cat", "cat", "dog"], kind), y_open=np.array(["x", "y", "x"], kind))
    data = load_npz(write(tmp_path / "a.npz", content))
    assert data.class_names == ("cat", "dog")
    assert data.y_train.tolist() == [1, 0, 0, 1]
    assert data.y_open.tolist() == [0, 1, 0]


def test_grey_images_may_lack_the_channel_axis(tmp_path: Path) -> None:
    content = arrays(x_train=np.ones((4, 6, 5), np.uint8), x_open=np.zeros((3, 6, 5, 1), np.uint8))
    data = load_npz(write(tmp_path / "a.npz", content))
    assert data.x_train.shape == (4, 6, 5, 1)
    assert data.x_open.shape == (3, 6, 5, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((4, 6, 6, 3))}, "x_train is float64, expected uint8"),
        ({"x_open": np.zeros((3, 6, 6, 3), np.int16)}, "x_open is int16, expected uint8"),
        ({"x_train": np.zeros((4, 6, 6, 4), np.uint8)}, r"shape \(4, 6, 6, 4\), expected .* C 1 or 3"),
        ({"x_train": np.zeros((4, 36), np.uint8)}, r"x_train has shape \(4, 36\)"),
        ({"y_train": np.zeros(4)}, "y_train must be integers or strings"),
        ({"y_open": np.zeros((3, 2), np.int64)}, "y_open must be integers or strings"),
        ({"y_train": np.array([{}, {}, {}, {}])}, "y_train holds Python objects, which are never loaded"),
        ({"y_train": [30, 10, 10, 5]}, "class '5' is in both the training and the open set"),
        ({"y_train": ["a", "b", "a", "b"], "y_open": ["c", "b", "c"]}, "class 'b' is in both"),
        ({"y_train": ["a", "b", "a", "b"]}, "both be integers or both be strings"),
        ({"y_train": [30, 10, 10]}, "x_train has 4 images but y_train has 3 labels"),
        ({"x_open": np.zeros((3, 8, 8, 3), np.uint8)}, "differ in height, width or channels"),
        ({"class_names": ["a", "b"]}, "class_names must be 3 strings"),
        ({"class_names": [1, 2, 3]}, "class_names must be 3 strings"),
    ],
)
def test_bad_arrays_are_refused(tmp_path: Path, changes: dict[str, npt.ArrayLike], message: str) -> None:
    path = write(tmp_path / "bad.npz", arrays(**changes))
    found = refusal(lambda: load_npz(path))
    assert "bad" in found
    assert re.search(message, found)


def test_missing_keys_are_named_with_those_present(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", {"x_train": arrays()["x_train"], "labels": arrays()["y_train"]})
    message = refusal(lambda: load_npz(path))
    assert "y_train, x_open, y_open missing" in message
    assert "x_train, labels" in message


def test_other_and_damaged_files_are_named(tmp_path: Path) -> None:
    path, single = write(tmp_path / "a.npz", arrays()), io.BytesIO()
    np.save(single, np.zeros(3))
    whole = path.read_bytes()
    damaged = whole[:150] + bytes(20) + whole[170:]  # inside the compressed bytes of x_train
    no_archive = "not a readable .npz archive"
    for content, named in (
        *((content, no_archive) for content in (b"", b"no archive at all", b"PK\x03\x04 cut short", whole[:-200])),
        (single.getvalue(), "holds a single array"),
        (damaged, "x_train is damaged"),
    ):
        path.write_bytes(content)
        assert f"{path}: {named}" in refusal(lambda: load_npz(path))
