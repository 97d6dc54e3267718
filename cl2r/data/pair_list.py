"""Pair lists in the format of LFW (pairs.txt, pairsDevTest.txt), separated by tabs.

The first line is `folds n`, or `n` alone. Each fold then has n lines `name i j` (the same person) and n lines
`name1 i name2 j` (two people); image i of a person is `name/name_%04d`. A list without folds gets 10 of them.
"""

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np

from cl2r.errors import InputError
from cl2r.verification import Pairs

if TYPE_CHECKING:
    from cl2r.data.folders import Listing

PAIR_LIST = "pairs.txt"
ROUND_ROBIN_FOLDS = 10


def official_pairs(places: Sequence[Path], listing: "Listing") -> Pairs | None:
    """Return the pairs of the only list in these places as rows of the listed images, or None if there is no list."""
    found = [path for path in places if path.is_file()]
    if not found:
        return None
    path = found[0]
    if not path.samefile(found[-1]):
        raise InputError(f"{path} and {found[-1]}: two pair lists; remove one")
    rows: dict[tuple[str, str], int] = {}  # class and file stem
    for place, label in enumerate(listing.labels.tolist()):
        key = listing.classes[label], PurePath(listing.files.path(place)).stem
        if key in rows:
            both = f"{listing.files.name(rows[key])} and {listing.files.name(place)}"
            raise InputError(f"{both}: two images of one name, {path} does not tell which; remove one")
        rows[key] = place
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error})") from error
    fields = ((number, line.strip().split("\t")) for number, line in enumerate(text.splitlines(), start=1))
    lines = [(number, line) for number, line in fields if line != [""]]
    header = lines[0][1] if lines else []
    if len(header) not in (1, 2) or not all(field.isdecimal() and int(field) > 0 for field in header):
        raise InputError(f"{path}: the first line must be `folds<TAB>pairs` or `pairs`, found {header}")
    blocks, count = (int(header[0]) if len(header) == 2 else 0), int(header[-1])
    expected = 2 * max(blocks, 1) * count
    if len(lines) - 1 != expected:
        raise InputError(f"{path}: the first line announces {expected} pairs, the list has {len(lines) - 1}")
    same = np.tile(np.repeat([True, False], count), max(blocks, 1))

    def row(number: int, name: str, index: str) -> int:
        if not index.isdecimal():
            raise InputError(f"{path}: line {number}: image number {index!r} of {name} is not a number")
        stem = f"{name}_{int(index):04d}"
        if (name, stem) not in rows:
            raise InputError(f"{path}: line {number} names image {stem}, which is missing in {listing.folder / name}")
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

    ends = [pair(number, line, is_same) for (number, line), is_same in zip(lines[1:], same.tolist(), strict=True)]
    query, gallery = np.array(ends, np.int64).T
    dealt = np.tile(np.arange(count) % ROUND_ROBIN_FOLDS, 2)
    folds = np.repeat(np.arange(blocks), 2 * count) if blocks else dealt
    return Pairs(query.copy(), gallery.copy(), same, folds.astype(np.int64))
