"""The three lists of IJB-C in InsightFace's release: images, pairs of templates, landmarks.

There are 16 million pairs, hence columns of numbers and no loop over lines, unless a line is to be blamed.
"""

import re
import warnings
from collections.abc import Iterator
from csv import QUOTE_NONE
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

import numpy as np
import numpy.typing as npt
import pandas as pd

from cl2r.data.dataset import Labels, Pairs, Templates
from cl2r.data.face_alignment import Landmarks, alignable
from cl2r.errors import InputError

IMAGES_LIST, PAIRS_LIST, LANDMARKS_LIST = (
    f"meta/ijbc_{name}.txt" for name in ("face_tid_mid", "template_pair_label", "name_5pts_score")
)
LINES_AT_A_TIME = 10**6  # the parser's own copies stay small
LARGEST_TID = 10**7  # rows are looked up in an array of this length at most

Int32 = npt.NDArray[np.int32]
Columns = dict[str, Literal["str", "int32", "float32"]]

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
    """The list of template pairs; the first of a pair is the query. Folds, which rates do not need, take no memory."""
    table = _columns(path, PAIR_COLUMNS)
    label = _numbers(table, "label")
    odd = np.flatnonzero((label != 0) & (label != 1))
    if odd.size:
        _blame(path, odd[0], f"label {label[odd[0]]} is neither 1 (same person) nor 0")
    if label.min() == label.max():
        raise InputError(f"{path}: every label is {label[0]}, but pairs of the same and of different people are needed")
    query, gallery = (_rows(path, _numbers(table, name), row_of_tid) for name in ("tid1", "tid2"))
    return Pairs(query, gallery, label == 1, np.broadcast_to(np.int64(0), len(label)))


def read_landmarks(path: Path, names: list[str]) -> Landmarks:
    """(N, 5, 2) for the images of these names; the list may have another order, or more images."""
    table = _columns(path, LANDMARK_COLUMNS).drop_duplicates("name")
    rows = pd.Index(table["name"]).get_indexer(pd.Index(names, dtype="str"))
    missing = np.flatnonzero(rows < 0)
    if missing.size:
        raise InputError(f"{path}: no landmarks of {names[missing[0]]} ({missing.size} such)")
    points: Landmarks = table[COORDINATES].to_numpy(np.float32)[rows].reshape(-1, 5, 2)
    useless = np.flatnonzero(~alignable(points))
    if useless.size:
        row = useless[0]
        _blame(path, table.index[rows[row]], f"no face can be aligned by these landmarks of {names[row]}")
    return points


def _rows(path: Path, tids: Int32, row_of_tid: Labels) -> Labels:
    rows = row_of_tid[np.clip(tids, -1, len(row_of_tid) - 1)]
    unknown = np.flatnonzero(rows < 0)
    if unknown.size:
        _blame(path, unknown[0], f"no image of {IMAGES_LIST} belongs to template {tids[unknown[0]]}")
    return rows


def _columns(path: Path, columns: Columns) -> pd.DataFrame:
    """The fields of all lines that are not empty; they are separated by spaces."""
    if not path.is_file():
        raise InputError(f"{path}: no such file, expected lines `{' '.join(columns)}`")
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
