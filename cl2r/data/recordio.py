"""Images in MXNet's RecordIO: `train.rec` with `train.idx`, as InsightFace packs faces.

Every line of the index is `key<TAB>offset`. At this offset the record begins, in 32-bit little-endian words:

    magic | flag << 29 | length | payload, padded to whole words

A payload that contains the magic word is cut there into parts with flags 1, 2.., 3 (a whole one has 0). It begins with
count (uint32), label (float32) and two ids (uint64); `count` further labels replace the first. The image follows.
Record 0 of InsightFace has labels (first key after the images, ...) and no image: the images are the keys before that.
"""

import os
import struct
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cl2r.data.dataset import Labels
from cl2r.errors import InputError

MAGIC = 0xCED7230A
LENGTH_BITS = 29
WHOLE, FIRST, LAST = 0, 1, 3  # flags
FRAME = struct.Struct("<II")
HEADER = struct.Struct("<IfQQ")
HEAD_WORDS = 9  # frame, header and first further label: all that a label needs
LARGEST = 2**26  # bytes of a record: it holds one image, of a face
AGAIN = "get .rec and .idx again, both of one packing"
BLOCK = 2**16  # heads gathered at a time

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class RecordFile:
    """The images of a .rec file. Every process opens the file at its first read."""

    path: Path
    keys: Labels
    offsets: Labels
    labels: Labels  # as the file numbers its classes

    def __len__(self) -> int:
        return len(self.keys)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_descriptor"}

    @cached_property
    def _descriptor(self) -> int:
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror}); make it readable") from error
        weakref.finalize(self, os.close, descriptor)
        return descriptor

    def read(self, row: int) -> bytes:
        offset, parts, flag = int(self.offsets[row]), list[bytes](), FIRST
        while flag not in (WHOLE, LAST):
            frame = os.pread(self._descriptor, FRAME.size, offset)
            magic, word = FRAME.unpack(frame) if len(frame) == FRAME.size else (0, 0)
            flag, length = word >> LENGTH_BITS, min(word & ((1 << LENGTH_BITS) - 1), LARGEST + 1)
            part = os.pread(self._descriptor, length, offset + FRAME.size) if magic == MAGIC else b""
            if magic != MAGIC or len(part) < length:
                raise InputError(f"{self.name(row)} at byte {offset} is cut short or no record; get the file again")
            if (flag in (WHOLE, FIRST)) != (not parts):
                raise InputError(f"{self.name(row)} at byte {offset} is in parts that do not fit; get the file again")
            parts.append(part)
            if sum(map(len, parts)) > LARGEST:
                raise InputError(f"{self.name(row)} has more than {LARGEST} bytes; get the file again")
            offset += FRAME.size + -(-len(part) // 4) * 4
        payload = MAGIC.to_bytes(4, "little").join(parts)  # parts were cut at the magic word
        return payload[HEADER.size + 4 * HEADER.unpack_from(payload)[0] :]

    def name(self, row: int) -> str:
        return f"{self.path}: record {self.keys[row]}"

    def identity(self) -> Iterator[bytes]:
        yield f"{self.path.name}\0{os.stat(self.path).st_size}\0".encode()
        yield self.offsets.tobytes()


def read_record_file(path: Path) -> RecordFile:
    """Return the images of a .rec file, found by the .idx beside it; check the beginning of every record."""
    keys, offsets = _read_index(path.with_suffix(".idx"))
    if not path.is_file():
        raise InputError(f"{path}: no such file, but its .idx is there; {AGAIN}")
    heads = _heads(path, keys, offsets)
    if keys[0] == 0 and heads[0, 2] > 0:  # the images are the keys 1..end-1
        end = float(heads[0, 8:].view(np.float32)[0])
        if not end.is_integer() or end < 2:
            wrong = f"record 0 says that images end before key {end}, expected a whole number above 1"
            raise InputError(f"{path}: {wrong}; {AGAIN}")
        chosen = slice(*np.searchsorted(keys, [1, int(min(end, keys[-1] + 1))]))
        keys, offsets, heads = keys[chosen], offsets[chosen], heads[chosen]
        missing = int(end) - 1 - len(keys)
        if missing:
            gaps = np.flatnonzero(keys != np.arange(1, len(keys) + 1))
            absent = (gaps[0] if len(gaps) else len(keys)) + 1
            raise InputError(f"{path.with_suffix('.idx')}: no line for record {absent} ({missing} such); {AGAIN}")
    labels = heads[np.arange(len(heads)), np.where(heads[:, 2] > 0, 8, 3)].view(np.float32)
    whole = np.isfinite(labels) & (labels >= 0) & (labels == np.floor(labels))
    _refuse(path, keys, ~whole, "has a label that is no class number")
    return RecordFile(path, keys, offsets, labels.astype(np.int64))


def _read_index(path: Path) -> tuple[Labels, Labels]:
    """Return keys in rising order, and their offsets."""
    if not path.is_file():
        raise InputError(f"{path}: missing; a .rec file is read by the .idx file of the same name")
    try:
        numbers = np.array([int(field) for field in path.read_bytes().split()], np.int64)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{path}: every line must be `key<TAB>offset` ({error}); {AGAIN}") from error
    if len(numbers) == 0 or len(numbers) % 2 or numbers.min() < 0:
        raise InputError(f"{path}: every line must be `key<TAB>offset`, found {len(numbers)} numbers; {AGAIN}")
    keys, order = np.unique(numbers[::2], return_index=True)
    if 2 * len(keys) != len(numbers):
        raise InputError(f"{path}: {len(numbers) // 2 - len(keys)} keys are listed twice; {AGAIN}")
    return keys, numbers[1::2][order]


def _heads(path: Path, keys: Labels, offsets: Labels) -> Words:
    """Return the first words (N, 9) of every record."""
    size = path.stat().st_size
    if size < 4 * HEAD_WORDS:
        raise InputError(f"{path}: {size} bytes, too short for a record; {AGAIN}")
    words = np.memmap(path, np.dtype("<u4"), "r", shape=(size // 4,))
    _refuse(path, keys, offsets % 4 != 0, "lies at an offset that is not a multiple of 4")
    _refuse(path, keys, offsets // 4 + HEAD_WORDS > len(words), f"lies beyond the end of the file ({size} bytes)")
    heads = np.empty((len(keys), HEAD_WORDS), np.uint32)
    rising = np.argsort(offsets, kind="stable")  # in the order of the file: a disk must not seek for every record
    for start in range(0, len(rising), BLOCK):
        rows = rising[start : start + BLOCK]
        heads[rows] = words[offsets[rows, None] // 4 + np.arange(HEAD_WORDS)]
    _refuse(path, keys, heads[:, 0] != MAGIC, "does not begin with the magic number")
    lengths = (heads[:, 1] & ((1 << LENGTH_BITS) - 1)).astype(np.int64)
    _refuse(path, keys, offsets + FRAME.size + lengths > size, f"is cut short by the end of the file ({size} bytes)")
    _refuse(path, keys, lengths > LARGEST, f"has more than {LARGEST} bytes")
    _refuse(path, keys, lengths < HEADER.size, "is too short for its header")
    _refuse(path, keys, ~np.isin(heads[:, 1] >> LENGTH_BITS, (WHOLE, FIRST)), "begins in the middle of another")
    return heads


def _refuse(path: Path, keys: Labels, bad: npt.NDArray[np.bool_], what: str) -> None:
    if bad.any():
        count = f" ({bad.sum()} such)" if bad.sum() > 1 else ""
        raise InputError(f"{path}: record {keys[bad][0]} {what}{count}; {AGAIN}")
