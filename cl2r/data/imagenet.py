"""ImageNet (ILSVRC-2012) in folders by wnid: 900 classes to train on, 100 to verify, and 20 that Tiny-ImageNet lacks.

    DIR/imagenet/train/<wnid>/*.JPEG    (or DIR/ILSVRC2012/..., DIR/ILSVRC/Data/CLS-LOC/...)
    DIR/imagenet/val/<wnid>/*.JPEG
    DIR/imagenet100.txt                 optional: one wnid a line, in place of the 100 classes below
    DIR/imagenet900.txt                 optional: in place of the other 900; both may lie in DIR/imagenet/ too

ImageNet100 is LUCIR's subset: of the 1000 wnids in sorted order, those at the first 100 places of the permutation of
NumPy's legacy generator with seed 1993. (PODNet's list of files named so holds the first 100 wnids instead; such a list
goes into imagenet100.txt.) Training takes train/ of ImageNet900, verification takes val/ of ImageNet100.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cl2r.data.check import Check, find_folder, home
from cl2r.data.class_folders import (
    ClassFolders,
    image_set,
    list_classes,
    note_classes,
    read_wnids,
    require_class_folders,
    require_whole,
    wnids_below,
)
from cl2r.data.dataset import ImageSet
from cl2r.errors import InputError

IMAGENET20 = (
    "n02276258", "n01728572", "n03814906", "n02817516", "n03769881", "n03220513", "n04442312", "n04252225",
    "n13037406", "n04266014", "n03929855", "n02804414", "n01873310", "n03532672", "n01818515", "n03916031",
    "n03345487", "n02114855", "n04589890", "n03776460",
)  # fmt: skip
"""The paper's 20 classes that Tiny-ImageNet200 lacks."""

FOLDERS = ("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC")
NUM_CLASSES = 1000
TRAIN_IMAGES = 1_281_167
VAL_IMAGES = 50  # a class
SIZE = 224


@dataclass(frozen=True)
class WnidList:
    """A file with a user's own choice of classes."""

    path: Path
    wnids: tuple[str, ...]


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
    own100, own900 = (_own_list(f"imagenet{count}.txt", root, imagenet) for count in (100, 900))
    source = ", ".join(own.path.name for own in (own100, own900) if own) or "permutation 1993"
    wnids = _all_wnids(imagenet) if own100 is None or own900 is None else []
    open_set = own100.wnids if own100 else tuple(wnids[place] for place in imagenet100_places())
    train = own900.wnids if own900 else tuple(wnid for wnid in wnids if wnid not in open_set)
    shared = sorted(set(train) & set(open_set))
    if own900 and shared:
        both = f"both ImageNet900 and ImageNet100 ({len(shared)} such)"
        raise InputError(f"{own900.path}: {shared[0]} is in {both}, but verification needs unseen classes: remove it")
    return Split(train, open_set, source)


def _own_list(name: str, root: Path, imagenet: Path) -> WnidList | None:
    """The list of that name, beside ImageNet's folder or in it."""
    paths = dict.fromkeys(place / name for place in (home(root, *FOLDERS), root, imagenet))
    read = ((path, read_wnids(path)) for path in paths)
    lists = [WnidList(path, wnids) for path, wnids in read if wnids is not None]
    for other in lists[1:]:
        if set(other.wnids) != set(lists[0].wnids):
            raise InputError(f"{lists[0].path} and {other.path}: two lists of other classes, remove one")
    return lists[0] if lists else None


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


def load_imagenet900(root: Path, size: int, channels: int) -> ImageSet:
    """Train on ImageNet900 (train/), verify on ImageNet100 (val/)."""
    hint = f"`cl2r datasets --check imagenet900 {root}` says how to get it"
    imagenet = find_folder(root, *FOLDERS)
    if imagenet is None:
        raise InputError(f"{_none_in(root)}; {hint}")
    split = split_of(root, imagenet)
    train = require_whole(list_classes(imagenet / "train", split.train), hint)
    open_set = require_whole(list_classes(imagenet / "val", split.open_set), hint)
    return image_set("imagenet900", train, open_set, size, channels)


def check_imagenet900(root: Path) -> Check:
    """Classes and images of both parts."""
    check, imagenet = Check(), find_folder(root, *FOLDERS)
    if imagenet is None:
        check.wrong.append(_none_in(root))
        return check
    check.found.append(f"ImageNet in {imagenet}")
    split = check.attempt(lambda: split_of(root, imagenet))
    if split is None:
        return check
    sizes = f"ImageNet900 has {len(split.train)}, ImageNet100 has {len(split.open_set)}"
    check.found.append(f"classes ({split.source}): {sizes}")
    note_classes(check, lambda: list_classes(imagenet / "train", split.train), SIZE, lambda c: _whole_set(c, split))
    note_classes(
        check, lambda: list_classes(imagenet / "val", split.open_set), SIZE, lambda c: c.fewer_than(VAL_IMAGES)
    )
    return check


def _none_in(root: Path) -> str:
    return f"{root}: none of the folders {', '.join(FOLDERS)} in it"


def _whole_set(train: ClassFolders, split: Split) -> str:
    """How much of all of ImageNet there is, unless the lists choose other classes."""
    if len(split.train) + len(split.open_set) != NUM_CLASSES:
        return ""
    images = len(train) + len(list_classes(train.folder, split.open_set))
    whole = "the whole set" if images == TRAIN_IMAGES else f"the whole set has {TRAIN_IMAGES}"
    return f"; with those of ImageNet100 {images}, {whole}"
