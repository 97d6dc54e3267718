"""The store of links: what a run has learned after each task, addressed by content.

A link is a folder of safetensors files and a record, and a manifest with their checksums. The folder is written aside
and renamed, so it is seen whole or not at all. A process that trains a link holds a claim on it, and others wait for it
rather than train it too; where claims do not reach (two machines), the first one to finish wins. A
link whose files do not match its manifest is reported and trained again, never used. Tensors and JSON only; nothing
that is read back can run code.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from cl2r.errors import InputError
from cl2r.files import write_file

Tensors = dict[str, Tensor]
STATE, FEATURES, RECORD, MANIFEST, PARTIAL = (
    "state.safetensors",
    "features.safetensors",
    "record.json",
    "manifest.json",
    "partial.json",
)


class DamagedError(Exception):
    """A link or an epoch was found, but its bytes are not those that were written."""


@dataclass(frozen=True)
class Partial:
    """A task interrupted after `epoch` epochs of stage `stage`."""

    stage: int
    epoch: int
    tensors: Tensors
    record: dict[str, Any]


class LinkStore:
    """Links below `root`/links, unfinished tasks below `root`/partials. `warn` hears of damage, by name."""

    def __init__(self, root: Path, warn: Callable[[str], None]) -> None:
        self.root, self.partials, self.claims, self.warn = root / "links", root / "partials", root / "claims", warn

    def save(self, key: str, state: Tensors, features: Tensors, record: dict[str, Any]) -> None:
        """Write link `key`, unless another process was faster. Its unfinished epochs are dropped."""
        files = {STATE: _pack(state), FEATURES: _pack(features), RECORD: json.dumps(record).encode()}
        checksums = {name: _digest(content) for name, content in files.items()}
        aside = self.root / f".{key}.{uuid.uuid4().hex}"
        for name, content in (files | {MANIFEST: json.dumps(checksums).encode()}).items():
            write_file(aside / name, content)
        try:
            aside.rename(self.root / key)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            shutil.rmtree(aside)
        shutil.rmtree(self.partials / key, ignore_errors=True)

    def has(self, key: str) -> bool:
        """Whether link `key` is there, whole. A damaged one is reported and removed."""
        if not (self.root / key).exists():
            return False
        try:
            for name in (STATE, FEATURES, RECORD):
                self._read(key, name)
        except DamagedError as error:
            self.warn(f"link {key} is damaged ({error}); it will be trained again")
            aside = self.root / f".{key}.{uuid.uuid4().hex}"
            with contextlib.suppress(FileNotFoundError):  # another process that saw the damage removed it
                (self.root / key).rename(aside)
                shutil.rmtree(aside)
            return False
        return True

    def present(self, key: str) -> bool:
        """Whether link `key` seems to be there; reads and changes nothing, so it may be damaged."""
        return (self.root / key / MANIFEST).exists()

    @contextlib.contextmanager
    def claim(self, key: str) -> Iterator[None]:
        """Wait until no other process of this machine trains link `key`. The system frees a dead process's claim."""
        path = self.claims / key
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _locked(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            fcntl.flock(file, fcntl.LOCK_UN)  # a process forked meanwhile holds the file open too
            file.close()

    def state(self, key: str) -> Tensors:
        """What the next task needs."""
        return tensors_from_bytes(self._read(key, STATE))

    def features(self, key: str) -> Tensors:
        """`open`: φ_t of every open image, row by row; and what else the link keeps of features."""
        return tensors_from_bytes(self._read(key, FEATURES))

    def record(self, key: str) -> dict[str, Any]:
        """Seconds, losses, figures of the task."""
        record: dict[str, Any] = json.loads(self._read(key, RECORD))
        return record

    def _read(self, key: str, name: str) -> bytes:
        try:
            checksums = json.loads((self.root / key / MANIFEST).read_text())
            content = (self.root / key / name).read_bytes()
            expected = checksums[name]
        except FileNotFoundError as error:
            raise DamagedError(f"{name} is missing") from error
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"{MANIFEST} does not parse") from error
        if _digest(content) != expected:
            raise DamagedError(f"{name}: the checksum differs")
        return content

    def save_partial(self, key: str, partial: Partial) -> None:
        """Remember an unfinished task; replaces the epoch remembered before."""
        name = f"stage{partial.stage}-epoch{partial.epoch:04d}.safetensors"
        content = _pack(partial.tensors)
        write_file(self.partials / key / name, content)
        entry = {"file": name, "sha256": _digest(content), "stage": partial.stage, "epoch": partial.epoch}
        body = json.dumps(entry | {"record": partial.record}).encode()
        write_file(self.partials / key / PARTIAL, _digest(body).encode() + b"\n" + body)
        for stale in (self.partials / key).glob("stage*.safetensors"):
            if stale.name < name:
                stale.unlink(missing_ok=True)

    def partial(self, key: str) -> Partial | None:
        """The last whole epoch of an unfinished task, if any; a damaged one is reported and dropped."""
        path = self.partials / key / PARTIAL
        if not path.exists():
            return None
        try:
            digest, _, body = path.read_bytes().partition(b"\n")
            entry = json.loads(body)
            content = (path.parent / str(entry["file"])).read_bytes()
            if digest != _digest(body).encode() or _digest(content) != entry["sha256"]:
                raise ValueError("the checksum differs")
            return Partial(entry["stage"], entry["epoch"], tensors_from_bytes(content), entry["record"])
        except (ValueError, KeyError, TypeError, OSError, SafetensorError) as error:
            self.warn(f"unfinished epoch of link {key} is damaged ({error}); the task starts again")
            shutil.rmtree(path.parent, ignore_errors=True)
            return None


def _locked(path: Path) -> BinaryIO:
    """An exclusive lock on the file that is at `path` once it is granted; the holder before may have removed it."""
    while True:
        file = path.open("ab")
        fcntl.flock(file, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
        file.close()


def check_writable(root: Path) -> None:
    """Refuse, before any training, an output folder that cannot take links or results."""
    try:
        for part in ("links", "partials", "runs"):
            (root / part).mkdir(parents=True, exist_ok=True)
            probe = root / part / f".probe-{uuid.uuid4().hex}"
            probe.write_bytes(b"")
            probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write to {root}: {error.strerror}") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _pack(tensors: Tensors) -> bytes:
    return tensors_to_bytes({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
