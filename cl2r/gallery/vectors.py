"""What compact formats of gallery vectors, and kinds of index, cost in search quality.

The measurements use the features of a finished chain: the old system C[1,1], the upgraded one C[T,1], and the
re-embedded one C[T,T].
"""

import statistics
import time
import timeit
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import faiss
import numpy as np

from cl2r.engine.evaluation import ChainFeatures
from cl2r.gallery.index import CENTROIDS, Hits, IndexOptions, Kind, NearSearch, build, exact_search
from cl2r.retrieval import SEARCH_METRICS, SearchImages, Vectors, retrieved

FORMATS = ("float32", "float16", "pq32", "pq16", "pq8")  # pq32: codes of a product quantiser, 32 bytes per vector
INDEXES: tuple[Kind, ...] = ("exact", "ivf", "hnsw", "pq")
TOP, REPEATS = 10, 5
Name = TypeVar("Name", bound=str)


def possible(names: Sequence[Name], rows: int) -> list[Name]:
    """Return the formats or kinds that a gallery of `rows` vectors allows: codes need rows to learn from."""
    return [name for name in names if rows >= CENTROIDS or not name.startswith("pq")]


def stored_as(vectors: Vectors, form: str) -> tuple[Vectors, int]:
    """Return vectors as they are read back from a gallery of this format, and its bytes per vector."""
    dim = vectors.shape[1]
    if not form.startswith("pq"):
        kind = np.dtype(form)
        return vectors.astype(kind).astype(np.float32), dim * kind.itemsize
    size = int(form.removeprefix("pq"))
    padded = np.pad(vectors, ((0, 0), (0, -dim % size)))
    quantiser: Any = faiss.ProductQuantizer(padded.shape[1], size, 8)
    quantiser.cp.min_points_per_centroid = 1  # otherwise FAISS warns about small galleries, once per byte
    quantiser.train(padded)
    return np.ascontiguousarray(quantiser.decode(quantiser.compute_codes(padded))[:, :dim]), size


def format_rows(features: ChainFeatures, images: SearchImages) -> Iterator[dict[str, Any]]:
    """Yield one row per format, cell and metric. Codes are not compared again by full vectors."""
    last = len(features.models) - 1
    for t, k in ((0, 0), (last, 0), (last, last)):
        queries, gallery = features.searched(t, k, images)
        for form in possible(FORMATS, len(gallery)):
            vectors, size = stored_as(gallery, form)
            values = retrieved(queries, vectors, images).mean(axis=0)
            for metric, value in zip(SEARCH_METRICS, values, strict=True):
                yield {"format": form, "bytes": size, "t": t + 1, "k": k + 1, "metric": metric, "value": value}


def index_rows(features: ChainFeatures, images: SearchImages) -> Iterator[dict[str, Any]]:
    """Yield one row per kind of index: recall@10 against the exact search, and queries per second, all at once."""
    queries, gallery = features.searched(len(features.models) - 1, 0, images)
    _, right = exact_search([gallery], queries, TOP)
    for kind in possible(INDEXES, len(gallery)):
        began = time.perf_counter()
        if kind == "exact":
            search: partial[Hits] = partial(exact_search, [gallery], queries, TOP)
            seconds = 0.0
        else:
            options = IndexOptions(kind=kind).chosen(*gallery.shape)
            search = partial(NearSearch(build([gallery], options), options, [gallery]), queries, TOP)
            seconds = time.perf_counter() - began
        _, found = search()
        recall = (found[:, :, None] == right[:, None, :]).any(axis=2).mean()
        speed = len(queries) / statistics.median(timeit.repeat(search, number=1, repeat=REPEATS))
        shape = {"kind": kind, "rows": len(gallery), "dim": gallery.shape[1]}
        yield {**shape, "recall@10": recall, "queries_per_second": speed, "build_seconds": seconds}
