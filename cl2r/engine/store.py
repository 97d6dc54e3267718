"""The store of links: what a run has learned after each task, addressed by content.

A link is a folder of safetensors files and a record, and a manifest with their checksums. The folder is written aside
and renamed, so it is seen whole or not at all, and of two processes that train the same link the first one wins. A
link whose files do not match its manifest is reported and trained again, never used. Tensors and JSON only; nothing
that is read back can run code.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from cl2r.errors import InputError

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
        self.root, self.partials, self.warn = root / "links", root / "partials", warn

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

    def state(self, key: str) -> Tensors:
        """What the next task needs."""
        return tensors_from_bytes(self._read(key, STATE))

    def features(self, key: str) -> Tensor:
        """φ_t of every open image, row by row."""
        return tensors_from_bytes(self._read(key, FEATURES))["open"]

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


def write_file(path: Path, content: bytes) -> None:
    """Aside, flushed to disk, renamed: a reader sees the old bytes or the new ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
