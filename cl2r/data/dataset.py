"""ImageSet: training images of K classes and open-set images of other classes, as uint8 arrays or what stands for them.

The representation is trained on (x_train, y_train) and judged by verification pairs of (x_open, y_open), whose classes
are never trained on. Every data set is read into this form. What is compared are open images, or templates of them.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cl2r.data.images import LazyImages
from cl2r.errors import InputError
from cl2r.seeding import numpy_stream

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

HISTOGRAM_CHUNK = 2**22  # pixels counted at a time, so that the 8-byte copies of bincount stay small
SAMPLE = 1024  # images that mean and deviation of a lazy set are taken from
SMALLEST_STD = 1 / 255  # one grey level: a constant channel must not divide by zero


@dataclass(frozen=True, eq=False)
class Pairs:
    """Rows of x_open, or templates, to compare, whether they show the same class, and the fold of each pair."""

    query: Labels
    gallery: Labels
    same: npt.NDArray[np.bool_]
    folds: Labels

    def __len__(self) -> int:
        return len(self.query)


@dataclass(frozen=True, eq=False)
class Templates:
    """Sets of open images that are compared as one: their features are pooled, frames of one video first."""

    template: Labels
    """Row 0..M-1 of the template that an open image belongs to."""
    media: Labels
    """The photo or video that it comes from, a number of its own inside its template."""

    def __len__(self) -> int:
        return int(self.template.max()) + 1

    @cached_property
    def weights(self) -> npt.NDArray[np.float64]:
        """Share of every image in the mean over media of the means over their frames."""
        both = np.stack([self.template, self.media])
        medium, frames = np.unique(both, axis=1, return_inverse=True, return_counts=True)[1:]
        owner = np.empty(len(frames), np.int64)
        owner[medium] = self.template
        share: npt.NDArray[np.float64] = 1 / (frames[medium] * np.bincount(owner)[self.template])
        return share


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images (N, H, W, C) with labels 0..K-1 to train on, and open-set images with labels of their own."""

    name: str
    x_train: Images | LazyImages
    y_train: Labels
    x_open: Images | LazyImages
    y_open: Labels
    class_names: tuple[str, ...]
    pairs: Pairs | None = None
    """Official pairs, where the data set has them."""
    templates: Templates | None = None
    """Where templates and not single images are compared; then there are official pairs of them."""
    open_names: tuple[str, ...] = ()
    """Of the open classes, where they are known."""

    def __post_init__(self) -> None:
        _check_part(self.name, "train", self.x_train, self.y_train)
        _check_part(self.name, "open", self.x_open, self.y_open)
        if self.x_train.shape[1:] != self.x_open.shape[1:]:
            sizes = f"{self.x_train.shape[1:]} and {self.x_open.shape[1:]}"
            raise InputError(f"{self.name}: x_train and x_open differ in height, width or channels: {sizes}")
        if len(self.y_open) < 2:
            raise InputError(f"{self.name}: x_open has {len(self.y_open)} images, a pair needs at least 2")
        _check_classes(self.name, self.y_train, len(self.class_names))
        if self.templates is not None:
            _check_templates(self.name, self.templates, len(self.y_open), self.pairs)
        if self.pairs is not None:
            _check_pairs(self.name, self.pairs, self.num_items)

    @property
    def num_items(self) -> int:
        """Rows that pairs speak of: templates, or open images."""
        return len(self.y_open) if self.templates is None else len(self.templates)

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

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of every channel of x_train, pixel values in 0..1."""
        return self.moments[0]

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation of every channel of x_train, pixel values in 0..1, at least one grey level."""
        return self.moments[1]

    @cached_property
    def moments(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """`mean` and `std` of x_train."""
        return _moments(self.x_train)

    @cached_property
    def open_moments(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The same of x_open."""
        return _moments(self.x_open)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of what a stored link depends on: training images and labels, open images, their templates.

        Of images that are not held in memory it knows names and sizes of files.
        """
        parts: list[npt.NDArray[np.generic] | LazyImages] = [self.x_train, self.y_train, self.x_open]
        if self.templates is not None:
            parts += [self.templates.template, self.templates.media]
        digest = hashlib.sha256()
        for part in parts:
            if isinstance(part, LazyImages):
                digest.update(f"moments of {SAMPLE}".encode())
                for piece in part.identity():
                    digest.update(piece)
            else:
                digest.update(f"{part.shape}{part.dtype.str}".encode())
                digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()


def require_disjoint(where: str, train: Iterable[str], open_set: Iterable[str]) -> None:
    """Refuse a class that is both trained on and used for open-set verification."""
    shared = sorted(set(train) & set(open_set))
    if shared:
        raise InputError(
            f"{where}: class {shared[0]!r} is in both the training and the open set ({len(shared)} such), "
            "but verification needs unseen classes: remove it from one, or rename it if it is another class"
        )


def _check_part(name: str, part: str, x: npt.NDArray[np.generic] | LazyImages, y: npt.NDArray[np.generic]) -> None:
    if not isinstance(x, LazyImages) and (x.dtype != np.uint8 or x.ndim != 4 or 0 in x.shape[1:]):
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


def _check_templates(name: str, templates: Templates, num_open: int, pairs: Pairs | None) -> None:
    if not len(templates.template) == len(templates.media) == num_open:
        raise InputError(f"{name}: every one of the {num_open} open images needs a template and a medium")
    if not np.array_equal(np.unique(templates.template), np.arange(len(templates))):
        raise InputError(f"{name}: templates must be numbered 0..{len(templates) - 1}, none of them empty")
    if pairs is None:
        raise InputError(f"{name}: templates need a list of pairs")


def _check_pairs(name: str, pairs: Pairs, num_open: int) -> None:
    if not len(pairs.query) == len(pairs.gallery) == len(pairs.same) == len(pairs.folds) > 0:
        raise InputError(f"{name}: query, gallery, same and folds of the pair list must have one length above 0")
    for rows in (pairs.query, pairs.gallery):
        for row in (int(rows.min()), int(rows.max())):
            if not 0 <= row < num_open:
                raise InputError(f"{name}: the pair list names row {row}, but there are {num_open} to compare")


def _moments(x: Images | LazyImages) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if isinstance(x, LazyImages):  # a sample: to decode all of them takes as long as an epoch
        rows = numpy_stream(0, "moments").permutation(len(x))[:SAMPLE]
        x = x.decode_by_threads(np.sort(rows))
    histogram = _histogram(x)
    share = histogram / histogram.sum(axis=1, keepdims=True)
    level = np.arange(256) / 255
    mean = share @ level
    std = np.sqrt((share * (level[None] - mean[:, None]) ** 2).sum(axis=1))
    return tuple(map(float, mean)), tuple(max(float(s), SMALLEST_STD) for s in std)


def _histogram(x: Images) -> npt.NDArray[np.float64]:
    counts = np.zeros((x.shape[3], 256), np.int64)
    step = max(1, HISTOGRAM_CHUNK // int(np.prod(x.shape[1:])))
    for start in range(0, len(x), step):
        chunk = x[start : start + step]
        for channel in range(x.shape[3]):
            counts[channel] += np.bincount(chunk[..., channel].ravel(), minlength=256)
    return counts.astype(np.float64)
