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
Moments = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of every channel, pixel values in 0..1; a deviation is at least one grey level."""

HISTOGRAM_CHUNK = 2**22  # pixels counted at a time, so that the 8-byte copies of bincount stay small
SAMPLE = 1024  # images that mean and deviation of a lazy set are computed from
SMALLEST_STD = 1 / 255  # one grey level: a constant channel must not divide by zero


class MissingDataError(InputError):
    """A data set, or a part of it, is not below the given root."""


@dataclass(frozen=True)
class Archive:
    """A published file that `cl2r datasets download` fetches.

    `target` is the folder that it unpacks to, or the file itself; `or_at` are other places where a user may have it.
    """

    file: str
    url: str
    digest: str
    target: str
    or_at: tuple[str, ...] = ()
    algorithm: Literal["md5", "sha256"] = "md5"


@dataclass(frozen=True)
class Dataset:
    """A data set that is known by name: what it is, how to get it, how to load it.

    `classes` (to train on) and `images` (training and open ones) are the published numbers; `about` says that `images`
    is rounded. `load` takes root, size, channels and decode; with decode=False images are listed, not decoded. It
    raises InputError. `layout` is what is expected below the root, empty if the data set comes with its package.
    `how_to_get` tells where to get what is not among the archives. `uncropped` is the number of pixels per side of the
    published photographs, if papers use aligned crops of them.
    """

    name: str
    description: str
    classes: int
    images: int
    open_set: str
    image_shape: tuple[int, int, int]
    licence: str
    load: Callable[[Path, int, int, bool], "ImageSet"]
    layout: str = ""
    archives: tuple[Archive, ...] = ()
    how_to_get: str = ""
    about: bool = False
    uncropped: int = 0

    @property
    def images_text(self) -> str:
        """Return the published number of images as text."""
        return f"{'about ' if self.about else ''}{self.images:,} images"

    @property
    def instructions(self) -> str:
        """Return how to get the data set, in one line."""
        fetched = f"`cl2r datasets download {self.name} DIR` fetches it" if self.archives else ""
        return "; ".join(filter(None, [fetched, self.how_to_get])) or "it comes with its package"


@dataclass(frozen=True, eq=False)
class Templates:
    """Sets of open images that are compared as one: their features are pooled, frames of one video first.

    Open image i belongs to `template[i]` in 0..M-1 and comes from photo or video `media[i]` of that template.
    """

    template: Labels
    media: Labels

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

    `pairs` are official ones, if the data set has any. `templates` are set if they, not single images, are compared.
    Names of open classes may be unknown. `notes` is what `cl2r datasets check` shall also tell.
    Raises InputError if images, labels, templates and pairs do not fit each other.
    """

    name: str
    x_train: Images
    y_train: Labels
    x_open: Images
    y_open: Labels
    class_names: tuple[str, ...]
    pairs: Pairs | None = None
    templates: Templates | None = None
    open_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if fault := self._fault():
            raise InputError(f"{self.name}: {fault}")

    def _fault(self) -> str | None:
        """Return what does not fit, or None."""
        for part, x, y in (("train", self.x_train, self.y_train), ("open", self.x_open, self.y_open)):
            if y.dtype != np.int64 or y.ndim != 1:
                return f"y_{part} must be int64 of shape (N,), found {y.dtype} of shape {y.shape}"
            if len(x) != len(y):
                return f"x_{part} has {len(x)} images but y_{part} has {len(y)} labels"
        train, shown, count = self.x_train.shape[1:], self.x_open.shape[1:], len(self.y_open)
        if train != shown:
            return (
                f"x_train and x_open differ in height, width or channels: {train} and {shown}; give both the same shape"
            )
        if count < 2:
            return f"x_open has {count} images, a pair needs at least 2; add images of classes that are not trained on"
        if self.num_classes < 2:
            return (
                f"{self.num_classes} training classes, at least 2 are needed; add images of other classes to train on"
            )
        if not np.array_equal(np.unique(self.y_train), np.arange(self.num_classes)):
            return f"y_train must hold every label 0..{self.num_classes - 1} of its class names"
        templates, pairs = self.templates, self.pairs
        if templates is not None:
            if not len(templates.template) == len(templates.media) == count:
                return f"every one of the {count} open images needs a template and a medium"
            if not np.array_equal(np.unique(templates.template), np.arange(len(templates))):
                return f"templates must be numbered 0..{len(templates) - 1}, none of them empty"
        if pairs is None:
            return None if templates is None else "templates need a list of pairs"
        if not len(pairs.query) == len(pairs.gallery) == len(pairs.same) == len(pairs.folds) > 0:
            return "query, gallery, same and folds of the pairs must have one length above 0"
        ends = [int(row) for rows in (pairs.query, pairs.gallery) for row in (rows.min(), rows.max())]
        outside = [row for row in ends if not 0 <= row < self.num_items]
        if outside:
            return f"the pair list names row {outside[0]}, but there are {self.num_items} to compare"
        return None

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

    @cached_property
    def moments(self) -> Moments:
        """Return the moments of x_train."""
        return _moments(self.x_train)

    @cached_property
    def open_moments(self) -> Moments:
        """Return the moments of x_open."""
        return _moments(self.x_open)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of what a stored link depends on: training images and labels, open images, templates."""
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
        both = f"class {shared[0]!r} is in both the training and the open set ({len(shared)} such)"
        raise InputError(f"{where}: {both}, but verification needs unseen classes; remove it from one, or rename it")


def _moments(x: Images) -> Moments:
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
