"""Made frames for the paper's tables and verdicts."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import pandas as pd

from analysis.paper.report import preset_fields
from analysis.paper.statements import Statement
from analysis.paper.values import Values
from analysis.paper.verdicts import Change, judge

Frames = dict[str, pd.DataFrame]


_icons = cache(preset_fields)


def run(method: str, tasks: int = 2, seed: int = 0, memory: int = 4, **metrics: float) -> dict[str, Any]:
    """Return the row of a finished run with the settings of `icons`."""
    icons = _icons("icons", method)
    config = {key: json.dumps(value) if isinstance(value, list) else value for key, value in icons.items()}
    name = f"{method}-T{tasks}-m{memory}-s{seed}"
    own = {"study": "s", "run": name, "status": "finished", "tasks": tasks, "seed": seed, "train_seconds": 1.0}
    measured = {"AC": 0.5, "BC": 0.0, "FC": 0.0, "mean_accuracy": 0.7, **metrics}
    return {**config, **own, "scenario.n_tasks": tasks, "memory.per_class": memory, **measured}


def frames(rows: Sequence[dict[str, Any]], cells: dict[str, list[list[float]]] | None = None) -> Frames:
    """Return runs, matrices (by method; 0.7 on the diagonal and 0.6 below if not given) and tasks of 2 s each."""
    matrix, tasks = [], []
    for row in rows:
        given = (cells or {}).get(row["method.name"])
        for t in range(row["tasks"]):
            tasks.append({"run": row["run"], "task": t + 1, "key": f"{row['run']}-{t}", "seconds": 2.0})
            for k in range(t + 1):
                accuracy = given[t][k] if given else 0.7 if k == t else 0.6
                for pairs in ("report", "tuning"):
                    value = accuracy if pairs == "report" else 0.1
                    cell = {"run": row["run"], "pairs": pairs, "metric": "accuracy", "t": t + 1, "k": k + 1}
                    matrix.append(cell | {"accuracy": value})
    made = {"runs": rows, "tasks": tasks, "matrix": matrix, "curves": []}
    return {name: pd.DataFrame(entries) for name, entries in made.items()}


def verdict(rows: Sequence[dict[str, Any]], check: dict[str, Any], changed: Sequence[Change] = ()) -> list[str]:
    """Return the verdicts on one statement."""
    statement = Statement.model_validate({"item": "table 3", "source": "here", "says": "so", "check": check})
    return [row.verdict for row in judge([statement], Values.of_frames(frames(rows)), changed)]


def seeds(method: str, metric: str, values: Sequence[float], **where: int) -> list[dict[str, Any]]:
    """Return one run per seed."""
    return [run(method, seed=seed, **where, **{metric: value}) for seed, value in enumerate(values)]
