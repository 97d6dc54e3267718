"""Seconds per trial beyond training, and in total: plain Ray Tune and cl2r's study, on the same tiny runs.

Both make two runs at a time, each in a process of its own, and start a Ray of their own without its dashboard.
"""

import contextlib
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from tests.benchmarks.speed.harness import Measured, Sizes, alone, compared, say
from tests.benchmarks.speed.images import mosaics

CONCURRENT, STORE_BYTES = 2, 256 * 2**20
CLASSES, PER_CLASS = 12, 14


class Ended(NamedTuple):
    """When a run ended, and the seconds of its own work."""

    at: float
    own: float


@dataclass(frozen=True)
class Timed:
    """Seconds of all runs together, and the runs in the order in which they ended."""

    wall: float
    runs: tuple[Ended, ...]

    @property
    def overhead(self) -> float:
        """Seconds per run beyond its own work while all m lanes have work: from the m-th end to the m-th last end.

        A lane is busy for a share b of that time; a run with w seconds of own work takes w/b, so the overhead is
        w·(1/b − 1).
        """
        began, ended = self.runs[CONCURRENT - 1].at, self.runs[-CONCURRENT].at
        inside = [max(0.0, min(run.at, ended) - max(run.at - run.own, began)) for run in self.runs]
        busy = sum(inside) / (CONCURRENT * (ended - began))
        return statistics.mean(run.own for run in self.runs[CONCURRENT:]) * (1 / busy - 1)


class Quiet:
    """A listener that shows warnings only."""

    def say(self, line: str) -> None:
        """Ignore progress."""

    def warn(self, line: str) -> None:
        """Print the warning."""
        print(line, file=sys.stderr)

    def begin(self, tasks: list[int]) -> None:
        """Ignore progress."""

    def epoch(self, report: object) -> None:
        """Ignore progress."""


def write_preset(folder: Path) -> None:
    """Write a preset of two tasks with one epoch each, on 12 small classes."""
    rng = np.random.default_rng(7)
    x_train, y_train = mosaics(CLASSES, CLASSES * PER_CLASS, rng)
    x_open, y_open = mosaics(6, 6 * PER_CLASS, rng)
    np.savez(folder / "tiny.npz", x_train=x_train, y_train=y_train, x_open=x_open, y_open=y_open + CLASSES)
    preset = {
        "threads": 1,
        "data": {"name": str(folder / "tiny.npz")},
        "scenario": {"n_tasks": 2},
        "backbone": {"name": "resnet8s"},
        "memory": {"per_class": 3},
        "batches": {"size": 16},
        "optim": {"epochs": 1, "milestones": []},
        "eval": {"positives": 60, "negatives": 60, "folds": 5, "bootstrap": 0},
    }
    (folder / "preset.yaml").write_text(yaml.safe_dump(preset), encoding="utf-8")


def by_study(folder: Path, trials: int) -> Timed:
    """Time cl2r's study with one run per seed."""
    from cl2r.cli.study import load_command
    from cl2r.study.folder import StudyFolder

    study = {"preset": str(folder / "preset.yaml"), "grid": {"method.name": ["cl2r"]}, "seeds": list(range(trials))}
    (folder / "study.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    place = StudyFolder(folder / "study", "overhead")
    words = ["--storage", str(place.storage), "--name", place.name, "--max-concurrent", str(CONCURRENT)]
    began = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        code = load_command(str(folder / "study.yaml"))(words)
    wall, events = time.perf_counter() - began, place.ledger.events("finished")
    if code or len(events) != trials:
        raise RuntimeError(f"{len(events)} of {trials} runs of the study finished")
    runs = (Ended(event.time_ns / 1e9, event.read()["frames"]["runs"][0]["wall_seconds"]) for event in events)
    return Timed(wall, tuple(sorted(runs)))


def plain_trial(config: dict[str, Any]) -> None:
    """Make the same run as a trial of Tune."""
    from ray import tune

    from cl2r.config.layers import from_dotted, read_layer, resolve
    from cl2r.engine.chain import execute
    from cl2r.engine.plan import plan_run

    plan = plan_run(resolve([read_layer(config["preset"]), from_dotted("seed", config["seed"])]))
    result = execute(plan, Path(config["root"]), Quiet())
    tune.report({"own": result.seconds, "ended": time.time(), "AC": result.report.values["AC"]})


def by_tune(folder: Path, trials: int) -> Timed:
    """Time `ray.tune.Tuner` with its defaults: a new process per trial, and its own loggers."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    import ray
    from ray import tune

    began = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            object_store_memory=STORE_BYTES,
        )
        common = {"preset": str(folder / "preset.yaml"), "root": str(folder / "plain")}
        results = tune.Tuner(
            tune.with_resources(plain_trial, {"cpu": 1}),
            param_space={**common, "seed": tune.grid_search(list(range(trials)))},
            tune_config=tune.TuneConfig(max_concurrent_trials=CONCURRENT),
            run_config=tune.RunConfig(name="plain", storage_path=str(folder / "tune"), verbose=0),
        ).fit()
        ray.shutdown()
    wall = time.perf_counter() - began
    if results.errors:
        raise RuntimeError(f"{len(results.errors)} of {trials} trials of Tune failed: {results.errors[0]}")
    reports = (result.metrics for result in results)
    return Timed(wall, tuple(sorted(Ended(report["ended"], report["own"]) for report in reports)))


def measure(sizes: Sizes, folder: Path) -> Iterator[Measured]:
    """Measure both ways in turns, each in a fresh process."""
    plain, study = list[Timed](), list[Timed]()
    for number in range(sizes.study_rounds):
        plain.append(_timed(by_tune, folder, sizes.trials))
        study.append(_timed(by_study, folder, sizes.trials))
        walls = f"{plain[-1].wall:.1f} s by Tune, {study[-1].wall:.1f} s by a study"
        say(f"{sizes.trials} trials, {number + 1} of {sizes.study_rounds}: {walls}")
    note = (
        f"{sizes.trials} runs of two short tasks, {CONCURRENT} at a time, while both lanes have work; Tune with its "
        "defaults, a new process a trial; its Ray has no dashboard, as cl2r's"
    )
    overheads = [one.overhead for one in plain], [one.overhead for one in study]
    yield compared("study", "overhead a trial", "s", *overheads, note)
    note = "Ray's start and end included; and, of cl2r, its frames, figures and report"
    walls_of = [one.wall for one in plain], [one.wall for one in study]
    yield compared("study", f"wall of {sizes.trials} trials", "s", *walls_of, note)


def _timed(way: Callable[[Path, int], Timed], folder: Path, trials: int) -> Timed:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        write_preset(Path(own))
        return alone(way, Path(own), trials)
