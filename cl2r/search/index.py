"""FAISS: the nearest rows of one model version, exactly or nearly.

    exact   every row is compared; vectors stay in their files and are memory-mapped
    ivf     rows in nlist cells, nprobe of which are searched
    hnsw    a graph of neighbours, `links` a row; ef_search rows are looked at
    pq      ivf with rows of `code_bytes` bytes; candidates are compared again by their whole vectors

Inner products of rows of length one are cosines. An index of the last three kinds is a file that is memory-mapped; it
covers the shards it was built of, those that came later are searched exactly. Its recall is measured when it is built.
"""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np
import numpy.typing as npt

from cl2r.data.scenario import cache_folder
from cl2r.errors import InputError
from cl2r.files import Place, staged, write_file
from cl2r.search.shards import Vectors, is_plain_name

Kind = Literal["auto", "exact", "ivf", "hnsw", "pq"]
KINDS: tuple[Kind, ...] = ("auto", "exact", "ivf", "hnsw", "pq")
EXACT_BELOW, PQ_ABOVE = 100_000, 5_000_000
"""Rows up to which every row is compared; rows from which on whole vectors would not fit into memory."""
SAMPLE, SAMPLE_TOP = 200, 10
CENTROIDS = 256
"""Of a byte of a code."""
MMAP = faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY

Scores = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class IndexOptions:
    """Zero: chosen by the number of rows."""

    kind: Kind = "auto"
    nlist: int = 0
    nprobe: int = 0
    links: int = 32
    ef_construction: int = 80
    ef_search: int = 128
    code_bytes: int = 0
    refine: int = 32
    """pq: candidates that are compared again, in multiples of the hits asked for."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"--index {self.kind}: one of {', '.join(KINDS)}")
        for name, value in asdict(self).items():
            least = 0 if name in ("nlist", "nprobe", "code_bytes") else 1
            if name != "kind" and (type(value) is not int or value < least):
                raise InputError(f"--index-option {name}={value}: a number above 0")
        if self.nlist and self.nprobe > self.nlist:
            raise InputError(f"--index-option nprobe={self.nprobe}: there are {self.nlist} cells")

    def chosen(self, rows: int, dim: int) -> "IndexOptions":
        """With every number that was left open."""
        kind = self.kind
        if kind == "auto":
            kind = "exact" if rows < EXACT_BELOW else "ivf" if rows < PQ_ABOVE else "pq"
        nlist = self.nlist or int(min(65536, max(1, 4 * np.sqrt(rows))))
        nlist = max(1, min(nlist, rows // 39 or 1))  # FAISS wants 39 rows a cell to learn from
        return IndexOptions(
            kind,
            nlist,
            min(nlist, self.nprobe or max(8, nlist // 32)),
            self.links,
            self.ef_construction,
            self.ef_search,
            self.code_bytes or max(4, min(64, dim // 4)),
            self.refine,
        )


def exact_search(blocks: Sequence[Vectors], queries: npt.NDArray[np.float32], top: int) -> tuple[Scores, Rows]:
    """The `top` best rows of all blocks, best first; rows are counted through. Fewer rows than `top`: row -1."""
    asked = np.ascontiguousarray(queries, np.float32)
    hits, start = empty_hits(len(queries), top), 0
    for block in blocks:
        if len(block):
            scores, rows = _nearest(np.ascontiguousarray(block, np.float32), asked, top)
            hits = merge_hits(hits, (scores, rows + start), top)
        start += len(block)
    return hits


def _nearest(block: npt.NDArray[np.float32], queries: npt.NDArray[np.float32], top: int) -> tuple[Scores, Rows]:
    """At least the `top` best rows of one block. Of equal scores FAISS keeps any: all that equal the last one count."""
    asked = min(top + 1, len(block))
    while True:
        scores, rows = faiss.knn(queries, block, asked, metric=faiss.METRIC_INNER_PRODUCT)
        if asked == len(block) or (scores[:, -1] < scores[:, top - 1]).all():
            return scores, rows.astype(np.int64)
        asked = min(2 * asked, len(block))


def empty_hits(queries: int, top: int) -> tuple[Scores, Rows]:
    """No hit yet."""
    return np.full((queries, top), -np.inf, np.float32), np.full((queries, top), -1, np.int64)


def merge_hits(first: tuple[Scores, Rows], second: tuple[Scores, Rows], top: int) -> tuple[Scores, Rows]:
    """The best of both; those of equal scores in the order of rows."""
    scores = np.concatenate([first[0], second[0]], axis=1)
    rows = np.concatenate([first[1], second[1]], axis=1)
    order = np.lexsort((rows, -scores), axis=1)[:, :top]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


@dataclass(frozen=True)
class IndexFile:
    """What is known of an index that was built."""

    version: str
    options: IndexOptions
    shards: tuple[str, ...]
    """Names of the shards it covers, in order."""
    rows: int
    dim: int
    digest: str
    bytes: int
    seconds: float
    recall: float
    """Share of the ten nearest rows that it finds, for some of its own rows as queries."""


def build(blocks: Sequence[Vectors], options: IndexOptions) -> Any:
    """A FAISS index of all rows."""
    dim, rows = blocks[0].shape[1], sum(map(len, blocks))
    chosen = options.chosen(rows, dim)
    index: Any = faiss.index_factory(dim, _recipe(chosen, dim), faiss.METRIC_INNER_PRODUCT)
    if chosen.kind == "hnsw":
        index.hnsw.efConstruction = chosen.ef_construction
    if chosen.kind == "pq":
        _allow_few(index, rows)
    if not index.is_trained:
        index.train(_sample(blocks, min(rows, max(256 * 39, 50 * chosen.nlist))))
    for block in blocks:
        index.add(np.ascontiguousarray(block, np.float32))
    return index


def _allow_few(index: Any, rows: int) -> None:
    """FAISS would complain of a small gallery, once a byte of the code."""
    if rows < CENTROIDS:
        raise InputError(f"--index pq: {rows} vectors; codes are learned from at least {CENTROIDS}")
    inner: Any = faiss.downcast_index(faiss.extract_index_ivf(index))
    inner.cp.min_points_per_centroid = inner.pq.cp.min_points_per_centroid = 1


def _recipe(chosen: IndexOptions, dim: int) -> str:
    """In FAISS's own words."""
    if chosen.kind == "hnsw":
        return f"HNSW{chosen.links}"
    if chosen.kind == "ivf":
        return f"IVF{chosen.nlist},Flat"
    if chosen.kind == "pq":
        padded = -(-dim // chosen.code_bytes) * chosen.code_bytes
        return f"Pad{padded},IVF{chosen.nlist},PQ{chosen.code_bytes}np"  # np: codes are never compared by their bits
    raise InputError(f"--index {chosen.kind}: nothing is built for it")


def _sample(blocks: Sequence[Vectors], count: int) -> npt.NDArray[np.float32]:
    """Evenly spaced rows, so that the same gallery gives the same index."""
    return gather(blocks, _spaced(blocks, count))


def _spaced(blocks: Sequence[Vectors], count: int) -> Rows:
    return np.unique(np.linspace(0, sum(map(len, blocks)) - 1, count).astype(np.int64))


def gather(blocks: Sequence[Vectors], rows: Rows) -> npt.NDArray[np.float32]:
    """Some rows of all blocks, counted through, in the order asked for."""
    starts = np.cumsum([0, *map(len, blocks)])
    found = np.empty((len(rows), blocks[0].shape[1]), np.float32)
    owner = np.searchsorted(starts, rows, side="right") - 1
    for block in np.unique(owner):
        mine = owner == block
        found[mine] = blocks[block][rows[mine] - starts[block]]
    return found


class NearSearch:
    """A built index, memory-mapped, with its blocks for candidates to be compared again."""

    def __init__(self, index: Any, options: IndexOptions, blocks: Sequence[Vectors]) -> None:
        self.index, self.options, self.blocks = index, options, blocks
        if options.kind in ("ivf", "pq"):
            faiss.ParameterSpace().set_index_parameter(index, "nprobe", options.nprobe)
        if options.kind == "hnsw":
            index.hnsw.efSearch = options.ef_search

    def __call__(self, queries: npt.NDArray[np.float32], top: int) -> tuple[Scores, Rows]:
        """The `top` best rows it finds."""
        asked = top * self.options.refine if self.options.kind == "pq" else top
        scores, rows = self.index.search(np.ascontiguousarray(queries, np.float32), min(asked, self.index.ntotal))
        if self.options.kind == "pq":
            scores = self._compared_again(queries, rows)
        empty = empty_hits(len(queries), top)
        return merge_hits(empty, (np.where(rows < 0, -np.inf, scores).astype(np.float32), rows.astype(np.int64)), top)

    def _compared_again(self, queries: npt.NDArray[np.float32], rows: Rows) -> Scores:
        candidates = gather(self.blocks, np.maximum(rows, 0).ravel()).reshape(*rows.shape, -1)
        scores: Scores = np.einsum("qd,qcd->qc", queries, candidates)
        return scores


def recall_of(near: NearSearch, blocks: Sequence[Vectors]) -> float:
    """Recall@10 against the exact search, for evenly spaced rows as queries; a row itself does not count."""
    chosen = _spaced(blocks, SAMPLE)
    queries, top = gather(blocks, chosen), min(SAMPLE_TOP + 1, sum(map(len, blocks)))
    found, right = near(queries, top)[1], exact_search(blocks, queries, top)[1]
    return float(np.mean([_share(*rows) for rows in zip(chosen, found, right, strict=True)]))


def _share(own: int, found: Rows, right: Rows) -> float:
    wanted, seen = right[right != own][:SAMPLE_TOP], found[found != own][:SAMPLE_TOP]
    return float(np.isin(wanted, seen).mean()) if len(wanted) else 1.0


def write_index(
    folder: Place, version: str, shards: Sequence[str], blocks: Sequence[Vectors], options: IndexOptions
) -> IndexFile:
    """Build, measure and write the index of a version; the description comes last."""
    began = time.perf_counter()
    chosen = options.chosen(sum(map(len, blocks)), blocks[0].shape[1])
    index = build(blocks, chosen)
    seconds = time.perf_counter() - began
    recall = recall_of(NearSearch(index, chosen, blocks), blocks)
    name = index_name(version, shards, chosen)
    with staged(folder) as here:
        here.mkdir(parents=True, exist_ok=True)
        aside = here / f".{name}.{os.getpid()}"
        faiss.write_index(index, str(aside))
        digest, size = file_digest(aside), aside.stat().st_size
        aside.replace(here / f"{name}.faiss")
    built = IndexFile(version, chosen, tuple(shards), index.ntotal, index.d, digest, size, seconds, recall)
    write_file(folder / f"{name}.json", json.dumps(asdict(built)).encode())
    return built


def index_name(version: str, shards: Sequence[str], chosen: IndexOptions) -> str:
    """Of its two files; another for other shards or options."""
    return f"{version}-{chosen.kind}-{hashlib.sha256(repr((tuple(shards), chosen)).encode()).hexdigest()[:16]}"


def file_digest(path: Path) -> str:
    """SHA-256 of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_index_file(path: Place) -> IndexFile:
    """The description of an index."""
    try:
        entry = json.loads(path.read_bytes())
        built = IndexFile(**(entry | {"options": IndexOptions(**entry["options"]), "shards": tuple(entry["shards"])}))
        if not all(map(is_plain_name, (built.version, built.digest, *built.shards))) or type(built.rows) is not int:
            raise ValueError("a name that is a path, or no number")
        if built.options.kind in ("auto", "exact"):
            raise ValueError(f"no index is {built.options.kind}")
        return built
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{path} does not parse; remove it, `cl2r gallery build` makes another") from error


def open_index(path: Place, built: IndexFile, blocks: Sequence[Vectors]) -> NearSearch:
    """The index beside its description, memory-mapped; from an object store, a copy in the user's cache."""
    file = path.parent / f"{path.name.removesuffix('.json')}.faiss"
    local = file if isinstance(file, Path) else _cached(file, built)
    try:
        if file_digest(local) != built.digest:  # FAISS trusts its files: of a damaged one it may end the process
            raise RuntimeError("the checksum differs")
        index = faiss.read_index(str(local), MMAP)
    except (RuntimeError, OSError) as error:
        why = " ".join(str(error).split())
        raise InputError(f"{file} cannot be read ({why}); remove it, `cl2r gallery build` makes another") from error
    if (index.ntotal, index.d) != (built.rows, built.dim) or built.rows != sum(map(len, blocks)):
        raise InputError(f"{file} is not the index that {path.name} describes; remove both")
    return NearSearch(index, built.options, blocks)


def _cached(file: Place, built: IndexFile) -> Path:
    local = cache_folder() / "indexes" / f"{built.digest}.faiss"
    if not local.exists():
        content = file.read_bytes()
        if hashlib.sha256(content).hexdigest() != built.digest:
            raise InputError(f"{file} is damaged (the checksum differs); remove it, `cl2r gallery build` makes another")
        write_file(local, content)
    return local
