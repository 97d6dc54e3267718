"""Indexing: images that a gallery does not have yet get vectors of the newest model, shard by shard.

A shard that was written before the job was stopped is taken over, if its images are still wanted; the rest is done. The
commit comes last. So every id is there exactly once, however often the job was killed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from cl2r.errors import InputError
from cl2r.files import Place, place
from cl2r.search.gallery import Gallery, Version
from cl2r.search.image_source import ImageEntry, Images, decode, list_images
from cl2r.search.model import Model
from cl2r.search.shards import Bad, Kept, Shard, Vectors, read_items, shard_name, write_shard
from cl2r.search.snapshot import Card

SHARD_BYTES, LARGEST_SHARD = 2**25, 4096
"""Decoded pixels of a shard at most, and images."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class ShardPlan:
    """Images that become one shard; plain data, for processes elsewhere."""

    name: str
    gallery: str
    source: str
    version: str
    kept: Kept
    entries: tuple[ImageEntry, ...]
    metadata: pd.DataFrame | None
    """What the user knows of these images, a row each."""


Extract = Callable[[Model, Sequence[ShardPlan]], Iterable[Shard]]
"""Makes shards of plans, in any order: here (`extract_here`), or on a cluster (`cl2r.rayrun.gallery`)."""


@dataclass
class IndexReport:
    """What an index job did."""

    listed: int
    present: int
    """Images that the gallery had already."""
    added: int = 0
    replaced: int = 0
    taken_over: int = 0
    """Images of shards that an earlier job had left behind."""
    bad: list[Bad] = field(default_factory=list)


def index_images(
    root: Place,
    gallery: Gallery,
    model: Model,
    extract: Extract,
    kept: Kept = "float32",
    prefix: str = "",
    reindex: bool = False,
    metadata: pd.DataFrame | None = None,
    say: Say = print,
) -> IndexReport:
    """Add the images below `root`; with `reindex`, those that older models made vectors of get new ones too."""
    version = Version.of(model.card, model.dim, model.digest)
    gallery.check_model(version, to_write=True)
    entries = list_images(root, prefix)
    _check_metadata(metadata, entries)
    metadata = None if metadata is None else _with_holes(metadata)
    with gallery.writing():
        gallery.check_model(version, to_write=True)
        return _Job(root, gallery, model, version, extract, kept, metadata, say).run(entries, reindex)


class _Job:
    def __init__(
        self,
        root: Place,
        gallery: Gallery,
        model: Model,
        version: Version,
        extract: Extract,
        kept: Kept,
        metadata: pd.DataFrame | None,
        say: Say,
    ) -> None:
        self.source, self.gallery, self.model, self.version = _address(root), gallery, model, version
        self.extract, self.kept, self.metadata, self.say = extract, kept, metadata, say

    def run(self, entries: Sequence[ImageEntry], reindex: bool) -> IndexReport:
        there = self.gallery.items()
        current = set(there["id"] if not reindex else there.loc[there["version"] == self.version.key, "id"])
        wanted = {entry.id: entry for entry in entries if entry.id not in current}
        replaced = set(there["id"]) & set(wanted)
        report = IndexReport(len(entries), present=len(entries) - len(wanted), replaced=len(replaced))
        if not wanted:
            return report
        found = self._taken_over(wanted)
        report.taken_over = sum(shard.items for shard in found)
        if report.taken_over:
            self.say(f"{report.taken_over} images were extracted before; going on with the rest")
        plans = self.plans([entry for entry in entries if entry.id in wanted])
        made = self._made([*found, *(self.extract(self.model, plans) if plans else ())], plans)
        report.bad = sorted(bad for shard in made for bad in shard.bad)
        unreadable = {name for name, _ in report.bad}
        report.added = sum(shard.items for shard in made) - len(replaced - unreadable)
        report.replaced = len(replaced - unreadable)
        if any(shard.items for shard in made):
            self._commit(made, replaced - unreadable, f"{sum(shard.items for shard in made)} images of {self.source}")
        return report

    def _made(self, shards: Sequence[Shard], plans: Sequence[ShardPlan]) -> list[Shard]:
        """Each once, in the order of names, and none missing."""
        made = {shard.name: shard for shard in shards}
        lost = {plan.name for plan in plans} - made.keys()
        if lost:
            raise RuntimeError(f"{len(lost)} shards of {len(plans)} were not made; the same command goes on")
        return [made[name] for name in sorted(made)]

    def _taken_over(self, wanted: dict[str, ImageEntry]) -> list[Shard]:
        """Shards left behind that this job would make again; their images are taken off `wanted`.

        Those without any vector are made again: they are of images that could not be read, and may be mended.
        """
        taken = []
        for shard in self.gallery.orphans():
            if shard.version == self.version.key and shard.items:
                ids = [*read_items(self.gallery.shards, shard)["id"], *(name for name, _ in shard.bad)]
                if all(name in wanted for name in ids) and self._name(wanted[name] for name in ids) == shard.name:
                    taken.append(shard)
                    for name in ids:
                        del wanted[name]
        return taken

    def _metadata_of(self, rows: Sequence[ImageEntry]) -> pd.DataFrame | None:
        if self.metadata is None:
            return None
        ids = pd.DataFrame({"id": pd.Series([entry.id for entry in rows], dtype="string")})
        return ids.merge(self.metadata, on="id", how="left", validate="one_to_one").drop(columns="id")

    def plans(self, entries: Sequence[ImageEntry]) -> list[ShardPlan]:
        """Runs of images, as many as are decoded at a time."""
        pixels = self.model.card.size**2 * self.model.card.channels
        count = max(1, min(LARGEST_SHARD, SHARD_BYTES // pixels))
        return [self._plan(tuple(entries[start : start + count])) for start in range(0, len(entries), count)]

    def _name(self, entries: Iterable[ImageEntry]) -> str:
        """Another if anything is: images, where they lie, what is known of them, the model's weights."""
        rows = sorted(entries, key=lambda entry: entry.id)
        ids, sizes = [entry.id for entry in rows], [entry.bytes for entry in rows]
        known = item_frame(rows, self.source, self._metadata_of(rows)).to_csv(index=False)
        besides = f"{self.version.digest}\n{[entry.modified for entry in rows]}\n{known}"
        return shard_name(self.version.key, ids, sizes, self.kept, besides)

    def _plan(self, entries: tuple[ImageEntry, ...]) -> ShardPlan:
        gallery, metadata = _address(self.gallery.root), self._metadata_of(entries)
        return ShardPlan(self._name(entries), gallery, self.source, self.version.key, self.kept, entries, metadata)

    def _commit(self, made: Sequence[Shard], replaced: set[str], what: str) -> None:
        kept = [shard for old in self.gallery.commit.shards for shard in without(self.gallery, old, replaced)]
        filled = [shard for shard in made if shard.items]
        self.gallery.change({self.version.key: self.version}, [*kept, *filled], what)


def _address(place: Place) -> str:
    """As processes with another working folder find it."""
    return str(place.absolute() if isinstance(place, Path) else place)


def without(gallery: Gallery, shard: Shard, ids: set[str]) -> list[Shard]:
    """The shard without some images: itself, a smaller one, or none."""
    if not ids:
        return [shard]
    items = read_items(gallery.shards, shard)
    stays = ~items["id"].isin(ids)
    if stays.all():
        return [shard]
    if not stays.any():
        return []
    return [rewritten(gallery, shard, items[stays], shard.version, gallery.vectors(shard)[stays.to_numpy()])]


def rewritten(gallery: Gallery, shard: Shard, items: pd.DataFrame, version: str, vectors: Vectors) -> Shard:
    """A new shard in place of an old one, which stays where it is: somebody may be reading it."""
    kept: Kept = "float16" if shard.dtype == "float16" else "float32"
    name = shard_name(f"{version}/{shard.name}", list(items["id"]), list(map(int, items["bytes"])), kept)
    return write_shard(gallery.shards, name, version, vectors, items, shard.bad, kept)


def extract_here(model: Model, plans: Sequence[ShardPlan]) -> Iterable[Shard]:
    """In this process, one after the other."""
    for plan in plans:
        images, bad = decode_plan(plan, model.card)
        yield embed_plan(model, plan, images, bad)


def decode_plan(plan: ShardPlan, card: Card) -> tuple[Images, list[Bad]]:
    """The pixels of a shard, and its bad images."""
    return decode(plan.source, plan.entries, card.size, card.channels, card.fit)


def embed_plan(model: Model, plan: ShardPlan, images: Images, bad: Sequence[Bad]) -> Shard:
    """The shard, written."""
    unreadable = {name for name, _ in bad}
    readable = np.array([entry.id not in unreadable for entry in plan.entries], np.bool_)
    rows = [entry for entry, fine in zip(plan.entries, readable.tolist(), strict=True) if fine]
    metadata = None if plan.metadata is None else plan.metadata[readable].reset_index(drop=True)
    vectors = model.embed(images)
    if not np.isfinite(vectors).all():
        raise InputError(f"{model.card.name}: its vectors are not finite")
    items = item_frame(rows, plan.source, metadata)
    return write_shard(place(plan.gallery) / "shards", plan.name, plan.version, vectors, items, bad, plan.kept)


def item_frame(rows: Sequence[ImageEntry], source: str, metadata: pd.DataFrame | None) -> pd.DataFrame:
    """What a shard says of its images."""
    own = pd.DataFrame(
        {
            "id": pd.Series([entry.id for entry in rows], dtype="string"),
            "source": pd.Series([source] * len(rows), dtype="string"),
            "label": pd.Series([entry.label for entry in rows], dtype="string"),
            "bytes": pd.Series([entry.bytes for entry in rows], dtype="int64"),
            "path": pd.Series([entry.path for entry in rows], dtype="string"),
        }
    )
    return own if metadata is None else pd.concat([own, metadata], axis=1)


def _check_metadata(metadata: pd.DataFrame | None, entries: Sequence[ImageEntry]) -> None:
    if metadata is None:
        return
    for twice in metadata.columns[metadata.columns.duplicated()]:
        raise InputError(f"--metadata: the column {twice!r} is there twice")
    if "id" not in metadata or metadata["id"].duplicated().any():
        raise InputError("--metadata: it needs a column `id`, with every id once")
    taken = {"source", "label", "bytes", "path", "version", "task", "model"} & set(metadata.columns)
    if taken:
        raise InputError(f"--metadata: the column {sorted(taken)[0]!r} is the gallery's own; rename it")
    missing = set(metadata["id"]) - {entry.id for entry in entries}
    if missing:
        raise InputError(f"--metadata: {len(missing)} ids are no images here, e.g. {min(missing, key=str)!r}")
    for name in metadata.columns:
        _check_column(name, metadata[name])


def _with_holes(metadata: pd.DataFrame) -> pd.DataFrame:
    """Whole numbers stay whole, and truth values such, where an image has none."""
    kinds = {"i": "Int64", "u": "UInt64", "b": "boolean"}
    found = {name: metadata[name].dtype.kind for name in metadata.columns}
    return metadata.astype({name: kinds[kind] for name, kind in found.items() if kind in kinds})


def _check_column(name: object, column: pd.Series) -> None:
    """Before images are decoded, not when their shard is written."""
    if not isinstance(name, str):
        raise InputError(f"--metadata: the column {name!r} has no name")
    try:
        pa.array(column, from_pandas=True)
    except (pa.ArrowException, ValueError, TypeError) as error:
        why = " ".join(str(error).split())
        raise InputError(f"--metadata: the column {name!r} has values of several kinds ({why})") from error
