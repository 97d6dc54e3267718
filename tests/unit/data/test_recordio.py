"""RecordIO: images and labels are read as they were packed; damage is named with the record at fault."""

import os
import pickle
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cl2r.data import recordio
from cl2r.data.recordio import read_record_file
from tests.support.miniatures import jpeg, refusal

MAGIC = b"\x0a\x23\xd7\xce"


def payload(image: bytes, *labels: float) -> bytes:
    """One label goes into the header, several follow it."""
    if len(labels) == 1:
        return struct.pack("<IfQQ", 0, labels[0], 7, 0) + image
    return struct.pack(f"<IfQQ{len(labels)}f", len(labels), 0.0, 7, 0, *labels) + image


def framed(data: bytes) -> bytes:
    """Cut a payload at every aligned magic word, as the format requires."""
    parts, start = [], 0
    for place in range(0, len(data) - 3, 4):
        if data[place : place + 4] == MAGIC:
            parts.append(data[start:place])
            start = place + 4
    parts.append(data[start:])
    flags = [0] if len(parts) == 1 else [1, *[2] * (len(parts) - 2), 3]
    frames = (
        MAGIC + struct.pack("<I", flag << 29 | len(p)) + p + bytes(-len(p) % 4)
        for flag, p in zip(flags, parts, strict=True)
    )
    return b"".join(frames)


def write(folder: Path, records: dict[int, bytes]) -> Path:
    body, lines = b"", []
    for key, data in records.items():
        lines.append(f"{key}\t{len(body)}\n")
        body += framed(data)
    (folder / "train.rec").write_bytes(body)
    (folder / "train.idx").write_text("".join(lines))
    return folder / "train.rec"


IMAGES = [jpeg(grey) for grey in (10, 90, 200, 30)]
LABELS = [0, 2, 2, 5]


def insightface(folder: Path) -> Path:
    """Record 0 says that images are 1..4; records 5 and 6 describe people."""
    records = {0: payload(b"", 5.0, 7.0)}
    records |= {key: payload(IMAGES[key - 1], float(LABELS[key - 1])) for key in (1, 2, 3, 4)}
    return write(folder, records | {5: payload(b"", 1.0, 3.0), 6: payload(b"", 3.0, 5.0)})


def test_insightface_layout(tmp_path: Path) -> None:
    records = read_record_file(insightface(tmp_path))
    assert len(records) == 4
    assert records.labels.dtype == np.int64
    assert records.labels.tolist() == LABELS
    assert [records.read(row) for row in range(4)] == IMAGES
    assert records.name(1) == f"{tmp_path / 'train.rec'}: record 2"


def test_plain_layout_with_several_labels_and_an_unsorted_index(tmp_path: Path) -> None:
    records = {3: payload(IMAGES[0], 4.0), 0: payload(IMAGES[1], 1.0), 8: payload(IMAGES[2], 6.0, 9.0, 3.0)}
    read = read_record_file(write(tmp_path, records))
    assert read.keys.tolist() == [0, 3, 8]
    assert read.labels.tolist() == [1, 4, 6]
    assert [read.read(row) for row in range(3)] == [IMAGES[1], IMAGES[0], IMAGES[2]]


def test_a_record_cut_at_the_magic_word_is_joined(tmp_path: Path) -> None:
    image = b"abcd" + MAGIC + b"efgh" + MAGIC + MAGIC + b"ij"
    records = read_record_file(write(tmp_path, {0: payload(image, 3.0), 1: payload(IMAGES[0], 1.0)}))
    assert [records.read(0), records.read(1)] == [image, IMAGES[0]]
    assert records.labels.tolist() == [3, 1]


def test_every_process_opens_its_own_handle_which_is_closed_with_the_records(tmp_path: Path) -> None:
    records = read_record_file(insightface(tmp_path))
    unread = len(pickle.dumps(records))
    records.read(0)
    sent = pickle.dumps(records)
    assert len(sent) == unread
    copy = pickle.loads(sent)
    assert "_descriptor" not in vars(copy)
    assert [copy.read(row) for row in range(4)] == IMAGES
    assert copy.labels.tolist() == LABELS
    descriptor = vars(records)["_descriptor"]
    os.fstat(descriptor)
    del records
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_identity_tells_packings_apart_but_not_places(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, same = (list(read_record_file(insightface(tmp_path / place)).identity()) for place in "ab")
    other = read_record_file(write(tmp_path, {0: payload(IMAGES[0], 1.0)}))
    assert one == same
    assert one != list(other.identity())


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("0\t0\n1\t4096000\n", r"record 1 lies beyond"),
        ("0\t0\n1\t2\n", r"record 1 lies at an offset"),
        ("0\t0\n1\t12\n", r"record 1 does not begin"),
        ("0\t0\n1 forty\n", r"train.idx: "),
        ("0\t0\n1\n", r"train.idx: .* 3 numbers"),
        ("0\t0\n1\t-8\n", r"train.idx: "),
        ("0\t0\n0\t40\n", r"train.idx: 1 keys"),
        ("0\t0\n1\t40\n", r"train.idx: no line for record 2 \(3 such\)"),
        ("", r"train.idx: "),
    ],
)
def test_a_broken_index_is_named(tmp_path: Path, index: str, message: str) -> None:
    path = insightface(tmp_path)
    (tmp_path / "train.idx").write_text(index)
    assert re.search(message, refusal(lambda: read_record_file(path)))


def test_damaged_records_are_named(tmp_path: Path) -> None:
    path = insightface(tmp_path)
    data = path.read_bytes()
    third = [match.start() for match in re.finditer(re.escape(MAGIC), data)][2]
    for content, named in (
        (data[:third] + b"\0" + data[third + 1 :], "record 2 does not begin with the magic number"),
        (data[: len(data) // 2], r"record \d lies beyond the end"),
        (data[:-40], r"record \d .* end of the file"),
        (data[:20], "20 bytes"),
    ):
        path.write_bytes(content)
        assert re.search(rf"train\.rec: {named}", refusal(lambda: read_record_file(path)))


def test_a_file_that_shrinks_after_it_was_opened(tmp_path: Path) -> None:
    records = read_record_file(insightface(tmp_path))
    records.path.write_bytes(records.path.read_bytes()[:60])
    assert "record 4 at byte" in refusal(lambda: records.read(3))


def test_a_part_without_its_end(tmp_path: Path) -> None:
    path = write(tmp_path, {0: payload(b"abcd" + MAGIC + b"efgh", 3.0), 1: payload(IMAGES[0], 1.0)})
    second = path.read_bytes().index(MAGIC, 4)
    data = bytearray(path.read_bytes())
    data[second + 7] = 0
    path.write_bytes(bytes(data))
    assert f"record 0 at byte {second}" in refusal(lambda: read_record_file(path).read(0))


@pytest.mark.parametrize("label", [0.5, -1.0, float("nan")])
def test_labels_must_be_class_numbers(tmp_path: Path, label: float) -> None:
    path = write(tmp_path, {0: payload(IMAGES[0], 0.0), 1: payload(IMAGES[1], label)})
    assert "record 1 has a label" in refusal(lambda: read_record_file(path))


def test_missing_files_are_named(tmp_path: Path) -> None:
    path = insightface(tmp_path)
    path.unlink()
    assert refusal(lambda: read_record_file(path)).startswith(f"{path}: ")
    (tmp_path / "train.idx").unlink()
    assert refusal(lambda: read_record_file(path)).startswith(f"{tmp_path / 'train.idx'}: ")


def test_beginnings_are_read_in_blocks_in_the_order_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index in another order must not make a disk seek for every record."""
    asked = []

    class Watched(np.memmap):  # type: ignore[type-arg]
        def __getitem__(self, places: Any) -> Any:
            asked.append(places[:, 0])
            return np.asarray(self)[places]

    monkeypatch.setattr(recordio, "BLOCK", 7)
    monkeypatch.setattr(recordio.np, "memmap", Watched)
    order = np.random.default_rng(0).permutation(30).tolist()
    path = write(tmp_path, {key: payload(bytes(4 * (place % 5)), float(key + 100)) for place, key in enumerate(order)})
    records = read_record_file(path)
    assert records.labels.tolist() == list(range(100, 130))
    assert [len(records.read(row)) for row in range(30)] == [4 * (order.index(key) % 5) for key in range(30)]
    places = np.concatenate(asked)
    assert len(places) == 30
    assert np.array_equal(places, np.sort(places))
