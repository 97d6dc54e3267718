"""The four frames of a study, joined from its ledger. Column types depend on the config, never on the values."""

import types
import typing
from collections.abc import Sequence
from typing import Any

import pandas as pd

from cl2r.config import field_types, scalar
from cl2r.files import write_file
from cl2r.methods.catalog import sections
from cl2r.study.folder import StudyFolder
from cl2r.study.ledger import Event, read_events

FRAMES = ("runs", "tasks", "matrix", "curves")
_METRICS = [f"{metric}{end}" for metric in ("AC", "BC", "FC") for end in ("", "_low", "_high")] + ["mean_accuracy"]
_DTYPES: dict[str, str] = {
    **dict.fromkeys(["study", "run", "variant", "status", "reason", "key", "pairs", "metric", "stage"], "string"),
    **dict.fromkeys(["trial", "tasks", "task", "t", "k", "epoch", "images", "memory", "workers"], "Int64"),
    **dict.fromkeys(["stored_bytes", "peak_bytes", "links_trained", "gallery_items_touched"], "Int64"),
    **dict.fromkeys(["reused", "compatible", "sync_batchnorm"], "boolean"),
    **dict.fromkeys([prefix + metric for prefix in ("", "tuning_") for metric in _METRICS], "float64"),
    **dict.fromkeys(["train_seconds", "wall_seconds", "seconds", "lr", "low", "high", "accuracy"], "float64"),
}
_ALWAYS = {
    "runs": (
        "study",
        "trial",
        "variant",
        "run",
        "status",
        "reason",
        *(f for f in _METRICS if "_" not in f),
        "mean_accuracy",
    ),
    "tasks": ("run", "task", "key", "reused"),
    "matrix": ("run", "pairs", "metric", "t", "k", "accuracy", "compatible"),
    "curves": ("run", "task", "stage", "epoch"),
}
"""Columns that are there even if no run finished; `runs` has the fields of every config besides."""


def study_frames(folder: StudyFolder) -> dict[str, pd.DataFrame]:
    """Every run that ended, finished, failed or stopped early, in the order of trials; an empty study has no rows."""
    outcomes = list(folder.ledger.outcomes().values())
    entries = list(zip(outcomes, read_events(outcomes), strict=True))
    entries.sort(key=lambda entry: (entry[1]["trial"], entry[1]["config"]["seed"]))
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in FRAMES}
    for event, content in entries:
        config = {key: scalar(value) for key, value in content["config"].items()}
        ended = content.get("frames") or {"runs": [{"run": event.subject, **config}]}
        rows["runs"].append(_run_row(folder.name, event, content, ended["runs"][0]))
        for name in FRAMES[1:]:
            rows[name] += ended.get(name, [])
    trained = _mark_trained_once(rows["tasks"])
    for row in rows["runs"]:
        row["links_trained"] = trained.get(row["run"], 0)
    common = [field for field in field_types() if field.partition(".")[0] not in sections()]
    always = _ALWAYS | {"runs": (*_ALWAYS["runs"], *common)}
    return {name: _typed(rows[name], always[name]) for name in FRAMES}


def _run_row(study: str, event: Event, content: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    heading = {"study": study, "trial": content["trial"], "variant": content["variant"]}
    return {**heading, **row, "status": event.kind, "reason": content.get("reason"), **content.get("metrics", {})}


def _mark_trained_once(tasks: Sequence[dict[str, Any]]) -> dict[str, int]:
    """A link that this study trained counts for the first run that has it; how many count for which run."""
    seen: set[str] = set()
    trained: dict[str, int] = {}
    for row in tasks:
        row["reused"] = row["reused"] or row["key"] in seen
        if not row["reused"]:
            seen.add(row["key"])
        trained[row["run"]] = trained.get(row["run"], 0) + (not row["reused"])
    return trained


def _typed(rows: list[dict[str, Any]], always: Sequence[str]) -> pd.DataFrame:
    frame = pd.DataFrame(rows)
    frame = frame.reindex(columns=[*frame.columns, *(name for name in always if name not in frame)])
    dtypes = {name: _DTYPES.get(name) or _config_dtypes().get(name, "float64") for name in frame.columns}
    return frame.astype(dtypes)


def _config_dtypes() -> dict[str, str]:
    """By annotation: text if it may be text, else float, else a nullable integer or truth value."""
    table = {}
    for name, annotation in field_types().items():
        parts = set(_plain_types(annotation))
        order = ((str, "string"), (float, "float64"), (int, "Int64"), (bool, "boolean"))
        table[name] = next((dtype for kind, dtype in order if kind in parts), "string")
    return table


def _plain_types(annotation: Any) -> list[type]:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _plain_types(typing.get_args(annotation)[0])
    if origin is typing.Literal:
        return [type(value) for value in typing.get_args(annotation)]
    if origin in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(annotation) for kind in _plain_types(part)]
    return [str] if origin is tuple else [annotation]


def write_frames(folder: StudyFolder) -> dict[str, pd.DataFrame]:
    """Join and write the frames; a reader sees the old file or the new one.

    `runs` comes last: who reads it first finds the rows of every run in the others.
    """
    from cl2r.study.about import update_about  # drivers only

    joined = study_frames(folder)
    for name in (*FRAMES[1:], FRAMES[0]):
        write_file(folder.path / f"{name}.parquet", joined[name].to_parquet(index=False))
    update_about(folder)
    return joined
