"""Which groups of runs a printed figure shows, what it calls them, and how each looks."""

from collections.abc import Collection
from dataclasses import dataclass, replace

import pandas as pd

from analysis.frames import Frames
from analysis.groups import group_labels, in_order
from analysis.names import HELD_AGAINST, ordered, title
from analysis.pivot import finished
from analysis.style import Look, look, nth_look
from cl2r.errors import InputError

LIMIT = 12
"""More lines than these nobody can tell apart."""


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
        rows = frames.runs[finished(frames.runs)]
        if rows.empty:
            raise InputError("no run has finished: there is nothing to draw")
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
    """ER and CL²R, which all others are held against, and those with the highest BC."""
    groups = in_order(rows["group"])
    if len(groups) <= limit:
        return groups, ""
    fixed = [name for name in map(title, HELD_AGAINST) if name in groups]
    means = rows["BC"].astype(float).groupby(rows["group"]).mean().reindex(groups).sort_values(ascending=False)
    best = [str(name) for name in means.index if name not in fixed][: limit - len(fixed)]
    words = " and ".join([*([", ".join(fixed)] if fixed else []), "those with the highest BC"])
    note = f"{limit} of {len(groups)} groups: {words}; {len(groups) - limit} left out"
    return [name for name in groups if name in fixed or name in best], note


def longest(frames: Frames) -> Frames:
    """Only the finished runs with most tasks: figures of different numbers of tasks do not compare."""
    rows = frames.runs[finished(frames.runs)]
    return replace(frames, runs=rows[rows["tasks"] == rows["tasks"].max()])


def no_chains(frames: Frames) -> str:
    """Why nothing can be said about compatibility; empty if it can."""
    rows = frames.runs[finished(frames.runs)]
    if rows.empty:
        return "no run has finished: there is nothing to draw"
    return "" if (rows["tasks"] > 1).any() else "every run has one task: compatibility needs two models"


def refuse(reason: str) -> None:
    """An obstacle, if there is one, ends it."""
    if reason:
        raise InputError(reason)
