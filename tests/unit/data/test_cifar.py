"""CIFAR-100 with CIFAR-10: images, labels and names of the published layout; wrong contents are named."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cl2r.data.cifar import load_cifar100
from tests.support.miniatures import CIFAR_META, CIFAR_OPEN, CIFAR_TRAIN, MINIATURES, cifar_pixels, full_check, refusal


@pytest.fixture
def root(tmp_path: Path) -> Path:
    MINIATURES["cifar100"].write(tmp_path)
    return tmp_path


def slow_images(rows: np.ndarray) -> np.ndarray:
    """Return images of rows that hold the red plane, then the green, then the blue, each line by line."""
    images = np.zeros((len(rows), 32, 32, 3), np.uint8)
    for n, row in enumerate(rows):
        for i, value in enumerate(row.tolist()):
            images[n, i % 1024 // 32, i % 32, i // 1024] = value
    return images


def test_images_in_the_order_of_the_files(root: Path) -> None:
    data = load_cifar100(root, 32, 3)
    pixels = data.x_train.all()
    assert type(pixels) is np.ndarray
    assert pixels.flags.c_contiguous
    np.testing.assert_array_equal(pixels[:10], slow_images(cifar_pixels(200)[:10]))
    np.testing.assert_array_equal(data.x_open.all(), slow_images(cifar_pixels(10)))
    assert data.y_train.tolist() == list(range(99, -1, -1)) * 2
    assert data.y_open.tolist() == list(range(10))
    assert data.class_names == tuple(f"name{i}" for i in range(100))


Edit = Callable[[dict[bytes, Any]], object]


def without(key: bytes) -> Edit:
    return lambda held: {k: v for k, v in held.items() if k != key}


def replaced(key: bytes, value: object) -> Edit:
    return lambda held: held | {key: value}


LABELS = list(range(100)) * 2


@pytest.mark.parametrize(
    ("path", "edit", "named"),
    [
        (CIFAR_TRAIN, lambda held: list(held), "dictionary"),
        (CIFAR_TRAIN, without(b"fine_labels"), "no fine_labels"),
        (CIFAR_TRAIN, lambda held: {}, "no data and no fine_labels"),
        (CIFAR_TRAIN, replaced(b"fine_labels", [*LABELS[:-1], 100]), "100 is none"),
        (CIFAR_TRAIN, replaced(b"fine_labels", [-1, *LABELS[1:]]), "-1 is none"),
        (CIFAR_TRAIN, replaced(b"fine_labels", [2**70, *LABELS[1:]]), f"{2**70} is none"),
        (CIFAR_TRAIN, replaced(b"fine_labels", [1, 1, *LABELS[2:100]] * 2), "0 is missing"),
        (CIFAR_TRAIN, replaced(b"fine_labels", ["cat"] * 200), "list of integers"),
        (CIFAR_TRAIN, replaced(b"fine_labels", LABELS[:-1]), "(199, 3072)"),
        (CIFAR_TRAIN, replaced(b"data", cifar_pixels(200).astype(np.float64)), "float64"),
        (CIFAR_TRAIN, replaced(b"data", cifar_pixels(200)[:, :3000]), "(200, 3000)"),
        (CIFAR_TRAIN, replaced(b"data", b"bytes"), "found bytes"),
        (CIFAR_META, without(b"fine_label_names"), "no fine_label_names"),
        (CIFAR_META, replaced(b"fine_label_names", [b"a", b"b"]), "100 different names"),
        (CIFAR_META, replaced(b"fine_label_names", [b"a"] * 100), "100 different names"),
        (CIFAR_META, replaced(b"fine_label_names", list(range(100))), "fine_label_names"),
        (CIFAR_OPEN, replaced(b"labels", [*range(9), 10]), "9 is missing"),
        (CIFAR_OPEN, replaced(b"labels", [0] * 10), "1 is missing"),
    ],
)
def test_wrong_contents_are_named(root: Path, path: str, edit: Edit, named: str) -> None:
    (root / path).write_bytes(pickle.dumps(edit(pickle.loads((root / path).read_bytes()))))
    message = refusal(lambda: load_cifar100(root, 32, 3))
    assert message.startswith(f"{root / path}: ")
    assert named in message
    assert full_check("cifar100", root).problems == [message]
