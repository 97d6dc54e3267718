"""Algorithm 2: queries by φ_t against a gallery of φ_1..φ_t vectors, version by version, hits merged by cosine."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from cl2r.errors import InputError
from cl2r.files import listed
from cl2r.search.gallery import Gallery, Version
from cl2r.search.index import (
    CENTROIDS,
    IndexFile,
    IndexOptions,
    NearSearch,
    empty_hits,
    exact_search,
    index_name,
    merge_hits,
    open_index,
    read_index_file,
    write_index,
)
from cl2r.search.model import Images, Model
from cl2r.search.shards import Shard, Vectors

Matrix = npt.NDArray[np.float32]
COVERED = 0.8
"""Share of a version's rows that an index must cover; below it is built anew."""


@dataclass(frozen=True)
class Hit:
    """One image found."""

    rank: int
    score: float
    """The cosine of the query's vector and the image's."""
    id: str
    label: str
    model: str
    """Whose vector it was, RUN@t."""
    task: int
    source: str
    path: str
    metadata: dict[str, Any]


class Part:
    """The rows of one model version."""

    def __init__(self, gallery: Gallery, version: Version, model: Model, prefer_exact: bool) -> None:
        self.gallery, self.version, self.model = gallery, version, model
        found = None if prefer_exact or self.carried else covering_index(gallery, version.key)
        names = found[1].shards if found else ()
        by_name = {shard.name: shard for shard in gallery.commit.of(version.key)}
        self.shards: list[Shard] = [by_name.pop(name) for name in names] + list(by_name.values())
        self.covered = len(names)
        self.near: NearSearch | None = open_index(found[0], found[1], self.blocks[: self.covered]) if found else None

    @property
    def carried(self) -> bool:
        """Whether its vectors must be mapped before the model's queries can meet them."""
        return self.model.carries_gallery and self.version.task != self.model.card.task

    @cached_property
    def blocks(self) -> list[Vectors]:
        """Vectors by shard, in the space where queries meet them."""
        stored = [self.gallery.vectors(shard) for shard in self.shards]
        return [self.model.carry(block, self.version.task) for block in stored] if self.carried else stored

    @property
    def rows(self) -> int:
        """Vectors."""
        return sum(shard.items for shard in self.shards)

    def search(self, queries: Matrix, top: int) -> tuple[Matrix, npt.NDArray[np.int64]]:
        """The best rows, counted through the shards of this part."""
        if self.near is None:
            return exact_search(self.blocks, queries, top)
        near = self.near(queries, top)
        scores, rows = exact_search(self.blocks[self.covered :], queries, top)
        start = sum(map(len, self.blocks[: self.covered]))
        return merge_hits(near, (scores, np.where(rows < 0, -1, rows + start)), top)


class Searcher:
    """A gallery opened for the queries of one model."""

    def __init__(self, gallery: Gallery, model: Model, exact: bool = False) -> None:
        self.gallery, self.model = gallery, model
        if not gallery.commit.items:
            raise InputError(f"{gallery.root}: the gallery is empty")
        gallery.check_model(Version.of(model.card, model.dim, model.digest))
        versions = sorted(gallery.commit.versions.values(), key=lambda version: version.task)
        self.parts = [Part(gallery, version, model, exact) for version in versions]

    @cached_property
    def items(self) -> pd.DataFrame:
        """A row a vector, in the order of parts."""
        shards = [shard for part in self.parts for shard in part.shards]
        return self.gallery.items(shards)

    @property
    def carried(self) -> int:
        """Vectors that had to be mapped on the way, which `cl2r gallery adapt` would store."""
        return sum(part.rows for part in self.parts if part.carried)

    def rows(self, images: Images, top: int) -> tuple[Matrix, npt.NDArray[np.int64]]:
        """Scores and rows of `items` for every image."""
        return self.rows_of(self.model.embed(images), top, images)

    def rows_of(self, queries: Matrix, top: int, images: Images | None = None) -> tuple[Matrix, npt.NDArray[np.int64]]:
        """The same for vectors by the model."""
        if top < 1:
            raise InputError(f"--top {top}: at least 1")
        if queries.shape[1:] != (self.model.dim,):
            found = f"vectors of shape {queries.shape}"
            raise InputError(f"{self.model.card.name}: queries have {self.model.dim} dimensions, found {found}")
        merged, start = empty_hits(len(queries), top), 0
        for part in self.parts:
            scores, rows = part.search(self.model.toward(queries, part.version.task, images), top)
            merged = merge_hits(merged, (scores, np.where(rows < 0, -1, rows + start)), top)
            start += part.rows
        return merged

    def search(self, images: Images, top: int) -> list[list[Hit]]:
        """Hits of every image, best first."""
        scores, rows = self.rows(images, min(top, self.gallery.commit.items))
        return [self._hits(s, r) for s, r in zip(scores.tolist(), rows.tolist(), strict=True)]

    def _hits(self, scores: Sequence[float], rows: Sequence[int]) -> list[Hit]:
        hits: list[Hit] = []
        for score, row in zip(scores, rows, strict=True):
            if row >= 0:
                hits.append(self._hit(len(hits) + 1, score, row))
        return hits

    def _hit(self, rank: int, score: float, row: int) -> Hit:
        item = self.items.iloc[row].to_dict()
        own = ("id", "source", "label", "bytes", "path", "version", "task", "model")
        metadata = {str(key): _known(value) for key, value in item.items() if key not in own}
        return Hit(
            rank,
            float(score),
            str(item["id"]),
            str(item["label"]),
            str(item["model"]),
            int(item["task"]),
            str(item["source"]),
            str(item["path"]),
            metadata,
        )


def _known(value: Any) -> Any:
    """Nothing for a value that is missing; lists are values too, and come as arrays."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return None if pd.api.types.is_scalar(value) and pd.isna(value) else value


def covering_index(gallery: Gallery, version: str) -> tuple[Any, IndexFile] | None:
    """The index of a version that covers most of its rows, none that is gone, if there is one."""
    there = {shard.name: shard.items for shard in gallery.commit.of(version)}
    best: tuple[Any, IndexFile] | None = None
    for path in listed(gallery.root / "index", f"{version}-*.json"):
        built = read_index_file(path)
        if set(built.shards) <= set(there) and (best is None or built.rows > best[1].rows):
            best = (path, built)
    return best


def build_indexes(gallery: Gallery, options: IndexOptions, again: bool = False) -> list[IndexFile]:
    """Build an index for every version that is large enough for one, or for the kind that is asked for.

    It takes the place of the version's other indexes.
    """
    made = []
    for key in gallery.commit.versions:
        shards = gallery.commit.of(key)
        rows = sum(shard.items for shard in shards)
        kind = options.chosen(rows, shards[0].dim).kind
        if not rows or kind == "exact" or (kind == "pq" and rows < CENTROIDS):
            continue
        found = None if again else covering_index(gallery, key)
        if found is not None and found[1].rows >= COVERED * rows and _is_asked_for(found[1], options):
            continue
        blocks = [gallery.vectors(shard) for shard in shards]
        made.append(write_index(gallery.root / "index", key, [shard.name for shard in shards], blocks, options))
        _remove_others(gallery, made[-1])
    return made


def _is_asked_for(built: IndexFile, options: IndexOptions) -> bool:
    return options.kind == "auto" or built.options == options.chosen(built.rows, built.dim)


def _remove_others(gallery: Gallery, built: IndexFile) -> None:
    name = index_name(built.version, built.shards, built.options)
    for kind in ("json", "faiss"):
        for path in listed(gallery.root / "index", f"{built.version}-*.{kind}"):
            if path.name != f"{name}.{kind}":
                path.unlink(missing_ok=True)
