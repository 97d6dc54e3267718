"""Options and parameter types that several commands share. Nothing here imports torch, pandas or Ray at the top."""

import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.shell_completion import CompletionItem

from cl2r.errors import InputError, check_type
from cl2r.runtime.logs import configure, exit_code
from cl2r.runtime.progress import ImportNotes

if TYPE_CHECKING:
    from cl2r.config.schema import Config
    from cl2r.storage.path import StoragePath

log = logging.getLogger(__name__)


def run_program(command: click.Command, name: str) -> NoReturn:
    """Run `command` with the words of the command line and exit; an error of the user is one line."""
    configure()
    ImportNotes.install(torch="loading torch…")
    sys.exit(exit_code(name, lambda: call(command, None, name)))


def call(command: click.Command, words: Sequence[str] | None, name: str) -> int:
    """Run `command` with `words`, or with those of the command line, and return its exit code."""
    try:
        return command.main(words, prog_name=name, standalone_mode=False) or 0
    except click.ClickException as error:
        message = " ".join(error.format_message().split())
        if isinstance(error, click.UsageError) and error.ctx is not None and "--help" not in message:
            message = f"{message.removesuffix('.')}; see `{error.ctx.command_path} --help`"
        raise InputError(message) from error
    except click.Abort as error:
        raise KeyboardInterrupt from error


class HelpGroup(click.Group):
    """A group of commands that shows its help if no command is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])


class PathType(click.ParamType):  # type: ignore[type-arg]  # generic in recent click only
    """A file or folder, or an address such as s3://bucket/folder."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from cl2r.storage.path import at

        return at(value) if isinstance(value, str) else value


def find_storage(given: "str | Path | StoragePath | None" = None) -> "StoragePath":
    """Return where runs, links and studies are kept: `given`, else $CL2R_STORAGE, else `results`.

    The working directory of a Ray job vanishes with the cluster: there the default is ~/cl2r-results, and relative
    paths are refused.
    """
    from cl2r.storage.path import ObjectPath, at

    check_type("storage", given, str | Path | ObjectPath | None, "a folder or an address such as s3://bucket/folder")
    uploaded = any(part.startswith("_ray_pkg_") for part in Path.cwd().parts)
    default = Path.home() / "cl2r-results" if uploaded else "results"
    storage = at(given or os.environ.get("CL2R_STORAGE") or default)
    if uploaded and storage != storage.absolute():
        raise InputError(f"--storage {storage}: give an absolute path; this job's directory vanishes with the cluster")
    return storage


class NameType(click.ParamType):  # type: ignore[type-arg]
    """A word that the shell completes to a known name of its kind, e.g. `method`."""

    name = "name"

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if self.kind == "method":
            from cl2r.config.methods import split_name

            split_name(value)  # raises InputError if there is no such method
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        with contextlib.suppress(InputError, OSError):  # there is nothing to complete
            return [CompletionItem(word) for word in self.known(ctx, incomplete) if word.startswith(incomplete)]
        return []

    def known(self, ctx: click.Context, incomplete: str) -> Iterable[str]:
        """Return the names to choose from; what they come from is imported only now."""
        if self.kind in ("study", "model"):
            from cl2r.study.folder import finished_runs
            from cl2r.study.status import studies

            storage = find_storage(ctx.params.get("storage"))
            if self.kind == "study":
                return [folder.name for folder in studies(storage)]
            runs = {path.parent.name for path in storage.list("runs/*/config.yaml")} | finished_runs(storage).keys()
            found = ((run, re.search(r"-T(\d+)-s\d+-", run)) for run in sorted(runs))
            return [f"{run}@{t}" for run, tasks in found if tasks for t in range(1, int(tasks[1]) + 1)]
        if self.kind == "data set":
            from cl2r.data import DATASETS

            return DATASETS
        from cl2r.config.layers import presets
        from cl2r.config.methods import ADAPTERS, METHODS
        from cl2r.config.schema import field_keys
        from cl2r.metrics import METRICS

        base, plus, _ = incomplete.partition("+")
        return {
            "preset": presets(),
            "method": [f"{base}+{adapter}" for adapter in ADAPTERS] if plus else METHODS,
            "field": [f"{key}=" for key in field_keys()],
            "objective": METRICS.objectives(),
        }[self.kind]


preset_argument = click.argument("preset", default="icons", type=NameType("preset"))
data_option = click.option("--data", "data_name", metavar="PATH", help="A data set by name, an .npz file or a folder.")
data_root_option = click.option(
    "--data-root", metavar="DIR", help="Folder that holds the benchmark data sets (default: $CL2R_DATA, or data)."
)
tasks_option = click.option("--tasks", type=int, metavar="T", help="Number of tasks.")
method_option = click.option("--method", metavar="NAME", type=NameType("method"), help="See `cl2r methods`.")
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    type=NameType("field"),
    metavar="KEY=VALUE",
    help="Override a field, e.g. method.lambda_base=3. Repeatable.",
)
storage_option = click.option(
    "--storage",
    callback=lambda ctx, param, value: find_storage(value),
    show_default="$CL2R_STORAGE, or results",
    metavar="DIR",
    help="Runs, links and studies: a folder or s3://bucket/folder.",
)
grace_option = click.option(
    "--grace",
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Time to finish and save the current epoch after SIGTERM.",
)


def _quiet(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    if value:
        configure(level=logging.WARNING)
    return value


quiet_option = click.option("-q", "--quiet", is_flag=True, callback=_quiet, help="Print the result only.")


def log_option(default: str | None = None) -> Callable[[Any], Any]:
    """Return the option that names trackers; `default` is used if it is not given."""
    return click.option(
        "--log",
        multiple=True,
        default=() if default is None else (default,),
        show_default=default or False,
        metavar="NAME",
        help="Log to tensorboard, mlflow or wandb. Repeatable.",
    )


verbose_option = click.option("-v", "--verbose", is_flag=True, help="Show Ray's own messages too.")


def note_if_busy() -> None:
    """Tell the user if other programs use the processors of this machine."""
    from cl2r.runtime.environment import busy_note

    if note := busy_note():
        log.info("%s", note)


def build_config(preset: str, overrides: Sequence[str], **options: Any) -> "Config":
    """Return the config of a preset with options (None: not given) and overrides, which win."""
    from cl2r.cli.study import study_names
    from cl2r.config.layers import from_dotted, override, presets, read_layer, resolve

    if preset in study_names() and preset not in presets():
        raise InputError(f"{preset} is a study, not a preset: `cl2r study {preset}`; presets: {', '.join(presets())}")
    fields = {"data_name": "data.name", "data_root": "data.root", "tasks": "scenario.n_tasks", "method": "method.name"}
    given = {fields.get(name, name): value for name, value in options.items() if value is not None}
    return resolve([read_layer(preset), *(from_dotted(*entry) for entry in given.items()), *map(override, overrides)])
