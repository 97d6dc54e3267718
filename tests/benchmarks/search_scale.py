"""What kinds of index cost and find: build time, memory, file, queries a second, recall; on generated vectors.

    python tests/benchmarks/search_scale.py   # a million vectors of 99 dimensions, 15 minutes
    python tests/benchmarks/search_scale.py --vectors 20000 --kinds exact hnsw
    python tests/benchmarks/search_scale.py --vectors 200000 --decay 16      # harder: variance in many more dimensions

Vectors lie in clusters of about a thousand, around centres; the variance of both falls by e every --decay directions,
which are turned at random against the coordinates. That gives neighbours about as near as those of a run on icons (its
1,600 open images: median cosine with the nearest 0.95, with the tenth 0.87; here, as many in 20 clusters: 0.92, 0.83).
Queries come from the same clusters.
Each kind is built in one process and searched in another, which opens the file as a service does; memory is the most
that a process held (resident, mapped pages too) above what it held before it opened the vectors. Speeds are medians
over repeats, on all cores. `exact` has no file of its own: it is the gallery's.
"""

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.tables.formats import render
from analysis.tables.table import Cell, Table, number_cell
from cl2r.errors import InputError
from cl2r.gallery.index import IndexOptions, Kind, exact_search, open_index, read_index_file, write_index
from cl2r.gallery.indexing import LARGEST_SHARD
from cl2r.runtime.logs import exit_code
from cl2r.storage.path import at
from tests.benchmarks.speed.harness import STATUS, alone, held

Vectors = npt.NDArray[np.float32]
Find = Callable[[Vectors, int], tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]
KINDS: tuple[Kind, ...] = ("exact", "ivf", "hnsw", "pq")
TOP, BATCH, SINGLE = 10, 100, 100
CLUSTER, WITHIN, BLOCK = 1000, 0.9, 50_000
SMALLEST = 1000


@dataclass(frozen=True)
class Generated:
    """Which vectors are made."""

    vectors: int = 1_000_000
    dim: int = 99
    queries: int = 1000
    decay: float = 3.0
    seed: int = 0


@dataclass(frozen=True)
class Measured:
    """What was measured of a kind; bytes and seconds."""

    kind: str
    options: str
    build_seconds: float
    build_memory: float
    file: float
    search_memory: float
    single: float
    """Queries a second, one at a time."""
    batched: float
    """A hundred at a time."""
    recall: float
    """Share of the ten nearest that it finds."""


def generate(folder: Path, given: Generated) -> None:
    """vectors.npy and queries.npy, rows of length one."""
    stream = np.random.default_rng(given.seed)
    turn = np.linalg.qr(stream.standard_normal((given.dim, given.dim)))[0]
    spread = (np.exp(-np.arange(given.dim) / given.decay / 2)[:, None] * turn).astype(np.float32)
    centres = stream.standard_normal((max(20, given.vectors // CLUSTER), given.dim), np.float32)
    for name, rows in (("vectors", given.vectors), ("queries", given.queries)):
        file = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, (rows, given.dim))
        for start in range(0, rows, BLOCK):
            count = min(BLOCK, rows - start)
            drawn = centres[stream.integers(0, len(centres), count)]
            drawn = (drawn + WITHIN * stream.standard_normal((count, given.dim), np.float32)) @ spread
            file[start : start + count] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
        file.flush()


def shards(folder: Path) -> list[Vectors]:
    """The vectors, memory-mapped, in parts of the size that `cl2r index` writes."""
    vectors: Vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    return [vectors[start : start + LARGEST_SHARD] for start in range(0, len(vectors), LARGEST_SHARD)]


def build_kind(folder: Path, kind: Kind) -> dict[str, float]:
    """In a process of its own: build the index and write it."""
    before = held("VmRSS")
    blocks = shards(folder)
    names = [str(place) for place in range(len(blocks))]
    built = write_index(folder / kind, "scale", "v", names, blocks, IndexOptions(kind))
    return {"build_seconds": built.seconds, "build_memory": held("VmHWM") - before, "file": built.bytes}


def search_kind(folder: Path, kind: Kind, repeats: int) -> dict[str, float]:
    """In a process of its own: open the index and search. The exact search leaves its hits for the others."""
    before = held("VmRSS")
    queries = np.load(folder / "queries.npy")
    find = _opened(folder, kind)
    found = np.concatenate([find(batch, TOP)[1] for batch in _batches(queries, BATCH)])
    if kind == "exact":
        np.save(folder / "right.npy", found)
    right = np.load(folder / "right.npy")
    recall = (found[:, :, None] == right[:, None, :]).any(axis=2).mean()
    speeds = {"single": _speed(find, queries[:SINGLE], 1, repeats), "batched": _speed(find, queries, BATCH, repeats)}
    return {"search_memory": held("VmHWM") - before, "recall": float(recall), **speeds}


def _opened(folder: Path, kind: Kind) -> Find:
    blocks = shards(folder)
    if kind == "exact":
        return lambda queries, top: exact_search(blocks, queries, top)
    path = at(folder / kind).list("*.json")[0]
    return open_index(path, read_index_file(path, "scale"), blocks)


def _batches(queries: Vectors, size: int) -> Iterator[Vectors]:
    return (queries[start : start + size] for start in range(0, len(queries), size))


def _speed(find: Find, queries: Vectors, size: int, repeats: int) -> float:
    """Queries a second, the median over repeats."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        for batch in _batches(queries, size):
            find(batch, TOP)
        times.append(time.perf_counter() - began)
    return len(queries) / statistics.median(times)


def measure(folder: Path, given: Generated, kinds: Sequence[Kind], repeats: int) -> Iterator[Measured]:
    """Every kind, one after the other; the exact search always comes first, as the others are held against it."""
    order: list[Kind] = ["exact", *(kind for kind in kinds if kind != "exact")]
    for kind in order:
        built = {"build_seconds": math.nan, "build_memory": math.nan, "file": float(given.vectors * given.dim * 4)}
        if kind != "exact":
            built = alone(build_kind, folder, kind)
        searched = alone(search_kind, folder, kind, repeats)
        if kind in kinds:
            yield Measured(kind=kind, options=described(kind, given), **built, **searched)


def described(kind: Kind, given: Generated) -> str:
    """The options that matter to a kind."""
    chosen = asdict(IndexOptions(kind).chosen(given.vectors, given.dim))
    names: dict[Kind, tuple[str, ...]] = {
        "ivf": ("nlist", "nprobe"),
        "hnsw": ("links", "ef_construction", "ef_search"),
        "pq": ("nlist", "nprobe", "code_bytes", "refine"),
    }
    return ", ".join(f"{name} {chosen[name]}" for name in names.get(kind, ()))


def table(rows: Sequence[Measured], given: Generated) -> Table:
    """A row a kind."""
    heads = ("index", "options", "build s", "MB to build", "MB file", "MB to search", "queries/s", "by hundreds")
    body = []
    for row in rows:
        sizes = (row.build_memory, row.file, row.search_memory)
        figures = [number_cell(row.build_seconds, ",.0f"), *(number_cell(size / 1e6, ",.0f") for size in sizes)]
        speeds = (number_cell(row.single, ",.0f"), number_cell(row.batched, ",.0f"))
        body.append((Cell(row.kind), Cell(row.options), *figures, *speeds, number_cell(row.recall, ".3f")))
    notes = (
        f"{given.vectors:,} vectors of {given.dim} dimensions (float32), {given.queries:,} other ones as queries, "
        f"decay {given.decay:g}, seed {given.seed}.",
        f"{os.cpu_count()} cores, no GPU used, FAISS {faiss.__version__}; queries one at a time, and by hundreds.",
    )
    return Table((*heads, "recall@10"), tuple(body), pd.DataFrame([asdict(row) for row in rows]), "", notes)


def check(given: Generated, kinds: Sequence[str], repeats: int) -> None:
    """Before anything is made."""
    if given.vectors < SMALLEST or given.queries < 1 or given.dim < 1 or repeats < 1 or given.decay <= 0:
        raise InputError(f"--vectors at least {SMALLEST:,}, --dim, --queries, --repeats at least 1, --decay above 0")
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f"--kinds {kind}: one of {', '.join(KINDS)}")
    if not STATUS.exists():
        raise InputError(f"{STATUS} is not there: memory is measured on Linux only")


def main(words: list[str] | None = None) -> int:
    """Generate, measure, print a Markdown table."""
    parser = argparse.ArgumentParser(
        "search_scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vectors", type=int, default=Generated.vectors, metavar="N")
    parser.add_argument("--dim", type=int, default=Generated.dim, metavar="N", help="dimensions (default: 99)")
    parser.add_argument("--queries", type=int, default=Generated.queries, metavar="N")
    parser.add_argument("--decay", type=float, default=Generated.decay, metavar="N", help="default: 3")
    parser.add_argument("--seed", type=int, default=Generated.seed, metavar="N")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="for vectors and indexes, for a while")
    args = parser.parse_args(words)
    given = Generated(args.vectors, args.dim, args.queries, args.decay, args.seed)
    check(given, args.kinds, args.repeats)
    with tempfile.TemporaryDirectory(prefix="cl2r-scale-", dir=args.folder) as folder:
        generate(Path(folder), given)
        rows = []
        for row in measure(Path(folder), given, args.kinds, args.repeats):
            print(f"{row.kind}: done", file=sys.stderr, flush=True)
            rows.append(row)
    print(render(table(rows, given), "markdown"))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code("search_scale", main))
