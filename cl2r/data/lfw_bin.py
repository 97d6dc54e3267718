"""InsightFace's lfw.bin: the images of LFW's official pairs in their order, cropped like the train.rec beside it.

It is a pickle (images, same); the ends of pair i are the images 2i and 2i + 1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from cl2r.data.dataset import Labels, Pairs
from cl2r.data.safe_pickle import load_plain
from cl2r.errors import InputError

BIN = "lfw.bin"
BIN_FOLDS = 10


@dataclass(frozen=True, eq=False)
class PackedPairs:
    """What a lfw.bin holds."""

    path: Path
    images: list[bytes]
    same: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.images)

    def read(self, row: int) -> bytes:
        """The image's bytes."""
        return self.images[row]

    def name(self, row: int) -> str:
        """File and place in it."""
        return f"{self.path}: image {row}"

    def identity(self) -> Iterator[bytes]:
        """Size of every image."""
        yield f"{self.path.name}\0".encode()
        yield np.array([len(image) for image in self.images], np.int64).tobytes()

    @property
    def labels(self) -> Labels:
        """A number for every image, shared by the ends of a pair of one person."""
        rows = np.arange(len(self), dtype=np.int64)
        rows[1::2] -= self.same
        return rows

    @property
    def pairs(self) -> Pairs:
        """In ten folds, one after the other."""
        rows = np.arange(len(self), dtype=np.int64)
        folds = np.arange(len(self.same), dtype=np.int64) * BIN_FOLDS // len(self.same)
        return Pairs(rows[::2], rows[1::2], self.same, folds)


def find_packed(folder: Path | None) -> Path | None:
    """The lfw.bin in the folder of a train.rec, if there are both."""
    return folder / BIN if folder is not None and (folder / BIN).is_file() else None


def read_packed(path: Path) -> PackedPairs:
    """Read a lfw.bin, refusing code in it."""
    held = load_plain(path)
    if not isinstance(held, tuple | list) or len(held) != 2 or not isinstance(held[0], tuple | list):
        raise InputError(f"{path}: expected a pickled (images, same); get InsightFace's {BIN} again")
    images = [_image_bytes(path, row, image) for row, image in enumerate(held[0])]
    same = _flags(path, held[1])
    if len(images) != 2 * len(same) or len(same) < BIN_FOLDS:
        raise InputError(f"{path}: {len(images)} images for {len(same)} pairs, expected 2 a pair and {BIN_FOLDS} pairs")
    return PackedPairs(path, images, same)


def _image_bytes(path: Path, row: int, image: object) -> bytes:
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 1:
        return image.tobytes()
    if not isinstance(image, bytes):
        raise InputError(f"{path}: image {row} must be the bytes of an image file, found {type(image).__name__}")
    return image


def _flags(path: Path, held: object) -> npt.NDArray[np.bool_]:
    if not _numbers(held) or not all(flag in (0, 1) for flag in held):
        raise InputError(f"{path}: whether pairs show one person must be a list of True and False")
    return np.array(held, np.bool_)


def _numbers(held: object) -> TypeGuard[Sequence[int] | npt.NDArray[Any]]:
    """Whether it is a flat list or array of whole numbers or booleans."""
    if isinstance(held, np.ndarray):
        return held.ndim == 1 and held.dtype.kind in "biu"
    return isinstance(held, tuple | list) and all(isinstance(flag, int) for flag in held)
