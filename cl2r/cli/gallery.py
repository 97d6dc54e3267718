"""`cl2r index`, `search`, `gallery`, `upgrade-check`, `export` and `serve`. Each command imports what it needs."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cl2r.cli.options import HelpGroup, NameType, PathType, storage_option, verbose_option
from cl2r.errors import InputError

if TYPE_CHECKING:
    from cl2r.gallery.gallery import Gallery, Shard
    from cl2r.gallery.index import IndexOptions
    from cl2r.gallery.indexing import ShardPlan
    from cl2r.gallery.model import Model
    from cl2r.storage.path import StoragePath

FEW_SHARDS = 8  # up to here, starting Ray takes longer than doing the work in this process
SAY_SECONDS = 5.0
MODEL = NameType("model")
MODEL_HELP = (
    "A run's model after task t, or the folder of an exported model. The beginning of a run's name is enough; "
    "of several runs that match, the newest is taken."
)


class GalleryType(PathType):
    """The path of a gallery, which is opened."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if ctx is not None and ctx.resilient_parsing:  # the shell completes another word
            return value
        from cl2r.gallery.gallery import Gallery

        return Gallery(super().convert(value, param, ctx))


model_option = click.option("--model", type=MODEL, required=True, metavar="RUN@t", help=MODEL_HELP)
gallery_argument = click.argument("gallery", type=GalleryType())


def with_index_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --index and --index-option, which arrive as `index` and `index_option`."""
    command = click.option("--index-option", multiple=True, metavar="NAME=N", help="nlist, nprobe, links, …")(command)
    return click.option("--index", default="auto", show_default=True, help="auto, exact, ivf, hnsw or pq.")(command)


def _index_options(kind: str, settings: Sequence[str]) -> "IndexOptions":
    from cl2r.gallery.index import IndexOptions

    numbers: dict[str, Any] = {}
    known = [name for name in IndexOptions.__dataclass_fields__ if name != "kind"]
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in known or not value.isdecimal():
            raise InputError(f"--index-option {setting}: give NAME=NUMBER with one of {', '.join(known)}")
        numbers[name] = int(value)
    return IndexOptions(kind, **numbers)  # type: ignore[arg-type]  # checked by the class


def _load_model(name: str, storage: "StoragePath") -> "Model":
    from cl2r.gallery.model import Model, find_model

    return Model(find_model(name, storage))


@click.command()
@click.argument("images", type=PathType())
@model_option
@click.option(
    "--gallery", type=PathType(), required=True, metavar="DIR", help="A folder or s3://…; created if missing."
)
@storage_option
@click.option("--prefix", default="", help="Put before every id, for images of several folders in one gallery.")
@click.option("--metadata", type=PathType(), metavar="FILE", help="CSV or Parquet with a column id and any others.")
@click.option("--dtype", type=click.Choice(["float32", "float16"]), default="float32", show_default=True)
@click.option("--reindex", is_flag=True, help="Replace vectors by older models as well.")
@with_index_options
@click.option("--workers", type=int, metavar="N", help="Processes on Ray that run the model; 0: this one, no Ray.")
@click.option("--cpus-per-worker", type=int, default=1, show_default=True)
@click.option("--gpus-per-worker", type=float, default=0.0, show_default=True)
@click.option("--accelerator", metavar="NAME", help="Use only nodes with this accelerator, e.g. A100.")
@verbose_option
def index(
    images: "StoragePath",
    model: str,
    gallery: "StoragePath",
    storage: "StoragePath",
    prefix: str,
    metadata: "StoragePath | None",
    dtype: Any,
    reindex: bool,
    index: str,
    index_option: tuple[str, ...],
    workers: int | None,
    verbose: bool,
    **per_worker: Any,
) -> None:
    """Add all images below IMAGES, a folder or s3://…, to a gallery. If stopped, run the same command to resume."""
    from cl2r.gallery.gallery import Gallery
    from cl2r.gallery.index import build_indexes
    from cl2r.gallery.indexing import IndexJob, extract_here, read_table
    from cl2r.study.resources import Resources

    options = _index_options(index, index_option)
    known = None if metadata is None else read_table(metadata, "--metadata")
    resources = Resources(max_concurrent=workers or None, **per_worker)
    loaded = _load_model(model, storage)
    opened = Gallery.open_or_create(gallery)
    began = time.perf_counter()

    def extract(model: "Model", plans: "Sequence[ShardPlan]") -> "Iterator[Shard]":
        """Make the shards in this process if they are few, on Ray if they are many, or as asked."""
        shards = extract_here(model, plans)
        if workers or (workers is None and len(plans) > FEW_SHARDS):
            from cl2r.rayrun.extract import extract_on_ray

            shards = extract_on_ray(model, plans, resources, verbose)
        total, done = sum(len(plan.items) for plan in plans), 0
        started = said = time.perf_counter()
        for shard in shards:
            done += shard.items + len(shard.bad)
            if time.perf_counter() - said > SAY_SECONDS:
                said = time.perf_counter()
                click.echo(f"{done:,} of {total:,} images, {done / (said - started):,.0f} per second", err=True)
            yield shard

    report = IndexJob(images, opened, loaded, extract, dtype, prefix, reindex, known).run()
    replaced = f", {report.replaced:,} replaced" if report.replaced else ""
    resumed = f", {report.taken_over:,} of them extracted by an earlier job" if report.taken_over else ""
    seconds = time.perf_counter() - began
    added = f"{report.added:,} images added by {loaded.card.name}{resumed}{replaced}"
    click.echo(f"{added}, {report.present:,} were there; {seconds:.1f} s")
    for image, why in report.bad[:10]:
        click.echo(f"bad: {image}: {why}", err=True)
    if report.bad:
        more = "; these are the first 10, `cl2r gallery info` has the number" if len(report.bad) > 10 else ""
        click.echo(f"{len(report.bad)} images could not be read and are not in the gallery{more}", err=True)
    for built in build_indexes(opened, options):
        click.echo(f"index: {built.options.kind}, {built.seconds:.1f} s, recall@10 {built.recall:.3f}")


@click.command()
@gallery_argument
@click.option("--query", "queries", type=PathType(), multiple=True, required=True, metavar="FILE", help="Repeatable.")
@model_option
@storage_option
@click.option("--top", default=10, show_default=True, metavar="N")
@click.option("--exact", is_flag=True, help="Compare every vector, even if there is an index.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--html", "sheet", type=click.Path(path_type=Path), metavar="FILE", help="Write a contact sheet as well.")
def search(
    gallery: "Gallery",
    queries: "tuple[StoragePath, ...]",
    model: str,
    storage: "StoragePath",
    top: int,
    exact: bool,
    as_json: bool,
    sheet: Path | None,
) -> None:
    """Find the images of a gallery that are nearest to a query, whichever model of the chain indexed them."""
    import numpy as np

    from cl2r.gallery import contact_sheet
    from cl2r.gallery.images import decode_one
    from cl2r.gallery.search import Searcher
    from cl2r.storage.path import at

    loaded, contents = _load_model(model, storage), []
    for path in queries:
        try:
            contents.append((str(path), path.read_bytes()))
        except (FileNotFoundError, IsADirectoryError) as error:
            raise InputError(f"--query {path}: no such image; give an image file") from error
    images = np.concatenate([decode_one(data, name, loaded.card) for name, data in contents])
    searcher = Searcher(gallery, loaded, exact)
    results = searcher.search(images, top)
    if searcher.mapped:
        stored = f"`cl2r gallery adapt {gallery.root} --model {model}` stores them"
        click.echo(f"note: {searcher.mapped:,} vectors of older models were mapped for this search; {stored}", err=True)
    answers = [(name, hits) for (name, _), hits in zip(contents, results, strict=True)]
    if as_json:
        entries = [{"query": name, "hits": [asdict(hit) for hit in hits]} for name, hits in answers]
        click.echo(json.dumps(entries, indent=1, default=str))
    else:
        for name, hits in answers:
            click.echo(f"{name}\n{contact_sheet.as_table(hits)}")
    if sheet is not None:
        title = f"{gallery.commit.items:,} images searched by {loaded.card.name}"
        at(sheet).write_file(contact_sheet.contact_sheet(contents, results, title).encode())
        click.echo(f"contact sheet: {sheet}", err=True)


@click.command()
@click.argument("gallery", type=PathType())
@model_option
@storage_option
@click.option(
    "--old",
    type=MODEL,
    metavar="RUN@k",
    help="An older model whose hits the page shows beside, or none; default: the oldest one in the gallery.",
)
@click.option(
    "--check",
    type=PathType(),
    metavar="FILE",
    help="What `cl2r upgrade-check --json` printed; without it, the service checks the upgrade itself.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Anything but loopback lets the network in.")
@click.option("--port", default=8000, show_default=True)
@click.option("--top", default=12, show_default=True, help="Hits per search.")
@click.option("--replicas", default=1, show_default=True, help="Processes that answer.")
@click.option(
    "--max-bytes", "most_bytes", default=10_000_000, show_default=True, help="Largest image that may be uploaded."
)
@click.option(
    "--name", "names", type=str.lower, multiple=True, metavar="HOST", help="A further host name, e.g. behind a proxy."
)
@verbose_option
def serve(
    gallery: "StoragePath",
    model: str,
    storage: "StoragePath",
    old: str | None,
    check: "StoragePath | None",
    port: int,
    replicas: int,
    verbose: bool,
    **options: Any,
) -> int:
    """Answer searches over HTTP, with a page to try it, until Ctrl-C. There is no login: keep it on loopback."""
    from cl2r.gallery.service import ServiceOptions
    from cl2r.rayrun.serve import serve

    chosen = ServiceOptions(str(gallery.resolve()), **options)
    return serve(chosen, model, storage, port, replicas, verbose, old, check)


@click.command("upgrade-check")
@gallery_argument
@click.option("--old", type=MODEL, required=True, metavar="RUN@k", help="The model that indexed the gallery.")
@click.option("--new", type=MODEL, required=True, metavar="RUN@t", help="The model that is to search it.")
@click.option("--pairs", type=PathType(), metavar="FILE", help="CSV or Parquet: query, gallery (ids), same (0 or 1).")
@click.option("--sample", default=2000, show_default=True, help="Pairs to draw from the gallery's labels.")
@click.option("--tolerance", default=0.01, show_default=True, help="Loss of accuracy that still counts as safe.")
@click.option("--price", default=4.10, show_default=True, metavar="USD", help="One hour of a machine like this one.")
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
def upgrade_check(
    gallery: "Gallery",
    old: str,
    new: str,
    pairs: "StoragePath | None",
    sample: int,
    tolerance: float,
    price: float,
    storage: "StoragePath",
    as_json: bool,
) -> int:
    """Say whether an upgrade is safe without indexing again, what indexing again would gain, and what it would cost.

    The exit code can guard a deployment: 0 if the upgrade is safe, 3 if it is not, 4 if the pairs do not tell.
    """
    from cl2r.gallery.model import Model, find_models
    from cl2r.gallery.upgrade import EXIT_CODES, UpgradeCheck, draw_pairs, read_pairs, run_matrix

    for option, value in (("--tolerance", tolerance), ("--price", price)):
        if not value >= 0:
            raise InputError(f"{option} {value}: give a number that is not below 0")
    before, after = map(Model, find_models({"--old": old, "--new": new}, storage))
    chosen = draw_pairs(gallery, sample) if pairs is None else read_pairs(pairs)
    check = UpgradeCheck(gallery, before, after)
    found = check.sample(chosen)
    verdict = found.verdict(tolerance)
    if as_json:
        click.echo(check.answer(found, tolerance).model_dump_json())
    else:
        click.echo("\n".join(check.report_lines(found, run_matrix(after.card.run, storage), tolerance, price)))
    return EXIT_CODES[verdict]


@click.command()
@click.argument("model", type=MODEL, metavar="RUN@t")
@click.argument("out", type=PathType(), metavar="DIR")
@storage_option
def export(model: str, out: "StoragePath", storage: "StoragePath") -> None:
    """Write a model as safetensors and JSON, to be used as --model DIR without its run."""
    from cl2r.gallery.model import find_model, write_export

    files = find_model(model, storage, "model")
    write_export(files, out)
    click.echo(f"{files.card.name}: {out}")


@click.group(cls=HelpGroup, subcommand_metavar="[COMMAND] [ARGS]...")
def gallery() -> None:
    """Describe a gallery, verify it, export it, build its index, map it to a newer model's space."""


@gallery.command()
@gallery_argument
def info(gallery: "Gallery") -> None:
    """Show what a gallery holds: images, vectors by model, indexes."""
    from cl2r.gallery.maintenance import info_lines

    click.echo("\n".join(info_lines(gallery)))


@gallery.command()
@gallery_argument
@click.option("--prune", is_flag=True, help="Remove vectors that no longer count: replaced, or of stopped jobs.")
def verify(gallery: "Gallery", prune: bool) -> int:
    """Check every file against its checksum, every vector's length and every id. Exit code 1 if there are problems."""
    from cl2r.gallery.maintenance import verify

    with gallery.writing():
        problems = verify(gallery, prune)
    for line in problems:
        click.echo(f"problem: {line}")
    left, commit = len(gallery.uncommitted()), gallery.commit
    note = f"; {left} shards no longer count, --prune removes them" if left else ""
    click.echo(f"{commit.items:,} images in {len(commit.shards)} shards, {len(problems)} problems{note}")
    return 1 if problems else 0


@gallery.command("export")
@gallery_argument
@click.argument("out", type=PathType(), metavar="FILE.parquet")
def export_gallery(gallery: "Gallery", out: "StoragePath") -> None:
    """Write one Parquet file with id, label, metadata, model and vector of every image."""
    from cl2r.gallery.maintenance import export

    click.echo(f"{export(gallery, out):,} images: {out}")


@gallery.command()
@gallery_argument
@with_index_options
def build(gallery: "Gallery", index: str, index_option: tuple[str, ...]) -> None:
    """Rebuild the FAISS index of every model."""
    from cl2r.gallery.index import build_indexes

    with gallery.writing():
        made = build_indexes(gallery, _index_options(index, index_option), again=True)
    for built in made:
        name = gallery.commit.versions[built.version].name
        size = f"{built.rows:,} vectors, {built.bytes / 1e6:.1f} MB"
        click.echo(f"{built.options.kind} of {name}: {size}, {built.seconds:.1f} s, recall@10 {built.recall:.3f}")
    if not made:
        click.echo("nothing to build: so few vectors are searched exactly")


@gallery.command()
@gallery_argument
@model_option
@storage_option
def adapt(gallery: "Gallery", model: str, storage: "StoragePath") -> None:
    """Map stored vectors to a newer model's space, for methods that map their gallery (FAN)."""
    from cl2r.gallery.maintenance import adapt

    loaded, cost, began = _load_model(model, storage), (0, 0.0), time.perf_counter()
    for cost in adapt(gallery, loaded):
        click.echo(f"{cost[0]:,} vectors mapped", err=True)
    click.echo(f"{cost[0]:,} vectors mapped in {time.perf_counter() - began:.1f} s, {cost[1] / 1e9:.2f} GFLOP")
