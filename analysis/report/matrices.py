"""All compatibility matrices of a study for the matrix browser: of every run, and the mean over a group's seeds.

Cells lie one after another, row by row of the lower triangle; a block says where the cells of one matrix begin.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.groups import in_order
from analysis.report.compact import exact, floats, shown
from analysis.report.intervals import mean_interval
from analysis.stats import ROUNDING
from analysis.study import Study

SCORES = ("AC", "BC", "FC")
ENDS = ("", "_low", "_high")
BLOCK = ["choice", "pairs", "metric"]


def matrix_data(study: Study, runs: pd.DataFrame) -> dict[str, Any] | None:
    """Groups, what can be chosen, and the blocks; None if no run has a matrix. `runs` have their `group`."""
    cells = matrix_cells(study, runs)
    if cells.empty:
        return None
    runs = runs[runs["run"].isin(cells["run"])].set_index("run")
    groups = in_order(runs["group"])
    every = pd.concat([cells.assign(choice=cells["run"], seeds=1), _means(cells)], ignore_index=True)
    choices = _choices(runs, groups, every)
    return {
        "groups": groups,
        "pairs": in_order(every["pairs"]),
        "metrics": in_order(every["metric"]),
        "choices": choices.drop(columns="choice").to_dict("list"),
        "scale": _scale(every),
        **_blocks(every, choices["choice"].tolist(), runs),
    }


def matrix_cells(study: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """The cells of finished runs, with their `group` and every column there may be."""
    columns = ["run", "pairs", "metric", "t", "k", "accuracy", "low", "high", "compatible", "p_compatible"]
    cells = study.matrix.reindex(columns=columns)
    metric = cells["metric"].astype(object)
    cells = cells.assign(metric=metric.where(metric.notna(), "accuracy").astype(str), pairs=cells["pairs"].astype(str))
    cells["group"] = cells["run"].map(dict(zip(runs["run"], runs["group"], strict=True)))
    cells = cells.dropna(subset=["group"])
    cells = cells.assign(**{name: floats(cells[name]) for name in columns[3:]})
    return cells.astype({"t": int, "k": int})


def _mean_of(groups: pd.Series) -> pd.Series:
    return "mean of " + groups.astype(str)


def _means(cells: pd.DataFrame) -> pd.DataFrame:
    """The mean matrix of every group with several seeds; `compatible` is the share of seeds, ends are a t-interval."""
    found = cells.groupby(["group", "pairs", "metric", "t", "k"], sort=False)
    means = _spread(mean_interval(found["accuracy"], share=True)).rename(columns={"mean": "accuracy", "n": "seeds"})
    means = means.join(found[["compatible", "p_compatible"]].mean()).reset_index()
    means = means[means.groupby("group")["seeds"].transform("max") > 1]
    return means.assign(choice=_mean_of(means["group"]))


def _spread(table: pd.DataFrame) -> pd.DataFrame:
    """Without the ends of intervals of no width: seeds that agree do not say how sure their mean is."""
    spread = table["sd"] > ROUNDING
    return table.assign(low=table["low"].where(spread), high=table["high"].where(spread))


def whole_matrices(cells: pd.DataFrame) -> pd.DataFrame:
    """The rows of those matrices of which no cell is missing, as BC(t) needs them."""
    keys = [name for name in ("run", "pairs", "metric") if name in cells]
    known = np.isfinite(floats(cells["accuracy"])) & cells["k"].le(cells["t"]).to_numpy(dtype=bool)
    rows = cells.assign(known=known).groupby(keys, dropna=False, sort=False)
    size = rows["t"].transform("max")
    return cells[rows["known"].transform("sum") == size * (size + 1) / 2]


def _choices(runs: pd.DataFrame, groups: list[str], every: pd.DataFrame) -> pd.DataFrame:
    """Group by group: the mean first where there is one, then the runs."""
    seeds = every.groupby("choice")["seeds"].max()
    rows = []
    for number, group in enumerate(groups):
        own = runs[runs["group"] == group]
        if (mean := f"mean of {group}") in seeds.index:
            rows.append((mean, number, f"mean over {seeds[mean]} seeds", ""))
        for run, seed, twice in zip(own.index, own["seed"], own["seed"].duplicated(keep=False), strict=True):
            rows.append((str(run), number, f"seed {seed}" + (f" ({run})" if twice else ""), str(run)))
    return pd.DataFrame(rows, columns=["choice", "group", "name", "run"])


def _blocks(every: pd.DataFrame, choices: list[str], runs: pd.DataFrame) -> dict[str, Any]:
    found = every.groupby(BLOCK, sort=False)
    blocks = found.agg(tasks=("t", "max"), seeds=("seeds", "max")).reset_index()
    lengths = (blocks["tasks"] * (blocks["tasks"] + 1) // 2).to_numpy()
    starts = np.cumsum(lengths) - lengths
    places = starts[found.ngroup().to_numpy()] + (every["t"] * (every["t"] - 1) // 2 + every["k"] - 1).to_numpy()
    columns = ("accuracy", "low", "high", "compatible", "p_compatible")
    cells = {name: _placed(every[name], places, int(lengths.sum())) for name in columns}
    index = {choice: number for number, choice in enumerate(choices)}
    return {
        "blocks": {
            "choice": blocks["choice"].map(index).tolist(),
            "start": starts.tolist(),
            **{name: blocks[name].tolist() for name in ("pairs", "metric", "tasks", "seeds")},
        },
        "cells": {name: exact(row) if name == "accuracy" else shown(row) for name, row in cells.items()},
        "scores": _scores(blocks, runs, first=str(every["metric"].iloc[0])),
    }


def _placed(values: pd.Series, places: npt.NDArray[np.int_], length: int) -> npt.NDArray[np.float64]:
    row = np.full(length, np.nan)
    row[places] = values.to_numpy()
    return row


def _scores(blocks: pd.DataFrame, runs: pd.DataFrame, first: str) -> dict[str, list[float | None]]:
    """AC, BC, FC and the ends of their intervals, block by block: of runs as recorded, of groups over seeds."""
    table = pd.DataFrame(np.nan, blocks.index, [score + end for score in SCORES for end in ENDS])
    for (pairs, metric), some in blocks.groupby(["pairs", "metric"], sort=False):
        for score in SCORES:
            names = [score_column(score + end, str(pairs), str(metric), first) for end in ENDS]
            recorded = runs.reindex(columns=names).apply(floats).set_axis(list(ENDS), axis=1)
            means = _spread(mean_interval(recorded[""].groupby(_mean_of(runs["group"])), share=score == "AC"))
            means = means[["mean", "low", "high"]].set_axis(list(ENDS), axis=1)
            every = pd.concat([recorded, means]).reindex(some["choice"])
            table.loc[some.index, [score + end for end in ENDS]] = every.to_numpy()
    return {name: shown(table[name]) for name in table.columns}


def score_column(score: str, pairs: str, metric: str, first: str) -> str:
    """The column of `runs` with a score by a metric; on tuning pairs only the first rate has one, without its name."""
    rate = metric.partition("@")[2]
    if pairs == "tuning":
        return f"tuning_{score}" + (f"@{rate}" if metric != first else "")
    return f"{score}@{rate}" if rate else score


def _scale(every: pd.DataFrame) -> dict[str, float]:
    """By metric, the difference to C[k,k] at which a colour is full: one for all runs, so that they compare."""
    below = every[every["t"] > every["k"]]
    own = every[every["t"] == every["k"]].set_index([*BLOCK, "k"])["accuracy"]
    differences = floats(below["accuracy"]) - own.reindex(pd.MultiIndex.from_frame(below[[*BLOCK, "k"]])).to_numpy()
    sizes = pd.Series(np.abs(differences), below.index).groupby(below["metric"]).quantile(0.95)
    return {str(metric): max(0.01, float(f"{size:.2g}")) for metric, size in sizes.dropna().items()}
