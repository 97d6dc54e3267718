"""Tiny-ImageNet200 to train on, the 20 ImageNet classes that it lacks (ImageNet20) to verify.

    DIR/tiny-imagenet-200/train/<wnid>/images/*.JPEG    classes of tiny-imagenet-200/wnids.txt, or all that are there
    DIR/imagenet/val/<wnid>/*.JPEG                      or, in place of ImageNet, DIR/imagenet20/<wnid>/*.JPEG

ImageNet's images are scaled to the size of Tiny-ImageNet's, 64 × 64 in the paper.
"""

from pathlib import Path

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
from cl2r.data.dataset import ImageSet, require_disjoint
from cl2r.data.imagenet import FOLDERS, IMAGENET20, VAL_IMAGES
from cl2r.errors import InputError

TINY = "tiny-imagenet-200"
NUM_CLASSES = 200
TRAIN_IMAGES = 500  # a class
SIZE = 64


def load_tiny_imagenet200(root: Path, size: int, channels: int) -> ImageSet:
    """Train on Tiny-ImageNet200 (train/), verify on ImageNet20 (ImageNet's val/)."""
    hint = f"`cl2r datasets --check tiny_imagenet200 {root}` says how to get it"
    tiny, imagenet20 = find_folder(root, TINY), _find_imagenet20(root)
    if tiny is None or imagenet20 is None:
        raise InputError(f"{_no_tiny(root) if tiny is None else _no_imagenet20(root)}; {hint}")
    train = require_whole(_train_classes(tiny), hint)
    require_disjoint(str(tiny), train.wnids, IMAGENET20)
    open_set = require_whole(list_classes(imagenet20, IMAGENET20), hint)
    return image_set("tiny_imagenet200", train, open_set, size, channels)


def check_tiny_imagenet200(root: Path) -> Check:
    """Classes and images of Tiny-ImageNet200, and whether ImageNet20 is there."""
    check = Check()
    tiny, imagenet20 = find_folder(root, TINY), _find_imagenet20(root)
    if tiny is None:
        check.wrong.append(_no_tiny(root))
    else:
        check.found.append(f"Tiny-ImageNet200 in {tiny}")
        train = note_classes(check, lambda: _train_classes(tiny), SIZE, _whole_set)
        shared = sorted(set(train.wnids if train else ()) & set(IMAGENET20))
        check.wrong += [f"{tiny}: class {wnid} is one of ImageNet20, remove it" for wnid in shared]
    if imagenet20 is None:
        check.wrong.append(_no_imagenet20(root))
    else:
        note_classes(check, lambda: list_classes(imagenet20, IMAGENET20), SIZE, lambda c: c.fewer_than(VAL_IMAGES))
    return check


def _whole_set(train: ClassFolders) -> str:
    of = "" if len(train.wnids) == NUM_CLASSES else f" (the whole set has {NUM_CLASSES})"
    return of + train.fewer_than(TRAIN_IMAGES)


def _train_classes(tiny: Path) -> ClassFolders:
    train = tiny / "train"
    require_class_folders(train)
    return list_classes(train, read_wnids(tiny / "wnids.txt") or wnids_below(train), inside="images")


def _find_imagenet20(root: Path) -> Path | None:
    """What holds its class folders; where `root` is Tiny-ImageNet's own folder, it lies beside that."""
    beside = home(root, TINY)
    prepared, imagenet = beside / "imagenet20", find_folder(beside, *FOLDERS)
    if prepared.is_dir():
        return prepared
    return None if imagenet is None else imagenet / "val"


def _no_tiny(root: Path) -> str:
    return f"{root}: no folder {TINY} in it"


def _no_imagenet20(root: Path) -> str:
    expected = "imagenet/val/<wnid>/*.JPEG or imagenet20/<wnid>/*.JPEG"
    return f"{home(root, TINY)}: no ImageNet20, expected {expected}"
