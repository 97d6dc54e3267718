"""Images to index: files below a folder or an address, their ids, labels and sizes; decoded as a model wants them."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from cl2r.data.images import Fit, LazyImages
from cl2r.data.listing import EXTENSIONS
from cl2r.errors import InputError
from cl2r.files import Place, place
from cl2r.objects import ObjectPath
from cl2r.search.shards import Bad

Images = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ImageEntry:
    """One file."""

    id: str
    """The path below the folder, with slashes; behind the prefix, if one is given."""
    path: str
    label: str
    """The name of the folder it lies in; empty directly below the root."""
    bytes: int
    modified: int = 0
    """When the file was written last; of an object store it is not asked for."""


def list_images(root: Place, prefix: str = "") -> list[ImageEntry]:
    """Every image below `root`, by path. Links to folders are not followed."""
    found = sorted(_objects(root) if isinstance(root, ObjectPath) else _files(root))
    if not found:
        raise InputError(f"{root}: no images ({', '.join(sorted(EXTENSIONS))}) in it or below")
    return [ImageEntry(prefix + path, path, PurePosixPath(path).parent.name, *facts) for path, *facts in found]


def _files(root: Path) -> Iterator[tuple[str, int, int]]:
    if root.is_file():
        raise InputError(f"{root}: a file; give the folder of the images")
    if not root.is_dir():
        raise InputError(f"{root}: no such folder")
    for folder, folders, names in os.walk(root, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if _is_image(name):
                path = Path(folder) / name
                yield _text(path.relative_to(root).as_posix()), *_facts(path)


def _refuse(error: OSError) -> None:
    """`os.walk` would leave out what it cannot read."""
    raise InputError(f"{error.filename}: cannot be read ({error.strerror})") from error


def _text(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{path!r}: the name of the file is not UTF-8; rename it") from error
    return path


def _facts(path: Path) -> tuple[int, int]:
    """Bytes, and the time of the last change."""
    try:
        found = path.stat()
    except FileNotFoundError:  # a link to nothing: whoever reads it will say so
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _objects(root: ObjectPath) -> Iterator[tuple[str, int, int]]:
    for path, size in root.sizes():
        *folders, name = path.split("/")
        if _is_image(name) and not any(folder.startswith(".") for folder in folders):
            yield path, size, 0


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in EXTENSIONS


@dataclass(frozen=True)
class SourceImages:
    """Encoded images of one place, by row; what `LazyImages` decodes."""

    root: Place
    paths: Sequence[str]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, row: int) -> bytes:
        """The bytes. A file that is gone is a bad image; a store that does not answer is an OSError, and is not."""
        try:
            return (self.root / self.paths[row]).read_bytes()
        except FileNotFoundError as error:
            raise InputError(f"{self.name(row)}: no such file") from error

    def name(self, row: int) -> str:
        """Path or address."""
        return str(self.root / self.paths[row])

    def identity(self) -> Iterator[bytes]:
        """Not asked for: galleries know their images by id."""
        return iter(())


def decode(root: str, entries: Sequence[ImageEntry], size: int, channels: int, fit: Fit) -> tuple[Images, list[Bad]]:
    """Pixels (N, size, size, channels) of the images that can be read, and which cannot, with the reason."""
    source = SourceImages(place(root), [entry.path for entry in entries])
    lazy = LazyImages(source, size, channels, fit)
    images, bad = [], list[Bad]()
    for row, entry in enumerate(entries):
        try:
            images.append(lazy.fitted(row))
        except InputError as error:
            bad.append((entry.id, str(error).removeprefix(f"{source.name(row)}: ")))
    stacked = np.stack(images) if images else np.empty((0, size, size, channels), np.uint8)
    return stacked, bad


def decode_one(content: bytes, name: str, size: int, channels: int, fit: Fit) -> Images:
    """One image (1, size, size, channels) from its bytes; InputError if it is none, or too large."""
    return LazyImages(_OneImage(content, name), size, channels, fit).fitted(0)[None]


@dataclass(frozen=True)
class _OneImage:
    content: bytes
    label: str

    def __len__(self) -> int:
        return 1

    def read(self, row: int) -> bytes:
        """The bytes."""
        return self.content

    def name(self, row: int) -> str:
        """As the caller calls it."""
        return self.label

    def identity(self) -> Iterator[bytes]:
        """Not asked for."""
        return iter(())
