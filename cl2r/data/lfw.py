"""LFW: faces in the wild (Huang et al. 2007), verified by 6000 official pairs in ten folds.

    ROOT/lfw/<Name>/<Name>_0001.jpg      13233 images of 5749 people; the folder may have any name of `FOLDERS`
    ROOT/lfw/pairs.txt                   or ROOT/pairs.txt

Beside InsightFace's train.rec a lfw.bin comes before these. As a benchmark of its own, LFW is trained on the people
with at least 20 images and verified on all others.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cl2r.data.check import Check, find_folder, home
from cl2r.data.dataset import Images, ImageSet, Labels, Pairs
from cl2r.data.images import EncodedImages, Fit, LazyImages, images_of
from cl2r.data.lfw_bin import BIN, BIN_FOLDS, PackedPairs, find_packed, read_packed
from cl2r.data.listing import Listing, list_folders, only_folder
from cl2r.data.pair_list import PAIR_LIST, official_pairs
from cl2r.errors import InputError

FOLDERS = ("lfw", "lfw-deepfunneled", "lfw_funneled", "lfw64", "lfw-112x112")
LAYOUT = f"ROOT/{'|'.join(FOLDERS)}/<Name>/<Name>_0001.jpg"
OPEN_LAYOUT = f"{LAYOUT}, or {BIN} beside train.rec"
PEOPLE_WITH = 20
"""Images that make a person of LFW a class to train on."""
PUBLISHED_IMAGES, PUBLISHED_PEOPLE = 13233, 5749
PUBLISHED_SIDE = 250  # pixels: the face takes the middle of such an image
UNCROPPED = ", so these are no aligned crops: train and test faces should be cropped alike"
FIT: Fit = "whole"


@dataclass(frozen=True, eq=False)
class OpenFaces:
    """LFW to verify on."""

    images: Images | LazyImages
    labels: Labels
    pairs: Pairs
    names: tuple[str, ...]
    """Of the people; none in a lfw.bin, where only the ends of a pair are known to be alike or not."""


def load_lfw(root: Path, size: int, channels: int) -> ImageSet:
    """LFW alone: the people with many images are trained on, official pairs of the others are reported."""
    people = find_lfw(root, f"{LAYOUT}; see `cl2r datasets --check lfw {root}`")
    train, open_set, pairs = _split(people, lfw_pairs(root, people))
    return ImageSet(
        name="lfw",
        x_train=images_of(train.files, size, channels, FIT),
        y_train=train.labels,
        x_open=images_of(open_set.files, size, channels, FIT),
        y_open=open_set.labels,
        class_names=train.classes,
        pairs=pairs,
    )


def check_lfw(root: Path) -> Check:
    """Whether the folder serves for `load_lfw`."""
    check = Check()
    check.attempt(lambda: _note_split(check, *_note_lfw(check, root, LAYOUT)))
    return check


def lfw_open(
    root: Path, size: int, channels: int, beside: Path | None = None, expected: str = OPEN_LAYOUT
) -> OpenFaces:
    """All of LFW as open set; a lfw.bin in `beside`, the folder of a train.rec, comes before folders of people."""
    packed = find_packed(beside)
    if packed is not None:
        pairs = read_packed(packed)
        return OpenFaces(images_of(pairs, size, channels, FIT), pairs.labels, pairs.pairs, ())
    people = find_lfw(root, expected)
    official = lfw_pairs(root, people)
    return OpenFaces(images_of(people.files, size, channels, FIT), people.labels, official, people.classes)


def check_lfw_open(check: Check, root: Path, beside: Path | None = None) -> None:
    """Note whether `lfw_open` would succeed."""
    packed = find_packed(beside)
    if packed is not None:
        check.attempt(lambda: _note_packed(check, root, read_packed(packed)))
    else:
        check.attempt(lambda: _note_lfw(check, root, OPEN_LAYOUT))


def find_lfw(root: Path, expected: str = LAYOUT) -> Listing:
    """The people of LFW below `root`; `expected` ends the message where there are none."""
    folder = only_folder(root, FOLDERS, "LFW")
    if folder is None:
        raise InputError(f"{root}: no LFW in it; expected {expected}")
    return list_folders(folder, LAYOUT)


def lfw_pairs(root: Path, people: Listing) -> Pairs:
    """The official pairs, as rows of the people's images."""
    beside = home(root, *FOLDERS) if people.folder == root else root
    pairs = official_pairs([people.folder / PAIR_LIST, beside / PAIR_LIST], people)
    if pairs is None:
        fetch = f"`cl2r datasets --download lfw {beside}` fetches it"
        raise InputError(f"{people.folder / PAIR_LIST}: LFW's list of official pairs is missing; {fetch}")
    return pairs


def note_images(check: Check, images: EncodedImages) -> None:
    """To be decoded; and whether they are uncropped LFW photographs."""
    lazy = LazyImages(images, PUBLISHED_SIDE, 3, FIT)
    check.to_decode.append(lazy)
    try:
        width, height = lazy.open(0, 2**16).size
    except InputError:
        return  # the check names it when it decodes
    uncropped = (width, height) == (PUBLISHED_SIDE, PUBLISHED_SIDE)
    check.found.append(f"the first image has {width} × {height} pixels{UNCROPPED if uncropped else ''}")


def _note_lfw(check: Check, root: Path, expected: str) -> tuple[Listing, Pairs]:
    """Find people and pairs; note them, and how the images differ from those published."""
    people = find_lfw(root, expected)
    found = f"{len(people.labels)} images of {len(people.classes)} people"
    published = f"LFW as published has {PUBLISHED_IMAGES} of {PUBLISHED_PEOPLE}"
    whole = (len(people.labels), len(people.classes)) == (PUBLISHED_IMAGES, PUBLISHED_PEOPLE)
    check.found.append(f"{people.folder}: {found}" + ("" if whole else f" ({published})"))
    note_images(check, people.files)
    pairs = lfw_pairs(root, people)
    check.found.append(f"{len(pairs)} official pairs in {pairs.folds.max() + 1} folds")
    return people, pairs


def _note_split(check: Check, people: Listing, pairs: Pairs) -> None:
    """What LFW alone trains on and reports."""
    train, _, kept = _split(people, pairs)
    of_them = f"{kept.same.sum()} same, {(~kept.same).sum()} different"
    check.found.append(f"{len(train.classes)} people with {PEOPLE_WITH} images or more to train on")
    check.found.append(f"{len(kept)} pairs without them ({of_them})")


def _note_packed(check: Check, root: Path, packed: PackedPairs) -> None:
    """What was found in a lfw.bin, and what it makes needless."""
    of_them = f"{packed.same.sum()} same, {(~packed.same).sum()} different"
    check.found.append(f"{packed.path}: {len(packed.same)} official pairs ({of_them}) in {BIN_FOLDS} folds")
    check.found.append("it holds no other images, so there are no tuning pairs")
    note_images(check, packed)
    folder = find_folder(root, *FOLDERS)
    if folder is not None:
        check.found.append(f"{folder}: not used, {BIN} is cropped like train.rec")


def _split(people: Listing, pairs: Pairs) -> tuple[Listing, Listing, Pairs]:
    """People to train on, the others, and the pairs of the others, as rows of their images."""
    trained = people.counts >= PEOPLE_WITH
    if trained.sum() < 2:
        found = f"{trained.sum()} people with at least {PEOPLE_WITH} images"
        raise InputError(f"{people.folder}: {found}, training needs 2 of them; get all of LFW")
    is_open = ~trained[people.labels]
    row = np.cumsum(is_open) - 1
    kept = is_open[pairs.query] & is_open[pairs.gallery]
    lost = np.setdiff1d(pairs.folds, pairs.folds[kept])
    if len(lost):
        who = f"the {trained.sum()} people with at least {PEOPLE_WITH} images"
        raise InputError(f"{people.folder}: fold {lost[0] + 1} of the pair list has no pair without {who}")
    kept_pairs = Pairs(row[pairs.query[kept]], row[pairs.gallery[kept]], pairs.same[kept], pairs.folds[kept])
    return people.select(trained), people.select(~trained), kept_pairs
