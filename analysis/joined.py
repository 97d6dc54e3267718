"""Several studies as one, e.g. methods that were run later beside those that were run first."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.study import FRAMES, Study
from cl2r.errors import InputError

_DTYPES: dict[str, Any] = {"integer": "Int64", "boolean": "boolean", "string": "string", "floating": "float64"}
"""By what a column holds; each has room for empty cells."""
_ABSENT = object()


def concat(studies: Sequence[Study], name: str | None = None) -> Study:
    """One study of the runs of all, e.g. concat([load_study("results/studies/a"), load_study("results/studies/b")]).

    A run that several have (same config, data and pairs, hence same name) counts once; where it finished goes before
    where it did not. Trials get new numbers; equal points of two sweeps stay two trials. Of specification and about
    stays what is the same in all. Sweeps make a sweep, over all of their spaces.
    """
    if not studies:
        raise InputError("concat: no studies were given")
    runs = _renumbered([study.runs for study in studies])
    owner = _owners(runs)
    frames = {"runs": runs} | {frame: [getattr(study, frame) for study in studies] for frame in FRAMES[1:]}
    return Study(
        **{frame: _join(_own_rows(parts, owner)) for frame, parts in frames.items()},
        name=name or " + ".join(dict.fromkeys(study.name for study in studies)),
        specification=_joint_specification([study.specification for study in studies]),
        about=_joint_about([study.about for study in studies]),
    )


def _renumbered(parts: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Trials of a study come after those of the one before."""
    taken, renumbered = 0, []
    for runs in parts:
        if "trial" in runs:
            runs = runs.assign(trial=runs["trial"] + taken)
            last = runs["trial"].max()
            taken = taken if pd.isna(last) else int(last) + 1
        renumbered.append(runs)
    return renumbered


def _owners(parts: Sequence[pd.DataFrame]) -> dict[str, int]:
    """For every run the first study in which it finished, otherwise the first that has it."""
    owner: dict[str, int] = {}
    for finished in (True, False):
        for number, runs in enumerate(parts):
            rows = runs[runs["status"] == "finished"] if finished else runs
            for run in rows["run"]:
                owner.setdefault(run, number)
    return owner


def _own_rows(parts: Sequence[pd.DataFrame], owner: dict[str, int]) -> list[pd.DataFrame]:
    return [rows if rows.empty else rows[rows["run"].map(owner.get) == number] for number, rows in enumerate(parts)]


def _join(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """All columns of all parts, in the order of their first appearance."""
    names = dict.fromkeys(name for part in parts for name in part.columns)
    return pd.DataFrame({name: _join_column([part.get(name) for part in parts], parts) for name in names})


def _join_column(columns: Sequence[pd.Series | None], parts: Sequence[pd.DataFrame]) -> pd.Series:
    """Empty where a study does not have it. Its type is that of the values there are; integers stay integers."""
    there = [_nullable(column) for column in columns if column is not None]
    typed = [column for column in there if column.dtype != object]
    told = [column for column in there if column.notna().any()] or typed[:1] or there[:1]
    kind: Any = pd.concat(told, ignore_index=True).dtype
    kind = "float64" if kind == "Float64" else kind
    pieces = [
        pd.Series(index=part.index, dtype=kind) if column is None else _nullable(column).astype(kind)
        for column, part in zip(columns, parts, strict=True)
    ]
    return pd.concat(pieces, ignore_index=True)


def _nullable(column: pd.Series) -> pd.Series:
    return column.astype(_DTYPES.get(pd.api.types.infer_dtype(column, skipna=True), column.dtype))


def _joint_specification(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    common = _common(entries)
    common.pop("space", None)
    spaces = [entry.get("space") or {} for entry in entries]
    return {**common, "space": _joint_space(spaces)} if all(spaces) else common


def _joint_about(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many runs to expect is known only if it was one study all along."""
    common = _common(entries)
    if any(entry != entries[0] for entry in entries):
        common.pop("expected_runs", None)
    return common


def _common(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries that are equal in all; of a mapping, what is equal in it."""
    found = {}
    for key, value in entries[0].items():
        values = [entry.get(key, _ABSENT) for entry in entries]
        if all(own == value for own in values):
            found[key] = value
        elif all(isinstance(own, dict) for own in values) and (inner := _common(values)):
            found[key] = inner
    return found


def _joint_space(spaces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A field's range or choices hold those of every space that has it."""
    names = dict.fromkeys(name for space in spaces for name in space)
    return {name: _joint_entry([space[name] for space in spaces if name in space]) for name in names}


def _joint_entry(entries: Sequence[Any]) -> Any:
    """Ranges make a range, choices make choices; a range beside choices that are no numbers is left with its ends."""
    if all(entry == entries[0] for entry in entries):
        return entries[0]
    ranges = [entry for entry in entries if isinstance(entry, dict)]
    values = [value for entry in entries for value in (_ends(entry) if isinstance(entry, dict) else entry)]
    if not ranges or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [value for place, value in enumerate(values) if value not in values[:place]]
    log = min(values) > 0 and all(entry.get("log", False) for entry in ranges)
    return {"low": min(values), "high": max(values), "log": log}


def _ends(entry: Mapping[str, Any]) -> list[Any]:
    return [entry["low"], entry["high"]]
