"""Maintenance of a gallery: describe it, verify it, export it, map it to the space of a newer model."""

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from cl2r.engine.extraction import flops
from cl2r.errors import InputError
from cl2r.gallery.gallery import MANIFEST, Gallery
from cl2r.gallery.index import check_index, descriptions, read_index_file
from cl2r.gallery.indexing import rewritten
from cl2r.gallery.model import Model
from cl2r.storage.path import StoragePath

UNIT_TOLERANCE = {"float32": 1e-4, "float16": 5e-3}


def info_lines(gallery: Gallery) -> list[str]:
    """Return the content of a gallery as lines of text."""
    commit = gallery.commit
    lines = [f"gallery  {gallery.root}", f"images   {commit.items:,} in {len(commit.shards)} shards"]
    for version in commit.by_task:
        shards = commit.of(version.key)
        count = sum(shard.items for shard in shards)
        size = sum(shard.items * shard.dim * np.dtype(shard.dtype).itemsize for shard in shards)
        kinds = ", ".join(sorted({shard.dtype for shard in shards}))
        lines.append(f"  {version.name}: {count:,} vectors of {version.dim} × {kinds}, {size / 1e6:.1f} MB")
    for path in descriptions(gallery.root / "index"):
        try:
            built = read_index_file(path, gallery.id)
        except InputError as error:
            lines.append(f"index    {error}")
            continue
        stale = "" if set(built.shards) <= {shard.name for shard in commit.shards} else " (out of date)"
        name = commit.versions[built.version].name if built.version in commit.versions else "a model that is gone"
        facts = f"{built.rows:,} vectors, {built.bytes / 1e6:.1f} MB, recall@10 {built.recall:.3f}"
        lines.append(f"index    {built.options.kind} of {name}: {facts}{stale}")
    last = time.strftime("%Y-%m-%d %H:%M", time.gmtime(commit.when)) if commit.number else "never"
    lines.append(f"changes  {commit.number}, the last at {last} UTC: {commit.what}")
    bad = sum(len(shard.bad) for shard in commit.shards)
    return [*lines, f"bad      {bad} images could not be read"] if bad else lines


def verify(gallery: Gallery, prune: bool) -> list[str]:
    """Check checksums, lengths of vectors and ids; return the problems. With `prune`, remove uncommitted shards."""
    problems = []
    for shard in gallery.commit.shards:
        try:
            gallery.shards.items(shard)
            vectors = gallery.shards.vectors(shard, check=True)
            if gallery.shards.read_manifest(shard.name) != shard:
                there = gallery.shards.folder / shard.name / MANIFEST
                raise InputError(f"{there} differs from what the newest commit says; index its images again")
        except InputError as error:
            problems.append(str(error))
            continue
        lengths = np.linalg.norm(np.asarray(vectors, np.float32), axis=1)
        off = ~(np.abs(lengths - 1) < UNIT_TOLERANCE[shard.dtype])  # NaN is off as well
        if off.any():
            problems.append(f"shard {shard.name}: {int(off.sum())} vectors are not of length one")
    if not problems:
        ids = gallery.items()["id"]
        problems += [f"{name}: the id is there twice" for name in sorted(set(ids[ids.duplicated()]))]
    for path in descriptions(gallery.root / "index"):
        try:
            check_index(path, read_index_file(path, gallery.id))
        except InputError as error:
            problems.append(str(error))
    if prune:
        gallery.check_alone()  # otherwise a shard may be one that another process is about to commit
        for name in gallery.uncommitted():
            (gallery.shards.folder / name).remove_tree()
    return problems


def export(gallery: Gallery, out: StoragePath) -> int:
    """Write one Parquet file with one row per image, its vector a list of float32; return the number of images."""
    if not gallery.commit.items:
        raise InputError(f"{gallery.root}: the gallery is empty; `cl2r index` adds images")
    columns = list(gallery.items().columns)
    with out.parent.staging() as here:
        aside, writer = here / f".{out.name}.part", None
        try:
            for shard in gallery.commit.shards:  # one at a time: the whole may not fit into memory
                items = gallery.items([shard]).reindex(columns=columns)
                vectors = pa.array(np.ascontiguousarray(gallery.shards.vectors(shard), np.float32).ravel())
                lists = pa.FixedSizeListArray.from_arrays(vectors, shard.dim).cast(pa.list_(pa.float32()))
                table = pa.Table.from_pandas(items, preserve_index=False).append_column("vector", lists)
                writer = writer or parquet.ParquetWriter(aside, table.schema)
                writer.write_table(table.cast(writer.schema))
        finally:
            if writer is not None:
                writer.close()
        aside.replace(here / out.name)
    return gallery.commit.items


def adapt(gallery: Gallery, model: Model) -> Iterator[tuple[int, float]]:
    """Map every vector of an older model to the space of `model`; yield vectors and FLOPs so far after each shard.

    Each shard is a commit, so the work can be stopped at any time and resumed.
    """
    if not model.maps_gallery:
        raise InputError(
            f"{model.card.name}: {model.card.method} leaves galleries as they are; search it without mapping"
        )
    version, mapped, work = model.version, 0, 0.0
    with gallery.writing():
        gallery.check_model(version)
        for shard in gallery.commit.shards:
            old = gallery.commit.versions[shard.version]
            if old.task == version.task:
                continue
            vectors = model.map_gallery(old.task, gallery.shards.vectors(shard))
            made = rewritten(gallery, shard, gallery.shards.items(shard), version.key, vectors)
            shards = [made if other.name == shard.name else other for other in gallery.commit.shards]
            what = f"{shard.items} vectors of {old.name} mapped to {version.name}"
            gallery.change({version.key: version}, shards, what)
            mapped += shard.items
            work += shard.items * map_flops(model, old.task)
            yield mapped, work


def map_flops(model: Model, task: int) -> float:
    """Return the FLOPs to map one vector from φ_k, k = `task`, to φ_t."""
    one = torch.zeros(1, model.dim, device=model.device)
    return sum(flops(model.method(step).adapt_gallery, one) for step in range(task + 1, model.card.task + 1))
