"""A gallery: vectors of many model versions and the images they are of, on a disk or in an object store.

    gallery.json         that this is one
    commits/00000003.json    what it holds after its third change: versions and shards; the newest one counts
    shards/<name>/       the vectors (`shards.py`)
    index/<version>.*    FAISS indexes of large versions (`index.py`); can be built again at any time
    claims/write         one writer at a time

A change writes new shards first and a new commit last, so that a reader sees the gallery before it or after it. Old
vectors keep the model that made them: mixed versions are the normal case.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from cl2r.claims import claimed
from cl2r.errors import InputError
from cl2r.files import Place, listed, write_file
from cl2r.search.shards import MANIFEST, Shard, Vectors, find_shard, read_items, read_vectors
from cl2r.search.snapshot import Card

MARK, FORMAT = "gallery.json", 1


@dataclass(frozen=True)
class Version:
    """A model whose vectors, or queries, the gallery knows."""

    key: str
    name: str
    """RUN@t."""
    task: int
    method: str
    keys: tuple[str, ...]
    """Of the chain up to it."""
    dim: int
    digest: str
    """Of its weights."""

    @classmethod
    def parse(cls, entry: dict[str, Any]) -> "Version":
        """From JSON."""
        return cls(**(entry | {"keys": tuple(entry["keys"])}))

    @classmethod
    def of(cls, card: Card, dim: int, digest: str) -> "Version":
        """The version of a model."""
        return cls(card.key, card.name, card.task, card.method, card.keys, dim, digest)


@dataclass(frozen=True)
class Commit:
    """All that the gallery holds at some time."""

    number: int = 0
    versions: Mapping[str, Version] = field(default_factory=dict)
    shards: tuple[Shard, ...] = ()
    what: str = ""
    """The change that led here, for people."""
    when: float = 0.0

    @property
    def items(self) -> int:
        """Vectors."""
        return sum(shard.items for shard in self.shards)

    def of(self, version: str) -> tuple[Shard, ...]:
        """The shards of one model, in their order."""
        return tuple(shard for shard in self.shards if shard.version == version)

    @property
    def newest(self) -> Version | None:
        """The latest model of the chain that has vectors here."""
        return max(self.versions.values(), key=lambda version: version.task, default=None)


class Gallery:
    """The gallery at `root`, as of its newest commit."""

    def __init__(self, root: Place) -> None:
        self.root, self.shards = root, root / "shards"
        if not (root / MARK).exists():
            raise InputError(f"{root}: no gallery; `cl2r index IMAGES --model RUN@t --gallery {root}` makes one")
        self._check_format()
        self.commit = self._newest()

    @classmethod
    def open_or_create(cls, root: Place) -> "Gallery":
        """The gallery at `root`, which may be empty or not there yet."""
        if isinstance(root, Path) and root.is_file():
            raise InputError(f"{root}: a file; give a folder for the gallery")
        if not (root / MARK).exists():
            others = [path.name for path in listed(root, "*") if not path.name.startswith(f".{MARK}.")]
            if MARK not in others:  # else somebody else has just made it
                if others:
                    raise InputError(f"{root}: no gallery, and not empty ({others[0]}); give a folder of its own")
                write_file(root / MARK, json.dumps({"format": FORMAT}).encode())
        return cls(root)

    def _check_format(self) -> None:
        try:
            found = json.loads((self.root / MARK).read_bytes())["format"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(f"{self.root / MARK} does not parse; it should say format {FORMAT}") from error
        if found != FORMAT:
            raise InputError(f"{self.root}: a gallery of format {found}; this version of cl2r reads {FORMAT}")

    def _newest(self) -> Commit:
        """The last commit; one that is damaged is an error, for an older one would hide images."""
        paths = listed(self.root / "commits", "*.json")
        return read_commit(paths[-1]) if paths else Commit()

    def change(self, versions: Mapping[str, Version], shards: Sequence[Shard], what: str) -> None:
        """Make the next commit. Only who holds `writing` may."""
        used = {shard.version for shard in shards}
        kept = {key: version for key, version in {**self.commit.versions, **versions}.items() if key in used}
        now = Commit(self.commit.number + 1, kept, tuple(shards), what, time.time())
        body = json.dumps(asdict(now)).encode()
        write_file(self.root / "commits" / commit_name(now.number), _digest(body).encode() + b"\n" + body)
        self.commit = now

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Wait until nobody else changes the gallery; then it is as they left it."""
        with claimed(self.root / "claims" / "write"):
            self.commit = self._newest()
            yield

    def orphans(self) -> list[Shard]:
        """Whole shards that no commit has: of an index job that was stopped."""
        committed = {shard.name for shard in self.commit.shards}
        names = sorted(path.parent.name for path in self.shards.glob(f"*/{MANIFEST}"))
        found = (find_shard(self.shards, name) for name in names if name not in committed and not name.startswith("."))
        return [shard for shard in found if shard is not None]

    def items(self, shards: Sequence[Shard] | None = None) -> pd.DataFrame:
        """A row an image: id, source, label, bytes, metadata; `version` (a link's key), `task`, `model`."""
        chosen = self.commit.shards if shards is None else shards
        frames = [read_items(self.shards, shard).assign(version=shard.version) for shard in chosen]
        if not frames:
            return pd.DataFrame({name: pd.Series(dtype="string") for name in ("id", "source", "label", "version")})
        whole = pd.concat(frames, ignore_index=True)
        known = {key: (version.task, version.name) for key, version in self.commit.versions.items()}
        whole["task"] = [known[key][0] if key in known else 0 for key in whole["version"]]
        whole["model"] = [known[key][1] if key in known else "" for key in whole["version"]]
        return whole

    def vectors(self, shard: Shard) -> Vectors:
        """The rows of a shard, memory-mapped."""
        return read_vectors(self.shards, shard)

    def check_model(self, model: Version, to_write: bool = False) -> None:
        """Refuse a model that vectors of this gallery cannot meet: one of another run, or an older one."""
        for version in self.commit.versions.values():
            here = f"the gallery at {self.root} has vectors by {version.name}"
            if version.key == model.key and version.digest != model.digest:
                raise InputError(f"{here}; {model.name} is the same link trained elsewhere, with other weights")
            if version.key not in model.keys:
                later = model.key in version.keys
                why = "a later model of the same chain: use it or one after it" if later else "no model of its chain"
                raise InputError(f"{here}: to {model.name} that is {why}")
        if to_write and self.commit.newest and not self.commit.newest.task <= model.task:
            raise InputError(f"{self.root}: new images enter with the newest model, {self.commit.newest.name}")


def commit_name(number: int) -> str:
    """Of its file; names sort as numbers do."""
    return f"{number:08d}.json"


def read_commit(path: Place) -> Commit:
    """A commit as it was written; InputError if its bytes have changed."""
    digest, _, body = path.read_bytes().partition(b"\n")
    try:
        if digest != _digest(body).encode():
            raise ValueError("the checksum differs")
        entry: dict[str, Any] = json.loads(body)
        versions = {key: Version.parse(value) for key, value in entry["versions"].items()}
        shards = tuple(Shard.parse(shard) for shard in entry["shards"])
        commit = Commit(**(entry | {"versions": versions, "shards": shards}))
        if path.name != commit_name(commit.number):
            raise ValueError(f"it is number {commit.number}")
        keys = {version.key for version in versions.values()}
        if not set(versions) == keys == {shard.version for shard in shards}:
            raise ValueError("its shards are of other models than it says")
        return commit
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({' '.join(str(error).split())}); restore it from a copy") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
