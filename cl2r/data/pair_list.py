"""Pair lists in the format of LFW (pairs.txt, pairsDevTest.txt), tab separated.

The first line is `folds n`, or `n` alone. Each fold then has n lines `name i j` (the same person) and n lines
`name1 i name2 j` (two people); image i of a person is `name/name_%04d`. A list without folds gets 10 of them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

import numpy as np

from cl2r.data.dataset import Pairs
from cl2r.data.listing import Listing
from cl2r.errors import InputError

PAIR_LIST = "pairs.txt"
ROUND_ROBIN_FOLDS = 10

Rows = Mapping[tuple[str, str], int]


def official_pairs(places: Sequence[Path], listing: Listing) -> Pairs | None:
    """The pairs of the one list in these places, as rows of the listed images; nothing where there is no list."""
    found = [path for path in places if path.is_file()]
    if not found:
        return None
    if not found[0].samefile(found[-1]):
        raise InputError(f"{found[0]} and {found[-1]}: two pair lists, remove one")
    return read_pair_list(found[0], _rows_by_stem(found[0], listing), listing.folder)


def read_pair_list(path: Path, rows: Rows, folder: Path) -> Pairs:
    """Read the list; `rows` gives the row of the image with a (class, file stem), `folder` is where they lie."""
    lines = _lines(path)
    blocks, count = _header(path, lines)
    folds_in_file = max(blocks, 1)
    _check_length(path, lines, folds_in_file, count)
    same = np.tile(np.repeat([True, False], count), folds_in_file)
    ends = [
        _pair(path, number, line, is_same, rows, folder)
        for (number, line), is_same in zip(lines[1:], same.tolist(), strict=True)
    ]
    query, gallery = np.array(ends, np.int64).T
    dealt = np.tile(np.arange(count) % ROUND_ROBIN_FOLDS, 2)
    folds = np.repeat(np.arange(blocks), 2 * count) if blocks else dealt
    return Pairs(query.copy(), gallery.copy(), same, folds.astype(np.int64))


def _rows_by_stem(path: Path, listing: Listing) -> Rows:
    names = [listing.classes[label] for label in listing.labels.tolist()]
    stems = [PurePath(image).stem for image in listing.files.paths]
    rows: dict[tuple[str, str], int] = {}
    for row, key in enumerate(zip(names, stems, strict=True)):
        if key in rows:
            both = f"{listing.files.name(rows[key])} and {listing.files.name(row)}"
            raise InputError(f"{both}: two images of one name, {path} would not know which; remove one")
        rows[key] = row
    return rows


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error})") from error
    fields = ((number, line.strip().split("\t")) for number, line in enumerate(text.splitlines(), start=1))
    return [(number, line) for number, line in fields if line != [""]]


def _header(path: Path, lines: list[tuple[int, list[str]]]) -> tuple[int, int]:
    """Number of folds (0: the list has none) and of pairs of each kind in a fold."""
    header = lines[0][1] if lines else []
    if len(header) not in (1, 2) or not all(field.isdecimal() and int(field) > 0 for field in header):
        raise InputError(f"{path}: the first line must be `folds<TAB>pairs` or `pairs`, found {header}")
    return (int(header[0]) if len(header) == 2 else 0), int(header[-1])


def _check_length(path: Path, lines: list[tuple[int, list[str]]], folds: int, count: int) -> None:
    expected = 2 * folds * count
    if len(lines) - 1 != expected:
        raise InputError(f"{path}: the first line announces {expected} pairs, the list has {len(lines) - 1}")


def _pair(path: Path, number: int, fields: list[str], same: bool, rows: Rows, folder: Path) -> tuple[int, int]:
    if len(fields) != (3 if same else 4):
        expected = "`name<TAB>i<TAB>j`" if same else "`name1<TAB>i<TAB>name2<TAB>j`"
        raise InputError(f"{path}: line {number} must be {expected}, found {fields}")
    name1, i, name2, j = (fields[0], fields[1], fields[0], fields[2]) if same else fields
    query, gallery = (_row(path, number, name, image, rows, folder) for name, image in ((name1, i), (name2, j)))
    if query == gallery or (name1 == name2) != same:
        kind = "two images of one class" if same else "images of two classes"
        raise InputError(f"{path}: line {number} must name {kind}, found {fields}")
    return query, gallery


def _row(path: Path, number: int, name: str, index: str, rows: Rows, folder: Path) -> int:
    if not index.isdecimal():
        raise InputError(f"{path}: line {number}: image number {index!r} of {name} is not a number")
    stem = f"{name}_{int(index):04d}"
    if (name, stem) not in rows:
        raise InputError(f"{path}: line {number} names image {stem}, which is missing in {folder / name}")
    return rows[name, stem]
