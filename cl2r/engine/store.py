"""The store of links: what a run has learned after each task, addressed by content.

A link is a folder of safetensors files and a record, and a manifest with their checksums. On a disk the folder is
written aside and renamed; in an object store, which cannot rename, the manifest is written last, and the names of the
other files hold their checksums, so that two who write the same link never mix. Either way a link is seen whole or not
at all, and the first one to finish wins. A process that trains a link holds a claim on it, and others wait for it
rather than train it too. A link whose files do not match its manifest is reported and trained again, never used.
Tensors and JSON only; nothing that is read back can run code.
"""

import contextlib
import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from cl2r.claims import claimed
from cl2r.errors import InputError
from cl2r.files import Place, remove_tree, write_file, write_folder
from cl2r.objects import ObjectPath

Tensors = dict[str, Tensor]
T = TypeVar("T")
STATE, FEATURES, RECORD, MANIFEST, PARTIAL = (
    "state.safetensors",
    "features.safetensors",
    "record.json",
    "manifest.json",
    "partial.json",
)
RECALLED_BYTES = 2**29
"""Of an object store: what was read is kept in memory up to this size, for a chain reads its features task by task."""


class DamagedError(OSError):
    """A link or an epoch was found, but its bytes are not those that were written. Another attempt trains it again."""


@dataclass(frozen=True)
class Partial:
    """A task interrupted after `epoch` epochs of stage `stage`."""

    stage: int
    epoch: int
    tensors: Tensors
    record: dict[str, Any]


class LinkStore:
    """Links below `root`/links, unfinished tasks below `root`/partials. `warn` hears of damage, by name."""

    def __init__(self, root: Place, warn: Callable[[str], None]) -> None:
        self.root, self.partials, self.claims, self.warn = root / "links", root / "partials", root / "claims", warn
        self._recalled: dict[str, bytes] = {}

    def save(self, key: str, state: Tensors, features: Tensors, record: dict[str, Any]) -> None:
        """Write link `key`, unless another process was faster. Its unfinished epochs are dropped."""
        files = {STATE: _pack(state), FEATURES: _pack(features), RECORD: json.dumps(record).encode()}
        manifest = json.dumps({name: _digest(content) for name, content in files.items()}).encode()
        if isinstance(self.root, ObjectPath):
            _put(self.root / key, files, manifest)
        else:
            write_folder(self.root / key, files, (MANIFEST, manifest))
        remove_tree(self.partials / key)

    def has(self, key: str) -> bool:
        """Whether link `key` is there, whole. A damaged one is reported and removed."""
        place = self.root / _one_name(key)
        if not (place / MANIFEST if isinstance(place, ObjectPath) else place).exists():
            return False
        try:
            for read in (self.state, self.features, self.record):
                read(key)
        except DamagedError as error:
            self.warn(f"link {key} is damaged ({error}); it will be trained again")
            self._remove(key)
            return False
        return True

    def present(self, key: str) -> bool:
        """Whether link `key` seems to be there; reads and changes nothing, so it may be damaged."""
        return (self.root / key / MANIFEST).exists()

    def among(self, keys: Iterable[str]) -> set[str]:
        """Those of `keys` whose link seems to be there; an object store is asked once."""
        if isinstance(self.root, ObjectPath):
            return self.keys().intersection(keys)
        return {key for key in keys if self.present(key)}

    def keys(self) -> set[str]:
        """All links that seem to be there."""
        if isinstance(self.root, ObjectPath):
            return {name.removesuffix(f"/{MANIFEST}") for name in self.root.below() if name.endswith(f"/{MANIFEST}")}
        return {path.parent.name for path in self.root.glob(f"[!.]*/{MANIFEST}")}

    def _remove(self, key: str) -> None:
        """Without its manifest there is no link; without rename that is all, and a new one takes its place."""
        if isinstance(self.root, ObjectPath):
            (self.root / key / MANIFEST).unlink(missing_ok=True)
            return
        aside = self.root / f".{key}.{uuid.uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):  # another process that saw the damage removed it
            (self.root / key).rename(aside)
            shutil.rmtree(aside)

    def claim(self, key: str) -> AbstractContextManager[None]:
        """Wait until no other process trains link `key`."""
        return claimed(self.claims / key)

    def state(self, key: str) -> Tensors:
        """What the next task needs."""
        return _parsed(STATE, tensors_from_bytes, self._read(key, STATE))

    def features(self, key: str) -> Tensors:
        """`open`: φ_t of every open image, row by row; and what else the link keeps of features. Always float32."""
        kept = _parsed(FEATURES, tensors_from_bytes, self._read(key, FEATURES))
        return {name: tensor.float() for name, tensor in kept.items()}

    def record(self, key: str) -> dict[str, Any]:
        """Seconds, losses, figures of the task."""
        record: dict[str, Any] = _parsed(RECORD, json.loads, self._read(key, RECORD))
        return record

    def _read(self, key: str, name: str) -> bytes:
        place = self.root / _one_name(key)
        try:
            expected = bytes.fromhex(json.loads((place / MANIFEST).read_bytes())[name]).hex()
        except FileNotFoundError as error:
            raise DamagedError(f"{MANIFEST} is missing") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedError(f"{MANIFEST} does not parse") from error
        if expected in self._recalled:
            return self._recalled[expected]
        content = _content(place, name, expected)
        if _digest(content) != expected:
            raise DamagedError(f"{name}: the checksum differs")
        self._recall(expected, content)
        return content

    def _recall(self, digest: str, content: bytes) -> None:
        if not isinstance(self.root, ObjectPath):
            return
        self._recalled[digest] = content
        while sum(map(len, self._recalled.values())) > RECALLED_BYTES:
            del self._recalled[next(iter(self._recalled))]

    def save_partial(self, key: str, partial: Partial) -> None:
        """Remember an unfinished task; replaces the epoch remembered before."""
        content, key = _pack(partial.tensors), _one_name(key)
        name = f"stage{partial.stage}-epoch{partial.epoch:04d}-{_digest(content)[:8]}.safetensors"
        write_file(self.partials / key / name, content)
        entry = {"file": name, "sha256": _digest(content), "stage": partial.stage, "epoch": partial.epoch}
        body = json.dumps(entry | {"record": partial.record}).encode()
        write_file(self.partials / key / PARTIAL, _digest(body).encode() + b"\n" + body)
        for stale in (self.partials / key).glob("stage*.safetensors"):
            if stale.name != name and stale.name[:_EPOCH] <= name[:_EPOCH]:
                stale.unlink(missing_ok=True)

    def partial(self, key: str) -> Partial | None:
        """The last whole epoch of an unfinished task, if any; a damaged one is reported and dropped."""
        path = self.partials / _one_name(key) / PARTIAL
        if not path.exists():
            return None
        try:
            digest, _, body = path.read_bytes().partition(b"\n")
            entry = json.loads(body)
            content = (path.parent / _file_name(entry["file"])).read_bytes()
            if digest != _digest(body).encode() or _digest(content) != entry["sha256"]:
                raise ValueError("the checksum differs")
            return Partial(entry["stage"], entry["epoch"], tensors_from_bytes(content), entry["record"])
        except (ValueError, KeyError, TypeError, OSError, RecursionError, SafetensorError) as error:
            self.warn(f"unfinished epoch of link {key} is damaged ({error}); the task starts again")
            remove_tree(path.parent)
            return None


_EPOCH = len("stage0-epoch0000")


def _one_name(key: str) -> str:
    """A key is never a path: what is damaged is removed."""
    if not key.replace("-", "").replace("_", "").isalnum():
        raise InputError(f"{key!r} is no key of a link")
    return key


def _parsed(name: str, parse: Callable[[bytes], T], content: bytes) -> T:
    try:
        return parse(content)
    except (ValueError, RecursionError, SafetensorError) as error:
        raise DamagedError(f"{name} does not parse ({' '.join(str(error).split())})") from error


def _file_name(name: object) -> str:
    """One file's name, as written by `save_partial`; anything else would lead out of the folder."""
    if not isinstance(name, str) or "/" in name or not name.startswith("stage"):
        raise ValueError(f"{name!r} is not the name of an epoch")
    return name


def _put(place: ObjectPath, files: dict[str, bytes], manifest: bytes) -> None:
    """In an object store: under names that nobody gives to other bytes; the manifest last, if there is none yet."""
    for name, content in files.items():
        write_file(place / _addressed(name, _digest(content)), content)
    if not (place / MANIFEST).exists():
        write_file(place / MANIFEST, manifest)


def _addressed(name: str, digest: str) -> str:
    return f"{digest[:16]}-{name}"


def _content(place: Place, name: str, digest: str) -> bytes:
    """A file of a link; stores may be copied between disks and object stores, so by either of its names."""
    names = [name, _addressed(name, digest)]
    for candidate in reversed(names) if isinstance(place, ObjectPath) else names:
        with contextlib.suppress(FileNotFoundError):
            return (place / candidate).read_bytes()
    raise DamagedError(f"{name} is missing")


def check_writable(root: Place) -> None:
    """Refuse, before any training, a place that cannot take links or results."""
    try:
        for part in ("links", "partials", "runs"):
            if isinstance(root, Path):
                (root / part).mkdir(parents=True, exist_ok=True)
            probe = root / part / f".probe-{uuid.uuid4().hex}"
            probe.write_bytes(b"")
            probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write to {root}: {error.strerror or error}") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _pack(tensors: Tensors) -> bytes:
    return tensors_to_bytes({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
