"""LFW: faces in the wild (Huang et al. 2007), verified by 6000 official pairs in ten folds.

    ROOT/lfw/<Name>/<Name>_0001.jpg      13,233 images of 5749 people; `FOLDERS` has other names of the folder
    ROOT/lfw/pairs.txt                   or ROOT/pairs.txt

As a data set of its own, LFW is trained on the people with at least 20 images and verified on all others.

InsightFace's lfw.bin holds the images of the official pairs in their order, cropped like the train.rec beside it. It is
a pickle (images, same); the ends of pair i are the images 2i and 2i + 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cl2r.data.dataset import Archive, Dataset, ImageSet, Labels, MissingDataError
from cl2r.data.folders import Listing, dataset_parent, find_folder, list_folders, listed_set
from cl2r.data.images import Crop
from cl2r.data.pair_list import PAIR_LIST, official_pairs
from cl2r.data.pickles import load_plain
from cl2r.errors import InputError
from cl2r.verification import Pairs

FOLDERS = ("lfw", "lfw-deepfunneled", "lfw_funneled", "lfw64", "lfw-112x112")
LAYOUT = f"ROOT/{'|'.join(FOLDERS)}/<Name>/<Name>_0001.jpg"
CROP: Crop = "whole"
UNCROPPED = 250  # pixels per side as published: the face takes the middle of such an image
PEOPLE_WITH = 20  # images that make a person of LFW a class to train on
BIN, BIN_FOLDS = "lfw.bin", 10


def load_lfw(root: Path, size: int, channels: int, decode: bool = True) -> ImageSet:
    """Return LFW alone: people with many images to train on, official pairs of all others to verify."""
    people, pairs = find_lfw(root)
    trained = np.bincount(people.labels) >= PEOPLE_WITH
    who = f"{trained.sum()} people with at least {PEOPLE_WITH} images"
    if trained.sum() < 2:
        raise InputError(f"{people.folder}: {who}, training needs 2 of them; get all of LFW")
    is_open = ~trained[people.labels]
    kept = is_open[pairs.query] & is_open[pairs.gallery]
    lost = np.setdiff1d(pairs.folds, pairs.folds[kept])
    if len(lost):
        lacks = f"fold {lost[0] + 1} of the pair list has no pair without the {who}"
        raise InputError(f"{people.folder}: {lacks}; get LFW's own {PAIR_LIST}")
    row = np.cumsum(is_open) - 1
    pairs = Pairs(row[pairs.query[kept]], row[pairs.gallery[kept]], pairs.same[kept], pairs.folds[kept])
    train, open_set = people.select(trained), people.select(~trained)
    return listed_set("lfw", train, open_set, size, channels, CROP, decode, pairs)


def find_lfw(root: Path, expected: str = LAYOUT) -> tuple[Listing, Pairs]:
    """Return the people of LFW below `root`, and the official pairs as rows of their images."""
    folder = find_folder(root, *FOLDERS, only="LFW")
    if folder is None:
        raise MissingDataError(f"{root}: no LFW in it; expected {expected}")
    people = list_folders(folder, LAYOUT)
    beside = dataset_parent(root, *FOLDERS) if people.folder == root else root
    pairs = official_pairs([people.folder / PAIR_LIST, beside / PAIR_LIST], people)
    if pairs is None:
        fetch = f"`cl2r datasets download lfw {beside}` fetches it"
        raise InputError(f"{people.folder / PAIR_LIST}: LFW's list of official pairs is missing; {fetch}")
    return people, pairs


@dataclass(frozen=True, eq=False)
class PackedPairs:
    """The content of a lfw.bin: the pairs in ten folds, one after the other.

    The two ends of a pair of one person have the same label: nothing else is known of people.
    """

    path: Path
    images: list[bytes]
    labels: Labels
    pairs: Pairs

    def __len__(self) -> int:
        return len(self.images)

    def read(self, row: int) -> bytes:
        return self.images[row]

    def name(self, row: int) -> str:
        return f"{self.path}: image {row}"

    def identity(self) -> Iterator[bytes]:
        yield f"{self.path.name}\0".encode()
        yield np.array([len(image) for image in self.images], np.int64).tobytes()


def read_packed(path: Path) -> PackedPairs:
    """Read a lfw.bin; raise InputError if it is damaged or holds code."""
    held = load_plain(path)
    if not isinstance(held, tuple | list) or len(held) != 2 or not isinstance(held[0], tuple | list):
        raise InputError(f"{path}: expected a pickled (images, same); get InsightFace's {BIN} again")
    images, flags = [], held[1]
    for row, image in enumerate(held[0]):
        if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 1:
            image = image.tobytes()
        if not isinstance(image, bytes):
            found = f"image {row} is {type(image).__name__}, not the bytes of an image file"
            raise InputError(f"{path}: {found}; get InsightFace's {BIN} again")
        images.append(image)
    if isinstance(flags, np.ndarray) and flags.ndim == 1 and flags.dtype.kind in "biu":
        flags = flags.tolist()
    if not isinstance(flags, tuple | list) or not all(isinstance(flag, int) and flag in (0, 1) for flag in flags):
        raise InputError(f"{path}: whether pairs show one person must be a list of True and False; get {BIN} again")
    count = len(flags)
    if len(images) != 2 * count or count < BIN_FOLDS:
        expected = f"expected 2 images per pair and at least {BIN_FOLDS} pairs"
        raise InputError(f"{path}: {len(images)} images for {count} pairs, {expected}; get {BIN} again")
    same, rows = np.array(flags, np.bool_), np.arange(len(images), dtype=np.int64)
    labels = rows.copy()
    labels[1::2] -= same
    folds = np.arange(count, dtype=np.int64) * BIN_FOLDS // count
    return PackedPairs(path, images, labels, Pairs(rows[::2], rows[1::2], same, folds))


_FIGSHARE = "https://ndownloader.figshare.com/files"  # scikit-learn's copies of LFW; LFW's own server is gone
_IMAGES_SHA256 = "055f7d9c632d7370e6fb4afc7468d40f970c34a80d4c6f50ffec63f5a8d536c0"
_PAIRS_SHA256 = "ea42330c62c92989f9d7c03237ed5d591365e89b3e649747777b70e692dc1592"
_LISTS = tuple(f"{folder}/{PAIR_LIST}" for folder in FOLDERS)

LFW = Dataset(
    name="lfw",
    description="LFW alone: the people with 20 images or more, verified on everybody else",
    classes=62,
    images=13_233,
    open_set="the official pairs without those people",
    image_shape=(64, 64, 3),
    licence="research use",
    load=load_lfw,
    layout="lfw/<name>/<name>_0001.jpg, and pairs.txt in lfw or beside it",
    uncropped=UNCROPPED,
    archives=(
        Archive("lfw.tgz", f"{_FIGSHARE}/5976018", _IMAGES_SHA256, "lfw", FOLDERS, "sha256"),
        Archive(PAIR_LIST, f"{_FIGSHARE}/5976006", _PAIRS_SHA256, PAIR_LIST, _LISTS, "sha256"),
    ),
)
