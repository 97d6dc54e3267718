"""`cl2r run`: train one chain of models and print its compatibility matrix."""

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from cl2r.cli import options as shared
from cl2r.errors import InputError

if TYPE_CHECKING:
    from cl2r.config.schema import Config
    from cl2r.engine.evaluation import Evaluation
    from cl2r.storage.path import StoragePath


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
@click.option("--show-config", is_flag=True, help="Print the resolved config and stop.")
def run(
    preset: str, overrides: tuple[str, ...], storage: "StoragePath", grace: float, show_config: bool, **options: Any
) -> None:
    """Train one chain of models; print its matrix and metrics.

    PRESET is the name of a preset or a YAML file.
    """
    from cl2r.config.methods import method_info, sections

    config = shared.build_config(preset, overrides, **options)
    own = method_info(config.method.name).section
    for text in overrides:  # a study may set options that only some of its methods have; a run has one method
        section = text.partition(".")[0].strip()
        if section in sections() and section != own:
            raise InputError(f"--set {text}: {config.method.name} has no section {section!r}")
    if show_config:
        click.echo(config_text(config))
        return
    from cl2r.engine.chain import execute
    from cl2r.engine.frames import write_run
    from cl2r.engine.plan import plan_run
    from cl2r.runtime.environment import peak_bytes
    from cl2r.runtime.progress import ProgressLine
    from cl2r.runtime.stop import Termination
    from cl2r.runtime.text import megabytes

    with Termination(grace).listening() as termination:
        plan = plan_run(config)
        shared.note_if_busy()
        click.echo(config_text(config))
        with closing(ProgressLine(len(plan.keys))) as progress, termination.graceful():
            result = execute(plan, storage, progress, termination.asked)
        folder = write_run(result, storage)
    for report in result.report.at.values() or [result.report]:
        pairs = f"{len(plan.report_pairs)} report pairs"
        click.echo(f"\ncompatibility matrix, {report.metric}, {pairs} (* = compatible)")
        click.echo(f"{matrix_table(report)}\n\n{metrics_table(report)}")
    trained = sum(not link.reused for link in result.links)
    click.echo(f"\n{trained} links trained, {result.seconds:.0f} s, at most {megabytes(peak_bytes())}; {folder}")


def config_text(config: "Config") -> str:
    """Return the resolved config as YAML, one line per section."""
    import yaml

    def inline(value: Any) -> str:
        text = yaml.safe_dump(value, sort_keys=False, default_flow_style=True, width=1000)
        return text.removesuffix("...\n").rstrip()

    return "\n".join(f"{name}: {inline(value)}" for name, value in config.model_dump(mode="json").items())


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
    width, lines = max(len(metric.head) for metric in shown), []
    for metric in shown:
        line = f"{metric.head:<{width}}  {metric.text(evaluation.values[metric.name])}"
        if metric.name in evaluation.intervals:
            low, high = evaluation.intervals[metric.name]
            line += f"  [{metric.text(low)}, {metric.text(high)}]"
        lines.append(line)
    return "\n".join(lines)
