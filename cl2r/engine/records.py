"""What a finished run leaves for people and for `analysis`: frames (Parquet), the result (JSON), the config (YAML)."""

import hashlib
import json
import math
from typing import Any

import numpy as np
import pandas as pd

from cl2r.adapters import adapter_bytes, adapter_flops
from cl2r.config import fields, scalar, to_yaml
from cl2r.engine.evaluation import Evaluation
from cl2r.engine.plan import Plan
from cl2r.engine.run import RunResult
from cl2r.files import Place, write_file
from cl2r.link_keys import telling
from cl2r.methods.catalog import method_info

PLACES = ("threads", "data.name", "data.root", "data.loaders")
"""Fields that say where a run finds things and by how many processes: no result depends on them."""


def run_name(plan: Plan) -> str:
    """Readable, and different for every other config, data or pairs: runs may share links, never a row."""
    config = plan.config
    content = {name: value for name, value in telling(fields(config)).items() if name not in PLACES}
    digest = hashlib.sha256(json.dumps([plan.keys, content]).encode())
    for pairs in (plan.report_pairs, plan.tuning_pairs):
        for array in (pairs.query, pairs.gallery, pairs.same, pairs.folds) if pairs else ():
            digest.update(np.ascontiguousarray(array).data)
    return f"{plan.dataset.name}-{config.method.name}-T{len(plan.keys)}-s{config.seed}-{digest.hexdigest()[:8]}"


def write_run(result: RunResult, root: Place) -> Place:
    """Write everything below `root`/runs/<name>; an equal run writes the same files again."""
    name = run_name(result.plan)
    folder = root / "runs" / name
    write_file(folder / "config.yaml", to_yaml(result.plan.config).encode())
    write_file(folder / "result.json", json.dumps(summary(result, name), indent=1).encode())
    for frame, rows in frames(result, name).items():
        write_file(folder / f"{frame}.parquet", pd.DataFrame(rows).to_parquet(index=False))
    return folder


def frames(result: RunResult, name: str) -> dict[str, list[dict[str, Any]]]:
    """The four frames, a list of rows each. `runs` comes last: once its file exists, the others do."""
    tasks, curves = [], []
    for link in result.links:
        record = dict(link.record)
        here = {"run": name, "task": link.task}
        epochs = record.pop("curves")
        curves += [here | row for row in epochs]
        losses = _last_losses(epochs)
        record["images_per_second"] = record["images"] / record["seconds"]
        metrics, _ = record.pop("metrics"), record.pop("stored_bytes")
        tasks.append(here | {"key": link.key, "reused": link.reused} | record | metrics | losses)
    matrix = _matrix_rows(result.report, name, "report")
    if result.tuning is not None:
        matrix += _matrix_rows(result.tuning, name, "tuning")
    return {"tasks": tasks, "matrix": matrix, "curves": curves, "runs": [_run_row(result, name)]}


def _last_losses(epochs: list[dict[str, Any]]) -> dict[str, float]:
    """Every term at the end of the first stage that has it."""
    ends = {row["stage"]: row for row in epochs}
    losses: dict[str, float] = {}
    for row in reversed(ends.values()):
        losses |= {term: value for term, value in row.items() if term.startswith("loss_")}
    return losses


def _run_row(result: RunResult, name: str) -> dict[str, Any]:
    row: dict[str, Any] = {"run": name, "status": "finished", "tasks": len(result.links)}
    row |= {key: scalar(value) for key, value in fields(result.plan.config).items()}
    row |= _metrics(result.report, "")
    for far, evaluation in result.report.at.items():
        row |= {f"{metric}@{far:g}": value for metric, value in _metrics(evaluation, "").items()}
    if result.tuning is not None:
        row |= _metrics(result.tuning, "tuning_")
    row |= _adaptation(result)
    row["stored_bytes"] = result.links[-1].record["stored_bytes"] + _adapter_bytes(result)
    row["train_seconds"] = sum(link.record["seconds"] for link in result.links)
    row["links_trained"] = sum(not link.reused for link in result.links)
    row["peak_bytes"] = max((link.record.get("peak_bytes", 0) for link in result.links), default=0) or None
    return row | {"wall_seconds": result.seconds}


def _adaptation(result: RunResult) -> dict[str, float]:
    """What it costs to let new queries meet an old gallery: FLOPs a vector that is mapped, and vectors stored anew."""
    config, last = result.plan.config, result.links[-1].record["metrics"]
    steps = len(result.links) - 1
    flops = adapter_flops(config.adapter.name, int(last["feature_size"]), steps, last["forward_flops"])
    updates = steps if method_info(config.method.name).gallery else 0
    return {
        "adapter_flops": flops + last.get("gallery_flops", 0.0),
        "gallery_items_touched": updates * result.plan.dataset.num_items,
    }


def _adapter_bytes(result: RunResult) -> int:
    last = result.links[-1].record["metrics"]
    name, size, steps = result.plan.config.adapter.name, int(last["feature_size"]), len(result.links) - 1
    return adapter_bytes(name, size, steps, last["model_bytes"])


def _metrics(evaluation: Evaluation, prefix: str) -> dict[str, float]:
    row = {"AC": evaluation.ac, "BC": evaluation.bc, "FC": evaluation.fc, "mean_accuracy": evaluation.mean}
    bounds = evaluation.intervals
    if bounds is not None:
        for metric, (low, high) in {"AC": bounds.ac, "BC": bounds.bc, "FC": bounds.fc}.items():
            row |= {f"{metric}_low": low, f"{metric}_high": high}
    return {prefix + metric: value for metric, value in row.items()}


def _matrix_rows(evaluation: Evaluation, name: str, pairs: str) -> list[dict[str, Any]]:
    """Of every false accept rate where there are some; `metric` tells them apart."""
    if evaluation.at:
        return [row for rate in evaluation.at.values() for row in _matrix_rows(rate, name, pairs)]
    compatible, bounds = evaluation.compatible, evaluation.intervals
    rows = []
    for t in range(len(evaluation.matrix)):
        for k in range(t + 1):
            row: dict[str, Any] = {"run": name, "pairs": pairs, "metric": evaluation.metric, "t": t + 1, "k": k + 1}
            row["accuracy"] = evaluation.matrix[t, k]
            row["compatible"] = bool(compatible[t, k]) if k < t else None
            if bounds is not None:
                row |= {"low": bounds.low[t, k], "high": bounds.high[t, k], "p_compatible": bounds.compatible[t, k]}
            rows.append(row)
    return rows


def summary(result: RunResult, name: str) -> dict[str, Any]:
    """The run as plain JSON; numbers that do not exist (above the diagonal, AC of one task) are null."""
    entry: dict[str, Any] = {"run": name, "config": result.plan.config.model_dump(mode="json")}
    entry["links"] = [{"task": link.task, "key": link.key, "reused": link.reused} for link in result.links]
    evaluations = {"report": result.report, "tuning": result.tuning}
    for pairs, evaluation in evaluations.items():
        if evaluation is not None:
            entry[pairs] = _values(evaluation)
            for far, rate in evaluation.at.items():
                entry[f"{pairs}@{far:g}"] = _values(rate)
    return entry


def _values(evaluation: Evaluation) -> dict[str, Any]:
    values: dict[str, Any] = {name: _json(value) for name, value in _metrics(evaluation, "").items()}
    values["metric"] = evaluation.metric
    values["C"] = [[_json(cell) for cell in row] for row in evaluation.matrix.tolist()]
    values["BC(t)"] = [_json(value) for value in evaluation.bc_curve.tolist()]
    return values


def _json(value: float) -> float | None:
    return None if math.isnan(value) else value
