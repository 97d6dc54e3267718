"""Data of the matrix browser: the matrix of every run and the mean over a group's seeds; training losses.

Cells are stored row by row of the lower triangle; a block says where the cells of one matrix begin.
"""

from typing import Any

import numpy as np
import pandas as pd

from analysis.groups import in_order
from analysis.report.page import exact, floats, shown, significant
from analysis.stats import ROUNDING, half_width
from analysis.study import Study
from cl2r.metrics import COMPATIBILITY, SHARE

ENDS = ("", "_low", "_high")
BLOCK = ["choice", "pairs", "metric"]


def matrix_data(study: Study, runs: pd.DataFrame) -> dict[str, Any] | None:
    """Return groups, choices and blocks; None if no run has a matrix. `runs` have their `group`."""
    columns = ["run", "pairs", "metric", "t", "k", "accuracy", "low", "high", "compatible", "p_compatible"]
    cells = study.matrix.reindex(columns=columns)
    metric = cells["metric"].astype(object)
    cells = cells.assign(metric=metric.where(metric.notna(), "accuracy").astype(str), pairs=cells["pairs"].astype(str))
    cells["group"] = cells["run"].map(dict(zip(runs["run"], runs["group"], strict=True)))
    cells = cells.dropna(subset=["group"])
    cells = cells.assign(**{name: floats(cells[name]) for name in columns[3:]}).astype({"t": int, "k": int})
    if cells.empty:
        return None
    found = cells.groupby(["group", "pairs", "metric", "t", "k"], sort=False)
    means = _mean_interval(found["accuracy"], SHARE).rename(columns={"mean": "accuracy", "n": "seeds"})
    means = means.join(found[["compatible", "p_compatible"]].mean()).reset_index()  # shares of seeds
    means = means[means.groupby("group")["seeds"].transform("max") > 1]
    means = means.assign(choice="mean of " + means["group"].astype(str))
    every = pd.concat([cells.assign(choice=cells["run"], seeds=1), means], ignore_index=True)
    runs = runs[runs["run"].isin(cells["run"])].set_index("run")
    groups = in_order(runs["group"])
    seeds = every.groupby("choice")["seeds"].max()
    choices = []  # of each group: its mean, if it has one, then its runs
    for number, group in enumerate(groups):
        own = runs[runs["group"] == group]
        if (mean := f"mean of {group}") in seeds.index:
            choices.append((mean, number, f"mean over {seeds[mean]} seeds", ""))
        for run, seed, twice in zip(own.index, own["seed"], own["seed"].duplicated(keep=False), strict=True):
            choices.append((str(run), number, f"seed {seed}" + (f" ({run})" if twice else ""), str(run)))
    table = pd.DataFrame(choices, columns=["choice", "group", "name", "run"])
    return {
        "groups": groups,
        "pairs": in_order(every["pairs"]),
        "metrics": in_order(every["metric"]),
        "choices": table.drop(columns="choice").to_dict("list"),
        "scale": _scale(every),
        **_blocks(every, table["choice"].tolist(), runs),
    }


def _mean_interval(groups: Any, bounds: tuple[float, float]) -> pd.DataFrame:
    """Return mean, n and t-interval, clipped to `bounds`, of every group; equal seeds have no interval."""
    table: pd.DataFrame = groups.agg(mean="mean", sd="std", n="count")
    half = half_width(table["sd"].to_numpy(dtype=float), table["n"].to_numpy(dtype=float))
    half = np.where(table["sd"] > ROUNDING, half, np.nan)
    return table.assign(low=(table["mean"] - half).clip(*bounds), high=(table["mean"] + half).clip(*bounds))


def whole_matrices(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of complete matrices, which BC(t) needs."""
    keys = [name for name in ("run", "pairs", "metric") if name in cells]
    known = np.isfinite(floats(cells["accuracy"])) & cells["k"].le(cells["t"]).to_numpy(dtype=bool)
    rows = cells.assign(known=known).groupby(keys, dropna=False, sort=False)
    size = rows["t"].transform("max")
    return cells[rows["known"].transform("sum") == size * (size + 1) / 2]


def _blocks(every: pd.DataFrame, choices: list[str], runs: pd.DataFrame) -> dict[str, Any]:
    found = every.groupby(BLOCK, sort=False)
    blocks = found.agg(tasks=("t", "max"), seeds=("seeds", "max")).reset_index()
    lengths = (blocks["tasks"] * (blocks["tasks"] + 1) // 2).to_numpy()
    starts = np.cumsum(lengths) - lengths
    places = starts[found.ngroup().to_numpy()] + (every["t"] * (every["t"] - 1) // 2 + every["k"] - 1).to_numpy()
    cells = {}
    for name in ("accuracy", "low", "high", "compatible", "p_compatible"):
        row = np.full(int(lengths.sum()), np.nan)
        row[places] = every[name].to_numpy()
        cells[name] = exact(row) if name == "accuracy" else shown(row)
    index = {choice: number for number, choice in enumerate(choices)}
    return {
        "blocks": {
            "choice": blocks["choice"].map(index).tolist(),
            "start": starts.tolist(),
            **{name: blocks[name].tolist() for name in ("pairs", "metric", "tasks", "seeds")},
        },
        "cells": cells,
        "scores": _scores(blocks, runs, first=str(every["metric"].iloc[0])),
    }


def _scores(blocks: pd.DataFrame, runs: pd.DataFrame, first: str) -> dict[str, list[float | None]]:
    """Return AC, BC, FC and their intervals by block: recorded ones of runs, t-intervals over seeds of groups."""
    groups = "mean of " + runs["group"].astype(str)
    names = [metric.name + end for metric in COMPATIBILITY for end in ENDS]
    table = pd.DataFrame(np.nan, blocks.index, names)
    for (pairs, metric), some in blocks.groupby(["pairs", "metric"], sort=False):
        # on tuning pairs the columns of the first rate have no suffix
        rate = "" if pairs == "tuning" and metric == first else "".join(str(metric).partition("@")[1:])
        for score in COMPATIBILITY:
            columns = [f"{'tuning_' * (pairs == 'tuning')}{score.name}{end}{rate}" for end in ENDS]
            recorded = runs.reindex(columns=columns).apply(floats).set_axis(list(ENDS), axis=1)
            means = _mean_interval(recorded[""].groupby(groups), score.bounds)[["mean", "low", "high"]]
            every = pd.concat([recorded, means.set_axis(list(ENDS), axis=1)]).reindex(some["choice"])
            table.loc[some.index, [score.name + end for end in ENDS]] = every.to_numpy()
    return {name: shown(table[name]) for name in names}


def _scale(every: pd.DataFrame) -> dict[str, float]:
    """Return by metric the difference to C[k,k] at which the colour is saturated, the same for all runs."""
    below = every[every["t"] > every["k"]]
    own = every[every["t"] == every["k"]].set_index([*BLOCK, "k"])["accuracy"]
    differences = floats(below["accuracy"]) - own.reindex(pd.MultiIndex.from_frame(below[[*BLOCK, "k"]])).to_numpy()
    sizes = pd.Series(np.abs(differences), below.index).groupby(below["metric"]).quantile(0.95)
    return {str(metric): max(0.01, float(f"{size:.2g}")) for metric, size in sizes.dropna().items()}


MOST_VALUES = 300_000  # about two megabytes


def training_losses(curves: pd.DataFrame, runs: pd.DataFrame) -> tuple[dict[str, Any] | None, str]:
    """Return the losses of every run by epoch and their schedules, or None and the reason."""
    own = curves[curves["run"].isin(runs["run"])]
    terms = [name for name in own.columns if name.startswith("loss_") and own[name].notna().any()]
    if own.empty or not terms:
        return None, ""
    count = int(own[terms].notna().to_numpy().sum())
    if count > MOST_VALUES:
        reason = f"{count:,} values are too many for a page; they are in curves.parquet"
        return None, f"Training losses are left out: {reason}."
    schedules: dict[tuple[Any, ...], int] = {}  # task, stage and epoch of every row; most runs share them
    by_run = {}
    for run, rows in own.groupby("run", sort=False):
        stages = rows["stage"].fillna("train").astype(str) if "stage" in rows else ["train"] * len(rows)
        steps = tuple(rows["task"].astype(int)), tuple(stages), tuple(rows["epoch"].astype(int))
        losses = {term.removeprefix("loss_"): significant(rows[term]) for term in terms if rows[term].notna().any()}
        by_run[str(run)] = {"schedule": schedules.setdefault(steps, len(schedules)), "terms": losses}
    columns = [dict(zip(("task", "stage", "epoch"), map(list, steps), strict=True)) for steps in schedules]
    return {"schedules": columns, "runs": by_run}, ""
