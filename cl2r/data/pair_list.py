"""Pair lists of open images, in one of two formats, which the first line tells apart.

Comma-separated values, one pair per line; a header is optional, and so are quotes:

    path,path,same                      same: 0, 1, true or false
    ann/01.jpg,ann/02.jpg,1             paths are relative to the folder of the class folders, or to that of the list
    ann/01.jpg,open/bob/07.jpg,0

They get ten folds, or fewer if there are fewer pairs of a kind, each with the same share of positives.

The format of LFW (pairs.txt, pairsDevTest.txt), separated by tabs: the first line is `folds n`, or `n` alone. Each fold
then has n lines `name i j` (the same person) and n lines `name1 i name2 j` (two people); image i of a person is
`name/name_%04d`. A list without folds gets 10 of them.
"""

import csv
import os
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np

from cl2r.errors import InputError
from cl2r.verification import Pairs, stratified_folds

if TYPE_CHECKING:
    from cl2r.data.folders import Listing

PAIR_LIST, PAIR_TABLE = "pairs.txt", "pairs.csv"
FOLDS = 10
SAME = {"1": True, "true": True, "0": False, "false": False}


def official_pairs(places: Sequence[Path], listing: "Listing") -> Pairs | None:
    """Return the pairs of the only list in these places as rows of the listed images, or None if there is no list."""
    found = [path for path in places if path.is_file()]
    if not found:
        return None
    path = found[0]
    for other in found[1:]:
        if not path.samefile(other):
            raise InputError(f"{path} and {other}: two pair lists; remove one")
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error}); save it as UTF-8") from error
    first = next((line for line in lines if line.strip()), "")
    return _table(path, lines, listing) if "," in first and "\t" not in first else _lfw_list(path, lines, listing)


def _table(path: Path, lines: list[str], listing: "Listing") -> Pairs:
    """Return the pairs of a list in comma-separated values."""
    rows = {listing.files.path(row): row for row in range(len(listing.files))}
    pairs = dict[tuple[int, int], tuple[int, bool]]()  # rows in ascending order: the line, and whether they are same
    ends = list[tuple[int, int]]()
    reader = csv.reader(lines, strict=True)

    def row(name: str) -> int:
        place = rows.get(os.path.normpath(name))
        if place is None:
            place = rows.get(os.path.relpath(path.parent / name, listing.folder))
        if place is None:
            why = f"no image {name!r} in {listing.folder}; give its path from there, e.g. {listing.files.path(0)}"
            raise InputError(f"{path}: line {reader.line_num}: {why}")
        return place

    try:
        for number, fields in enumerate(filter(any, map(_stripped, reader)), start=1):
            here = f"{path}: line {reader.line_num}"
            if number == 1 and fields[-1].lower() == "same":
                continue
            if len(fields) != 3 or fields[2].lower() not in SAME:
                raise InputError(f"{here}: must be `path,path,same` with 0 or 1 at the end, found {fields}")
            query, gallery, same = row(fields[0]), row(fields[1]), SAME[fields[2].lower()]
            key = min(query, gallery), max(query, gallery)
            if query == gallery:
                raise InputError(f"{here}: {fields[0]} is paired with itself; remove the line")
            if key in pairs:
                raise InputError(f"{here}: the pair is on line {pairs[key][0]} already; remove one of them")
            names = sorted({listing.classes[listing.labels[end]] for end in key})
            if (len(names) == 1) != same:
                are = f"the images are of {'one class' if len(names) == 1 else 'two classes'} ({' and '.join(names)})"
                raise InputError(f"{here}: same is {fields[2]}, but {are}; correct it, or move an image")
            pairs[key] = reader.line_num, same
            ends.append((query, gallery))
    except csv.Error as error:
        where = f"{path}: line {reader.line_num}"
        raise InputError(f"{where}: not comma-separated values ({error}); correct the line") from error
    kinds = np.array([same for _, same in pairs.values()], np.bool_)
    positives = int(kinds.sum())
    fewest = min(positives, len(kinds) - positives)
    if fewest < 2:
        counts = f"{positives} pairs with same 1 and {len(kinds) - positives} with same 0"
        raise InputError(f"{path}: {counts}; at least 2 of each are needed")
    query, gallery = np.array(ends, np.int64).T
    return Pairs(query.copy(), gallery.copy(), kinds, stratified_folds(kinds, min(FOLDS, fewest)))


def _stripped(fields: list[str]) -> list[str]:
    return [field.strip() for field in fields]


def _lfw_list(path: Path, lines: list[str], listing: "Listing") -> Pairs:
    """Return the pairs of a list in the format of LFW."""
    rows: dict[tuple[str, str], int] = {}  # class and file stem
    for place, label in enumerate(listing.labels.tolist()):
        key = listing.classes[label], PurePath(listing.files.path(place)).stem
        if key in rows:
            both = f"{listing.files.name(rows[key])} and {listing.files.name(place)}"
            raise InputError(f"{both}: two images of one name, {path} does not tell which; remove one")
        rows[key] = place
    parts = ((number, line.strip().split("\t")) for number, line in enumerate(lines, start=1))
    entries = [(number, line) for number, line in parts if line != [""]]
    header = entries[0][1] if entries else []
    if len(header) not in (1, 2) or not all(field.isdecimal() and int(field) > 0 for field in header):
        expected = "`folds<TAB>pairs` or `pairs`, or every line `path,path,same`"
        raise InputError(f"{path}: the first line must be {expected}, found {header}")
    blocks, count = (int(header[0]) if len(header) == 2 else 0), int(header[-1])
    expected_pairs = 2 * max(blocks, 1) * count
    if len(entries) - 1 != expected_pairs:
        announced = f"the first line announces {expected_pairs} pairs, the list has {len(entries) - 1}"
        raise InputError(f"{path}: {announced}; correct the first line, or get the list again")
    same = np.tile(np.repeat([True, False], count), max(blocks, 1))

    def row(number: int, name: str, index: str) -> int:
        if not index.isdecimal():
            wrong = f"image number {index!r} of {name} is not a number"
            raise InputError(f"{path}: line {number}: {wrong}; only images called name_0001, name_0002, … have one")
        stem = f"{name}_{int(index):04d}"
        if (name, stem) not in rows:
            why = f"names image {stem}, which is missing in {listing.folder / name}"
            raise InputError(f"{path}: line {number} {why}; add it or correct the line")
        return rows[name, stem]

    def pair(number: int, fields: list[str], is_same: bool) -> tuple[int, int]:
        if len(fields) != (3 if is_same else 4):
            form = "`name<TAB>i<TAB>j`" if is_same else "`name1<TAB>i<TAB>name2<TAB>j`"
            raise InputError(f"{path}: line {number} must be {form}, found {fields}")
        name1, i, name2, j = [*fields[:2], fields[0], fields[2]] if is_same else fields
        query, gallery = row(number, name1, i), row(number, name2, j)
        if query == gallery or (name1 == name2) != is_same:
            kind = "two images of one class" if is_same else "images of two classes"
            raise InputError(f"{path}: line {number} must name {kind}, found {fields}")
        return query, gallery

    ends = [pair(number, line, is_same) for (number, line), is_same in zip(entries[1:], same.tolist(), strict=True)]
    query, gallery = np.array(ends, np.int64).T
    dealt = np.tile(np.arange(count) % FOLDS, 2)
    folds = np.repeat(np.arange(blocks), 2 * count) if blocks else dealt
    return Pairs(query.copy(), gallery.copy(), same, folds.astype(np.int64))
