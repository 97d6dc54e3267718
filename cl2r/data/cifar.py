"""CIFAR-100 to train on, CIFAR-10 to verify on (Krizhevsky 2009): 32 × 32 colour images in pickled batches.

    ROOT/cifar-100-python/train, meta          50,000 images of 100 classes, and the names of the classes
    ROOT/cifar-10-batches-py/test_batch        10,000 images of 10 classes

Class names are not compared: the authors drew the two sets apart (CIFAR-10's trucks are not CIFAR-100's pickup trucks).
"""

from pathlib import Path
from typing import Any

import numpy as np

from cl2r.data.dataset import Archive, Dataset, ImageSet, Labels, MissingDataError
from cl2r.data.folders import dataset_parent
from cl2r.data.images import ArrayImages
from cl2r.data.pickles import load_plain
from cl2r.errors import InputError

SIZE, CHANNELS, CLASSES, OPEN_CLASSES = 32, 3, 100, 10
FOLDER_100, FOLDER_10 = "cifar-100-python", "cifar-10-batches-py"
TRAIN, META, OPEN = f"{FOLDER_100}/train", f"{FOLDER_100}/meta", f"{FOLDER_10}/test_batch"
NAMES = "fine_label_names"


def load_cifar100(root: Path, size: int, channels: int, decode: bool = True) -> ImageSet:
    """Return the training images of CIFAR-100 with fine labels, and the test images of CIFAR-10 as open set."""
    if (size, channels) != (SIZE, CHANNELS):
        asked = f"data size {size} and channels {channels}"
        raise InputError(f"cifar100: {asked}, but its images have size {SIZE} and {CHANNELS} channels; set these")
    folder = dataset_parent(root, FOLDER_100, FOLDER_10)
    for path in (TRAIN, META, OPEN):
        if not (folder / path).is_file():
            raise MissingDataError(f"{folder / path}: no such file")
    x_train, y_train = _read_batch(folder / TRAIN, "fine_labels", CLASSES)
    x_open, y_open = _read_batch(folder / OPEN, "labels", OPEN_CLASSES)
    names = _read_dict(folder / META, NAMES)[NAMES]
    ascii_names = isinstance(names, list) and all(isinstance(name, bytes) and name.isascii() for name in names)
    if not ascii_names or len(names) != CLASSES or len(set(names)) != CLASSES:
        raise _broken(folder / META, f"{NAMES} must be a list of {CLASSES} different names in ASCII, as bytes")
    return ImageSet("cifar100", x_train, y_train, x_open, y_open, tuple(name.decode("ascii") for name in names))


def _read_batch(path: Path, key: str, classes: int) -> tuple[ArrayImages, Labels]:
    """Return images (N, 32, 32, 3) and labels in the order of the file."""
    held = _read_dict(path, "data", key)
    data, labels, width = held["data"], held[key], CHANNELS * SIZE * SIZE
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise _broken(path, f"{key} must be a list of integers")
    wrong = sorted(set(labels) ^ set(range(classes)))
    if wrong:
        fault = "is missing" if 0 <= wrong[0] < classes else "is none of them"
        raise _broken(path, f"{key} must hold all numbers 0..{classes - 1}, but {wrong[0]} {fault}")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (len(labels), width):
        found = f"{data.dtype} of shape {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise _broken(path, f"data must be uint8 of shape ({len(labels)}, {width}), one row per label, found {found}")
    planes = np.asarray(data).reshape(-1, CHANNELS, SIZE, SIZE)
    return ArrayImages(np.ascontiguousarray(planes.transpose(0, 2, 3, 1))), np.array(labels, np.int64)


def _read_dict(path: Path, *keys: str) -> dict[str, Any]:
    """Return the values of some keys, which the published files write as bytes."""
    held = load_plain(path)
    if not isinstance(held, dict):
        raise _broken(path, f"expected a dictionary, found {type(held).__name__}")
    missing = [key for key in keys if key.encode() not in held]
    if missing:
        raise _broken(path, f"no {' and no '.join(missing)} in it")
    return {key: held[key.encode()] for key in keys}


def _broken(path: Path, why: str) -> InputError:
    return InputError(f"{path}: not as published: {why}; get it again")


CIFAR100 = Dataset(
    name="cifar100",
    description="CIFAR-100, verified on CIFAR-10",
    classes=CLASSES,
    images=60_000,
    open_set="10 classes, test images",
    image_shape=(SIZE, SIZE, CHANNELS),
    licence="none stated by its authors",
    load=load_cifar100,
    layout="cifar-100-python/{train,meta} and cifar-10-batches-py/test_batch",
    archives=tuple(
        Archive(file, f"https://www.cs.toronto.edu/~kriz/{file}", digest, target)
        for file, digest, target in (
            ("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", FOLDER_100),
            ("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", FOLDER_10),
        )
    ),
)
