"""ImageSet, the form that every data set is read into, and Dataset, the entry that describes one.

A representation is trained on (x_train, y_train) and judged by verification pairs of (x_open, y_open), whose classes
are never trained on. What is compared are open images, or templates of them.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from cl2r.data.images import Images
from cl2r.errors import InputError
from cl2r.seeding import numpy_stream
from cl2r.verification import Pairs

Labels = npt.NDArray[np.int64]

HISTOGRAM_CHUNK = 2**22  # pixels counted at a time, so that the 8-byte copies of bincount stay small
SAMPLE = 1024  # images that mean and deviation of a lazy set are computed from
SMALLEST_STD = 1 / 255  # one grey level: a constant channel must not divide by zero


class MissingDataError(InputError):
    """A data set, or a part of it, is not below the given root."""


@dataclass(frozen=True)
class Archive:
    """A published file that `cl2r datasets download` fetches."""

    file: str
    """Its name, which the URL need not contain."""
    url: str
    digest: str
    target: str
    """The folder that it unpacks to, or the file itself, below the root."""
    or_at: tuple[str, ...] = ()
    """Other places below the root where a user may have it."""
    algorithm: Literal["md5", "sha256"] = "md5"

    @property
    def places(self) -> tuple[str, ...]:
        """All places below the root where it may be."""
        return self.target, *self.or_at

    def found(self, root: Path) -> Path | None:
        """Return where it is below `root`, or None."""
        return next((root / place for place in self.places if (root / place).exists()), None)


@dataclass(frozen=True)
class Dataset:
    """A data set that is known by name: what it is, how to get it, how to load it. Counts are the published ones."""

    name: str
    description: str
    classes: int
    """Classes to train on."""
    images: int
    """Training and open images."""
    open_set: str
    image_shape: tuple[int, int, int]
    licence: str
    load: Callable[[Path, int, int, bool], "ImageSet"]
    """Takes root, size, channels and decode; with decode=False images are listed, not decoded. Raises InputError."""
    layout: str = ""
    """What is expected below the root; empty if the data set comes with its package."""
    archives: tuple[Archive, ...] = ()
    how_to_get: str = ""
    """Where to get what is not among the archives."""

    @property
    def instructions(self) -> str:
        """How to get the data set, in one line."""
        fetched = f"`cl2r datasets download {self.name} DIR` fetches it" if self.archives else ""
        return "; ".join(filter(None, [fetched, self.how_to_get])) or "it comes with its package"


@dataclass(frozen=True, eq=False)
class Templates:
    """Sets of open images that are compared as one: their features are pooled, frames of one video first."""

    template: Labels
    """Row 0..M-1 of the template that an open image belongs to."""
    media: Labels
    """Number of the photo or video that the image comes from, unique inside its template."""

    def __len__(self) -> int:
        return int(self.template.max()) + 1

    @cached_property
    def weights(self) -> npt.NDArray[np.float64]:
        """Weight of every image in the mean over media of the means over their frames."""
        both = np.stack([self.template, self.media])
        medium, frames = np.unique(both, axis=1, return_inverse=True, return_counts=True)[1:]
        owner = np.empty(len(frames), np.int64)
        owner[medium] = self.template
        share: npt.NDArray[np.float64] = 1 / (frames[medium] * np.bincount(owner)[self.template])
        return share


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images (N, H, W, C) with labels 0..K-1 to train on, and open images with labels of their own.

    Raises InputError if images, labels, templates and pairs do not fit each other.
    """

    name: str
    x_train: Images
    y_train: Labels
    x_open: Images
    y_open: Labels
    class_names: tuple[str, ...]
    pairs: Pairs | None = None
    """Official pairs, if the data set has any."""
    templates: Templates | None = None
    """Set if templates, not single images, are compared; they need official pairs."""
    open_names: tuple[str, ...] = ()
    """Names of the open classes, if they are known."""

    def __post_init__(self) -> None:
        for part, x, y in (("train", self.x_train, self.y_train), ("open", self.x_open, self.y_open)):
            if y.dtype != np.int64 or y.ndim != 1:
                found = f"{y.dtype} of shape {y.shape}"
                raise InputError(f"{self.name}: y_{part} must be int64 of shape (N,), found {found}")
            if len(x) != len(y):
                raise InputError(f"{self.name}: x_{part} has {len(x)} images but y_{part} has {len(y)} labels")
        if self.x_train.shape[1:] != self.x_open.shape[1:]:
            sizes = f"{self.x_train.shape[1:]} and {self.x_open.shape[1:]}"
            raise InputError(f"{self.name}: x_train and x_open differ in height, width or channels: {sizes}")
        if len(self.y_open) < 2:
            raise InputError(f"{self.name}: x_open has {len(self.y_open)} images, a pair needs at least 2")
        if self.num_classes < 2:
            raise InputError(f"{self.name}: {self.num_classes} training classes, at least 2 are needed")
        if not np.array_equal(np.unique(self.y_train), np.arange(self.num_classes)):
            raise InputError(f"{self.name}: y_train must hold every label 0..{self.num_classes - 1} of its class names")
        self._check_pairs()

    def _check_pairs(self) -> None:
        templates, pairs, count = self.templates, self.pairs, len(self.y_open)
        if templates is not None:
            if not len(templates.template) == len(templates.media) == count:
                raise InputError(f"{self.name}: every one of the {count} open images needs a template and a medium")
            if not np.array_equal(np.unique(templates.template), np.arange(len(templates))):
                raise InputError(f"{self.name}: templates must be numbered 0..{len(templates) - 1}, none of them empty")
            if pairs is None:
                raise InputError(f"{self.name}: templates need a list of pairs")
        if pairs is None:
            return
        if not len(pairs.query) == len(pairs.gallery) == len(pairs.same) == len(pairs.folds) > 0:
            raise InputError(f"{self.name}: query, gallery, same and folds of the pairs must have one length above 0")
        for rows in (pairs.query, pairs.gallery):
            for row in (int(rows.min()), int(rows.max())):
                if not 0 <= row < self.num_items:
                    there = f"there are {self.num_items} to compare"
                    raise InputError(f"{self.name}: the pair list names row {row}, but {there}")

    @property
    def num_items(self) -> int:
        """Number of rows that pairs refer to: templates, or open images."""
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
        """`mean` and `std` of x_open."""
        return _moments(self.x_open)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of what a stored link depends on: training images and labels, open images, templates.

        Images that are not held in memory are identified by names and sizes of their files.
        """
        digest = hashlib.sha256()
        parts: list[Images | Labels] = [self.x_train, self.y_train, self.x_open]
        if self.templates is not None:
            parts += [self.templates.template, self.templates.media]
        for part in parts:
            if isinstance(part, np.ndarray):
                digest.update(f"{part.shape}{part.dtype.str}".encode())
                digest.update(np.ascontiguousarray(part).data)
            else:
                digest.update(b"" if part.in_memory else f"moments of {SAMPLE}".encode())
                for piece in part.identity():
                    digest.update(piece)
        return digest.hexdigest()


def require_disjoint(where: str, train: Iterable[str], open_set: Iterable[str]) -> None:
    """Raise InputError if a class is both trained on and used for open-set verification."""
    shared = sorted(set(train) & set(open_set))
    if shared:
        raise InputError(
            f"{where}: class {shared[0]!r} is in both the training and the open set ({len(shared)} such), "
            "but verification needs unseen classes: remove it from one, or rename it if it is another class"
        )


def _moments(x: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if x.in_memory:
        pixels = x.all()
    else:  # a sample: decoding all images takes as long as an epoch
        rows = numpy_stream(0, "moments").permutation(len(x))[:SAMPLE]
        pixels = x.decode(np.sort(rows), threads=None)
    histogram = np.zeros((x.shape[3], 256), np.int64)
    step = max(1, HISTOGRAM_CHUNK // int(np.prod(x.shape[1:])))
    for start in range(0, len(pixels), step):
        chunk = pixels[start : start + step]
        for channel in range(x.shape[3]):
            histogram[channel] += np.bincount(chunk[..., channel].ravel(), minlength=256)
    share = histogram / histogram.sum(axis=1, keepdims=True)
    level = np.arange(256) / 255
    mean = share @ level
    std = np.sqrt((share * (level[None] - mean[:, None]) ** 2).sum(axis=1))
    return tuple(map(float, mean)), tuple(max(float(s), SMALLEST_STD) for s in std)
