"""Paths in an object store, `s3://bucket/prefix`, with the part of `pathlib.Path` that cl2r needs.

pyarrow does the talking. An object appears whole when it is written, or not at all; there are no folders, no rename and
no lock. Credentials come from the environment, a profile or the role of the node, never from the address, which is
printed and handed from process to process.
"""

import fnmatch
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pyarrow as pa
from pyarrow import fs

from cl2r.errors import InputError

_SECRETS = ("key", "secret", "token", "password")
ATTEMPTS = 4
_FAST = {"s3": "allow_delayed_open=true"}
"""One request for a small object instead of three."""


class ObjectPath:
    """An object, or a prefix that is treated as a folder; the query (`?region=…`) stays with every path below."""

    def __init__(self, address: str) -> None:
        head, mark, query = address.partition("?")
        self.scheme, _, key = head.partition("://")
        self.key = "/".join(part for part in key.split("/") if part)
        self.query = mark + query
        _refuse_credentials(self.scheme, self.key, query)
        if not self.key or ".." in self.key.split("/"):
            raise InputError(f"{address}: give an address like {self.scheme}://bucket/folder")

    @property
    def files(self) -> Any:
        """pyarrow's file system."""
        return _file_system(self.scheme, self.key.partition("/")[0], self.query)

    @property
    def name(self) -> str:
        """The last part."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> "ObjectPath":
        """Without the last part."""
        return self._at(self.key.rpartition("/")[0])

    def _at(self, key: str) -> "ObjectPath":
        return ObjectPath(f"{self.scheme}://{key}{self.query}")

    def __truediv__(self, part: str) -> "ObjectPath":
        return self._at(f"{self.key}/{part}")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.key}{self.query}"

    def __repr__(self) -> str:
        return f"ObjectPath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectPath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: "ObjectPath") -> bool:
        return str(self) < str(other)

    def exists(self) -> bool:
        """Whether there is such an object, or any below it."""
        return bool(self.files.get_file_info(self.key).type != fs.FileType.NotFound)

    def read_bytes(self) -> bytes:
        """The content; FileNotFoundError without one.

        pyarrow asks for the size first and for so many bytes then. If another process replaces the object in between,
        the end is missing or the request fails; so the size is compared, and the object read again.
        """
        for attempt in range(ATTEMPTS):
            try:
                with self.files.open_input_file(self.key) as stream:
                    content = bytes(stream.read())
            except FileNotFoundError:
                raise
            except OSError:
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            if self._info().size == len(content):
                return content
        raise OSError(f"{self} is being replaced all the time")

    def _info(self) -> Any:
        found = self.files.get_file_info(self.key)
        if found.type == fs.FileType.NotFound:
            raise FileNotFoundError(str(self))
        return found

    def read_text(self) -> str:
        """The content as UTF-8."""
        return self.read_bytes().decode()

    def write_bytes(self, content: bytes) -> None:
        """Put the object, whole."""
        stream = self.files.open_output_stream(self.key)
        stream.write(content)
        stream.close()  # the object appears now; not by `with`, which would also put what an error has cut off

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object."""
        try:
            self.files.delete_file(self.key)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def modified(self) -> float:
        """When it was written, by the clock of the store, in seconds."""
        return (self._info().mtime_ns or 0) / 1e9

    def stamp(self) -> tuple[int, int]:
        """What changes when it is replaced: time and size. A store may know the second only."""
        found = self._info()
        return found.mtime_ns or 0, found.size

    def glob(self, pattern: str) -> Iterator["ObjectPath"]:
        """Objects and folders below, `*` within one part of the path; a listing a part."""
        head, _, rest = pattern.partition("/")
        for child in self._children(head):
            if rest:
                yield from child.glob(rest)
            else:
                yield child

    def _children(self, pattern: str) -> list["ObjectPath"]:
        if not any(sign in pattern for sign in "*?["):
            child = self / pattern
            return [child] if child.exists() else []
        entries = self.files.get_file_info(fs.FileSelector(self.key, allow_not_found=True))
        names = (entry.base_name for entry in entries if entry.base_name)
        return [self / name for name in sorted(names) if fnmatch.fnmatchcase(name, pattern)]

    def below(self) -> list[str]:
        """The objects below, however deep, by their path from here; one listing."""
        return [path for path, _ in self.sizes()]

    def sizes(self) -> list[tuple[str, int]]:
        """The same, with their bytes."""
        entries = self.files.get_file_info(fs.FileSelector(self.key, recursive=True, allow_not_found=True))
        found = (entry for entry in entries if entry.type == fs.FileType.File)
        return [(entry.path.removeprefix(f"{self.key}/"), int(entry.size)) for entry in found]

    def remove_tree(self) -> None:
        """Remove all objects below; nothing there is no error."""
        if self.exists():
            self.files.delete_dir(self.key)

    def upload(self, folder: Path) -> None:
        """Put every file of a local folder below this path."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                (self / path.relative_to(folder).as_posix()).write_bytes(path.read_bytes())


def _refuse_credentials(scheme: str, key: str, query: str) -> None:
    """They would end up in logs and frames."""
    secret = any(word in name.lower() for name in parse_qs(query) for word in _SECRETS)
    login = any(sign in key.partition("/")[0] for sign in "@:")  # a secret may hold a slash before the @
    if login or secret:
        raise InputError(
            f"{scheme}://…: leave credentials out of the address; "
            "give them by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or the role of the node"
        )


@functools.cache
def _file_system(scheme: str, bucket: str, query: str) -> Any:
    options = "&".join(filter(None, [query.removeprefix("?"), _FAST.get(scheme)]))
    try:
        return fs.FileSystem.from_uri(f"{scheme}://{bucket}?{options}")[0]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"cannot use the address {scheme}://{bucket}{query}: {error}") from error
