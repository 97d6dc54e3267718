"""What do more workers and more trials gain on this machine, and what is predicted for A100s?

    python studies/scaling.py                                      # 1 and 2 workers on this machine, a few minutes
    python studies/scaling.py --small                              # try the command; its values mean nothing
    python studies/scaling.py --workers 1 2 4 8 --gpus-per-worker 1 --preset cifar100   # also inside a Ray job
    python studies/scaling.py --drift --seeds 0 1 2                # do metrics change with the number of workers?
    python studies/scaling.py --out results/scaling                # also write scaling.html, .json, .md and figures

Workers take real training steps of the second task through Ray Train (`cl2r/rayrun/scaling.py`). A model is fitted to
their times (`cl2r/study/scaling_model.py`), and predicts the same for A100s from assumed constants.
"""

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cl2r.cli.options import NameType, set_option, verbose_option
from cl2r.cli.study import StudyCommand, list_option
from cl2r.errors import InputError, TrainingError
from cl2r.storage.documents import parse_yaml

if TYPE_CHECKING:
    import pandas as pd

    from cl2r.config.schema import Config
    from cl2r.rayrun.scaling import Effort, StepTime
    from cl2r.study.resources import Resources
    from cl2r.study.scaling_model import Sample, StepModel


@click.command("scaling", cls=StudyCommand, help=(__doc__ or "").replace("\n\n    ", "\n\n\b\n    "))
@click.option("--preset", type=NameType("preset"), default="icons", show_default=True)
@set_option
@list_option("--workers", type=click.IntRange(1), default=(1, 2), metavar="N...", help="Numbers of workers.")
@list_option("--trials", type=click.IntRange(1), default=(1, 2), metavar="N...", help="Trials at the same time.")
@click.option("--batch", type=int, default=128, show_default=True, help="Rows of a batch.")
@click.option("--cpus-per-worker", type=click.IntRange(1), default=1, show_default=True)
@click.option("--gpus-per-worker", type=float, default=0, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True)
@click.option("--drift", is_flag=True, help="Also train short chains with every number of workers.")
@click.option("--epochs", type=click.IntRange(1), default=5, show_default=True, help="Epochs per task, for --drift.")
@list_option("--seeds", type=int, default=(0, 1, 2), metavar="N...", help="Seeds, for --drift.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR/NAME", help="Write NAME.html, .json, .md, figures."
)
@click.option("--small", is_flag=True, help="Measure as little as possible.")
@verbose_option
def main(preset: str, overrides: tuple[str, ...], workers: tuple[int, ...], batch: int, **options: Any) -> int:
    """Measure, fit and predict; print tables and what was found as Markdown."""
    import pandas as pd
    import torch

    from analysis.report.scaling import scaling_headline, scaling_page
    from analysis.tables import scaling as tables
    from analysis.tables import told
    from analysis.tables.formats import render
    from cl2r.engine.plan import plan_run
    from cl2r.rayrun.scaling import NETWORKS, PREDICTED_BATCH, Effort, predictions
    from cl2r.study.resources import Resources
    from cl2r.study.scaling_model import GPU, NETWORK, NODE, NVLINK, fit
    from cl2r.study.spec import Point, StudySpec

    small, cpus, gpus = options["small"], options["cpus_per_worker"], options["gpus_per_worker"]
    if len(set(workers)) != len(workers):
        raise InputError(f"--workers {' '.join(map(str, workers))}: give different numbers")
    if batch < 2 * max(workers):
        raise InputError(f"--batch {batch} is too small for {max(workers)} workers: batch norm needs 2 rows of each")
    spec = StudySpec.load({"preset": preset}, list(overrides))
    config = spec.config(Point(None, {}), spec.seeds[0])
    if len(plan_run(config).keys) < 2:
        raise InputError("the second task is timed, but this config has one: set scenario.n_tasks")
    effort = Effort(1, 1, (4, 100_000), 0.2) if small else Effort(rounds=options["rounds"])
    groups = [Resources(world, cpus, gpus) for world in sorted(workers)]
    steps, reduces = measured_steps(config, batch, groups, effort, options["verbose"])
    model, fitted, no_fit = None, pd.DataFrame(), ""
    try:
        model, fitted = fit([*(sample for step in steps for sample in step.samples()), *reduces])
    except InputError as error:
        no_fit = str(error)
    layouts, link_images = trial_layouts(config, batch, options["trials"], cpus, effort.seconds)
    networks = list(NETWORKS)[: 1 if small else None]
    predicted = pd.DataFrame(row for name in networks for row in predictions(name))
    links = f"by NVLink with {NVLINK}, beyond {NODE} GPUs by the network with {NETWORK}"
    assumed = f"{GPU}; gradients {links}; nothing overlaps"
    data = scaling_frame(steps, batch, model)
    shown = [tables.scaling_table(data, model, fitted, no_fit)]
    shown += [tables.samples_table(fitted)] if model else []
    shown += [tables.layouts_table(layouts, link_images, batch)]
    shown += [tables.predicted_table(predicted, GPU.name, assumed, PREDICTED_BATCH)]
    drift = pd.DataFrame()
    if options["drift"]:
        seeds, epochs = (options["seeds"][:1], 1) if small else (options["seeds"], options["epochs"])
        drift = metrics_by_workers(preset, overrides, workers, seeds, epochs)
        shown += [tables.drift_table(drift)]
    where = f"{gpus:g} GPU" if gpus else f"{cpus} CPU"
    about = f"{preset}, {config.backbone.name}, {config.method.name}, batch {batch}, {where} per worker"
    machine = f"{os.cpu_count()} cores, torch {torch.__version__}; {effort.rounds} rounds of {effort.steps} steps"
    frames = {"scaling": data, "trials": layouts, "predicted": predicted, "drift": drift}
    careful = f"Times are medians of {effort.rounds} rounds on one machine with {os.cpu_count()} cores"
    careful = "Times were measured as shortly as possible and mean nothing" if small else careful
    headline = scaling_headline(Path(preset).stem, frames, fitted, careful, GPU.name, NODE)
    text = told(headline, f"{about}; {machine}\n\n{render(shown, 'markdown')}", "markdown")
    click.echo(text)
    if options["out"]:
        page = scaling_page(headline, frames, shown, GPU.name, f"{about}; {machine}")
        write(options["out"], frames, text, page, about, f"{GPU.name}s, {GPU}, batch {PREDICTED_BATCH}")
    return 0


def measured_steps(
    config: "Config", batch: int, groups: "list[Resources]", effort: "Effort", verbose: bool
) -> "tuple[list[StepTime], list[Sample]]":
    """Return the steps and all-reduces of every group of workers."""
    from cl2r.rayrun.scaling import measure_workers

    steps: list[StepTime] = []
    reduces: list[Sample] = []
    measured = measure_workers(config, batch, groups, effort, verbose)
    for group, (own_steps, own_reduces) in zip(groups, measured, strict=True):
        steps += own_steps
        reduces += own_reduces
        click.echo(f"{group.workers} workers: done", err=True)
    return steps, reduces


def scaling_frame(steps: "list[StepTime]", batch: int, model: "StepModel | None") -> "pd.DataFrame":
    """Return one row per mode and number of workers: strong scaling shares the batch, weak scaling has one each."""
    import pandas as pd

    from cl2r.study.scaling_model import speeds

    rows = []
    for mode in ("strong", "weak"):
        own = [step for step in steps if step.batch == batch * (step.workers if mode == "weak" else 1)]
        own.sort(key=lambda step: step.workers)
        measured = speeds([(step.workers, step.batch, step.seconds, step.communication) for step in own])
        for step, row in zip(own, measured, strict=True):
            flops, sent = step.batch * step.row_flops, step.gradient_bytes
            fitted = math.nan if model is None else model.seconds(step.workers, flops, sent)
            rows.append({"mode": mode, **row, "fitted_seconds": fitted})
    return pd.DataFrame(rows)


def trial_layouts(
    config: "Config", batch: int, trials: tuple[int, ...], threads: int, seconds: float
) -> "tuple[pd.DataFrame, int]":
    """Return one row per layout of trials × threads, and the images of a link of the second task."""
    import pandas as pd

    from cl2r.engine.plan import plan_run
    from cl2r.rayrun.scaling import with_batch
    from cl2r.runtime.environment import cores
    from cl2r.study.calibrate import measure
    from cl2r.study.cost import link_costs

    config = with_batch(config, batch)
    images = link_costs(plan_run(config))[1].images
    tried = [(f"{count} at the same time", count, threads) for count in trials]
    tried += [("one, all cores", 1, cores()), ("one per core, all cores each", cores(), cores())]
    rows = []
    for name, processes, own in tried:
        layout = measure(config, processes, own, seconds)
        rows.append((name, processes, own, layout.rate, 3600 * layout.rate / images, layout.bytes))
        click.echo(f"{name}: done", err=True)
    columns = ["name", "processes", "threads", "images_per_second", "links_per_hour", "bytes"]
    data = pd.DataFrame(rows, columns=columns)
    fair = data[data["processes"] * data["threads"] <= cores()]  # what `--cpus-per-worker auto` chooses from
    if len(fair):
        chosen = fair.index[int(fair["images_per_second"].to_numpy().argmax())]
        data["name"] = [name + " (chosen)" * (row == chosen) for row, name in data["name"].items()]
    return data, images


def metrics_by_workers(
    preset: str, overrides: tuple[str, ...], workers: tuple[int, ...], seeds: tuple[int, ...], epochs: int
) -> "pd.DataFrame":
    """Train short chains with every number of workers. Each has its own storage, because links do not differ by it."""
    import pandas as pd

    from analysis.tables.scaling import DRIFT_METRICS
    from cl2r import run_study
    from cl2r.storage.path import temporary_folder

    settings = {"scenario.stop_after": 3, "optim.epochs": epochs}
    settings |= {
        key: parse_yaml(value, f"--set {key}") for key, _, value in (text.partition("=") for text in overrides)
    }
    spec = {"preset": preset, "seeds": list(seeds), "set": settings}
    frames = []
    for world in workers:
        with temporary_folder("drift") as storage:
            runs = run_study(spec, storage=storage, workers=world).runs
        if (runs["status"] != "finished").any():
            raise TrainingError(f"the chains of {world} workers did not all finish, see above")
        frames.append(runs[["seed", *DRIFT_METRICS]].assign(workers=world))
    return pd.concat(frames, ignore_index=True)


def write(stem: Path, frames: "dict[str, pd.DataFrame]", text: str, page: str, about: str, predicted_for: str) -> None:
    """Write the page, the frames as JSON, the text as Markdown, and figures of what was measured and predicted."""
    from analysis.plots.parts import save
    from analysis.plots.scaling import plot_measured, plot_predicted

    stem.parent.mkdir(parents=True, exist_ok=True)
    plain = {name: json.loads(frame.to_json(orient="records")) for name, frame in frames.items()}
    stem.with_name(f"{stem.name}.json").write_text(
        json.dumps({"about": about, **plain}, indent=1) + "\n", encoding="utf-8"
    )
    stem.with_name(f"{stem.name}.md").write_text(text + "\n", encoding="utf-8")
    stem.with_name(f"{stem.name}.html").write_text(page, encoding="utf-8")
    save(plot_measured(frames["scaling"], about), stem)
    heading = f"Predicted, not measured: {predicted_for}"
    save(plot_predicted(frames["predicted"], heading, "A100s"), stem.with_name(f"{stem.name}_predicted"))


if __name__ == "__main__":
    main.run_program()
