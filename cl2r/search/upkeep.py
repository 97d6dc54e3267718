"""Looking after a gallery: is it whole, what does it hold, hand it on, bring it to a newer model's space."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from cl2r.engine.figures import flops
from cl2r.errors import InputError
from cl2r.files import Place, listed, remove_tree, staged
from cl2r.search.gallery import Gallery, Version
from cl2r.search.index import read_index_file
from cl2r.search.indexing import rewritten
from cl2r.search.model import Model
from cl2r.search.shards import MANIFEST, Shard, read_items, read_vectors

UNIT_TOLERANCE = {"float32": 1e-4, "float16": 5e-3}


def describe(gallery: Gallery) -> list[str]:
    """What it holds, a line a fact."""
    commit = gallery.commit
    lines = [f"gallery  {gallery.root}", f"images   {commit.items:,} in {len(commit.shards)} shards"]
    for version in sorted(commit.versions.values(), key=lambda version: version.task):
        shards = commit.of(version.key)
        count, size = sum(shard.items for shard in shards), sum(vector_bytes(shard) for shard in shards)
        kinds = ", ".join(sorted({shard.dtype for shard in shards}))
        lines.append(f"  {version.name}: {count:,} vectors of {version.dim} × {kinds}, {size / 1e6:.1f} MB")
    for path in listed(gallery.root / "index", "*.json"):
        built = read_index_file(path)
        used = set(built.shards) <= {shard.name for shard in commit.shards}
        of = commit.versions[built.version].name if built.version in commit.versions else "a model that is gone"
        facts = f"{built.rows:,} vectors, {built.bytes / 1e6:.1f} MB, recall@10 {built.recall:.3f}"
        lines.append(f"index    {built.options.kind} of {of}: {facts}{'' if used else ' (out of date)'}")
    last = time.strftime("%Y-%m-%d %H:%M", time.gmtime(commit.when)) if commit.number else "never"
    lines.append(f"changes  {commit.number}, the last at {last} UTC: {commit.what}")
    bad = sum(len(shard.bad) for shard in commit.shards)
    return [*lines, f"bad      {bad} images could not be read"] if bad else lines


def vector_bytes(shard: Shard) -> int:
    """What its vectors take."""
    return shard.items * shard.dim * np.dtype(shard.dtype).itemsize


def verify(gallery: Gallery, prune: bool) -> list[str]:
    """Everything wrong, a line each; with `prune`, shards that no commit has are removed."""
    wrong = []
    for shard in gallery.commit.shards:
        wrong += _wrong_with(gallery, shard)
    if not wrong:
        ids = gallery.items()["id"]
        wrong += [f"{name}: there twice" for name in sorted(set(ids[ids.duplicated()]))]
    committed = {shard.name for shard in gallery.commit.shards}
    for path in listed(gallery.shards, f"*/{MANIFEST}"):
        if path.parent.name not in committed and prune:
            remove_tree(path.parent)
    return wrong


def unused(gallery: Gallery) -> int:
    """Shards that no commit has: of a job that was stopped, or replaced since."""
    committed = {shard.name for shard in gallery.commit.shards}
    return sum(path.parent.name not in committed for path in listed(gallery.shards, f"*/{MANIFEST}"))


def _wrong_with(gallery: Gallery, shard: Shard) -> list[str]:
    try:
        read_items(gallery.shards, shard)
        vectors = read_vectors(gallery.shards, shard, check=True)
    except InputError as error:
        return [str(error)]
    except FileNotFoundError as error:
        return [f"shard {shard.name}: missing: {error.filename or error}"]
    lengths = np.linalg.norm(np.asarray(vectors, np.float32), axis=1)
    off = ~(np.abs(lengths - 1) < UNIT_TOLERANCE[shard.dtype])
    return [f"shard {shard.name}: {int(off.sum())} vectors are not of length one"] if off.any() else []


def export(gallery: Gallery, out: Place) -> int:
    """One Parquet file: a row an image, its vector a list of float32; written shard by shard."""
    if not gallery.commit.items:
        raise InputError(f"{gallery.root}: the gallery is empty")
    with staged(out.parent) as here:
        here.mkdir(parents=True, exist_ok=True)
        aside = here / f".{out.name}.part"
        writer: parquet.ParquetWriter | None = None
        try:
            for table in _tables(gallery):
                writer = writer or parquet.ParquetWriter(aside, table.schema)
                writer.write_table(table.cast(writer.schema))
        finally:
            if writer is not None:
                writer.close()
        aside.replace(here / out.name)
    return gallery.commit.items


def _tables(gallery: Gallery) -> Iterator[pa.Table]:
    columns = list(gallery.items().columns)
    for shard in gallery.commit.shards:
        items = gallery.items([shard]).reindex(columns=columns)
        vectors = np.ascontiguousarray(gallery.vectors(shard), np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), shard.dim).cast(pa.list_(pa.float32()))
        yield pa.Table.from_pandas(items, preserve_index=False).append_column("vector", column)


@dataclass(frozen=True)
class Adaptation:
    """What it cost to bring stored vectors to a newer model's space."""

    vectors: int
    seconds: float
    flops: float
    """Of all vectors together."""


def adapt(gallery: Gallery, model: Model, say: Callable[[str], None]) -> Adaptation:
    """Map every vector of an older model, shard by shard; each shard is a commit, so that it can be stopped."""
    if not model.carries_gallery:
        raise InputError(f"{model.card.name}: {model.card.method} leaves galleries as they are; nothing to map")
    version = Version.of(model.card, model.dim, model.digest)
    mapped, began, work = 0, time.perf_counter(), 0.0
    with gallery.writing():
        gallery.check_model(version, to_write=True)
        for shard in gallery.commit.shards:
            old = gallery.commit.versions[shard.version]
            if old.task == version.task:
                continue
            vectors = model.carry(gallery.vectors(shard), old.task)
            made = rewritten(gallery, shard, read_items(gallery.shards, shard), version.key, vectors)
            shards = [made if other.name == shard.name else other for other in gallery.commit.shards]
            what = f"{shard.items} vectors of {old.name} mapped to {version.name}"
            gallery.change({version.key: version}, shards, what)
            mapped += shard.items
            work += shard.items * carry_flops(model, old.task)
            say(f"{mapped:,} vectors mapped")
    return Adaptation(mapped, time.perf_counter() - began, work)


def carry_flops(model: Model, task: int) -> float:
    """Of one vector on its way from φ_k, k = `task`, to φ_t."""
    one = torch.zeros(1, model.dim, device=model.device)
    return sum(flops(model.method(step).adapt_gallery, one) for step in range(task + 1, model.card.task + 1))
