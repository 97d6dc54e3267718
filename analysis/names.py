"""What methods, metrics and config fields are called in tables and plots, in which order, and how lines are drawn."""

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cl2r.metrics import METRICS, Metric

METHODS = {
    "er": "ER",
    "er_fd": "Trainable, FD",
    "er_fdm": "Trainable, FD^M",
    "fixed": "Fixed",
    "fixed_fd": "Fixed, FD",
    "lwf": "LwF",
    "lwf_er": "LwF, memory",
    "icarl": "iCaRL",
    "lucir": "LUCIR",
    "bic": "BiC",
    "bic_inclearn": "BiC, sigmoid",
    "podnet": "PODNet",
    "wa": "WA",
    "foster": "FOSTER",
    "fan": "FAN",
    "lifelong_bct": "ℓ-BCT",
    "hoc": "HOC",
    "der_trunc": "DER, cut",
    "cl2r": "CL²R",
    "cores": "CoReS",
    "bct": "BCT",
    "upper_bound": "UB",
}
"""What the paper, or their authors, call the methods, in the order of all tables, legends and panels.

Those that train on all data at every task come last; the paper lists them below a line.
"""
ADAPTERS = ("aligner", "procrustes", "slerp", "query_drift", "low_rank", "residual_mlp", "orthogonal")
ALL_DATA = ("cores", "bct", "upper_bound")
REFERENCE_METHODS = ("er", "cl2r")  # methods that a plot always shows, even if it has no room for all
STATIONARITY = {
    "drift_cosine": "mean cosine with the previous model",
    "rotated_cosine": "the same after the best rotation",
    "cka": "linear CKA with the previous model",
    "vertex_cosine": "cosine of class mean and its vertex",
}
"""Columns of `tasks` that measure how little a representation moves from task to task, and their axis titles."""
FIELD_TITLES = {"scenario.n_tasks": "T", "memory.per_class": "memory", "method.lambda_base": "λ_base"}


def title(method: str) -> str:
    """Return what people call a method; an adapter keeps its name, and so does an unknown method."""
    base, plus, adapter = method.partition("+")
    return METHODS.get(base, base) + plus + adapter


def ordered(methods: Iterable[str]) -> list[str]:
    """Return the distinct methods in the one order of tables and plots.

    Unknown methods come after CL²R, a method's adapters after the method.
    """
    places = {name: place for place, name in enumerate(METHODS)}

    def place(method: str) -> tuple[float, int]:
        base, _, adapter = method.partition("+")
        return places.get(base, places["cl2r"] + 0.5), ADAPTERS.index(adapter) + 1 if adapter in ADAPTERS else 0

    return sorted(dict.fromkeys(methods), key=place)


def on_all_data(method: str) -> bool:
    """Return whether a method, with or without an adapter, trains on all data at every task."""
    return method.partition("+")[0] in ALL_DATA


def shown_first(labels: Sequence[str], limit: int) -> list[str]:
    """Return at most `limit` of the labels: the reference methods among them, then the others in their order."""
    kept = [name for name in map(title, REFERENCE_METHODS) if name in labels]
    return [*kept, *[label for label in labels if label not in kept][: max(limit - len(kept), 0)]]


def field_title(field: str) -> str:
    """Return a short name of a config field: the paper's symbol, or the last part of its name."""
    return FIELD_TITLES.get(field, field.rpartition(".")[2])


def metric_of(column: str) -> Metric | None:
    """Return the metric that a column of `runs` holds, or None; `tuning_AC`, `AC_low` and `AC@0.01` hold AC."""
    name = column.removeprefix("tuning_").partition("@")[0].removesuffix("_low").removesuffix("_high")
    return next((metric for metric in METRICS.values() if metric.name == name), None)


# Colours. A method has the same colour, marker and dashes in every plot, printed or interactive. A value that is better
# or worse than another is blue or orange, whatever is drawn.

GOOD, BAD, NEUTRAL = "#0072B2", "#D55E00", "#8C8C8C"
"""Told apart with every common kind of colour blindness."""
COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#7F5539", "#B8A900", "#0072B2", "#EE6677", "#44AA99")
"""Distinguishable with every common kind of colour blindness (after Okabe and Ito, and Tol), on white and on black."""
MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">")


@dataclass(frozen=True)
class LineStyle:
    """How a line is drawn. `marker` is Matplotlib's letter; hollow markers are not filled; CL²R is highlighted."""

    colour: str
    marker: str
    dashed: bool = False
    highlighted: bool = False
    hollow: bool = False
    pattern: int = 0  # of the dashes; groups of one method differ in it


BASELINE = LineStyle("#767676", "o", hollow=True)
HIGHLIGHT = LineStyle("#AA3377", "o", highlighted=True)
STYLES = {
    "er": BASELINE,
    "cl2r": HIGHLIGHT,
    "er_fd": LineStyle("#56B4E9", "^"),
    "er_fdm": LineStyle("#0072B2", "s"),
    "fixed": LineStyle("#E69F00", "D"),
    "fixed_fd": LineStyle("#7F5539", "P"),
}
"""Styles that were chosen; other methods have those of their place in METHODS."""


def method_style(method: str) -> LineStyle:
    """Return the style of a method, which never depends on what else is drawn; an adapter changes its method's marker.

    A method that is not in METHODS has one of the styles after theirs, by its name.
    """
    base, _, adapter = method.partition("+")
    others = [name for name in METHODS if name not in STYLES]
    unknown = len(others) + zlib.crc32(base.encode()) % (32 - len(others))
    style = STYLES.get(base) or nth_style(others.index(base) if base in others else unknown)
    if not adapter:
        return style
    marker = MARKERS[(ADAPTERS.index(adapter) if adapter in ADAPTERS else zlib.crc32(adapter.encode())) % len(MARKERS)]
    return replace(style, marker=marker, dashed=True, highlighted=False, hollow=not style.hollow)


def nth_style(place: int) -> LineStyle:
    """Return the style of the line at `place` in a list of lines; the first 32 styles differ."""
    kind, number = divmod(place, len(COLOURS))
    return LineStyle(COLOURS[number], MARKERS[number], dashed=kind % 2 == 1, hollow=kind % 4 >= 2)


def group_styles(methods: Mapping[str, str]) -> dict[str, LineStyle]:
    """Return the style of every group, given its method, in the one order of legends.

    The first group of a method has the method's style, the next ones its colour with other dashes and markers. If all
    groups are of one method, its colour gets darker from group to group.
    """
    places, seen = {name: place for place, name in enumerate(ordered(methods.values()))}, Counter[str]()
    found = {}
    for group, method in sorted(methods.items(), key=lambda item: places[item[1]]):
        style, number = method_style(method), seen[method]
        if number:
            first = MARKERS.index(style.marker) if style.marker in MARKERS else -1
            marker = MARKERS[(first + number) % len(MARKERS)]
            style = replace(style, marker=marker, pattern=number, highlighted=False)
        if len(places) == 1 and len(methods) > 1:
            white = 0.6 * (1 - number / (len(methods) - 1))
            parts = (round(255 * white + part * (1 - white)) for part in bytes.fromhex(style.colour[1:]))
            style = replace(style, colour=f"#{bytes(parts).hex()}", highlighted=False)
        found[group], seen[method] = style, number + 1
    return found
