"""Which runs can be compared at all: those measured on the same data, tasks and pairs."""

from typing import Any

import pandas as pd

from analysis.comparisons import measured_as
from analysis.groups import short
from analysis.names import field_title


def comparable_sets(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The runs in sets that `paired_differences` takes, and what tells each from the others (empty for one set)."""
    values = measured_as(runs)
    differing = [str(name) for name in values if values[name].nunique(dropna=False) > 1]
    if not differing:
        return [("", runs)]
    groups = values.groupby(differing, dropna=False, sort=True)
    return [(_words(differing, label), runs.loc[rows.index]) for label, rows in groups]


def _words(names: list[str], values: Any) -> str:
    entries = dict(zip(names, values, strict=True))
    if "scenario.n_tasks" in entries:
        entries.pop("tasks", None)
    titles = {"tasks": "T", "data.name": "data"}
    return ", ".join(f"{titles.get(name) or field_title(name)}={short(value)}" for name, value in entries.items())
