"""Images of a data set: an array in memory, or compressed images that are decoded when they are needed.

A set of a million JPEGs is an `ImageFiles` or a `RecordFile` (which return bytes by row) inside a `LazyImages`, which
has the shape of the decoded array. Small sets are decoded once into an `ArrayImages`. Both are `Images`.
"""

import abc
import io
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from cl2r.errors import InputError

if TYPE_CHECKING:
    from cl2r.data.dataset import ImageSet

Pixels = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.int64]
Crop = Literal["centre", "whole"]
"""centre: scale the centre square; whole: scale the whole image, squeezed if it is not a square."""

MODES = {1: "L", 3: "RGB"}
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # no others: Pillow starts Ghostscript to read EPS
MOST_PIXELS = 2**28 // 3  # Pillow's own limit, 89 million: up to twice as many it only warns
TOO_MANY = f"more than {MOST_PIXELS / 1e6:.0f} million pixels; scale it down"
WHOLE = 2**16  # no JPEG is larger, so none is decoded at a fraction
IN_MEMORY_BYTES = 2 * 2**30  # sets up to this decoded size are held as one array
BLOCK = 256  # images that one job of the thread pool decodes
STAT_THREADS, STAT_BLOCK = 16, 1024  # a network file system answers many requests at a time
UNDECODABLE = (OSError, SyntaxError, ValueError, TypeError, EOFError, LookupError, ArithmeticError)


class Images(abc.ABC):
    """Images (N, H, W, C) in uint8, decoded already (`in_memory`) or not."""

    in_memory: bool
    crop: Crop = "centre"

    def __len__(self) -> int:
        return self.shape[0]

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the decoded array."""

    @abc.abstractmethod
    def decode(self, rows: Rows, threads: int | None = 1) -> Pixels:
        """Return some rows of the decoded array."""

    @abc.abstractmethod
    def all(self) -> Pixels:
        """Return the decoded array."""

    @abc.abstractmethod
    def identity(self) -> Iterator[bytes | memoryview]:
        """Yield what identifies the images in a fingerprint: pixels, or names and sizes of files."""


@dataclass(frozen=True, eq=False)
class ArrayImages(Images):
    """Images in memory. Raises InputError unless they are uint8 of shape (N, height, width, channels)."""

    pixels: Pixels
    in_memory = True

    def __post_init__(self) -> None:
        x = self.pixels
        if x.dtype != np.uint8 or x.ndim != 4 or 0 in x.shape[1:]:
            found = f"{x.dtype} of shape {x.shape}"
            raise InputError(f"images must be uint8 of shape (N, height, width, channels), found {found}")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        n, height, width, channels = self.pixels.shape
        return n, height, width, channels

    def decode(self, rows: Rows, threads: int | None = 1) -> Pixels:
        return self.pixels[rows]

    def all(self) -> Pixels:
        return self.pixels

    def identity(self) -> Iterator[bytes | memoryview]:
        yield f"{self.shape}{self.pixels.dtype.str}".encode()
        yield np.ascontiguousarray(self.pixels).data


class EncodedImages(Protocol):
    """Compressed images by row."""

    def __len__(self) -> int: ...

    def read(self, row: int) -> bytes:
        """Return the bytes of the image file."""

    def name(self, row: int) -> str:
        """Return the name of the image for messages."""

    def identity(self) -> Iterator[bytes]:
        """Yield what identifies the set without reading its pixels: names and sizes."""


class ImageFiles:
    """One file per image, at paths relative to `root`.

    They are one array of bytes: reading a `str` counts a reference, so every forked process would copy a million.
    """

    def __init__(self, root: Path, paths: Iterable[str]) -> None:
        self.root = root
        self.packed = np.array([path.encode(errors="surrogateescape") for path in paths], np.bytes_)

    def __len__(self) -> int:
        return len(self.packed)

    def path(self, row: int) -> str:
        """Return a path relative to `root`, as the file system gave it even if it is not UTF-8."""
        encoded: bytes = self.packed[row]
        return encoded.decode(errors="surrogateescape")

    def read(self, row: int) -> bytes:
        try:
            return (self.root / self.path(row)).read_bytes()
        except OSError as error:
            raise InputError(
                f"{self.name(row)}: cannot be read ({error.strerror}); make it readable or remove it"
            ) from error

    def name(self, row: int) -> str:
        return str(self.root / self.path(row))

    def identity(self) -> Iterator[bytes]:
        def paths_and_sizes(start: int) -> bytes:
            entries = []
            for path in map(self.path, range(start, min(start + STAT_BLOCK, len(self)))):
                try:
                    entries.append(f"{path}\0{os.stat(os.path.join(self.root, path)).st_size}\0")
                except OSError as error:
                    why = f"cannot be read ({error.strerror}); make it readable or remove it"
                    raise InputError(f"{self.root / path}: {why}") from error
            return "".join(entries).encode(errors="surrogateescape")

        with ThreadPoolExecutor(STAT_THREADS) as pool:
            yield from pool.map(paths_and_sizes, range(0, len(self), STAT_BLOCK))


@dataclass(frozen=True)
class LazyImages(Images):
    """Compressed images that are decoded to (size, size, channels) when they are needed."""

    encoded: EncodedImages
    size: int
    channels: int
    crop: Crop = "centre"
    in_memory = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.encoded), self.size, self.size, self.channels

    def identity(self) -> Iterator[bytes]:
        yield f"{self.shape}{self.crop}".encode()
        yield from self.encoded.identity()

    def open(self, row: int, at_least: int) -> Image.Image:
        """Return an image; a JPEG at the smallest fraction of its size that has `at_least` pixels per side."""
        name, mode = self.encoded.name(row), MODES[self.channels]
        content = self.encoded.read(row)  # outside of try: an error of a store does not make the image a bad one
        try:
            image = Image.open(io.BytesIO(content), formats=FORMATS)
            if image.width * image.height > MOST_PIXELS:  # a few bytes can stand for any number of equal pixels
                raise InputError(f"{name}: {image.width} × {image.height} pixels, {TOO_MANY}")
            image.draft(mode, (at_least, at_least))
            if image.mode == "F" or image.mode.startswith("I"):  # Pillow would clip these to white, not scale them
                raise InputError(f"{name}: more than 8 bits per channel (mode {image.mode}); save it with 8 bits")
            return image.convert(mode)
        except InputError:
            raise
        except Image.DecompressionBombError as error:  # Pillow itself refuses twice as many
            raise InputError(f"{name}: {TOO_MANY}") from error
        except (*UNDECODABLE, struct.error, zlib.error) as error:  # what Pillow raises for damaged images
            why = "of no known format" if isinstance(error, UnidentifiedImageError) else error
            raise InputError(f"{name}: not a readable image; replace or remove it ({why})") from error

    def resized(self, row: int) -> Pixels:
        """Return one row of the decoded array."""
        square = resized(self.open(row, self.size), self.size, self.crop)
        return np.asarray(square, np.uint8).reshape(self.shape[1:])

    def decode(self, rows: Rows, threads: int | None = 1) -> Pixels:
        images = np.empty((len(rows), *self.shape[1:]), np.uint8)

        def decode_block(start: int) -> None:
            for place, row in enumerate(rows[start : start + BLOCK].tolist(), start):
                images[place] = self.resized(row)

        starts = range(0, len(rows), BLOCK)
        if threads == 1:
            for start in starts:
                decode_block(start)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(decode_block, starts))
        return images

    def all(self) -> Pixels:
        return self.decode(np.arange(len(self)), threads=None)


def images_of(encoded: EncodedImages, size: int, channels: int, crop: Crop = "centre", decode: bool = True) -> Images:
    """Return decoded images, or lazy ones if they would not fit into memory or if `decode` is False."""
    lazy = LazyImages(encoded, size, channels, crop)
    return ArrayImages(lazy.all()) if decode and np.prod(lazy.shape) <= IN_MEMORY_BYTES else lazy


def resized(image: Image.Image, size: int, crop: Crop) -> Image.Image:
    """Scale an image to `size` × `size` by an antialiased bilinear filter."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side) if crop == "centre" else None
    return image if image.size == (size, size) else image.resize((size, size), Image.Resampling.BILINEAR, box=box)


def write_open_images(dataset: "ImageSet", folder: Path) -> int:
    """Write the open images as `folder`/<class>/<number>.png, exactly as models see them; return their number."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder}: not empty; give a folder of its own")
    names = dataset.open_names or tuple(f"class{label:04d}" for label in range(int(dataset.y_open.max()) + 1))
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
    count, step = len(dataset.y_open), 4 * BLOCK
    for start in range(0, count, step):
        rows = np.arange(start, min(start + step, count))
        for row, image in zip(rows.tolist(), dataset.x_open.decode(rows, threads=None), strict=True):
            picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
            picture.save(folder / names[dataset.y_open[row]] / f"{row:06d}.png")
    return count
