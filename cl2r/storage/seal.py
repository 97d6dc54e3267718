"""Seals: the owner of a stored file, and the SHA-256 checksum of owner and content.

Files that only cl2r reads begin with their seal, one line of JSON, and the content follows. Files that other programs
read as they are (Parquet, YAML, Optuna's journal) have their seal beside them, in `NAME.seal`. A file that was changed,
exchanged with another one or copied from elsewhere does not fit its seal, and is not used.

A file and the seal beside it cannot be replaced in one step. While a file is being replaced its seal therefore has the
new checksum and that of the file before: a reader finds one or the other, and so does the next command if the writer
is killed in between. If writers are killed repeatedly, the seal accumulates checksums; the next successful write
leaves one.
"""

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Sequence
from typing import Any

from cl2r.storage.path import LocalPath, StoragePath

log = logging.getLogger(__name__)
SUFFIX = ".seal"
ATTEMPTS, PAUSE_SECONDS = 4, 0.05
MOST_LINES = 64  # of one entry of a journal
_OWNER, _DIGEST = "belongs_to", "sha256"


class SealError(ValueError):
    """A file does not fit its seal: it is damaged, or belongs to something else. The message says which."""


def sealed(content: bytes, belongs_to: str) -> bytes:
    """Return the content with its seal in front of it."""
    return _line(belongs_to, checksum(content, belongs_to)) + content


def unsealed(content: bytes, belongs_to: str) -> bytes:
    """Return the content behind a seal. Raise SealError if it is damaged, or belongs to something else."""
    line, end, body = content.partition(b"\n")
    owner, digest = _parsed(line + end)
    if digest != checksum(body, owner):
        raise SealError("the checksum differs")
    _check_owner(owner, belongs_to)
    return body


def owner_of(content: bytes) -> str:
    """Return the owner of sealed content. Raise SealError if it is damaged."""
    owner, _ = _parsed(b"".join(content.partition(b"\n")[:2]))
    unsealed(content, owner)
    return owner


def write_beside(path: StoragePath, content: bytes, belongs_to: str) -> None:
    """Write a file and, beside it, its seal."""
    seal, digest, before = seal_path(path), checksum(content, belongs_to), list[str]()
    # Without a usable seal nobody can rely on the file before.
    with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError, SealError):
        owner, known = _parsed(seal.read_bytes())
        before = [other for other in _digests(known) if other != digest] if owner == belongs_to else []
    if seal.exists() and seal.file_info() is None:
        seal.set_aside()  # a folder in its place
    if path.exists() and path.file_info() is None:
        path.set_aside()
    seal.write_file(_line(belongs_to, [digest, *before]))
    path.write_file(content)
    if before:
        seal.write_file(_line(belongs_to, digest))


def read_beside(path: StoragePath, belongs_to: str) -> bytes:
    """Return the content of a file that has its seal beside it.

    Raise FileNotFoundError if there is no such file, and SealError if it has no seal or does not fit it. Another
    process may replace the file between reading it and reading its seal, so only a mismatch that several reads repeat
    is damage.
    """
    seen, left = ("", b""), ATTEMPTS
    while True:
        try:
            content = path.read_bytes()
        except (IsADirectoryError, NotADirectoryError) as error:
            raise SealError("a folder is in its place") from error
        line = b""
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            line = seal_path(path).read_bytes()
        try:
            owner, known = _parsed(line)
            if checksum(content, owner) not in _digests(known):
                raise SealError("the checksum differs")
            _check_owner(owner, belongs_to)
            return content
        except SealError:
            look = checksum(content, ""), line
            seen, left = look, left - 1 if look == seen else ATTEMPTS - 1
            if not left:
                raise
        time.sleep(PAUSE_SECONDS)


class JournalSeal:
    """The seal beside a file that another program appends to. `append` must be called before each append.

    Lines after the sealed ones, whole or cut off, are removed if `change` allows it. Raise SealError if those before do
    not fit the seal.
    """

    def __init__(self, path: LocalPath, belongs_to: str, change: bool = True) -> None:
        self.path, self.belongs_to, self.change = path, belongs_to, change
        self.unsealed_lines = 0  # at its end
        content = path.read_bytes() if path.exists() else b""
        seal = seal_path(path)
        if content or seal.exists():
            content = self._sound(content, seal.read_bytes() if seal.exists() else b"")
        self._digest = hashlib.sha256(belongs_to.encode() + b"\n" + content)

    def _sound(self, content: bytes, line: bytes) -> bytes:
        owner, known = _parsed(line)
        _check_owner(owner, self.belongs_to)
        lines, digests = content.splitlines(keepends=True), _digests(known)
        for left_out in range(min(len(lines), MOST_LINES) + 1):
            kept = b"".join(lines[: len(lines) - left_out])
            if checksum(kept, owner) in digests:
                self.unsealed_lines = left_out
                if left_out and self.change:
                    cause = "they were cut off, or another program added them"
                    log.warning(
                        "%s: %d lines at its end are not covered by its seal: %s; removed", self.path, left_out, cause
                    )
                    self.path.write_file(kept)
                return kept
        raise SealError("the checksum differs" if self.path.exists() else "the file is missing")

    def append(self, content: bytes) -> None:
        """Seal the file as it is, and as it will be with this content."""
        before = self._digest.hexdigest()
        self._digest.update(content)
        seal_path(self.path).write_file(_line(self.belongs_to, [self._digest.hexdigest(), before]))


def run_owner(run: str, name: str) -> str:
    """Return the owner of the file `name` in the folder of a run, as stated in its seal."""
    return f"run {run}, {name}"


def seal_path(path: StoragePath) -> StoragePath:
    """Return the path of the seal beside a file."""
    return path.parent / (path.name + SUFFIX)


def set_aside_with_seal(path: StoragePath) -> None:
    """Set a file, and the seal beside it, aside."""
    path.set_aside()
    seal_path(path).set_aside()


def checksum(content: bytes, belongs_to: str) -> str:
    """Return the SHA-256 checksum of the owner's name and the content, in hexadecimal digits."""
    digest = hashlib.sha256(belongs_to.encode() + b"\n")
    digest.update(content)
    return digest.hexdigest()


def _line(belongs_to: str, digest: str | Sequence[str]) -> bytes:
    return json.dumps({_OWNER: belongs_to, _DIGEST: digest}).encode() + b"\n"


def _parsed(line: bytes) -> tuple[str, Any]:
    """Return the owner and the checksums of a seal. Raise SealError if it does not parse."""
    try:
        entry = json.loads(line)
        if not isinstance(entry[_OWNER], str) or _line(entry[_OWNER], entry[_DIGEST]) != line:
            raise SealError("its seal does not parse")
        return entry[_OWNER], entry[_DIGEST]
    except SealError:
        raise
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise SealError("it has no seal, or a damaged one") from error


def _digests(found: Any) -> list[str]:
    digests = found if isinstance(found, list) else [found]
    if not digests or not all(isinstance(digest, str) for digest in digests):
        raise SealError("its seal does not parse")
    return digests


def _check_owner(owner: str, belongs_to: str) -> None:
    if owner != belongs_to:
        raise SealError(f"it belongs to {owner[:200]}, not to {belongs_to}")
