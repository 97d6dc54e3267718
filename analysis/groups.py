"""Runs that differ in their seed only belong together: which config fields tell the groups of a study apart."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.names import field_title, title
from cl2r.link_keys import LATER_FIELDS

PLACES = ("threads", "data.root", "data.loaders", "seed")
"""Fields on which no result depends, and the seed."""
FREE = ("eval.bootstrap",)
"""It is for intervals over pairs; no metric depends on it. Every other field of eval changes what is measured."""
Group = tuple[Any, ...]
"""The values of some columns that runs have in common; None where a column is empty."""


def config_fields(runs: pd.DataFrame) -> list[str]:
    """The variant and the dotted names of config fields; `AC@0.01` has a dot, but is a metric."""
    return [name for name in runs.columns if ("." in name and "@" not in name) or name == "variant"]


def with_defaults(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs; where one is older than a config field, the field has the value that meant what was done before."""
    older = [name for name in LATER_FIELDS if name in runs and runs[name].isna().any()]
    return runs.assign(**{name: _filled(runs[name], LATER_FIELDS[name]) for name in older})


def _filled(column: pd.Series, default: Any) -> pd.Series:
    """A column without a value says nothing about its type."""
    default = json.dumps(default) if isinstance(default, list) else default
    values = column.astype(object).where(column.notna(), default)
    return values.astype(column.dtype) if column.notna().any() else values


def differing(runs: pd.DataFrame, fields: Sequence[str], cell: Sequence[str]) -> list[str]:
    """Those of the fields that take several values among runs that agree in the columns of a cell."""
    rows = with_defaults(runs)
    codes = pd.DataFrame({name: pd.factorize(rows[name])[0] for name in fields}, range(len(rows)))  # −1: empty
    groups = codes.groupby(rows.groupby(list(cell), dropna=False, sort=False).ngroup().to_numpy())
    several = (groups.max() != groups.min()).any()
    return [name for name in fields if several[name]]


def varied_fields(runs: pd.DataFrame) -> list[str]:
    """Config fields in which runs of one method and variant differ: not those that a method or a variant brings."""
    cell = ["method.name", *(["variant"] if "variant" in runs else [])]
    return differing(runs, [name for name in config_fields(runs) if name not in (*cell, *PLACES)], cell)


def group_fields(runs: pd.DataFrame) -> list[str]:
    """The columns that make a group: the method, the variant where there are several, and the varied fields."""
    several = "variant" in runs and runs["variant"].nunique(dropna=False) > 1
    return ["method.name", *(["variant"] if several else []), *varied_fields(runs)]


def group_labels(runs: pd.DataFrame, fields: Sequence[str] | None = None) -> pd.Series:
    """What to call the group of every run, e.g. `CL²R, T=5, λ_base=3`; no two groups have the same label.

    The `fields` make the groups; by default those that tell the runs apart.
    """
    names = group_fields(runs) if fields is None else list(fields)
    rows = with_defaults(runs)[names].astype(object)
    groups = [group_of(values) for values in rows.itertuples(index=False, name=None)]
    labels = _labels(names, dict.fromkeys(groups))
    return pd.Series([labels[group] for group in groups], runs.index, name="group", dtype=object)


def group_of(label: Hashable) -> Group:
    """The group that a label of an index, or a row of values, stands for."""
    parts = label if isinstance(label, tuple) else (label,)
    return tuple(None if pd.isna(part) else part for part in parts)


def _labels(names: list[str], groups: Collection[Group]) -> dict[Group, str]:
    """As short as they can be: those that are alike get all their digits, or are written out."""
    labels = {group: _label(names, group, short) for group in groups}
    labels |= {group: _label(names, group, _exact) for group in _alike(labels)}
    labels |= {group: _written_out(names, group) for group in _alike(labels)}
    return {group: _written_out(names, group) for group in groups} if _alike(labels) else labels


def _alike(labels: Mapping[Group, str]) -> list[Group]:
    counts = Counter(labels.values())
    return [group for group, label in labels.items() if counts[label] > 1]


def _label(names: Sequence[str], group: Group, write: Callable[[Any], str]) -> str:
    """A field has its whole name where another one has the same short one."""
    titles, values = Counter(map(field_title, names)), dict(zip(names, group, strict=True))
    words = [title(str(values.pop("method.name")))]
    variant = values.pop("variant", None)
    words += [str(variant)] if variant else []
    heads = {name: field_title(name) if titles[field_title(name)] == 1 else name for name in values}
    return ", ".join([*words, *(f"{heads[name]}={write(value)}" for name, value in values.items())])


def _exact(value: Any) -> str:
    return repr(float(value)) if isinstance(value, float) else short(value)


def _written_out(names: Sequence[str], group: Group) -> str:
    """Text is quoted, so that nothing else looks like it."""
    return ", ".join(
        f"{name}={short(value) if value is None else repr(value)}" for name, value in zip(names, group, strict=True)
    )


def short(value: Any) -> str:
    """A config value in a few characters."""
    if pd.isna(value):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def in_order(labels: Sequence[str] | pd.Series) -> list[str]:
    """Distinct labels in the order of their first row."""
    return list(dict.fromkeys(map(str, labels)))
