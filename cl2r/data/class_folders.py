"""Images in a folder for each class, named by its wnid, as ImageNet and Tiny-ImageNet have them."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from cl2r.data.check import Check
from cl2r.data.dataset import Images, ImageSet, Labels
from cl2r.data.images import ImageFiles, LazyImages, images_of
from cl2r.errors import InputError

EXTENSIONS = (".jpeg", ".jpg", ".png")
WNID = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class ClassFolders:
    """The images of some classes: a folder each, images in the order of their names."""

    folder: Path
    wnids: tuple[str, ...]
    images: tuple[tuple[str, ...] | None, ...]
    """Of each class the paths below `folder`; None if its folder is missing."""
    inside: str = ""
    """Where in a class's folder they lie."""

    def __len__(self) -> int:
        return sum(self.counts)

    @property
    def counts(self) -> list[int]:
        """Images of each class."""
        return [len(paths or ()) for paths in self.images]

    @property
    def labels(self) -> Labels:
        """Of each image the place of its class."""
        return np.repeat(np.arange(len(self.wnids), dtype=np.int64), self.counts)

    @property
    def files(self) -> ImageFiles:
        """All images, class by class."""
        return ImageFiles(self.folder, list(chain.from_iterable(paths or () for paths in self.images)))

    @property
    def wrong(self) -> list[str]:
        """Missing and empty classes, a sentence each."""
        missing = [wnid for wnid, paths in zip(self.wnids, self.images, strict=True) if paths is None]
        empty = [wnid for wnid, paths in zip(self.wnids, self.images, strict=True) if paths == ()]
        sentences = []
        if missing:
            of = f"{len(missing)} of {len(self.wnids)} class folders"
            sentences.append(f"{self.folder}: {of} are missing, the first is {Path(missing[0], self.inside)}")
        if empty:
            known = " ".join(EXTENSIONS)
            first = self.folder / empty[0] / self.inside
            sentences.append(f"{first}: class folder without images ({known}), {len(empty)} such")
        return sentences

    def fewer_than(self, expected: int) -> str:
        """A remark on classes with some, but fewer images; empty if there are none."""
        few = [(wnid, n) for wnid, n in zip(self.wnids, self.counts, strict=True) if 0 < n < expected]
        if not few:
            return ""
        return f"; {len(few)} classes have fewer than {expected} images, the first is {few[0][0]} with {few[0][1]}"

    def decoded(self, size: int, channels: int) -> Images | LazyImages:
        """The centre squares of all images."""
        return images_of(self.files, size, channels, "centre")


def list_classes(folder: Path, wnids: Sequence[str], inside: str = "") -> ClassFolders:
    """The images of `wnids` in `folder`/<wnid>/`inside`; only names are looked at, for there are a million."""
    require_class_folders(folder)
    ordered = tuple(sorted(wnids))
    images = tuple(_images_of_class(folder, str(Path(wnid, inside))) for wnid in ordered)
    return ClassFolders(folder, ordered, images, inside)


def _images_of_class(folder: Path, below: str) -> tuple[str, ...] | None:
    try:
        names = os.listdir(folder / below)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return tuple(f"{below}/{name}" for name in sorted(names) if _is_image(name))


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS) and not name.startswith(".")


def require_class_folders(folder: Path) -> None:
    """Refuse a folder that is missing, or whose images are not sorted by class (as val/ is when unpacked)."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; expected {folder}/<wnid>/*.JPEG")
    if wnids_below(folder):
        return
    flat = next((name for name in os.listdir(folder) if _is_image(name)), None)
    if flat is None:
        raise InputError(f"{folder}: no wnid folders in it; expected {folder}/<wnid>/*.JPEG")
    raise InputError(
        f"{folder}: its images ({flat}, ...) must be sorted into wnid folders, {folder}/<wnid>/*.JPEG: "
        "torchvision.datasets.ImageNet does so when it unpacks val, the usual valprep script does so afterwards"
    )


def wnids_below(folder: Path) -> list[str]:
    """Sorted names of the class folders."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if WNID.fullmatch(entry.name) and entry.is_dir())


def read_wnids(path: Path) -> tuple[str, ...] | None:
    """The wnids of a file with one a line; None if there is no such file."""
    if not path.is_file():
        return None
    wnids: list[str] = []
    for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), start=1):
        wnid = line.strip()
        if wnid and not WNID.fullmatch(wnid):
            raise InputError(f"{path}, line {number}: {wnid[:40]!r} is not a wnid such as n01440764; one a line")
        if wnid in wnids:
            raise InputError(f"{path}, line {number}: {wnid} a second time, remove one")
        wnids += [wnid] if wnid else []
    if not wnids:
        raise InputError(f"{path}: no wnids in it, expected one a line")
    return tuple(wnids)


def require_whole(folders: ClassFolders, hint: str) -> ClassFolders:
    """`folders` again, unless a class is missing or empty."""
    if folders.wrong:
        raise InputError(f"{folders.wrong[0]}; {hint}")
    return folders


def note_classes(
    check: Check, find: Callable[[], ClassFolders], size: int, remark: Callable[[ClassFolders], str]
) -> ClassFolders | None:
    """Note what there is of some classes, and their images to be decoded; None if they cannot be listed."""
    folders = check.attempt(find)
    if folders is None:
        return None
    check.found.append(f"{folders.folder}: {len(folders)} images of {len(folders.wnids)} classes{remark(folders)}")
    check.wrong += folders.wrong
    check.to_decode.append(LazyImages(folders.files, size, 3, "centre"))
    return folders


def image_set(name: str, train: ClassFolders, open_set: ClassFolders, size: int, channels: int) -> ImageSet:
    """Classes to train on and others to verify on."""
    return ImageSet(
        name=name,
        x_train=train.decoded(size, channels),
        y_train=train.labels,
        x_open=open_set.decoded(size, channels),
        y_open=open_set.labels,
        class_names=train.wnids,
    )
