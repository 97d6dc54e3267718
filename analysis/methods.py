"""The comparison of methods: a row a method, metrics with intervals over seeds, and what adaptation costs."""

import pandas as pd

from analysis.cells import column_marks, figure_cell, holes, marked_table, signed, to_compare
from analysis.groups import group_of
from analysis.pivot import METRICS
from analysis.stats import summarise
from analysis.table import Cell, Mark, Table
from analysis.tables import check_cells, counted_runs, one_budget

BRACKETS = (
    "Brackets: 95 % t-interval of the mean over seeds. A mean without brackets has one seed, or the same value for all."
)
ADAPTATION = {"adapter_flops": "FLOPs a mapped vector", "gallery_items_touched": "gallery items touched"}


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
        found = summarise(runs, metric, ["method.name"])
        table[metric], table[f"{metric}_low"], table[f"{metric}_high"] = found["mean"], found["low"], found["high"]
    table["seconds"] = groups["train_seconds"].median()
    for cost in ("stored_bytes", *ADAPTATION):
        table[cost] = groups[cost].max() if cost in runs else float("nan")
    return table.rename_axis("method")


def shown_methods(runs: pd.DataFrame, title: str = "Methods") -> Table:
    """Brackets are the t-interval. Costs of adaptation are shown only if some method has any."""
    frame = methods_table(runs)
    compared = to_compare(counted_runs(runs))
    marks = {metric: column_marks(compared, metric, ["method.name"]) for metric in METRICS}
    lost = holes(compared, ["method.name"])
    adaptation = {name: head for name, head in ADAPTATION.items() if (frame[name].astype(float) > 0).any()}
    body = []
    for name, row in frame.astype(float).iterrows():
        figures = [_bracketed(row, metric, marks[metric].of(name)) for metric in METRICS]
        figures = figures if row["seeds"] else [lost[group_of(name)]] * len(METRICS)
        costs = [figure_cell(row["seconds"], ".0f"), figure_cell(row["stored_bytes"] / 1e6, ".1f")]
        costs += [figure_cell(row[cost], ",.0f") for cost in adaptation]
        body.append([Cell(str(name)), figure_cell(row["seeds"], ".0f"), *figures, *costs])
    heads = ("method", "seeds", "AC", "BC", "FC", "mean accuracy", "s/run", "stored MB", *adaptation.values())
    note = BRACKETS if (frame["seeds"] > 1).any() else ""
    return marked_table(heads, body, frame.reset_index(), title, marks.values(), note)


def _bracketed(row: pd.Series, metric: str, mark: Mark) -> Cell:
    """Equal seeds have an interval of no width, which says less than it seems to."""
    mean, low, high = row[metric], row[f"{metric}_low"], row[f"{metric}_high"]
    ends = f" [{signed(metric, low)}, {signed(metric, high)}]" if low < high else ""
    return Cell(signed(metric, mean) + ends, None if pd.isna(mean) else float(mean), mark)
