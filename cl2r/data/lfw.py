"""LFW: faces in the wild (Huang et al. 2007), verified by 6000 official pairs in ten folds.

    ROOT/lfw/<Name>/<Name>_0001.jpg      13233 images of 5749 people; the folder may have any name of `FOLDERS`
    ROOT/lfw/pairs.txt                   or ROOT/pairs.txt

or InsightFace's `lfw.bin`, which holds the images of the pairs in their order, cropped like its `train.rec`.
As a benchmark of its own, LFW is trained on the people with at least 20 images and verified on all others.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cl2r.data.check import Check, find_folder
from cl2r.data.dataset import Images, ImageSet, Labels, Pairs
from cl2r.data.images import EncodedImages, Fit, ImageFiles, LazyImages, images_of
from cl2r.data.pair_list import read_pair_list
from cl2r.data.safe_pickle import load_plain
from cl2r.errors import InputError

FOLDERS = ("lfw", "lfw-deepfunneled", "lfw_funneled", "lfw64", "lfw-112x112")
EXTENSIONS = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".webp"})
LAYOUT = f"ROOT/{'|'.join(FOLDERS)}/<Name>/<Name>_0001.jpg"
BIN = "lfw.bin"
PEOPLE_WITH = 20
"""Images that make a person of LFW a class to train on."""
PUBLISHED_IMAGES, PUBLISHED_PEOPLE = 13233, 5749
PUBLISHED_SIDE = 250  # pixels: the face takes the middle of such an image
UNCROPPED = ", so these are no aligned crops: train and test faces should be cropped alike"
BIN_FOLDS = 10
FIT: Fit = "whole"


@dataclass(frozen=True, eq=False)
class People:
    """Images in a folder for each person, in sorted order, with the place of the person among `names`."""

    names: tuple[str, ...]
    files: ImageFiles
    labels: Labels

    @property
    def folder(self) -> Path:
        """What holds the people's folders."""
        return self.files.root

    @property
    def counts(self) -> Labels:
        """Images of each person."""
        return np.bincount(self.labels, minlength=len(self.names)).astype(np.int64)

    def select(self, chosen: npt.NDArray[np.bool_]) -> "People":
        """Some of the people, and only their images, numbered anew."""
        number = np.cumsum(chosen) - 1
        rows = np.flatnonzero(chosen[self.labels])
        names = tuple(name for name, wanted in zip(self.names, chosen.tolist(), strict=True) if wanted)
        paths = [self.files.paths[row] for row in rows.tolist()]
        return People(names, ImageFiles(self.folder, paths), number[self.labels[rows]])


@dataclass(frozen=True, eq=False)
class OpenFaces:
    """LFW to verify on."""

    images: Images | LazyImages
    labels: Labels
    pairs: Pairs
    names: tuple[str, ...]
    """Of the people; none in a lfw.bin, where only the ends of a pair are known to be alike or not."""


@dataclass(frozen=True, eq=False)
class PackedPairs:
    """A lfw.bin: the ends of pair i are the images 2i and 2i + 1."""

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


def load_lfw(root: Path, size: int, channels: int) -> ImageSet:
    """LFW alone: the people with many images are trained on, official pairs of the others are reported."""
    people = find_lfw(root)
    train, open_set, pairs = _split(people, lfw_pairs(root, people))
    return ImageSet(
        name="lfw",
        x_train=images_of(train.files, size, channels, FIT),
        y_train=train.labels,
        x_open=images_of(open_set.files, size, channels, FIT),
        y_open=open_set.labels,
        class_names=train.names,
        pairs=pairs,
    )


def check_lfw(root: Path) -> Check:
    """Whether the folder serves for `load_lfw`."""
    check = Check()
    try:
        train, _, kept = _split(*_note_lfw(check, root))
        of_them = f"{kept.same.sum()} same, {(~kept.same).sum()} different"
        check.found.append(f"{len(train.names)} people with {PEOPLE_WITH} images or more to train on")
        check.found.append(f"{len(kept)} pairs without them ({of_them})")
    except InputError as error:
        check.wrong.append(str(error))
    return check


def lfw_open(root: Path, size: int, channels: int, beside: Path | None = None) -> OpenFaces:
    """All of LFW as open set; a lfw.bin in `beside`, the folder of a train.rec, comes before folders of people."""
    packed = find_packed(beside)
    if packed is not None:
        pairs = read_packed(packed)
        return OpenFaces(images_of(pairs, size, channels, FIT), pairs.labels, pairs.pairs, ())
    people = find_lfw(root)
    official = lfw_pairs(root, people)
    return OpenFaces(images_of(people.files, size, channels, FIT), people.labels, official, people.names)


def check_lfw_open(check: Check, root: Path, beside: Path | None = None) -> None:
    """Note whether `lfw_open` would succeed."""
    packed = find_packed(beside)
    try:
        if packed is not None:
            _note_packed(check, root, read_packed(packed))
        else:
            _note_lfw(check, root)
    except InputError as error:
        check.wrong.append(str(error))


def only_folder(root: Path, names: tuple[str, ...], what: str) -> Path | None:
    """The one folder of such a name below `root`, or `root` itself; two copies are refused."""
    below = [root / name for name in names if (root / name).is_dir()]
    for other in below[1:]:
        if not other.samefile(below[0]):  # a file system may not tell upper from lower case
            raise InputError(f"{below[0]} and {other}: two copies of {what}, move or remove one")
    return find_folder(root, *names)


def list_people(folder: Path) -> People:
    """Every image in folder/<person>/."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise InputError(f"{folder}: no folders of people in it")
    files = [_images_of(folder / name) for name in names]
    labels = np.repeat(np.arange(len(names), dtype=np.int64), [len(found) for found in files])
    paths = [f"{name}/{file}" for name, found in zip(names, files, strict=True) for file in found]
    return People(tuple(names), ImageFiles(folder, paths), labels)


def find_lfw(root: Path) -> People:
    """The people of LFW below `root`."""
    folder = only_folder(root, FOLDERS, "LFW")
    if folder is None:
        raise InputError(f"{root}: no LFW in it; expected {LAYOUT}, see `cl2r datasets --check lfw {root}`")
    return list_people(folder)


def lfw_pairs(root: Path, people: People) -> Pairs:
    """The official pairs, as rows of the people's images."""
    path = _pair_list(root, people.folder)
    stems = [Path(image).stem for image in people.files.paths]
    keys = [(people.names[label], stem) for label, stem in zip(people.labels.tolist(), stems, strict=True)]
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        name, stem = twice[0]
        raise InputError(f"{people.folder / name}: two images named {stem}; {path} would not know which, remove one")
    return read_pair_list(path, {key: row for row, key in enumerate(keys)}, str(people.folder))


def _note_lfw(check: Check, root: Path) -> tuple[People, Pairs]:
    """Find people and pairs; note them, and how the images differ from those published."""
    people = find_lfw(root)
    found = f"{len(people.labels)} images of {len(people.names)} people"
    published = f"LFW as published has {PUBLISHED_IMAGES} of {PUBLISHED_PEOPLE}"
    whole = (len(people.labels), len(people.names)) == (PUBLISHED_IMAGES, PUBLISHED_PEOPLE)
    check.found.append(f"{people.folder}: {found}" + ("" if whole else f" ({published})"))
    note_images(check, people.files)
    pairs = lfw_pairs(root, people)
    check.found.append(f"{len(pairs)} official pairs in {pairs.folds.max() + 1} folds")
    return people, pairs


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


def find_packed(folder: Path | None) -> Path | None:
    """InsightFace's lfw.bin."""
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


def _note_packed(check: Check, root: Path, packed: PackedPairs) -> None:
    """What was found in a lfw.bin, and what it makes needless."""
    of_them = f"{packed.same.sum()} same, {(~packed.same).sum()} different"
    check.found.append(f"{packed.path}: {len(packed.same)} official pairs ({of_them}) in {BIN_FOLDS} folds")
    check.found.append("it holds no other images, so there are no tuning pairs")
    note_images(check, packed)
    folder = find_folder(root, *FOLDERS)
    if folder is not None:
        check.found.append(f"{folder}: not used, {BIN} is cropped like train.rec")


def _images_of(folder: Path) -> list[str]:
    found = [entry.name for entry in os.scandir(folder) if Path(entry.name).suffix.lower() in EXTENSIONS]
    names = sorted(name for name in found if not name.startswith("."))
    if not names:
        raise InputError(f"{folder}: folder without images ({' '.join(sorted(EXTENSIONS))}); fill or remove it")
    return names


def _pair_list(root: Path, folder: Path) -> Path:
    found = [path for path in (folder / "pairs.txt", root / "pairs.txt") if path.is_file()]
    if not found:
        raise InputError(f"{folder / 'pairs.txt'}: LFW's list of official pairs is missing; put it there")
    if not found[0].samefile(found[-1]):
        raise InputError(f"{found[0]} and {found[1]}: two pair lists, remove one")
    return found[0]


def _split(people: People, pairs: Pairs) -> tuple[People, People, Pairs]:
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


def _image_bytes(path: Path, row: int, image: object) -> bytes:
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 1:
        return image.tobytes()
    if not isinstance(image, bytes):
        raise InputError(f"{path}: image {row} must be the bytes of an image file, found {type(image).__name__}")
    return image


def _flags(path: Path, held: object) -> npt.NDArray[np.bool_]:
    flags = list(held) if isinstance(held, tuple | list | np.ndarray) else [held]
    if not all(isinstance(flag, int | np.integer | np.bool_) and flag in (0, 1) for flag in flags):
        raise InputError(f"{path}: whether pairs show one person must be a list of True and False")
    return np.array(flags, np.bool_)
