"""A gallery: the vectors of many model versions and the images they show, on disk or in an object store.

    gallery.json             marks the folder as a gallery: its id, the number of its format and of its newest commit
    commits/00000003.json    the versions and shards after the third change; the newest commit counts
    shards/<name>/           some thousand vectors of one model, never changed once written:
        vectors.npy              float32 or float16, rows of length one
        items.parquet            one row per vector: id, source, label, bytes, path and the user's metadata
        manifest.json            model, counts, checksums, unreadable images; written last
    index/<version>-*        FAISS indexes of large versions (`index.py`); can be rebuilt at any time
    claims/write             lock that admits one writer at a time

A change writes new shards first and a new commit last, so readers see the gallery before or after the change. Old
vectors keep the model that made them: mixed versions are the normal case. The name of a shard is a digest of its model
and its images, so making a shard twice gives the same shard. A writer that has lost its lock, because others took it
for dead, commits nothing.

Every file is checked before it is used: the JSON files are sealed (`cl2r.storage.seal`) with this gallery and their own
name as owner, commits hold the checksums of vectors and items, and gallery.json says which commit must be there.
"""

import contextlib
import copy
import functools
import io
import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator

from cl2r.data.npz import MAGIC, NO_ARRAY
from cl2r.errors import InputError
from cl2r.runtime.text import printable
from cl2r.storage.claims import LostError
from cl2r.storage.path import HIDDEN, LocalPath, StoragePath, at, sha256
from cl2r.storage.seal import owner_of, sealed, unsealed

log = logging.getLogger(__name__)
MARK, FORMAT = "gallery.json", 2
VECTORS, ITEMS, MANIFEST = "vectors.npy", "items.parquet", "manifest.json"
RESTORE = "restore it from a copy, or index the images again in another gallery"
COLUMNS = ("id", "source", "label", "bytes", "path")  # columns of every items file; further columns are metadata

Vectors = npt.NDArray[np.floating]
StoredDtype = Literal["float32", "float16"]
BadImage = tuple[str, str]  # the id of an image and why it could not be read
Name = Annotated[str, Field(pattern=r"^[\w-]+$")]
"""A name that was read from a file and may become part of a path; it never leads elsewhere."""
COMMIT_NAME, SHARD_NAME = re.compile(r"\d{8,}\.json"), re.compile(r"[\w-]+")
WRONG_KIND = (IsADirectoryError, NotADirectoryError)  # a folder in place of a file, or the other way round
_INTACT: set[tuple[str, str, int, int, int]] = set()  # states of files whose checksums this process has compared


class Record(BaseModel):
    """Content of a JSON file. Parsing is strict: no conversions, no unknown fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Mark(Record):
    """Content of gallery.json."""

    format: int
    id: Name
    commits: NonNegativeInt  # number of the newest commit, so that its loss is noticed


class Shard(Record):
    """The manifest of a shard."""

    name: Name
    version: Name  # key of the link whose model made the vectors
    items: NonNegativeInt
    dim: NonNegativeInt
    dtype: StoredDtype
    vectors: Name  # checksum of the vectors file
    rows: Name  # checksum of the items file
    bad: tuple[BadImage, ...]


class Version(Record):
    """A model whose vectors or queries the gallery knows."""

    key: Name
    name: str  # RUN@t
    task: int
    method: str
    keys: tuple[Name, ...]  # keys of the chain up to this model
    dim: int
    digest: str  # digest of the weights


class Commit(Record):
    """Everything the gallery holds at some time."""

    number: NonNegativeInt = 0
    versions: dict[str, Version] = {}
    shards: tuple[Shard, ...] = ()
    what: str = ""  # the change that led here, in words
    when: float = 0.0

    @model_validator(mode="after")
    def _check_versions(self) -> Self:
        keys = {version.key for version in self.versions.values()}
        if not set(self.versions) == keys == {shard.version for shard in self.shards}:
            raise ValueError("its shards belong to other models than it lists")
        return self

    @property
    def items(self) -> int:
        """Number of vectors."""
        return sum(shard.items for shard in self.shards)

    def of(self, version: str) -> tuple[Shard, ...]:
        """Return the shards of one model, in commit order."""
        return tuple(shard for shard in self.shards if shard.version == version)

    @property
    def by_task(self) -> list[Version]:
        """The versions from the oldest model to the newest."""
        return sorted(self.versions.values(), key=lambda version: version.task)


class Gallery:
    """The gallery at `root`, as of its newest commit."""

    def __init__(self, root: StoragePath | Path) -> None:
        self.root, self._lost = at(root), threading.Event()
        self._open()

    def _open(self) -> None:
        """Read the mark and the newest commit; a damaged one is an error because falling back would hide images."""
        mark = read_mark(self.root)  # first: the commit that it names was written before it
        for part in () if self.root.remote else ("commits", "shards"):
            if (self.root / part).file_info() is not None:
                raise InputError(f"{self.root / part}: a file in place of a folder; restore the folder from a copy")
        newest = newest_commit(self.root)
        if commit_number(newest) < mark.commits:
            lost = self.root / "commits" / commit_name(mark.commits)
            raise InputError(f"{lost}: the newest commit is missing; {RESTORE}")
        self.id, self.shards = mark.id, ShardStore(self.root / "shards", mark.id)
        self.commit = read_commit(newest, mark.id) if newest else Commit()

    @classmethod
    def open_or_create(cls, root: StoragePath | Path) -> "Gallery":
        """Open the gallery at `root`; create it if the folder is empty or missing."""
        root = at(root)
        if root.file_info() is not None:
            raise InputError(f"{root}: a file; give a folder for the gallery")
        if not (root / MARK).exists():
            others = [path.name for path in root.list("*") if not path.name.startswith(f".{MARK}.")]
            if MARK not in others:  # otherwise another process has just created it
                others = [name for name in others if name != "claims"]  # another process is creating it
                if {"commits", "shards"} & set(others):
                    return cls(root)  # which says what is missing
                if others:
                    raise InputError(f"{root}: no gallery, and not empty ({others[0]}); give a folder of its own")
                with _write_lock(root):
                    if not (root / MARK).exists():  # of two processes one decides on the id
                        _write_mark(root, Mark(format=FORMAT, id=uuid.uuid4().hex, commits=0))
        return cls(root)

    def change(self, versions: Mapping[str, Version], shards: Sequence[Shard], what: str) -> None:
        """Write the next commit. Call it inside `writing`; raise LostError if another process may write by now."""
        used = {shard.version for shard in shards}
        kept = {key: version for key, version in {**self.commit.versions, **versions}.items() if key in used}
        now = Commit(number=self.commit.number + 1, versions=kept, shards=tuple(shards), what=what, when=time.time())
        content = sealed(now.model_dump_json().encode(), _commit_owner(self.id, now.number))
        self.check_alone()
        (self.root / "commits" / commit_name(now.number)).write_file(content)
        _write_mark(self.root, Mark(format=FORMAT, id=self.id, commits=now.number))
        self.commit = now

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the write lock; the commit is the newest one when it is granted."""
        self._lost.clear()
        with _write_lock(self.root, self._lost.set):
            self._open()
            yield

    def check_alone(self) -> None:
        """Raise LostError if the write lock was lost, or if another process has written a commit since `writing`."""
        newest = commit_number(newest_commit(self.root))
        if self._lost.is_set() or newest != self.commit.number:
            why = "no sign of life from this process for a minute, so another one may write"
            raise LostError(f"{self.root}: {why}; nothing was committed: run the same command again")

    def uncommitted(self) -> list[str]:
        """Return the names of shards that no commit lists: left by a stopped job, not written whole, or replaced."""
        committed = {shard.name for shard in self.commit.shards}
        found = [path for path in own_files(self.shards.folder, SHARD_NAME) if path.name not in committed]
        return [path.name for path in found if (path / MANIFEST).exists() or _is_cut_off(path)]

    def orphans(self) -> list[Shard]:
        """Return the intact shards among the uncommitted ones."""
        return [shard for name in self.uncommitted() if (shard := self.shards.find(name)) is not None]

    def items(self, shards: Sequence[Shard] | None = None) -> pd.DataFrame:
        """Return one row per image: the columns of its shard, and `version` (a link's key), `task`, `model`."""
        chosen = self.commit.shards if shards is None else shards
        frames = [self.shards.items(shard).assign(version=shard.version) for shard in chosen]
        if not frames:
            return pd.DataFrame({name: pd.Series(dtype="string") for name in ("id", "source", "label", "version")})
        whole, known = pd.concat(frames, ignore_index=True), self.commit.versions
        whole["task"] = [known[key].task if key in known else 0 for key in whole["version"]]
        whole["model"] = [known[key].name if key in known else "" for key in whole["version"]]
        return whole

    def up_to(self, model: Version) -> "Gallery":
        """Return the gallery with the vectors of `model` and of the models before it only."""
        known = {key: version for key, version in self.commit.versions.items() if key in model.keys}
        shards = tuple(shard for shard in self.commit.shards if shard.version in known)
        view = copy.copy(self)
        view.commit = self.commit.model_copy(update={"versions": known, "shards": shards})
        return view

    def check_model(self, model: Version) -> None:
        """Raise InputError if queries by `model` cannot search the vectors: it is older, or of another run."""
        for version in self.commit.by_task:
            here = f"the gallery at {self.root} has vectors by {version.name}"
            if version.key == model.key and version.digest != model.digest:
                other = f"{model.name} is the same link trained elsewhere, with other weights"
                raise InputError(f"{here}; {other}: use the model that made them, or another gallery")
            if model.key in version.keys[:-1]:
                raise InputError(f"{here}, a later model than {model.name}; use it or one after it")
            if version.key not in model.keys:
                own = f"a model of its run, {version.name.rpartition('@')[0]}@t"
                raise InputError(f"{here}, which is not in the chain of {model.name}; give {own}, or another gallery")


def _is_cut_off(shard: StoragePath) -> bool:
    """Return whether nothing but files of a shard is in a folder without a manifest."""
    names = {entry.path for entry in shard.walk_files()}
    return bool(names) and names <= {VECTORS, ITEMS}


def commit_name(number: int) -> str:
    """Return the file name of a commit; names sort in commit order."""
    return f"{number:08d}.json"


def commit_number(path: StoragePath | None) -> int:
    """Return the number of a commit from its file name, 0 if there is none."""
    return int(path.name.removesuffix(".json")) if path else 0


def newest_commit(root: StoragePath) -> StoragePath | None:
    """Return the file of a gallery's newest commit, None if there is no commit."""
    return max(own_files(root / "commits", COMMIT_NAME), key=commit_number, default=None)


def read_commit(path: StoragePath, gallery: str) -> Commit:
    """Read a commit of the gallery with this id; raise InputError if it is damaged, or belongs elsewhere."""
    try:
        commit = Commit.model_validate_json(unsealed(path.read_bytes(), _commit_owner(gallery, commit_number(path))))
        if path.name != commit_name(commit.number):
            raise ValueError(f"it is number {commit.number}")
    except (ValueError, *WRONG_KIND) as error:
        mistake = "move it away if it was copied here by mistake"
        raise InputError(f"{path} cannot be used ({reason(error)}); {mistake}; otherwise {RESTORE}") from error
    return commit


def _commit_owner(gallery: str, number: int) -> str:
    return f"gallery {gallery}, commit {number}"


def read_mark(root: StoragePath) -> Mark:
    """Read gallery.json; raise InputError if it is missing, damaged or of another format."""
    path, restore = root / MARK, "restore it from a copy, or index the images again in another folder"
    try:
        content = path.read_bytes()
        owner = owner_of(content)
        entry = json.loads(unsealed(content, owner))
        if entry["format"] != FORMAT:
            here = f"a gallery of format {entry['format']}, but this version of cl2r reads format {FORMAT}"
            raise InputError(f"{root}: {here}; use the version that made it, or index its images again elsewhere")
        mark = Mark.model_validate_json(json.dumps(entry))
        if owner != _mark_owner(mark):
            raise ValueError(f"it belongs to {owner[:200]}, not to {_mark_owner(mark)}")
    except (FileNotFoundError, NotADirectoryError) as error:
        if any((root / part).exists() for part in ("commits", "shards")):
            raise InputError(f"{path}: the file is missing; {restore}") from error
        raise InputError(f"{root}: no gallery; `cl2r index IMAGES --model RUN@t --gallery {root}` makes one") from error
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError, IsADirectoryError) as error:
        raise InputError(f"{path} is damaged ({reason(error)}); {restore}") from error
    return mark


def _mark_owner(mark: Mark) -> str:
    return f"gallery {mark.id}"


def _write_mark(root: StoragePath, mark: Mark) -> None:
    (root / MARK).write_file(sealed(mark.model_dump_json().encode(), _mark_owner(mark)))


@contextlib.contextmanager
def _write_lock(root: StoragePath, on_loss: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the write lock of a gallery; a file or folder in the place of its files is set aside."""
    claim = root / "claims" / "write"
    if not root.remote:
        if claim.parent.file_info() is not None:
            claim.parent.set_aside()
        if claim.exists() and claim.file_info() is None:
            claim.set_aside()
    with claim.lock(on_loss=on_loss):
        yield


def own_files(folder: StoragePath, names: re.Pattern[str]) -> list[StoragePath]:
    """Return the files of a gallery in one of its folders; others are ignored, with one note."""
    found = folder.list("*")
    foreign = [path.name for path in found if not names.fullmatch(path.name) and not HIDDEN.fullmatch(path.name)]
    if foreign:
        _note_foreign(str(folder), printable(foreign[0]), len(foreign))
    return [path for path in found if names.fullmatch(path.name)]


@functools.cache  # once per process
def _note_foreign(folder: str, first: str, count: int) -> None:
    more = f" and {count - 1} more" if count > 1 else ""
    log.warning("%s: ignoring %s%s, not a file of a gallery; move it elsewhere", folder, first, more)


@dataclass(frozen=True)
class ShardStore:
    """The shards below `folder`. A shard is complete or absent: its manifest is written last."""

    folder: StoragePath
    gallery: str  # id of the gallery that they belong to

    def write(
        self, name: str, version: str, vectors: Vectors, items: pd.DataFrame, bad: list[BadImage], dtype: StoredDtype
    ) -> Shard:
        """Write a shard and return its manifest. An intact shard of this name is kept and returned instead.

        It is replaced if other images of it were unreadable: those were tried again with another outcome.
        """
        if len(vectors) != len(items) or tuple(items.columns[: len(COLUMNS)]) != COLUMNS:
            raise ValueError(f"{len(vectors)} vectors, {len(items)} items with columns {list(items.columns)}")
        encoded = io.BytesIO()
        np.save(encoded, np.ascontiguousarray(vectors, dtype=dtype), allow_pickle=False)
        files = {VECTORS: encoded.getvalue(), ITEMS: items.to_parquet(index=False)}
        shard = Shard(
            name=name,
            version=version,
            items=len(items),
            dim=vectors.shape[1],
            dtype=dtype,
            vectors=sha256(files[VECTORS]),
            rows=sha256(files[ITEMS]),
            bad=tuple(bad),
        )
        path = self.folder / name
        existed, found = path.exists(), self.find(name)
        if found is None or found.bad != shard.bad:
            if path.file_info() is not None:
                path.set_aside()  # a file in its place
            elif existed:  # only what was there before the check: another process may have written it since
                path.remove_tree()
            manifest = sealed(shard.model_dump_json().encode(), self._owner(name))
            path.write_folder({**files, MANIFEST: manifest}, last=MANIFEST)
            found = self.read_manifest(name)  # of two processes that write at once, one wins
        return found

    def _owner(self, name: str) -> str:
        return f"gallery {self.gallery}, shard {name}"

    def read_manifest(self, name: str) -> Shard:
        """Read a manifest; raise InputError if it is damaged, or belongs to another shard or gallery."""
        path = self.folder / name / MANIFEST
        try:
            shard = Shard.model_validate_json(unsealed(path.read_bytes(), self._owner(name)))
            if shard.name != name:
                raise ValueError(f"name: it is the manifest of {shard.name!r}")
        except (FileNotFoundError, ValueError, *WRONG_KIND) as error:
            raise _fault(path, error) from error
        return shard

    def find(self, name: str) -> Shard | None:
        """Return the shard called `name`, or None if it is missing or damaged."""
        try:
            shard = self.read_manifest(name)
            self.items(shard)
            self.vectors(shard, check=True)
        except InputError:
            return None
        return shard

    def items(self, shard: Shard) -> pd.DataFrame:
        """Return one row per vector; raise InputError if the file is damaged."""
        path = self.folder / shard.name / ITEMS
        try:
            content = _read_intact(path, shard.rows)
        except (FileNotFoundError, ValueError, *WRONG_KIND) as error:  # other OSErrors: the store cannot be reached
            raise _fault(path, error) from error
        try:
            items = pd.read_parquet(io.BytesIO(content))
            _check_items(items, shard.items)
        except (OSError, LookupError, TypeError, ValueError, pa.ArrowException) as error:
            raise _fault(path, error) from error
        return items

    def vectors(self, shard: Shard, check: bool = False) -> Vectors:
        """Return the rows, memory-mapped; from an object store, through a copy in the user's cache.

        Raise InputError if the file does not fit the manifest or its checksum. The checksum of a file is compared once
        per process; with `check`, the file or object itself is read again, into memory, and nothing is cached.
        """
        path = self.folder / shard.name / VECTORS
        try:
            if check:
                content = _read_intact(path, shard.vectors)
                _check_magic(content[: len(MAGIC)])
                vectors: Vectors = np.load(io.BytesIO(content), allow_pickle=False)
            else:
                local = intact(path, shard.vectors)
                with local.open("rb") as file:
                    _check_magic(file.read(len(MAGIC)))
                vectors = np.load(local, mmap_mode="r" if shard.items else None, allow_pickle=False)
            if vectors.shape != (shard.items, shard.dim) or str(vectors.dtype) != shard.dtype:
                expected = f"{shard.dtype} of shape {(shard.items, shard.dim)}"
                raise ValueError(f"{vectors.dtype} of shape {vectors.shape}, expected {expected}")
        except (FileNotFoundError, *NO_ARRAY, *WRONG_KIND) as error:  # other OSErrors: no answer
            objects = "allow_pickle" in str(error)
            raise _fault(path, ValueError("Python objects, which are never loaded") if objects else error) from error
        return vectors


def intact(path: StoragePath, digest: str) -> LocalPath:
    """Return a file, or the copy of an object in the user's cache, whose SHA-256 checksum is `digest`.

    A file of the same size, time and inode is not read twice by a process. Raise ValueError if the checksum differs.
    """
    local = LocalPath(path.local(digest))
    found = local.stat()
    state = (str(local.absolute()), digest, found.st_size, found.st_mtime_ns, found.st_ino)
    if state in _INTACT:
        return local
    if local.checksum() == digest:
        _INTACT.add(state)
        return local
    if not path.remote:
        raise ValueError("the checksum differs")
    local.unlink(missing_ok=True)  # the copy was damaged; a new one is checked when it is made
    return LocalPath(path.local(digest))


def _read_intact(path: StoragePath, digest: str) -> bytes:
    """Return the content of a file whose SHA-256 checksum is `digest`. Raise ValueError if the checksum differs."""
    content = path.read_bytes()
    if sha256(content) != digest:
        raise ValueError("the checksum differs")
    return content


def _check_magic(start: bytes) -> None:
    """Raise ValueError if a file that begins so is not an array: numpy's own message explains how to unpickle it."""
    if start != MAGIC:
        raise ValueError("not an array")


def _check_items(items: pd.DataFrame, count: int) -> None:
    """Raise ValueError if these cannot be the items of `count` vectors: a stranger may have written them."""
    if len(items) != count:
        raise ValueError(f"{len(items)} rows, expected {count}")
    if tuple(items.columns[: len(COLUMNS)]) != COLUMNS:
        raise ValueError(f"its columns do not begin with {', '.join(COLUMNS)}")
    if not pd.api.types.is_integer_dtype(items["bytes"]) or items["bytes"].hasnans:
        raise ValueError("its column 'bytes' is not all integers")
    for name in ("id", "source", "label", "path"):
        try:
            text = "".join(items[name])
        except (TypeError, UnicodeDecodeError) as error:
            raise ValueError(f"its column {name!r} is not all text") from error
        if "\0" in text:
            raise ValueError(f"its column {name!r} has a NUL character")


def _fault(path: StoragePath, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path}: the file is missing; run `cl2r gallery verify` to see what else is")
    return InputError(f"{path} is damaged ({reason(error)}); restore it, or index its images again")


def shard_name(
    version: str, ids: Sequence[str], sizes: Sequence[int], stored_dtype: StoredDtype, extra: str = ""
) -> str:
    """Return a digest of the model and the images; `extra` is whatever else must be equal."""
    return sha256(json.dumps([version, stored_dtype, list(ids), list(sizes), extra]).encode())[:24]


def reason(error: Exception) -> str:
    """Return an error's message on one line; for a record that does not parse, its first invalid field."""
    text = str(error)
    if isinstance(error, IsADirectoryError):
        return "a folder is in its place"
    if isinstance(error, NotADirectoryError):
        return "a file is in place of its folder"
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        text = ": ".join([*filter(None, [".".join(map(str, first["loc"]))]), first["msg"]])
    return " ".join(text.split())[:300]
