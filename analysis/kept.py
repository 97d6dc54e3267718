"""Runs that are kept as JSON beside a page of results: written from a study, read back as a study.

The file holds what the page is made of: matrices, diagnostics of every link, settings, and where the runs were trained.
Metrics are computed from the matrices again when it is read. The file lists its variants with their overrides, so it
needs no other file to be understood.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.matrices import cells_of, square
from analysis.study import FRAMES, Study, data_title
from cl2r.config.layers import from_dotted, resolve
from cl2r.config.schema import fields, scalar
from cl2r.errors import InputError
from cl2r.metrics import METRICS
from cl2r.storage.documents import RESTORE, json_mapping
from cl2r.storage.path import at
from cl2r.study.frames import typed_frames

MATRICES = {"C": "accuracy", "recall@1": "recall@1", "mAP": "mAP"}
"""Columns of the `matrix` frame by what the file calls them."""
DIAGNOSTICS = (
    *("common_direction", "train_accuracy", "drift_cosine", "rotated_cosine", "cka", "vertex_cosine", "vertex_bound"),
    *("lambda", "loss_ce", "loss_fd"),
)
"""Columns of the `tasks` frame that are kept."""
DIGITS = 5
NOT_KEPT = ("data.root", "data.loaders")  # private, and without effect


def keep_runs(study: Study, path: Path) -> int:
    """Add the finished runs of a study with variants to the file and return how many runs it has now.

    A run that the file has already, with the same variant, method and seed, is replaced. Raise InputError if a variant
    of the same name has other settings there.
    """
    kept = kept_runs(path, study.specification)
    names = {data_title(str(name)) for name in study.finished["data.name"]}
    kept["base"]["data"].setdefault("name", ", ".join(sorted(names)))
    if names - {kept["base"]["data"]["name"]}:
        raise InputError(f"{path}: its runs are on {kept['base']['data']['name']}, this study has {', '.join(names)}")
    origin = {name: study.about.get(name) for name in ("commit", "version")}
    origin["processor"] = study.about.get("environment", {}).get("processor")
    if origin not in kept["origins"]:
        kept["origins"].append(origin)
    runs = {_name(run): run for run in kept["runs"]}
    for run in study.finished.to_dict("records"):
        entry: dict[str, Any] = {"variant": run["variant"], "method": run["method.name"], "seed": int(run["seed"])}
        entry["origin"] = kept["origins"].index(origin)
        entry["seconds"] = round(float(run["train_seconds"]), 1)
        for pairs in ("report", "tuning"):
            cells = cells_of(study.matrix[study.matrix["run"] == run["run"]], pairs)
            shown = {name: _rows(square(cells, column)) for name, column in MATRICES.items() if column in cells}
            entry[pairs] = {name: rows for name, rows in shown.items() if rows[0][0] is not None}
        links = study.tasks[study.tasks["run"] == run["run"]].sort_values("task")
        entry["links"] = {
            name: [_rounded(value) for value in links[name]]
            for name in DIAGNOSTICS
            if name in links and links[name].notna().any()
        }
        runs[_name(entry)] = entry
    order = list(kept["variants"])
    kept["runs"] = sorted(runs.values(), key=lambda run: (order.index(run["variant"]), run["method"], run["seed"]))
    at(path).write_file(as_text(kept).encode())
    return len(runs)


def kept_runs(path: Path, specification: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the file, or an empty one, after checking that runs of this specification can be added.

    It is empty if there is no file. Raise InputError if the runs that it has are based on other settings, or if its
    variants are other ones.
    """
    asked: dict[str, Any] = json.loads(json.dumps({key: specification[key] for key in ("base", "variants")}))
    kept: dict[str, Any] = {"base": asked["base"], "variants": {}, "origins": [], "runs": []}
    if path.exists():
        kept = json_mapping(path.read_bytes(), path, RESTORE)
    now, before = ({**entry, "data": {**entry["data"], "name": ""}} for entry in (asked["base"], kept["base"]))
    if now != before:
        raise InputError(f"{path}: its runs are based on {kept['base']}, those of this study on {asked['base']}")
    for name, values in asked["variants"].items():
        if kept["variants"].setdefault(name, values) != values:
            raise InputError(f"{path}: variant {name} is {kept['variants'][name]} there, {values} here")
    return kept


def load_kept(path: Path) -> Study:
    """Return the runs of a file as a study without curves."""
    kept = json_mapping(path.read_bytes(), path, RESTORE)
    specification = {name: kept[name] for name in ("base", "variants")}
    rows: dict[str, list[dict[str, Any]]] = {"runs": [], "tasks": [], "matrix": []}
    for run in kept["runs"]:
        _read(run, specification, rows, path.stem)
    frames = typed_frames(rows)
    runs, tasks, matrix, curves = (frames[name] for name in FRAMES)
    about = {"origins": kept["origins"]}
    return Study(runs, tasks, matrix, curves, name=path.stem, specification=specification, about=about)


def _read(run: Mapping[str, Any], spec: Mapping[str, Any], rows: dict[str, list[dict[str, Any]]], study: str) -> None:
    name = "-".join(map(str, _name(run)))
    values = {**spec["variants"][run["variant"]], "method.name": run["method"], "seed": run["seed"]}
    settings = [spec["base"], *itertools.starmap(from_dotted, values.items())]
    config = {key: scalar(value) for key, value in fields(resolve(settings)).items()}
    row: dict[str, Any] = {"study": study, "run": name, "variant": run["variant"], "status": "finished", "trial": None}
    row |= {key: value for key, value in config.items() if key not in NOT_KEPT}
    row |= {"tasks": len(run["report"]["C"]), "train_seconds": run["seconds"], "origin": run["origin"]}
    for pairs in ("report", "tuning"):
        arrays = {MATRICES[key]: _square(cells) for key, cells in run.get(pairs, {}).items()}
        if not arrays:
            continue
        for metric in METRICS.of_matrix():
            cells = arrays.get("accuracy" if metric.matrix == "accuracy" else "recall@1")
            if cells is not None and metric.compute is not None:
                row[metric.column(pairs)] = float(metric.compute(cells, False))
        accuracy = arrays["accuracy"]
        for t, k in zip(*np.tril_indices(len(accuracy)), strict=True):
            cell: dict[str, Any] = {"run": name, "pairs": pairs, "metric": "accuracy", "t": int(t) + 1, "k": int(k) + 1}
            cell |= {column: values[t, k] for column, values in arrays.items()}
            cell["compatible"] = bool(accuracy[t, k] > accuracy[k, k]) if k < t else None
            rows["matrix"].append(cell)
    rows["runs"].append(row)
    for place in range(row["tasks"]):
        values = {key: column[place] for key, column in run["links"].items()}
        rows["tasks"].append({"run": name, "task": place + 1, "key": f"{name}-{place + 1}", "reused": False} | values)


def as_text(kept: Mapping[str, Any]) -> str:
    """Return the content of a file: JSON with one line per run."""
    lines = []
    for key, value in kept.items():
        one = json.dumps(value, ensure_ascii=False)
        if key == "runs":
            one = "[\n  " + ",\n  ".join(json.dumps(run, ensure_ascii=False) for run in value) + "\n ]"
        lines.append(f" {json.dumps(key)}: {one}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _name(run: Mapping[str, Any]) -> tuple[str, str, int]:
    return run["variant"], run["method"], run["seed"]


def _rounded(value: Any) -> float | None:
    return None if pd.isna(value) else round(float(value), DIGITS)


def _rows(matrix: np.ndarray[Any, np.dtype[np.float64]]) -> list[list[float | None]]:
    """Return the lower triangle row by row."""
    return [[_rounded(value) for value in row[: place + 1]] for place, row in enumerate(matrix)]


def _square(rows: Sequence[Sequence[float]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    matrix = np.full((len(rows), len(rows)), math.nan)
    for place, row in enumerate(rows):
        matrix[place, : place + 1] = row
    return matrix
