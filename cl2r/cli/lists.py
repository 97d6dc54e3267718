"""`cl2r methods` and `cl2r datasets`: what there is, and what to do with a data set."""

from collections.abc import Iterable
from pathlib import Path

import click

from cl2r.cli.options import NameType
from cl2r.errors import InputError
from cl2r.runtime.logs import without_secrets


@click.command()
@click.argument("names", nargs=-1, type=NameType("method"))
def methods(names: tuple[str, ...]) -> None:
    """List the methods, or say all about some of them.

    The list has their papers, the state that a method carries from task to task, its feature φ, the config fields that
    it sets and its options. With NAMES: what a method or an adapter does, its formula, its source, where it differs
    from that, and its options with defaults and ranges.
    """
    from cl2r.config.methods import ADAPTERS, METHODS, method_info, split_name

    if names:
        from cl2r.cli.method_page import adapter_page, method_page, symbols

        bases = {info.name: method_page(info) for info in map(method_info, names)}
        adapters = {split_name(name)[1]: None for name in names if split_name(name)[1] != "none"}
        pages = bases | {f"+{name}": adapter_page(ADAPTERS[name]) for name in adapters}
        for name, lines in pages.items():
            _print_entry(name, max(map(len, pages)), lines)
        _print_entry("symbols", max(map(len, pages)), symbols())
    else:
        _list_methods()
    for line in [*METHODS.errors, *ADAPTERS.errors]:
        click.echo(f"not loaded: {line}", err=True)


def _list_methods() -> None:
    from cl2r.cli.method_page import settings
    from cl2r.config.methods import ADAPTERS, METHODS

    width = max(map(len, [*METHODS, *ADAPTERS]))
    for info in METHODS.values():
        lines = [info.title, info.paper, f"carries {info.carries}; φ: {info.feature}", f"sets {settings(info)}"]
        if info.options is not None:
            options = {key: option.default for key, option in info.options.model_fields.items()}
            lines.append("options " + ", ".join(f"{info.section}.{key}={value}" for key, value in options.items()))
        _print_entry(info.name, width, lines)
    click.echo("\nAdapters of stored features; add one to any method with a plus sign, e.g. er+procrustes:")
    for adapter in ADAPTERS.values():
        _print_entry(adapter.name, width, [adapter.title, adapter.paper])
    click.echo("\nFormula, deviations and ranges of options: `cl2r methods NAME`, e.g. `cl2r methods cl2r er+slerp`.")


def _print_entry(name: str, width: int, lines: Iterable[str]) -> None:
    """Print a name and, in a column beside it, what there is to say about it."""
    for number, line in enumerate(lines):
        click.echo(f"{'' if number else name:<{width}}  {line}")


@click.group(invoke_without_command=True)
@click.pass_context
def datasets(context: click.Context) -> None:
    """List, check, download or write out data sets.

    ROOT is the folder that holds the benchmark data sets (default: $CL2R_DATA, or data).
    """
    if context.invoked_subcommand is None:
        context.invoke(list_datasets)


name_argument = click.argument("name", type=NameType("data set"))
root_argument = click.argument("root", required=False, type=click.Path(path_type=Path))


@datasets.command("list")
def list_datasets() -> None:
    """List the data sets, and how to bring your own."""
    from cl2r.data import DATASETS
    from cl2r.data.folders import LAYOUT

    margin = max(map(len, DATASETS)) + 1
    for name, entry in DATASETS.items():
        height, width, channels = entry.image_shape
        size = f"{entry.images_text} of {height}x{width}x{channels}"
        lines = [entry.description, f"{entry.classes:,} classes to learn; open: {entry.open_set}; {size}"]
        lines += [f"below the root: {entry.layout}"] if entry.layout else []
        _print_entry(name, margin, [*lines, f"licence: {entry.licence}"])
    arrays = "x_train, y_train, x_open, y_open (uint8 N x H x W [x C]; integer or text labels)"
    _print_entry("FILE.npz", margin, [arrays])
    _print_entry("DIR", margin, [LAYOUT])
    for line in DATASETS.errors:
        click.echo(f"not loaded: {line}", err=True)


@datasets.command()
@name_argument
@root_argument
@click.option("--full", is_flag=True, help="Decode every image, not only one of each part.")
def check(name: str, root: Path | None, full: bool) -> int:
    """Report what ROOT holds of data set NAME, and how to get the rest. Exit code 2 if it cannot be used."""
    from cl2r.data import check_dataset, data_root, find_dataset
    from cl2r.runtime.progress import announced

    def echo(line: str) -> None:
        click.echo(without_secrets(line))

    root = data_root(root)
    with announced(f"looking at {name} in {without_secrets(str(root))}…"):
        result = check_dataset(name, root, full, echo)
    lines = [*(f"ok     {line}" for line in result.found), *(f"wrong  {line}" for line in result.problems)]
    summary = "complete"
    if not result.complete:
        lines.append(f"get it {find_dataset(name).instructions}")
        summary = f"{len(result.problems)} problem{'s' if len(result.problems) > 1 else ''}"
    echo("\n".join([*lines, f"{name} in {root}: {summary}"]))
    return 0 if result.complete else 2


@datasets.command()
@name_argument
@root_argument
def download(name: str, root: Path | None) -> None:
    """Fetch the freely available part of data set NAME into ROOT."""
    from cl2r.data import data_root, find_dataset
    from cl2r.data.download import download as fetch

    fetch(find_dataset(name), data_root(root), click.echo)


@datasets.command("open-images")
@name_argument
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="[ROOT] OUT")
def open_images(name: str, folders: tuple[Path, ...]) -> None:
    """Write the open images of data set NAME as PNG files to the folder OUT."""
    from cl2r.data import DATASETS, data_root, load_dataset
    from cl2r.data.images import write_open_images

    *root, out = folders
    if len(root) > 1:
        raise InputError(f"datasets open-images: give [ROOT] OUT, not {len(folders)} folders")
    height, _, channels = DATASETS[name].image_shape if name in DATASETS else (32, 32, 3)
    dataset = load_dataset(name, height, channels, str(data_root(*root)))
    click.echo(f"{write_open_images(dataset, out):,} images: {out}")
