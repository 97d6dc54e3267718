"""Files and folders that killed processes left behind; whoever lists them may remove them.

What is written aside before it is renamed is called `.NAME.` and 32 hexadecimal digits (`LocalPath.write_file`). Its
writer may live on another machine, so it counts as left behind when nothing in it has changed for long. Folders in the
temporary directory are called `cl2r-` and the mark of their process, which the machine that it ran on can look up;
those of another boot are judged by age. Folders of a Ray have no such mark:
they are kept for a while, because they hold its logs (`cl2r/rayrun/private.py`).
"""

import logging
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cl2r.storage.claims import mark_is_gone
from cl2r.storage.path import HIDDEN, LocalPath, StoragePath, is_aside

log = logging.getLogger(__name__)
DAY = 24 * 3600.0
TICKET = re.compile(r"(?:.+/)?(?:claims/[^/]+|driver\.lock)\.[0-9a-f]{32}\.json")
TEMPORARY = re.compile(r"cl2r-(\d{1,9}-[0-9a-f]{8})-.+", re.DOTALL)


def stale(root: StoragePath, older_than: float = DAY) -> Iterator[StoragePath]:
    """Yield what was set aside below `root`, and what was written aside and has not changed for `older_than` seconds.

    In an object store, tickets of locks count as well: a living process rewrites its own. Links are not followed, and
    other hidden folders are not ours. Raise OSError if a folder cannot be read, rather than leave it out.
    """
    for path, changed in _aside_on_disk(root) if isinstance(root, LocalPath) else _aside_in_store(root):
        if is_aside(path.name) or time.time() - changed > older_than:  # nobody is writing what was set aside
            yield path


def _aside_on_disk(root: LocalPath) -> Iterator[tuple[LocalPath, float]]:
    for place, folders, files in os.walk(root, onerror=_refuse):
        aside = [name for name in sorted([*folders, *files]) if HIDDEN.fullmatch(name)]
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (LocalPath(place, name) for name in aside):
            yield path, _changed(path)


def _aside_in_store(root: StoragePath) -> Iterator[tuple[StoragePath, float]]:
    latest = dict[str, float]()
    for entry in root.walk_files():
        before, dot, rest = f"/{entry.path}".partition("/.")
        name = before[1:]  # the whole path, if no part of it is hidden
        if dot:
            part = "." + rest.partition("/")[0]
            name = f"{before}/{part}"[1:] if HIDDEN.fullmatch(part) else ""
        elif not TICKET.fullmatch(f"{root.name}/{entry.path}"):
            name = ""
        if name:
            latest[name] = max(latest.get(name, 0.0), entry.mtime_ns / 1e9)
    for name, changed in sorted(latest.items()):
        yield root / name, changed


def is_old(path: StoragePath) -> bool:
    """Return whether this is a file that has not changed for a day."""
    info = path.file_info()
    return info is not None and time.time() - info.mtime_ns / 1e9 > DAY


def stale_temporary(older_than: float = DAY) -> Iterator[LocalPath]:
    """Yield this user's `cl2r-` folders in the temporary directory whose process is dead, or unknown and old."""
    for path in LocalPath(tempfile.gettempdir()).list("cl2r-*"):
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        name = TEMPORARY.fullmatch(path.name)
        if name and stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            gone = mark_is_gone(name[1])
            if gone or (gone is None and time.time() - _changed(path) > older_than):
                yield path


def clear(folder: StoragePath) -> None:
    """Remove a folder that nobody needs any more; warn if it stays."""
    try:
        folder.remove_tree()
    except OSError as error:
        log.warning("%s cannot be removed: %s", folder, error)


def _changed(path: Path) -> float:
    """Return when the file, or anything in the folder, changed last; now if it is changing."""
    try:
        latest = path.lstat().st_mtime
        if not path.is_symlink() and path.is_dir():
            for place, folders, files in os.walk(path, onerror=_refuse):
                latest = max([latest, *(os.lstat(os.path.join(place, name)).st_mtime for name in (*folders, *files))])
    except FileNotFoundError:  # its writer has renamed or removed it
        return time.time()
    return latest


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
