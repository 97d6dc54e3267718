"""Paths on a disk and in an object store (`s3://bucket/prefix`), with the same methods: `StoragePath` is either.

A reader sees the old content of a file or the new one, never half of it: a file on a disk is written aside, flushed
and renamed, an object appears whole or not at all. pyarrow talks to object stores. Credentials come from the
environment, a profile or the role of the node, never from the address, because addresses are printed.
"""

import contextlib
import errno
import fnmatch
import functools
import hashlib
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path, PosixPath
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from cl2r.errors import InputError
from cl2r.storage import claims

Paths = list  # inside the classes below `list` is a method
ATTEMPTS = 4
ASIDE = ".aside."  # damaged or foreign files are renamed, not removed: `cl2r fsck` lists them
HIDDEN = re.compile(r"\.(?:.+\.|probe-)[0-9a-f]{32}", re.DOTALL)
"""Names of files and folders that are being written, were left behind by a process that was killed, or set aside."""
PIECE_BYTES = 2**22


class FileInfo(NamedTuple):
    """A file below some folder: its path from there, its size, and when it was written."""

    path: str
    size: int
    mtime_ns: int


class LocalPath(PosixPath):
    """A path on a disk, a network file system included."""

    remote = False  # True: every look is a request, so poll rarely and keep what was read

    def write_file(self, content: bytes, durable: bool = True) -> None:
        """Write the file and its folders; readers see the old or the new content. `durable`: survive a power cut."""
        self.parent.mkdir(parents=True, exist_ok=True)
        aside = self.with_name(f".{self.name}.{uuid.uuid4().hex}")
        try:
            with aside.open("wb") as file:
                file.write(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            aside.replace(self)
        except OSError:
            aside.unlink(missing_ok=True)  # a full disk must not keep the half that fitted
            raise

    def write_folder(self, files: Mapping[str, bytes], last: str) -> None:
        """Write a folder that readers of its `last` file see whole or not at all; one that exists on a disk stays."""
        aside = self.with_name(f".{self.name}.{uuid.uuid4().hex}")
        try:
            for name in sorted(files, key=last.__eq__):
                (aside / name).write_file(files[name])
            aside.rename(self)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise

    def read_bytes(self) -> bytes:
        """Return the content. Raise IsADirectoryError for anything but a file: a pipe would never end."""
        self._check_regular()
        return super().read_bytes()

    def _check_regular(self) -> None:
        if not stat.S_ISREG(self.stat().st_mode):
            raise IsADirectoryError(errno.EISDIR, "not a regular file", str(self))

    def remove_tree(self) -> None:
        """Remove the folder and all files below; do nothing if there is none. Raise OSError if any of it stays."""

        def refuse(function: object, path: str, error: tuple[object, BaseException, object]) -> None:
            if not isinstance(error[1], FileNotFoundError):  # another process was faster
                raise error[1]

        if self.exists():
            shutil.rmtree(self, onerror=refuse)

    def set_aside(self) -> None:
        """Rename the file or folder to a hidden name beside it; do nothing if it is gone."""
        aside = self.with_name(f"{ASIDE}{self.name}.{uuid.uuid4().hex}")
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            self.rename(aside)

    def checksum(self) -> str:
        """Return the SHA-256 checksum of the file, read in pieces."""
        self._check_regular()
        with self.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def list(self, pattern: str = "*") -> "Paths[Self]":
        """Return the sorted files and folders that match; `*` matches within one part of the path."""
        return sorted(self.glob(pattern), key=str)

    def walk_files(self) -> Iterator[FileInfo]:
        """Yield all files below, at any depth; hidden folders of a disk are left out."""

        def refuse(error: OSError) -> None:  # otherwise a folder that cannot be read would be left out
            if not isinstance(error, FileNotFoundError):
                raise error

        for folder, folders, names in os.walk(self, onerror=refuse):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                path = LocalPath(folder, name)
                info = path.file_info()
                # A dangling link is listed too: reading it gives the reason.
                yield (info or FileInfo("", 0, 0))._replace(path=path.relative_to(self).as_posix())

    def file_info(self) -> FileInfo | None:
        """Return size and time of a file, None if there is no such file (a folder is not one)."""
        try:
            found = self.stat()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise
        return None if stat.S_ISDIR(found.st_mode) else FileInfo(self.name, found.st_size, found.st_mtime_ns)

    def local(self, sha256: str) -> Path:
        """Return this path, or that of a copy of the object. Raise ValueError if the copy's checksum differs."""
        return self

    @contextlib.contextmanager
    def staging(self) -> "Iterator[LocalPath]":
        """Give a folder of this machine to write to; what is there at the end is in this folder."""
        self.mkdir(parents=True, exist_ok=True)
        yield self

    def lock(self, wait: bool = True, on_loss: object = None) -> AbstractContextManager[None]:
        """Hold the lock of this name; without `wait`, raise HeldError that names the holder.

        `on_loss` is called if another process took this one for dead (object stores only).
        """
        return claims.disk_lock(self, wait)

    def holder(self) -> str | None:
        """Return the name of the process that holds the lock, None if it is free. Nothing is written."""
        return claims.disk_holder(self)


class ObjectPath:
    """An object, or a prefix that is treated as a folder; the query (`?region=…`) stays with every path below."""

    remote = True

    def __init__(self, address: str) -> None:
        head, mark, query = address.partition("?")
        self.scheme, _, key = head.partition("://")
        self.key = "/".join(part for part in key.split("/") if part)
        self.query = mark + query
        login = any(sign in self.key.partition("/")[0] for sign in "@:")  # a secret may hold a slash before the @
        if login or re.search("key|secret|token|password", " ".join(parse_qs(query)), re.IGNORECASE):
            raise InputError(
                f"{self.scheme}://…: leave credentials out of the address; "
                "give them by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or the role of the node"
            )
        if not self.key or ".." in self.key.split("/"):
            raise InputError(f"{address}: give an address like {self.scheme}://bucket/folder")

    @property
    def files(self) -> Any:
        return _file_system(self.scheme, self.key.partition("/")[0], self.query)

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> Self:
        return type(self)(f"{self.scheme}://{self.key.rpartition('/')[0]}{self.query}")

    def __truediv__(self, part: str) -> Self:
        return type(self)(f"{self.scheme}://{self.key}/{part}{self.query}")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.key}{self.query}"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectPath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: "ObjectPath") -> bool:
        return str(self) < str(other)

    def absolute(self) -> Self:
        return self

    resolve = absolute

    def exists(self) -> bool:
        return bool(self.files.get_file_info(self.key).type != fs.FileType.NotFound)

    def read_bytes(self) -> bytes:
        # pyarrow asks for the size first and then for that many bytes. If another process replaces the object in
        # between, the end is missing or the request fails; so the sizes are compared, and the object is read again.
        for attempt in range(ATTEMPTS):
            try:
                with self.files.open_input_file(self.key) as stream:
                    content = bytes(stream.read())
            except OSError as error:
                if isinstance(error, FileNotFoundError) or attempt == ATTEMPTS - 1:
                    raise
                continue
            found = self.file_info()
            if found is None:
                raise FileNotFoundError(str(self))
            if found.size == len(content):
                return content
        raise OSError(f"{self} was replaced during each of {ATTEMPTS} attempts to read it")

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_file(self, content: bytes, durable: bool = True) -> None:
        stream = self.files.open_output_stream(self.key)
        stream.write(content)
        stream.close()  # the object appears now; `with` would also write what an error has cut off

    def write_folder(self, files: Mapping[str, bytes], last: str) -> None:
        for name in sorted(files, key=last.__eq__):
            (self / name).write_file(files[name])

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self.files.delete_file(self.key)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove_tree(self) -> None:
        if self.exists():
            self.files.delete_dir(self.key)

    def set_aside(self) -> None:
        aside = self.parent / f"{ASIDE}{self.name}.{uuid.uuid4().hex}"
        names = [""] if self.file_info() else [f"/{entry.path}" for entry in self.walk_files()]
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                self.files.move(self.key + name, aside.key + name)

    def checksum(self) -> str:
        digest = hashlib.sha256()
        with self.files.open_input_file(self.key) as stream:
            while block := stream.read(PIECE_BYTES):
                digest.update(block)
        return digest.hexdigest()

    def list(self, pattern: str = "*") -> "Paths[Self]":
        head, _, rest = pattern.partition("/")
        if any(sign in head for sign in "*?["):
            entries = self.files.get_file_info(fs.FileSelector(self.key, allow_not_found=True))
            names = sorted(entry.base_name for entry in entries if fnmatch.fnmatchcase(entry.base_name, head))
            found = [self / name for name in names if name]
        else:
            found = [self / head] if rest or (self / head).exists() else []
        return [below for child in found for below in child.list(rest)] if rest else found

    def walk_files(self) -> Iterator[FileInfo]:
        for entry in self.files.get_file_info(fs.FileSelector(self.key, recursive=True, allow_not_found=True)):
            if entry.type == fs.FileType.File:
                yield FileInfo(entry.path.removeprefix(f"{self.key}/"), int(entry.size), entry.mtime_ns or 0)

    def file_info(self) -> FileInfo | None:
        found = self.files.get_file_info(self.key)
        return FileInfo(self.name, found.size, found.mtime_ns or 0) if found.type == fs.FileType.File else None

    def local(self, sha256: str) -> Path:
        # The copy is named by its checksum, so it is checked once, when it is made.
        copy = cache_folder() / "objects" / f"{sha256}-{self.name}"
        if not copy.exists():
            content = self.read_bytes()
            if hashlib.sha256(content).hexdigest() != sha256:
                raise ValueError(f"{self}: the checksum differs")
            copy.write_file(content)
        return copy

    @contextlib.contextmanager
    def staging(self) -> Iterator[LocalPath]:
        with temporary_folder("upload") as here:
            yield here
            for entry in sorted(here.walk_files()):
                (self / entry.path).write_file((here / entry.path).read_bytes())

    def lock(self, wait: bool = True, on_loss: Callable[[], None] | None = None) -> AbstractContextManager[None]:
        return claims.Ticket(self, on_loss).held(wait)

    def holder(self) -> str | None:
        return claims.ticket_holder(self)


StoragePath = LocalPath | ObjectPath


def at(address: str | Path | StoragePath) -> StoragePath:
    """Return the storage path of a path on a disk or of an address such as s3://bucket/folder."""
    if isinstance(address, ObjectPath | LocalPath):
        return address
    text = str(address)
    scheme, mark, _ = text.partition("://")
    if isinstance(address, Path) or not mark:
        if ":/" in text and (isinstance(address, str) or re.match(r"(s3|gs|abfss?|hdfs|https?|file):/", text)):
            raise InputError(f"{text}: an address has two slashes, e.g. s3://bucket/folder")
        return LocalPath(text)
    return LocalPath(unquote(urlsplit(text).path)) if scheme == "file" else ObjectPath(text)


@contextlib.contextmanager
def temporary_folder(what: str) -> Iterator[LocalPath]:
    """Give an empty folder that is removed at the end of the block; if this process is killed, `cl2r fsck` finds it."""
    with tempfile.TemporaryDirectory(prefix=f"cl2r-{claims.process_mark()}-{what}-") as here:
        yield LocalPath(here)


def is_aside(name: str) -> bool:
    """Return whether a file or folder of this name was set aside."""
    return name.startswith(ASIDE) and HIDDEN.fullmatch(name) is not None


def cache_folder() -> LocalPath:
    """Return the folder below which copies and computed files are kept; it can be deleted at any time."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (LocalPath(home) if home else LocalPath.home() / ".cache") / "cl2r"


def sha256(content: bytes) -> str:
    """Return the SHA-256 checksum of the content, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


@functools.cache
def _file_system(scheme: str, bucket: str, query: str) -> Any:
    fast = "allow_delayed_open=true" if scheme == "s3" else ""  # one request for a small object instead of three
    options = "&".join(filter(None, [query.removeprefix("?"), fast]))
    try:
        return fs.FileSystem.from_uri(f"{scheme}://{bucket}?{options}")[0]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"cannot use the address {scheme}://{bucket}{query}: {error}") from error
