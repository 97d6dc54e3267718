"""A shard: some thousand vectors of one model, which images they are of, and a manifest with checksums, written last.

    vectors.npy      float32 or float16, rows of length one
    items.parquet    a row a vector: id, source, label, bytes, and whatever else is known of the image
    manifest.json    model, counts, checksums, and the images that could not be read

A shard is never changed. Its name is a digest of the model and the images: whoever makes it again makes the same.
"""

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from cl2r.data.scenario import cache_folder
from cl2r.errors import InputError
from cl2r.files import Place, remove_tree, write_file, write_folder
from cl2r.objects import ObjectPath

Vectors = npt.NDArray[np.floating]
Kept = Literal["float32", "float16"]
VECTORS, ITEMS, MANIFEST = "vectors.npy", "items.parquet", "manifest.json"
COLUMNS = ("id", "source", "label", "bytes")
Bad = tuple[str, str]
"""An image's id, and why it could not be read."""


@dataclass(frozen=True)
class Shard:
    """What the manifest says."""

    name: str
    version: str
    """The key of the model's link."""
    items: int
    dim: int
    dtype: str
    vectors: str
    """Checksum of the file of vectors."""
    rows: str
    """Checksum of the file of items."""
    bad: tuple[Bad, ...] = ()

    @classmethod
    def parse(cls, entry: dict[str, Any]) -> "Shard":
        """From JSON. Names are never paths: what lies elsewhere is not read."""
        for name in (entry["name"], entry["version"], entry["vectors"], entry["rows"]):
            if not is_plain_name(name):
                raise ValueError(f"{name!r} is no name of a shard or a link, and no checksum")
        return cls(**(entry | {"bad": tuple((str(name), str(why)) for name, why in entry["bad"])}))


def is_plain_name(name: object) -> bool:
    """Whether a name that was read from a file can be part of a path, and leads nowhere else."""
    return isinstance(name, str) and name.replace("-", "").replace("_", "").isalnum()


def shard_name(version: str, ids: Sequence[str], sizes: Sequence[int], kept: Kept, besides: str = "") -> str:
    """The same images by the same model have the same name; `besides` is what else must be the same."""
    content = json.dumps([version, kept, list(ids), list(sizes), besides]).encode()
    return hashlib.sha256(content).hexdigest()[:24]


def write_shard(
    folder: Place, name: str, version: str, vectors: Vectors, items: pd.DataFrame, bad: Sequence[Bad], kept: Kept
) -> Shard:
    """Write it below `folder`; a whole shard of this name that is there already stays, and counts.

    Unless other images of it could not be read: they are tried again, and now they can, or cannot any more.
    """
    if len(vectors) != len(items) or list(items.columns[: len(COLUMNS)]) != list(COLUMNS):
        raise ValueError(f"{len(vectors)} vectors, {len(items)} items with columns {list(items.columns)}")
    encoded = io.BytesIO()
    np.save(encoded, np.ascontiguousarray(vectors, dtype=kept), allow_pickle=False)
    files = {VECTORS: encoded.getvalue(), ITEMS: items.to_parquet(index=False)}
    digests = {key: _digest(files[file]) for key, file in (("vectors", VECTORS), ("rows", ITEMS))}
    shard = Shard(name, version, len(items), vectors.shape[1], kept, **digests, bad=tuple(bad))
    there, found = (folder / name).exists(), find_shard(folder, name)
    if found is None or found.bad != shard.bad:
        if there:  # damaged; what others have written since is not
            remove_tree(folder / name)
        write_folder(folder / name, files, (MANIFEST, json.dumps(asdict(shard)).encode()))
        found = _said(folder, name)  # of two that write at once, one has
    return found


def _said(folder: Place, name: str) -> Shard:
    """What the manifest below `folder` says; of another shard it must not speak."""
    shard = Shard.parse(json.loads((folder / name / MANIFEST).read_bytes()))
    if shard.name != name:
        raise ValueError(f"{name!r} has the manifest of {shard.name!r}")
    return shard


def find_shard(folder: Place, name: str) -> Shard | None:
    """The shard called `name`, if it is there and whole."""
    try:
        shard = _said(folder, name)
        read_items(folder, shard)
        read_vectors(folder, shard, check=True)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, RecursionError):  # torn: it is made again
        return None
    return shard


def read_items(folder: Place, shard: Shard) -> pd.DataFrame:
    """A row a vector."""
    content = _content(folder, shard, ITEMS, shard.rows)
    try:
        items = pd.read_parquet(io.BytesIO(content))
    except (OSError, LookupError, TypeError, ValueError, pa.ArrowException) as error:
        raise _damaged(folder, shard, ITEMS, str(error)) from error
    if len(items) != shard.items:
        raise _damaged(folder, shard, ITEMS, f"{len(items)} rows, expected {shard.items}")
    return items


def read_vectors(folder: Place, shard: Shard, check: bool = False) -> Vectors:
    """The rows, memory-mapped: of a disk as they lie there, of an object store from a copy in the user's cache."""
    path = folder / shard.name / VECTORS
    if check:
        _content(folder, shard, VECTORS, shard.vectors)
    local = path if isinstance(path, Path) else _cached(folder, shard)
    try:
        vectors: Vectors = np.load(local, mmap_mode="r" if shard.items else None, allow_pickle=False)
    except FileNotFoundError as error:
        raise _missing(path) from error
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(folder, shard, VECTORS, str(error)) from error
    if vectors.shape != (shard.items, shard.dim) or str(vectors.dtype) != shard.dtype:
        found = f"{vectors.dtype} of shape {vectors.shape}, expected {shard.dtype} of {(shard.items, shard.dim)}"
        raise _damaged(folder, shard, VECTORS, found)
    return vectors


def _cached(folder: Place, shard: Shard) -> Path:
    """Named by its checksum, so it is checked once, when it comes."""
    local = cache_folder() / "vectors" / f"{shard.vectors}.npy"
    if not local.exists():
        write_file(local, _content(folder, shard, VECTORS, shard.vectors))
    return local


def _content(folder: Place, shard: Shard, name: str, digest: str) -> bytes:
    path = folder / shard.name / name
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise _missing(path) from error
    if _digest(content) != digest:
        raise _damaged(folder, shard, name, "the checksum differs")
    return content


def _missing(path: Place) -> InputError:
    return InputError(f"{path}: the file is missing; `cl2r gallery verify` says what else is")


def _damaged(folder: Place, shard: Shard, name: str, why: str) -> InputError:
    path: Place | ObjectPath = folder / shard.name / name
    return InputError(f"{path} is damaged ({' '.join(why.split())}); restore it, or index its images again")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
