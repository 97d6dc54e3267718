"""The frames of a study, from a disk or from object storage, and a pivot over its runs."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import yaml
from pyarrow import parquet

from analysis.frames import Frames
from analysis.pivot import finished, pair_column, pivot
from cl2r import files
from cl2r.errors import InputError

MOST_CELLS = 10**9
"""Of a frame; the epochs of 10,000 runs have a tenth of it."""
MARKS = ("runs.parquet", "study.yaml")
FRAMES = ("runs", "tasks", "matrix", "curves")
"""In the order of reading: drivers write `runs` last, so a study that is still running has the rows of all its runs."""


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
class Place:
    """The folder of a study, and how the user wrote it (an address keeps its query string)."""

    root: files.Place
    shown: str

    @property
    def name(self) -> str:
        """Of the folder."""
        return self.root.name

    def has(self, name: str) -> bool:
        """Whether there is such a file or folder."""
        return (self.root / name).exists()

    def child(self, name: str) -> "Place":
        """A folder below it."""
        head, mark, query = self.shown.partition("?") if "://" in self.shown else (self.shown, "", "")
        return Place(self.root / name, f"{head.rstrip('/')}/{name}{mark}{query}")

    def folders(self) -> list[str]:
        """What there is below it."""
        return [path.name for path in files.listed(self.root, "*")]

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None

    def stamp(self) -> list[Any]:
        """What changes when the frames do."""
        return [files.stamp(self.root / name) for name in (*(f"{name}.parquet" for name in FRAMES), "about.json")]


def load_study(path_or_uri: str | Path) -> Study:
    """The study in a folder, e.g. load_study("results/studies/ablation"); or the only one of a storage root.

    The folder may be a path, a file:// URI or s3://bucket/prefix?region=..&endpoint_override=host%3Aport.
    """
    return read_study(find_study(path_or_uri))


def find_study(path_or_uri: str | Path) -> Place:
    """Where a study lies; whether it has frames yet is another question."""
    return _choose(_place(path_or_uri))


def read_study(place: Place) -> Study:
    """The study at `place`; rows of runs that `runs` does not have yet are left out."""
    frames = {name: _read(place, f"{name}.parquet") for name in FRAMES}
    runs = frames.pop("runs")
    others = {name: _rows_of(runs, frame) for name, frame in frames.items()}
    return Study(runs, **others, name=place.name, specification=read_specification(place), about=read_about(place))


def _rows_of(runs: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    return frame if frame.empty else frame[frame["run"].isin(runs["run"])].reset_index(drop=True)


def read_specification(place: Place) -> dict[str, Any]:
    """What the study was asked for, from study.yaml."""
    found = _mapping(place, "study.yaml", yaml.safe_load).get("specification") or {}
    if not isinstance(found, dict):
        raise _damaged(place, "study.yaml", "its specification is no mapping")
    return found


def read_about(place: Place) -> dict[str, Any]:
    """Where and how the study was run, from about.json."""
    return _mapping(place, "about.json", json.loads)


def _mapping(place: Place, name: str, parse: Callable[[bytes], Any]) -> dict[str, Any]:
    """The content of a file of text; empty without the file."""
    try:
        content = parse(place.read(name) or b"{}")
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise _damaged(place, name, str(error)) from error
    if not isinstance(content or {}, dict):
        raise _damaged(place, name, "it holds no mapping")
    return dict(content or {})


def _damaged(place: Place, name: str, why: str) -> InputError:
    return InputError(f"{name} at {place.shown} is damaged: {' '.join(why.split())}")


def _place(source: str | Path) -> Place:
    found = source if isinstance(source, Path) else files.place(source)
    return Place(found.expanduser().resolve() if isinstance(found, Path) else found, str(source))


def _choose(place: Place) -> Place:
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


def _read(place: Place, name: str) -> pd.DataFrame:
    content = place.read(name)
    if content is None:
        raise FileNotFoundError(
            f"no {name} at {place.shown} yet; `cl2r status {place.name}` shows how far the study is"
        )
    try:
        _refuse_huge(content)
        return pd.read_parquet(io.BytesIO(content))
    except (OSError, LookupError, TypeError, ValueError, pa.ArrowException) as error:  # of bytes that are here
        raise _damaged(place, name, str(error)) from error


def _refuse_huge(content: bytes) -> None:
    """A few bytes of Parquet may stand for any number of equal values."""
    claimed = parquet.read_metadata(io.BytesIO(content))
    if claimed.num_rows * claimed.num_columns > MOST_CELLS:
        raise ValueError(f"{claimed.num_rows} rows of {claimed.num_columns} columns are more than a study has")
