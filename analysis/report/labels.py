"""The runs of a study with the name of their group, the same in all parts of the report."""

from collections.abc import Mapping

import pandas as pd

from analysis.groups import group_labels, in_order
from analysis.names import ordered
from analysis.study import Study
from analysis.style import Look, look, nth_look

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "D": "diamond",
    "v": "triangle-down",
    "P": "cross",
    "X": "x",
    "<": "triangle-left",
    ">": "triangle-right",
}
"""Matplotlib's letters in Plotly's words."""


def labelled(study: Study, fields: list[str]) -> pd.DataFrame:
    """`runs` with `group`, which the `fields` make; trials of a sweep have their number in it: they may look alike."""
    runs = study.runs
    labels = group_labels(runs, fields).astype(str)
    if study.specification.get("space") and "trial" in runs:
        labels = "trial " + runs["trial"].astype(str) + ": " + labels
    return runs.assign(group=labels)


def looks(runs: pd.DataFrame) -> dict[str, dict[str, object]]:
    """Colour, marker and dashes of every group: those of its method, with other dashes for the method's next group."""
    methods = dict(zip(runs["group"], runs["method.name"].astype(str), strict=True))
    groups = in_order(runs["group"])
    names = ordered(list(methods.values()))
    if len(names) == 1 and len(groups) > 1:
        return {group: _drawn(nth_look(place), 0) for place, group in enumerate(groups)}
    return {group: _drawn(look(methods[group], names), _place(group, methods)) for group in groups}


def _place(group: str, methods: Mapping[str, str]) -> int:
    return [name for name in methods if methods[name] == methods[group]].index(group)


def _drawn(own: Look, place: int) -> dict[str, object]:
    dash = DASHES[(place + own.dashed) % len(DASHES)]
    symbol = SYMBOLS[own.marker] + ("-open" if own.hollow else "")
    return {"color": own.colour, "symbol": symbol, "dash": dash, "width": 3 if own.highlighted else 2}
