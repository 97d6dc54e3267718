"""Images to index: files below a folder or an address, one row per image, decoded as a model needs them."""

import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd

from cl2r.data.folders import EXTENSIONS
from cl2r.data.images import LazyImages
from cl2r.errors import InputError
from cl2r.gallery.gallery import BadImage
from cl2r.gallery.model import Images, ModelCard
from cl2r.storage.path import StoragePath, at


def list_images(root: StoragePath | Path, prefix: str = "") -> pd.DataFrame:
    """Return one row per image below `root`, sorted by path, without hidden files and linked folders.

    The columns are those of a shard, and `modified`: nanoseconds, 0 in an object store, which is not asked for it. The
    id of an image is its path after the prefix, its label the folder that holds it (empty directly below the root).
    """
    root = at(root)
    if root.file_info() is not None:
        raise InputError(f"{root}: a file; give the folder of the images")
    if not root.remote and not root.exists():
        raise InputError(f"{root}: no such folder; give the folder of the images")
    try:
        found = sorted(file for file in root.walk_files() if _is_image(file.path))
    except OSError as error:
        if root.remote:
            raise
        raise InputError(
            f"{error.filename}: cannot be read ({error.strerror}); make it readable or move it away"
        ) from error
    if not found:
        raise InputError(
            f"{root}: no images ({', '.join(sorted(EXTENSIONS))}) in it or below; give a folder that has some"
        )
    paths = [file.path for file in found]
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{path!r}: the file name is not UTF-8; rename it") from error
    listed = pd.DataFrame(
        {
            "id": [prefix + path for path in paths],
            "source": str(root.absolute()),  # because other processes have other working folders
            "label": [PurePosixPath(path).parent.name for path in paths],
            "bytes": [file.size for file in found],
            "path": paths,
            "modified": [0 if root.remote else file.mtime_ns for file in found],
        }
    )
    return listed.astype(dict.fromkeys(("id", "source", "label", "path"), "string"))


def _is_image(path: str) -> bool:
    """Return whether a file is named like an image, and neither it nor a folder above it is hidden."""
    return not any(part.startswith(".") for part in path.split("/")) and os.path.splitext(path)[1].lower() in EXTENSIONS


@dataclass(frozen=True)
class ImageInMemory:
    """An encoded image that can be read like a file."""

    content: bytes
    name: str

    def read_bytes(self) -> bytes:
        return self.content

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class StoredImages:
    """Encoded images by row, for `LazyImages`."""

    paths: Sequence[StoragePath | ImageInMemory]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, row: int) -> bytes:
        try:
            return self.paths[row].read_bytes()
        except FileNotFoundError as error:  # a bad image; other OSErrors are raised: the store may answer later
            raise InputError(f"{self.name(row)}: no such file") from error

    def name(self, row: int) -> str:
        return str(self.paths[row])

    def identity(self) -> Iterator[bytes]:
        return iter(())  # galleries identify images by id


def decode(items: pd.DataFrame, card: ModelCard) -> tuple[Images, list[BadImage]]:
    """Return the pixels (N, size, size, channels) of the readable images, and the others with the reason."""
    paths = [at(source) / path for source, path in zip(items["source"], items["path"], strict=True)]
    lazy = LazyImages(StoredImages(paths), card.size, card.channels, card.fit)
    images, bad = [], list[BadImage]()
    for row, name in enumerate(items["id"]):
        try:
            images.append(lazy.resized(row))
        except InputError as error:
            bad.append((name, str(error).removeprefix(f"{paths[row]}: ")))
    stacked = np.stack(images) if images else np.empty((0, card.size, card.size, card.channels), np.uint8)
    return stacked, bad


def decode_one(content: bytes, name: str, card: ModelCard) -> Images:
    """Return one image (1, size, size, channels) from its bytes; raise InputError if unreadable or too large."""
    image = StoredImages([ImageInMemory(content, name)])
    return LazyImages(image, card.size, card.channels, card.fit).resized(0)[None]


def thumbnail(path: StoragePath | ImageInMemory, side: int) -> bytes:
    """Return an image as a PNG of at most `side` pixels; raise InputError if it cannot be read."""
    image = LazyImages(StoredImages([path]), side, 3).open(0, side)
    image.thumbnail((side, side))
    encoded = io.BytesIO()
    image.save(encoded, "PNG")
    return encoded.getvalue()
