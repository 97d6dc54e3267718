"""Indexing: images that a gallery lacks get vectors by the newest model, shard by shard.

Shards that a stopped job left behind are reused if their images are still wanted, and the commit comes last. So every
image is in the gallery exactly once, however often the job was killed.
"""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pyarrow as pa

from cl2r.errors import InputError
from cl2r.gallery.gallery import COLUMNS, BadImage, Gallery, Shard, ShardStore, StoredDtype, Vectors, reason, shard_name
from cl2r.gallery.images import ImageEntry, decode, list_images
from cl2r.gallery.model import Images, Model
from cl2r.storage.path import StoragePath, at

SHARD_BYTES, LARGEST_SHARD = 2**25, 4096
"""A shard has at most this many bytes of decoded pixels, and this many images."""


@dataclass(frozen=True)
class ShardPlan:
    """Images that become one shard; plain data that can be sent to other processes."""

    name: str
    gallery: str
    source: str
    version: str
    stored_dtype: StoredDtype
    entries: tuple[ImageEntry, ...]
    metadata: pd.DataFrame | None
    """The user's columns, one row per entry."""


Extract = Callable[[Model, Sequence[ShardPlan]], Iterable[Shard]]
"""Makes shards from plans, in any order: in this process (`extract_here`) or on a cluster (`cl2r.rayrun.extract`)."""


@dataclass
class IndexReport:
    """What an index job did, as numbers of images."""

    listed: int
    present: int
    """In the gallery before."""
    added: int = 0
    replaced: int = 0
    taken_over: int = 0
    """In shards that an earlier, stopped job had left behind."""
    bad: list[BadImage] = field(default_factory=list)


@dataclass
class IndexJob:
    """Adds the images below `root`. With `reindex`, vectors by older models are replaced as well."""

    root: StoragePath
    gallery: Gallery
    model: Model
    extract: Extract
    stored_dtype: StoredDtype = "float32"
    prefix: str = ""
    reindex: bool = False
    metadata: pd.DataFrame | None = None

    def run(self) -> IndexReport:
        """Index what is missing and commit it; raise InputError before any work if an argument is wrong."""
        # absolute, because other processes have other working folders
        self.source, self.version = str(self.root.absolute()), self.model.version
        self.gallery.check_model(self.version)
        entries = list_images(self.root, self.prefix)
        if self.metadata is not None:
            self.metadata = checked_metadata(self.metadata, entries)
        with self.gallery.writing():
            self.gallery.check_model(self.version)  # another writer may have used a later model
            return self._run(entries)

    def _run(self, entries: Sequence[ImageEntry]) -> IndexReport:
        there = self.gallery.items()
        current = set(there.loc[there["version"] == self.version.key, "id"] if self.reindex else there["id"])
        wanted = {entry.id: entry for entry in entries if entry.id not in current}
        report = IndexReport(len(entries), present=len(entries) - len(wanted))
        if not wanted:
            return report
        replaced = set(there["id"]) & set(wanted)
        reused = self._take_over(wanted)
        report.taken_over = sum(shard.items for shard in reused)
        plans = self._plans([entry for entry in entries if entry.id in wanted])
        by_name = {shard.name: shard for shard in [*reused, *(self.extract(self.model, plans) if plans else ())]}
        lost = {plan.name for plan in plans} - by_name.keys()
        if lost:
            raise RuntimeError(f"{len(lost)} of {len(plans)} shards were not made; run the same command to resume")
        made = [by_name[name] for name in sorted(by_name)]
        report.bad = sorted(bad for shard in made for bad in shard.bad)
        replaced -= {name for name, _ in report.bad}
        count = sum(shard.items for shard in made)
        report.added, report.replaced = count - len(replaced), len(replaced)
        if count:
            kept = [shard for old in self.gallery.commit.shards for shard in without(self.gallery, old, replaced)]
            shards = [*kept, *(shard for shard in made if shard.items)]
            self.gallery.change({self.version.key: self.version}, shards, f"{count} images of {self.source}")
        return report

    def _take_over(self, wanted: dict[str, ImageEntry]) -> list[Shard]:
        """Return uncommitted shards that this job would make again, and remove their images from `wanted`.

        Shards without any vector are made again: their images were unreadable and may have been repaired.
        """
        taken = []
        for shard in self.gallery.orphans():
            if shard.version == self.version.key and shard.items:
                ids = [*self.gallery.shards.items(shard)["id"], *(name for name, _ in shard.bad)]
                if all(name in wanted for name in ids) and self._name([wanted[name] for name in ids]) == shard.name:
                    taken.append(shard)
                    for name in ids:
                        del wanted[name]
        return taken

    def _plans(self, entries: Sequence[ImageEntry]) -> list[ShardPlan]:
        pixels = self.model.card.size**2 * self.model.card.channels
        count = max(1, min(LARGEST_SHARD, SHARD_BYTES // pixels))
        plans = []
        for start in range(0, len(entries), count):
            rows = tuple(entries[start : start + count])
            plans.append(
                ShardPlan(
                    name=self._name(rows),
                    gallery=str(self.gallery.root.absolute()),
                    source=self.source,
                    version=self.version.key,
                    stored_dtype=self.stored_dtype,
                    entries=rows,
                    metadata=self._metadata_of(rows),
                )
            )
        return plans

    def _name(self, entries: Sequence[ImageEntry]) -> str:
        """Return a name that depends on the images, their place and metadata, and the model's weights."""
        rows = sorted(entries, key=lambda entry: entry.id)
        known = item_frame(rows, self.source, self._metadata_of(rows)).to_csv(index=False)
        extra = f"{self.version.digest}\n{[entry.modified for entry in rows]}\n{known}"
        ids, sizes = [entry.id for entry in rows], [entry.bytes for entry in rows]
        return shard_name(self.version.key, ids, sizes, self.stored_dtype, extra)

    def _metadata_of(self, rows: Sequence[ImageEntry]) -> pd.DataFrame | None:
        if self.metadata is None:
            return None
        ids = pd.DataFrame({"id": pd.Series([entry.id for entry in rows], dtype="string")})
        return ids.merge(self.metadata, on="id", how="left", validate="one_to_one").drop(columns="id")


def without(gallery: Gallery, shard: Shard, ids: set[str]) -> list[Shard]:
    """Return the shard without some images: itself, a smaller one, or none."""
    if not ids:
        return [shard]
    items = gallery.shards.items(shard)
    stays = ~items["id"].isin(ids)
    if stays.all():
        return [shard]
    if not stays.any():
        return []
    return [rewritten(gallery, shard, items[stays], shard.version, gallery.shards.vectors(shard)[stays.to_numpy()])]


def rewritten(gallery: Gallery, shard: Shard, items: pd.DataFrame, version: str, vectors: Vectors) -> Shard:
    """Write a shard that replaces another one; the old files stay because a reader may have them open."""
    name = shard_name(f"{version}/{shard.name}", list(items["id"]), list(map(int, items["bytes"])), shard.dtype)
    return gallery.shards.write(name, version, vectors, items, shard.bad, shard.dtype)


# ---------------------------------------------------------------- one shard


def extract_here(model: Model, plans: Sequence[ShardPlan]) -> Iterable[Shard]:
    """Make the shards in this process, one after the other."""
    for plan in plans:
        yield embed_plan(model, plan, *decode(plan.source, plan.entries, model.card))


def embed_plan(model: Model, plan: ShardPlan, images: Images, bad: Sequence[BadImage]) -> Shard:
    """Embed the readable images of a plan and write the shard."""
    unreadable = {name for name, _ in bad}
    readable = np.array([entry.id not in unreadable for entry in plan.entries], np.bool_)
    rows = [entry for entry in plan.entries if entry.id not in unreadable]
    metadata = None if plan.metadata is None else plan.metadata[readable].reset_index(drop=True)
    vectors = model.embed(images)
    if not np.isfinite(vectors).all():
        raise InputError(f"{model.card.name}: its vectors are not finite")
    items = item_frame(rows, plan.source, metadata)
    store = ShardStore(at(plan.gallery) / "shards")
    return store.write(plan.name, plan.version, vectors, items, bad, plan.stored_dtype)


def item_frame(rows: Sequence[ImageEntry], source: str, metadata: pd.DataFrame | None) -> pd.DataFrame:
    """Return the items of a shard, one row per image."""
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


def read_table(path: StoragePath, option: str) -> pd.DataFrame:
    """Read a CSV or Parquet file that was given by a command-line option."""
    try:
        content = io.BytesIO(path.read_bytes())
        table = pd.read_parquet(content) if path.name.endswith(".parquet") else pd.read_csv(content, dtype="string")
        return table.astype({"id": "string"}) if "id" in table else table
    except FileNotFoundError as error:
        raise InputError(f"{option} {path}: no such file") from error
    except (ValueError, TypeError, LookupError, pa.ArrowException) as error:
        raise InputError(f"{option} {path}: does not parse ({reason(error)})") from error


def checked_metadata(metadata: pd.DataFrame, entries: Sequence[ImageEntry]) -> pd.DataFrame:
    """Return the user's columns with types that allow missing values; raise InputError if they cannot be joined."""
    for twice in metadata.columns[metadata.columns.duplicated()]:
        raise InputError(f"--metadata: the column {twice!r} is there twice")
    if "id" not in metadata or metadata["id"].duplicated().any():
        raise InputError("--metadata: it needs a column `id`, with every id once")
    taken = {*COLUMNS[1:], "version", "task", "model"} & set(metadata.columns)
    if taken:
        raise InputError(f"--metadata: the column {min(taken)!r} is the gallery's own; rename it")
    missing = set(metadata["id"]) - {entry.id for entry in entries}
    if missing:
        raise InputError(f"--metadata: {len(missing)} ids are no images here, e.g. {min(missing, key=str)!r}")
    for name in metadata.columns:
        if not isinstance(name, str):
            raise InputError(f"--metadata: the column {name!r} has no name")
        try:  # now, not when the first shard is written
            pa.array(metadata[name], from_pandas=True)
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise InputError(f"--metadata: the column {name!r} mixes kinds of values ({reason(error)})") from error
    kinds = {"i": "Int64", "u": "UInt64", "b": "boolean"}
    found = {name: metadata[name].dtype.kind for name in metadata.columns}
    return metadata.astype({name: kinds[kind] for name, kind in found.items() if kind in kinds})
