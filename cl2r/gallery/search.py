"""Algorithm 2: queries by φ_t against a gallery of φ_1..φ_t vectors, version by version, hits merged by cosine."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from cl2r.errors import InputError
from cl2r.gallery.gallery import COLUMNS, Gallery, Shard, Version
from cl2r.gallery.gallery import Vectors as StoredVectors
from cl2r.gallery.index import Hits, NearSearch, covering_index, empty_hits, exact_search, merge_hits, open_index
from cl2r.gallery.model import Images, Model, Vectors


@dataclass(frozen=True)
class Hit:
    """One image found."""

    rank: int
    score: float  # cosine of the query's vector and the image's
    id: str
    label: str
    model: str  # the model that made the vector, RUN@t
    task: int
    source: str
    path: str
    metadata: dict[str, Any]


class VersionSearch:
    """Search of the rows of one model version."""

    def __init__(self, gallery: Gallery, version: Version, model: Model, exact: bool) -> None:
        self.gallery, self.version, self.model = gallery, version, model
        found = None if exact or self.mapped else covering_index(gallery, version.key)
        covered = found[1].shards if found else ()
        by_name = {shard.name: shard for shard in gallery.commit.of(version.key)}
        self.shards = [by_name.pop(name) for name in covered] + list(by_name.values())
        self.covered = len(covered)
        self.near: NearSearch | None = open_index(*found, self.blocks[: self.covered]) if found else None

    @property
    def mapped(self) -> bool:
        """Whether its vectors must be mapped before the model's queries can be compared with them."""
        return self.model.maps_gallery and self.version.task != self.model.card.task

    @cached_property
    def blocks(self) -> list[StoredVectors]:
        """Vectors by shard, in the space in which they are compared."""
        stored = [self.gallery.shards.vectors(shard) for shard in self.shards]
        return [self.model.map_gallery(self.version.task, block) for block in stored] if self.mapped else stored

    @property
    def rows(self) -> int:
        """Number of vectors."""
        return sum(shard.items for shard in self.shards)

    def search(self, queries: Vectors, top: int) -> Hits:
        """Return the best rows, numbered across the shards of this version."""
        if self.near is None:
            return exact_search(self.blocks, queries, top)
        scores, rows = exact_search(self.blocks[self.covered :], queries, top)
        start = sum(map(len, self.blocks[: self.covered]))
        return merge_hits(self.near(queries, top), (scores, np.where(rows < 0, -1, rows + start)), top)


class Searcher:
    """A gallery opened for the queries of one model; what it can, it shares with `newer`."""

    def __init__(self, gallery: Gallery, model: Model, exact: bool = False, newer: "Searcher | None" = None) -> None:
        self.gallery, self.model, self.newer = gallery, model, newer
        if not gallery.commit.items:
            raise InputError(f"{gallery.root}: the gallery is empty; `cl2r index` adds images")
        gallery.check_model(model.version)
        shared = {part.version.key: part for part in newer.parts if not part.mapped} if newer else {}
        self.parts: list[VersionSearch] = [
            shared.get(version.key) or VersionSearch(gallery, version, model, exact)
            for version in gallery.commit.by_task
        ]

    def earlier(self, model: Model) -> "Searcher":
        """Return the search of an older model of the chain: among its own vectors and those of models before it."""
        old, new = model.card, self.model.card
        if old.key not in new.keys[:-1]:
            wanted = f"give RUN@k of that run, with k below {new.task}"
            raise InputError(f"--old {old.name}: not an earlier model of the chain of {new.name}; {wanted}")
        view = self.gallery.up_to(model.version)
        if not view.commit.items:
            there = ", ".join(version.name for version in self.gallery.commit.by_task)
            raise InputError(f"--old {old.name}: no vectors by it or a model before it; the gallery has {there}")
        return Searcher(view, model, newer=self)

    @property
    def shards(self) -> list[Shard]:
        """The shards in the order of rows."""
        return [shard for part in self.parts for shard in part.shards]

    @cached_property
    def items(self) -> pd.DataFrame:
        """One row per vector, in the order of rows."""
        shards = self.shards
        if self.newer and self.newer.shards[: len(shards)] == shards:
            return self.newer.items.iloc[: sum(shard.items for shard in shards)]
        return self.gallery.items(shards)

    @property
    def mapped(self) -> int:
        """Number of vectors that are mapped for this search; `cl2r gallery adapt` would store them."""
        return sum(part.rows for part in self.parts if part.mapped)

    def rows_of(self, queries: Vectors, top: int, images: Images | None = None) -> Hits:
        """Return scores and rows of `items` for vectors by the model; slerp needs their images too."""
        if top < 1:
            raise InputError(f"--top {top}: give at least 1")
        if queries.shape[1:] != (self.model.dim,):
            name, dim = self.model.card.name, self.model.dim
            raise InputError(f"{name}: queries have {dim} dimensions, found vectors of shape {queries.shape}")
        merged, start = empty_hits(len(queries), top), 0
        for part in self.parts:
            scores, rows = part.search(self.model.to_space_of(part.version.task, queries, images), top)
            merged = merge_hits(merged, (scores, np.where(rows < 0, -1, rows + start)), top)
            start += part.rows
        return merged

    def search(self, images: Images, top: int) -> list[list[Hit]]:
        """Return the hits of every image, best first."""
        scores, rows = self.rows_of(self.model.embed(images), min(top, self.gallery.commit.items), images)
        return [
            [self._hit(rank, score, row) for rank, (score, row) in enumerate(zip(*found, strict=True), 1) if row >= 0]
            for found in zip(scores.tolist(), rows.tolist(), strict=True)
        ]

    def _hit(self, rank: int, score: float, row: int) -> Hit:
        item = self.items.iloc[row].to_dict()
        own = (*COLUMNS, "version", "task", "model")
        return Hit(
            rank=rank,
            score=score,
            task=int(item["task"]),
            metadata={str(key): _plain(value) for key, value in item.items() if key not in own},
            **{key: str(item[key]) for key in ("id", "label", "model", "source", "path")},
        )


def _plain(value: Any) -> Any:
    """Return a metadata value as JSON can hold it: lists for arrays, None for a missing value."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return None if pd.api.types.is_scalar(value) and pd.isna(value) else value
