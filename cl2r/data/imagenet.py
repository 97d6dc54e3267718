"""ImageNet (ILSVRC-2012) in folders by wnid: 900 classes to train on, 100 to verify; and Tiny-ImageNet.

    ROOT/imagenet/train/<wnid>/*.JPEG    (or ROOT/ILSVRC2012/..., ROOT/ILSVRC/Data/CLS-LOC/...)
    ROOT/imagenet/val/<wnid>/*.JPEG
    ROOT/imagenet100.txt                 optional: one wnid per line, instead of the 100 classes below
    ROOT/imagenet900.txt                 optional: instead of the other 900; both may lie in ROOT/imagenet/ too

ImageNet100 is LUCIR's subset: of the 1000 wnids in sorted order, those at the first 100 places of the permutation of
NumPy's legacy generator with seed 1993. (PODNet's list of files of that name holds the first 100 wnids instead; put
such a list into imagenet100.txt.) Training uses train/ of ImageNet900, verification val/ of ImageNet100.

Tiny-ImageNet200 is verified on the 20 classes of ImageNet that it lacks (ImageNet20), scaled to its size:

    ROOT/tiny-imagenet-200/train/<wnid>/images/*.JPEG    classes of tiny-imagenet-200/wnids.txt, or all that are there
    ROOT/imagenet/val/<wnid>/*.JPEG                      or, without ImageNet, ROOT/imagenet20/<wnid>/*.JPEG
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cl2r.data.dataset import Archive, Dataset, ImageSet, MissingDataError, require_disjoint
from cl2r.data.folders import EXTENSIONS, Listing, dataset_parent, find_folder, image_paths, list_folders, listed_set
from cl2r.errors import InputError

IMAGENET20 = (
    "n02276258", "n01728572", "n03814906", "n02817516", "n03769881", "n03220513", "n04442312", "n04252225",
    "n13037406", "n04266014", "n03929855", "n02804414", "n01873310", "n03532672", "n01818515", "n03916031",
    "n03345487", "n02114855", "n04589890", "n03776460",
)  # fmt: skip
"""The paper's 20 classes that Tiny-ImageNet200 lacks."""

WNID = re.compile(r"n\d{8}")
FOLDERS = ("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC")
NUM_CLASSES = 1000
TRAIN_IMAGES, VAL_IMAGES = 1_281_167, 50  # of all classes, per class
TINY = "tiny-imagenet-200"


def load_imagenet900(root: Path, size: int, channels: int, decode: bool = True) -> ImageSet:
    """Return ImageNet900 (train/) to train on and ImageNet100 (val/) to verify."""
    imagenet = find_folder(root, *FOLDERS)
    if imagenet is None:
        raise MissingDataError(f"{root}: none of the folders {', '.join(FOLDERS)} in it")
    own100, own900 = (_own_list(f"imagenet{count}.txt", root, imagenet) for count in (100, 900))
    wnids = [] if own100 and own900 else _all_wnids(imagenet)
    open_wnids = own100[1] if own100 else [wnids[place] for place in imagenet100_places()]
    if own900:
        require_disjoint(str(own900[0]), own900[1], open_wnids)
    trained = own900[1] if own900 else [wnid for wnid in wnids if wnid not in open_wnids]
    train, open_set = _listed(imagenet / "train", trained), _listed(imagenet / "val", open_wnids)
    data = listed_set("imagenet900", train, open_set, size, channels, decode=decode)
    if decode:
        return data
    counts = {"val": (len(open_wnids), len(open_set.labels), VAL_IMAGES * len(open_wnids))}
    if wnids:  # how many images the 900 classes have is not published, but the number of all is
        others = sum(1 for wnid in set(wnids) - set(trained) for _ in image_paths(imagenet / "train", wnid))
        counts["train"] = NUM_CLASSES, len(train.labels) + others, TRAIN_IMAGES
    notes = []
    for part, (classes, images, published) in counts.items():
        same = "as published" if images == published else f"published are {published:,}: results may not compare"
        notes.append(f"{imagenet / part}: {images:,} images of {classes} classes, {same}")
    return replace(data, notes=tuple(notes))


def load_tiny_imagenet200(root: Path, size: int, channels: int, decode: bool = True) -> ImageSet:
    """Return Tiny-ImageNet200 (train/) to train on and ImageNet20 (ImageNet's val/) to verify."""
    tiny, parent = find_folder(root, TINY), dataset_parent(root, TINY)
    if tiny is None:
        raise MissingDataError(f"{root}: no folder {TINY} in it")
    imagenet, prepared = find_folder(parent, *FOLDERS), parent / "imagenet20"
    if imagenet is None and not prepared.is_dir():
        expected = "imagenet/val/<wnid>/*.JPEG or imagenet20/<wnid>/*.JPEG"
        raise MissingDataError(f"{parent}: no ImageNet20, expected {expected}")
    train = _listed(tiny / "train", read_wnids(tiny / "wnids.txt") or class_folders(tiny / "train"), inside="images")
    require_disjoint(str(tiny), train.classes, IMAGENET20)
    open_set = _listed(prepared if prepared.is_dir() or imagenet is None else imagenet / "val", IMAGENET20)
    return listed_set("tiny_imagenet200", train, open_set, size, channels, decode=decode)


def imagenet100_places() -> list[int]:
    """Return the places of ImageNet100's classes among the 1000 wnids in sorted order."""
    places: list[int] = np.random.RandomState(1993).permutation(NUM_CLASSES)[:100].tolist()
    return places


def _own_list(name: str, root: Path, imagenet: Path) -> tuple[Path, Sequence[str]] | None:
    """Return path and wnids of a user's list of that name, beside ImageNet's folder or in it."""
    paths = dict.fromkeys(place / name for place in (dataset_parent(root, *FOLDERS), root, imagenet))
    lists = [(path, wnids) for path in paths if (wnids := read_wnids(path)) is not None]
    for path, wnids in lists[1:]:
        if set(wnids) != set(lists[0][1]):
            raise InputError(f"{lists[0][0]} and {path}: two lists of different classes; remove one")
    return lists[0] if lists else None


def _all_wnids(imagenet: Path) -> list[str]:
    train, val = imagenet / "train", imagenet / "val"
    wnids = class_folders(train)
    lacking = NUM_CLASSES - len(wnids)
    if lacking:
        absent = sorted(set(_wnid_folders(val)) - set(wnids)) if val.is_dir() else []
        first = f", first {absent[0]}" if absent else ""
        fault = f"{lacking} are missing{first}" if lacking > 0 else f"{-lacking} are too many"
        own = "for other classes give both imagenet100.txt and imagenet900.txt"
        raise MissingDataError(f"{train}: {len(wnids)} class folders instead of {NUM_CLASSES}, {fault}; {own}")
    return wnids


def _wnid_folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if WNID.fullmatch(path.name) and path.is_dir())


def class_folders(folder: Path) -> list[str]:
    """Return the sorted wnids that are folders in `folder`; raise MissingDataError if there are none."""
    expected = f"{folder}/<wnid>/*.JPEG"
    if not folder.is_dir():
        raise MissingDataError(f"{folder}: no such folder; expected {expected}")
    if wnids := _wnid_folders(folder):
        return wnids
    flat = next((path.name for path in folder.iterdir() if path.suffix.lower() in EXTENSIONS), None)
    if flat is None:
        raise MissingDataError(f"{folder}: no wnid folders in it; expected {expected}")
    how = "torchvision.datasets.ImageNet does so when it unpacks val, the usual valprep script does so afterwards"
    raise MissingDataError(f"{folder}: its images ({flat}, ...) must be sorted into wnid folders, {expected}: {how}")


def _listed(folder: Path, wnids: Sequence[str], inside: str = "") -> Listing:
    class_folders(folder)
    return list_folders(folder, f"{folder}/<wnid>/*.JPEG", wnids, inside)


def read_wnids(path: Path) -> Sequence[str] | None:
    """Return the wnids of a file with one per line, or None if there is no such file."""
    if not path.is_file():
        return None
    wnids: list[str] = []
    for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), start=1):
        wnid = line.strip()
        if wnid and not WNID.fullmatch(wnid):
            raise InputError(f"{path}, line {number}: {wnid[:40]!r} is not a wnid such as n01440764; give one per line")
        if wnid in wnids:
            raise InputError(f"{path}, line {number}: {wnid} is listed twice; remove one")
        wnids += [wnid] if wnid else []
    if not wnids:
        raise InputError(f"{path}: no wnids in it, expected one per line")
    return wnids


_ACCESS = "request access to ImageNet at https://image-net.org/download"
_STANFORD = "http://cs231n.stanford.edu"

IMAGENET900 = Dataset(
    name="imagenet900",
    description="900 classes of ImageNet, verified on the other 100",
    classes=900,
    images=1_158_000,
    about=True,
    open_set="100 classes, validation images",
    image_shape=(224, 224, 3),
    licence="ImageNet's terms of access",
    load=load_imagenet900,
    layout="imagenet/train/<wnid> and imagenet/val/<wnid>",
    how_to_get=_ACCESS,
)
TINY_IMAGENET200 = Dataset(
    name="tiny_imagenet200",
    description="Tiny-ImageNet, verified on 20 other classes of ImageNet",
    classes=200,
    images=101_000,
    open_set="20 classes, validation images",
    image_shape=(64, 64, 3),
    licence="ImageNet's terms of access",
    load=load_tiny_imagenet200,
    layout="tiny-imagenet-200/train/<wnid>/images and imagenet/val/<wnid> (or imagenet20/<wnid>)",
    archives=(Archive(f"{TINY}.zip", f"{_STANFORD}/{TINY}.zip", "90528d7ca1a48142e341f4ef8d21d0de", TINY),),
    how_to_get=f"its open set is a part of ImageNet: {_ACCESS}",
)
