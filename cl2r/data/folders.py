"""Images in folders, one folder per class, listed in sorted order before anything is decoded.

A data set of one's own is a folder:

    DIR/train/<class>/*.jpg      classes to learn
    DIR/open/<class>/*.jpg       other classes, for verification
    DIR/pairs.csv                optional (or pairs.txt, or in DIR/open): official pairs of open images

The centre square of every image is scaled to `size` × `size`. A folder too large for memory is decoded as it is used.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path, PurePath

import numpy as np
import numpy.typing as npt

from cl2r.data.dataset import ImageSet, Labels, MissingDataError, require_disjoint
from cl2r.data.images import MODES, Crop, ImageFiles, images_of
from cl2r.data.pair_list import PAIR_LIST, PAIR_TABLE, official_pairs
from cl2r.errors import InputError
from cl2r.verification import Pairs

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
LAYOUT = "DIR/train/<class>/*.jpg and DIR/open/<class>/*.jpg, optionally DIR/pairs.csv"


@dataclass(frozen=True, eq=False)
class Listing:
    """Images in sorted order, each with the place of its class in `classes`."""

    classes: tuple[str, ...]
    files: ImageFiles
    labels: Labels

    @property
    def folder(self) -> Path:
        """The folder that holds the folders of the classes."""
        return self.files.root

    def select(self, chosen: npt.NDArray[np.bool_]) -> "Listing":
        """Return the images of some classes, with new labels 0..K-1."""
        number, rows = np.cumsum(chosen) - 1, np.flatnonzero(chosen[self.labels])
        files = ImageFiles(self.folder, map(self.files.path, rows.tolist()))
        return Listing(tuple(compress(self.classes, chosen)), files, number[self.labels[rows]])


def list_folders(
    folder: Path, layout: str, classes: Sequence[str] | None = None, inside: str = "", deep: bool = False
) -> Listing:
    """List the images in folder/<class>/`inside`, or also below it if `deep`.

    Raises MissingDataError if the folder or one of the `classes` is missing, with the `layout` that was expected, and
    InputError if a class has no images. Without `classes` every folder is a class.
    """
    if not folder.is_dir():
        raise MissingDataError(f"{folder}: no such folder; expected {layout}")
    if classes is None:
        classes = [entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")]
    if not classes:
        raise MissingDataError(f"{folder}: no folders of images in it; put one folder per class there: {layout}")
    classes = sorted(classes)
    missing = [name for name in classes if not (folder / name / inside).is_dir()]
    if missing:
        first = PurePath(missing[0], inside)
        raise MissingDataError(
            f"{folder}: {len(missing)} of {len(classes)} class folders are missing, first {first}; add them"
        )
    images = [sorted(image_paths(folder, PurePath(name, inside).as_posix(), deep)) for name in classes]
    empty = [name for name, paths in zip(classes, images, strict=True) if not paths]
    if empty:
        known, first = " ".join(sorted(EXTENSIONS)), folder / empty[0] / inside
        raise InputError(f"{first}: folder without images ({known}), {len(empty)} such; fill or remove it")
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), [len(paths) for paths in images])
    return Listing(tuple(classes), ImageFiles(folder, [path for paths in images for path in paths]), labels)


def image_paths(folder: Path, name: str, deep: bool = False) -> Iterator[str]:
    """Yield the paths, relative to `folder`, of the images in folder/`name`, or also below it if `deep`."""

    def refuse(error: OSError) -> None:
        raise InputError(
            f"{error.filename}: cannot be read ({error.strerror}); make it readable or remove it"
        ) from error

    for place, _, files in os.walk(folder / name, onerror=refuse):
        below = PurePath(place).relative_to(folder).as_posix()
        for file in files:
            if PurePath(file).suffix.lower() in EXTENSIONS and not file.startswith("."):
                yield f"{below}/{file}"
        if not deep:
            return


def find_folder(root: Path, *names: str, only: str = "") -> Path | None:
    """Return the first of `names` that is a folder below `root`, or `root` itself if it has such a name, or None.

    Raises InputError if there are two copies of what may be there `only` once.
    """
    below = [root / name for name in names if (root / name).is_dir()]
    copies = [path for path in below if not path.samefile(below[0])]  # some file systems ignore upper and lower case
    if only and copies:
        raise InputError(f"{below[0]} and {copies[0]}: two copies of {only}; move or remove one")
    if below:
        return below[0]
    return root if root.is_dir() and dataset_parent(root, *names) != root else None


def dataset_parent(root: Path, *names: str) -> Path:
    """Return the folder that holds the data sets: `root`, or its parent if `root` itself is one of `names`."""
    resolved = root.resolve()
    return resolved.parent if resolved.name in {PurePath(name).name for name in names} else root


def listed_set(
    name: str,
    train: Listing,
    open_set: Listing,
    size: int,
    channels: int,
    crop: Crop = "centre",
    decode: bool = True,
    pairs: Pairs | None = None,
) -> ImageSet:
    """Return the data set of two listings."""
    x_train, x_open = (images_of(part.files, size, channels, crop, decode) for part in (train, open_set))
    y_train, y_open, open_names = train.labels, open_set.labels, open_set.classes
    return ImageSet(name, x_train, y_train, x_open, y_open, train.classes, pairs, open_names=open_names)


def load_folder(root: Path, size: int = 32, channels: int = 3) -> ImageSet:
    """Return the images below train/ and open/ as `size` × `size`, grey (1 channel) or colour (3)."""
    if size < 1 or channels not in MODES:
        raise InputError(
            f"data size {size} and channels {channels}: set data.size to at least 1 and data.channels to 1 or 3"
        )
    train, open_set = (list_folders(root / part, LAYOUT, deep=True) for part in ("train", "open"))
    require_disjoint(str(root), train.classes, open_set.classes)
    places = [place / name for place in (root, root / "open") for name in (PAIR_LIST, PAIR_TABLE)]
    pairs = official_pairs(places, open_set)
    return listed_set(root.resolve().name, train, open_set, size, channels, pairs=pairs)
