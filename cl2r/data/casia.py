"""CASIA-WebFace to train on (Yi et al. 2014), verified on LFW.

ROOT/casia-webface/<id>/*.jpg                        folders; `FOLDERS` has the names they may have
ROOT/faces_webface_112x112/train.rec, train.idx      or InsightFace's packed crops, often with a lfw.bin
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cl2r.data.check import Check
from cl2r.data.dataset import Images, ImageSet, Labels, require_disjoint
from cl2r.data.images import EncodedImages, LazyImages, images_of
from cl2r.data.lfw import FIT, check_lfw_open, lfw_open, list_people, note_images, only_folder
from cl2r.data.recordio import read_record_file
from cl2r.errors import InputError

FOLDERS = ("casia-webface", "CASIA-WebFace", "casia_webface", "casia-112x112")
PACKED = "faces_webface_112x112"
RECORDS = "train.rec"
LAYOUT = f"ROOT/{'|'.join(FOLDERS)}/<id>/*.jpg, or ROOT/{PACKED}/{RECORDS} and train.idx"
PUBLISHED_PEOPLE, CLEANED_PEOPLE = 10575, 10572


@dataclass(frozen=True)
class Source:
    """Where CASIA-WebFace lies."""

    path: Path
    """A .rec file if there is one, else what holds the people's folders."""
    unused: Path | None = None
    """Folders, where there is a .rec file too."""

    @property
    def packed(self) -> bool:
        """Whether it is a .rec file."""
        return self.path.name == RECORDS

    @property
    def beside(self) -> Path | None:
        """Where a lfw.bin with crops of the same kind would lie."""
        return self.path.parent if self.packed else None


def casia_train(root: Path, size: int, channels: int) -> tuple[Images | LazyImages, Labels, tuple[str, ...]]:
    """Images, labels 0..K-1 and names of the people."""
    encoded, labels, names = _read(find_casia(root))
    return images_of(encoded, size, channels, FIT), labels, names


def load_casia_lfw(root: Path, size: int, channels: int) -> ImageSet:
    """Trained on CASIA-WebFace, verified on LFW."""
    faces = lfw_open(root, size, channels, find_casia(root).beside)
    x_train, y_train, names = casia_train(root, size, channels)
    require_disjoint(str(root), names, faces.names)
    return ImageSet("casia_lfw", x_train, y_train, faces.images, faces.labels, names, faces.pairs)


def check_casia_lfw(root: Path) -> Check:
    """Whether the folder serves for `load_casia_lfw`."""
    check = Check()
    check_lfw_open(check, root, check_casia(check, root))
    return check


def check_casia(check: Check, root: Path) -> Path | None:
    """Note what `casia_train` would find; where a lfw.bin may lie beside it."""
    try:
        source = find_casia(root)
        encoded, labels, names = _read(source)
    except InputError as error:
        check.wrong.append(str(error))
        return None
    published = f"{PUBLISHED_PEOPLE} people as published, {CLEANED_PEOPLE} in InsightFace's cleaned copy"
    known = len(names) in (PUBLISHED_PEOPLE, CLEANED_PEOPLE)
    found = f"{source.path}: {len(labels)} images of {len(names)} people"
    check.found.append(found if known else f"{found} ({published})")
    if source.unused is not None:
        check.found.append(f"{source.unused}: not used, {source.path} comes first")
    note_images(check, encoded)
    return source.beside


def find_casia(root: Path) -> Source:
    """CASIA-WebFace below `root`."""
    packed = only_folder(root, (PACKED,), "CASIA-WebFace")
    folder = only_folder(root, FOLDERS, "CASIA-WebFace")
    records = [place / RECORDS for place in (packed, folder) if place is not None and (place / RECORDS).is_file()]
    if len(records) > 1:
        raise InputError(f"{records[0]} and {records[1]}: two copies of CASIA-WebFace, move or remove one")
    if records:
        return Source(records[0], unused=None if folder == records[0].parent else folder)
    if folder is None:
        hint = f"`cl2r datasets --check casia_lfw {root}` says how to get it"
        raise InputError(f"{root}: no CASIA-WebFace in it; expected {LAYOUT}; {hint}")
    return Source(folder)


def _read(source: Source) -> tuple[EncodedImages, Labels, tuple[str, ...]]:
    if source.packed:
        records = read_record_file(source.path)
        numbers, labels = np.unique(records.labels, return_inverse=True)
        return records, labels.astype(np.int64), tuple(str(number) for number in numbers.tolist())
    people = list_people(source.path)
    return people.files, people.labels, people.names
