"""IJB-C 1:1 verification after training on CASIA-WebFace, in the layout of InsightFace's release of IJB-C.

    DIR/ijbc/meta/ijbc_face_tid_mid.txt          name tid mid: image, its template, the photo or video it comes from
    DIR/ijbc/meta/ijbc_template_pair_label.txt   tid1 tid2 label: query template, gallery template, 1 if the same person
    DIR/ijbc/meta/ijbc_name_5pts_score.txt       name x1 y1 ... x5 y5 score: landmarks in the image
    DIR/ijbc/loose_crop/<name>                   or DIR/ijbc/aligned/<name>, then landmarks are not read

There are 16 million pairs, hence columns of numbers and no loop over lines, unless a line is to be blamed.
"""

import os
import re
import warnings
from collections.abc import Callable, Iterator
from csv import QUOTE_NONE
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from cl2r.data.casia import casia_train, check_casia
from cl2r.data.check import Check, find_folder
from cl2r.data.dataset import ImageSet, Labels, Pairs, Templates
from cl2r.data.face_alignment import AlignedImages, Landmarks, alignable
from cl2r.data.images import ImageFiles, LazyImages
from cl2r.errors import InputError

NAME = "casia_ijbc"
FOLDERS = ("ijbc", "IJBC", "IJB-C")
IMAGES_LIST, PAIRS_LIST, LANDMARKS_LIST = (
    f"meta/ijbc_{name}.txt" for name in ("face_tid_mid", "template_pair_label", "name_5pts_score")
)
PUBLISHED_IMAGES, PUBLISHED_TEMPLATES = 469_375, 23_124
PUBLISHED_SAME, PUBLISHED_DIFFERENT = 19_557, 15_638_932
LINES_AT_A_TIME = 10**6  # the parser's own copies stay small
LARGEST_TID = 10**7  # rows are looked up in an array of this length at most

SEE = f"see `cl2r datasets --check {NAME} DIR`"
HOW = (
    "IJB-C: NIST gives the images to those who sign its agreement (nist.gov, Face Challenges); InsightFace's "
    "recognition/_evaluation_/ijb describes the release with meta/ and loose_crop/, put both into DIR/ijbc/"
)

Int32 = npt.NDArray[np.int32]
Columns = dict[str, Literal["str", "int32", "float32"]]
T = TypeVar("T")

FORMS = {
    "str": r"[^\s\udc80-\udcff]+",  # bytes that are not UTF-8 are read as these
    "int32": r"-?[0-9]{1,9}",
    "float32": r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?",
}

IMAGE_COLUMNS: Columns = {"name": "str", "tid": "int32", "mid": "int32"}
PAIR_COLUMNS: Columns = {"tid1": "int32", "tid2": "int32", "label": "int32"}
COORDINATES = [f"{axis}{point}" for point in range(1, 6) for axis in "xy"]
LANDMARK_COLUMNS: Columns = {"name": "str", **dict.fromkeys(COORDINATES, "float32"), "score": "float32"}


@dataclass(frozen=True, eq=False)
class ImageList:
    """The images in order, and the rows that stand for template ids."""

    names: list[str]
    templates: Templates
    row_of_tid: Labels
    """-1 where no image has the id; the last entry stands for all ids out of range."""


def load_casia_ijbc(root: Path, size: int, channels: int) -> ImageSet:
    """CASIA-WebFace to train on, the templates of IJB-C to compare."""
    folder = find_folder(root, *FOLDERS)
    if folder is None:
        raise InputError(f"{root / FOLDERS[0]}: no such folder; {SEE}")
    listed = read_images(folder / IMAGES_LIST)
    pairs = read_pairs(folder / PAIRS_LIST, listed.row_of_tid)
    x_open = open_images(folder, listed.names, size, channels)
    x_train, y_train, class_names = casia_train(root, size, channels)
    templates = listed.templates
    return ImageSet(NAME, x_train, y_train, x_open, templates.template, class_names, pairs, templates)


def check_casia_ijbc(root: Path) -> Check:
    """What of CASIA-WebFace and IJB-C is there."""
    check = Check()
    check_casia(check, root)
    folder = find_folder(root, *FOLDERS)
    if folder is None:
        check.wrong.append(f"{root / FOLDERS[0]}: no such folder; {HOW}")
        return check
    before = len(check.wrong)
    listed = _attempt(check, lambda: read_images(folder / IMAGES_LIST))
    if listed is not None:
        _check_images(check, folder, listed)
        _check_pairs(check, folder, listed)
    if len(check.wrong) > before:
        check.wrong.append(HOW)
    return check


def read_images(path: Path) -> ImageList:
    """The list of images with the template and the medium of each."""
    table = _columns(path, IMAGE_COLUMNS)
    tid, mid = _numbers(table, "tid"), _numbers(table, "mid")
    beyond = np.flatnonzero((tid < 0) | (tid >= LARGEST_TID))
    if beyond.size:
        _blame(path, beyond[0], f"template id {tid[beyond[0]]} is not in 0..{LARGEST_TID - 1}")
    known, rows = np.unique(tid, return_inverse=True)
    row_of_tid = np.full(int(known[-1]) + 2, -1, np.int64)
    row_of_tid[known] = np.arange(len(known))
    templates = Templates(rows.astype(np.int64), mid.astype(np.int64))
    return ImageList(table["name"].tolist(), templates, row_of_tid)


def read_pairs(path: Path, row_of_tid: Labels) -> Pairs:
    """The list of template pairs; the first of a pair is the query."""
    table = _columns(path, PAIR_COLUMNS)
    label = _numbers(table, "label")
    odd = np.flatnonzero((label != 0) & (label != 1))
    if odd.size:
        _blame(path, odd[0], f"label {label[odd[0]]} is neither 1 (same person) nor 0")
    if label.min() == label.max():
        raise InputError(f"{path}: every label is {label[0]}, but pairs of the same and of different people are needed")
    query, gallery = (_rows(path, _numbers(table, name), row_of_tid) for name in ("tid1", "tid2"))
    return Pairs(query, gallery, label == 1, np.zeros(len(label), np.int64))


def open_images(folder: Path, names: list[str], size: int, channels: int) -> LazyImages:
    """The images of the list, aligned here unless they already are."""
    ready = (folder / "aligned").is_dir()
    files = ImageFiles(folder / ("aligned" if ready else "loose_crop"), names)
    _require_all(files.root, names)
    if ready:
        return LazyImages(files, size, channels, "whole")
    landmarks = read_landmarks(folder / LANDMARKS_LIST, names)
    return AlignedImages(files, size, channels, landmarks=landmarks)


def read_landmarks(path: Path, names: list[str]) -> Landmarks:
    """(N, 5, 2) for the images of these names; the list may have another order, or more images."""
    table = _columns(path, LANDMARK_COLUMNS).drop_duplicates("name")
    rows = pd.Index(table["name"]).get_indexer(pd.Index(names, dtype="str"))
    missing = np.flatnonzero(rows < 0)
    if missing.size:
        raise InputError(f"{path}: no landmarks of {names[missing[0]]} ({missing.size} such); {SEE}")
    points: Landmarks = table[COORDINATES].to_numpy(np.float32)[rows].reshape(-1, 5, 2)
    useless = np.flatnonzero(~alignable(points))
    if useless.size:
        row = useless[0]
        _blame(
            path,
            table.index[rows[row]],
            f"no face can be aligned by these landmarks of {names[row]}",
        )
    return points


def _require_all(folder: Path, names: list[str]) -> None:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder, nor aligned/ beside it; {SEE}")
    with os.scandir(folder) as entries:
        there = {entry.name for entry in entries}
    missing = [name for name in names if name not in there]
    if missing:
        raise InputError(f"{folder / missing[0]}: {IMAGES_LIST} names it, but it is missing ({len(missing)} such)")


def _rows(path: Path, tids: Int32, row_of_tid: Labels) -> Labels:
    rows = row_of_tid[np.clip(tids, -1, len(row_of_tid) - 1)]
    unknown = np.flatnonzero(rows < 0)
    if unknown.size:
        _blame(path, unknown[0], f"no image of {IMAGES_LIST} belongs to template {tids[unknown[0]]}")
    return rows


def _columns(path: Path, columns: Columns) -> pd.DataFrame:
    """The fields of all lines that are not empty; they are separated by spaces."""
    if not path.is_file():
        raise InputError(f"{path}: no such file, expected lines `{' '.join(columns)}`; {SEE}")
    try:
        table = _parse(path, columns)
    except (ValueError, pd.errors.ParserWarning) as error:
        _blame_malformed(path, columns)
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: not a list of lines `{' '.join(columns)}` ({reason})") from error
    if table.empty:
        raise InputError(f"{path}: empty, expected lines `{' '.join(columns)}`")
    return table


def _parse(path: Path, columns: Columns) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # it warns where it drops fields that are too many
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
        return pd.concat(list(parts), ignore_index=True)


def _numbers(table: pd.DataFrame, name: str) -> Int32:
    return table[name].to_numpy(np.int32)


def _blame(path: Path, row: int, reason: str) -> NoReturn:
    number = next(number for place, (number, _) in enumerate(_lines(path)) if place == row)
    raise InputError(f"{path}: line {number}: {reason}")


def _blame_malformed(path: Path, columns: Columns) -> None:
    """Name the first line that is not as it should be."""
    form = re.compile(r"\s+".join(FORMS[kind] for kind in columns.values()))
    for number, line in _lines(path):
        if not form.fullmatch(line):
            raise InputError(f"{path}: line {number} must be `{' '.join(columns)}`, found {line[:80]!r}")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, with their numbers."""
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, start=1):
            if stripped := line.strip():
                yield number, stripped


def _check_images(check: Check, folder: Path, listed: ImageList) -> None:
    counts = f"{len(listed.names)} images of {len(listed.templates)} templates"
    usual = (len(listed.names), len(listed.templates)) == (PUBLISHED_IMAGES, PUBLISHED_TEMPLATES)
    published = f"{PUBLISHED_IMAGES} of {PUBLISHED_TEMPLATES}"
    check.found.append(f"{folder / IMAGES_LIST}: {counts}{_remark(usual, published)}")
    images = _attempt(check, lambda: open_images(folder, listed.names, 112, 3))
    if images is not None:
        check.found.append(f"{images.encoded.name(0)} and {len(images) - 1} more images of the list")
        check.to_decode.append(images)


def _check_pairs(check: Check, folder: Path, listed: ImageList) -> None:
    path = folder / PAIRS_LIST
    pairs = _attempt(check, lambda: read_pairs(path, listed.row_of_tid))
    if pairs is not None:
        same = int(pairs.same.sum())
        usual = (same, len(pairs) - same) == (PUBLISHED_SAME, PUBLISHED_DIFFERENT)
        published = f"{PUBLISHED_SAME} + {PUBLISHED_DIFFERENT}"
        counts = f"{len(pairs)} pairs = {same} same + {len(pairs) - same} different"
        check.found.append(f"{path}: {counts}{_remark(usual, published)}")


def _remark(usual: bool, published: str) -> str:
    return ", as published" if usual else f" (published: {published}; figures will not compare with published ones)"


def _attempt(check: Check, read: Callable[[], T]) -> T | None:
    try:
        return read()
    except InputError as error:
        check.wrong.append(str(error).removesuffix(f"; {SEE}"))
        return None
