"""Which groups of runs a printed figure shows, what it calls them, and how each looks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from analysis.bc_curves import cells_of
from analysis.frames import Frames
from analysis.groups import group_labels, in_order
from analysis.names import HELD_AGAINST, ordered, title
from analysis.pivot import finished
from analysis.style import Look, look, nth_look
from cl2r.errors import InputError

LIMIT = 12
"""More lines than these nobody can tell apart."""
RUN = ("run", "tasks", "seed", "data.name", "method.name")
"""Columns of `runs` that every figure needs."""
MATRIX = ("run", "pairs", "t", "k", "accuracy")
"""Columns of `matrix` that make a matrix."""


@dataclass(frozen=True, eq=False)
class Groups:
    """`rows`: the finished runs that are shown, with their `group`; `looks` in the order of legends."""

    rows: pd.DataFrame
    looks: dict[str, Look]
    note: str = ""
    """Says so if groups are left out."""

    @classmethod
    def of(
        cls, frames: Frames, without: Collection[str] = (), limit: int = LIMIT, varied: str | None = None
    ) -> "Groups":
        """Finished runs by all fields that tell them apart, but for those in `without`: a figure has them elsewhere.

        With `varied`, a config field, only groups in which it takes several values; there may be none.
        """
        refuse(no_runs(frames))
        rows = frames.runs[finished(frames.runs)]
        rows = rows.assign(group=group_labels(rows.drop(columns=[name for name in without if name in rows])))
        if varied is not None:
            rows = rows[rows.groupby("group")[varied].transform("nunique") > 1]
        shown, note = _telling(rows, limit)
        looks = _looks(shown, [str(name) for name in frames.runs["method.name"].unique()])
        return cls(rows[rows["group"].isin(shown)], looks, note)

    @property
    def tasks(self) -> int:
        """T of the runs, if it is the same."""
        return int(self.rows["tasks"].iloc[0])

    def heading(self, words: str) -> str:
        """With a line on the groups that are left out."""
        return f"{words}\n{self.note}" if self.note else words


def _looks(groups: list[str], methods: list[str]) -> dict[str, Look]:
    """Groups that are methods look as methods do everywhere, and come in their order; others by their place."""
    names = {title(method): method for method in ordered(methods)}
    if set(groups) <= set(names):
        return {name: look(method, methods) for name, method in names.items() if name in groups}
    return {group: nth_look(place) for place, group in enumerate(groups)}


def _telling(rows: pd.DataFrame, limit: int) -> tuple[list[str], str]:
    """ER and CL²R, which all others are held against, and those with the highest BC, or the first if none has any."""
    groups = in_order(rows["group"])
    if len(groups) <= limit:
        return groups, ""
    fixed = [name for name in map(title, HELD_AGAINST) if name in groups]
    means = figures(rows, "BC").groupby(rows["group"]).mean().reindex(groups)
    ranked = means.sort_values(ascending=False, kind="stable")
    best = [str(name) for name in ranked.index if name not in fixed][: limit - len(fixed)]
    which = "those with the highest BC" if means.notna().any() else "the first"
    words = " and ".join([*([", ".join(fixed)] if fixed else []), which])
    note = f"{limit} of {len(groups)} groups: {words}; {len(groups) - limit} left out"
    return [name for name in groups if name in fixed or name in best], note


def longest(frames: Frames) -> Frames:
    """Only the finished runs with most tasks: figures of different numbers of tasks do not compare."""
    rows = frames.runs[finished(frames.runs)]
    return replace(frames, runs=rows[rows["tasks"] == rows["tasks"].max()])


def figures(runs: pd.DataFrame, column: str) -> pd.Series:
    """A column of numbers as floats; NaN where it is empty or absent."""
    values = runs[column] if column in runs else pd.Series(index=runs.index, dtype=float)
    return pd.to_numeric(values, errors="coerce").astype(float)


def with_cells(frames: Frames, pairs: str = "report", metric: str | None = None) -> Frames:
    """Only the finished runs that have cells of C on these pairs, by this metric."""
    rows = frames.runs[finished(frames.runs)]
    return replace(frames, runs=rows[rows["run"].isin(cells_of(frames.matrix, pairs, metric)["run"])])


def measured(frames: Frames, shown: Frames, pairs: str, metric: str | None = None) -> str:
    """What a heading says of the metric, the pairs, and of finished runs that have no matrix by them."""
    cells = cells_of(frames.matrix, pairs, metric)
    names = in_order(cells.loc[cells["run"].isin(shown.runs["run"]), "metric"])
    words = "" if names == ["accuracy"] else f", by {' and '.join(names)}"
    words += "" if pairs == "report" else f", {pairs} pairs"
    total = int(finished(frames.runs).sum())
    lost = total - len(shown.runs)
    return words + (f", {lost} of {total} runs left out for want of a matrix" if lost else "")


def absent(frame: pd.DataFrame, names: Sequence[str], what: str) -> str:
    """Says which of the columns `what` does not have; empty if it has all."""
    missing = [name for name in names if name not in frame]
    return f"{what} without {', '.join(missing)}: there is nothing to draw" if missing else ""


def no_cells(frames: Frames, pairs: str = "report", *more: str) -> str:
    """Why there is no matrix on these pairs, with `more` columns; empty if there is."""
    if reason := no_chains(frames) or absent(frames.matrix, (*MATRIX, *more), "matrix"):
        return reason
    known = with_cells(frames, pairs)
    return f"no {pairs} pairs were evaluated" if known.runs.empty else no_chains(known)


def no_runs(frames: Frames) -> str:
    """Says so if no run has finished."""
    return "" if finished(frames.runs).any() else "no run has finished: there is nothing to draw"


def no_chains(frames: Frames) -> str:
    """Why nothing can be said about compatibility; empty if it can."""
    if reason := no_runs(frames) or absent(frames.runs, RUN, "runs"):
        return reason
    rows = frames.runs[finished(frames.runs)]
    return "" if (rows["tasks"] > 1).any() else "every run has one task: compatibility needs two models"


def refuse(reason: str) -> None:
    """An obstacle, if there is one, ends it."""
    if reason:
        raise InputError(reason)
