"""Studies of invented runs, with the columns and types of real ones, for tests of tables, plots and reports."""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from analysis import Study
from analysis.paper.report import preset_fields
from cl2r.metrics import METRICS, End
from cl2r.study.frames import _ALWAYS, _typed

STRENGTH = {"er": -0.03, "cl2r": 0.02}
"""How much a method's new queries gain on an old gallery per task; others are in between."""
ABOUT: dict[str, Any] = {
    **{"format": 1, "version": "0.1.0", "commit": "0123456789abcdef0123456789abcdef01234567"},
    "command": ["python", "studies/ablation.py", "--seeds", "0", "1"],
    **{"began": "2026-11-16T10:00:00+00:00", "ended": "2026-11-16T11:30:00+00:00", "seconds": 5400.0},
    "expected_runs": 4,
    "resources": {"workers": 1, "cpus_per_worker": 1, "gpus_per_worker": 0.0},
    "environment": {
        **{"python": "3.11.7", "platform": "Linux-6.1-x86_64", "processor": "A processor", "cpus": 2},
        **{"memory_bytes": 24 * 2**30, "gpus": []},
        "packages": {"torch": "2.15.0", "ray": "2.60.0", "optuna": "5.0.0"},
    },
}


def made_study(
    methods: Sequence[str] = ("er", "cl2r"),
    seeds: Sequence[int] = (0, 1),
    tasks: int = 3,
    grid: Mapping[str, Sequence[Any]] | None = None,
    failed: Sequence[int] = (),
    name: str = "made",
    random: int = 0,
    **entries: Any,
) -> Study:
    """Return methods × points of the grid × seeds. `failed` are trials; `entries` update the specification."""
    stream = np.random.default_rng(random)
    points: list[dict[str, Any]] = [{"method.name": method} for method in methods]
    for field, values in (grid or {}).items():
        points = [{**point, field: value} for point in points for value in values]
    rows: dict[str, list[dict[str, Any]]] = {"runs": [], "tasks": [], "matrix": [], "curves": []}
    for number, (point, seed) in enumerate(itertools.product(points, seeds)):
        run = _run(point, seed, number, tasks, name)
        if number in failed:
            failure = {"status": "failed", "reason": "loss_ce is nan in epoch 3 of task 2 <b>&"}
            rows["runs"].append({**run, "tasks": None, **failure})
        else:
            _finish(run, rows, stream)
    frames = {key: _typed(value, _ALWAYS[key]) for key, value in rows.items()}
    specification = {"preset": "icons", "seeds": list(seeds), "grid": {"method.name": list(methods), **(grid or {})}}
    about = {**ABOUT, "expected_runs": len(rows["runs"])}
    return Study(name=name, specification={**specification, **entries}, about=about, **frames)


def made_sweep(
    trials: int = 12,
    tasks: Sequence[int] = (2, 5),
    seeds: Sequence[int] = (0,),
    confirm: Sequence[int] = (),
    objectives: Sequence[str] = ("service_accuracy",),
    constraints: Mapping[str, str] | None = None,
) -> Study:
    """Return a sweep of CL²R over λ_base and memory with reference runs of ER.

    Each number of tasks has `trials` trials. With `confirm`, its first trial has further seeds, beside the default.
    """
    stream, name = np.random.default_rng(0), "swept"
    rows: dict[str, list[dict[str, Any]]] = {"runs": [], "tasks": [], "matrix": [], "curves": []}

    def add(method: str, values: Mapping[str, Any], seed: int, trial: int | None, variant: str | None = None) -> None:
        run = _run({"method.name": method, **values}, seed, len(rows["runs"]), 0, name)
        _finish({**run, "trial": trial, "variant": variant}, rows, stream)

    for place, count in enumerate(tasks):
        sizes = np.unique(np.geomspace(1, 40, 7).round().astype(int))
        first: dict[str, Any] = {}
        for number in range(trials):
            weight = float(10 ** stream.uniform(-1, 2))
            point = {"scenario.n_tasks": count, "method.lambda_base": weight}
            point["memory.per_class"] = int(stream.choice(sizes))
            first = first or point
            for seed in seeds:
                add("cl2r", point, seed, place * trials + number)
        for seed in (*seeds, *confirm):
            add("er", {"scenario.n_tasks": count}, seed, None, "reference")
            if confirm:
                add("cl2r", {"scenario.n_tasks": count}, seed, None, "default")
        for seed in confirm:
            add("cl2r", first, seed, place * trials, "confirmed")
    space = {
        "method.lambda_base": {"low": 0.1, "high": 100.0, "log": True},
        "memory.per_class": {"low": 1, "high": 40, "log": True},
        "scenario.n_tasks": list(tasks),
    }
    limits = {"reindexed_accuracy": ">= er - 0.01"} if constraints is None else dict(constraints)
    search = {"trials": trials, "objectives": list(objectives), "constraints": limits}
    specification = {"preset": "icons", "seeds": list(seeds), "space": space, "search": search}
    frames = {key: _typed(value, _ALWAYS[key]) for key, value in rows.items()}
    return Study(name=name, specification=specification, about={**ABOUT, "expected_runs": len(rows["runs"])}, **frames)


def confirmed_sweep(tasks: Sequence[int] = (2, 5), gain: float = 0.0) -> Study:
    """Return a sweep in which the first trial of each T is the best and has three seeds.

    Its service accuracy on the report pairs is that of the default plus `gain`, ± 0.001 by seed.
    """
    study = made_sweep(12, tasks, confirm=(1, 2))
    runs = study.runs.copy()
    best = (runs["trial"] % 12 == 0).fillna(False).astype(bool)
    runs["tuning_service_accuracy"] = runs["tuning_service_accuracy"].mask(best, 0.9)
    for count in tasks:
        own = (runs["tasks"] == count).astype(bool)
        default = runs[own & (runs["variant"] == "default").fillna(False).astype(bool)].set_index("seed")
        shift = runs["seed"].map({0: -0.001, 1: 0.0, 2: 0.001}).astype(float)
        values = runs["seed"].map(default["service_accuracy"]).astype(float) + gain + shift
        runs["service_accuracy"] = runs["service_accuracy"].mask(own & best, values)
    return dataclasses.replace(study, runs=runs)


@cache
def _preset(method: str) -> dict[str, Any]:
    found = preset_fields("icons", method)
    return {key: json.dumps(value) if isinstance(value, list) else value for key, value in found.items()}


def _run(point: Mapping[str, Any], seed: int, number: int, tasks: int, study: str) -> dict[str, Any]:
    method, tasks = str(point["method.name"]), int(point.get("scenario.n_tasks", tasks))
    run = f"icons-{method}-T{tasks}-s{seed}-{number:08x}"
    head = {"study": study, "trial": number, "variant": None, "run": run, "status": "finished", "reason": None}
    return {**head, "tasks": tasks, **_preset(method), "scenario.n_tasks": tasks, **point, "seed": seed}


def _finish(run: dict[str, Any], rows: dict[str, list[dict[str, Any]]], stream: np.random.Generator) -> None:
    matrices = {pairs: _matrix(run, stream) for pairs in ("report", "tuning")}
    for pairs, matrix in matrices.items():
        run |= _metrics(matrix, pairs)
        rows["matrix"] += _cells(run["run"], pairs, matrix)
    stored = int(3e5 + 1e4 * float(run["memory.per_class"]))
    run |= {"adapter_flops": 0.0, "gallery_items_touched": 0, "stored_bytes": stored}
    for task in range(1, run["tasks"] + 1):
        rows["tasks"].append(_task(run, task, reused=task == 1 and run["seed"] > 0, stream=stream))
        for epoch in (1, 2, 3):
            losses = {"loss_ce": 2.0 / epoch + 0.1 * task, "loss_fd": 0.1 / epoch if task > 1 else None}
            place = {"run": run["run"], "task": task, "stage": "train", "epoch": epoch}
            rows["curves"].append({**place, "lr": 0.1 / epoch, "seconds": 1.0, **losses})
    run |= {"train_seconds": 10.0 * run["tasks"], "links_trained": run["tasks"], "wall_seconds": 11.0 * run["tasks"]}
    rows["runs"].append(run | {"peak_bytes": int(6e8)})


def _matrix(run: Mapping[str, Any], stream: np.random.Generator) -> np.ndarray:
    size = run["tasks"]
    own = 0.7 + 0.02 * np.arange(size)
    age = np.arange(size)[:, None] - np.arange(size)[None]
    gain = STRENGTH.get(str(run["method.name"]), 0.0) + 0.001 * float(run["memory.per_class"])
    matrix = own[None, :] + gain * (age > 0) + stream.normal(0, 0.004, (size, size))
    return np.where(age >= 0, matrix, np.nan)


def _metrics(matrix: np.ndarray, pairs: str) -> dict[str, float]:
    """Return every metric of the registry by its column, with the ends of its interval if it has one."""
    values = {metric: float(metric.compute(matrix, False)) for metric in METRICS.of_matrix() if metric.compute}
    ends: dict[End, float] = {"": 0.0, "low": -0.01, "high": 0.01}
    columns = {m.column(pairs, end=end): values[m] + ends[end] for end in ends for m in values if m.interval}
    return columns | {metric.column(pairs): value for metric, value in values.items() if not metric.interval}


def _cells(run: str, pairs: str, matrix: np.ndarray) -> list[dict[str, Any]]:
    rows = []
    for t, k in zip(*np.tril_indices(len(matrix)), strict=True):
        value, own = float(matrix[t, k]), float(matrix[k, k])
        cell = {"run": run, "pairs": pairs, "metric": "accuracy", "t": int(t) + 1, "k": int(k) + 1, "accuracy": value}
        below = k < t
        cell |= {"compatible": value > own if below else None, "low": value - 0.012, "high": value + 0.011}
        rows.append({**cell, "p_compatible": float(np.clip(0.5 + 20 * (value - own), 0, 1)) if below else None})
    return rows


def _task(run: Mapping[str, Any], task: int, reused: bool, stream: np.random.Generator) -> dict[str, Any]:
    later = task > 1
    own = {"run": run["run"], "task": task, "key": f"{run['run'] if later else run['method.name']}-{task}"}
    own |= {"reused": reused, "images": 10_000, "seconds": 10.0, "memory": 80 * later, "workers": 1}
    own |= {"sync_batchnorm": False, "extract_seconds": 0.4, "images_per_second": 1000.0, "feature_size": 99.0}
    own["peak_bytes"] = int(6e8)
    own |= {"common_direction": 0.5, "drift_cosine": 0.8 + float(stream.normal(0, 0.02)) if later else None}
    own |= {"rotated_cosine": 0.9 if later else None, "cka": 0.85 if later else None, "lambda": 3.0 * later}
    fixed = run["method.classifier"] == "fixed"
    own |= {"vertex_cosine": 0.6 if fixed else None, "vertex_bound": 0.9 if fixed else None}
    return {**own, "loss_ce": 0.7, "loss_fd": 0.03 if later else None}


def write_made(study: Study, folder: Path) -> Path:
    """Write the files of a study, as its driver does."""
    folder.mkdir(parents=True)
    for name in ("runs", "tasks", "matrix", "curves"):
        getattr(study, name).to_parquet(folder / f"{name}.parquet", index=False)
    (folder / "study.yaml").write_text(yaml.safe_dump({"id": "made", "specification": study.specification}))
    (folder / "about.json").write_text(json.dumps(study.about))
    return folder
