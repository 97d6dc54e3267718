"""`cl2r run`: train one chain of models and print its compatibility matrix. `cl2r schema`: what its files may hold."""

import json
import math
import shlex
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cl2r.cli import options as shared
from cl2r.errors import InputError

if TYPE_CHECKING:
    from cl2r.config.keys import AcceptLinks
    from cl2r.config.schema import Config
    from cl2r.engine.chain import RunResult
    from cl2r.engine.evaluation import Evaluation
    from cl2r.engine.plan import Plan
    from cl2r.storage.path import StoragePath
    from cl2r.verification import FloatArray


@click.command()
@shared.preset_argument
@shared.data_option
@shared.data_root_option
@shared.tasks_option
@shared.method_option
@click.option("--seed", type=int, help="Seed of every random stream.")
@shared.set_option
@shared.storage_option
@shared.grace_option
@click.option(
    "--accept-links",
    type=click.Choice(["same", "any"]),
    default="same",
    show_default=True,
    help="Reuse links trained by one process on the same kind of device, or any.",
)
@shared.log_option()
@click.option("--show-config", is_flag=True, help="Print every setting and stop.")
@click.option("-v", "--verbose", is_flag=True, help="Print every setting first.")
@shared.quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def run(
    preset: str,
    overrides: tuple[str, ...],
    storage: "StoragePath",
    grace: float,
    accept_links: "AcceptLinks",
    log: tuple[str, ...],
    show_config: bool,
    verbose: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train one chain of models; print its matrix and metrics.

    PRESET is the name of a preset or a YAML file: sections of fields on top of a `preset`, which is icons by default.
    """
    if (show_config or verbose) and (quiet or as_json):
        shown, other = "--show-config" if show_config else "--verbose", "--json" if as_json else "--quiet"
        raise InputError(f"{shown} prints settings, {other} leaves them out; give one of the two")
    from cl2r.config.layers import describe_preset

    config = shared.build_config(preset, overrides, **options)
    _refuse_other_sections(config, overrides)
    if show_config or verbose:
        click.echo(config_text(config))
    if show_config:
        return
    if not (quiet or as_json):
        click.echo(f"{headline(config)}; base: {describe_preset(preset)}")
    from cl2r.engine.chain import execute
    from cl2r.engine.frames import write_run
    from cl2r.engine.links import LinkStore
    from cl2r.engine.plan import plan_run
    from cl2r.runtime.progress import ProgressLine, TimeLeft
    from cl2r.runtime.stop import Termination
    from cl2r.study.trackers import TrackedRun

    with Termination(grace).listening() as termination:
        plan = plan_run(config)
        shared.note_if_busy()
        progress = nullcontext(TimeLeft()) if quiet else closing(ProgressLine(len(plan.keys)))
        tracked = TrackedRun(log, plan, storage)
        with progress as listener, termination.graceful(), tracked, LinkStore(storage).in_use():
            result = execute(plan, storage, listener, termination.asked, tracked, accept_links)
            tracked.finish(result)
            folder = write_run(result, storage)
    if as_json:
        click.echo(json.dumps(to_json(result, folder, describe_preset(preset))))
        return
    click.echo(results_text(result) if quiet else f"\n{results_text(result)}\n\n{_ending(result, folder)}")
    if not quiet and (commands := next_commands(plan, folder, storage)):
        click.echo("\n".join(["next:", *(f"  {command}" for command in commands)]))


def _refuse_other_sections(config: "Config", overrides: tuple[str, ...]) -> None:
    """Raise InputError for settings of other methods: a study has several methods, a run has one."""
    from cl2r.config.methods import METHODS, method_info, sections

    own = method_info(config.method.name).section
    for text in overrides:
        section = text.partition(".")[0].strip()
        if section in sections() and section != own:
            users = " or ".join(info.name for info in METHODS.values() if info.section == section)
            fault = f"{config.method.name} has no section {section!r}"
            raise InputError(f"--set {text}: {fault}; leave it out, or choose --method {users}")


def config_text(config: "Config") -> str:
    """Return the resolved config as YAML, one line per section."""
    import yaml

    def inline(value: Any) -> str:
        text = yaml.safe_dump(value, sort_keys=False, default_flow_style=True, width=1000)
        return text.removesuffix("...\n").rstrip()

    return "\n".join(f"{name}: {inline(value)}" for name, value in config.model_dump(mode="json").items())


def headline(config: "Config") -> str:
    """Return method, data, tasks and seed of a run in one line; it needs no data."""
    scenario = config.scenario
    if scenario.n_tasks:
        tasks = f"{scenario.n_tasks} task{'s' if scenario.n_tasks > 1 else ''}"
    else:
        first = f"{scenario.initial} and then " if scenario.initial else ""
        tasks = f"tasks of {first}{scenario.increment} classes"
    if scenario.stop_after:
        tasks += f" (the first {scenario.stop_after} of them)"
    return f"method {config.method.name}, data {config.data.name}, {tasks}, seed {config.seed}"


def results_text(result: "RunResult") -> str:
    """Return the matrix and the metrics on the report pairs; with true accept rates, those of every rate."""
    parts = []
    for report in result.report.at.values() or [result.report]:
        pairs = f"{len(result.plan.report_pairs)} report pairs"
        parts.append(f"compatibility matrix, {report.metric}, {pairs} (* = compatible)")
        parts.append(f"{matrix_table(report)}\n\n{metrics_table(report)}\n")
    return "\n".join(parts).removesuffix("\n")


def _ending(result: "RunResult", folder: "StoragePath") -> str:
    from cl2r.runtime.environment import peak_bytes
    from cl2r.runtime.text import megabytes

    trained = sum(not link.reused for link in result.links)
    links = f"{trained} link{'' if trained == 1 else 's'} trained"
    return f"{links}, {result.seconds:.0f} s, at most {megabytes(peak_bytes())}; {folder}"


def matrix_table(evaluation: "Evaluation") -> str:
    """Return C as text; a star marks a cell in which the new model's queries beat the old model's own."""
    matrix, compatible = evaluation.matrix, evaluation.compatible
    lines = ["query\\gallery " + "".join(f"{f'φ{k + 1}':>8}" for k in range(len(matrix)))]
    for t in range(len(matrix)):
        cells = [f"{matrix[t, k]:.3f}" + ("*" if compatible[t, k] else " ") for k in range(t + 1)]
        lines.append(f"{f'φ{t + 1}':<14}" + "".join(f"{cell:>8}" for cell in cells))
    return "\n".join(lines)


def metrics_table(evaluation: "Evaluation") -> str:
    """Return the metrics as text, with their intervals if there are any; those of recall only if it is defined."""
    from cl2r.metrics import METRICS

    shown = [metric for metric in METRICS.in_tables() if metric.matrix == "accuracy" or evaluation.recall is not None]
    width, lines, reasons = max(len(metric.head) for metric in shown), [], dict[str, None]()
    for metric in shown:
        line = f"{metric.head:<{width}}  {metric.text(evaluation.values[metric.name])}"
        if math.isnan(evaluation.values[metric.name]):
            reasons[metric.undefined] = None
        elif metric.name in evaluation.intervals:
            low, high = evaluation.intervals[metric.name]
            line += f"  [{metric.text(low)}, {metric.text(high)}]"
        lines.append(line)
    return "\n".join([*lines, *(f"–: {reason}" for reason in reasons)])


def to_json(result: "RunResult", folder: "StoragePath", base: str) -> dict[str, Any]:
    """Return a finished run as plain JSON. What is undefined is null, and says why if it is a metric."""
    from cl2r.runtime.environment import peak_bytes

    found: dict[str, Any] = {
        "run": folder.name,
        "folder": str(folder),
        "base": base,
        "config": result.plan.config.model_dump(mode="json"),
    }
    found |= {"report_pairs": len(result.plan.report_pairs), **_evaluation_json(result.report)}
    if result.report.at:
        found["at"] = {f"{far:g}": _evaluation_json(one) for far, one in result.report.at.items()}
    found |= {"links": len(result.links), "links_trained": sum(not link.reused for link in result.links)}
    return found | {"seconds": round(result.seconds, 3), "peak_bytes": peak_bytes()}


def _evaluation_json(evaluation: "Evaluation") -> dict[str, Any]:
    from cl2r.metrics import METRICS

    def rows(matrix: "FloatArray | None") -> list[list[float | None]] | None:
        if matrix is None:
            return None
        return [[None if math.isnan(cell) else cell for cell in row] for row in matrix.tolist()]

    metrics: dict[str, dict[str, Any]] = {}
    for name, value in evaluation.values.items():
        if math.isnan(value):
            metrics[name] = {"value": None, "undefined": METRICS[name].undefined}
            continue
        low, high = evaluation.intervals.get(name, (None, None))
        metrics[name] = {"value": value} | ({} if low is None else {"low": low, "high": high})
    found = {"metric": evaluation.metric, "matrix": rows(evaluation.matrix), "recall": rows(evaluation.recall)}
    return found | {"metrics": metrics}


def next_commands(plan: "Plan", folder: "StoragePath", storage: "StoragePath") -> list[str]:
    """Return commands that work as they are: index the open images with φ_1, and ask whether φ_T may search them.

    None if models of these images cannot search, because the images are not square.
    """
    from cl2r.data import DATASETS

    data, config = plan.dataset, plan.config
    if data.image_size[0] != data.image_size[1]:
        return []
    commands, gallery = [], f"gallery-{folder.name.rpartition('-')[2]}"
    where = [] if storage == shared.find_storage() else ["--storage", str(storage)]
    path = Path(config.data.name).expanduser()
    if config.data.name not in DATASETS and path.is_dir():
        images = str(path / "open")
    else:
        images = f"{data.name}-open"
        if not Path(images).exists():
            root = [config.data.root] if config.data.root and config.data.name in DATASETS else []
            commands.append(["datasets", "open-images", config.data.name, *root, images])
    first, last = f"{folder.name}@1", f"{folder.name}@{len(plan.keys)}"
    commands.append(["index", images, "--model", first, "--gallery", gallery, *where])
    if first != last:
        commands.append(["upgrade-check", gallery, "--old", first, "--new", last, *where])
    return [shlex.join(["cl2r", *words]) for words in commands]


@click.command()
@click.argument("kind", type=click.Choice(["run", "study"]), metavar="run|study")
def schema(kind: str) -> None:
    """Print the JSON schema of the YAML file of a run or a study.

    Presets and studies name it in their first line, for editors with a YAML language server.
    """
    from cl2r.study.json_schema import schema_text

    click.echo(schema_text(kind), nl=False)
