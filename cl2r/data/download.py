"""Fetch the archives of a data set, verify and unpack them; only `cl2r datasets download` does this.

An archive is streamed aside, compared with its published digest, unpacked aside and moved into place, so that a folder
is there as a whole or not at all. What is there already stays as it is.

Members are checked before anything is written: they must be plain files and folders below the target, and must not take
more room than an archive of images can.
"""

import gzip
import hashlib
import http.client
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast
from urllib.request import urlopen

from cl2r.data.dataset import Archive, Dataset
from cl2r.data.folders import dataset_parent
from cl2r.errors import InputError

CHUNK = 2**20
TIMEOUT = 60.0  # seconds without a byte
LARGEST = 2**31  # bytes of an archive; the published ones have an eighth of it
GROWTH = 20  # how many times larger than its archive the content may be
ALWAYS_BYTES = 2**26  # content of this size is never too large
MOST_MEMBERS = 10**6
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, NotImplementedError)

Report = Callable[[str], None]


def download(dataset: Dataset, root: Path, report: Report) -> None:
    """Fetch the archives of a data set into `root`, except those whose content is there already."""
    if not dataset.archives:
        raise InputError(f"{dataset.name}: nothing to download; {dataset.instructions}")

    def there(archive: Archive) -> list[Path]:
        return [root / place for place in (archive.target, *archive.or_at) if (root / place).exists()]

    for archive in dataset.archives:  # files that are fetched into the data set itself would become a part of it
        parent = dataset_parent(root, archive.target, *archive.or_at)
        if parent != root and not there(archive) and root.is_dir() and any(root.iterdir()):
            raise InputError(f"{root}: is the data set itself; give the folder that holds it: {parent}")
    root.mkdir(parents=True, exist_ok=True)
    for archive in dataset.archives:
        if found := there(archive):
            report(f"{found[0]}: already there, left as it is")
        else:
            _fetch(archive, root, report)
    if dataset.how_to_get:
        report(f"{dataset.name}: {dataset.how_to_get}")


def _fetch(archive: Archive, root: Path, report: Report) -> None:
    part, aside = root / f"{archive.file}.part", root / f"{archive.target}.unpacking"
    shutil.rmtree(aside, ignore_errors=True)  # left by a download that was killed
    by_hand = f"try again, or get {archive.target} by hand and put it into {root}"
    unknown = f"not the published {archive.file}; nothing was kept; {by_hand}"
    digest = hashlib.new(archive.algorithm, usedforsecurity=False)
    try:
        try:
            with urlopen(archive.url, timeout=TIMEOUT) as response, part.open("wb") as file:
                size = int(response.headers.get("Content-Length", 0)) / 1e6
                report(f"{archive.url}: fetching {archive.file}, {size:.1f} MB")
                while chunk := response.read(CHUNK):
                    if file.tell() + len(chunk) > LARGEST:
                        raise InputError(f"{archive.url}: more than {LARGEST / 1e9:.1f} GB: {unknown}")
                    digest.update(chunk)
                    file.write(chunk)
        except (OSError, http.client.HTTPException) as error:
            raise OSError(f"{archive.url}: cannot be fetched ({error}); {by_hand}") from error
        if digest.hexdigest() != archive.digest:
            differs = f"{archive.algorithm} {digest.hexdigest()}, expected {archive.digest}"
            raise InputError(f"{archive.url}: {differs}: {unknown}")
        if archive.file == archive.target:
            part.rename(root / archive.target)
        else:
            aside.mkdir()
            unpack(part, aside, archive.url, archive.file.endswith(".zip"))
            if not (aside / archive.target).is_dir():
                raise InputError(f"{archive.url}: no folder {archive.target} in it; nothing was kept; {by_hand}")
            (aside / archive.target).rename(root / archive.target)
        report(f"{root / archive.target}: done")
    finally:
        part.unlink(missing_ok=True)
        shutil.rmtree(aside, ignore_errors=True)


class _RefusedError(Exception):
    """Why an archive is not unpacked."""


def unpack(path: Path, folder: Path, name: str, zipped: bool) -> None:
    """Unpack a zip file or a gzipped tar into an empty folder; raise InputError, with `name`, if it is unsafe."""
    cap = ALWAYS_BYTES + GROWTH * path.stat().st_size
    try:
        if zipped:
            with zipfile.ZipFile(path) as packed:  # reads no more of a member than the size that is checked here
                kinds = ((member, stat.S_IFMT(member.external_attr >> 16)) for member in packed.infolist())
                plain = (0, stat.S_IFREG, stat.S_IFDIR)
                _check_members(((member.filename, member.file_size, kind in plain) for member, kind in kinds), cap)
                packed.extractall(folder)
            return
        headers = cap + 2 * tarfile.BLOCKSIZE * MOST_MEMBERS + tarfile.RECORDSIZE
        with gzip.open(path) as stream:
            capped = cast(BinaryIO, _CappedStream(cast(BinaryIO, stream), headers))
            with tarfile.open(fileobj=capped, mode="r:") as tar:
                # links are refused wherever they lead: no archive needs one, and filters have failed at them before
                _check_members(((member.name, member.size, member.isreg() or member.isdir()) for member in tar), cap)
                tar.extractall(folder, filter="data")
    except (*DAMAGED, _RefusedError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name}: cannot be unpacked ({why}); nothing was kept; get the file again") from error


class _CappedStream:
    """A stream of at most `cap` bytes. Names of members are read as a whole, so no single read may be large."""

    def __init__(self, stream: BinaryIO, cap: int) -> None:
        self.stream, self.cap, self.tell = stream, cap, stream.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= ALWAYS_BYTES:
            raise _RefusedError(f"a header of {size} bytes")
        _require_below(self.cap, self.tell() + size)
        return self.stream.read(size)

    def seek(self, place: int, whence: int = 0) -> int:
        _require_below(self.cap, place)
        return self.stream.seek(place, whence)


def _check_members(members: Iterable[tuple[str, int, bool]], cap: int) -> None:
    """Raise on the first bad member, given its name, its size and whether it is a plain file or folder."""
    total = 0
    for count, (name, size, plain) in enumerate(members, start=1):
        total += max(size, 0)
        if ".." in PurePosixPath(name).parts or name.startswith("/") or any(sign in name for sign in "\\:\0"):
            raise _RefusedError(f"member {name[:80]!r} would leave the folder")
        if not plain:
            raise _RefusedError(f"member {name[:80]!r} is neither a file nor a folder")
        _require_below(cap, total)
        if count > MOST_MEMBERS:
            raise _RefusedError(f"more than {MOST_MEMBERS} members")


def _require_below(cap: int, size: int) -> None:
    if size > cap:
        limit = f"its content takes more than {cap / 1e6:.0f} MB, {GROWTH} times its own size"
        raise _RefusedError(f"{limit}: if that is right, unpack it by hand")
