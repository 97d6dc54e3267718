"""Frames of many runs as tables need them: the paper's ablation, and methods against a config field."""

from collections.abc import Sequence

import pandas as pd

from analysis.groups import FREE, PLACES, config_fields, differing, with_defaults
from analysis.pivot import METRICS, check_name, finished, pivot
from cl2r.errors import InputError
from cl2r.methods.catalog import ABLATION_CELLS

CLASSIFIERS = {"trainable": "Trainable", "fixed": "Fixed"}
DISTILLATIONS = {"none": "none", "all": "FD", "memory": "FD^M"}
PLAIN = "plain"  # how tables call runs without a variant
SIGNED = ("BC", "FC")


def ablation_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Classifier × distillation: mean and (with two seeds or more) standard deviation over seeds.

    A run that did not finish, or has no metrics, counts for no seed; a cell of such runs only is a row of NaN.
    If runs have a `variant`, it is the first level of the index. Other methods and adapters are left out.
    Runs of a cell may differ in their seed only.
    """
    runs = ablation_runs(runs)
    one_budget(runs)
    levels = (["variant"] if "variant" in runs else []) + ["method.classifier", "method.fd"]
    check_cells(runs[runs["counted"]], levels)
    groups = runs.groupby(levels)
    table = pd.DataFrame({"seeds": groups["counted"].sum()})
    for metric in METRICS:
        table[metric] = groups[metric].mean()
        table[f"{metric}_sd"] = groups[metric].std()
    table["seconds"] = groups["train_seconds"].median()  # one busy moment of the machine must not count
    variants = [(name,) for name in runs["variant"].unique()] if "variant" in runs else [()]
    cells = [(*v, c, d) for v in variants for c in CLASSIFIERS for d in DISTILLATIONS]
    table = table.loc[[cell for cell in cells if cell in table.index]]
    names = [*levels[:-2], "classifier", "distillation"]
    return (
        table.rename(CLASSIFIERS, level="method.classifier").rename(DISTILLATIONS, level="method.fd").rename_axis(names)
    )


def ablation_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of the ablation's methods, with `counted`."""
    return counted_runs(runs[runs["method.name"].isin(ABLATION_CELLS)] if "method.name" in runs else runs)


def comparison_table(runs: pd.DataFrame, columns: str, metrics: Sequence[str] = ("AC", "BC", "FC")) -> pd.DataFrame:
    """Methods × the values of a config field: table[metric, "mean"], [metric, "sd"] and [metric, "seeds"].

    Rows have the variant as a first level if there are several. Runs of a cell may differ in their seed only.
    """
    check_name(columns, runs.columns, "column")
    one_budget(runs)
    runs = counted_runs(runs)
    several = "variant" in runs and runs["variant"].nunique() > 1
    rows = ["variant", "method.name"] if several else ["method.name"]
    check_cells(runs[runs["counted"]], [*rows, columns])
    runs = runs.assign(counted=runs["counted"].where(runs["counted"]))  # `count` leaves out what is empty
    parts = {}
    for metric in metrics:
        check_name(metric, METRICS, "metric")
        parts[metric, "mean"] = pivot(runs, metric, rows, columns)
        parts[metric, "sd"] = pivot(runs, metric, rows, columns, "std")
        parts[metric, "seeds"] = pivot(runs, "counted", rows, columns, "count")
    return pd.concat(parts, axis=1, names=["metric", "statistic", columns])


def counted_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs with `counted`: finished and with metrics. The others keep their place in a table but no figures.

    Config fields that came after a run have their defaults, and runs without a variant are called so.
    """
    runs = with_defaults(runs)
    figures = [*METRICS, "train_seconds"]
    values = runs.reindex(columns=figures).astype(float)
    counted = finished(runs) & values[list(METRICS)].notna().any(axis=1)
    runs = runs.assign(**{name: values[name].where(counted) for name in figures}, counted=counted)
    return runs.assign(variant=runs["variant"].fillna("").replace("", PLAIN)) if "variant" in runs else runs


def one_budget(runs: pd.DataFrame) -> None:
    """Methods trained by schedules of their own and by a common one do not belong into one table."""
    if "method.budget" in runs and runs["method.budget"].nunique() > 1:
        raise InputError("a table would mix method.budget=cl2r and native; select one first")


def check_cells(runs: pd.DataFrame, cell: list[str]) -> None:
    """A mean over seeds would hide what else the runs of a cell differ in; a seed counts once."""
    fields = [name for name in config_fields(runs) if name not in cell]
    mixed = differing(runs, [name for name in fields if name not in (*PLACES, *FREE)], cell)
    if mixed:
        raise InputError(f"a cell would mix runs that differ in {', '.join(mixed)}; select one first")
    by_seed = [*cell, "seed"]
    if "seed" in runs and with_defaults(runs).duplicated(by_seed).any():
        others = ", ".join(differing(runs, fields, by_seed)) or "run"
        raise InputError(f"a cell would mix runs of one seed that differ in {others}; select one first")
