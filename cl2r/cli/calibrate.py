"""`cl2r calibrate`: measure which settings train a run fastest on this machine."""

from typing import Any

import click

from cl2r.cli import options as shared


@click.command()
@shared.preset_argument
@shared.data_option
@shared.data_root_option
@shared.method_option
@shared.set_option
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="Number of equal runs of a study.")
@click.option("--threads", type=click.IntRange(1), help="Threads of one run (default: all cores).")
def calibrate(preset: str, overrides: tuple[str, ...], runs: int, threads: int | None, **options: Any) -> None:
    """Measure the fastest settings on this machine.

    Compares precisions, compilation, and trials × threads, and trains nothing. Prints options for `cl2r run` and for
    studies. They change rounding: use the same ones for all runs of a comparison.
    """
    config = shared.build_config(preset, overrides, **options)
    import torch

    from cl2r.engine.plan import plan_run
    from cl2r.runtime.environment import cores
    from cl2r.runtime.progress import announced
    from cl2r.study import calibrate as calibration

    plan = plan_run(config)
    shared.note_if_busy()
    torch.set_num_threads(threads or cores())
    cuda = torch.cuda.is_available()
    with announced("measuring precisions and compilation…"):
        measured = calibration.measure_modes(plan, torch.device("cuda" if cuda else "cpu"))
    click.echo(calibration.mode_text(*measured))
    if not cuda and runs > 1:
        with announced("measuring trials × threads…"):
            best, text = calibration.trial_layout(config, runs)
        click.echo(f"\n{runs} runs: {text}")
        click.echo(f"(--cpus-per-worker {best.threads} --max-concurrent {best.trials})")
