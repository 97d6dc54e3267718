"""ImageSet: training images of K classes and open-set images of other classes, all in memory as uint8.

The representation is trained on (x_train, y_train) and judged by verification pairs of (x_open, y_open),
whose classes are never trained on. Folders, npz files and the embedded icons are all read into this form.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cl2r.errors import InputError

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

HISTOGRAM_CHUNK = 2**22  # pixels counted at a time, so that the 8-byte copies of bincount stay small
SMALLEST_STD = 1 / 255  # one grey level: a constant channel must not divide by zero


@dataclass(frozen=True, eq=False)
class Pairs:
    """Rows of x_open to compare, whether they show the same class, and the fold of each pair."""

    query: Labels
    gallery: Labels
    same: npt.NDArray[np.bool_]
    folds: Labels

    def __len__(self) -> int:
        return len(self.query)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images (N, H, W, C) with labels 0..K-1 to train on, and open-set images with labels of their own."""

    name: str
    x_train: Images
    y_train: Labels
    x_open: Images
    y_open: Labels
    class_names: tuple[str, ...]
    pairs: Pairs | None = None
    """Official pairs, where the data set has them."""

    def __post_init__(self) -> None:
        _check_part(self.name, "train", self.x_train, self.y_train)
        _check_part(self.name, "open", self.x_open, self.y_open)
        if self.x_train.shape[1:] != self.x_open.shape[1:]:
            sizes = f"{self.x_train.shape[1:]} and {self.x_open.shape[1:]}"
            raise InputError(f"{self.name}: x_train and x_open differ in height, width or channels: {sizes}")
        if len(self.y_open) < 2:
            raise InputError(f"{self.name}: x_open has {len(self.y_open)} images, a pair needs at least 2")
        _check_classes(self.name, self.y_train, len(self.class_names))
        if self.pairs is not None:
            _check_pairs(self.name, self.pairs, len(self.y_open))

    @property
    def num_classes(self) -> int:
        """K, the number of training classes."""
        return len(self.class_names)

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        return int(self.x_train.shape[3])

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return int(self.x_train.shape[1]), int(self.x_train.shape[2])

    @cached_property
    def mean(self) -> tuple[float, ...]:
        """Mean of every channel of x_train, pixel values in 0..1."""
        return tuple(float(m) for m in self._moments[0])

    @cached_property
    def std(self) -> tuple[float, ...]:
        """Standard deviation of every channel of x_train, pixel values in 0..1, at least one grey level."""
        return tuple(max(float(s), SMALLEST_STD) for s in self._moments[1])

    @cached_property
    def _moments(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        histogram = _histogram(self.x_train)
        share = histogram / histogram.sum(axis=1, keepdims=True)
        level = np.arange(256) / 255
        mean = share @ level
        variance = (share * (level[None] - mean[:, None]) ** 2).sum(axis=1)
        return mean, np.sqrt(variance)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of what a stored link depends on: training images and labels, and the open images to extract."""
        arrays: list[npt.NDArray[np.generic]] = [self.x_train, self.y_train, self.x_open]
        digest = hashlib.sha256()
        for array in arrays:
            digest.update(f"{array.shape}{array.dtype.str}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def require_disjoint(where: str, train: Iterable[str], open_set: Iterable[str]) -> None:
    """Refuse a class that is both trained on and used for open-set verification."""
    shared = sorted(set(train) & set(open_set))
    if shared:
        raise InputError(
            f"{where}: class {shared[0]!r} is in both the training and the open set ({len(shared)} such), "
            "but verification needs unseen classes: remove it from one, or rename it if it is another class"
        )


def _check_part(name: str, part: str, x: npt.NDArray[np.generic], y: npt.NDArray[np.generic]) -> None:
    if x.dtype != np.uint8 or x.ndim != 4 or 0 in x.shape[1:]:
        found = f"{x.dtype} of shape {x.shape}"
        raise InputError(f"{name}: x_{part} must be uint8 of shape (N, height, width, channels), found {found}")
    if y.dtype != np.int64 or y.ndim != 1:
        raise InputError(f"{name}: y_{part} must be int64 of shape (N,), found {y.dtype} of shape {y.shape}")
    if len(x) != len(y):
        raise InputError(f"{name}: x_{part} has {len(x)} images but y_{part} has {len(y)} labels")


def _check_classes(name: str, y_train: Labels, num_classes: int) -> None:
    if num_classes < 2:
        raise InputError(f"{name}: {num_classes} training classes, at least 2 are needed")
    if not np.array_equal(np.unique(y_train), np.arange(num_classes)):
        raise InputError(f"{name}: y_train must hold every label 0..{num_classes - 1} of its class names")


def _check_pairs(name: str, pairs: Pairs, num_open: int) -> None:
    if not len(pairs.query) == len(pairs.gallery) == len(pairs.same) == len(pairs.folds) > 0:
        raise InputError(f"{name}: query, gallery, same and folds of the pair list must have one length above 0")
    rows = np.concatenate([pairs.query, pairs.gallery])
    if rows.min() < 0 or rows.max() >= num_open:
        raise InputError(f"{name}: the pair list names row {rows.max()}, but x_open has {num_open} images")


def _histogram(x: Images) -> npt.NDArray[np.float64]:
    counts = np.zeros((x.shape[3], 256), np.int64)
    step = max(1, HISTOGRAM_CHUNK // int(np.prod(x.shape[1:])))
    for start in range(0, len(x), step):
        chunk = x[start : start + step]
        for channel in range(x.shape[3]):
            counts[channel] += np.bincount(chunk[..., channel].ravel(), minlength=256)
    return counts.astype(np.float64)
