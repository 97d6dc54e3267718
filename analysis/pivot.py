"""Runs as a table of two config fields: what every other table of finished runs is made of."""

from collections.abc import Sequence

import pandas as pd

from cl2r.errors import InputError, nearest

METRICS = ("AC", "BC", "FC", "mean_accuracy")
AGGREGATES = ("mean", "std", "median", "min", "max", "sum", "count")


def finished(runs: pd.DataFrame) -> pd.Series:
    """Which rows are finished runs; all of them in a frame without `status`."""
    return runs["status"] == "finished" if "status" in runs else pd.Series(True, runs.index)


def pair_column(values: str, pairs: str) -> str:
    """The runs column of `values` on the report or the tuning pairs; only metrics depend on pairs."""
    check_name(pairs, ("report", "tuning"), "pairs")
    metric = values.removesuffix("_low").removesuffix("_high")
    return f"tuning_{values}" if pairs == "tuning" and metric in METRICS else values


def check_name(name: str, known: Sequence[str] | pd.Index, what: str) -> None:
    """Complain about a name that is not known, and name the nearest that is."""
    if name not in known:
        raise InputError(f"unknown {what} {name!r}{nearest(name, map(str, known))}")


def pivot(
    runs: pd.DataFrame, values: str, index: str | Sequence[str], columns: str | None = None, aggregate: str = "mean"
) -> pd.DataFrame:
    """`values` of the finished runs, aggregated, as `index` × `columns`; cells without a finished run are NaN.

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
    positions, labels = zip(*(_positions(runs[name]) for name in names), strict=True)
    cells = shown.groupby(list(positions)).agg(aggregate)
    table = cells.to_frame(values)
    if columns is not None:
        table = pd.DataFrame(cells.unstack()).sort_index(axis=1)
        table = table.fillna(0).astype(int) if aggregate == "count" else table
        table.columns = labels[-1].take(table.columns.to_numpy()).rename(columns)
    return table.set_axis(_labelled(table.index, labels[: len(rows)], rows), axis=0)


def _positions(column: pd.Series) -> tuple[pd.Series, pd.Index]:
    """The label's place among the labels of a column, for every row; and these labels."""
    ascending = pd.api.types.is_numeric_dtype(column)
    codes, labels = pd.factorize(column, sort=ascending, use_na_sentinel=False)
    return pd.Series(codes, column.index, name=column.name), pd.Index(labels)


def _labelled(index: pd.Index, labels: Sequence[pd.Index], names: list[str]) -> pd.Index:
    levels = [level.take(index.get_level_values(place).to_numpy()) for place, level in enumerate(labels)]
    return levels[0].rename(names[0]) if len(levels) == 1 else pd.MultiIndex.from_arrays(levels, names=names)
