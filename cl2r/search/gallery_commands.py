"""`cl2r gallery`: look at a gallery, check it, hand it on, build its index, bring it to a newer model's space."""

from typing import TYPE_CHECKING

import click

from cl2r.cli_options import PlaceType, storage_option
from cl2r.search.options import gallery_argument, index_options, index_options_of, load_model, model_option

if TYPE_CHECKING:
    from cl2r.files import Place


@click.group()
def gallery() -> None:
    """Look at a gallery, check it, hand it on, build its index, bring it to a newer model's space."""


@gallery.command()
@gallery_argument
def info(gallery: "Place") -> None:
    """What it holds: images, vectors by model, indexes."""
    from cl2r.search.gallery import Gallery
    from cl2r.search.upkeep import describe

    click.echo("\n".join(describe(Gallery(gallery))))


@gallery.command()
@gallery_argument
@click.option("--prune", is_flag=True, help="Remove vectors that no longer count: replaced, or of stopped jobs.")
def verify(gallery: "Place", prune: bool) -> int:
    """Check every file against its checksum, every vector's length, every id. Exit code 1 if anything is wrong."""
    from cl2r.search.gallery import Gallery
    from cl2r.search.upkeep import unused, verify

    opened = Gallery(gallery)
    with opened.writing():
        wrong = verify(opened, prune)
    for line in wrong:
        click.echo(f"wrong: {line}")
    left = unused(opened)
    note = f"; {left} shards no longer count, --prune removes them" if left else ""
    click.echo(f"{opened.commit.items:,} images in {len(opened.commit.shards)} shards, {len(wrong)} wrong{note}")
    return 1 if wrong else 0


@gallery.command("export")
@gallery_argument
@click.argument("out", type=PlaceType(), metavar="FILE.parquet")
def export_gallery(gallery: "Place", out: "Place") -> None:
    """One Parquet file: id, label, metadata, model and vector of every image."""
    from cl2r.search.gallery import Gallery
    from cl2r.search.upkeep import export

    click.echo(f"{export(Gallery(gallery), out):,} images: {out}")


@gallery.command()
@gallery_argument
@index_options[0]
@index_options[1]
def build(gallery: "Place", kind: str, settings: tuple[str, ...]) -> None:
    """Build the FAISS index of every model's vectors anew."""
    from cl2r.search.gallery import Gallery
    from cl2r.search.searching import build_indexes

    opened = Gallery(gallery)
    with opened.writing():
        made = build_indexes(opened, index_options_of(kind, settings), again=True)
    for built in made:
        name = opened.commit.versions[built.version].name
        click.echo(
            f"{built.options.kind} of {name}: {built.rows:,} vectors, {built.bytes / 1e6:.1f} MB, "
            f"{built.seconds:.1f} s, recall@10 {built.recall:.3f}"
        )
    if not made:
        click.echo("nothing to build: so few vectors are searched exactly")


@gallery.command()
@gallery_argument
@model_option
@storage_option
def adapt(gallery: "Place", model: str, storage: "Place") -> None:
    """Bring stored vectors to a newer model's space, for methods that map their gallery (FAN)."""
    from cl2r.search.gallery import Gallery
    from cl2r.search.upkeep import adapt

    done = adapt(Gallery(gallery), load_model(model, storage), lambda line: click.echo(line, err=True))
    click.echo(f"{done.vectors:,} vectors mapped in {done.seconds:.1f} s, {done.flops / 1e9:.2f} GFLOP")
