"""Seals in front of a file and beside it: damage, exchanged files, a writer that is replaced or killed in between."""

import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cl2r.storage.path import ASIDE, LocalPath, ObjectPath, StoragePath, at
from cl2r.storage.seal import (
    SealError,
    checksum,
    owner_of,
    read_beside,
    seal_path,
    sealed,
    unsealed,
    write_beside,
)

OWNER, OTHER = "link 0123abcd", "link feed"
CONTENTS = [b"", b"{}", b"two\nlines\n", bytes(range(256))]


class KilledError(BaseException):
    """The process ends here."""


@pytest.fixture(params=["disk", "s3"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> StoragePath:
    """A file of either kind of storage, which does not exist yet."""
    return at(tmp_path / "folder" if request.param == "disk" else request.getfixturevalue("remote")) / "runs.parquet"


@contextlib.contextmanager
def killed_after(writes: int) -> Iterator[None]:
    """Let the process end before it writes another file than the first `writes`."""
    done, originals = itertools.count(), {kind: kind.write_file for kind in (LocalPath, ObjectPath)}

    def limited(path: Any, content: bytes, durable: bool = True) -> None:
        if next(done) >= writes:
            raise KilledError
        originals[type(path)](path, content, durable)

    with pytest.MonkeyPatch.context() as patch:
        for kind in originals:
            patch.setattr(kind, "write_file", limited)
        with pytest.raises(KilledError):
            yield


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of a damaged file does not wait between its looks."""
    monkeypatch.setattr("cl2r.storage.seal.PAUSE_SECONDS", 0.0)


def flips(content: bytes) -> Iterator[bytes]:
    """Yield the content with each of its bits flipped."""
    for place in range(8 * len(content)):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        yield bytes(changed)


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("owner", [OWNER, "", 'Größe\n"quoted"'])
def test_sealed_content_comes_back(content: bytes, owner: str) -> None:
    assert unsealed(sealed(content, owner), owner) == content
    assert owner_of(sealed(content, owner)) == owner


@pytest.mark.parametrize("content", [b"", b'{"a": 1}', b"two\nlines\n"])
def test_every_flipped_bit_is_found(content: bytes) -> None:
    whole = sealed(content, OWNER)
    for changed in flips(whole):
        with pytest.raises(SealError):
            unsealed(changed, OWNER)
        with pytest.raises(SealError):
            owner_of(changed)


def test_every_cut_and_every_addition_is_found() -> None:
    whole = sealed(b"two\nlines\n", OWNER)
    changed = [whole[:end] for end in range(len(whole))] + [whole[start:] for start in range(1, len(whole))]
    for content in [*changed, whole + b"\0", b"\n" + whole, whole + whole]:
        with pytest.raises(SealError):
            unsealed(content, OWNER)


@pytest.mark.parametrize(
    "content",
    [
        b"not sealed",
        b"null\n",
        b"[]\n",
        b'"text"\n',
        b"[" * 10**5 + b"\n",
        b"\xff\xfe\n",
        b'{"belongs_to": 7, "sha256": ""}\n',
        b'{"belongs_to": "link 0123abcd"}\n',
        b'{"belongs_to": "link 0123abcd", "sha256": null}\n',
        b'{"belongs_to": "link 0123abcd", "sha256": []}\n',
        b'{"belongs_to": "link 0123abcd", "sha256": {"a": 1}}\n',
    ],
)
def test_what_is_no_seal_is_refused(content: bytes, tmp_path: LocalPath, impatient: None) -> None:
    with pytest.raises(SealError):
        unsealed(content, OWNER)
    path = tmp_path / "file"
    path.write_file(b"")
    seal_path(path).write_file(content)
    with pytest.raises(SealError):
        read_beside(path, OWNER)


def test_a_foreign_owner_is_named(path: StoragePath, impatient: None) -> None:
    words = f"it belongs to {OTHER}, not to {OWNER}"
    with pytest.raises(SealError, match=words):
        unsealed(sealed(b"content", OTHER), OWNER)
    write_beside(path, b"content", OTHER)
    with pytest.raises(SealError, match=words):
        read_beside(path, OWNER)


def test_a_seal_that_was_rewritten_for_another_owner_is_found(tmp_path: LocalPath, impatient: None) -> None:
    """The name of the owner is part of the checksum."""
    renamed = sealed(b"content", OTHER).replace(OTHER.encode(), OWNER.encode())
    with pytest.raises(SealError, match="checksum"):
        unsealed(renamed, OWNER)
    assert checksum(b"content", OTHER) != checksum(b"content", OWNER)
    path = tmp_path / "file"
    write_beside(path, b"content", OTHER)
    seal_path(path).write_file(seal_path(path).read_bytes().replace(OTHER.encode(), OWNER.encode()))
    with pytest.raises(SealError, match="checksum"):
        read_beside(path, OWNER)


def test_a_file_and_the_seal_beside_it_come_back(path: StoragePath) -> None:
    for content in [*CONTENTS, CONTENTS[-1], b"the last one"]:
        write_beside(path, content, OWNER)
        assert read_beside(path, OWNER) == content
        assert path.read_bytes() == content, "other programs read the file as it is"
    assert sorted(entry.path for entry in path.parent.walk_files()) == ["runs.parquet", "runs.parquet.seal"]
    assert seal_path(path).read_text().count(checksum(b"the last one", OWNER)) == 1
    assert checksum(CONTENTS[-1], OWNER) not in seal_path(path).read_text(), "the one before is accepted no longer"


def test_every_flipped_bit_of_a_file_or_of_its_seal_is_found(
    tmp_path: LocalPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cl2r.storage.seal.ATTEMPTS", 1)
    path = tmp_path / "file"
    write_beside(path, b"content\n", OWNER)
    for damaged in (path, seal_path(path)):
        whole = damaged.read_bytes()
        for changed in flips(whole.removesuffix(b"\n")):
            damaged.write_file(changed, durable=False)
            with pytest.raises(SealError):
                read_beside(path, OWNER)
        damaged.write_file(whole)
    assert read_beside(path, OWNER) == b"content\n"


def test_files_that_were_exchanged_are_not_used(tmp_path: LocalPath, impatient: None) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write_beside(one, b"1", "run one")
    write_beside(two, b"2", "run two")
    content = one.read_bytes()
    one.write_file(two.read_bytes())
    two.write_file(content)
    for path, owner in ((one, "run one"), (two, "run two")):
        with pytest.raises(SealError, match="checksum differs"):
            read_beside(path, owner)
    first, second = seal_path(one).read_bytes(), seal_path(two).read_bytes()
    seal_path(one).write_file(second)
    seal_path(two).write_file(first)
    with pytest.raises(SealError, match="belongs to run two, not to run one"):
        read_beside(one, "run one")


def test_a_file_without_a_seal_and_a_seal_without_a_file(path: StoragePath, impatient: None) -> None:
    with pytest.raises(FileNotFoundError):
        read_beside(path, OWNER)
    path.write_file(b"content")
    with pytest.raises(SealError, match="no seal"):
        read_beside(path, OWNER)
    write_beside(path, b"content", OWNER)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_beside(path, OWNER)


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_writer_that_is_killed_leaves_the_file_before_or_the_new_one(path: StoragePath, writes: int) -> None:
    write_beside(path, b"before", OWNER)
    with killed_after(writes):
        write_beside(path, b"new", OWNER)
    assert read_beside(path, OWNER) == (b"before" if writes < 2 else b"new")
    write_beside(path, b"next", OWNER)
    assert read_beside(path, OWNER) == b"next"
    assert seal_path(path).read_text().count('", "') == 1, "one checksum only"


@pytest.mark.parametrize("writes", list(itertools.product([0, 1, 2], repeat=3)))
def test_writers_that_are_killed_one_after_another_leave_a_file(tmp_path: LocalPath, writes: tuple[int, ...]) -> None:
    path, expected = tmp_path / "file", b"before"
    write_beside(path, expected, OWNER)
    for number, count in enumerate(writes):
        with killed_after(count):
            write_beside(path, f"new {number}".encode(), OWNER)
        expected = expected if count < 2 else f"new {number}".encode()
        assert read_beside(path, OWNER) == expected


@pytest.mark.parametrize("writes", [0, 1])
def test_a_first_writer_that_is_killed_leaves_no_file(tmp_path: LocalPath, writes: int) -> None:
    path = tmp_path / "file"
    with killed_after(writes):
        write_beside(path, b"new", OWNER)
    with pytest.raises(FileNotFoundError):
        read_beside(path, OWNER)
    write_beside(path, b"next", OWNER)
    assert read_beside(path, OWNER) == b"next"


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_readers_between_the_steps_of_a_writer_see_one_of_both(
    path: StoragePath, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    write_beside(path, b"before", OWNER)
    original, done, seen = type(path).write_file, itertools.count(), list[bytes]()

    def read_first(at: Any, content: bytes, durable: bool = True) -> None:
        if next(done) == writes:
            seen.append(read_beside(path, OWNER))
        original(at, content, durable)

    monkeypatch.setattr(type(path), "write_file", read_first)
    write_beside(path, b"new", OWNER)
    assert seen == [b"before" if writes < 2 else b"new"]


def test_readers_beside_a_busy_writer_never_see_a_mismatch(tmp_path: LocalPath) -> None:
    path, enough, faults = tmp_path / "file", threading.Event(), list[BaseException]()
    write_beside(path, b"0" * 1000, OWNER)

    def read() -> None:
        newest = 0
        try:
            while not enough.is_set():
                number = int(read_beside(path, OWNER))
                assert number >= newest, "an older file after a newer one"
                newest = number
        except BaseException as error:  # it must reach the test
            faults.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(1, 200):
        write_beside(path, f"{number:01000d}".encode(), OWNER)
    enough.set()
    for reader in readers:
        reader.join()
    assert faults == []


def test_a_reader_that_is_overtaken_again_and_again_looks_again(
    tmp_path: LocalPath, monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    """The file is replaced twice between every look at it and the look at its seal, thirty times."""
    path, original, numbers = tmp_path / "file", LocalPath.read_bytes, iter(range(60))
    write_beside(path, b"first", OWNER)

    def overtaken(at: LocalPath) -> bytes:
        content = original(at)
        if at == path:
            monkeypatch.setattr(LocalPath, "read_bytes", original)
            for number in itertools.islice(numbers, 2):
                write_beside(path, b"%d" % number, OWNER)
            monkeypatch.setattr(LocalPath, "read_bytes", overtaken)
        return content

    monkeypatch.setattr(LocalPath, "read_bytes", overtaken)
    assert read_beside(path, OWNER) == b"59"


@pytest.mark.parametrize("seal", [False, True])
def test_a_folder_in_place_of_a_file_or_its_seal(tmp_path: LocalPath, impatient: None, seal: bool) -> None:
    path = tmp_path / "file"
    write_beside(path, b"content", OWNER)
    blocked = seal_path(path) if seal else path
    blocked.unlink()
    (blocked / "inside").write_file(b"precious")
    with pytest.raises(SealError, match="no seal" if seal else "a folder is in its place"):
        read_beside(path, OWNER)
    write_beside(path, b"new", OWNER)
    assert read_beside(path, OWNER) == b"new"
    (aside,) = tmp_path.list(f"{ASIDE}{blocked.name}.*")
    assert (aside / "inside").read_bytes() == b"precious", "set aside, not removed"


def test_a_file_of_another_owner_can_be_replaced(path: StoragePath, impatient: None) -> None:
    write_beside(path, b"theirs", OTHER)
    write_beside(path, b"ours", OWNER)
    assert read_beside(path, OWNER) == b"ours"
    path.write_file(b"theirs")
    with pytest.raises(SealError):
        read_beside(path, OWNER)
