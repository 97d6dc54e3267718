"""CIFAR-100 to train on, CIFAR-10 to verify on (Krizhevsky 2009): 32 × 32 colour images in pickled batches.

    ROOT/cifar-100-python/train, meta          50000 images of 100 classes, and the names of these
    ROOT/cifar-10-batches-py/test_batch        10000 images of 10 classes

The two data sets share no class: their authors drew them apart (CIFAR-10's trucks are no pickup trucks, which are a
class of CIFAR-100), so that no names are compared here.
"""

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cl2r.data.check import Check, home
from cl2r.data.dataset import Images, ImageSet, Labels
from cl2r.data.safe_pickle import load_plain
from cl2r.errors import InputError

SIZE, CHANNELS = 32, 3
FOLDER_100, FOLDER_10 = "cifar-100-python", "cifar-10-batches-py"
META, META_MD5 = f"{FOLDER_100}/meta", "7973b15100ade9c7d40fb424638fde48"
NAMES = "fine_label_names"


@dataclass(frozen=True)
class Batch:
    """A file of images with labels 0..classes-1."""

    path: str
    md5: str
    labels: str
    classes: int


TRAIN = Batch(f"{FOLDER_100}/train", "16019d7e3df5f24257cddd939b257f8d", "fine_labels", 100)
OPEN = Batch(f"{FOLDER_10}/test_batch", "40351d587109b95175f43aff81a1287e", "labels", 10)


def load_cifar100(root: Path, size: int, channels: int) -> ImageSet:
    """Training images of CIFAR-100 with their fine labels, and test images of CIFAR-10 as open set."""
    if (size, channels) != (SIZE, CHANNELS):
        asked = f"data size {size} and channels {channels}"
        raise InputError(f"cifar100: {asked}, but its images have size {SIZE} and {CHANNELS} channels; say so")
    folder = home(root, FOLDER_100, FOLDER_10)
    for path in (TRAIN.path, META, OPEN.path):
        if not (folder / path).is_file():
            hint = f"`cl2r datasets --check cifar100 {root}` says how to get it"
            raise InputError(f"{_missing(folder / path)}; {hint}")
    x_train, y_train = _read_batch(folder, TRAIN)
    x_open, y_open = _read_batch(folder, OPEN)
    return ImageSet("cifar100", x_train, y_train, x_open, y_open, _read_names(folder / META))


def check_cifar100(root: Path) -> Check:
    """Whether the three files are there and whole, and the published ones."""
    check, folder = Check(), home(root, FOLDER_100, FOLDER_10)
    for path, md5 in ((TRAIN.path, TRAIN.md5), (META, META_MD5), (OPEN.path, OPEN.md5)):
        if not (folder / path).is_file():
            check.wrong.append(_missing(folder / path))
            continue
        held = check.attempt(partial(_contents, folder, path))
        if held is not None:
            check.found.append(f"{folder / path}: {held}, {_origin(folder / path, md5)}")
    return check


def _missing(path: Path) -> str:
    return f"{path}: no such file"


def _contents(folder: Path, path: str) -> str:
    if path == META:
        return f"{len(_read_names(folder / META))} class names"
    batch = TRAIN if path == TRAIN.path else OPEN
    return f"{len(_read_batch(folder, batch)[1])} images of {batch.classes} classes"


def _origin(path: Path, md5: str) -> str:
    with path.open("rb") as file:
        same = hashlib.file_digest(file, "md5").hexdigest() == md5
    return "the published file" if same else "differs from the published file"


def _read_batch(folder: Path, batch: Batch) -> tuple[Images, Labels]:
    """Images (N, 32, 32, 3) and labels in the order of the file."""
    path = folder / batch.path
    held = _read_dict(path, "data", batch.labels)
    labels = _labels(path, batch, held[batch.labels])
    data, width = held["data"], CHANNELS * SIZE * SIZE
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (len(labels), width):
        found = f"{data.dtype} of shape {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise _broken(path, f"data must be uint8 of shape ({len(labels)}, {width}), one row a label, found {found}")
    planes = data.reshape(-1, CHANNELS, SIZE, SIZE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels


def _labels(path: Path, batch: Batch, labels: Any) -> Labels:
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise _broken(path, f"{batch.labels} must be a list of integers")
    outside = [label for label in labels if not 0 <= label < batch.classes]
    if outside:
        raise _broken(path, f"{batch.labels} holds {outside[0]}, expected 0..{batch.classes - 1}")
    lacking = sorted(set(range(batch.classes)) - set(labels))
    if lacking:
        raise _broken(path, f"no image has label {lacking[0]} ({len(lacking)} of {batch.classes} labels lacking)")
    return np.array(labels, np.int64)


def _read_names(path: Path) -> tuple[str, ...]:
    names = _read_dict(path, NAMES)[NAMES]
    if not isinstance(names, list) or not all(isinstance(name, bytes) and name.isascii() for name in names):
        raise _broken(path, f"{NAMES} must be a list of names in ASCII, as bytes")
    if len(names) != TRAIN.classes or len(set(names)) != len(names):
        raise _broken(path, f"{NAMES} must be {TRAIN.classes} different names, found {len(set(names))}")
    return tuple(name.decode("ascii") for name in names)


def _read_dict(path: Path, *keys: str) -> dict[str, Any]:
    """The values of some keys, which the published files write as bytes."""
    held = load_plain(path)
    if not isinstance(held, dict):
        raise _broken(path, f"expected a dictionary, found {type(held).__name__}")
    missing = [key for key in keys if key.encode() not in held]
    if missing:
        raise _broken(path, f"no {' and no '.join(missing)} in it")
    return {key: held[key.encode()] for key in keys}


def _broken(path: Path, why: str) -> InputError:
    return InputError(f"{path}: not as published: {why}; get it again")
