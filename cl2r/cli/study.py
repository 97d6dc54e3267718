"""`cl2r study` and `cl2r plan`, and `study_command`, which makes a recipe of `studies/` a command with shared options.

`cl2r study ablation`, `python studies/ablation.py` and `cl2r study studies/ablation.yaml` run the same study. Parsing
needs neither torch nor pandas nor Ray: they are imported once the options are known to be right.
"""

import ast
import contextlib
import dataclasses
import functools
import importlib
import inspect
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from cl2r.cli import options as shared
from cl2r.cli.options import HelpGroup, NameType
from cl2r.errors import InputError, check_type, nearest

if TYPE_CHECKING:
    import pandas as pd

    from cl2r.study.session import StudySession
    from cl2r.study.spec import StudySpec

Frames = dict[str, "pd.DataFrame"]
Text = Callable[["StudySession", Frames], str]
STUDIES = Path(str(package_files.files("studies")))
YAML = (".yaml", ".yml")
_PLAN, _OPEN_LIST = "cl2r.plan", "cl2r.open_list"  # keys of a context's `meta`


class ListOption(click.Option):
    """An option with one or more values: `--seeds 0 1 2`."""


list_option = functools.partial(click.option, cls=ListOption, multiple=True)  # not given, it is ()


def _constraints(ctx: click.Context, param: click.Parameter, texts: Sequence[str]) -> dict[str, str] | None:
    """Return constraints by metric; None if there are none. Each text is `METRIC RELATION BOUND`."""
    found = {}
    for text in texts:
        parts = re.fullmatch(r"\s*([\w@]+)\s*([<>]=.*)", text)
        if parts is None:
            raise InputError(f"--constraint {text!r}: give e.g. 'stored_bytes <= 2e6' or 'AC >= er + 0.1'")
        if parts[1] in found:
            raise InputError(f"--constraint {text!r}: there is another one on {parts[1]}")
        found[parts[1]] = parts[2]
    return found or None


constraint_option = click.option(
    "--constraint",
    "constraints",
    multiple=True,
    callback=_constraints,
    metavar="TEXT",
    help="What a choice must reach, e.g. 'AC >= 0.5' or 'reindexed_accuracy >= er - 0.01'. Repeatable.",
)


class StudyCommand(click.Command):
    """A study's command. Called with words it runs and returns the exit code."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        lists = {name: option for option in self.params if isinstance(option, ListOption) for name in option.opts}
        words: list[str] = []
        current, values = "", 0  # name of the list that is being read, and how many values it has
        for word in args:
            if current and (not word.startswith("-") or re.fullmatch(r"-[\d.]+", word)):
                words += [current, word] if values else [word]
                values += 1
            else:
                current, values = word if word in lists else "", 0
                words.append(word)
        if current and values:
            ctx.meta[_OPEN_LIST] = lists[current]
        rest = super().parse_args(ctx, words)
        if ctx.meta.get(_PLAN):
            ctx.params["plan"] = True
        return rest

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        option = ctx.meta.get(_OPEN_LIST)
        more = option.shell_complete(ctx, incomplete) if option and not incomplete.startswith("-") else []
        return [*more, *super().shell_complete(ctx, incomplete)]

    def __call__(self, words: Sequence[str] | None = None) -> int:
        return shared.call(self, None if words is None else list(words), f"cl2r study {self.name}")

    def run_program(self) -> None:
        """Run with the words of the command line and exit."""
        shared.run_program(self, str(self.name))


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What the options of a study ask for."""

    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Entries of the specification to replace, key by key in `grid`, `search` and `race`."""
    text: Text | None = None  # returns what to print when the runs have ended, if that is not `ending`
    file: Path | None = None  # a specification other than the YAML file beside the recipe
    check: Callable[["StudySpec"], None] = lambda spec: None
    """Raises InputError if the study makes no sense with this specification."""


def study_command(file: str | Path, doc: str | None) -> Callable[[Callable[..., Recipe]], StudyCommand]:
    """Decorate a function that turns a study's own options into a Recipe; the result is the study's command.

    The specification is the YAML file beside `file`, the help text is `doc`. A function decorated with
    `click.pass_context` finds the shared options in `context.params`.
    """
    path = Path(file).with_suffix(".yaml")
    # Click would fill indented examples into lines of equal length; \b keeps them as they are.
    paragraphs = inspect.cleandoc(doc or "").split("\n\n")
    text = "\n\n".join(f"\b\n{part}" if part.startswith(" ") else part for part in paragraphs)

    def decorate(recipe: Callable[..., Recipe]) -> StudyCommand:
        own = list(reversed(getattr(recipe, "__click_params__", [])))
        names = [option.name for option in own]

        def callback(**values: Any) -> int:
            return run_recipe(path, recipe(**{name: values.pop(name) for name in names}), values)

        every = [*own, *reversed(_shared_options.__click_params__)]
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
        return StudyCommand(path.stem, settings, callback, every, help=text)

    return decorate


def ending(session: "StudySession", frames: Frames) -> str:
    """Return what ends a study of any kind: its tables, and the sentences that its page begins with."""
    from cl2r.cli.report import study_of

    if session.spec.race is not None:
        from cl2r.cli.recommend import recommendation_text

        return recommendation_text(session, frames)
    from analysis.tables import study_text

    return study_text(study_of(session.folder, frames), "terminal")


def compare_methods(file: str | Path, doc: str | None, field: str, option: str, help_text: str) -> StudyCommand:
    """Return the command of a study of methods × the values of one integer field."""

    @study_command(file, doc)
    @click.pass_context
    @list_option("--methods", type=NameType("method"), metavar="NAME...", help="Methods, or methods with +adapter.")
    @list_option(option, "values", type=int, metavar="N...", help=help_text)
    def command(context: click.Context, methods: tuple[str, ...], values: tuple[int, ...]) -> Recipe:
        from cl2r.config.methods import method_info
        from cl2r.storage.documents import yaml_mapping

        path = Path(file).with_suffix(".yaml")
        names = list(methods) or yaml_mapping(path.read_bytes(), path)["grid"]["method.name"]
        if "method.budget=native" in context.params["overrides"]:
            without = [name for name in names if method_info(name).native is None]
            names = [name for name in names if name not in without]
            if without:
                click.echo(f"note: left out, because no native schedule is known: {', '.join(without)}")
        return Recipe({"grid": {"method.name": names, field: list(values) or None}})

    return command


def resource_option(name: str, **settings: Any) -> Callable[[Any], Any]:
    """Return an option whose default is a variable of the environment, e.g. $CL2R_WORKERS."""
    variable = f"CL2R_{name.strip('-').replace('-', '_').upper()}"
    return click.option(name, envvar=variable, show_envvar=True, **settings)


@click.option("--preset", type=NameType("preset"), metavar="NAME", help="A preset, or a YAML file of config sections.")
@shared.data_option
@shared.data_root_option
@shared.tasks_option
@list_option("--seeds", type=int, metavar="N...", help="Seeds; each runs everything.")
@shared.set_option
@shared.storage_option
@click.option("--name", help="Name of the study (default: its file, its data and a digest of its specification).")
@resource_option("--workers", type=int, default=1, show_default=True, metavar="N", help="Processes per run.")
@resource_option(
    "--cpus-per-worker",
    type=lambda text: text if text == "auto" else int(text),
    default=1,
    show_default=True,
    metavar="N|auto",
    help="Threads per process; auto measures which trials × threads are fastest on this machine.",
)
@resource_option("--gpus-per-worker", type=float, default=0.0, metavar="N", help="GPUs per process.")
@resource_option("--accelerator", metavar="NAME", help="Use only nodes with this accelerator, e.g. A100.")
@resource_option("--max-concurrent", type=int, metavar="N", help="Trials at a time (default: as many as fit).")
@resource_option(
    "--accept-links",
    type=click.Choice(["same", "any"]),
    help="Reuse links trained with the same number of workers and kind of device, or any. [default: same]",
)
@resource_option("--sync-batchnorm", is_flag=True, help="Batch norm over all workers (GPUs only).")
@resource_option(
    "--retries", type=int, default=2, show_default=True, metavar="N", help="Retries after crashes without progress."
)
@shared.grace_option
@click.option("--plan", is_flag=True, help="Print what the study would cost and start nothing.")
@click.option(
    "--gpu-price", default=4.10, show_default=True, metavar="USD", help="Price of an A100 hour, for the plan."
)
@shared.log_option(default="tensorboard")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@shared.quiet_option
@shared.verbose_option
def _shared_options() -> None:
    """Carries the options that every study has."""


def run_recipe(path: Path, recipe: Recipe, options: Mapping[str, Any]) -> int:
    """Check everything, run what is missing, print the table and write the report. Return 1 if a run failed, else 0."""
    if options["as_json"] and not options["plan"]:
        raise InputError("--json: only a plan is printed as JSON; `cl2r report --tables csv` has a study's tables")
    if options["quiet"] and options["verbose"]:
        raise InputError("give --quiet or --verbose, not both")
    from cl2r.data import published_sizes
    from cl2r.rayrun.cluster import check_address
    from cl2r.runtime.progress import announced
    from cl2r.runtime.stop import Termination
    from cl2r.runtime.text import counted
    from cl2r.study.resources import Resources
    from cl2r.study.session import StudySession
    from cl2r.study.spec import StudySpec

    overrides = list(options["overrides"])
    overrides += [f"data.{key}={options[f'data_{key}']}" for key in ("name", "root") if options[f"data_{key}"]]
    storage = options["storage"].absolute()  # training processes run elsewhere
    changes = {"preset": options["preset"], "seeds": options["seeds"] or None, "tasks": options["tasks"]}
    auto = options["cpus_per_worker"] == "auto"  # one CPU until the layout has been measured
    with Termination(options["grace"]).listening() as stop, contextlib.ExitStack() as stack:
        spec = StudySpec.load(recipe.file or path, overrides, **{**changes, **recipe.changes})
        recipe.check(spec)
        resources = Resources.from_options({**options, "cpus_per_worker": 1 if auto else options["cpus_per_worker"]})
        opened = StudySession.open(
            spec,
            storage,
            resources,
            name=options["name"],
            lock=not options["plan"],
            measure_layout=auto,
            stop=stop,
            verbose=options["verbose"],
            log=options["log"],
            quiet=options["quiet"],
        )
        if options["plan"]:
            stack.enter_context(published_sizes())
        runs = "" if spec.grows else f"{counted(len(spec.points()) * len(spec.seeds), 'run')} of "
        with announced(f"planning {runs}{spec.stem}…"):
            if not options["plan"]:
                check_address(options["verbose"], resources.workers > 1)
            session = stack.enter_context(opened)
        if not os.environ.get("RAY_ADDRESS"):
            shared.note_if_busy()
        return _plan(session, options) if options["plan"] else _run(session, recipe.text or ending)


def _plan(session: "StudySession", options: Mapping[str, Any]) -> int:
    """Print what the study would cost."""
    from cl2r.study.plan import plan_json, plan_text

    price = options["gpu_price"]
    click.echo(json.dumps(plan_json(session, price)) if options["as_json"] else plan_text(session, price))
    return 0


def _run(session: "StudySession", text: Text) -> int:
    """Run the study, print what came out of it, and write figures and the page."""
    from cl2r.cli.report import leave_report
    from cl2r.config.layers import describe_preset
    from cl2r.rayrun import driver
    from cl2r.runtime.environment import peak_bytes
    from cl2r.runtime.text import clock, megabytes

    def say(line: str) -> None:
        if not session.quiet:
            click.echo(line)

    base = describe_preset(session.spec.preset)
    say(f"study {session.folder.name}: {session.expected_runs()} runs; base: {base}")
    if note := session.loader_note():
        say(note)
    outcome = driver.run(session)
    if outcome.finished:
        told = text(session, outcome.frames)
        click.echo(told if session.quiet else f"\n{told}\n")
    runs, tasks = outcome.frames["runs"], outcome.frames["tasks"]
    failed = runs[runs["status"] == "failed"]
    for run, reason in zip(failed["run"], failed["reason"], strict=True):
        click.echo(f"failed: {run}: {reason}", err=session.quiet)
    if outcome.missing:
        lost = f"missing: {outcome.missing} runs were completed but not recorded"
        click.echo(f"{lost}; do all nodes share {session.folder.storage}?", err=session.quiet)
    counts = f"{outcome.finished} runs finished, {outcome.failed} failed, {outcome.pruned} stopped early"
    say(f"{counts}; {outcome.links_trained} links trained in {clock(outcome.seconds)}")
    peaks = tasks[~tasks["reused"].astype(bool)].reindex(columns=["peak_bytes"])["peak_bytes"].dropna()
    training = f", {megabytes(peaks.max())} in a training process" if len(peaks) else ""
    say(f"peak memory: {megabytes(peak_bytes())} in the driver{training}")
    names = ",".join(outcome.frames)
    say(f"frames: {session.folder.path / f'{{{names}}}.parquet'}")
    leave_report(session.folder, outcome.frames, say)
    return 1 if outcome.failed or outcome.missing else 0


def study_names(suffix: str = ".py") -> list[str]:
    """Return the names of the studies that come with the project; with `.yaml`, of those that can be planned."""
    return sorted(path.stem for path in STUDIES.glob(f"[!_]*{suffix}"))


def study_file(spec: str | Path | Mapping[str, Any]) -> Path | Mapping[str, Any]:
    """Return the YAML file of a study by its name; a file or a mapping is returned as it is."""
    check_type("spec", spec, str | Path | Mapping, "the name of a study, a YAML file or a mapping")
    if isinstance(spec, str):
        return Path(spec) if spec.endswith(YAML) else _known_study(spec, ".yaml")
    return spec


def load_command(name: str) -> StudyCommand:
    """Return the command of a study by its name, or of a YAML file. Raise InputError if there is no such study."""
    if name.endswith(YAML):
        return study_command(name, f"Run the study of {name}.")(lambda: Recipe(file=Path(name)))
    command: StudyCommand = importlib.import_module(f"studies.{_known_study(name, '.py').stem}").main
    return command


def _known_study(name: str, suffix: str) -> Path:
    known = study_names(suffix)
    if name not in known:
        from cl2r.config.layers import presets

        if name in presets():
            raise InputError(f"{name} is a preset, not a study: `cl2r run {name}`, or --preset {name} with a study")
        raise InputError(f"no study {name!r}{nearest(name, known)}; studies: {', '.join(known)}")
    return STUDIES / f"{name}{suffix}"


class StudyGroup(HelpGroup):
    """One command per study, imported when it is used; the name of a YAML file is a command too."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return study_names(".yaml" if self.name == "plan" else ".py")

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        # While the shell completes a line, an unknown name is no error.
        with contextlib.suppress(InputError) if ctx.resilient_parsing else contextlib.nullcontext():
            if self.name == "plan":
                ctx.meta[_PLAN] = True
                study_file(cmd_name)  # scaling cannot be planned
            return load_command(cmd_name)
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Reads the first lines of the recipes: to import them all would take longer.
        sources = {name: (STUDIES / f"{name}.py").read_text(encoding="utf-8") for name in self.list_commands(ctx)}
        docs = {name: ast.get_docstring(ast.parse(source)) or "" for name, source in sources.items()}
        with formatter.section("Studies"):
            formatter.write_dl([(name, " ".join(doc.split("\n\n")[0].split())) for name, doc in docs.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        files = [] if incomplete.startswith("-") else [CompletionItem(incomplete, type="file")]
        return [CompletionItem(name) for name in names] or files


@click.group("study", cls=StudyGroup, subcommand_metavar="NAME|FILE.yaml [OPTIONS]")
def study() -> None:
    """Run a study by name or from a YAML file.

    \b
    cl2r study ablation --seeds 0 1 2
    cl2r study my.yaml
    cl2r study ablation --help          # its options
    """


@click.group("plan", cls=StudyGroup, subcommand_metavar="NAME|FILE.yaml [OPTIONS]")
def plan() -> None:
    """Print what a study would cost; start nothing.

    \b
    cl2r plan ablation --seeds 0 1 2
    cl2r plan my.yaml
    cl2r plan paper --table 7 --gpus-per-worker 1 --max-concurrent 8     # for a cluster, without its data
    cl2r plan ablation --json
    \b
    JSON: study, runs, finished, drawn_points (of a sweep), links, links_to_train, images, images_to_extract,
      concurrent, concurrent_here (as many of them as fit), workers, seconds (on this machine; null if it lacks
      room or the GPUs), speed, gpu, gpu_hours, gpu_seconds (concurrent at a time), dollars, gpu_price, bytes, notes
    of a race: study, runs, finished, hours, seconds_used, seconds, rounds [{name, decided, seeds, seconds}], notes
    """
