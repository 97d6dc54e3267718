"""The frames of a study, from a disk or from object storage, and a pivot over its runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import fs

from analysis.frames import Frames
from analysis.pivot import finished, pair_column, pivot
from cl2r.errors import InputError

MARKS = ("runs.parquet", "study.yaml")


@dataclass(frozen=True, eq=False)
class Study(Frames):
    """The four frames of the study called `name`; failed and pruned runs have their rows in `runs`.

    `specification` is what the study was asked for, `about` where and how it was run; both empty if nobody wrote them.
    """

    name: str = field(kw_only=True)
    specification: dict[str, Any] = field(default_factory=dict, kw_only=True)
    about: dict[str, Any] = field(default_factory=dict, kw_only=True)

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
        """A column of `runs`, aggregated over finished runs; e.g. pivot("AC", columns="memory.per_class").

        A cell without a finished run is NaN. `pairs="tuning"` takes the metric of the tuning pairs.
        """
        return pivot(self.runs, pair_column(values, pairs), index, columns, aggregate)


@dataclass(frozen=True)
class _Place:
    """A folder on some file system, and how the user wrote it (a URI keeps its query string)."""

    files: Any
    path: str
    shown: str

    def has(self, name: str) -> bool:
        return bool(self.files.get_file_info(f"{self.path}/{name}").type != fs.FileType.NotFound)

    def child(self, name: str) -> "_Place":
        head, mark, query = self.shown.partition("?") if "://" in self.shown else (self.shown, "", "")
        return _Place(self.files, f"{self.path}/{name}", f"{head.rstrip('/')}/{name}{mark}{query}")

    def folders(self) -> list[str]:
        entries = self.files.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(entry.base_name for entry in entries if entry.type == fs.FileType.Directory)


def load_study(path_or_uri: str | Path) -> Study:
    """The study in a folder, e.g. load_study("results/studies/ablation"); or the only one of a storage root.

    The folder may be a path, a file:// URI or s3://bucket/prefix?region=..&endpoint_override=host%3Aport.
    """
    place = _choose(_place(path_or_uri))
    frames = {name: _read(place, f"{name}.parquet") for name in ("runs", "tasks", "matrix", "curves")}
    runs, tasks, matrix, curves = frames.values()
    return Study(runs, tasks, matrix, curves, name=place.path.rpartition("/")[2])


def _place(source: str | Path) -> _Place:
    if isinstance(source, Path) or "://" not in source:
        return _Place(fs.LocalFileSystem(), str(Path(source).expanduser().resolve()), str(source))
    try:
        files, path = fs.FileSystem.from_uri(source)
    except pa.ArrowInvalid as error:
        raise InputError(f"cannot read the address {source}: {error}") from error
    return _Place(files, path, source)


def _choose(place: _Place) -> _Place:
    """The folder itself if a study lives there, otherwise the one study below it."""
    if any(map(place.has, MARKS)):
        return place
    if not place.has("studies"):
        raise FileNotFoundError(f"no study at {place.shown}: it holds none of {', '.join(MARKS)}, studies/")
    below = place.child("studies")
    names = [name for name in below.folders() if any(map(below.child(name).has, MARKS))]
    if not names:
        raise FileNotFoundError(f"no study at {below.shown}: none of its folders holds {' or '.join(MARKS)}")
    first = below.child(names[0])
    if len(names) > 1:
        raise FileNotFoundError(f"{place.shown} holds several studies: {', '.join(names)}; name one: {first.shown}")
    return first


def _read(place: _Place, name: str) -> pd.DataFrame:
    if not place.has(name):
        study = place.path.rpartition("/")[2]
        raise FileNotFoundError(f"no {name} at {place.shown} yet; `cl2r status {study}` shows how far the study is")
    with place.files.open_input_file(f"{place.path}/{name}") as file:
        return pd.read_parquet(file)
