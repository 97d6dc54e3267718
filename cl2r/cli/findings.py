"""What `cl2r fsck` finds: problems of stored files, and the helpers with which its checks look for them."""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from cl2r.errors import InputError
from cl2r.storage.path import HIDDEN, FileInfo, LocalPath, StoragePath

Kind = Literal["damaged", "foreign", "left behind", "unused"]
LOCK = r"(?:\.holder|\.[0-9a-f]{32}\.json)?"  # the file of a lock, of its holder, or a ticket


@dataclass(frozen=True)
class Finding:
    """A file or folder that is not as it should be; `repair` does what can be done about it."""

    kind: Kind
    path: StoragePath
    what: str
    bytes: int = 0
    repair: Callable[[], object] | None = None
    repaired: bool = False


@dataclass
class References:
    """Keys of the links that finished runs use; `doubt` says why other links may be needed too."""

    keys: set[str] = field(default_factory=set)
    doubt: str = ""
    read: set[FileInfo] = field(default_factory=set)  # what tells the keys, as it was when the check began


def any_of(*names: str) -> re.Pattern[str]:
    """Return a pattern that matches these names."""
    return re.compile("|".join(map(re.escape, names)))


def foreign(folder: StoragePath, ours: re.Pattern[str], what: str) -> Iterator[Finding]:
    """Yield what is in a folder under a name that none of our files has."""
    for path in children(folder):
        if not ours.fullmatch(path.name) and not HIDDEN.fullmatch(path.name):
            yield Finding("foreign", path, what, size_of(path))


@contextlib.contextmanager
def noted(path: StoragePath, faults: list[Finding], needs: References | None = None) -> Iterator[None]:
    """Turn an error while reading into a finding; record in `needs` that links may still be needed."""
    try:
        yield
    except (InputError, OSError) as error:
        faults.append(Finding("damaged", path, f"it cannot be read ({error})"))
        if needs is not None:
            needs.doubt = needs.doubt or f"{path} cannot be read"


def children(folder: StoragePath) -> list[StoragePath]:
    """Return what is in a folder, nothing if there is none. Raise OSError if it cannot be read."""
    if isinstance(folder, LocalPath):  # `list` leaves out what the user may not read
        return sorted(folder.iterdir()) if folder.exists() else []
    return list(folder.list("*"))


def listing(folder: StoragePath) -> dict[str, list[FileInfo]] | None:
    """Return the files below each name in a folder, with paths from the folder on; None if it is a file.

    An object store is asked once, or twice if nothing is there.
    """
    if isinstance(folder, LocalPath):
        if folder.file_info() is not None:
            return None
        found: dict[str, list[FileInfo]] = {}
        for path in children(folder):
            info = path.file_info()
            below = [] if info or is_symlink(path) else path.walk_files()
            inside = [entry._replace(path=f"{path.name}/{entry.path}") for entry in below]
            found[path.name] = [info] if info else inside
        return found
    found = {}
    for entry in folder.walk_files():
        found.setdefault(entry.path.partition("/")[0], []).append(entry)
    return None if not found and folder.file_info() is not None else found


def is_symlink(path: StoragePath) -> bool:
    """Return whether a path is a symbolic link of a disk."""
    return isinstance(path, LocalPath) and path.is_symlink()


def size_of(path: StoragePath) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if is_symlink(path):
        return 0
    info = path.file_info()
    return info.size if info else sum(entry.size for entry in path.walk_files())
