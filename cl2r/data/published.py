"""Stand-ins for the paper's benchmarks: noise of the published sizes, to plan a study where its data is not.

A plan depends on how many images there are, not on what they show. The number of images per class is not published for
every benchmark, so all classes get an equal share.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cl2r.data.dataset import Dataset, ImageSet, Templates
from cl2r.data.images import Images, Pixels, Rows
from cl2r.seeding import numpy_stream
from cl2r.verification import Pairs


@dataclass(frozen=True)
class Published:
    """Sizes of a benchmark; those of its training classes are in its `Dataset`.

    `pairs` and `folds` are those of an official list. IJB-C's 15.7 million are more than a plan has use for: the
    stand-in has a million pairs of different people, many of them repeated, enough for every false accept rate in use.
    """

    train: int
    open: int
    open_classes: int
    templates: int = 0
    pairs: int = 0
    folds: int = 10


SIZES = {
    "cifar100": Published(50_000, 10_000, 10),
    "tiny_imagenet200": Published(100_000, 1_000, 20),
    "imagenet900": Published(1_153_000, 5_000, 100),
    "casia_lfw": Published(494_414, 13_233, 5_749, pairs=6_000),
    "casia_ijbc": Published(494_414, 469_375, 3_531, templates=23_124, pairs=2_000_002, folds=1),
}


@dataclass(frozen=True, eq=False)
class Noise(Images):
    """Random images that take a byte each: all are windows into the same noise, each shifted by one value."""

    count: int
    height: int
    width: int
    channels: int
    in_memory = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.count, self.height, self.width, self.channels

    def decode(self, rows: Rows, threads: int | None = 1) -> Pixels:
        return self.all()[rows]

    def all(self) -> Pixels:
        length = self.height * self.width * self.channels
        values = numpy_stream(0, "noise").integers(0, 256, length + self.count, np.uint8)
        strides = (1, self.width * self.channels, self.channels, 1)
        return np.lib.stride_tricks.as_strided(values, self.shape, strides)

    def identity(self) -> Iterator[bytes]:
        yield f"noise {self.shape}".encode()


@lru_cache(maxsize=2)
def stand_in(entry: Dataset, size: int, channels: int) -> ImageSet | None:
    """Return a data set of noise with the published sizes of `entry`; None if they are not known."""
    if entry.name not in SIZES:
        return None
    sizes = SIZES[entry.name]
    items = sizes.templates or sizes.open
    pairs = templates = None
    if sizes.pairs:
        number = np.arange(sizes.pairs)
        pairs = Pairs(number % items, (number + 1) % items, number // sizes.folds % 2 == 0, number % sizes.folds)
    if sizes.templates:
        templates = Templates(np.arange(sizes.open) % items, np.arange(sizes.open) // items)
    return ImageSet(
        entry.name,
        Noise(sizes.train, size, size, channels),
        np.arange(sizes.train) * entry.classes // sizes.train,
        Noise(sizes.open, size, size, channels),
        np.arange(sizes.open) * sizes.open_classes // sizes.open,
        tuple(map(str, range(entry.classes))),
        pairs,
        templates,
    )
