"""Unpacking archives whose content nobody vouches for.

Everything is looked at before anything is written: members are plain files and folders below the target, and they do
not take more room than an archive of images can. An archive of JPEGs hardly grows when it is unpacked.
"""

import gzip
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from cl2r.errors import InputError

DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, NotImplementedError)
GROWTH = 20
"""How many times larger than its archive the content may be."""
ALWAYS_BYTES = 2**26
"""Content that is never too large."""
MOST_MEMBERS = 10**6


def unpack(path: Path, folder: Path, name: str, zipped: bool) -> None:
    """Unpack a zip file, or else a gzipped tar, into an empty folder; `name` is how messages call it."""
    try:
        (_unzip if zipped else _untar)(path, folder, room(path))
    except (*DAMAGED, _RefusedError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name}: cannot be unpacked ({why}), nothing is kept") from error


def room(path: Path) -> int:
    """Bytes that the content of an archive may take."""
    return ALWAYS_BYTES + GROWTH * path.stat().st_size


class _RefusedError(Exception):
    """Why an archive is not unpacked."""


class _Capped:
    """A stream of `cap` bytes at most. Names of members are read as a whole, so no single read may be large."""

    def __init__(self, stream: BinaryIO, cap: int) -> None:
        self.stream, self.cap = stream, cap

    def read(self, size: int = -1) -> bytes:
        """As of a file."""
        if not 0 <= size <= ALWAYS_BYTES:
            raise _RefusedError(f"a header of {size} bytes")
        self._check(self.stream.tell() + size)
        return self.stream.read(size)

    def seek(self, place: int, whence: int = 0) -> int:
        """As of a file."""
        self._check(place)
        return self.stream.seek(place, whence)

    def tell(self) -> int:
        """As of a file."""
        return self.stream.tell()

    def _check(self, place: int) -> None:
        if place > self.cap:
            raise _RefusedError(_too_large(self.cap))


def _untar(path: Path, folder: Path, cap: int) -> None:
    headers = cap + 2 * tarfile.BLOCKSIZE * MOST_MEMBERS + tarfile.RECORDSIZE
    with gzip.open(path) as stream:
        capped = cast(BinaryIO, _Capped(cast(BinaryIO, stream), headers))
        with tarfile.open(fileobj=capped, mode="r:") as tar:
            _check_members(((member.name, member.size, _is_plain(member)) for member in tar), cap)
            tar.extractall(folder, filter="data")


def _is_plain(member: tarfile.TarInfo) -> bool:
    """Links are not, wherever they lead: none of the archives has one, and filters have failed at them before."""
    return member.isreg() or member.isdir()


def _unzip(path: Path, folder: Path, cap: int) -> None:
    """`zipfile` reads no more of a member than the size that is checked here."""
    with zipfile.ZipFile(path) as packed:
        members = packed.infolist()
        _check_members(((member.filename, member.file_size, _is_plain_in_zip(member)) for member in members), cap)
        packed.extractall(folder)


def _is_plain_in_zip(member: zipfile.ZipInfo) -> bool:
    kind = stat.S_IFMT(member.external_attr >> 16)
    return kind in (0, stat.S_IFREG, stat.S_IFDIR)


def _check_members(members: Iterable[tuple[str, int, bool]], cap: int) -> None:
    """Name, size and plainness of each; stops reading the list at the first that is refused."""
    total = 0
    for count, (name, size, plain) in enumerate(members, start=1):
        total += max(size, 0)
        if ".." in PurePosixPath(name).parts or name.startswith("/") or any(sign in name for sign in "\\:\0"):
            raise _RefusedError(f"member {name[:80]!r} would leave the folder")
        if not plain:
            raise _RefusedError(f"member {name[:80]!r} is neither a file nor a folder")
        if total > cap:
            raise _RefusedError(_too_large(cap))
        if count > MOST_MEMBERS:
            raise _RefusedError(f"more than {MOST_MEMBERS} members")


def _too_large(cap: int) -> str:
    return (
        f"its content takes more than {cap / 1e6:.0f} MB, {GROWTH} times its own size: if that is right, do it by hand"
    )
