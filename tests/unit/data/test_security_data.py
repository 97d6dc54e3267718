"""Hostile data: archives that leave their folder, lists that name other files, small files with huge claims."""

import gzip
import hashlib
import io
import pickle
import struct
import subprocess
import tarfile
import warnings
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cl2r.data import Archive, check_dataset, download, find_dataset, ijbc, images, load_dataset, npz, recordio
from cl2r.data.images import ImageFiles, LazyImages, images_of
from cl2r.data.lfw import find_lfw
from cl2r.data.npz import load_npz
from cl2r.data.pickles import load_plain
from cl2r.data.recordio import read_record_file
from tests.support.miniatures import jpeg, member, refusal, tar, write_lfw, write_pairs, write_people, zipped


def refused_archive(place: Path, content: bytes, is_zip: bool = False) -> str:
    """Return why an archive is refused; nothing may have been written by then."""
    folder = place / "root" / "aside"
    folder.mkdir(parents=True)
    (place / "archive").write_bytes(content)
    message = refusal(lambda: download.unpack(place / "archive", folder, "toy.tgz", is_zip))
    assert message.startswith("toy.tgz: cannot be unpacked (")
    left = sorted(path.relative_to(place).as_posix() for path in place.rglob("*"))
    assert left == ["archive", "root", "root/aside"]
    return message


@pytest.mark.parametrize("name", ["../evil", "toy/../../evil", "/tmp/evil", "C:evil", "toy\\..\\evil"])
def test_members_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    good = member("toy/good", b"good")
    assert "would leave the folder" in refused_archive(tmp_path / "tar", tar(good, member(name, b"evil")))
    members = {"toy/good": b"good", name: b"evil"}
    assert "would leave the folder" in refused_archive(tmp_path / "zip", zipped(members), True)


@pytest.mark.parametrize(
    "fields",
    [
        {"type": tarfile.SYMTYPE, "linkname": "/etc"},
        {"type": tarfile.SYMTYPE, "linkname": ".."},
        {"type": tarfile.SYMTYPE, "linkname": "good"},  # none of the archives has any
        {"type": tarfile.LNKTYPE, "linkname": "../../archive"},
        {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3},
        {"type": tarfile.BLKTYPE},
        {"type": tarfile.FIFOTYPE},
    ],
)
def test_links_and_devices_are_refused(tmp_path: Path, fields: dict[str, object]) -> None:
    packed = tar(member("toy/good", b"good"), member("toy/odd", **fields))
    assert "'toy/odd'" in refused_archive(tmp_path / "tar", packed)
    assert "'toy/odd'" in refused_archive(tmp_path / "zip", zipped({"toy/odd": b"/etc"}, mode=0o120777), True)


def test_archive_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two megabytes of zeros in one member or in many; a sparse file and a name of 8 GB that only claim their size."""
    monkeypatch.setattr(download, "ALWAYS_BYTES", 2**20)
    for number, members in enumerate([[bytes(2**21)], [bytes(2**19)] * 5]):
        packed = tar(*(member(f"toy/{place}", content) for place, content in enumerate(members)))
        assert "more than 1 MB" in refused_archive(tmp_path / f"tar{number}", packed)
        packed = zipped({f"toy/{place}": content for place, content in enumerate(members)})
        assert "more than 1 MB" in refused_archive(tmp_path / f"zip{number}", packed, True)
    sparse = {"major": "1", "minor": "0", "name": "toy/x", "realsize": "9" * 12}
    info, _ = member("toy/sparse", pax_headers={f"GNU.sparse.{key}": value for key, value in sparse.items()})
    info.size = 512
    assert "more than" in refused_archive(tmp_path / "sparse", tar((info, b"0\n".ljust(512, b"\0"))))
    header = member("long", type=tarfile.GNUTYPE_LONGNAME, size=2**33)[0]
    content = gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(2**16))
    assert "a header of " in refused_archive(tmp_path / "header", content)


def test_a_zip_whose_member_is_larger_than_it_says(tmp_path: Path) -> None:
    """No more is written than was declared; the caller removes the folder."""
    packed = bytearray(zipped({"toy/x": bytes(10**6)}))
    for mark, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        struct.pack_into("<I", packed, packed.index(mark) + place, 10)
    (tmp_path / "archive").write_bytes(packed)
    message = refusal(lambda: download.unpack(tmp_path / "archive", tmp_path / "aside", "toy.zip", True))
    assert "Bad CRC-32" in message
    assert sum(path.stat().st_size for path in tmp_path.rglob("x")) <= 10


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "MOST_MEMBERS", 3)
    members = [f"toy/{place}" for place in range(4)]
    assert "more than 3 members" in refused_archive(tmp_path / "tar", tar(*map(member, members)))
    assert "more than 3 members" in refused_archive(tmp_path / "zip", zipped(dict.fromkeys(members, b"")), True)


def test_an_endless_download_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(io.RawIOBase):
        headers: dict[str, str] = {}  # noqa: RUF012

        def read(self, size: int = -1) -> bytes:
            return bytes(size)

    archive = Archive("toy.zip", "https://toy/0", hashlib.md5(b"").hexdigest(), "toy")
    monkeypatch.setattr(download, "LARGEST", 3 * download.CHUNK)
    monkeypatch.setattr(download, "urlopen", lambda *_, **__: Endless())
    toy = replace(find_dataset("icons"), archives=(archive,))
    message = refusal(lambda: download.download(toy, tmp_path / "root", lambda line: None))
    assert message.startswith("https://toy/0: more than")
    assert list((tmp_path / "root").iterdir()) == []


def test_a_pair_list_cannot_name_other_files(tmp_path: Path) -> None:
    write_lfw(tmp_path / "root" / "lfw")
    write_people(tmp_path, {"Eve": 2})
    for name in ("../../Eve", str(tmp_path / "Eve"), "Al_B/../../../Eve"):
        write_pairs(tmp_path / "root" / "lfw" / "pairs.txt", [(f"{name}\t1\t2", f"Al_B\t1\t{name}\t1")])
        message = refusal(lambda: find_lfw(tmp_path / "root"))
        assert f"line 2 names image {name}_0001" in message


def test_an_image_list_cannot_name_other_files(tmp_path: Path) -> None:
    crops = tmp_path / "ijbc" / "loose_crop"
    crops.mkdir(parents=True)
    (tmp_path / "secret.jpg").write_bytes(jpeg(1))
    for name in ("../../secret.jpg", str(tmp_path / "secret.jpg"), ".."):
        message = refusal(lambda name=name: ijbc.open_images(tmp_path / "ijbc", [name], 4, 3))  # type: ignore[misc]
        assert f"names {name[:80]!r}" in message


def test_a_class_list_cannot_name_other_folders(tmp_path: Path) -> None:
    tiny = tmp_path / "tiny-imagenet-200"
    (tiny / "train" / "n01443537" / "images").mkdir(parents=True)
    (tmp_path / "imagenet20").mkdir()
    for name in ("../../n01443537", "/etc", "n01443537/.."):
        (tiny / "wnids.txt").write_text(f"n01443537\n{name}\n")
        [problem] = check_dataset("tiny_imagenet200", tmp_path).problems
        assert f"line 2: {name!r} is not a wnid" in problem


def test_a_folder_of_links_is_the_users_own(tmp_path: Path) -> None:
    """Data often lie elsewhere, and no file of a stranger made the link."""
    for part, names in (("train", "ab"), ("open", "cd")):
        for place, name in enumerate(names):
            write_people(tmp_path / "elsewhere" / part, {name: 2}, step=10 * place)
    (tmp_path / "data").symlink_to(tmp_path / "elsewhere")
    assert load_dataset(str(tmp_path / "data"), 4, 3).num_classes == 2


def write_npz(path: Path, **arrays: np.ndarray) -> None:
    y = np.array([0, 1])
    given = {"x_train": np.zeros((2, 4, 4), np.uint8), "y_train": y, "x_open": np.zeros((2, 4, 4), np.uint8)}
    np.savez_compressed(path, **(given | {"y_open": y + 5} | arrays))


def test_a_compressed_npz_is_read(tmp_path: Path) -> None:
    """Blank images shrink a thousandfold, which alone is no reason to refuse them."""
    blank = np.zeros((2, 2000, 2000), np.uint8)
    write_npz(tmp_path / "a.npz", x_train=blank, x_open=blank)
    assert (tmp_path / "a.npz").stat().st_size < 16 * 10**6 / npz.GROWTH
    assert load_npz(tmp_path / "a.npz").x_train.shape == (2, 2000, 2000, 1)


def test_an_npz_bomb_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "ALWAYS_BYTES", 2**20)
    opened: list[str] = []
    monkeypatch.setattr(npz, "_read_array", lambda path, archive, key, member: opened.append(key))
    write_npz(tmp_path / "a.npz", x_train=np.zeros((2, 2000, 2000), np.uint8))
    message = refusal(lambda: load_npz(tmp_path / "a.npz"))
    assert "GB of arrays in a file of" in message
    assert opened == []


def hostile_npz(path: Path, header: bytes, content: bytes = b"") -> None:
    write_npz(path)
    whole = zipfile.ZipFile(path)
    members = {name: whole.read(name) for name in whole.namelist()}
    length = struct.pack("<H", len(header))
    members["x_train.npy"] = npz.MAGIC + b"\x01\x00" + length + header + content
    with zipfile.ZipFile(path, "w") as packed:
        for name, stored in members.items():
            packed.writestr(name, stored)


@pytest.mark.parametrize("shape", ["(101,)", "(1000000000000000, 4, 4)", "(4294967296, 4294967296)"])
def test_an_array_that_claims_more_than_it_has(tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    hostile_npz(tmp_path / "a.npz", header, bytes(100))
    assert f"claims the shape {shape}" in refusal(lambda: load_npz(tmp_path / "a.npz"))


@pytest.mark.parametrize("objects", [np.array([{1}]), {1}])
def test_nobody_is_told_to_unpickle_a_file(tmp_path: Path, objects: object) -> None:
    """numpy's own message says how to load a pickle all the same."""
    path = tmp_path / "a.npz"
    contents = [pickle.dumps(objects), b"no zip at all", b"PK"]
    buffer = io.BytesIO()
    np.save(buffer, np.array([objects], object), allow_pickle=True)
    for content in (*contents, buffer.getvalue()):
        path.write_bytes(content)
        message = refusal(lambda: load_npz(path))
        assert message.startswith(f"{path}: ")
        assert "pickle" not in message
        assert "trust" not in message
    write_npz(path, x_train=np.array([objects, objects], object))
    assert "x_train holds Python objects, which are never loaded" in refusal(lambda: load_npz(path))


@pytest.mark.parametrize("header", [b"(" * 16, b"'''", b"-" * 9000, b"[" * 9000, b"\xff\xfe", b"{'descr': None}"])
def test_a_header_that_is_no_header(tmp_path: Path, header: bytes) -> None:
    hostile_npz(tmp_path / "a.npz", header, bytes(100))
    message = refusal(lambda: load_npz(tmp_path / "a.npz"))
    assert "x_train is damaged" in message
    assert len(message) < 600


def test_code_in_a_header_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    hostile_npz(tmp_path / "a.npz", f"__import__('os').system('touch {mark}')".encode())
    assert "x_train is damaged" in refusal(lambda: load_npz(tmp_path / "a.npz"))
    assert not mark.exists()


def png(width: int, height: int) -> bytes:
    """Return an image of that size whose pixels fill a megabyte at most."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(10**6))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [9_460, 12_000, 50_000])
def test_an_image_of_too_many_pixels(tmp_path: Path, side: int) -> None:
    """Pillow itself only warns of the first two."""
    (tmp_path / "a.png").write_bytes(png(side, side))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        message = refusal(lambda: images_of(ImageFiles(tmp_path, ["a.png"]), 4, 1))
    assert "a.png: " in message
    assert "scale it down" in message or "exceeds limit" in message


def test_the_largest_image_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert images.MOST_PIXELS == Image.MAX_IMAGE_PIXELS, "the limit at which Pillow warns"
    Image.new("L", (40, 30)).save(tmp_path / "a.png")
    monkeypatch.setattr(images, "MOST_PIXELS", 1200)
    assert images_of(ImageFiles(tmp_path, ["a.png"]), 4, 1).shape == (1, 4, 4, 1)
    monkeypatch.setattr(images, "MOST_PIXELS", 1199)
    assert "40 × 30 pixels" in refusal(lambda: images_of(ImageFiles(tmp_path, ["a.png"]), 4, 1))


def test_no_program_is_started_to_decode_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostScript is a program, and Pillow would give it to Ghostscript."""
    started: list[object] = []
    for name in ("Popen", "check_call", "check_output", "call", "run"):
        monkeypatch.setattr(subprocess, name, lambda *words, **_: started.append(words))
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(x) print\n%%EOF\n"
    (tmp_path / "a.jpg").write_bytes(content)
    assert Image.open(tmp_path / "a.jpg").format == "EPS"
    assert "of no known format" in refusal(lambda: LazyImages(ImageFiles(tmp_path, ["a.jpg"]), 4, 3).resized(0))
    assert started == []


@pytest.mark.parametrize("kind", images.FORMATS)
def test_the_usual_formats_are_decoded(tmp_path: Path, kind: str) -> None:
    Image.new("RGB", (8, 8), (9, 9, 9)).save(tmp_path / "a.jpg", kind)
    assert images_of(ImageFiles(tmp_path, ["a.jpg"]), 8, 3).shape == (1, 8, 8, 3)


def frame(length: int, flag: int = 0) -> bytes:
    return recordio.FRAME.pack(recordio.MAGIC, flag << recordio.LENGTH_BITS | length)


def write_records(folder: Path, content: bytes, index: str) -> Path:
    (folder / "train.rec").write_bytes(content)
    (folder / "train.idx").write_text(index)
    return folder / "train.rec"


def test_a_record_of_absurd_length_or_of_too_many_parts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = recordio.HEADER.pack(0, 1.0, 0, 0)
    path = write_records(tmp_path, frame(2**29 - 1) + label + bytes(64), "1\t0\n")
    assert "record 1 is cut short by the end of the file" in refusal(lambda: read_record_file(path))
    monkeypatch.setattr(recordio, "LARGEST", 1000)
    write_records(tmp_path, frame(1004) + label + bytes(980), "1\t0\n")
    assert "record 1 has more than 1000 bytes" in refusal(lambda: read_record_file(path))
    first = frame(400, recordio.FIRST) + label + bytes(376)
    write_records(tmp_path, first + (frame(400, 2) + bytes(400)) * 9, "1\t0\n")
    assert "has more than 1000 bytes" in refusal(lambda: read_record_file(path).read(0))


@pytest.mark.parametrize("end", [3e38, 1e15, 4.0])
def test_a_record_that_announces_too_many_images_is_refused(tmp_path: Path, end: float) -> None:
    announced = frame(32) + recordio.HEADER.pack(2, 0.0, 0, 0) + struct.pack("<ff", end, end)
    one = frame(24) + recordio.HEADER.pack(0, 1.0, 0, 0) + bytes(8)
    path = write_records(tmp_path, announced + one, f"0\t0\n1\t{len(announced)}\n")
    assert f"no line for record 2 ({int(np.float32(end)) - 2} such)" in refusal(lambda: read_record_file(path))


@pytest.mark.parametrize("put", [b"]r\xff\xff\xff\xff", b"]p4294967295\n"])
def test_a_pickle_with_a_large_memo_number_takes_no_memory(tmp_path: Path, put: bytes) -> None:
    """Python's unpickler in C would allocate 64 GB."""
    resource = pytest.importorskip("resource")
    (tmp_path / "a").write_bytes(b"\x80\x02" + put + b".")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert load_plain(tmp_path / "a") == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10**5  # kB


@pytest.mark.parametrize("opcode", [b"\x8e", b"\x96", b"\x8d", b"\x95"])
def test_a_pickle_of_absurd_length_is_refused(tmp_path: Path, opcode: bytes) -> None:
    for length in (2**62, 2**40):
        (tmp_path / "a").write_bytes(b"\x80\x05" + opcode + struct.pack("<Q", length) + b"abc.")
        assert "not a readable pickle" in refusal(lambda: load_plain(tmp_path / "a"))
