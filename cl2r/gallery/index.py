"""FAISS indexes: the nearest rows of one model version, exactly or approximately.

    exact   every row is compared; vectors stay in their memory-mapped files
    ivf     rows in `nlist` cells, of which `nprobe` are searched
    hnsw    a graph with `links` neighbours per row; `ef_search` rows are visited
    pq      ivf with codes of `code_bytes` bytes per row; the best candidates are compared again by their full vectors

The inner product of rows of length one is their cosine. An index of the last three kinds is a memory-mapped file. It
covers the shards it was built from; shards added later are searched exactly. Its recall is measured when it is built.

    index/<version>-<kind>-<digest>.json        description, sealed with this gallery and name as owner
    index/<version>-<kind>-<digest>-*.faiss     the index; its checksum is in the description, and begins with *

An index that is damaged or belongs elsewhere is set aside, and the rows that it covered are searched exactly.
"""

import contextlib
import logging
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import faiss
import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeInt, field_validator

from cl2r.errors import InputError
from cl2r.gallery.gallery import WRONG_KIND, Gallery, Name, Record, Vectors, intact, own_files, reason
from cl2r.storage.leftovers import is_old
from cl2r.storage.path import StoragePath, sha256
from cl2r.storage.seal import sealed, unsealed

log = logging.getLogger(__name__)
Kind = Literal["auto", "exact", "ivf", "hnsw", "pq"]
KINDS: tuple[Kind, ...] = ("auto", "exact", "ivf", "hnsw", "pq")
EXACT_BELOW, PQ_ABOVE = 100_000, 5_000_000
"""With fewer rows `auto` searches exactly; with more, it compresses vectors because they would not fit into memory."""
SAMPLE, SAMPLE_TOP = 200, 10  # queries and hits of the recall that is measured
CENTROIDS = 256  # values of one code byte; a product quantiser needs at least as many rows to learn from
COVERED = 0.8  # share of a version's rows that its index must cover; if it covers fewer, it is rebuilt
FILE_NAME = re.compile(r"[\w-]+-(ivf|hnsw|pq)-[0-9a-f]{16}(\.json|-[0-9a-f]{16}\.faiss)")
ATTEMPTS, PAUSE_SECONDS = 2, 0.1  # another process may build the index while this one looks at its two files
REBUILD = "`cl2r gallery build` rebuilds it"
MMAP = faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY

Scores = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Hits = tuple[Scores, Rows]
"""(queries, top) scores and row numbers, best first; -inf and -1 if there are fewer rows than `top`."""


@dataclass(frozen=True)
class IndexOptions:
    """Kind and parameters of an index. Zero means: chosen by the number of rows."""

    kind: Kind = "auto"
    nlist: int = 0
    nprobe: int = 0
    links: int = 32
    ef_construction: int = 80
    ef_search: int = 128
    code_bytes: int = 0
    refine: int = 32  # pq: candidates that are compared again, as a multiple of the hits asked for

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"--index {self.kind}: use one of {', '.join(KINDS)}")
        for name, value in asdict(self).items():
            least = 0 if name in ("nlist", "nprobe", "code_bytes") else 1
            if name != "kind" and (type(value) is not int or value < least):
                raise InputError(f"--index-option {name}={value}: use a whole number above 0")
        if self.nlist and self.nprobe > self.nlist:
            raise InputError(
                f"--index-option nprobe={self.nprobe}: there are only {self.nlist} cells; give at most that"
            )

    def chosen(self, rows: int, dim: int) -> "IndexOptions":
        """Return the options with every open number filled in for a gallery of this size."""
        kind = self.kind
        if kind == "auto":
            kind = "exact" if rows < EXACT_BELOW else "ivf" if rows < PQ_ABOVE else "pq"
        nlist = self.nlist or int(min(65536, max(1, 4 * np.sqrt(rows))))
        nlist = max(1, min(nlist, rows // 39 or 1))  # FAISS wants 39 rows per cell to learn from
        nprobe = min(nlist, self.nprobe or max(8, nlist // 32))
        code_bytes = self.code_bytes or max(4, min(64, dim // 4))
        return replace(self, kind=kind, nlist=nlist, nprobe=nprobe, code_bytes=code_bytes)


def exact_search(blocks: Sequence[Vectors], queries: npt.NDArray[np.float32], top: int) -> Hits:
    """Return the `top` best rows of all blocks; rows are numbered across blocks, ties are in row order."""
    queries = np.ascontiguousarray(queries, np.float32)
    hits, start = empty_hits(len(queries), top), 0
    for block in blocks:
        held, asked = np.ascontiguousarray(block, np.float32), min(top + 1, len(block))
        while asked:
            scores, rows = faiss.knn(queries, held, asked, metric=faiss.METRIC_INNER_PRODUCT)
            # FAISS keeps any of equal scores: ask for more until all rows that tie with the last hit are in
            if asked == len(block) or (scores[:, -1] < scores[:, top - 1]).all():
                hits = merge_hits(hits, (scores, rows.astype(np.int64) + start), top)
                break
            asked = min(2 * asked, len(block))
        start += len(block)
    return hits


def empty_hits(queries: int, top: int) -> Hits:
    """Return hits without a row."""
    return np.full((queries, top), -np.inf, np.float32), np.full((queries, top), -1, np.int64)


def merge_hits(first: Hits, second: Hits, top: int) -> Hits:
    """Return the best of both; equal scores are in row order."""
    scores = np.concatenate([first[0], second[0]], axis=1)
    rows = np.concatenate([first[1], second[1]], axis=1)
    order = np.lexsort((rows, -scores), axis=1)[:, :top]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def gather(blocks: Sequence[Vectors], rows: Rows) -> npt.NDArray[np.float32]:
    """Return some rows of all blocks, numbered across blocks, in the order given."""
    starts = np.cumsum([0, *map(len, blocks)])
    found = np.empty((len(rows), blocks[0].shape[1]), np.float32)
    owner = np.searchsorted(starts, rows, side="right") - 1
    for block in np.unique(owner):
        mine = owner == block
        found[mine] = blocks[block][rows[mine] - starts[block]]
    return found


def _evenly_spaced(blocks: Sequence[Vectors], count: int) -> Rows:
    """Return `count` row numbers; not drawn, so that the same gallery gives the same index."""
    return np.unique(np.linspace(0, sum(map(len, blocks)) - 1, count).astype(np.int64))


def build(blocks: Sequence[Vectors], options: IndexOptions) -> Any:
    """Return a FAISS index of all rows; raise InputError if the options need none, or more rows."""
    dim, rows = blocks[0].shape[1], sum(map(len, blocks))
    chosen = options.chosen(rows, dim)
    if chosen.kind == "hnsw":
        recipe = f"HNSW{chosen.links}"
    elif chosen.kind == "ivf":
        recipe = f"IVF{chosen.nlist},Flat"
    elif chosen.kind == "pq":
        if rows < CENTROIDS:
            raise InputError(
                f"--index pq: {rows} vectors; codes are learned from at least {CENTROIDS}; use --index hnsw or exact"
            )
        padded = -(-dim // chosen.code_bytes) * chosen.code_bytes
        recipe = f"Pad{padded},IVF{chosen.nlist},PQ{chosen.code_bytes}np"  # np: codes are never compared bit by bit
    else:
        raise InputError(f"--index {chosen.kind}: an exact search needs no index; use ivf, hnsw or pq")
    index: Any = faiss.index_factory(dim, recipe, faiss.METRIC_INNER_PRODUCT)
    if chosen.kind == "hnsw":
        index.hnsw.efConstruction = chosen.ef_construction
    if chosen.kind == "pq":  # otherwise FAISS warns about small galleries, once per code byte
        inner: Any = faiss.downcast_index(faiss.extract_index_ivf(index))
        inner.cp.min_points_per_centroid = inner.pq.cp.min_points_per_centroid = 1
    if not index.is_trained:
        index.train(gather(blocks, _evenly_spaced(blocks, min(rows, max(256 * 39, 50 * chosen.nlist)))))
    for block in blocks:
        index.add(np.ascontiguousarray(block, np.float32))
    return index


class NearSearch:
    """Approximate search with a built index; `blocks` are the vectors by which pq candidates are compared again."""

    def __init__(self, index: Any, options: IndexOptions, blocks: Sequence[Vectors]) -> None:
        self.index, self.options, self.blocks = index, options, blocks
        if options.kind in ("ivf", "pq"):
            faiss.ParameterSpace().set_index_parameter(index, "nprobe", options.nprobe)
        if options.kind == "hnsw":
            index.hnsw.efSearch = options.ef_search

    def __call__(self, queries: npt.NDArray[np.float32], top: int) -> Hits:
        """Return the `top` best rows that the index finds."""
        asked = top * self.options.refine if self.options.kind == "pq" else top
        scores, rows = self.index.search(np.ascontiguousarray(queries, np.float32), min(asked, self.index.ntotal))
        if self.options.kind == "pq":
            candidates = gather(self.blocks, np.maximum(rows, 0).ravel()).reshape(*rows.shape, -1)
            scores = np.einsum("qd,qcd->qc", queries, candidates)
        empty = empty_hits(len(queries), top)
        return merge_hits(empty, (np.where(rows < 0, -np.inf, scores).astype(np.float32), rows.astype(np.int64)), top)


def recall_of(near: NearSearch, blocks: Sequence[Vectors]) -> float:
    """Return recall@10 against the exact search, with evenly spaced rows as queries; a row is not its own hit."""
    chosen = _evenly_spaced(blocks, SAMPLE)
    queries, top = gather(blocks, chosen), min(SAMPLE_TOP + 1, sum(map(len, blocks)))
    shares = []
    for own, found, right in zip(chosen, near(queries, top)[1], exact_search(blocks, queries, top)[1], strict=True):
        wanted = right[right != own][:SAMPLE_TOP]
        shares.append(np.isin(wanted, found[found != own][:SAMPLE_TOP]).mean() if len(wanted) else 1.0)
    return float(np.mean(shares))


class IndexFile(Record):
    """Description of an index file."""

    version: Name
    options: IndexOptions
    shards: tuple[Name, ...]  # names of the shards it covers, in row order
    rows: NonNegativeInt
    dim: NonNegativeInt
    digest: Name
    bytes: NonNegativeInt
    seconds: float
    recall: float  # share of the ten nearest rows that it finds, with some of its own rows as queries

    @field_validator("options")
    @classmethod
    def _check_kind(cls, options: IndexOptions) -> IndexOptions:
        if options.kind in ("auto", "exact"):
            raise ValueError(f"no index file is of kind {options.kind}")
        return options


def write_index(
    folder: StoragePath,
    gallery: str,
    version: str,
    shards: Sequence[str],
    blocks: Sequence[Vectors],
    options: IndexOptions,
) -> IndexFile:
    """Build, measure and write the index of a version of the gallery with this id; its description is written last."""
    began = time.perf_counter()
    chosen = options.chosen(sum(map(len, blocks)), blocks[0].shape[1])
    index = build(blocks, chosen)
    seconds = time.perf_counter() - began
    recall = recall_of(NearSearch(index, chosen, blocks), blocks)
    name = index_name(version, shards, chosen)
    if folder.file_info() is not None:
        folder.set_aside()  # a file in its place
    for path in folder.list(f"{name}*"):
        if path.file_info() is None:
            path.set_aside()  # a folder in the place of a file
    with folder.staging() as here:
        aside = here / f".{name}.{uuid.uuid4().hex}"
        faiss.write_index(index, str(aside))
        digest, size = aside.checksum(), aside.stat().st_size
        aside.replace(here / _faiss_name(name, digest))
    built = IndexFile(
        version=version,
        options=chosen,
        shards=tuple(shards),
        rows=index.ntotal,
        dim=index.d,
        digest=digest,
        bytes=size,
        seconds=seconds,
        recall=recall,
    )
    (folder / f"{name}.json").write_file(sealed(built.model_dump_json().encode(), _owner(gallery, name)))
    return built


def index_name(version: str, shards: Sequence[str], chosen: IndexOptions) -> str:
    """Return the name of an index; other shards or options give another name."""
    return f"{version}-{chosen.kind}-{sha256(repr((tuple(shards), chosen)).encode())[:16]}"


def _faiss_name(name: str, digest: str) -> str:
    return f"{name}-{digest[:16]}.faiss"


def _owner(gallery: str, name: str) -> str:
    return f"gallery {gallery}, index {name}"


def descriptions(folder: StoragePath) -> list[StoragePath]:
    """Return the files that describe the indexes in a folder."""
    return [path for path in own_files(folder, FILE_NAME) if path.name.endswith(".json")]


def read_index_file(path: StoragePath, gallery: str) -> IndexFile:
    """Read the description of an index; raise InputError if it is damaged, or belongs elsewhere."""
    name = path.name.removesuffix(".json")
    try:
        built = IndexFile.model_validate_json(unsealed(path.read_bytes(), _owner(gallery, name)))
        if name != index_name(built.version, built.shards, built.options):
            raise ValueError("it describes another index")
    except (FileNotFoundError, ValueError, *WRONG_KIND) as error:
        raise InputError(f"{path} cannot be used ({reason(error)}); {REBUILD}") from error
    return built


def index_file(path: StoragePath, built: IndexFile) -> StoragePath:
    """Return the index of a description, from an object store a copy in the user's cache; compare its checksum.

    It is compared once per process and state of the file. Raise InputError if it differs.
    """
    with _usable(path, built) as file:
        return intact(file, built.digest)  # FAISS trusts its files: a damaged one may crash the process


def check_index(path: StoragePath, built: IndexFile) -> None:
    """Compare the checksum of the index of a description. Raise InputError if it differs; nothing is cached."""
    with _usable(path, built) as file:
        if file.checksum() != built.digest:
            raise ValueError("the checksum differs")


@contextlib.contextmanager
def _usable(path: StoragePath, built: IndexFile) -> Iterator[StoragePath]:
    """Give the path of the index of a description; raise InputError if using it fails."""
    file = path.parent / _faiss_name(path.name.removesuffix(".json"), built.digest)
    try:
        yield file
    except (FileNotFoundError, ValueError, *WRONG_KIND) as error:  # other OSErrors: the store cannot be reached
        raise InputError(f"{file} cannot be used ({reason(error)}); {REBUILD}") from error


def undescribed(gallery: Gallery) -> list[StoragePath]:
    """Return the index files that no description has and that have not changed for a day: their writer was killed."""
    used, unknown = set[str](), set[str]()
    for path in descriptions(gallery.root / "index"):
        name = path.name.removesuffix(".json")
        try:
            used.add(_faiss_name(name, read_index_file(path, gallery.id).digest))
        except InputError:
            unknown.add(name)  # a damaged description may have any file of its name
    found = [path for path in own_files(gallery.root / "index", FILE_NAME) if path.name.endswith(".faiss")]
    left = [path for path in found if path.name not in used and path.name.rpartition("-")[0] not in unknown]
    return [path for path in left if is_old(path)]


def open_index(path: StoragePath, built: IndexFile, blocks: Sequence[Vectors]) -> NearSearch:
    """Open the index of a description, memory-mapped. Raise InputError if it does not fit, or holds other rows."""
    local = index_file(path, built)
    try:
        index = faiss.read_index(str(local), MMAP)
        if (index.ntotal, index.d) != (built.rows, built.dim) or built.rows != sum(map(len, blocks)):
            raise ValueError("it has other rows")
    except (ValueError, RuntimeError) as error:
        raise InputError(f"{local} is not the index that {path.name} describes ({reason(error)}); {REBUILD}") from error
    return NearSearch(index, built.options, blocks)


def covering_index(gallery: Gallery, version: str) -> tuple[StoragePath, IndexFile] | None:
    """Return the index of a version that covers most rows and no shard that is gone, or None.

    Indexes that are damaged or belong elsewhere are set aside, with a warning: an exact search answers without them.
    """
    there, usable = {shard.name for shard in gallery.commit.of(version)}, []
    for path in descriptions(gallery.root / "index"):
        if not path.name.startswith(f"{version}-"):
            continue
        for attempt in range(ATTEMPTS):
            try:
                built = read_index_file(path, gallery.id)
                if set(built.shards) <= there:
                    index_file(path, built)
                    usable.append((path, built))
                break
            except InputError as error:
                if attempt < ATTEMPTS - 1:
                    time.sleep(PAUSE_SECONDS)
                elif path.exists():  # otherwise the process that replaced the index has removed it
                    _set_aside(path, error)
    return max(usable, key=lambda entry: entry[1].rows, default=None)


def _set_aside(path: StoragePath, error: InputError) -> None:
    """Rename the files of an index that cannot be used, and warn. If that fails, only warn."""
    try:
        for file in [path, *path.parent.list(f"{path.name.removesuffix('.json')}-*.faiss")]:
            file.set_aside()
        done = "it is set aside"
    except OSError as other:
        done = f"it cannot be set aside either ({reason(other)})"
    log.warning("%s. Until then, %s, and all vectors are compared", error, done)


def build_indexes(gallery: Gallery, options: IndexOptions, again: bool = False) -> list[IndexFile]:
    """Build an index for every version that is large enough for one, or for the kind asked for.

    It replaces the version's other indexes. Without `again`, an index that still serves is kept.
    """
    made, folder = [], gallery.root / "index"
    for key in gallery.commit.versions:
        shards = gallery.commit.of(key)
        rows = sum(shard.items for shard in shards)
        kind = options.chosen(rows, shards[0].dim).kind
        if not rows or kind == "exact" or (kind == "pq" and rows < CENTROIDS):
            continue
        if not again and (found := covering_index(gallery, key)):
            old = found[1]
            as_asked = options.kind == "auto" or old.options == options.chosen(old.rows, old.dim)
            if old.rows >= COVERED * rows and as_asked:
                continue
        blocks = [gallery.shards.vectors(shard) for shard in shards]
        built = write_index(folder, gallery.id, key, [shard.name for shard in shards], blocks, options)
        name = index_name(key, built.shards, built.options)
        for path in own_files(folder, FILE_NAME):
            if path.name.startswith(f"{key}-") and path.name not in (f"{name}.json", _faiss_name(name, built.digest)):
                path.unlink(missing_ok=True) if path.file_info() else path.set_aside()
        made.append(built)
    return made
