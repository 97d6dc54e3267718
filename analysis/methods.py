"""The comparison of methods: a row a method, metrics with intervals over seeds, time and what adaptation costs."""

import math

import pandas as pd
from scipy import stats

from analysis.pivot import METRICS
from analysis.tables import EMPTY, SIGNED, counted_runs, one_budget, signed, table_head, table_line

CONFIDENCE = 0.95
BASELINE = "er"


def methods_table(runs: pd.DataFrame, baseline: str = BASELINE) -> pd.DataFrame:
    """Mean over seeds of every metric, and the ends of its 95 % t-interval; NaN where one seed allows none.

    `relative` is the median over seeds of a run's training time over the baseline's with the same seed.
    """
    one_budget(runs)
    runs = counted_runs(runs)
    runs = runs.assign(relative=_relative(runs, baseline))
    groups = runs.groupby("method.name", sort=False)
    table = pd.DataFrame({"seeds": groups["counted"].sum().astype(int)})
    for metric in METRICS:
        table[metric] = groups[metric].mean()
        half = _half_width(table["seeds"], groups[metric].std())
        ends = (table[metric] - half, table[metric] + half)
        share = metric not in SIGNED  # cannot leave 0..1, whatever its interval does
        table[f"{metric}_low"], table[f"{metric}_high"] = (end.clip(0, 1) if share else end for end in ends)
    table["seconds"], table["relative"] = groups["train_seconds"].median(), groups["relative"].median()
    for cost in ("stored_bytes", "adapter_flops", "gallery_items_touched"):
        table[cost] = groups[cost].max()
    return table.rename_axis("method")


def _half_width(seeds: pd.Series, deviation: pd.Series) -> pd.Series:
    """t · s/√n with n − 1 degrees of freedom."""
    factors = [stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) / math.sqrt(n) if n > 1 else math.nan for n in seeds]
    return deviation * pd.Series(factors, seeds.index)


def _relative(runs: pd.DataFrame, baseline: str) -> pd.Series:
    base = runs[runs["method.name"] == baseline].set_index("seed")["train_seconds"]
    return runs["train_seconds"] / runs["seed"].map(base[~base.index.duplicated()])


def methods_markdown(table: pd.DataFrame, baseline: str = BASELINE) -> str:
    """As Markdown; brackets are the t-interval. Costs are shown only if some method has any."""
    costs = {"adapter_flops": "FLOPs a mapped vector", "gallery_items_touched": "gallery items touched"}
    shown = {name: title for name, title in costs.items() if (table[name] > 0).any()}
    heads = ["method", "seeds", "AC", "BC", "FC", "mean accuracy", "s/run", f"× {baseline}", "stored MB"]
    lines = table_head([*heads, *shown.values()])
    for name, row in table.iterrows():
        cells = [str(name), f"{row['seeds']:.0f}", *(_bracketed(row, metric) for metric in METRICS)]
        cells += [_number(row["seconds"], ".0f"), _number(row["relative"], ".2f")]
        cells += [_number(row["stored_bytes"] / 1e6, ".1f"), *(_number(row[cost], ",.0f") for cost in shown)]
        lines.append(table_line(cells))
    return "\n".join(lines)


def _bracketed(row: pd.Series, metric: str) -> str:
    if row["seeds"] == 0:
        return "failed"
    mean = signed(metric, row[metric])
    low, high = row[f"{metric}_low"], row[f"{metric}_high"]
    return mean if pd.isna(low) else f"{mean} [{signed(metric, low)}, {signed(metric, high)}]"


def _number(value: float, form: str) -> str:
    return EMPTY if pd.isna(value) else format(value, form)
