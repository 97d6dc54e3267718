"""Images to index: files below a folder or an address, their ids, labels and sizes; decoded as a model needs them."""

import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from cl2r.data.folders import EXTENSIONS
from cl2r.data.images import LazyImages
from cl2r.errors import InputError
from cl2r.gallery.gallery import BadImage
from cl2r.gallery.model import Images, ModelCard
from cl2r.storage.path import StoragePath, at


@dataclass(frozen=True)
class ImageEntry:
    """One image file."""

    id: str
    """The path below the folder, with slashes, after the prefix if one is given."""
    path: str
    label: str
    """Name of the folder that holds the file; empty directly below the root."""
    bytes: int
    modified: int = 0
    """Time of the last change in nanoseconds; 0 in an object store, which is not asked for it."""


def list_images(root: StoragePath | Path, prefix: str = "") -> list[ImageEntry]:
    """Return every image below `root`, sorted by path. Links to folders are not followed."""
    root = at(root)
    if root.info() is not None:
        raise InputError(f"{root}: a file; give the folder of the images")
    if not root.remote and not root.exists():
        raise InputError(f"{root}: no such folder")
    try:
        found = sorted(file for file in root.walk() if _is_image(file.path))
    except OSError as error:
        if root.remote:
            raise
        raise InputError(f"{error.filename}: cannot be read ({error.strerror})") from error
    if not found:
        raise InputError(f"{root}: no images ({', '.join(sorted(EXTENSIONS))}) in it or below")
    entries = []
    for path, size, modified in found:
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{path!r}: the file name is not UTF-8; rename it") from error
        folder = PurePosixPath(path).parent.name
        entries.append(ImageEntry(prefix + path, path, folder, size, 0 if root.remote else modified))
    return entries


def _is_image(path: str) -> bool:
    """Return whether a file is named like an image, and neither it nor a folder above it is hidden."""
    return not any(part.startswith(".") for part in path.split("/")) and os.path.splitext(path)[1].lower() in EXTENSIONS


@dataclass(frozen=True)
class SourceImages:
    """Encoded images below one root, for `LazyImages`."""

    root: StoragePath
    paths: Sequence[str]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, row: int) -> bytes:
        try:
            return (self.root / self.paths[row]).read_bytes()
        except FileNotFoundError as error:  # a bad image; other OSErrors are raised: the store may answer later
            raise InputError(f"{self.name(row)}: no such file") from error

    def name(self, row: int) -> str:
        return str(self.root / self.paths[row])

    def identity(self) -> Iterator[bytes]:
        return iter(())  # galleries identify images by id


@dataclass(frozen=True)
class OneImage:
    """An encoded image in memory, for `LazyImages`."""

    content: bytes
    label: str

    def __len__(self) -> int:
        return 1

    def read(self, row: int) -> bytes:
        return self.content

    def name(self, row: int) -> str:
        return self.label

    def identity(self) -> Iterator[bytes]:
        return iter(())


def decode(root: str, entries: Sequence[ImageEntry], card: ModelCard) -> tuple[Images, list[BadImage]]:
    """Return the pixels (N, size, size, channels) of the readable images, and the others with the reason."""
    source = SourceImages(at(root), [entry.path for entry in entries])
    lazy = LazyImages(source, card.size, card.channels, card.fit)
    images, bad = [], list[BadImage]()
    for row, entry in enumerate(entries):
        try:
            images.append(lazy.resized(row))
        except InputError as error:
            bad.append((entry.id, str(error).removeprefix(f"{source.name(row)}: ")))
    stacked = np.stack(images) if images else np.empty((0, card.size, card.size, card.channels), np.uint8)
    return stacked, bad


def decode_one(content: bytes, name: str, card: ModelCard) -> Images:
    """Return one image (1, size, size, channels) from its bytes; raise InputError if unreadable or too large."""
    return LazyImages(OneImage(content, name), card.size, card.channels, card.fit).resized(0)[None]


def thumbnail(images: SourceImages | OneImage, side: int) -> bytes:
    """Return the first image as a PNG of at most `side` pixels; raise InputError if it cannot be read."""
    image = LazyImages(images, side, 3).open(0, side)
    image.thumbnail((side, side))
    encoded = io.BytesIO()
    image.save(encoded, "PNG")
    return encoded.getvalue()
