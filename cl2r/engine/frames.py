"""The files of one finished run: frames (Parquet) for `analysis`, the result (JSON), the config (YAML)."""

import hashlib
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cl2r.adapters import adapter_bytes, adapter_flops
from cl2r.config.keys import MAKERS
from cl2r.config.methods import method_info
from cl2r.config.schema import fields, scalar, to_yaml
from cl2r.engine.chain import RunResult
from cl2r.engine.evaluation import Evaluation
from cl2r.engine.plan import Plan
from cl2r.metrics import METRICS
from cl2r.storage.path import StoragePath, at
from cl2r.storage.seal import run_owner, write_beside

NOT_IN_NAME = ("threads", "data.name", "data.root", "data.loaders")  # no result depends on these fields


def run_name(plan: Plan) -> str:
    """Return a readable name that differs for any other config, data or pairs: runs may share links, never a row."""
    config = plan.config
    content = {name: value for name, value in fields(config).items() if name not in NOT_IN_NAME}
    digest = hashlib.sha256(json.dumps([plan.keys, content]).encode())
    for pairs in (plan.report_pairs, plan.tuning_pairs):
        for array in (pairs.query, pairs.gallery, pairs.same, pairs.folds) if pairs else ():
            digest.update(np.ascontiguousarray(array).data)
    return f"{plan.dataset.name}-{config.method.name}-T{len(plan.keys)}-s{config.seed}-{digest.hexdigest()[:8]}"


def write_run(result: RunResult, root: StoragePath | Path) -> StoragePath:
    """Write all files of a run and return their folder, `root`/runs/<name>; an equal run overwrites them."""
    name = run_name(result.plan)
    folder = at(root) / "runs" / name
    entry = summary(result, name) | {"finished": datetime.now(UTC).isoformat(timespec="microseconds")}
    files = {"config.yaml": to_yaml(result.plan.config).encode(), "result.json": json.dumps(entry, indent=1).encode()}
    for frame, rows in frames(result, name).items():
        files[f"{frame}.parquet"] = pd.DataFrame(rows).to_parquet(index=False)
    for file, content in files.items():
        write_beside(folder / file, content, run_owner(name, file))
    return folder


def frames(result: RunResult, name: str) -> dict[str, list[dict[str, Any]]]:
    """Return the four frames as lists of rows. `runs` is last: if its file exists, so do the others."""
    tasks, curves = [], []
    for link in result.links:
        record = dict(link.record)
        here = {"run": name, "task": link.task}
        epochs = record.pop("curves")
        curves += [here | row for row in epochs]
        losses: dict[str, float] = {}  # every term at the end of the first stage that has it
        for row in reversed({row["stage"]: row for row in epochs}.values()):
            losses |= {term: value for term, value in row.items() if term.startswith("loss_")}
        record["images_per_second"] = record["images"] / record["seconds"]
        diagnostics, _ = record.pop("metrics"), record.pop("stored_bytes")
        tasks.append(here | {"key": link.key, "reused": link.reused} | record | diagnostics | losses)
    precision = result.plan.config.eval.average_precision
    matrix = _matrix_rows(result.report, name, "report", precision)
    if result.tuning is not None:
        matrix += _matrix_rows(result.tuning, name, "tuning", precision)
    return {"tasks": tasks, "matrix": matrix, "curves": curves, "runs": [_run_row(result, name)]}


def _run_row(result: RunResult, name: str) -> dict[str, Any]:
    config, last, steps = result.plan.config, result.links[-1].record, len(result.links) - 1
    row: dict[str, Any] = {"run": name, "status": "finished", "tasks": len(result.links)}
    row |= {key: scalar(value) for key, value in fields(config).items()} | _metrics(result.report)
    for far, evaluation in result.report.at.items():
        row |= {f"{metric}@{far:g}": value for metric, value in _metrics(evaluation, search=False).items()}
    if result.tuning is not None:
        row |= _metrics(result.tuning, "tuning")
    # Adaptation cost: FLOPs per mapped vector, number of vectors rewritten, bytes of the maps.
    adapter, diagnostics = config.adapter, last["metrics"]
    size = int(diagnostics["feature_size"])
    flops = adapter_flops(adapter, size, steps, diagnostics["forward_flops"])
    row["adapter_flops"] = flops + diagnostics.get("gallery_flops", 0.0)
    updates = steps if method_info(config.method.name).maps_gallery else 0
    row["gallery_items_touched"] = updates * result.plan.dataset.num_items
    row["stored_bytes"] = last["stored_bytes"] + adapter_bytes(adapter, size, steps, diagnostics["model_bytes"])
    row["train_seconds"] = sum(link.record["seconds"] for link in result.links)
    row["mixed"] = len({tuple(link.record[name] for name in MAKERS) for link in result.links}) > 1
    row["links_trained"] = sum(not link.reused for link in result.links)
    row["peak_bytes"] = max(link.record.get("peak_bytes", 0) for link in result.links) or None
    return row | {"wall_seconds": result.seconds}


def _metrics(evaluation: Evaluation, pairs: str = "report", search: bool = True) -> dict[str, float]:
    """Return the columns of all metrics; without `search` those of verification, which depend on an accept rate."""
    row = {}
    for name, value in evaluation.values.items():
        metric = METRICS[name]
        if search or metric.matrix == "accuracy":
            row[metric.column(pairs)] = value
            if name in evaluation.intervals:
                row[metric.column(pairs, end="low")], row[metric.column(pairs, end="high")] = evaluation.intervals[name]
    return row


def _matrix_rows(evaluation: Evaluation, name: str, pairs: str, precision: bool) -> list[dict[str, Any]]:
    """Return one row per cell, for every false accept rate if there are any; `metric` tells them apart."""
    rows, searched = [], {"recall@1": evaluation.recall} | ({"mAP": evaluation.average_precision} if precision else {})
    for rate in evaluation.at.values() or [evaluation]:
        bounds, here = rate.cells, {"run": name, "pairs": pairs, "metric": rate.metric}
        for t, k in zip(*np.tril_indices(len(rate.matrix)), strict=True):
            row: dict[str, Any] = here | {"t": int(t) + 1, "k": int(k) + 1, "accuracy": rate.matrix[t, k]}
            row |= {column: math.nan if cells is None else cells[t, k] for column, cells in searched.items()}
            row["compatible"] = bool(rate.compatible[t, k]) if k < t else None
            if bounds is not None:
                row |= {"low": bounds.low[t, k], "high": bounds.high[t, k], "p_compatible": bounds.compatible[t, k]}
            rows.append(row)
    return rows


def summary(result: RunResult, name: str) -> dict[str, Any]:
    """Return the run as plain JSON; values that do not exist (above the diagonal, AC of one task) are null."""
    entry: dict[str, Any] = {"run": name, "config": result.plan.config.model_dump(mode="json")}
    entry["links"] = [{"task": link.task, "key": link.key, "reused": link.reused} for link in result.links]

    def plain(value: float) -> float | None:
        return None if math.isnan(value) else value

    for pairs, evaluation in (("report", result.report), ("tuning", result.tuning)):
        if evaluation is not None:
            rates = {f"{pairs}@{far:g}": rate for far, rate in evaluation.at.items()}
            for title, one in ({pairs: evaluation} | rates).items():
                found = _metrics(one, search=title == pairs)
                values: dict[str, Any] = {metric: plain(value) for metric, value in found.items()}
                values["metric"] = one.metric
                values["C"] = [[plain(cell) for cell in row] for row in one.matrix.tolist()]
                if one.recall is not None and title == pairs:
                    values["R"] = [[plain(cell) for cell in row] for row in one.recall.tolist()]
                values["BC(t)"] = [plain(value) for value in one.bc_curve.tolist()]
                entry[title] = values
    return entry
