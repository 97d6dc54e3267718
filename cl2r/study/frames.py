"""The four frames of a study, joined from its ledger. Column types depend on the config, never on the values."""

import io
import types
import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from cl2r.config.methods import sections
from cl2r.config.schema import field_types, scalar
from cl2r.metrics import METRICS, End
from cl2r.storage.seal import write_beside
from cl2r.study.folder import StudyFolder
from cl2r.study.ledger import read_events

FRAMES = ("runs", "tasks", "matrix", "curves")
MAX_CELLS = 10**9  # cells per frame; the epochs of 10,000 runs have a tenth of that
_COMPUTED = METRICS.of_matrix()
_ENDS: tuple[End, ...] = ("", "low", "high")
_METRICS = [metric.column(end=end) for metric in _COMPUTED if metric.interval for end in _ENDS]
_METRICS += [metric.name for metric in _COMPUTED if not metric.interval]
_DTYPES: dict[str, str] = {
    **dict.fromkeys(
        ["study", "run", "variant", "status", "reason", "key", "pairs", "metric", "stage", "device"], "string"
    ),
    **dict.fromkeys(["trial", "tasks", "task", "t", "k", "epoch", "images", "memory", "workers"], "Int64"),
    **dict.fromkeys(["stored_bytes", "peak_bytes", "links_trained", "gallery_items_touched"], "Int64"),
    **dict.fromkeys(["reused", "compatible", "sync_batchnorm", "mixed"], "boolean"),
    **dict.fromkeys([prefix + metric for prefix in ("", "tuning_") for metric in _METRICS], "float64"),
    **dict.fromkeys(["train_seconds", "wall_seconds", "seconds", "lr"], "float64"),
    **dict.fromkeys(["accuracy", "low", "high", "recall@1", "mAP"], "float64"),
}
_ALWAYS = {
    "runs": ("study", "trial", "variant", "run", "status", "reason", *(metric.name for metric in _COMPUTED)),
    "tasks": ("run", "task", "key", "reused"),
    "matrix": ("run", "pairs", "metric", "t", "k", "accuracy", "recall@1", "compatible"),
    "curves": ("run", "task", "stage", "epoch"),
}
"""Columns that exist even if no run finished; `runs` also has the fields of every config."""


def study_frames(folder: StudyFolder) -> dict[str, pd.DataFrame]:
    """Return the frames of every run that ended (finished, failed or stopped early), in the order of trials.

    Runs that belong to no trial come first.
    """
    outcomes = list(folder.ledger.outcomes().values())
    entries = list(zip(outcomes, read_events(outcomes), strict=True))
    entries.sort(key=lambda entry: (entry[1]["trial"] is not None, entry[1]["trial"] or 0, entry[1]["config"]["seed"]))
    # A trial at the point of a fixed run has no run of its own: the fixed run's row gets its number.
    trial_of: dict[str, int] = {}
    for event in reversed(folder.ledger.events("repeated")):
        trial_of |= dict.fromkeys(event.read().get("runs", ()), int(event.subject))
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in FRAMES}
    for event, content in entries:
        config = {key: scalar(value) for key, value in content["config"].items()}
        ended = content.get("frames") or {"runs": [{"run": event.subject, **config}]}
        trial = trial_of.get(event.subject) if content["trial"] is None else content["trial"]
        head = {"study": folder.name, "trial": trial, "variant": content["variant"]}
        tail = {"status": event.kind, "reason": content.get("reason"), **content.get("metrics", {})}
        rows["runs"].append({**head, **ended["runs"][0], **tail})
        for name in FRAMES[1:]:
            rows[name] += ended.get(name, [])
    # A link that this study trained counts for the first run that has it.
    seen: set[str] = set()
    trained: Counter[str] = Counter()
    for row in rows["tasks"]:
        row["reused"] = row["reused"] or row["key"] in seen
        if not row["reused"]:
            seen.add(row["key"])
            trained[row["run"]] += 1
    for row in rows["runs"]:
        row["links_trained"] = trained[row["run"]]
    return typed_frames(rows)


def typed_frames(rows: Mapping[str, list[dict[str, Any]]]) -> dict[str, pd.DataFrame]:
    """Return the rows of the four frames with all their columns and types; `rows` may lack frames."""
    common = [field for field in field_types() if field.partition(".")[0] not in sections()]
    always = _ALWAYS | {"runs": (*_ALWAYS["runs"], *common)}
    return {name: _typed(rows.get(name, []), always[name]) for name in FRAMES}


def write_frames(folder: StudyFolder) -> dict[str, pd.DataFrame]:
    """Join the frames and write each as a whole.

    `runs` comes last: a process that reads it first finds the rows of every run in the others.
    """
    joined = study_frames(folder)
    for name in (*FRAMES[1:], FRAMES[0]):
        file = f"{name}.parquet"
        write_beside(folder.path / file, joined[name].to_parquet(index=False), folder.owner(file))
    folder.update_about()
    return joined


def parse_frame(content: bytes) -> pd.DataFrame:
    """Return a stored frame. Raise ValueError if it is no Parquet file, or has more cells than any study."""
    try:
        claimed = parquet.read_metadata(io.BytesIO(content))
        if claimed.num_rows * claimed.num_columns > MAX_CELLS:  # a few bytes may stand for any number of equal values
            raise ValueError(f"{claimed.num_rows} rows of {claimed.num_columns} columns are more than a study has")
        return pd.read_parquet(io.BytesIO(content))
    except (OSError, LookupError, TypeError, pa.ArrowException) as error:
        raise ValueError(str(error)) from error


def _typed(rows: list[dict[str, Any]], always: Sequence[str]) -> pd.DataFrame:
    """Return a frame. A config field is text if it may be text, else float, else a nullable integer or boolean."""
    order = ((str, "string"), (float, "float64"), (int, "Int64"), (bool, "boolean"))
    dtypes = {
        name: next((dtype for kind, dtype in order if kind in _plain_types(annotation)), "string")
        for name, annotation in field_types().items()
    } | _DTYPES
    frame = pd.DataFrame(rows)
    frame = frame.reindex(columns=[*frame.columns, *(name for name in always if name not in frame)])
    return frame.astype({name: dtypes.get(name, "float64") for name in frame.columns})


def _plain_types(annotation: Any) -> list[type]:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _plain_types(typing.get_args(annotation)[0])
    if origin is typing.Literal:
        return [type(value) for value in typing.get_args(annotation)]
    if origin in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(annotation) for kind in _plain_types(part)]
    return [str] if origin is tuple else [annotation]
