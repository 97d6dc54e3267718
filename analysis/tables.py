"""Tables of many runs: the paper's ablation, and methods against a config field."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.pivot import METRICS, check_name, finished, pivot
from cl2r.errors import InputError
from cl2r.methods.catalog import ABLATION_CELLS

CLASSIFIERS = {"trainable": "Trainable", "fixed": "Fixed"}
DISTILLATIONS = {"none": "none", "all": "FD", "memory": "FD^M"}
PLAIN = "plain"  # how tables call runs without a variant
EMPTY = "–"
SIGNED = ("BC", "FC")


def ablation_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Classifier × distillation: mean and (with two seeds or more) standard deviation over seeds.

    A run that did not finish, or has no metrics, counts for no seed; a cell of such runs only is a row of NaN.
    If runs have a `variant`, it is the first level of the index. Other methods and adapters are left out.
    """
    runs = counted_runs(runs[runs["method.name"].isin(ABLATION_CELLS)] if "method.name" in runs else runs)
    levels = (["variant"] if "variant" in runs else []) + ["method.classifier", "method.fd"]
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
    """Runs with `counted`: finished and with metrics. The others keep their place in a table but no figures."""
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
    """Two runs of one seed in a cell differ in something a mean over seeds would hide."""
    if "seed" not in runs:
        return
    twice = runs[runs.duplicated([*cell, "seed"], keep=False)]
    if twice.empty:
        return
    groups = twice.groupby([*cell, "seed"], dropna=False)
    fields = [name for name in runs.columns if "." in name or name == "variant"]
    mixed = [name for name in fields if name not in cell and (groups[name].nunique(dropna=False) > 1).any()]
    raise InputError(f"a cell would mix runs of one seed that differ in {', '.join(mixed) or 'run'}; select one first")


def markdown(table: pd.DataFrame) -> str:
    """The ablation table as Markdown; `±` is one standard deviation over seeds."""
    rows = table.reset_index()
    names = ["classifier", "distillation"]
    if "variant" in rows and rows["variant"].nunique() > 1:
        names = ["variant", *names]
    lines = table_head([*names, "seeds", "AC", "BC", "FC", "mean accuracy", "s/run"])
    for _, row in rows.iterrows():
        cells = [*row[names], f"{row['seeds']:.0f}"]
        for metric in METRICS:
            cells.append("failed" if row["seeds"] == 0 else spread(metric, row[metric], row[f"{metric}_sd"]))
        seconds = EMPTY if pd.isna(row["seconds"]) else f"{row['seconds']:.0f}"
        lines.append(table_line([*cells, seconds]))
    return "\n".join(lines)


def comparison_markdown(table: pd.DataFrame) -> str:
    """The comparison as one Markdown table a metric; a mean over fewer seeds than the others' says so."""
    return "\n\n".join(_metric_markdown(table, metric) for metric in table.columns.unique("metric"))


def _metric_markdown(table: pd.DataFrame, metric: str) -> str:
    means, deviations, seeds = (table[metric, part] for part in ("mean", "sd", "seeds"))
    names = ["variant", "method"][-table.index.nlevels :]
    lines = [f"{metric} by {means.columns.name}", "", *table_head([*names, *map(plain_value, means.columns)])]
    most = seeds.max(axis=None)
    for place, label in enumerate(table.index):
        cells = [label] if isinstance(label, str) else list(label)
        for mean, deviation, count in zip(means.iloc[place], deviations.iloc[place], seeds.iloc[place], strict=True):
            fewer = f" ({count:.0f} of {most:.0f})" if count < most else ""
            cells.append(spread(metric, mean, deviation) + fewer if count > 0 else "failed")
        lines.append(table_line(cells))
    return "\n".join(lines)


def points_markdown(runs: pd.DataFrame, fields: Sequence[str]) -> str:
    """A row a combination of the config `fields` (and the variant): metrics, mean ± deviation over seeds."""
    runs = counted_runs(runs)
    names = [*(["variant"] if "variant" in runs and runs["variant"].nunique() > 1 else []), *fields]
    lines = table_head([*names, "seeds", *METRICS])
    for _, group in runs.groupby(names, sort=False, dropna=False) if names else [((), runs)]:
        seeds = int(group["counted"].sum())
        cells = [plain_value(group[name].iloc[0]) for name in names]
        figures = [spread(metric, group[metric].mean(), group[metric].std()) for metric in METRICS]
        lines.append(table_line([*cells, str(seeds), *(figures if seeds else ["failed"] * len(METRICS))]))
    return "\n".join(lines)


def spread(metric: str, mean: float, deviation: float) -> str:
    """`mean ± deviation`, with a sign if the metric is a difference; the metric may not exist (AC of one task)."""
    return signed(metric, mean) if pd.isna(deviation) else f"{signed(metric, mean)} ± {deviation:.3f}"


def signed(metric: str, value: float) -> str:
    """A figure of a metric, with a sign if it is a difference; it may not exist."""
    return EMPTY if pd.isna(value) else f"{value:{'+' if metric in SIGNED else ''}.3f}"


def plain_value(value: Any) -> str:
    """A config value in a few characters."""
    if pd.isna(value):
        return EMPTY
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table_head(names: Sequence[str]) -> list[str]:
    """The first two lines of a Markdown table."""
    return [table_line(names), "|---" * len(names) + "|"]


def table_line(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"
