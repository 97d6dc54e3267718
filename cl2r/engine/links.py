"""The store of links: what a run has learned after each task, addressed by content.

A link is a folder of safetensors files, a record and a manifest with their checksums. On a disk the folder is written
aside and renamed. An object store cannot rename: there the manifest is written last, and the names of the other files
contain their checksums, so that two processes that write the same link never mix files. Either way a link is seen whole
or not at all, and the first process to finish wins. Damaged links are logged with their key and trained again, never
used. Only tensors and JSON are stored: nothing that is read can run code.
"""

import contextlib
import json
import logging
import shutil
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from cl2r.errors import InputError
from cl2r.storage.path import StoragePath, at, sha256

log = logging.getLogger(__name__)

Tensors = dict[str, Tensor]
T = TypeVar("T")
STATE, FEATURES, RECORD = "state.safetensors", "features.safetensors", "record.json"
MANIFEST, PARTIAL = "manifest.json", "partial.json"
MODEL = "model"  # entry of a record, see `Plan.model_facts`; links of earlier versions lack it
CACHED_BYTES = 2**29  # of files from an object store, kept in memory: a chain reads its features after every task


class DamagedError(OSError):
    """A link exists, but its bytes are not those that were written. Another attempt trains it again."""


@dataclass(frozen=True)
class Link:
    """The result of one task: the method's state and memory, features (`engine.extraction`) and a record as JSON."""

    state: Tensors
    features: Tensors
    record: dict[str, Any]


@dataclass(frozen=True)
class Partial:
    """A task that was interrupted after `epoch` epochs of stage `stage`."""

    stage: int
    epoch: int
    tensors: Tensors
    record: dict[str, Any]


class LinkStore:
    """Links below `root`/links and unfinished tasks below `root`/partials."""

    def __init__(self, root: StoragePath | Path) -> None:
        root = at(root)
        self.root, self.partials, self.locks = root / "links", root / "partials", root / "claims"
        self._cached: dict[str, bytes] = {}

    def __contains__(self, key: str) -> bool:
        """Return whether link `key` seems to exist; it may be damaged."""
        return (self.root / key / MANIFEST).exists()

    def keys(self) -> set[str]:
        """Return the keys of all links that seem to exist, by one listing."""
        if self.root.remote:
            return {
                path.removesuffix(f"/{MANIFEST}")
                for path, *_ in self.root.walk_files()
                if path.endswith(f"/{MANIFEST}")
            }
        return {path.parent.name for path in self.root.list(f"[!.]*/{MANIFEST}")}

    def load(self, key: str) -> Link | None:
        """Return link `key`, or None if there is none; a damaged one is logged and removed."""
        folder = self.root / _checked(key)
        if not (folder / MANIFEST if folder.remote else folder).exists():
            return None
        try:
            return Link(self.state(key), self.features(key), self.record(key))
        except DamagedError as error:
            log.warning("link %s is damaged (%s); it will be trained again", key, error)
        if folder.remote:  # the other files have names of their own: a new link does not touch them
            (folder / MANIFEST).unlink(missing_ok=True)
        else:
            aside = Path(str(self.root), f".{key}.{uuid.uuid4().hex}")
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                Path(str(folder)).rename(aside)
                shutil.rmtree(aside)
        return None

    def state(self, key: str) -> Tensors:
        """Return the state of link `key`. Raise DamagedError if it is missing or damaged."""
        return self._read(key, STATE, tensors_from_bytes)

    def features(self, key: str) -> Tensors:
        """Return the features of link `key` in float32. Raise DamagedError if they are missing or damaged."""
        return {name: tensor.float() for name, tensor in self._read(key, FEATURES, tensors_from_bytes).items()}

    def record(self, key: str) -> dict[str, Any]:
        """Return the record of link `key`. Raise DamagedError if it is missing or damaged."""
        record: dict[str, Any] = self._read(key, RECORD, json.loads)
        return record

    def save(self, key: str, link: Link) -> None:
        """Write link `key`, unless another process was faster, and remove its unfinished epochs."""
        files = {STATE: _packed(link.state), FEATURES: _packed(link.features), RECORD: json.dumps(link.record).encode()}
        manifest = json.dumps({name: sha256(content) for name, content in files.items()}).encode()
        folder = self.root / key
        if folder.remote:
            for name, content in files.items():
                (folder / f"{sha256(content)[:16]}-{name}").write_file(content)
            if not (folder / MANIFEST).exists():
                (folder / MANIFEST).write_file(manifest)
        else:
            folder.write_folder({**files, MANIFEST: manifest}, last=MANIFEST)
        (self.partials / key).remove_tree()

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Wait until no other process trains link `key`, and hold its lock."""
        return (self.locks / key).lock()

    def save_partial(self, key: str, partial: Partial) -> None:
        """Save an unfinished task in place of its previous epoch."""
        folder, content = self.partials / _checked(key), _packed(partial.tensors)
        digest = sha256(content)
        name = f"stage{partial.stage}-epoch{partial.epoch:04d}-{digest[:8]}.safetensors"
        (folder / name).write_file(content)
        entry = {"file": name, "sha256": digest, "stage": partial.stage, "epoch": partial.epoch}
        body = json.dumps(entry | {"record": partial.record}).encode()
        (folder / PARTIAL).write_file(sha256(body).encode() + b"\n" + body)
        for path in folder.list("stage*.safetensors"):
            if path.name != name and path.name.rpartition("-")[0] <= name.rpartition("-")[0]:
                path.unlink(missing_ok=True)

    def load_partial(self, key: str) -> Partial | None:
        """Return the last saved epoch of an unfinished task, or None; a damaged one is logged and removed."""
        path = self.partials / _checked(key) / PARTIAL
        if not path.exists():
            return None
        try:
            digest, _, body = path.read_bytes().partition(b"\n")
            entry = json.loads(body)
            name = entry["file"]
            if not isinstance(name, str) or "/" in name or not name.startswith("stage"):
                raise ValueError(f"{name!r} is not the name of an epoch")  # it could lead out of the folder
            content = (path.parent / name).read_bytes()
            if digest != sha256(body).encode() or sha256(content) != entry["sha256"]:
                raise ValueError("the checksum differs")
            return Partial(entry["stage"], entry["epoch"], tensors_from_bytes(content), entry["record"])
        except (ValueError, KeyError, TypeError, OSError, RecursionError, SafetensorError) as error:
            log.warning("the unfinished epoch of link %s is damaged (%s); the task starts again", key, error)
            path.parent.remove_tree()
            return None

    def _read(self, key: str, name: str, parse: Callable[[bytes], T]) -> T:
        folder = self.root / _checked(key)
        try:
            expected = bytes.fromhex(json.loads((folder / MANIFEST).read_bytes())[name]).hex()
        except FileNotFoundError as error:
            raise DamagedError(f"{MANIFEST} is missing") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedError(f"{MANIFEST} does not parse") from error
        content, names = self._cached.get(expected), [name, f"{expected[:16]}-{name}"]
        if content is None:
            # Links may be copied between disks and object stores, so both names are tried.
            for candidate in reversed(names) if folder.remote else names:
                with contextlib.suppress(FileNotFoundError):
                    content = (folder / candidate).read_bytes()
                    break
            else:
                raise DamagedError(f"{name} is missing")
            if sha256(content) != expected:
                raise DamagedError(f"{name}: the checksum differs")
        if folder.remote:
            self._cached[expected] = content
            while sum(map(len, self._cached.values())) > CACHED_BYTES:
                del self._cached[next(iter(self._cached))]
        try:
            return parse(content)
        except (ValueError, RecursionError, SafetensorError) as error:
            raise DamagedError(f"{name} does not parse ({' '.join(str(error).split())})") from error


def check_writable(root: StoragePath | Path) -> None:
    """Raise InputError if links or results cannot be written below `root`."""
    try:
        for part in ("links", "partials", "runs"):
            probe = at(root) / part / f".probe-{uuid.uuid4().hex}"
            probe.write_file(b"", durable=False)
            probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write to {root}: {error.strerror or error}") from error


def _checked(key: str) -> str:
    """Return the key. Raise InputError if it could be a path, because damaged links are removed."""
    if not key.replace("-", "").replace("_", "").isalnum():
        raise InputError(f"{key!r} is no key of a link")
    return key


def _packed(tensors: Tensors) -> bytes:
    return tensors_to_bytes({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
