"""ImageNet (ILSVRC-2012) in folders by wnid: 900 classes to train on, 100 to verify, and 20 that Tiny-ImageNet lacks.

    DIR/imagenet/train/<wnid>/*.JPEG    (or DIR/ILSVRC2012/..., DIR/ILSVRC/Data/CLS-LOC/...)
    DIR/imagenet/val/<wnid>/*.JPEG
    DIR/imagenet100.txt                 optional: one wnid a line, in place of the 100 classes below
    DIR/imagenet900.txt                 optional: in place of the other 900

ImageNet100 is LUCIR's subset: of the 1000 wnids in sorted order, those at the first 100 places of the permutation of
NumPy's legacy generator with seed 1993. (PODNet's list of files named so holds the first 100 wnids instead; such a list
goes into imagenet100.txt.) Training takes train/ of ImageNet900, verification takes val/ of ImageNet100.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from cl2r.data.check import Check, find_folder
from cl2r.data.dataset import Images, ImageSet, Labels
from cl2r.data.images import ImageFiles, LazyImages, images_of
from cl2r.errors import InputError

IMAGENET20 = (
    "n02276258", "n01728572", "n03814906", "n02817516", "n03769881", "n03220513", "n04442312", "n04252225",
    "n13037406", "n04266014", "n03929855", "n02804414", "n01873310", "n03532672", "n01818515", "n03916031",
    "n03345487", "n02114855", "n04589890", "n03776460",
)  # fmt: skip
"""The paper's 20 classes that Tiny-ImageNet200 lacks."""

FOLDERS = ("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC")
SOURCE = "ImageNet (ILSVRC-2012) comes from image-net.org, which asks for registration"
NUM_CLASSES = 1000
TRAIN_IMAGES = 1_281_167
VAL_IMAGES = 50  # a class
SIZE = 224
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


@dataclass(frozen=True)
class Split:
    """ImageNet900 and ImageNet100, and where they come from."""

    train: tuple[str, ...]
    open_set: tuple[str, ...]
    source: str


def imagenet100_places() -> list[int]:
    """Places of ImageNet100's classes among the 1000 wnids in sorted order."""
    places: list[int] = np.random.RandomState(1993).permutation(NUM_CLASSES)[:100].tolist()
    return places


def split_of(root: Path, imagenet: Path) -> Split:
    """The classes to train on and those to verify."""
    list100, list900 = root / "imagenet100.txt", root / "imagenet900.txt"
    open_set, train = read_wnids(list100), read_wnids(list900)
    source = ", ".join(p.name for p, own in ((list100, open_set), (list900, train)) if own) or "permutation 1993"
    if open_set is None or train is None:
        wnids = _all_wnids(imagenet)
        open_set = open_set or tuple(wnids[place] for place in imagenet100_places())
        train = train or tuple(wnid for wnid in wnids if wnid not in open_set)
    shared = sorted(set(train) & set(open_set))
    if shared:
        both = f"both ImageNet900 and ImageNet100 ({len(shared)} such)"
        raise InputError(f"{list900}: {shared[0]} is in {both}, but verification needs unseen classes: remove it")
    return Split(train, open_set, source)


def _all_wnids(imagenet: Path) -> list[str]:
    train, val = imagenet / "train", imagenet / "val"
    require_class_folders(train)
    wnids = wnids_below(train)
    if len(wnids) != NUM_CLASSES:
        absent = sorted(set(wnids_below(val)) - set(wnids)) if val.is_dir() else []
        first = f", the first is {absent[0]}" if absent else ""
        lack = NUM_CLASSES - len(wnids)
        amiss = f"{lack} are missing{first}" if lack > 0 else f"{-lack} are too many"
        own = "for other classes give both imagenet100.txt and imagenet900.txt"
        raise InputError(f"{train}: {len(wnids)} class folders instead of {NUM_CLASSES}, {amiss}; {own}")
    return wnids


def require_whole(folders: ClassFolders, hint: str) -> ClassFolders:
    """`folders` again, unless a class is missing or empty."""
    if folders.wrong:
        raise InputError(f"{folders.wrong[0]}; {hint}")
    return folders


def load_imagenet900(root: Path, size: int, channels: int) -> ImageSet:
    """Train on ImageNet900 (train/), verify on ImageNet100 (val/)."""
    hint = f"see `cl2r datasets --check imagenet900 {root}`"
    imagenet = find_folder(root, *FOLDERS)
    if imagenet is None:
        raise InputError(f"{root}: none of the folders {', '.join(FOLDERS)} in it; {hint}")
    split = split_of(root, imagenet)
    train = require_whole(list_classes(imagenet / "train", split.train), hint)
    open_set = require_whole(list_classes(imagenet / "val", split.open_set), hint)
    return ImageSet(
        name="imagenet900",
        x_train=train.decoded(size, channels),
        y_train=train.labels,
        x_open=open_set.decoded(size, channels),
        y_open=open_set.labels,
        class_names=train.wnids,
    )


def check_imagenet900(root: Path) -> Check:
    """Classes and images of both parts."""
    check = Check()
    imagenet = find_folder(root, *FOLDERS)
    lacking = f"{root}: none of the folders {', '.join(FOLDERS)} in it; {SOURCE}"
    if not check.expect(imagenet is not None, f"ImageNet in {imagenet}", lacking) or imagenet is None:
        return check
    try:
        split = split_of(root, imagenet)
    except InputError as error:
        check.wrong.append(str(error))
        return check
    sizes = f"ImageNet900 has {len(split.train)}, ImageNet100 has {len(split.open_set)}"
    check.found.append(f"classes ({split.source}): {sizes}")
    note_classes(check, lambda: list_classes(imagenet / "train", split.train), SIZE, lambda c: _whole_set(c, split))
    note_classes(
        check, lambda: list_classes(imagenet / "val", split.open_set), SIZE, lambda c: c.fewer_than(VAL_IMAGES)
    )
    return check


def _whole_set(train: ClassFolders, split: Split) -> str:
    """How much of all of ImageNet there is, unless the lists choose other classes."""
    if len(split.train) + len(split.open_set) != NUM_CLASSES:
        return ""
    images = len(train) + len(list_classes(train.folder, split.open_set))
    whole = "the whole set" if images == TRAIN_IMAGES else f"the whole set has {TRAIN_IMAGES}"
    return f"; with those of ImageNet100 {images}, {whole}"


def note_classes(
    check: Check, find: Callable[[], ClassFolders], size: int, remark: Callable[[ClassFolders], str]
) -> ClassFolders | None:
    """Note what there is of some classes, and their images to be decoded; None if they cannot be listed."""
    try:
        folders = find()
    except InputError as error:
        check.wrong.append(str(error))
        return None
    check.found.append(f"{folders.folder}: {len(folders)} images of {len(folders.wnids)} classes{remark(folders)}")
    check.wrong += folders.wrong
    check.to_decode.append(LazyImages(folders.files, size, 3, "centre"))
    return folders
