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
from cl2r.gallery.images import decode, list_images
from cl2r.gallery.model import Images, Model
from cl2r.storage.path import StoragePath, at

SHARD_BYTES, LARGEST_SHARD = 2**25, 4096  # A shard has at most this many bytes of decoded pixels, and this many images


@dataclass(frozen=True)
class ShardPlan:
    """Images that become one shard; plain data that can be sent to other processes."""

    name: str
    gallery: str  # where it is
    gallery_id: str
    version: str
    stored_dtype: StoredDtype
    items: pd.DataFrame  # one row per image: the gallery's own columns, then the user's metadata


Extract = Callable[[Model, Sequence[ShardPlan]], Iterable[Shard]]
"""Makes shards from plans, in any order: in this process (`extract_here`) or on a cluster (`cl2r.rayrun.extract`)."""


@dataclass
class IndexReport:
    """What an index job did, as numbers of images."""

    present: int  # in the gallery before
    added: int = 0
    replaced: int = 0
    taken_over: int = 0  # in shards that an earlier, stopped job had left behind
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
        self.gallery.check_model(self.model.version)
        self.listed = list_images(self.root, self.prefix)
        items = self.listed[list(COLUMNS)]
        if self.metadata is not None:
            known = checked_metadata(self.metadata, items["id"])
            items = items.merge(known, on="id", how="left", validate="one_to_one")
        with self.gallery.writing():
            self.gallery.check_model(self.model.version)  # another writer may have used a later model
            return self._run(items)

    def _run(self, items: pd.DataFrame) -> IndexReport:
        version, there = self.model.version, self.gallery.items()
        current = there.loc[there["version"] == version.key, "id"] if self.reindex else there["id"]
        wanted = items[~items["id"].isin(current)]
        report = IndexReport(present=len(items) - len(wanted))
        if wanted.empty:
            return report
        reused, rest = self._take_over(wanted)
        report.taken_over = sum(shard.items for shard in reused)
        pixels = self.model.card.size**2 * self.model.card.channels
        most, root = max(1, min(LARGEST_SHARD, SHARD_BYTES // pixels)), str(self.gallery.root.absolute())
        parts = [rest.iloc[start : start + most] for start in range(0, len(rest), most)]
        owner = (root, self.gallery.id, version.key, self.stored_dtype)
        plans = [ShardPlan(self._name(part), *owner, part) for part in parts]
        by_name = {shard.name: shard for shard in [*reused, *(self.extract(self.model, plans) if plans else ())]}
        lost = {plan.name for plan in plans} - by_name.keys()
        if lost:
            raise RuntimeError(f"{len(lost)} of {len(plans)} shards were not made; run the same command to resume")
        made = [by_name[name] for name in sorted(by_name)]
        report.bad = sorted(bad for shard in made for bad in shard.bad)
        replaced = set(there["id"]) & set(wanted["id"]) - {name for name, _ in report.bad}
        count = sum(shard.items for shard in made)
        report.added, report.replaced = count - len(replaced), len(replaced)
        if count:
            kept = [shard for old in self.gallery.commit.shards for shard in without(self.gallery, old, replaced)]
            shards = [*kept, *(shard for shard in made if shard.items)]
            self.gallery.change({version.key: version}, shards, f"{count} images of {items['source'].iloc[0]}")
        return report

    def _take_over(self, wanted: pd.DataFrame) -> tuple[list[Shard], pd.DataFrame]:
        """Return the uncommitted shards that this job would make again, and the images that are in none of them.

        Shards without any vector are made again: their images were unreadable and may have been repaired.
        """
        ids, left, taken = pd.Index(wanted["id"]), np.ones(len(wanted), np.bool_), []
        for shard in self.gallery.orphans():
            if shard.version == self.model.version.key and shard.items:
                rows = ids.get_indexer([*self.gallery.shards.items(shard)["id"], *(name for name, _ in shard.bad)])
                if (rows >= 0).all() and left[rows].all() and self._name(wanted.iloc[rows]) == shard.name:
                    taken.append(shard)
                    left[rows] = False
        return taken, wanted[left]

    def _name(self, rows: pd.DataFrame) -> str:
        """Return a name that depends on the images, their place and metadata, and the model's weights."""
        rows, version = rows.sort_values("id"), self.model.version
        modified = self.listed.loc[rows.index, "modified"].tolist()
        extra = f"{version.digest}\n{modified}\n{rows.to_csv(index=False)}"
        return shard_name(version.key, rows["id"].tolist(), rows["bytes"].tolist(), self.stored_dtype, extra)


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
    name = shard_name(f"{version}/{shard.name}", items["id"].tolist(), items["bytes"].tolist(), shard.dtype)
    return gallery.shards.write(name, version, vectors, items, list(shard.bad), shard.dtype)


def extract_here(model: Model, plans: Sequence[ShardPlan]) -> Iterable[Shard]:
    """Make the shards in this process, one after the other."""
    for plan in plans:
        yield embed_plan(model, plan, *decode(plan.items, model.card))


def embed_plan(model: Model, plan: ShardPlan, images: Images, bad: list[BadImage]) -> Shard:
    """Embed the readable images of a plan and write the shard."""
    vectors = model.embed(images)
    if not np.isfinite(vectors).all():
        raise InputError(f"{model.card.name}: its vectors are not finite; its training diverged, use another model")
    items = plan.items[~plan.items["id"].isin([name for name, _ in bad])].reset_index(drop=True)
    store = ShardStore(at(plan.gallery) / "shards", plan.gallery_id)
    return store.write(plan.name, plan.version, vectors, items, bad, plan.stored_dtype)


def read_table(path: StoragePath, option: str) -> pd.DataFrame:
    """Read a CSV or Parquet file that was given by a command-line option."""
    try:
        content = io.BytesIO(path.read_bytes())
        table = pd.read_parquet(content) if path.name.endswith(".parquet") else pd.read_csv(content, dtype="string")
        return table.astype({"id": "string"}) if "id" in table else table
    except FileNotFoundError as error:
        raise InputError(f"{option} {path}: no such file; give a CSV or Parquet file") from error
    except (ValueError, TypeError, LookupError, pa.ArrowException) as error:
        raise InputError(
            f"{option} {path}: does not parse ({reason(error)}); write it as CSV in UTF-8, or as Parquet"
        ) from error


def checked_metadata(metadata: pd.DataFrame, ids: "pd.Series[str]") -> pd.DataFrame:
    """Return the user's columns with types that allow missing values; raise InputError if they cannot be joined."""
    for twice in metadata.columns[metadata.columns.duplicated()]:
        raise InputError(f"--metadata: the column {twice!r} is there twice; rename one")
    if "id" not in metadata or metadata["id"].duplicated().any():
        raise InputError("--metadata: it needs a column `id`, with every id once; ids are paths below IMAGES")
    taken = {*COLUMNS[1:], "version", "task", "model"} & set(metadata.columns)
    if taken:
        raise InputError(f"--metadata: the column {min(taken)!r} is the gallery's own; rename it")
    missing = set(metadata["id"]) - set(ids)
    if missing:
        there = f"{len(missing)} ids are no images here, e.g. {min(missing, key=str)!r}"
        raise InputError(f"--metadata: {there}; ids are paths like {ids.iloc[0]}, correct or remove the others")
    for name in metadata.columns:
        if not isinstance(name, str):
            raise InputError(f"--metadata: the column {name!r} has no name; give it one")
        try:  # now, not when the first shard is written
            pa.array(metadata[name], from_pandas=True)
        except (pa.ArrowException, ValueError, TypeError) as error:
            mixed = f"the column {name!r} mixes kinds of values ({reason(error)})"
            raise InputError(f"--metadata: {mixed}; store it as one kind") from error
    kinds = {"i": "Int64", "u": "UInt64", "b": "boolean"}
    found = {name: metadata[name].dtype.kind for name in metadata.columns}
    return metadata.astype({name: kinds[kind] for name, kind in found.items() if kind in kinds})
