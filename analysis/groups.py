"""Groups of runs that differ in their seed only: which config fields tell them apart, their labels, and pivots."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.names import field_title, metric_of, ordered, title
from cl2r.errors import InputError, nearest

Integers = npt.NDArray[np.int64]
Group = tuple[Any, ...]  # values of some columns that runs have in common; None if a column is empty
PLACES = ("threads", "data.root", "data.loaders", "seed")  # fields that change no result, and the seed
FREE = ("eval.bootstrap", "eval.average_precision")  # fields of `eval` that change no metric
AGGREGATES = ("mean", "std", "median", "min", "max", "sum", "count")


def config_fields(runs: pd.DataFrame) -> list[str]:
    """Return the columns that hold config fields, and the variant. `AC@0.01` has a dot, but is a metric."""
    return [name for name in runs.columns if ("." in name and "@" not in name) or name == "variant"]


def differing(runs: pd.DataFrame, fields: Sequence[str], cell: Sequence[str]) -> list[str]:
    """Return the fields that take several values among runs that agree in the columns of `cell`."""
    codes = pd.DataFrame({name: pd.factorize(runs[name])[0] for name in fields}, range(len(runs)))  # −1: empty
    groups = codes.groupby(runs.groupby(list(cell), dropna=False, sort=False).ngroup().to_numpy())
    several = (groups.max() != groups.min()).any()
    return [name for name in fields if several[name]]


def varied_fields(runs: pd.DataFrame) -> list[str]:
    """Return the config fields in which runs of the same method and variant differ."""
    cell = ["method.name", *(["variant"] if "variant" in runs else [])]
    return differing(runs, [name for name in config_fields(runs) if name not in (*cell, *PLACES)], cell)


def group_fields(runs: pd.DataFrame) -> list[str]:
    """Return the columns that make a group: the method, the variant if there are several, and the varied fields."""
    several = "variant" in runs and runs["variant"].nunique(dropna=False) > 1
    return ["method.name", *(["variant"] if several else []), *varied_fields(runs)]


def group_of(label: Hashable) -> Group:
    """Return the group that a label of an index, or a row of values, stands for."""
    parts = label if isinstance(label, tuple) else (label,)
    return tuple(None if pd.isna(part) else part for part in parts)


def label_of(group: Group) -> Any:
    """Return the group as a label of an index: a scalar for one column, a tuple for several."""
    return group[0] if len(group) == 1 else group


def numbered_groups(runs: pd.DataFrame, names: Sequence[str]) -> tuple[Integers, list[Group]]:
    """Return the number of every run's group by the columns `names`, and the groups; without names there is one."""
    if not names:
        return np.zeros(len(runs), np.int64), [()]
    found = [group_of(row) for row in runs[list(names)].astype(object).itertuples(index=False, name=None)]
    numbers = {group: number for number, group in enumerate(dict.fromkeys(found))}
    return np.array([numbers[group] for group in found], dtype=np.int64), list(numbers)


def group_labels(runs: pd.DataFrame, fields: Sequence[str] | None = None) -> pd.Series:
    """Return the label of every run's group, e.g. `CL²R, T=5, λ_base=3`; no two groups have the same label.

    The `fields` make the groups; the default is `group_fields(runs)`. Labels are as short as they can be: numbers get
    all their digits, or fields their whole names, only if two labels would be equal.
    """
    names = group_fields(runs) if fields is None else list(fields)
    rows = runs[names].astype(object)
    groups = [group_of(values) for values in rows.itertuples(index=False, name=None)]
    labels: dict[Group, str] = {}
    for write in (partial(_label, names, short), partial(_label, names, _exact), partial(_written_out, names)):
        counts = Counter(labels.values())
        labels |= {group: write(group) for group in dict.fromkeys(groups) if counts[labels.get(group, "")] != 1}
    if len(set(labels.values())) < len(labels):
        labels = {group: _written_out(names, group) for group in labels}
    return pd.Series([labels[group] for group in groups], runs.index, name="group", dtype=object)


def _label(names: Sequence[str], write: Callable[[Any], str], group: Group) -> str:
    titles, values = Counter(map(field_title, names)), dict(zip(names, group, strict=True))
    method, variant = title(str(values.pop("method.name"))), values.pop("variant", None)
    heads = {name: field_title(name) if titles[field_title(name)] == 1 else name for name in values}
    fields = (f"{heads[name]}={write(value)}" for name, value in values.items())
    return ", ".join([method, *([str(variant)] if variant else []), *fields])


def _exact(value: Any) -> str:
    return repr(float(value)) if isinstance(value, float) else short(value)


def _written_out(names: Sequence[str], group: Group) -> str:
    """Return whole names and values; text is quoted, so that it differs from everything else."""
    values = zip(names, group, strict=True)
    return ", ".join(f"{name}={short(value) if value is None else repr(value)}" for name, value in values)


def short(value: Any) -> str:
    """Return a config value in a few characters."""
    if pd.isna(value):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def in_order(labels: Sequence[str] | pd.Series) -> list[str]:
    """Return the distinct labels in the order of their first row."""
    return list(dict.fromkeys(map(str, labels)))


def in_method_order(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs in the one order of methods; runs of a method stay in theirs."""
    if "method.name" not in runs:
        return runs
    places = {name: place for place, name in enumerate(ordered(runs["method.name"].dropna().astype(str)))}
    return runs.iloc[runs["method.name"].astype(object).map(places).argsort(kind="stable")]


def finished(runs: pd.DataFrame) -> pd.Series:
    """Return which runs finished; all of them in a frame without `status`."""
    return runs["status"] == "finished" if "status" in runs else pd.Series(True, runs.index)


def check_name(name: str, known: Sequence[str] | pd.Index, what: str) -> None:
    """Raise InputError with the nearest known name if `name` is not known."""
    if name not in known:
        raise InputError(f"unknown {what} {name!r}{nearest(name, map(str, known))}")


def pair_column(values: str, pairs: str) -> str:
    """Return the column of `runs` with `values` on the report or the tuning pairs; costs do not depend on pairs."""
    check_name(pairs, ("report", "tuning"), "pairs")
    metric = metric_of(values)
    measured = metric is not None and metric.compute is not None and not values.startswith("tuning_")
    return f"tuning_{values}" if pairs == "tuning" and measured else values


def pivot(
    runs: pd.DataFrame, values: str, index: str | Sequence[str], columns: str | None = None, aggregate: str = "mean"
) -> pd.DataFrame:
    """Return `values` of the finished runs, aggregated, as `index` × `columns`; NaN if a cell has no finished run.

    Text labels come in the order of their first row, numbers ascend, empty ones come where they appear or last.
    """
    rows = [index] if isinstance(index, str) else list(index)
    names = rows if columns is None else [*rows, columns]
    for name in (values, *names):
        check_name(name, runs.columns, "column")
    check_name(aggregate, AGGREGATES, "aggregate")
    shown = runs[values].where(finished(runs))
    if shown.isna().all():
        shown = shown.astype(float)  # an empty column has no type, hence no mean
    # Group by positions, not labels: pandas neither keeps an order of labels nor unstacks empty ones reliably.
    positions, labels = [], []
    for name in names:
        ascending = pd.api.types.is_numeric_dtype(runs[name])
        codes, found = pd.factorize(runs[name], sort=ascending, use_na_sentinel=False)
        positions.append(pd.Series(codes, runs.index, name=name))
        labels.append(pd.Index(found))
    cells = shown.groupby(positions).agg(aggregate)
    table = cells.to_frame(values)
    if columns is not None:
        table = pd.DataFrame(cells.unstack()).sort_index(axis=1)
        table = table.fillna(0).astype(int) if aggregate == "count" else table
        table.columns = labels[-1].take(table.columns.to_numpy()).rename(columns)
    levels = [labels[place].take(table.index.get_level_values(place).to_numpy()) for place in range(len(rows))]
    axis = levels[0].rename(rows[0]) if len(rows) == 1 else pd.MultiIndex.from_arrays(levels, names=rows)
    return table.set_axis(axis, axis=0)


def check_cells(runs: pd.DataFrame, cell: list[str]) -> None:
    """Raise InputError if runs that agree in the columns of `cell` differ in more than their seed, or share a seed."""
    fields = [name for name in config_fields(runs) if name not in cell]
    mixed = differing(runs, [name for name in fields if name not in (*PLACES, *FREE)], cell)
    if mixed:
        raise InputError(f"a cell would mix runs that differ in {', '.join(mixed)}; select one value first")
    by_seed = [*cell, "seed"]
    if "seed" in runs and runs.duplicated(by_seed).any():
        others = ", ".join(differing(runs, fields, by_seed)) or "run"
        raise InputError(f"a cell would mix runs of one seed that differ in {others}; select one value first")


def one_budget(runs: pd.DataFrame) -> None:
    """Raise InputError if some runs use the methods' own schedules and others the common one."""
    if "method.budget" in runs and runs["method.budget"].nunique() > 1:
        raise InputError("a table would mix method.budget=cl2r and native; select one first")
