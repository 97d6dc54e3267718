"""`cl2r calibrate`: the fastest way to train a run on this machine, measured."""

import click

from cl2r.layers import from_dotted, override, read_layer, resolve


@click.command()
@click.argument("preset", default="icons")
@click.option("--data", metavar="PATH", help="A data set by name, an .npz file or a folder.")
@click.option("--method", metavar="NAME", help="See `cl2r methods`.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a field.")
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="So many runs alike, as of a study.")
@click.option("--threads", type=click.IntRange(1), help="Of one run (default: all cores).")
def calibrate(
    preset: str, data: str | None, method: str | None, overrides: tuple[str, ...], runs: int, threads: int | None
) -> None:
    """Measure precisions, compiling, and trials × threads on this machine; train nothing.

    Prints options for `cl2r run` and for studies. They change rounding, so keep one choice for runs to be compared.
    """
    import torch

    from cl2r.engine.plan import plan_run
    from cl2r.study import calibration, layout

    options = {"data.name": data, "method.name": method}
    layers = [from_dotted(field, value) for field, value in options.items() if value is not None]
    config = resolve([read_layer(preset), *layers, *map(override, overrides)])
    plan = plan_run(config)
    torch.set_num_threads(threads or layout.cores())
    cuda = torch.cuda.is_available()
    chosen, ways, work = calibration.fastest_way(plan, torch.device("cuda" if cuda else "cpu"))
    click.echo(calibration.described(chosen, ways, work))
    if cuda or runs == 1:
        return
    best, measured = layout.fastest_layout(config, runs)
    click.echo(f"\n{runs} runs: {layout.described(best, measured, runs)}")
    click.echo(f"(--cpus-per-worker {best.threads} --max-concurrent {best.trials})")
