"""The comparison of methods: a row a method, metrics with intervals over seeds, and what adaptation costs."""

import math

import pandas as pd
from scipy import stats

from analysis.pivot import METRICS
from analysis.tables import EMPTY, SIGNED, check_cells, counted_runs, one_budget, signed, table_head, table_line

CONFIDENCE = 0.95


def methods_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds of every metric, and the ends of its 95 % t-interval; NaN where one seed allows none.

    Runs of a method may differ in their seed only. `seconds` are the median over seeds; they were taken when links were
    trained, on a machine that may have been busy: `tests/benchmarks/method_cost.py` compares methods side by side.
    """
    one_budget(runs)
    runs = counted_runs(runs)
    check_cells(runs[runs["counted"]], ["method.name"])
    groups = runs.groupby("method.name", sort=False)
    table = pd.DataFrame({"seeds": groups["counted"].sum().astype(int)})
    for metric in METRICS:
        table[metric] = groups[metric].mean()
        half = _half_width(table["seeds"], groups[metric].std())
        ends = (table[metric] - half, table[metric] + half)
        share = metric not in SIGNED  # cannot leave 0..1, whatever its interval does
        table[f"{metric}_low"], table[f"{metric}_high"] = (end.clip(0, 1) if share else end for end in ends)
    table["seconds"] = groups["train_seconds"].median()
    for cost in ("stored_bytes", "adapter_flops", "gallery_items_touched"):
        table[cost] = groups[cost].max()
    return table.rename_axis("method")


def _half_width(seeds: pd.Series, deviation: pd.Series) -> pd.Series:
    """t · s/√n with n − 1 degrees of freedom."""
    factors = [stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) / math.sqrt(n) if n > 1 else math.nan for n in seeds]
    return deviation * pd.Series(factors, seeds.index)


def methods_markdown(table: pd.DataFrame) -> str:
    """As Markdown; brackets are the t-interval. Costs are shown only if some method has any."""
    costs = {"adapter_flops": "FLOPs a mapped vector", "gallery_items_touched": "gallery items touched"}
    shown = {name: title for name, title in costs.items() if (table[name] > 0).any()}
    heads = ["method", "seeds", "AC", "BC", "FC", "mean accuracy", "s/run", "stored MB"]
    lines = table_head([*heads, *shown.values()])
    for name, row in table.iterrows():
        cells = [str(name), f"{row['seeds']:.0f}", *(_bracketed(row, metric) for metric in METRICS)]
        cells += [_number(row["seconds"], ".0f"), _number(row["stored_bytes"] / 1e6, ".1f")]
        cells += [_number(row[cost], ",.0f") for cost in shown]
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
