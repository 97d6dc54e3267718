"""`cl2r index`, `search`, `upgrade-check`, `export` and `serve`. Libraries are loaded by who needs them."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cl2r.cli_options import PlaceType, storage_option
from cl2r.errors import InputError
from cl2r.search.gallery_commands import gallery
from cl2r.search.options import gallery_argument, index_options, index_options_of, load_model, model_option

if TYPE_CHECKING:
    import pandas as pd

    from cl2r.files import Place
    from cl2r.rayrun.resources import Resources
    from cl2r.search.indexing import Extract, IndexReport, ShardPlan
    from cl2r.search.model import Model
    from cl2r.search.shards import Shard

FEW_SHARDS = 8
"""Up to here, Ray takes longer to start than this process to do the work."""
SAY_SECONDS = 5.0


@click.command()
@click.argument("images", type=PlaceType())
@model_option
@click.option("--gallery", type=PlaceType(), required=True, metavar="DIR", help="A folder or s3://…; made if new.")
@storage_option
@click.option("--prefix", default="", help="Put before every id, for images of several folders in one gallery.")
@click.option("--metadata", type=PlaceType(), metavar="FILE", help="CSV or Parquet with a column id, and any others.")
@click.option("--dtype", type=click.Choice(["float32", "float16"]), default="float32", show_default=True)
@click.option("--reindex", is_flag=True, help="Replace vectors of older models, too.")
@index_options[0]
@index_options[1]
@click.option("--workers", type=int, metavar="N", help="Processes that run the model, on Ray; 0: this one, without.")
@click.option("--cpus-per-worker", type=int, default=1, show_default=True)
@click.option("--gpus-per-worker", type=float, default=0.0, show_default=True)
@click.option("--accelerator", metavar="NAME", help="Only nodes with this accelerator, e.g. A100.")
@click.option("-v", "--verbose", is_flag=True, help="Ray's own messages too.")
def index(
    images: "Place",
    model: str,
    gallery: "Place",
    storage: "Place",
    prefix: str,
    metadata: "Place | None",
    dtype: Any,
    reindex: bool,
    kind: str,
    settings: tuple[str, ...],
    workers: int | None,
    cpus_per_worker: int,
    gpus_per_worker: float,
    accelerator: str | None,
    verbose: bool,
) -> None:
    """Add all images below IMAGES, a folder or s3://…, to a gallery. Stop it as you like: the same command goes on."""
    from cl2r.rayrun.resources import Resources
    from cl2r.search.gallery import Gallery
    from cl2r.search.indexing import index_images
    from cl2r.search.searching import build_indexes

    options = index_options_of(kind, settings)
    known = _read_metadata(metadata)
    resources = Resources(
        cpus_per_worker=cpus_per_worker,
        gpus_per_worker=gpus_per_worker,
        accelerator=accelerator,
        max_concurrent=workers or None,
    )
    loaded = load_model(model, storage)
    opened = Gallery.open_or_create(gallery)
    extract = _extraction(resources, workers, verbose)
    began = time.perf_counter()
    source = images.absolute() if isinstance(images, Path) else images  # ids are found again from anywhere
    report = index_images(source, opened, loaded, extract, dtype, prefix, reindex, known, click.echo)
    _tell(report, loaded.card.name, time.perf_counter() - began)
    for built in build_indexes(opened, options):
        click.echo(f"index: {built.options.kind}, {built.seconds:.1f} s, recall@10 {built.recall:.3f}")


def _read_metadata(path: "Place | None") -> "pd.DataFrame | None":
    if path is None:
        return None
    import io

    import pandas as pd
    import pyarrow as pa

    try:
        content = io.BytesIO(path.read_bytes())
        frame = pd.read_parquet(content) if path.name.endswith(".parquet") else pd.read_csv(content, dtype="string")
        return frame.astype({"id": "string"}) if "id" in frame else frame
    except FileNotFoundError as error:
        raise InputError(f"--metadata {path}: no such file") from error
    except (ValueError, TypeError, LookupError, pa.ArrowException) as error:
        raise InputError(f"--metadata {path}: does not parse ({' '.join(str(error).split())})") from error


def _extraction(resources: "Resources", workers: int | None, verbose: bool) -> "Extract":
    """This process for a few shards, Ray for many, or as asked."""

    def extract(model: "Model", plans: "Sequence[ShardPlan]") -> "Iterator[Shard]":
        from cl2r.search.indexing import extract_here

        if workers == 0 or (workers is None and len(plans) <= FEW_SHARDS):
            return _said(extract_here(model, plans), plans)
        from cl2r.rayrun.gallery import extract_on_ray

        return _said(extract_on_ray(model, plans, resources, verbose), plans)

    return extract


def _said(shards: "Iterable[Shard]", plans: "Sequence[ShardPlan]") -> "Iterator[Shard]":
    """The same, with a line now and then."""
    total, done = sum(len(plan.entries) for plan in plans), 0
    began = said = time.monotonic()
    for shard in shards:
        done += shard.items + len(shard.bad)
        if time.monotonic() - said > SAY_SECONDS:
            said = time.monotonic()
            click.echo(f"{done:,} of {total:,} images, {done / (said - began):,.0f} a second", err=True)
        yield shard


def _tell(report: "IndexReport", name: str, seconds: float) -> None:
    replaced = f", {report.replaced:,} replaced" if report.replaced else ""
    click.echo(f"{report.added:,} images added by {name}{replaced}, {report.present:,} were there; {seconds:.1f} s")
    for image, why in report.bad[:10]:
        click.echo(f"bad: {image}: {why}", err=True)
    if report.bad:
        more = ", these are the first 10; `cl2r gallery info` has the number" if len(report.bad) > 10 else ""
        click.echo(f"{len(report.bad)} images could not be read and are not in the gallery{more}", err=True)


@click.command()
@gallery_argument
@click.option("--query", "queries", type=PlaceType(), multiple=True, required=True, metavar="FILE", help="Repeatable.")
@model_option
@storage_option
@click.option("--top", default=10, show_default=True, metavar="N")
@click.option("--exact", is_flag=True, help="Compare every vector, whatever index there is.")
@click.option("--json", "as_text", is_flag=True, help="JSON instead of a table.")
@click.option("--html", "sheet", type=click.Path(path_type=Path), metavar="FILE", help="Write a contact sheet as well.")
def search(
    gallery: "Place",
    queries: "tuple[Place, ...]",
    model: str,
    storage: "Place",
    top: int,
    exact: bool,
    as_text: bool,
    sheet: Path | None,
) -> None:
    """Find the images of a gallery that are nearest to a query, whichever model of the chain indexed them."""
    import numpy as np

    from cl2r.files import write_file
    from cl2r.search import sheet as shown
    from cl2r.search.gallery import Gallery
    from cl2r.search.image_source import decode_one
    from cl2r.search.searching import Searcher

    opened = Gallery(gallery)
    loaded = load_model(model, storage)
    card, contents = loaded.card, [(str(path), _bytes(path)) for path in queries]
    images = np.concatenate([decode_one(data, name, card.size, card.channels, card.fit) for name, data in contents])
    searcher = Searcher(opened, loaded, exact)
    results = searcher.search(images, top)
    names = [name for name, _ in contents]
    if searcher.carried:
        click.echo(
            f"note: {searcher.carried:,} vectors of older models were mapped on the way; "
            f"`cl2r gallery adapt {gallery} --model {model}` stores them",
            err=True,
        )
    if as_text:
        click.echo(shown.as_json(names, results))
    else:
        for name, hits in zip(names, results, strict=True):
            click.echo(f"{name}\n{shown.as_table(hits)}")
    if sheet is not None:
        page = shown.contact_sheet(contents, results, f"{opened.commit.items:,} images searched by {card.name}")
        write_file(sheet, page.encode())
        click.echo(f"contact sheet: {sheet}", err=True)


def _bytes(path: "Place") -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InputError(f"--query {path}: no such image") from error


@click.command("upgrade-check")
@gallery_argument
@click.option("--old", required=True, metavar="RUN@k", help="The model that indexed the gallery.")
@click.option("--new", required=True, metavar="RUN@t", help="The model that is to search it.")
@click.option("--pairs", type=PlaceType(), metavar="FILE", help="CSV or Parquet: query, gallery (ids), same (0 or 1).")
@click.option("--sample", default=2000, show_default=True, help="Without --pairs: drawn from the gallery's labels.")
@click.option("--tolerance", default=0.01, show_default=True, help="Loss of accuracy that still counts as safe.")
@click.option("--price", default=4.10, show_default=True, metavar="USD", help="An hour of a machine like this one.")
@storage_option
@click.option("--json", "as_text", is_flag=True, help="JSON instead of lines.")
def upgrade_check(
    gallery: "Place",
    old: str,
    new: str,
    pairs: "Place | None",
    sample: int,
    tolerance: float,
    price: float,
    storage: "Place",
    as_text: bool,
) -> None:
    """Say whether an upgrade is safe without indexing again, what indexing again would gain, and what it would cost."""
    from cl2r.search import upgrade
    from cl2r.search.gallery import Gallery

    if tolerance < 0 or price < 0:
        raise InputError("--tolerance and --price: not below 0")
    opened = Gallery(gallery)
    before, after = load_model(old, storage), load_model(new, storage)
    chosen = upgrade.read_pairs(pairs) if pairs is not None else upgrade.draw_pairs(opened, sample)
    found, verdict = upgrade.check_upgrade(opened, before, after, chosen, tolerance)
    if as_text:
        click.echo(json.dumps({"old": before.card.name, "new": after.card.name, "verdict": verdict, **asdict(found)}))
        return
    matrix = upgrade.run_matrix(after.card.run, storage)
    lines = upgrade.report_lines(opened, before, after, found, verdict, tolerance, price, matrix)
    click.echo("\n".join(lines))


@click.command("export")
@click.argument("model", metavar="RUN@t")
@click.argument("out", type=PlaceType(), metavar="DIR")
@storage_option
def export_model(model: str, out: "Place", storage: "Place") -> None:
    """Write a model as safetensors and JSON, to be used as --model DIR where its run is not."""
    from cl2r.search.snapshot import find_snapshot, write_export

    snapshot = find_snapshot(model, storage)
    write_export(snapshot, out)
    click.echo(f"{snapshot.card.name}: {out}")


@click.command()
@gallery_argument
@model_option
@storage_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Others than loopback let the network in.")
@click.option("--port", default=8000, show_default=True)
@click.option("--top", default=12, show_default=True, help="Hits a search.")
@click.option("--replicas", default=1, show_default=True, help="Processes that answer.")
@click.option("--max-bytes", default=10_000_000, show_default=True, help="Of an uploaded image.")
@click.option("--name", "names", multiple=True, metavar="HOST", help="A name it is reached by, e.g. behind a proxy.")
@click.option("-v", "--verbose", is_flag=True, help="Ray's own messages too.")
def serve(
    gallery: "Place",
    model: str,
    storage: "Place",
    host: str,
    port: int,
    top: int,
    replicas: int,
    max_bytes: int,
    names: tuple[str, ...],
    verbose: bool,
) -> int:
    """Answer searches over HTTP, with a page to try it, until Ctrl-C. No authentication: keep it on loopback."""
    from cl2r.rayrun.serving import serve

    return serve(gallery, model, storage, host, port, top, replicas, max_bytes, names, verbose=verbose)


COMMANDS: tuple[click.Command, ...] = (index, search, gallery, upgrade_check, export_model, serve)
