"""What more workers gain and cost: steps shared by workers, trials side by side, a model for other machines.

    python studies/scaling.py                                      # 1 and 2 workers on this machine, a few minutes
    python studies/scaling.py --small                              # does it work? no figure of it means anything
    python studies/scaling.py --workers 1 2 4 8 --gpus-per-worker 1 --preset cifar100   # inside a Ray job too
    python studies/scaling.py --drift --seeds 0 1 2                # do metrics change with workers?
    python studies/scaling.py --out results/scaling                # scaling.json, .md and figures beside the table

Workers make real steps of the second task through Ray Train, as a study with --workers does. Strong scaling: one batch
of --batch rows for all of them; weak scaling: as many rows each. Every round times steps that average gradients, then
as many inside DDP's no_sync(): the share of time that goes is communication (what DDP hides behind the computation is
none). All-reduces alone are timed for several sizes. To all of it a model is fitted (`cl2r/study/cost_model.py`), which
predicts the same for A100s by assumed constants.
Trials side by side are processes on this machine that do not talk; links an hour are those of the second task.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from analysis.cells import deviation_note, figure_cell, spread
from analysis.formats import render
from analysis.plots.parts import save
from analysis.plots.scaling_model import plot_measured, plot_predicted
from analysis.table import Cell, Table
from cl2r.config import Config
from cl2r.engine.plan import plan_run
from cl2r.errors import InputError, exit_code
from cl2r.rayrun.cluster import cluster, set_environment
from cl2r.rayrun.resources import Resources
from cl2r.study.cost import link_costs
from cl2r.study.cost_model import Fit, GpuAssumption, Sample, fit
from cl2r.study.layout import Layout, cores, measure
from cl2r.study.spec import Point, build_study
from studies.scaling_worker import (
    METRICS,
    NETWORKS,
    PREDICTED_BATCH,
    Effort,
    Found,
    ReduceTime,
    StepTime,
    drifted,
    layouts,
    measured_by,
    plain_config,
    predictions,
)

SMALL = Effort(steps=1, rounds=1, sizes=(4, 100_000), seconds=0.2)


@dataclass
class Results:
    """What is told; lists of rows where it was measured."""

    batch: int
    steps: list[StepTime] = field(default_factory=list)
    reduces: list[ReduceTime] = field(default_factory=list)
    trials: list[tuple[str, Layout]] = field(default_factory=list)
    link_images: int = 0
    fitted: Fit | None = None
    no_fit: str = ""
    drift: pd.DataFrame = field(default_factory=pd.DataFrame)

    def of_mode(self, mode: str) -> list[StepTime]:
        """Strong: the batch for all workers; weak: as many rows each. One worker is both."""
        wanted = {w: self.batch * (w if mode == "weak" else 1) for w in {step.workers for step in self.steps}}
        return sorted((s for s in self.steps if s.batch == wanted[s.workers]), key=lambda step: step.workers)


# ---------------------------------------------------------------- measuring


def checked_config(preset: str, overrides: Sequence[str], batch: int, workers: Sequence[int]) -> Config:
    """The config of all steps; anything wrong with it is said now."""
    if min(workers) < 1 or len(set(workers)) != len(workers):
        raise InputError(f"--workers {' '.join(map(str, workers))}: different numbers from 1 on")
    if batch < 2 * max(workers):
        raise InputError(f"--batch {batch} is too small for {max(workers)} workers: batch norm needs 2 rows of each")
    study = build_study({"preset": preset}, list(overrides), "scaling")
    config = study.config(Point(None, {}), study.spec.seeds[0])
    if len(plan_run(config).keys) < 2:
        raise InputError("the second task is timed, and this config has one: set scenario.n_tasks")
    return config


def measured(
    config: Config, batch: int, worlds: Sequence[int], cpus: int, gpus: float, effort: Effort, verbose: bool
) -> Iterator[Found]:
    """What each number of workers measured, the fewest first."""
    set_environment(verbose)
    with cluster(Resources(max(worlds), cpus, gpus), verbose):
        for world in sorted(worlds):
            plains = [plain_config(config, rows) for rows in dict.fromkeys((batch, batch * world))]
            yield measured_by(plains, Resources(world, cpus, gpus), effort)


def samples(results: Results) -> list[Sample]:
    """What the model is fitted to: steps with and without averaging, and all-reduces."""
    found = []
    for step in results.steps:
        flops, name = step.batch / step.workers * step.row_flops, f"{step.workers} × {step.batch // step.workers} rows"
        found.append(Sample(f"{name}, apart", flops, 1, 0, step.apart_seconds))
        if step.workers > 1:
            found.append(Sample(name, flops, step.workers, step.gradient_bytes, step.seconds))
    for one in results.reduces:
        name = f"{one.workers} workers, all-reduce of {one.size:,} bytes"
        found.append(Sample(name, 0, one.workers, one.size, one.seconds, step=False))
    return found


# ---------------------------------------------------------------- tables


def scaling_rows(results: Results) -> pd.DataFrame:
    """By mode and workers: time, images a second, what they are of the ideal from the fewest workers, the model's."""
    rows = []
    for mode in ("strong", "weak"):
        own = results.of_mode(mode)
        for step in own:
            up = step.rate / own[0].rate
            rows.append(
                {
                    "mode": mode,
                    "workers": step.workers,
                    "rows": step.batch / step.workers,
                    "seconds": step.seconds,
                    "images_per_second": step.rate,
                    "speed_up": up,
                    "efficiency": up * own[0].workers / step.workers,
                    "communication": step.communication if step.workers > 1 else 0.0,
                    "fitted_seconds": fitted_seconds(results, step),
                }
            )
    return pd.DataFrame(rows)


def fitted_seconds(results: Results, step: StepTime) -> float:
    """Of a step by the model; not a number where there is none."""
    if results.fitted is None:
        return float("nan")
    return results.fitted.model.seconds(step.workers, step.batch * step.row_flops, step.gradient_bytes)


def scaling_table(results: Results) -> Table:
    """Strong and weak scaling."""
    data = scaling_rows(results)
    heads = ("scaling", "workers", "rows each", "ms a step", "images/s", "efficiency", "communication", "model ms")
    forms = (".0f", ".0f", ".1f", ",.0f", ".0%", ".0%", ".1f")
    figures = data.assign(seconds=1e3 * data["seconds"], fitted_seconds=1e3 * data["fitted_seconds"])
    figures = figures.drop(columns="speed_up")
    notes = (
        "Efficiency is the share of the fewest workers' speed times their number; communication is the share of a "
        "step that goes when gradients are not averaged.",
        fit_note(results),
    )
    return Table(heads, _rows(figures, 1, forms), data, "Workers that share a step", notes)


def fit_note(results: Results) -> str:
    """The constants of the model and its residuals, or why there is none."""
    if results.fitted is None:
        return f"No model: {results.no_fit}."
    model, residuals = results.fitted.model, np.abs(results.fitted.residuals)
    rate = f"{1e-9 / model.seconds_per_flop:,.1f} GFLOP/s" if model.seconds_per_flop else "no time for FLOPs"
    return (
        f"Model, fitted to {len(residuals)} samples: {rate} a worker, {1e3 * model.fixed_seconds:.2g} ms a step "
        f"besides, all-reduce {model.ring.described()}; relative residuals: median {np.median(residuals):.0%}, "
        f"largest {residuals.max():.0%}."
    )


def samples_table(fitted: Fit) -> Table:
    """Every sample as measured and as fitted."""
    shown = [(1e3 * sample.seconds, 1e3 * fitted.fitted(sample)) for sample in fitted.samples]
    data = pd.DataFrame(shown, columns=["measured", "fitted"])
    data.insert(0, "sample", [sample.name for sample in fitted.samples])
    data["residual"] = fitted.residuals
    return Table(("sample", "ms", "model ms", "residual"), _rows(data, 1, (",.3f", ",.3f", "+.0%")), data, "The fit")


def trials_table(results: Results) -> Table:
    """Layouts of one machine's cores, and which of them `--cpus-per-worker auto` takes for many trials."""
    fair = [layout for _, layout in results.trials if layout.trials * layout.threads <= cores()]
    chosen = max(fair, key=lambda layout: layout.rate) if fair else None
    data = pd.DataFrame(
        [
            {
                "name": name + " (chosen)" * (layout is chosen),
                "processes": layout.trials,
                "threads": layout.threads,
                "images_per_second": layout.rate,
                "links_per_hour": 3600 * layout.rate / results.link_images,
                "bytes": layout.bytes,
            }
            for name, layout in results.trials
        ]
    )
    heads = ("trials", "processes", "threads each", "images/s", "links an hour", "MB of all")
    figures = data.assign(bytes=data["bytes"] / 1e6)
    note = f"A link of the second task takes {results.link_images:,} images; batches of {results.batch} rows."
    return Table(heads, _rows(figures, 1, (".0f", ".0f", ",.0f", ",.1f", ",.0f")), data, "Trials side by side", (note,))


def predicted_table(data: pd.DataFrame, gpu: GpuAssumption) -> Table:
    """What the model says of GPUs."""
    heads = ("network", "scaling", f"{gpu.name}s", "rows each", "ms a step", "communication", "images/s", "efficiency")
    figures = data.drop(columns=["row_flops", "gradient_bytes", "speed_up"])
    figures = figures.assign(seconds=1e3 * figures["seconds"])
    forms = (".0f", ".0f", ".1f", ".0%", ",.0f", ".0%")
    sizes = data.drop_duplicates("network")[["network", "row_flops", "gradient_bytes"]].itertuples(index=False)
    counts = (f"{name}: {flops / 1e9:.2g} GFLOP a row, {size / 1e6:.3g} MB of gradients" for name, flops, size in sizes)
    notes = (
        f"Assumed, not measured: {gpu.assumed()}; gradients by NVLink with {gpu.nvlink.described()}, beyond "
        f"{gpu.model.node_workers} GPUs by the network with {gpu.network.described()}; nothing overlaps.",
        f"Counted at task 2 of CL²R: {'; '.join(counts)}.",
    )
    title = f"Predicted for batches of {PREDICTED_BATCH} (strong: of all; weak: of each)"
    return Table(heads, _rows(figures, 2, forms), data, title, notes)


def drift_table(runs: pd.DataFrame) -> Table:
    """Mean ± deviation over seeds by number of workers, and the differences of the same seeds from the fewest."""
    first, rows = runs["workers"].min(), []
    base = runs[runs["workers"] == first].set_index("seed")[list(METRICS)]
    for world, own in runs.groupby("workers"):
        figures = own.set_index("seed")[list(METRICS)]
        rows.append((f"{world}", *(spread(name, *_moments(figures[name])) for name in METRICS)))
        if world != first:
            apart = figures - base
            rows.append((f"{world} − {first}, by seed", *(spread("BC", *_moments(apart[name])) for name in METRICS)))
    cells = tuple(tuple(map(Cell, row)) for row in rows)
    note = deviation_note([runs["seed"].nunique()]) or "One seed: nothing is known of its spread."
    return Table(("workers", *METRICS), cells, runs, "Metrics by number of workers", (note,))


def _moments(values: pd.Series) -> tuple[float, float]:
    return float(values.mean()), float(values.std())


def _rows(data: pd.DataFrame, words: int, forms: Sequence[str]) -> tuple[tuple[Cell, ...], ...]:
    """Cells: the first columns are words, the others figures in these forms."""
    return tuple(
        (
            *(Cell(str(value)) for value in row[:words]),
            *(figure_cell(float(value), form) for value, form in zip(row[words:], forms, strict=True)),
        )
        for row in data.itertuples(index=False, name=None)
    )


def tables(results: Results, predicted: pd.DataFrame, gpu: GpuAssumption) -> list[Table]:
    """All that there is to tell."""
    found = [scaling_table(results)]
    found += [samples_table(results.fitted)] if results.fitted else []
    found += [trials_table(results)] if results.trials else []
    found += [predicted_table(predicted, gpu)]
    return found + ([drift_table(results.drift)] if len(results.drift) else [])


# ---------------------------------------------------------------- files


def model_lines(data: pd.DataFrame) -> pd.DataFrame:
    """The model's speed-up and efficiency, relative to what the fewest workers were measured to do."""
    known = data.dropna(subset=["fitted_seconds"])
    faster = known["seconds"] / known["fitted_seconds"]
    return known.assign(speed_up=known["speed_up"] * faster, efficiency=known["efficiency"] * faster)


def write(stem: Path, results: Results, predicted: pd.DataFrame, gpu: GpuAssumption, text: str, about: str) -> None:
    """`stem`.json, .md, and figures of what was measured and of what is predicted."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    plain: dict[str, Any] = asdict(results)
    plain |= {"drift": results.drift.to_dict("records"), "scaling": scaling_rows(results).to_dict("records")}
    plain |= {"predicted": predicted.to_dict("records"), "assumed": asdict(gpu), "about": about}
    stem.with_name(f"{stem.name}.json").write_text(json.dumps(_without_nan(plain), indent=1) + "\n")
    stem.with_name(f"{stem.name}.md").write_text(text + "\n")
    data = scaling_rows(results)
    save(plot_measured(data, model_lines(data), about), stem)
    heading = f"Predicted, not measured: {gpu.name}s, {gpu.assumed()}, batch {PREDICTED_BATCH}"
    save(plot_predicted(predicted, heading, f"{gpu.name}s"), stem.with_name(f"{stem.name}_predicted"))


def _without_nan(value: Any) -> Any:
    """JSON has no word for it."""
    if isinstance(value, Mapping):
        return {key: _without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and value != value else value


# ---------------------------------------------------------------- command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="icons")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--trials", type=int, nargs="*", default=[1, 2], metavar="N", help="none: leave them out")
    parser.add_argument("--batch", type=int, default=128, metavar="N", help="rows (default: 128)")
    parser.add_argument("--cpus-per-worker", type=int, default=1, metavar="N")
    parser.add_argument("--gpus-per-worker", type=float, default=0, metavar="N")
    parser.add_argument("--steps", type=int, default=Effort.steps, metavar="N", help="of a round")
    parser.add_argument("--rounds", type=int, default=Effort.rounds, metavar="N")
    parser.add_argument("--seconds", type=float, default=Effort.seconds, metavar="N", help="of trials side by side")
    parser.add_argument("--drift", action="store_true", help="train short chains with every number of workers")
    parser.add_argument("--epochs", type=int, default=5, metavar="N", help="of a task, for --drift")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N", help="for --drift")
    parser.add_argument("--storage", type=Path, metavar="DIR", help="of --drift (default: a folder for a while)")
    parser.add_argument("--out", type=Path, metavar="DIR/NAME", help="write NAME.json, NAME.md and figures")
    parser.add_argument("--small", action="store_true", help="as little of everything as possible")
    parser.add_argument("-v", "--verbose", action="store_true", help="Ray's own messages too")
    return parser


def _effort(args: argparse.Namespace) -> Effort:
    if min(args.steps, args.rounds) < 1 or args.seconds <= 0 or min(args.trials, default=1) < 1:
        raise InputError("--steps, --rounds and --trials at least 1, --seconds above 0")
    return SMALL if args.small else Effort(args.steps, args.rounds, Effort.sizes, args.seconds)


def _measure(args: argparse.Namespace, config: Config, effort: Effort) -> Results:
    """Workers first, then trials side by side, when Ray has left the machine to them."""
    results = Results(args.batch)
    words = config, args.batch, args.workers, args.cpus_per_worker, args.gpus_per_worker, effort, args.verbose
    for found in measured(*words):
        results.steps += found.steps
        results.reduces += found.reduces
        _say(f"{found.steps[0].workers} workers: done")
    plain = plain_config(config, args.batch)
    results.link_images = link_costs(plan_run(Config.model_validate(plain)))[1].images
    if args.trials:
        for name, processes, threads in layouts(args.trials, args.cpus_per_worker, cores()):
            results.trials.append((name, measure(Config.model_validate(plain), processes, threads, effort.seconds)))
            _say(f"{name}: done")
    try:
        results.fitted = fit(samples(results))
    except InputError as error:
        results.no_fit = str(error)
    return results


def _drift(args: argparse.Namespace) -> pd.DataFrame:
    with contextlib.ExitStack() as stack:
        place = args.storage or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cl2r-drift-")))
        epochs, seeds = (1, args.seeds[:1]) if args.small else (args.epochs, args.seeds)
        return drifted(args.preset, args.overrides, args.workers, seeds, epochs, place)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(words: list[str] | None = None) -> int:
    """Measure, fit, predict; print Markdown."""
    args = _parser().parse_args(words)
    effort = _effort(args)
    config, gpu = checked_config(args.preset, args.overrides, args.batch, args.workers), GpuAssumption()
    results, predicted = _measure(args, config, effort), predictions(gpu, list(NETWORKS)[: 1 if args.small else None])
    if args.drift:
        results.drift = _drift(args)
    where = f"{args.gpus_per_worker:g} GPU" if args.gpus_per_worker else f"{args.cpus_per_worker} CPU"
    about = f"{args.preset}, {config.backbone.name}, {config.method.name}, batch {args.batch}, {where} a worker"
    machine = f"{os.cpu_count()} cores, torch {torch.__version__}; median of rounds: {effort.rounds}, steps of each: "
    text = f"{about}; {machine}{effort.steps}\n\n{render(tables(results, predicted, gpu), 'markdown')}"
    print(text)
    if args.out:
        write(args.out, results, predicted, gpu, text, about)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code("scaling", main))
