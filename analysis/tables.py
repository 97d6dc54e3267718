"""Tables of many runs."""

import pandas as pd

CLASSIFIERS = {"trainable": "Trainable", "fixed": "Fixed"}
DISTILLATIONS = {"none": "none", "all": "FD", "memory": "FD^M"}
METRICS = ("AC", "BC", "FC", "mean_accuracy")


def ablation_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Classifier × distillation: mean and (with two seeds or more) standard deviation over seeds.

    A run without metrics (it failed) counts for no seed; a cell of such runs only is a row of NaN.
    """
    groups = runs.groupby(["method.classifier", "method.fd"])
    table = pd.DataFrame({"seeds": groups["AC"].count()})
    for metric in METRICS:
        table[metric] = groups[metric].mean()
        table[f"{metric}_sd"] = groups[metric].std()
    table["seconds"] = groups["train_seconds"].median()  # one busy moment of the machine must not count
    order = [cell for cell in ((c, d) for c in CLASSIFIERS for d in DISTILLATIONS) if cell in table.index]
    table = table.loc[order]
    table.index = pd.MultiIndex.from_tuples(
        [(CLASSIFIERS[c], DISTILLATIONS[d]) for c, d in order], names=["classifier", "distillation"]
    )
    return table


def markdown(table: pd.DataFrame) -> str:
    """The ablation table as Markdown; `±` is one standard deviation over seeds."""
    lines = ["| classifier | distillation | seeds | AC | BC | FC | mean accuracy | s/run |", "|---" * 8 + "|"]
    for _, row in table.reset_index().iterrows():
        cells = [row["classifier"], row["distillation"], f"{row['seeds']:.0f}"]
        for metric in METRICS:
            sign = "+" if metric in ("BC", "FC") else ""
            deviation = row[f"{metric}_sd"]
            spread = "" if pd.isna(deviation) else f" ± {deviation:.3f}"
            cells.append("failed" if row["seeds"] == 0 else f"{row[metric]:{sign}.3f}{spread}")
        lines.append("| " + " | ".join([*cells, f"{row['seconds']:.0f}"]) + " |")
    return "\n".join(lines)
