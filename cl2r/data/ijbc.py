"""IJB-C 1:1 verification after training on CASIA-WebFace, in the layout of InsightFace's release of IJB-C.

    ROOT/ijbc/meta/ijbc_face_tid_mid.txt          name tid mid: image, its template, the photo or video it comes from
    ROOT/ijbc/meta/ijbc_template_pair_label.txt   tid1 tid2 label: query template, gallery template, 1 if same person
    ROOT/ijbc/meta/ijbc_name_5pts_score.txt       name x1 y1 ... x5 y5 score: landmarks in the image
    ROOT/ijbc/loose_crop/<name>                   or ROOT/ijbc/aligned/<name>; then landmarks are not read

ROOT itself may be such a folder, or CASIA-WebFace's: the other one is then looked for beside it.
There are 16 million pairs, hence columns of numbers and no loop over lines, except to name a bad line.
"""

import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from csv import QUOTE_NONE
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from cl2r.data.casia import CASIA_LFW, HOW_TO_GET, PACKED, find_casia
from cl2r.data.casia import FOLDERS as CASIA_FOLDERS
from cl2r.data.dataset import Dataset, ImageSet, Labels, MissingDataError, Templates
from cl2r.data.face_alignment import AlignedImages, Landmarks, alignable
from cl2r.data.folders import dataset_parent, find_folder
from cl2r.data.images import ImageFiles, LazyImages, images_of
from cl2r.data.lfw import CROP, UNCROPPED
from cl2r.errors import InputError
from cl2r.verification import Pairs

if TYPE_CHECKING:
    import pandas as pd  # imported where it is needed: the list of data sets can do without

IMAGES_LIST, PAIRS_LIST, LANDMARKS_LIST = (
    f"meta/ijbc_{name}.txt" for name in ("face_tid_mid", "template_pair_label", "name_5pts_score")
)
LINES_AT_A_TIME = 10**6  # keeps the parser's own copies small
LARGEST_TID = 10**7  # rows are looked up in an array of this length at most

FOLDERS = ("ijbc", "IJBC", "IJB-C")
Columns = dict[str, Literal["str", "int32", "float32"]]

FORMS = {
    "str": r"[^\s\udc80-\udcff]+",  # bytes that are not UTF-8 are read as these
    "int32": r"-?[0-9]{1,9}",
    "float32": r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?",
}

COORDINATES = [f"{axis}{point}" for point in range(1, 6) for axis in "xy"]
LANDMARK_COLUMNS: Columns = {"name": "str", **dict.fromkeys(COORDINATES, "float32"), "score": "float32"}


def read_images(path: Path) -> tuple[list[str], Templates, Labels]:
    """Return the names of the images, their templates, and the row of every template id.

    The row is -1 if no image has the id; the last entry stands for all ids out of range.
    """
    table = _columns(path, {"name": "str", "tid": "int32", "mid": "int32"})
    tid = table["tid"].to_numpy(np.int32)
    outside = (tid < 0) | (tid >= LARGEST_TID)
    _refuse(path, outside, lambda row: f"template id {tid[row]} is not in 0..{LARGEST_TID - 1}")
    known, rows = np.unique(tid, return_inverse=True)
    row_of_tid = np.full(int(known[-1]) + 2, -1, np.int64)
    row_of_tid[known] = np.arange(len(known))
    return table["name"].tolist(), Templates(rows.astype(np.int64), table["mid"].to_numpy(np.int64)), row_of_tid


def read_pairs(path: Path, row_of_tid: Labels) -> Pairs:
    """Read the list of template pairs; the first of a pair is the query. Rates need no folds, so all are in one."""
    table = _columns(path, dict.fromkeys(("tid1", "tid2", "label"), "int32"))
    label = table["label"].to_numpy(np.int32)
    _refuse(path, (label != 0) & (label != 1), lambda row: f"label {label[row]} is neither 1 (same person) nor 0")
    if label.min() == label.max():
        raise InputError(f"{path}: every label is {label[0]}, but both 0 and 1 are needed; get the list again")

    def rows(tids: npt.NDArray[np.int32]) -> Labels:
        found = row_of_tid[np.clip(tids, -1, len(row_of_tid) - 1)]
        _refuse(path, found < 0, lambda row: f"no image of {IMAGES_LIST} belongs to template {tids[row]}")
        return found

    query, gallery = (rows(table[name].to_numpy(np.int32)) for name in ("tid1", "tid2"))
    return Pairs(query, gallery, label == 1, np.broadcast_to(np.int64(0), len(label)))  # folds that take no memory


def read_landmarks(path: Path, names: list[str]) -> Landmarks:
    """Return landmarks (N, 5, 2) of the named images; the list may have another order, or more images."""
    import pandas as pd

    table = _columns(path, LANDMARK_COLUMNS).drop_duplicates("name")
    rows = pd.Index(table["name"]).get_indexer(pd.Index(names, dtype="str"))
    missing = np.flatnonzero(rows < 0)
    if missing.size:
        raise InputError(f"{path}: no landmarks of {names[missing[0]]} ({missing.size} such); get the list again")
    points: Landmarks = table[COORDINATES].to_numpy(np.float32)[rows].reshape(-1, 5, 2)
    useless, lines = ~alignable(points), table.index[rows]
    _refuse(path, useless, lambda row: f"no face can be aligned by these landmarks of {names[row]}", lines)
    return points


def _columns(path: Path, columns: Columns) -> "pd.DataFrame":
    """Return the fields of all lines that are not empty; they are separated by spaces."""
    import pandas as pd

    line_form = f"`{' '.join(columns)}`"
    if not path.is_file():
        raise MissingDataError(f"{path}: no such file, expected lines {line_form}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # pandas warns when it drops surplus fields
            parts = pd.read_csv(
                path,
                sep=r"\s+",
                header=None,
                names=list(columns),
                index_col=False,
                dtype=columns,
                na_filter=False,
                quoting=QUOTE_NONE,
                chunksize=LINES_AT_A_TIME,
            )
            table = pd.concat(list(parts), ignore_index=True)
    except (ValueError, pd.errors.ParserWarning) as error:
        form = re.compile(r"\s+".join(FORMS[kind] for kind in columns.values()))
        for number, line in _lines(path):
            if not form.fullmatch(line):
                raise InputError(f"{path}: line {number} must be {line_form}, found {line[:80]!r}") from error
        raise InputError(
            f"{path}: not a list of lines {line_form} ({str(error).splitlines()[0]}); get it again"
        ) from error
    if table.empty:
        raise InputError(f"{path}: empty, expected lines {line_form}; get it again")
    return table


def _refuse(
    path: Path, bad: npt.NDArray[np.bool_], reason: Callable[[int], str], lines: Sequence[int] | None = None
) -> None:
    """Raise InputError for the first bad row, if any; `lines` has the place of every row among the lines."""
    if bad.any():
        row = int(np.argmax(bad))
        number, _ = next(islice(_lines(path), row if lines is None else lines[row], None))
        raise InputError(f"{path}: line {number}: {reason(row)}; correct it, or get the list again")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not empty, with their numbers."""
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, start=1):
            if stripped := line.strip():
                yield number, stripped


def open_images(folder: Path, names: list[str], size: int, channels: int) -> LazyImages:
    """Return the images of the list, aligned by their landmarks unless they already are."""
    ready = (folder / "aligned").is_dir()
    files = ImageFiles(folder / ("aligned" if ready else "loose_crop"), names)
    if not files.root.is_dir():
        raise MissingDataError(f"{files.root}: no such folder, nor aligned/ beside it")
    outside = [name for name in names if "/" in name or name in (".", "..")]
    if outside:
        raise InputError(f"{files.root}: {IMAGES_LIST} names {outside[0][:80]!r}, expected files in this folder")
    there = set(os.listdir(files.root))
    missing = [files.root / name for name in names if name not in there]
    if missing:
        raise MissingDataError(f"{missing[0]}: {IMAGES_LIST} names it, but it is missing ({len(missing)} such)")
    if ready:
        return LazyImages(files, size, channels, CROP)
    return AlignedImages(files, size, channels, landmarks=read_landmarks(folder / LANDMARKS_LIST, names))


def load_casia_ijbc(root: Path, size: int, channels: int, decode: bool = True) -> ImageSet:
    """Return CASIA-WebFace to train on and the templates of IJB-C to compare."""
    folder = find_folder(dataset_parent(root, *CASIA_FOLDERS, PACKED), *FOLDERS)
    if folder is None:
        raise MissingDataError(f"{root / FOLDERS[0]}: no such folder")
    names, templates, row_of_tid = read_images(folder / IMAGES_LIST)
    pairs = read_pairs(folder / PAIRS_LIST, row_of_tid)
    casia = find_casia(dataset_parent(root, *FOLDERS))
    x_train, y_train = images_of(casia.images, size, channels, CROP, decode), casia.labels
    x_open, y_open = open_images(folder, names, size, channels), templates.template
    return ImageSet("casia_ijbc", x_train, y_train, x_open, y_open, casia.names, pairs, templates, notes=casia.notes)


CASIA_IJBC = Dataset(
    name="casia_ijbc",
    description="CASIA-WebFace, verified on IJB-C templates",
    classes=CASIA_LFW.classes,
    images=963_789,
    open_set="IJB-C's 15 658 489 official pairs of templates",
    image_shape=(112, 112, 3),
    licence=CASIA_LFW.licence,
    load=load_casia_ijbc,
    uncropped=UNCROPPED,
    layout="CASIA-WebFace as above; ijbc/meta/*.txt with ijbc/loose_crop or ijbc/aligned",
    how_to_get=f"{HOW_TO_GET}; request IJB-C from NIST, https://www.nist.gov/programs-projects/face-challenges; "
    "recognition/_evaluation_/ijb of InsightFace describes its release with meta/ and loose_crop/",
)
