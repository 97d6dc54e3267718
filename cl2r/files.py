"""Writing files so that a reader, or a restart, never sees half of one; on a disk or in an object store."""

import contextlib
import errno
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cl2r.errors import InputError
from cl2r.objects import ObjectPath

Place = Path | ObjectPath
"""Where something is kept: on a disk (NFS too), or in an object store."""


def place(text: str) -> Place:
    """A path, or an address such as s3://bucket/folder."""
    scheme, mark, _ = text.partition("://")
    if mark and scheme != "file":
        return ObjectPath(text)
    if not mark and ":/" in text:
        raise InputError(f"{text}: an address has two slashes, e.g. s3://bucket/folder")
    return Path(unquote(urlsplit(text).path) if mark else text)


def write_file(path: Place, content: bytes) -> None:
    """A reader sees the old bytes or the new ones: put whole, or written aside, flushed to disk and renamed."""
    if isinstance(path, ObjectPath):
        path.write_bytes(content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)  # a full disk must not keep the half that fitted
        raise


def write_folder(folder: Place, files: Mapping[str, bytes], last: tuple[str, bytes]) -> None:
    """A folder that is seen whole or not at all: whoever reads it looks for the file `last` first.

    On a disk it is written aside and renamed, an object store gets the last file last. A folder that is there stays.
    """
    if isinstance(folder, ObjectPath):
        for name, content in [*files.items(), last]:
            write_file(folder / name, content)
        return
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        for name, content in [*files.items(), last]:
            write_file(aside / name, content)
        aside.rename(folder)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


def listed(folder: Place, pattern: str) -> list[Place]:
    """What matches below a folder, in the order of paths; nothing where there is no folder."""
    return sorted(folder.glob(pattern), key=str)


def modified(path: Place) -> float:
    """When a file was written last, in seconds."""
    return path.modified() if isinstance(path, ObjectPath) else path.stat().st_mtime


def stamp(path: Place) -> tuple[int, int] | None:
    """What changes when a file is replaced; None without one."""
    try:
        if isinstance(path, ObjectPath):
            return path.stamp()
        found = path.stat()
        return found.st_mtime_ns, found.st_size
    except FileNotFoundError:
        return None


def remove_tree(path: Place) -> None:
    """Remove a folder that is of no use any more, as far as possible."""
    if isinstance(path, ObjectPath):
        path.remove_tree()
    else:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def staged(folder: Place) -> Iterator[Path]:
    """A folder of this machine to write to; what is there at the end is in `folder`."""
    if isinstance(folder, Path):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="cl2r-") as here:
        yield Path(here)
        folder.upload(Path(here))
