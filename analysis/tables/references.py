"""What a search service has without a compatible model: it never upgrades, or it re-indexes. Tables show both as rows.

They are no methods: they stand below the methods, are not marked and not tested.
"""

from typing import Any

import pandas as pd

from analysis.names import title
from cl2r.metrics import (
    AC,
    BC,
    FC,
    FIRST_ACCURACY,
    FIRST_RECALL,
    MEAN_ACCURACY,
    METRICS,
    REINDEXED_ACCURACY,
    REINDEXED_RECALL,
    SERVICE_ACCURACY,
    SERVICE_RECALL,
)

NEVER, REINDEX = "never upgrade", "re-index"
SOURCE = "er"  # the method whose first and last model the rows use, if it is among the methods
SERVED = (SERVICE_ACCURACY, SERVICE_RECALL, REINDEXED_ACCURACY, REINDEXED_RECALL)
"""Metrics whose tables by a config field have the rows."""
NOTE = (
    "never upgrade: the first model for queries and galleries. It ties with itself in every cell, so BC and FC are 0, "
    "and so is AC (1 if eval.ties). re-index: the last model, after all galleries were embedded again. "
    "Neither is a method; they are not compared."
)


def reference_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of one method as runs of `never upgrade` and of `re-index`, which is then their `method.name`.

    The method is ER, else the one with the best mean re-indexed accuracy. The result is empty if no run
    has the columns, which older frames lack.
    """
    needed = [FIRST_ACCURACY.name, REINDEXED_ACCURACY.name]
    if not {"method.name", *needed} <= set(runs):
        return runs.iloc[:0]
    known = runs[runs[needed].notna().all(axis=1)]
    if known.empty:
        return known
    means = known.groupby("method.name")[REINDEXED_ACCURACY.name].mean()
    chosen = SOURCE if SOURCE in means.index else str(means.idxmax())
    own = known[known["method.name"] == chosen]
    shown = [metric.name for metric in METRICS.in_tables() if metric.name in own]
    columns = [name for metric in shown for name in (metric, f"{metric}_low", f"{metric}_high") if name in own]
    empty: dict[str, Any] = dict.fromkeys(columns, float("nan"))
    zero = {metric.name: 0.0 * own[metric.name].astype(float) for metric in (AC, BC, FC) if metric.name in own}
    if "eval.ties" in own and AC.name in zero:
        zero[AC.name] = zero[AC.name] + own["eval.ties"].astype("boolean").fillna(False).astype(float)
    first, last = dict(empty) | zero, dict(empty)
    for score, start, end in (
        (MEAN_ACCURACY, FIRST_ACCURACY, None),
        (SERVICE_ACCURACY, FIRST_ACCURACY, REINDEXED_ACCURACY),
        (REINDEXED_ACCURACY, FIRST_ACCURACY, REINDEXED_ACCURACY),
        (SERVICE_RECALL, FIRST_RECALL, REINDEXED_RECALL),
        (REINDEXED_RECALL, FIRST_RECALL, REINDEXED_RECALL),
    ):
        for part in ("", "_low", "_high"):
            if score.name + part in own:
                first[score.name + part] = own.get(start.name + part, float("nan"))
                last[score.name + part] = float("nan") if end is None else own.get(end.name + part, float("nan"))
    both = {NEVER: first, REINDEX: last}
    rows = [own.assign(**values, **{"method.name": f"{name} ({title(chosen)})"}) for name, values in both.items()]
    return pd.concat(rows, ignore_index=True)
