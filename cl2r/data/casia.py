"""CASIA-WebFace to train on (Yi et al. 2014), verified on LFW.

ROOT/casia-webface/<id>/*.jpg                        folders; `FOLDERS` has the names they may have
ROOT/faces_webface_112x112/train.rec, train.idx      or InsightFace's packed crops
ROOT/faces_webface_112x112/lfw.bin                   pairs of LFW cropped like them; elsewhere it is not read

ROOT itself may be one of these folders; LFW is then looked for beside it.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cl2r.data.check import Check, find_folder, home
from cl2r.data.dataset import Images, ImageSet, Labels, require_disjoint
from cl2r.data.images import EncodedImages, LazyImages, images_of
from cl2r.data.lfw import FIT, OPEN_LAYOUT, check_lfw_open, lfw_open, note_images
from cl2r.data.lfw import FOLDERS as LFW_FOLDERS
from cl2r.data.listing import list_folders, only_folder
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


def casia_train(
    root: Path, size: int, channels: int, expected: str = LAYOUT
) -> tuple[Images | LazyImages, Labels, tuple[str, ...]]:
    """Images, labels 0..K-1 and names of the people."""
    encoded, labels, names = _read(find_casia(root, expected))
    return images_of(encoded, size, channels, FIT), labels, names


def load_casia_lfw(root: Path, size: int, channels: int) -> ImageSet:
    """Trained on CASIA-WebFace, verified on LFW."""
    hint = f"see `cl2r datasets --check casia_lfw {root}`"
    casia, lfw = _homes(root)
    beside = find_casia(casia, f"{LAYOUT}; {hint}").beside
    faces = lfw_open(lfw, size, channels, beside, f"{OPEN_LAYOUT}; {hint}")
    x_train, y_train, names = casia_train(casia, size, channels)
    require_disjoint(str(root), names, faces.names)
    return ImageSet("casia_lfw", x_train, y_train, faces.images, faces.labels, names, faces.pairs)


def check_casia_lfw(root: Path) -> Check:
    """Whether the folder serves for `load_casia_lfw`."""
    check = Check()
    casia, lfw = _homes(root)
    check_lfw_open(check, lfw, check_casia(check, casia))
    return check


def check_casia(check: Check, root: Path) -> Path | None:
    """Note what `casia_train` would find; where a lfw.bin may lie beside it."""
    source = check.attempt(lambda: find_casia(root))
    if source is None:
        return None
    check.attempt(lambda: _note(check, source))
    return source.beside


def find_casia(root: Path, expected: str = LAYOUT) -> Source:
    """CASIA-WebFace below `root`; `expected` ends the message where there is none."""
    packed = only_folder(root, (PACKED,), "CASIA-WebFace")
    folder = only_folder(root, FOLDERS, "CASIA-WebFace")
    records = [place / RECORDS for place in (packed, folder) if place is not None and (place / RECORDS).is_file()]
    if len(records) > 1:
        raise InputError(f"{records[0]} and {records[1]}: two copies of CASIA-WebFace, move or remove one")
    if records:
        return Source(records[0], unused=None if folder == records[0].parent else folder)
    if folder is None:
        raise InputError(f"{root}: no CASIA-WebFace in it; expected {expected}")
    return Source(folder)


def _homes(root: Path) -> tuple[Path, Path]:
    """Where CASIA-WebFace and LFW are looked for: in `root`, or beside it where it is the other one."""
    own = (*FOLDERS, PACKED)
    casia = root if find_folder(root, *own) is not None else home(root, *LFW_FOLDERS)
    lfw = root if find_folder(root, *LFW_FOLDERS) is not None else home(root, *own)
    return casia, lfw


def _note(check: Check, source: Source) -> None:
    encoded, labels, names = _read(source)
    published = f"{PUBLISHED_PEOPLE} people as published, {CLEANED_PEOPLE} in InsightFace's cleaned copy"
    known = len(names) in (PUBLISHED_PEOPLE, CLEANED_PEOPLE)
    found = f"{source.path}: {len(labels)} images of {len(names)} people"
    check.found.append(found if known else f"{found} ({published})")
    if source.unused is not None:
        check.found.append(f"{source.unused}: not used, {source.path} comes first")
    note_images(check, encoded)


def _read(source: Source) -> tuple[EncodedImages, Labels, tuple[str, ...]]:
    if source.packed:
        records = read_record_file(source.path)
        numbers, labels = np.unique(records.labels, return_inverse=True)
        return records, labels.astype(np.int64), tuple(str(number) for number in numbers.tolist())
    people = list_folders(source.path, LAYOUT)
    return people.files, people.labels, people.classes
