"""The command line. Light to start: torch is imported by the commands that train."""

import importlib
import sys
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml
from click.shell_completion import CompletionItem, get_completion_class

from cl2r import __version__
from cl2r.calibrate_command import calibrate
from cl2r.cli_options import PlaceType, storage_option
from cl2r.config import Config, field_keys
from cl2r.errors import InputError, exit_code, nearest
from cl2r.layers import from_dotted, override, presets, read_layer, resolve
from cl2r.methods.catalog import ADAPTERS, METHODS, complaints, method_info, sections, split_name
from cl2r.privacy import without_secrets
from cl2r.search.commands import COMMANDS

if TYPE_CHECKING:
    from cl2r.files import Place
    from cl2r.stopping import Termination


class KeyType(click.ParamType):  # type: ignore[type-arg]  # generic in recent click only
    """KEY=VALUE whose keys complete in the shell."""

    name = "key=value"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Config fields, each followed by `=`."""
        keys = (f"{key}=" for key in field_keys())
        return [CompletionItem(key) for key in keys if key.startswith(incomplete)]


def _complete_presets(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in presets() if name.startswith(incomplete)]


def _complete_methods(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    base, plus, adapter = incomplete.partition("+")
    if plus:
        return [f"{base}+{name}" for name in ADAPTERS if name.startswith(adapter)]
    return [name for name in METHODS if name.startswith(incomplete)]


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cl2r", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Train chains of models, search old galleries with new ones, measure whether it still works."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@cli.command()
@click.argument("preset", default="icons", shell_complete=_complete_presets)
@click.option("--data", metavar="PATH", help="A data set by name, an .npz file or a folder.")
@click.option("--data-root", metavar="DIR", help="Where benchmarks lie (default: $CL2R_DATA, or data).")
@click.option("--tasks", type=int, metavar="T", help="Number of tasks.")
@click.option("--method", metavar="NAME", shell_complete=_complete_methods, help="See `cl2r methods`.")
@click.option("--seed", type=int, help="Seed of every random stream.")
@click.option("--set", "overrides", multiple=True, type=KeyType(), help="Override a field, e.g. method.lambda_base=3.")
@click.option("--out", type=PlaceType(), default="results", show_default=True, metavar="DIR")
@click.option("--grace", default=60.0, show_default=True, metavar="SECONDS", help="To finish an epoch after SIGTERM.")
@click.option("--show-config", is_flag=True, help="Print the resolved config and stop.")
def run(
    preset: str,
    data: str | None,
    data_root: str | None,
    tasks: int | None,
    method: str | None,
    seed: int | None,
    overrides: tuple[str, ...],
    out: "Place",
    grace: float,
    show_config: bool,
) -> None:
    """Train one chain of models and print its compatibility matrix. PRESET is a name or a YAML file."""
    options = _option_layers(
        {
            "data.name": data,
            "data.root": data_root,
            "scenario.n_tasks": tasks,
            "method.name": method,
            "seed": seed,
        }
    )
    config = resolve([read_layer(preset), *options, *map(override, overrides)])
    _refuse_options_of_others(config, overrides)
    if show_config:
        click.echo(describe(config))
    else:
        _train(config, out, grace)


def _option_layers(options: dict[str, Any]) -> list[dict[str, Any]]:
    """A layer for every option that was given."""
    return [from_dotted(field, value) for field, value in options.items() if value is not None]


def _refuse_options_of_others(config: Config, overrides: tuple[str, ...]) -> None:
    """A run has one method; a study may set options that only some of its methods have."""
    own = method_info(config.method.name).section
    for text in overrides:
        section = text.partition(".")[0].strip()
        if section in sections() and section != own:
            raise InputError(f"--set {text}: {config.method.name} has no section {section!r}")


def describe(config: Config) -> str:
    """The resolved config, a line a section."""
    sections = config.model_dump(mode="json").items()
    return "\n".join(f"{name}: {_inline(value)}" for name, value in sections)


def _inline(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, default_flow_style=True, width=1000).removesuffix("...\n").rstrip()


def _train(config: Config, out: "Place", grace: float) -> None:
    from cl2r.stopping import Termination

    with Termination(grace).listening() as termination:
        _run_chain(config, out, termination)


def _run_chain(config: Config, out: "Place", termination: "Termination") -> None:
    from cl2r.engine.plan import plan_run
    from cl2r.engine.process_memory import megabytes, peak_bytes
    from cl2r.engine.records import write_run
    from cl2r.engine.run import execute
    from cl2r.progress import ProgressLine
    from cl2r.tables import matrix_table, metrics_table

    plan = plan_run(config)
    click.echo(describe(config))
    progress = ProgressLine(len(plan.keys))
    try:
        with termination.patience():
            result = execute(plan, out, progress, termination.asked)
    finally:
        progress.close()
    folder = write_run(result, out)
    for report in result.report.at.values() or [result.report]:
        pairs = f"{len(plan.report_pairs)} report pairs"
        click.echo(f"\ncompatibility matrix, {report.metric}, {pairs} (* = compatible)")
        click.echo(f"{matrix_table(report)}\n\n{metrics_table(report)}")
    trained = sum(not link.reused for link in result.links)
    click.echo(f"\n{trained} links trained, {result.seconds:.0f} s, at most {megabytes(peak_bytes())}; {folder}")


_FORWARD = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def _complete_studies(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in study_names() if name.startswith(incomplete)]


def study_names() -> list[str]:
    """The studies that come with the project."""
    return sorted(path.stem for path in Path(str(resources.files("studies"))).glob("*.yaml"))


@cli.command(context_settings=_FORWARD)
@click.argument("name", required=False, shell_complete=_complete_studies)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def study(name: str | None, words: tuple[str, ...]) -> int:
    """Run a study, by name or from a YAML file: `cl2r study ablation --seeds 0 1 2`, `cl2r study my.yaml`.

    `cl2r study NAME --help` lists its options.
    """
    if name is None or name in ("-h", "--help"):
        click.echo(f"usage: cl2r study NAME|FILE.yaml [options]\n\nstudies: {', '.join(study_names())}")
        return 0
    if Path(name).suffix in (".yaml", ".yml"):
        from cl2r.study.custom import main

        return main(Path(name), list(words))
    if name not in study_names():
        raise InputError(f"no study {name!r}{nearest(name, study_names())}; studies: {', '.join(study_names())}")
    result: int = importlib.import_module(f"studies.{name}").main(list(words))
    return result


@cli.command(context_settings=_FORWARD)
@click.argument("name", shell_complete=_complete_studies)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def plan(context: click.Context, name: str, words: tuple[str, ...]) -> int:
    """Say what a study would cost and start nothing: `cl2r plan ablation --seeds 0 1 2`."""
    result: int = context.invoke(study, name=name, words=(*words, "--plan"))
    return result


@cli.command()
@click.argument("name", required=False)
@storage_option
def status(name: str | None, storage: "Place") -> None:
    """Show how far studies are, from their ledgers: all of them, or NAME in detail."""
    from cl2r.study import status as state

    click.echo(state.status(storage, name) if name else state.overview(storage))


@cli.command()
@click.argument("study", required=False)
@storage_option
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Default: report.html in its folder.")
@click.option("--watch", is_flag=True, help="Build it again while the study runs.")
@click.option("--interval", type=click.FloatRange(min=1), default=10, show_default=True, metavar="SECONDS")
@click.option(
    "--tables", type=click.Choice(["markdown", "latex", "csv", "html", "terminal"]), help="Print them instead."
)
@click.option("--figures", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Write figures there.")
def report(
    study: str | None,
    storage: "Place",
    out: Path | None,
    watch: bool,
    interval: float,
    tables: Any,
    figures: Path | None,
) -> int:
    """Write a study's page, or print its tables. STUDY is a name as in `cl2r status`, a folder or an s3:// address.

    Without STUDY: the only one below the storage. What cannot go into its folder goes to STUDY-report.html here.
    """
    if tables and (watch or out):
        raise InputError(f"--tables {tables} prints; --watch and --out are for the page")
    if watch and figures:
        raise InputError("--figures: draw them without --watch")
    from cl2r.study import report as reports

    source = reports.find_source(study, storage)
    if not watch:
        reports.report(source, out, tables, figures, click.echo)
        return 0
    from cl2r.study.watch import Watch

    return Watch(source, reports.checked_path(source, out), interval, click.echo).run()


@cli.command()
@click.argument("names", nargs=-1, shell_complete=_complete_methods)
def methods(names: tuple[str, ...]) -> None:
    """List the methods: paper, what each carries on, its feature, what it brings to the config, its options."""
    width = max(map(len, [*METHODS, *ADAPTERS]))
    for info in [method_info(name) for name in names] or METHODS.values():
        brought = ", ".join(f"{key}={value}" for key, value in info.defaults.items())
        lines = [info.title, info.paper, f"carries {info.carries}; φ: {info.feature}", f"brings {brought}"]
        if info.options is not None:
            options = {key: option.default for key, option in info.options.model_fields.items()}
            lines.append("options " + ", ".join(f"{info.section}.{key}={value}" for key, value in options.items()))
        _paragraph(info.name, width, lines)
    chosen = {split_name(name)[1] for name in names}
    for adapter in [ADAPTERS[name] for name in ADAPTERS if name in chosen]:
        _paragraph(f"+{adapter.name}", width, [adapter.title, adapter.paper])
    if not names:
        click.echo("\nAdapters of stored features; any of them joins a method by a plus sign, e.g. er+procrustes:")
        for adapter in ADAPTERS.values():
            _paragraph(adapter.name, width, [adapter.title, adapter.paper])
    for line in complaints():
        click.echo(f"not loaded: {line}", err=True)


def _paragraph(name: str, width: int, lines: list[str]) -> None:
    for head, line in zip([name, *[""] * len(lines)], lines, strict=False):
        click.echo(f"{head:<{width}}  {line}")


def _complete_datasets(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from cl2r.data import DATASETS

    return [name for name in DATASETS if name.startswith(incomplete)]


@cli.command()
@click.argument("name", required=False, shell_complete=_complete_datasets)
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Say what FOLDER holds of data set NAME, and how to get the rest.")
@click.option("--full", is_flag=True, help="With --check: decode every image, not one of each kind.")
@click.option("--download", is_flag=True, help="Fetch what is free of data set NAME into FOLDER.")
@click.option("--open-images", metavar="DIR", type=click.Path(path_type=Path), help="Write NAME's open images there.")
def datasets(
    name: str | None, folder: Path | None, check: bool, full: bool, download: bool, open_images: Path | None
) -> int:
    """List the data sets, and how to bring your own. `cl2r datasets --check cifar100 DIR` looks at a folder.

    FOLDER is the root of the benchmarks; without it $CL2R_DATA, or `data`.
    """
    if not (check or download or open_images):
        if full or name:
            raise InputError("datasets: say --check, --download or --open-images with a name")
        _list_datasets()
        return 0
    if name is None:
        raise InputError("datasets: which one? e.g. cl2r datasets --check cifar100 DIR")
    from cl2r.data import data_root
    from cl2r.data.download import download as fetch

    root = data_root(folder)
    if open_images:
        _write_open_images(name, root, open_images)
    if download:
        fetch(name, root, click.echo)
    return _check_dataset(name, root, full) if check else 0


def _write_open_images(name: str, root: Path, folder: Path) -> None:
    from cl2r.data import DATASETS, load_dataset
    from cl2r.data.open_images import write_open_images

    height, _, channels = DATASETS[name].image_shape if name in DATASETS else (32, 32, 3)
    click.echo(f"{write_open_images(load_dataset(name, height, channels, str(root)), folder):,} images: {folder}")


def _list_datasets() -> None:
    from cl2r.data import DATASETS
    from cl2r.data.folder import LAYOUT

    margin = max(map(len, DATASETS)) + 1
    for name, info in DATASETS.items():
        height, width, channels = info.image_shape
        size = f"{info.images:,} images of {height}x{width}x{channels}"
        lines = [info.description, f"{info.classes:,} classes to learn; open: {info.open_set}; {size}"]
        lines += [f"below the root: {info.layout}"] if info.layout else []
        _paragraph(name, margin, [*lines, f"licence: {info.licence}"])
    _paragraph("FILE.npz", margin, ["x_train, y_train, x_open, y_open (uint8 N x H x W [x C]; integer or text labels)"])
    _paragraph("DIR", margin, [LAYOUT])


def _check_dataset(name: str, root: Path, full: bool) -> int:
    """0 if the data set can be used as it is, else 2."""
    from cl2r.data import check_dataset
    from cl2r.data.download import how_to_get

    result = check_dataset(name, root)

    def say(line: str) -> None:
        click.echo(without_secrets(line))

    result.decode(full, say)
    for line in result.found:
        say(f"ok     {line}")
    for line in result.wrong:
        say(f"wrong  {line}")
    if not result.complete:
        say(f"get it {how_to_get(name)}")
    say(f"{name} in {root}: " + ("complete" if result.complete else f"to mend: {len(result.wrong)}"))
    return 0 if result.complete else 2


for command in (*COMMANDS, calibrate):
    cli.add_command(command)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell, e.g. eval "$(cl2r completion bash)"."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "cl2r", "_CL2R_COMPLETE").source())


def main() -> None:
    """Entry point: bad input ends in one line and exit code 2, a failed run in 1, Ctrl-C in 130."""
    sys.exit(exit_code("cl2r", _dispatch))


def _dispatch() -> int:
    try:
        return cli.main(prog_name="cl2r", standalone_mode=False) or 0
    except click.ClickException as error:
        raise InputError(error.format_message()) from error
    except click.Abort as error:
        raise KeyboardInterrupt from error
