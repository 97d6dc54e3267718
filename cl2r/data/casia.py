"""CASIA-WebFace to train on (Yi et al. 2014), verified on LFW.

    ROOT/casia-webface/<id>/*.jpg                        folders; `FOLDERS` has other names of the folder
    ROOT/faces_webface_112x112/train.rec, train.idx      or InsightFace's packed crops, which come first
    ROOT/faces_webface_112x112/lfw.bin                   LFW's pairs cropped like them; not read from elsewhere

ROOT itself may be one of these folders; LFW is then looked for beside it.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cl2r.data.dataset import Dataset, ImageSet, Labels, MissingDataError, require_disjoint
from cl2r.data.folders import dataset_parent, find_folder, list_folders
from cl2r.data.images import EncodedImages, images_of
from cl2r.data.lfw import BIN, CROP, UNCROPPED, find_lfw, read_packed
from cl2r.data.lfw import FOLDERS as LFW_FOLDERS
from cl2r.data.lfw import LAYOUT as LFW_LAYOUT
from cl2r.data.recordio import read_record_file
from cl2r.errors import InputError

FOLDERS = ("casia-webface", "CASIA-WebFace", "casia_webface", "casia-112x112")
PACKED, RECORDS = "faces_webface_112x112", "train.rec"
CLEANED = 10_572  # people that InsightFace left of the published 10,575
LAYOUT = f"ROOT/{'|'.join(FOLDERS)}/<id>/*.jpg, or ROOT/{PACKED}/{RECORDS} and train.idx"


@dataclass(frozen=True, eq=False)
class Casia:
    """The people of CASIA-WebFace; `path` is the train.rec, or the folder that holds the people's folders."""

    path: Path
    images: EncodedImages
    labels: Labels
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def find_casia(root: Path) -> Casia:
    """Return CASIA-WebFace below `root`: a train.rec if there is one, otherwise the folders of people."""
    packed, folder = find_folder(root, PACKED), find_folder(root, *FOLDERS, only="CASIA-WebFace")
    records = [place / RECORDS for place in (packed, folder) if place is not None and (place / RECORDS).is_file()]
    if len(records) > 1:
        raise InputError(f"{records[0]} and {records[1]}: two copies of CASIA-WebFace; move or remove one")
    if records:
        file = read_record_file(records[0])
        numbers, labels = np.unique(file.labels, return_inverse=True)
        unused = folder is not None and folder != records[0].parent
        notes = [f"{folder}: not used, {records[0]} comes first"] if unused else []
        if len(numbers) == CLEANED:
            notes.append(f"{records[0]}: {CLEANED:,} people, as in InsightFace's cleaned copy")
        return Casia(records[0], file, labels.astype(np.int64), tuple(map(str, numbers.tolist())), tuple(notes))
    if folder is None:
        raise MissingDataError(f"{root}: no CASIA-WebFace in it; expected {LAYOUT}")
    people = list_folders(folder, LAYOUT)
    return Casia(folder, people.files, people.labels, people.classes)


def load_casia_lfw(root: Path, size: int, channels: int, decode: bool = True) -> ImageSet:
    """Return CASIA-WebFace to train on and LFW to verify."""
    # in `root`, or beside it if `root` is the other one
    own = (*FOLDERS, PACKED)
    casia = find_casia(root if find_folder(root, *own) else dataset_parent(root, *LFW_FOLDERS))
    beside = root if find_folder(root, *LFW_FOLDERS) else dataset_parent(root, *own)
    packed, notes = casia.path.parent / BIN, casia.notes
    if casia.path.name == RECORDS and packed.is_file():
        faces = read_packed(packed)
        open_images: EncodedImages = faces
        open_labels, pairs = faces.labels, faces.pairs
        notes += (f"{packed}: has no images besides those of its pairs, so there are no tuning pairs",)
        if unused := find_folder(beside, *LFW_FOLDERS):
            notes += (f"{unused}: not used, {BIN} is cropped like {RECORDS}",)
    else:
        people, pairs = find_lfw(beside, f"{LFW_LAYOUT}, or {BIN} beside {RECORDS}")
        open_images, open_labels = people.files, people.labels
        require_disjoint(str(root), casia.names, people.classes)
    x_train, x_open = (images_of(images, size, channels, CROP, decode) for images in (casia.images, open_images))
    return ImageSet("casia_lfw", x_train, casia.labels, x_open, open_labels, casia.names, pairs, notes=notes)


HOW_TO_GET = (
    "CASIA-WebFace is among InsightFace's data sets, "
    "https://github.com/deepinsight/insightface/tree/master/recognition/_datasets_"
)

CASIA_LFW = Dataset(
    name="casia_lfw",
    description="CASIA-WebFace, verified on LFW",
    classes=10_575,
    images=507_647,
    open_set="LFW's 6000 official pairs",
    image_shape=(112, 112, 3),
    licence="research use, by their owners' terms",
    load=load_casia_lfw,
    layout="casia-webface/<id> or faces_webface_112x112/train.rec; lfw/<name> with pairs.txt, "
    "or lfw.bin beside train.rec",
    how_to_get=f"{HOW_TO_GET}; `cl2r datasets download lfw DIR` fetches LFW",
    uncropped=UNCROPPED,
)
