"""Images in folders, one folder a class: names and labels in sorted order, before anything is decoded."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np
import numpy.typing as npt

from cl2r.data.check import find_folder
from cl2r.data.dataset import Labels
from cl2r.data.images import ImageFiles
from cl2r.errors import InputError

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


@dataclass(frozen=True, eq=False)
class Listing:
    """Images in sorted order, each with the place of its class among `classes`."""

    classes: tuple[str, ...]
    files: ImageFiles
    labels: Labels

    @property
    def folder(self) -> Path:
        """What holds the folders of the classes."""
        return self.files.root

    @property
    def counts(self) -> Labels:
        """Images of each class."""
        return np.bincount(self.labels, minlength=len(self.classes)).astype(np.int64)

    def select(self, chosen: npt.NDArray[np.bool_]) -> "Listing":
        """Some of the classes, and only their images, numbered anew."""
        number = np.cumsum(chosen) - 1
        rows = np.flatnonzero(chosen[self.labels])
        classes = tuple(name for name, wanted in zip(self.classes, chosen.tolist(), strict=True) if wanted)
        paths = [self.files.paths[row] for row in rows.tolist()]
        return Listing(classes, ImageFiles(self.folder, paths), number[self.labels[rows]])


def list_folders(folder: Path, layout: str, deep: bool = False) -> Listing:
    """Every image in folder/<class>/, or also below it if `deep`; `layout` tells what was expected."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; expected {layout}")
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise InputError(f"{folder}: no folders of images in it; expected {layout}")
    images = [_images_of(folder, name, deep) for name in classes]
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), [len(paths) for paths in images])
    return Listing(tuple(classes), ImageFiles(folder, [path for paths in images for path in paths]), labels)


def only_folder(root: Path, names: tuple[str, ...], what: str) -> Path | None:
    """The one folder of such a name below `root`, or `root` itself; two copies are refused."""
    below = [root / name for name in names if (root / name).is_dir()]
    for other in below[1:]:
        if not other.samefile(below[0]):  # a file system may not tell upper from lower case
            raise InputError(f"{below[0]} and {other}: two copies of {what}, move or remove one")
    return find_folder(root, *names)


def _images_of(folder: Path, name: str, deep: bool) -> list[str]:
    """Paths of the images of one class."""
    paths = sorted(_walk(folder, name, deep))
    if not paths:
        raise InputError(f"{folder / name}: folder without images ({' '.join(sorted(EXTENSIONS))}); fill or remove it")
    return paths


def _walk(folder: Path, name: str, deep: bool) -> Iterator[str]:
    for place, _, files in os.walk(folder / name, onerror=_refuse):
        below = PurePath(place).relative_to(folder).as_posix()
        for file in files:
            if PurePath(file).suffix.lower() in EXTENSIONS and not file.startswith("."):
                yield f"{below}/{file}"
        if not deep:
            return


def _refuse(error: OSError) -> None:
    raise InputError(f"{error.filename}: cannot be read ({error.strerror})") from error
