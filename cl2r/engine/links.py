"""The store of links: what a run has learned after each task, addressed by content.

A link is a folder: two safetensors files and a record, whose names begin with their checksums, and a sealed manifest,
written last, that lists them and names their link. Disks and object stores have the same files. So a link is seen
whole or not at all, two processes that write the same link never mix files, and links can be copied between stores. A
link that is damaged, or that belongs to another key, is logged with its path, set aside and trained again, never used.
Only tensors and JSON are stored: nothing that is read can run code.
"""

import contextlib
import json
import logging
import re
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from cl2r.config.keys import KEY, ONE_CPU, AcceptLinks
from cl2r.errors import InputError
from cl2r.storage.leftovers import clear
from cl2r.storage.path import StoragePath, at, sha256
from cl2r.storage.seal import SealError, sealed, unsealed

log = logging.getLogger(__name__)

Tensors = dict[str, Tensor]
T = TypeVar("T")
STATE, FEATURES, RECORD = "state.safetensors", "features.safetensors", "record.json"
MANIFEST, PARTIAL = "manifest.json", "partial.json"
MODEL = "model"  # entry of a record, see `Plan.model_facts`
_LINK_NAMES = r"manifest\.json|[0-9a-f]{16}-(?:state\.safetensors|features\.safetensors|record\.json)"
_PARTIAL_NAMES = r"partial\.json|stage\d+-epoch\d+-[0-9a-f]{8}\.safetensors"
LINK_FILE, PARTIAL_FILE = (
    re.compile(rf"(?:{names})|\.(?:aside\.)?(?:{names})\.[0-9a-f]{{32}}") for names in (_LINK_NAMES, _PARTIAL_NAMES)
)
"""Names of the files in the folders of links and of unfinished tasks, also of those being written or set aside."""
CACHED_BYTES = 2**29  # of files from an object store, kept in memory: a chain reads its features after every task


class DamagedError(OSError):
    """A link exists, but is damaged or belongs to another key. Another attempt trains it again."""


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
        """Return the keys of all links that seem to exist, by one listing; other files there are ignored."""
        if self.root.remote:
            files, end = (path for path, *_ in self.root.walk_files()), f"/{MANIFEST}"
            names = [path.removesuffix(end) for path in files if path.endswith(end)]
        else:
            names = [path.parent.name for path in self.root.list(f"[!.]*/{MANIFEST}")]
        return {name for name in names if KEY.fullmatch(name)}  # not hidden, and no file inside a link

    def planned(self, ways: Collection[str], accept_links: AcceptLinks = "same") -> set[str]:
        """Return the keys in plans (`Plan.keys`) whose links are stored, made in one of these ways or in any.

        With several ways, links that were made in a mixture of them count too, whatever the mixture.
        """
        found = set()
        for stored in self.keys():
            key, _, way = stored.partition("-")
            mixed = len(ways) > 1 and way.startswith("mixed")
            if accept_links == "any" or mixed or (way or ONE_CPU) in ways:
                found.add(key)
        return found

    def load(self, key: str) -> Link | None:
        """Return link `key`, or None if there is none; one that is damaged or foreign is logged and set aside."""
        folder = self.root / _checked(key)
        blocked = not folder.remote and folder.file_info() is not None  # a file in its place
        if not blocked and not (folder / MANIFEST).exists():
            return None  # another process may be writing its files
        try:
            return Link(self.state(key), self.features(key), self.record(key))
        except DamagedError as error:
            log.warning("link %s is damaged (%s); it is set aside and will be trained again", folder, error)
            folder.set_aside()
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
        manifest = {name: sha256(content) for name, content in files.items()}
        folder = self.root / _checked(key)
        for name, content in files.items():
            (folder / content_name(manifest[name], name)).write_file(content)
        if not (folder / MANIFEST).exists():
            (folder / MANIFEST).write_file(sealed(json.dumps(manifest).encode(), owner(key)))
        clear(self.partials / key)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep `cl2r fsck` from removing links, because a run that has not been written yet may need them.

        Other runs need not wait. Raise InputError if nothing can be written.
        """
        check_writable(self.root.parent)
        with (self.locks / f"run-{uuid.uuid4().hex}").lock():
            yield

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
        (folder / PARTIAL).write_file(sealed(body, f"the unfinished {owner(key)}"))
        for path in folder.list("stage*.safetensors"):
            if path.name != name and path.name.rpartition("-")[0] <= name.rpartition("-")[0]:
                path.unlink(missing_ok=True)

    def load_partial(self, key: str) -> Partial | None:
        """Return the last saved epoch of an unfinished task, or None; one that cannot be used is set aside."""
        path = self.partials / _checked(key) / PARTIAL
        if not path.exists():
            return None
        try:
            entry = self.read_partial(key)
            name = entry["file"]
            if not isinstance(name, str) or "/" in name or not name.startswith("stage"):
                raise ValueError(f"{name!r} is not the name of an epoch")  # it could lead out of the folder
            content = (path.parent / name).read_bytes()
            if sha256(content) != entry["sha256"]:
                raise ValueError(f"{name}: the checksum differs")
            return Partial(entry["stage"], entry["epoch"], tensors_from_bytes(content), entry["record"])
        except (ValueError, KeyError, TypeError, OSError, RecursionError, SafetensorError) as error:
            log.warning("unfinished epoch %s is damaged (%s); it is set aside and the task starts again", path, error)
            path.parent.set_aside()
            return None

    def read_partial(self, key: str) -> dict[str, Any]:
        """Return what is recorded of an unfinished task. Raise ValueError or OSError if it cannot be used."""
        content = (self.partials / key / PARTIAL).read_bytes()
        entry: dict[str, Any] = json.loads(unsealed(content, f"the unfinished {owner(key)}"))
        return entry

    def manifest(self, key: str) -> dict[str, str]:
        """Return the checksums of a link's files. Raise DamagedError if its manifest is damaged or foreign."""
        try:
            found = json.loads(unsealed((self.root / _checked(key) / MANIFEST).read_bytes(), owner(key)))
            return {name: bytes.fromhex(found[name]).hex() for name in (STATE, FEATURES, RECORD)}
        except SealError as error:
            raise DamagedError(f"{MANIFEST}: {error}") from error
        except FileNotFoundError as error:
            raise DamagedError(f"{MANIFEST} is missing") from error
        except (IsADirectoryError, NotADirectoryError) as error:
            raise DamagedError(f"{MANIFEST} is not a file") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedError(f"{MANIFEST} does not parse") from error

    def check(self, key: str) -> dict[str, str]:
        """Read all of link `key`, in pieces, and return its manifest.

        Raise DamagedError if any of it is damaged, missing or foreign.
        """
        manifest = self.manifest(key)
        for name, expected in manifest.items():
            path = self.root / key / content_name(expected, name)
            try:
                if path.checksum() != expected:
                    raise DamagedError(f"{path.name}: the checksum differs")
            except (FileNotFoundError, IsADirectoryError) as error:
                raise DamagedError(f"{path.name} is missing") from error
        return manifest

    def _read(self, key: str, name: str, parse: Callable[[bytes], T]) -> T:
        folder, expected = self.root / _checked(key), self.manifest(key)[name]
        content = self._cached.get(expected)
        if content is None:
            try:
                content = (folder / content_name(expected, name)).read_bytes()
            except (FileNotFoundError, IsADirectoryError) as error:
                raise DamagedError(f"{name} is missing") from error
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
    """Raise InputError, which names the folder, if links or results cannot be written below `root`."""
    parts = [at(root) / part for part in ("links", "partials", "runs")]
    for folder in (at(root), *parts, at(root) / "claims", at(root) / "studies"):
        if not folder.remote and folder.file_info() is not None:
            raise InputError(f"cannot write to {folder}: a file is in place of the folder; move it away")
    for folder in parts:
        try:
            probe = folder / f".probe-{uuid.uuid4().hex}"
            probe.write_file(b"", durable=False)
            probe.unlink()
        except OSError as error:
            raise InputError(f"cannot write to {folder}: {error.strerror or error}") from error


def owner(key: str) -> str:
    """Return the owner of the files of link `key`, as stated in their seal."""
    return f"link {key}"


def content_name(digest: str, name: str) -> str:
    """Return the name of a link's file."""
    return f"{digest[:16]}-{name}"


def _checked(key: str) -> str:
    """Return the key. Raise InputError if it could be a path, because damaged links are renamed."""
    if not KEY.fullmatch(key):
        raise InputError(f"{key!r} is not the key of a link")
    return key


def _packed(tensors: Tensors) -> bytes:
    return tensors_to_bytes({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
