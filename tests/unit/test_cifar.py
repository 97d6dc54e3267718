"""CIFAR-100 with CIFAR-10: miniatures in the published layout, sound and broken."""

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from miniatures import refusal

from cl2r.data.cifar import check_cifar100, load_cifar100
from cl2r.errors import InputError

TRAIN, META, OPEN = "cifar-100-python/train", "cifar-100-python/meta", "cifar-10-batches-py/test_batch"


def write(path: Path, held: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(held, 2))


def pixels(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, 3072), np.uint8)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Every class of CIFAR-100 twice, backwards; every class of CIFAR-10 once."""
    labels = list(range(99, -1, -1)) * 2
    write(tmp_path / TRAIN, {b"fine_labels": labels, b"coarse_labels": [0] * 200, b"data": pixels(200)})
    write(tmp_path / META, {b"fine_label_names": [b"name%d" % i for i in range(100)], b"coarse_label_names": []})
    write(tmp_path / OPEN, {b"labels": list(range(10)), b"data": pixels(10)})
    return tmp_path


def slow_images(rows: np.ndarray) -> np.ndarray:
    """A row holds the red plane, then the green, then the blue, each line by line."""
    images = np.zeros((len(rows), 32, 32, 3), np.uint8)
    for n, row in enumerate(rows):
        for i, value in enumerate(row.tolist()):
            images[n, i % 1024 // 32, i % 32, i // 1024] = value
    return images


def test_images_in_the_order_of_the_files(root: Path) -> None:
    data = load_cifar100(root, 32, 3)
    assert data.name == "cifar100"
    assert data.x_train.shape == (200, 32, 32, 3)
    assert isinstance(data.x_train, np.ndarray)
    assert type(data.x_train) is np.ndarray
    assert data.x_train.flags.c_contiguous
    np.testing.assert_array_equal(data.x_train[:10], slow_images(pixels(200)[:10]))
    np.testing.assert_array_equal(data.x_open, slow_images(pixels(10)))
    assert data.y_train.tolist() == list(range(99, -1, -1)) * 2
    assert data.y_open.tolist() == list(range(10))
    assert data.class_names == tuple(f"name{i}" for i in range(100))


@pytest.mark.parametrize("folder", ["cifar-100-python", "cifar-10-batches-py"])
def test_root_may_be_one_of_the_folders(root: Path, folder: str) -> None:
    assert load_cifar100(root / folder, 32, 3).fingerprint == load_cifar100(root, 32, 3).fingerprint
    assert check_cifar100(root / folder).found == check_cifar100(root).found


@pytest.mark.parametrize(("size", "channels"), [(64, 3), (32, 1)])
def test_other_sizes_are_refused(root: Path, size: int, channels: int) -> None:
    with pytest.raises(InputError, match=f"cifar100: data size {size} and channels {channels}, but"):
        load_cifar100(root, size, channels)


def test_check_of_other_files_than_the_published_ones(root: Path) -> None:
    check = check_cifar100(root)
    assert check.complete
    assert check.found == [
        f"{root / TRAIN}: 200 images of 100 classes, differs from the published file",
        f"{root / META}: 100 class names, differs from the published file",
        f"{root / OPEN}: 10 images of 10 classes, differs from the published file",
    ]


def test_check_knows_the_published_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cl2r.data.cifar.META_MD5", hashlib.md5((root / META).read_bytes()).hexdigest())
    assert f"{root / META}: 100 class names, the published file" in check_cifar100(root).found


@pytest.mark.parametrize("path", [TRAIN, META, OPEN])
def test_missing_files_are_named(root: Path, path: str) -> None:
    (root / path).unlink()
    missing = f"{root / path}: no such file"
    assert check_cifar100(root).wrong == [missing]
    said = refusal(lambda: load_cifar100(root, 32, 3))
    assert said == f"{missing}; `cl2r datasets --check cifar100 {root}` says how to get it"


def test_check_of_nothing(tmp_path: Path) -> None:
    check = check_cifar100(tmp_path / "nowhere")
    assert not check.found
    assert len(check.wrong) == 3


Edit = Callable[[dict[bytes, Any]], object]


def without(key: bytes) -> Edit:
    return lambda held: {k: v for k, v in held.items() if k != key}


def replaced(key: bytes, value: object) -> Edit:
    return lambda held: held | {key: value}


LABELS = list(range(100)) * 2


@pytest.mark.parametrize(
    ("path", "edit", "message"),
    [
        (TRAIN, lambda held: list(held), "expected a dictionary, found list"),
        (TRAIN, without(b"fine_labels"), "no fine_labels in it"),
        (TRAIN, lambda held: {}, "no data and no fine_labels in it"),
        (TRAIN, replaced(b"fine_labels", [*LABELS[:-1], 100]), "fine_labels holds 100, expected 0..99"),
        (TRAIN, replaced(b"fine_labels", [-1, *LABELS[1:]]), "fine_labels holds -1, expected 0..99"),
        (TRAIN, replaced(b"fine_labels", [2**70, *LABELS[1:]]), f"fine_labels holds {2**70}, expected 0..99"),
        (TRAIN, replaced(b"fine_labels", [1, 1, *LABELS[2:100]] * 2), "no image has label 0 (1 of 100 labels"),
        (TRAIN, replaced(b"fine_labels", ["cat"] * 200), "fine_labels must be a list of integers"),
        (TRAIN, replaced(b"fine_labels", LABELS[:-1]), "uint8 of shape (199, 3072), one row a label, found uint8 of s"),
        (TRAIN, replaced(b"data", pixels(200).astype(np.float64)), "found float64 of shape (200, 3072)"),
        (TRAIN, replaced(b"data", pixels(200)[:, :3000]), "found uint8 of shape (200, 3000)"),
        (TRAIN, replaced(b"data", b"bytes"), "found bytes"),
        (META, without(b"fine_label_names"), "no fine_label_names in it"),
        (META, replaced(b"fine_label_names", [b"a", b"b"]), "100 different names, found 2"),
        (META, replaced(b"fine_label_names", [b"a"] * 100), "100 different names, found 1"),
        (META, replaced(b"fine_label_names", list(range(100))), "fine_label_names must be a list of names"),
        (OPEN, replaced(b"labels", [*range(9), 10]), "labels holds 10, expected 0..9"),
        (OPEN, replaced(b"labels", [0] * 10), "no image has label 1 (9 of 10 labels"),
    ],
)
def test_wrong_contents_are_named(root: Path, path: str, edit: Edit, message: str) -> None:
    write(root / path, edit(pickle.loads((root / path).read_bytes())))
    complaint = refusal(lambda: load_cifar100(root, 32, 3))
    assert complaint.startswith(f"{root / path}: not as published: ")
    assert message in complaint
    assert check_cifar100(root).wrong == [complaint]
    assert len(check_cifar100(root).found) == 2


@pytest.mark.parametrize("keep", [0, 1, 5000])
def test_truncated_files_are_named(root: Path, keep: int) -> None:
    (root / TRAIN).write_bytes((root / TRAIN).read_bytes()[:keep])
    with pytest.raises(InputError, match="cifar-100-python/train: not a readable pickle"):
        load_cifar100(root, 32, 3)
    assert not check_cifar100(root).complete
