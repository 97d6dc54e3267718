"""Training losses of every run, if they are few enough for a page."""

from typing import Any

import pandas as pd

from analysis.report.compact import significant

MOST_VALUES = 300_000
"""About two megabytes."""


def training_losses(curves: pd.DataFrame, runs: pd.DataFrame) -> tuple[dict[str, Any] | None, str]:
    """By run, its terms epoch by epoch through the whole chain, and its schedule; or why they are left out."""
    own = curves[curves["run"].isin(runs["run"])]
    terms = [name for name in own.columns if name.startswith("loss_") and own[name].notna().any()]
    if own.empty or not terms:
        return None, ""
    count = int(own[terms].notna().to_numpy().sum())
    if count > MOST_VALUES:
        return (
            None,
            f"Training losses are left out: {count:,} values are too many for a page; they are in curves.parquet.",
        )
    schedules: dict[tuple[Any, ...], int] = {}
    by_run = {}
    for run, rows in own.groupby("run", sort=False):
        steps = _schedule(rows)
        shown = {term.removeprefix("loss_"): significant(rows[term]) for term in terms if rows[term].notna().any()}
        by_run[str(run)] = {"schedule": schedules.setdefault(steps, len(schedules)), "terms": shown}
    columns = [dict(zip(("task", "stage", "epoch"), map(list, steps), strict=True)) for steps in schedules]
    return {"schedules": columns, "runs": by_run}, ""


def _schedule(rows: pd.DataFrame) -> tuple[Any, ...]:
    """Task, stage and epoch of every row; most runs of a study have the same."""
    stages = rows["stage"].fillna("train").astype(str) if "stage" in rows else pd.Series("train", rows.index)
    return tuple(rows["task"].astype(int)), tuple(stages), tuple(rows["epoch"].astype(int))
