"""Images that lie compressed on disk: decoded all at once where they fit into memory, else row by row when asked for.

A set of a million JPEGs is an `ImageFiles` or a `RecordFile` (something that gives bytes by row) inside a
`LazyImages`, which has the shape of the array it stands for. Small sets become that array.
"""

import io
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from cl2r.data.paths import Paths
from cl2r.errors import InputError

Pixels = npt.NDArray[np.uint8]
Fit = Literal["centre", "whole"]
"""centre: the centre square, scaled; whole: the whole image, squeezed where it is not a square."""

MODES = {1: "L", 3: "RGB"}
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow would try others too, whatever a file is called: to read EPS it starts Ghostscript."""
MOST_PIXELS = 2**28 // 3
"""Pillow's own limit, 89 million, above which it only warns until twice as many."""
IN_MEMORY_BYTES = 2 * 2**30
"""Decoded sets up to this size are held as one array."""
BLOCK = 256  # images decoded by one job of the thread pool
THREADS = 16  # that ask a file system for sizes
SIZES = 1024  # asked for by one job of these

UNDECODABLE = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    EOFError,
    LookupError,
    ArithmeticError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


class EncodedImages(Protocol):
    """Compressed images by row."""

    def __len__(self) -> int:
        """How many."""

    def read(self, row: int) -> bytes:
        """The file's bytes."""

    def name(self, row: int) -> str:
        """How a message names the image."""

    def identity(self) -> Iterator[bytes]:
        """What tells this set from another without reading its pixels: names and sizes."""


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """One file an image."""

    root: Path
    paths: Sequence[str]
    """Below `root`; held as `Paths`."""

    def __post_init__(self) -> None:
        if not isinstance(self.paths, Paths):
            object.__setattr__(self, "paths", Paths.of(self.paths))

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, row: int) -> bytes:
        """The file's bytes."""
        try:
            return (self.root / self.paths[row]).read_bytes()
        except OSError as error:
            raise self._unreadable(row, error) from error

    def name(self, row: int) -> str:
        """Its path."""
        return str(self.root / self.paths[row])

    def identity(self) -> Iterator[bytes]:
        """Path below the root and size of every file."""
        with ThreadPoolExecutor(THREADS) as pool:  # a file system over a network answers many at a time
            yield from pool.map(self._entries, range(0, len(self), SIZES))

    def _entries(self, start: int) -> bytes:
        return b"".join(map(self._entry, range(start, min(start + SIZES, len(self)))))

    def _entry(self, row: int) -> bytes:
        path = self.paths[row]
        try:
            size = os.stat(os.path.join(self.root, path)).st_size
        except OSError as error:
            raise self._unreadable(row, error) from error
        return f"{path}\0{size}\0".encode(errors="surrogateescape")

    def _unreadable(self, row: int, error: OSError) -> InputError:
        return InputError(f"{self.name(row)}: cannot be read ({error.strerror})")


@dataclass(frozen=True)
class LazyImages:
    """Stands for the array (N, size, size, channels) of decoded images."""

    encoded: EncodedImages
    size: int
    channels: int
    fit: Fit = "centre"

    def __len__(self) -> int:
        return len(self.encoded)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """That of the array."""
        return len(self), self.size, self.size, self.channels

    @property
    def nbytes(self) -> int:
        """That of the array."""
        return int(np.prod(self.shape))

    def identity(self) -> Iterator[bytes]:
        """What a fingerprint hashes in place of pixels."""
        yield f"{self.shape}{self.fit}".encode()
        yield from self.encoded.identity()

    def open(self, row: int, at_least: int) -> Image.Image:
        """The image, 8 bits a channel; a JPEG is decoded at the smallest fraction that has `at_least` pixels a side."""
        name, mode = self.encoded.name(row), MODES[self.channels]
        content = self.encoded.read(row)  # not below: a store that does not answer is no bad image
        try:
            image = Image.open(io.BytesIO(content), formats=FORMATS)
            refuse_huge(name, image.size)
            image.draft(mode, (at_least, at_least))
            _refuse_deep(name, image.mode)
            return image.convert(mode)
        except InputError:
            raise
        except Image.DecompressionBombError as error:  # Pillow itself refuses twice as many
            raise InputError(f"{name}: more than {MOST_PIXELS / 1e6:.0f} million pixels; scale it down") from error
        except UNDECODABLE as error:
            why = "of no known format" if isinstance(error, UnidentifiedImageError) else error
            raise InputError(f"{name}: not a readable image, replace or remove it ({why})") from error

    def decode(self, rows: npt.NDArray[np.int64]) -> Pixels:
        """Some rows of the array."""
        images = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for place, row in enumerate(rows.tolist()):
            images[place] = self.fitted(row)
        return images

    def fitted(self, row: int) -> Pixels:
        """One row of the array."""
        square = fitted(self.open(row, self.size), self.size, self.fit)
        return np.asarray(square, np.uint8).reshape(self.shape[1:])

    def all(self) -> Pixels:
        """The array."""
        return self.decode_by_threads(np.arange(len(self)))

    def decode_by_threads(self, rows: npt.NDArray[np.int64]) -> Pixels:
        """`decode`, on all cores."""
        images = np.empty((len(rows), *self.shape[1:]), np.uint8)

        def decode_block(start: int) -> None:
            images[start : start + BLOCK] = self.decode(rows[start : start + BLOCK])

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(decode_block, range(0, len(rows), BLOCK)):
                pass
        return images


def images_of(encoded: EncodedImages, size: int, channels: int, fit: Fit = "centre") -> Pixels | LazyImages:
    """The decoded array, or what stands for it if it would not fit into memory."""
    lazy = LazyImages(encoded, size, channels, fit)
    return lazy.all() if lazy.nbytes <= IN_MEMORY_BYTES else lazy


def fitted(image: Image.Image, size: int, fit: Fit) -> Image.Image:
    """`size` × `size` by an antialiased bilinear filter."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side) if fit == "centre" else None
    return image if image.size == (size, size) else image.resize((size, size), Image.Resampling.BILINEAR, box=box)


def refuse_huge(name: str, size: tuple[int, int]) -> None:
    """Before anything is decoded: a few bytes may stand for any number of equal pixels."""
    if size[0] * size[1] > MOST_PIXELS:
        raise InputError(
            f"{name}: {size[0]} × {size[1]} pixels, more than {MOST_PIXELS / 1e6:.0f} million; scale it down"
        )


def _refuse_deep(name: str, mode: str) -> None:
    """Pillow would clip such images to white instead of scaling them."""
    if mode == "F" or mode.startswith("I"):
        raise InputError(f"{name}: more than 8 bits a channel (mode {mode}), save it with 8 bits")
