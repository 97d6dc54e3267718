"""Runs that differ in their seed only belong together: which config fields tell the groups of a study apart."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.names import field_title, title

PLACES = ("threads", "data.root", "data.loaders", "seed")
"""Fields on which no result depends, and the seed."""


def config_fields(runs: pd.DataFrame) -> list[str]:
    """The variant and the dotted names of config fields; `AC@0.01` has a dot, but is a metric."""
    return [name for name in runs.columns if ("." in name and "@" not in name) or name == "variant"]


def varied_fields(runs: pd.DataFrame) -> list[str]:
    """Config fields in which runs of one method and variant differ: not those that a method or a variant brings."""
    cell = ["method.name", *(["variant"] if "variant" in runs else [])]
    fields = [name for name in config_fields(runs) if name not in (*cell, *PLACES)]
    counts = runs.groupby(cell, dropna=False)[fields].nunique(dropna=False)
    return [name for name in fields if (counts[name] > 1).any()]


def group_fields(runs: pd.DataFrame) -> list[str]:
    """The columns that make a group: the method, the variant where there are several, and the varied fields."""
    several = "variant" in runs and runs["variant"].nunique(dropna=False) > 1
    return ["method.name", *(["variant"] if several else []), *varied_fields(runs)]


def group_labels(runs: pd.DataFrame) -> pd.Series:
    """What to call the group of every run, e.g. `CL²R, T=5, λ_base=3`."""
    names = group_fields(runs)
    rows = runs[names].astype(object)
    labels = [_label(dict(zip(names, values, strict=True))) for values in rows.itertuples(index=False, name=None)]
    return pd.Series(labels, runs.index, name="group", dtype=object)


def _label(values: dict[str, Any]) -> str:
    words = [title(str(values.pop("method.name")))]
    variant = values.pop("variant", None)
    words += [] if pd.isna(variant) or not variant else [str(variant)]
    return ", ".join([*words, *(f"{field_title(name)}={short(value)}" for name, value in values.items())])


def short(value: Any) -> str:
    """A config value in a few characters."""
    if pd.isna(value):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def in_order(labels: Sequence[str] | pd.Series) -> list[str]:
    """Distinct labels in the order of their first row."""
    return list(dict.fromkeys(map(str, labels)))
