"""Two ways to the same many tiny runs on Ray, two at a time, each in a process of its own: cl2r's study, plain Tune.

Both start a Ray of their own, without its dashboard.
"""

import contextlib
import logging
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from studies.speed.images import mosaics

CONCURRENT, STORE_BYTES = 2, 256 * 2**20
CLASSES, PER_CLASS = 12, 14


class Ended(NamedTuple):
    """A run: when it ended, and the seconds of its own work."""

    at: float
    own: float


@dataclass(frozen=True)
class Timed:
    """Seconds of the whole, and the runs in the order of their ends."""

    wall: float
    runs: tuple[Ended, ...]

    @property
    def overhead(self) -> float:
        """Seconds a run beyond its own work, while all m lanes have work: from the m-th end to the m-th last one.

        A lane is busy for a share b of that time; a run of own work w then takes w/b, so w·(1/b − 1) is not its own.
        """
        began, ended = self.runs[CONCURRENT - 1].at, self.runs[-CONCURRENT].at
        inside = [max(0.0, min(run.at, ended) - max(run.at - run.own, began)) for run in self.runs]
        busy = sum(inside) / (CONCURRENT * (ended - began))
        return statistics.mean(run.own for run in self.runs[CONCURRENT:]) * (1 / busy - 1)


class Quiet:
    """A listener that keeps nothing."""

    def say(self, line: str) -> None:
        """Nothing is said."""

    def warn(self, line: str) -> None:
        """Damage must be seen."""
        print(line, file=sys.stderr)

    def begin(self, tasks: list[int]) -> None:
        """Nothing is shown."""

    def epoch(self, report: object) -> None:
        """Nothing is shown."""


def write_preset(folder: Path) -> Path:
    """Two tasks of one epoch on 12 small classes."""
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
    (folder / "preset.yaml").write_text(yaml.safe_dump(preset))
    return folder / "preset.yaml"


def by_study(folder: Path, trials: int) -> Timed:
    """cl2r's study: a run a seed."""
    from cl2r.study import custom
    from cl2r.study.folder import StudyFolder

    study = {"preset": str(folder / "preset.yaml"), "grid": {"method.name": ["cl2r"]}, "seeds": list(range(trials))}
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    place = StudyFolder(folder / "study", "overhead")
    words = ["--storage", str(place.storage), "--name", place.name, "--max-concurrent", str(CONCURRENT)]
    began = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        code = custom.main(folder / "study.yaml", words)
    wall, events = time.perf_counter() - began, place.ledger.events("finished")
    if code or len(events) != trials:
        raise RuntimeError(f"{len(events)} of {trials} runs of the study finished")
    runs = (Ended(event.time_ns / 1e9, event.read()["frames"]["runs"][0]["wall_seconds"]) for event in events)
    return Timed(wall, tuple(sorted(runs)))


def plain_trial(config: dict[str, Any]) -> None:
    """A function of Tune that makes the same run."""
    from ray import tune

    from cl2r.engine.plan import plan_run
    from cl2r.engine.run import execute
    from cl2r.layers import from_dotted, read_layer, resolve

    plan = plan_run(resolve([read_layer(config["preset"]), from_dotted("seed", config["seed"])]))
    result = execute(plan, Path(config["root"]), Quiet())
    tune.report({"own": result.seconds, "ended": time.time(), "AC": result.report.ac})


def by_tune(folder: Path, trials: int) -> Timed:
    """`ray.tune.Tuner` as it comes: a new process a trial, its own loggers."""
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
