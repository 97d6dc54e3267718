"""A gallery: the vectors of many model versions and the images they show, on disk or in an object store.

    gallery.json             marks the folder as a gallery and holds the number of its format
    commits/00000003.json    the versions and shards after the third change; the newest commit counts
    shards/<name>/           some thousand vectors of one model, never changed once written:
        vectors.npy              float32 or float16, rows of length one
        items.parquet            one row per vector: id, source, label, bytes, path and the user's metadata
        manifest.json            model, counts, checksums, unreadable images; written last
    index/<version>-*        FAISS indexes of large versions (`index.py`); can be rebuilt at any time
    claims/write             lock that admits one writer at a time

A change writes new shards first and a new commit last, so readers see the gallery before or after the change. Old
vectors keep the model that made them: mixed versions are the normal case. The name of a shard is a digest of its model
and its images, so making a shard twice gives the same shard.
"""

import contextlib
import copy
import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
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
from cl2r.storage.path import StoragePath, at, sha256

MARK, FORMAT = "gallery.json", 1
VECTORS, ITEMS, MANIFEST = "vectors.npy", "items.parquet", "manifest.json"
COLUMNS = ("id", "source", "label", "bytes", "path")  # columns of every items file; further columns are metadata

Vectors = npt.NDArray[np.floating]
StoredDtype = Literal["float32", "float16"]
BadImage = tuple[str, str]  # the id of an image and why it could not be read
Name = Annotated[str, Field(pattern=r"^[\w-]+$")]
"""A name that was read from a file and may become part of a path; it never leads elsewhere."""


class Record(BaseModel):
    """Content of a JSON file. Parsing is strict: no conversions, no unknown fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


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
        root = at(root)
        self.root, self.shards = root, ShardStore(root / "shards")
        if not (root / MARK).exists():
            raise InputError(f"{root}: no gallery; `cl2r index IMAGES --model RUN@t --gallery {root}` makes one")
        try:
            found = json.loads((root / MARK).read_bytes())["format"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(
                f"{root / MARK} does not parse; it should state format {FORMAT}; restore it from a copy"
            ) from error
        if found != FORMAT:
            here = f"a gallery of format {found}, but this version of cl2r reads format {FORMAT}"
            raise InputError(f"{root}: {here}; use the version that made it, or index its images again elsewhere")
        self.commit = self._newest()

    @classmethod
    def open_or_create(cls, root: StoragePath | Path) -> "Gallery":
        """Open the gallery at `root`; create it if the folder is empty or missing."""
        root = at(root)
        if root.file_info() is not None:
            raise InputError(f"{root}: a file; give a folder for the gallery")
        if not (root / MARK).exists():
            others = [path.name for path in root.list("*") if not path.name.startswith(f".{MARK}.")]
            if MARK not in others:  # otherwise another process has just created it
                if others:
                    raise InputError(f"{root}: no gallery, and not empty ({others[0]}); give a folder of its own")
                (root / MARK).write_file(json.dumps({"format": FORMAT}).encode())
        return cls(root)

    def _newest(self) -> Commit:
        """Return the last commit; a damaged one is an error because falling back would hide images."""
        paths = (self.root / "commits").list("*.json")
        return read_commit(paths[-1]) if paths else Commit()

    def change(self, versions: Mapping[str, Version], shards: Sequence[Shard], what: str) -> None:
        """Write the next commit. Call it inside `writing`."""
        used = {shard.version for shard in shards}
        kept = {key: version for key, version in {**self.commit.versions, **versions}.items() if key in used}
        now = Commit(number=self.commit.number + 1, versions=kept, shards=tuple(shards), what=what, when=time.time())
        body = now.model_dump_json().encode()
        (self.root / "commits" / commit_name(now.number)).write_file(sha256(body).encode() + b"\n" + body)
        self.commit = now

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the write lock; the commit is the newest one when it is granted."""
        with (self.root / "claims" / "write").lock():
            self.commit = self._newest()
            yield

    def uncommitted(self) -> list[str]:
        """Return the names of shards that no commit lists: left by a stopped job, or replaced since."""
        committed = {shard.name for shard in self.commit.shards}
        found = [path.parent.name for path in self.shards.folder.list(f"*/{MANIFEST}")]
        return [name for name in found if name not in committed]

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


def commit_name(number: int) -> str:
    """Return the file name of a commit; names sort in commit order."""
    return f"{number:08d}.json"


def read_commit(path: StoragePath) -> Commit:
    """Read a commit; raise InputError if its bytes have changed."""
    digest, _, body = path.read_bytes().partition(b"\n")
    try:
        if digest != sha256(body).encode():
            raise ValueError("the checksum differs")
        commit = Commit.model_validate_json(body)
        if path.name != commit_name(commit.number):
            raise ValueError(f"it is number {commit.number}")
    except ValueError as error:
        raise InputError(f"{path} is damaged ({reason(error)}); restore it from a copy") from error
    return commit


@dataclass(frozen=True)
class ShardStore:
    """The shards below `folder`. A shard is complete or absent: its manifest is written last."""

    folder: StoragePath

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
        existed, found = (self.folder / name).exists(), self.find(name)
        if found is None or found.bad != shard.bad:
            if existed:  # only what was there before the check: another process may have written it since
                (self.folder / name).remove_tree()
            (self.folder / name).write_folder({**files, MANIFEST: shard.model_dump_json().encode()}, last=MANIFEST)
            found = self.read_manifest(name)  # of two processes that write at once, one wins
        return found

    def read_manifest(self, name: str) -> Shard:
        """Read a manifest; raise ValueError if it does not parse or belongs to another shard."""
        shard = Shard.model_validate_json((self.folder / name / MANIFEST).read_bytes())
        if shard.name != name:
            raise ValueError(f"{name!r} has the manifest of {shard.name!r}")
        return shard

    def find(self, name: str) -> Shard | None:
        """Return the shard called `name`, or None if it is missing or damaged."""
        try:
            shard = self.read_manifest(name)
            self.items(shard)
            self.vectors(shard, check=True)
        except (FileNotFoundError, ValueError):
            return None
        return shard

    def items(self, shard: Shard) -> pd.DataFrame:
        """Return one row per vector; raise InputError if the file is damaged."""
        path = self.folder / shard.name / ITEMS
        content = _read(path, shard.rows)
        try:
            items = pd.read_parquet(io.BytesIO(content))
            if len(items) != shard.items:
                raise ValueError(f"{len(items)} rows, expected {shard.items}")
        except (OSError, LookupError, TypeError, ValueError, pa.ArrowException) as error:
            raise _fault(path, error) from error
        return items

    def vectors(self, shard: Shard, check: bool = False) -> Vectors:
        """Return the rows, memory-mapped; from an object store, through a copy in the user's cache.

        Raise InputError if the file does not fit the manifest; with `check`, also if its checksum differs.
        """
        path = self.folder / shard.name / VECTORS
        if check:
            _read(path, shard.vectors)
        try:
            local = path.local(shard.vectors)
            with local.open("rb") as file:
                if file.read(len(MAGIC)) != MAGIC:
                    raise ValueError("no array")  # numpy would tell how to unpickle it
            vectors: Vectors = np.load(local, mmap_mode="r" if shard.items else None, allow_pickle=False)
            if vectors.shape != (shard.items, shard.dim) or str(vectors.dtype) != shard.dtype:
                expected = f"{shard.dtype} of shape {(shard.items, shard.dim)}"
                raise ValueError(f"{vectors.dtype} of shape {vectors.shape}, expected {expected}")
        except (FileNotFoundError, *NO_ARRAY) as error:  # other OSErrors: the store cannot be reached
            objects = "allow_pickle" in str(error)
            raise _fault(path, ValueError("Python objects, which are never loaded") if objects else error) from error
        return vectors


def _read(path: StoragePath, digest: str) -> bytes:
    """Return the content of a file; raise InputError if it is missing or has another checksum."""
    try:
        content = path.read_bytes()
        if sha256(content) != digest:
            raise ValueError("the checksum differs")
    except (FileNotFoundError, ValueError) as error:
        raise _fault(path, error) from error
    return content


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
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        text = ": ".join([*filter(None, [".".join(map(str, first["loc"]))]), first["msg"]])
    return " ".join(text.split())[:300]
