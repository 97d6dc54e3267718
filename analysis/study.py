"""Frames of many runs: loaded from a disk or an object store, and joined. analysis/README.md describes the columns."""

import io
import itertools
import logging
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.groups import finished, pair_column, pivot
from analysis.paper.items import ITEMS
from cl2r.errors import InputError, check_type
from cl2r.metrics import METRICS
from cl2r.storage.documents import RESTORE, json_mapping, yaml_mapping
from cl2r.storage.path import ObjectPath, StoragePath, at
from cl2r.storage.seal import SealError, read_beside, run_owner, seal_path
from cl2r.study.folder import StudyFolder, read_copied
from cl2r.study.frames import parse_frame, study_frames

log = logging.getLogger(__name__)
FRAMES = ("runs", "tasks", "matrix", "curves")
"""In the order of reading: drivers write `runs` last, so other frames have the rows of all its runs."""
_MEASURED = ("run", "method", "seed", "metric", "value")
SEARCH_FRAMES = {
    "retrieval": (*_MEASURED, "t", "k", "low", "high"),
    "compatibility": (*_MEASURED, "summary", "low", "high"),
    "backfill": (*_MEASURED, "order", "draw", "fraction"),
    "formats": (*_MEASURED, "format", "bytes", "t", "k"),
    "indexes": ("run", "kind", "rows", "recall@10", "queries_per_second"),
}
"""The columns of the frames of a search study, which are in its folder `search`."""
STUDY_FILES = ("runs.parquet", "study.yaml")  # a folder with one of these holds a study
_DTYPES: dict[str, Any] = {"integer": "Int64", "boolean": "boolean", "string": "string", "floating": "float64"}
"""By what a column holds; each has room for empty cells."""
_ABSENT = object()
Read = Callable[[StoragePath, str], bytes]


@dataclass(frozen=True, eq=False)
class Frames:
    """`runs` has one row per run, `tasks` one per task, `matrix` one per cell of C, `curves` one per epoch."""

    runs: pd.DataFrame
    tasks: pd.DataFrame
    matrix: pd.DataFrame
    curves: pd.DataFrame


@dataclass(frozen=True, eq=False)
class Study(Frames):
    """The four frames of the study called `name`; failed and pruned runs have their rows in `runs`.

    `specification` is what the study was asked for, `about` where and how it ran; both are empty if not recorded.
    `search` has the frames of a search study, `paper` the item and the preset of a study of the paper; both are empty
    for other studies.
    """

    name: str = field(kw_only=True)
    specification: dict[str, Any] = field(default_factory=dict, kw_only=True)
    about: dict[str, Any] = field(default_factory=dict, kw_only=True)
    search: dict[str, pd.DataFrame] = field(default_factory=dict, kw_only=True)
    paper: dict[str, str] = field(default_factory=dict, kw_only=True)

    @property
    def finished(self) -> pd.DataFrame:
        """The rows of `runs` whose run finished."""
        return self.runs[finished(self.runs)]

    def pivot(
        self,
        values: str = "BC",
        index: str | Sequence[str] = "method.name",
        columns: str | None = None,
        aggregate: str = "mean",
        pairs: str = "report",
    ) -> pd.DataFrame:
        """Return a column of `runs`, aggregated over finished runs; e.g. pivot("AC", columns="memory.per_class").

        A cell without a finished run is NaN. `pairs="tuning"` uses the metric on the tuning pairs.
        """
        return pivot(self.runs, pair_column(values, pairs), index, columns, aggregate)


def data_title(name: str) -> str:
    """Return what a data set is called: `birds` for `/somewhere/birds.npz`."""
    return Path(name).stem


def load_runs(root: str | Path, names: Collection[str] | None = None) -> Frames:
    """Load all finished runs below `root`/runs, or those with the given names; e.g. load_runs("results").

    The root may be a path or an address, as in `load_study`. A damaged file raises InputError, and so does a file
    without the seal beside it: copy runs with all files of their folders.
    """
    storage = at(root)
    folders = {path.parent.name: path.parent for path in storage.list("runs/*/runs.parquet")}
    folders = {name: folders[name] for name in sorted(folders) if names is None or name in names}
    for other in dict.fromkeys(path.parent for path in storage.list("runs/*/result.json*")):
        if other.name not in folders and (names is None or other.name in names):
            log.warning("%s is missing; run the command that wrote it again", other / "runs.parquet")
    if not folders:
        raise FileNotFoundError(f"no finished runs below {storage / 'runs'}")
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in FRAMES}
    for name, folder in itertools.product(FRAMES, folders.values()):
        file = f"{name}.parquet"
        parts[name].append(_read_frame(folder, file, run_owner(folder.name, file), read_beside))
    return Frames(**_with_later_columns({name: pd.concat(own, ignore_index=True) for name, own in parts.items()}))


def load_study(path_or_uri: str | Path | None = None) -> Study:
    """Load the study in a folder, e.g. load_study("results/studies/ablation"), or the only one of a storage root.

    Without an argument it is the newest study below $CL2R_STORAGE or, if that is not set, below `results` in the
    current folder or else in the checkout.
    The folder may be a path, a file:// URI or s3://bucket/prefix?region=..&endpoint_override=host%3Aport. Rows of runs
    that `runs` does not have yet are left out.
    If one of the four frames is missing or damaged, all are read from the ledger, with a warning. Whatever else is
    damaged raises InputError, except about.json, on which no result depends: it is left out, with a warning.
    """
    check_type("path_or_uri", path_or_uri, str | Path | ObjectPath | None, "the folder or the address of a study")
    path = newest_study() if path_or_uri is None else find_study(path_or_uri)
    folder = StudyFolder.at(path)
    try:
        found = {name: _read_frame(path, f"{name}.parquet", folder.owner(f"{name}.parquet")) for name in FRAMES}
    except (InputError, FileNotFoundError) as error:
        if not folder.ledger.outcomes():
            raise
        log.warning("%s; until it is there, rows are read from the ledger", error)
        rebuilt = {name: frame.to_parquet(index=False) for name, frame in study_frames(folder).items()}
        found = {name: pd.read_parquet(io.BytesIO(stored)) for name, stored in rebuilt.items()}  # has the same types
    frames = _with_later_columns(found)
    runs = frames["runs"]
    for name, frame in frames.items():
        if name != "runs" and len(frame):
            frames[name] = frame[frame["run"].isin(runs["run"])].reset_index(drop=True)
    return Study(
        **frames,
        name=path.resolve().name,
        specification=read_specification(folder),
        about=folder.read_about(),
        search=read_search(folder, runs),
        paper=read_paper(folder),
    )


def _with_later_columns(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Add metrics that did not exist when the frames were written; their cells are NaN."""
    expected = {"runs": list[str](), "matrix": ["recall@1"] if "accuracy" in frames["matrix"] else []}
    for pairs in ("report", "tuning"):
        columns = [metric.column(pairs) for metric in METRICS.of_matrix()]
        expected["runs"] += columns if set(columns) & set(frames["runs"]) else []
    for name, columns in expected.items():
        missing = [column for column in columns if column not in frames[name]]
        frames[name] = frames[name].assign(**dict.fromkeys(missing, math.nan))
    return frames


def find_study(path_or_uri: str | Path) -> StoragePath:
    """Return the folder of a study: the given one, or that of the only study below it. It may have no frames yet."""
    path = at(path_or_uri)
    path = path if path.remote else at(Path(str(path)).expanduser())

    def holds_study(folder: StoragePath) -> bool:
        return any((folder / name).exists() for name in STUDY_FILES)

    if holds_study(path):
        return path
    below = path / "studies"
    if not below.exists():
        raise FileNotFoundError(f"no study at {path}: it holds none of {', '.join(STUDY_FILES)}, studies/")
    found = [child for child in below.list("*") if holds_study(child)]
    if not found:
        raise FileNotFoundError(f"no study at {below}: none of its folders holds {' or '.join(STUDY_FILES)}")
    if len(found) > 1:
        names = ", ".join(child.name for child in found)
        raise FileNotFoundError(f"{path} holds several studies: {names}; name one: {found[0]}")
    return found[0]


def newest_study() -> StoragePath:
    """Return the folder of the study whose frames were written last. Raise FileNotFoundError if there is none."""
    given = os.environ.get("CL2R_STORAGE")
    roots = [at(given)] if given else [at("results"), at(Path(__file__).parents[1] / "results")]
    for root in roots:
        found = [(info.mtime_ns, path) for path in root.list("studies/*/runs.parquet") if (info := path.file_info())]
        if found:
            return max(found)[1].parent
    where = " or ".join(str(root.absolute()) for root in roots)
    raise FileNotFoundError(f"no study below {where}: run `cl2r study ablation`, or name a folder: load_study(...)")


def read_specification(folder: StudyFolder) -> dict[str, Any]:
    """Return what the study was asked for, from study.yaml; empty, with a warning if there is a ledger but no file."""
    file = folder.specification
    if folder.ledger.folder.exists() and not file.exists():
        log.warning("%s is missing; the next command of the study writes it again", file)
    content = _read_mapping(file, f"study {folder.ledger.study}", yaml_mapping)
    found = content.get("specification") or {}
    if not isinstance(found, dict):
        raise _damaged(folder.path, file.name, "its specification is no mapping")
    return found


def read_search(folder: StudyFolder, runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return what a search study measured on these runs; empty if its folder `search` does not have all frames."""
    path = folder.path / "search"
    there = {file.name for file in path.list("*.parquet")}
    if missing := [name for name in SEARCH_FRAMES if f"{name}.parquet" not in there]:
        if there:
            log.warning("%s is missing; the next command of the study writes it again", path / f"{missing[0]}.parquet")
        return {}
    found, read = {}, read_beside if folder.ledger.folder.exists() else read_copied
    for name, columns in SEARCH_FRAMES.items():
        frame = _read_frame(path, f"{name}.parquet", folder.owner(f"search/{name}.parquet"), read)
        if missing := [column for column in columns if column not in frame]:
            raise _damaged(path, f"{name}.parquet", f"it has no column {missing[0]}")
        found[name] = frame[frame["run"].isin(runs["run"])].reset_index(drop=True)
    return {} if any(frame.empty for frame in found.values()) else found


def read_paper(folder: StudyFolder) -> dict[str, str]:
    """Return which item of the paper a study shows and the preset with the paper's settings, from paper.json."""
    path = folder.path / "paper.json"
    if seal_path(path).exists() and not path.exists():
        log.warning("%s is missing; the next command of the study writes it again", path)
    found = _read_mapping(path, folder.owner("paper.json"), json_mapping)
    item = ITEMS.get(str(found.get("item")))
    if found and (item is None or found.get("preset") not in item.presets):
        raise _damaged(folder.path, "paper.json", "it names no item of the paper with its preset")
    return {key: str(found[key]) for key in ("item", "preset") if found}


def _read_mapping(
    path: StoragePath, owner: str, parse: Callable[[bytes, object, str], dict[str, Any]]
) -> dict[str, Any]:
    """Return the content of a text file; empty if there is no file."""
    try:
        return parse(read_copied(path, owner) or b"{}", path, RESTORE)
    except SealError as error:
        raise _damaged(path.parent, path.name, str(error)) from error
    except FileNotFoundError:
        return {}


def _read_frame(path: StoragePath, name: str, owner: str, read: Read = read_copied) -> pd.DataFrame:
    try:
        return parse_frame(read(path / name, owner))
    except FileNotFoundError as error:
        study = path.resolve().name
        raise FileNotFoundError(f"no {name} at {path}; `cl2r status {study}` shows the study's progress") from error
    except ValueError as error:
        raise _damaged(path, name, str(error)) from error


def _damaged(path: StoragePath, name: str, why: str) -> InputError:
    return InputError(f"{name} at {path} is damaged ({' '.join(why.split())}); {RESTORE}")


def concat(studies: Sequence[Study], name: str | None = None) -> Study:
    """Join studies, e.g. concat([load_study("results/studies/a"), load_study("results/studies/b")]).

    A run that several studies have (same config, data and pairs, hence same name) counts once, if possible from a study
    in which it finished. Trials get new numbers; equal points of two sweeps stay two trials. Of `specification` and
    `about`, what is equal in all studies is kept; sweeps of the same space make a sweep. `search` and `paper` are left
    out.
    """
    if not studies:
        raise InputError("concat: no studies were given")
    frames: dict[str, list[pd.DataFrame]] = {frame: [getattr(study, frame) for study in studies] for frame in FRAMES}
    taken = 0
    for number, runs in enumerate(frames["runs"]):
        if "trial" in runs:  # numbered after the trials of the previous study
            frames["runs"][number] = runs.assign(trial=runs["trial"] + taken)
            last = frames["runs"][number]["trial"].max()
            taken = taken if pd.isna(last) else int(last) + 1
    owner: dict[str, int] = {}
    for ended in (True, False):
        for number, runs in enumerate(frames["runs"]):
            for run in runs.loc[runs["status"] == "finished", "run"] if ended else runs["run"]:
                owner.setdefault(run, number)
    for frame, parts in frames.items():
        frames[frame] = [
            rows if rows.empty else rows[rows["run"].map(owner.get) == number] for number, rows in enumerate(parts)
        ]
    about = _common([study.about for study in studies])
    if any(study.about != studies[0].about for study in studies):
        about.pop("expected_runs", None)  # runs that several studies have count once
    specification = _common([study.specification for study in studies])
    if any(study.specification.get("space") != studies[0].specification.get("space") for study in studies):
        specification.pop("space", None)
    return Study(
        **{frame: _join(parts) for frame, parts in frames.items()},
        name=name or " + ".join(dict.fromkeys(study.name for study in studies)),
        specification=specification,
        about=about,
        search={},
        paper={},
    )


def _join(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return all columns of all parts; their types follow from their values, so integers stay integers."""

    def nullable(column: pd.Series) -> pd.Series:
        return column.astype(_DTYPES.get(pd.api.types.infer_dtype(column, skipna=True), column.dtype))

    joined = {}
    for name in dict.fromkeys(name for part in parts for name in part.columns):
        there = [nullable(part[name]) for part in parts if name in part]
        typed = [column for column in there if column.dtype != object]
        told = [column for column in there if column.notna().any()] or typed[:1] or there[:1]
        kind: Any = pd.concat(told, ignore_index=True).dtype
        kind = "float64" if kind == "Float64" else kind
        pieces = [
            nullable(part[name]).astype(kind) if name in part else pd.Series(index=part.index, dtype=kind)
            for part in parts
        ]
        joined[name] = pd.concat(pieces, ignore_index=True)
    return pd.DataFrame(joined)


def _common(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entries that are equal in all; of mappings, what is equal in them."""
    found = {}
    for key, value in entries[0].items():
        values = [entry.get(key, _ABSENT) for entry in entries]
        if all(own == value for own in values):
            found[key] = value
        elif all(isinstance(own, dict) for own in values) and (inner := _common(values)):
            found[key] = inner
    return found
