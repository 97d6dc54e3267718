"""What methods, metrics and config fields are called in tables and plots, in which order, and how lines are drawn."""

from collections.abc import Sequence
from dataclasses import dataclass

from cl2r.metrics import METRICS, Metric

TITLES = {
    **{"er": "ER", "lwf": "LwF", "lucir": "LUCIR", "bic": "BiC", "podnet": "PODNet", "foster": "FOSTER", "fan": "FAN"},
    **{"lifelong_bct": "ℓ-BCT", "cl2r": "CL²R", "bct": "BCT", "upper_bound": "UB"},
    **{"er_fd": "Trainable, FD", "er_fdm": "Trainable, FD^M", "fixed": "Fixed", "fixed_fd": "Fixed, FD"},
    **{"lwf_er": "LwF, memory", "icarl": "iCaRL", "bic_inclearn": "BiC, sigmoid", "wa": "WA", "hoc": "HOC"},
    **{"cores": "CoReS", "der_trunc": "DER, cut"},
}
FORGETTING = ("er", "lwf", "lucir", "bic", "podnet", "foster", "fan", "lifelong_bct", "cl2r")
ALL_DATA = ("bct", "upper_bound")  # methods that train on all data at every task; the paper lists them below a line
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
    """Return what the paper, or its authors, call a method; an adapter keeps its name."""
    base, plus, adapter = method.partition("+")
    return TITLES.get(base, base) + plus + adapter


def ordered(methods: Sequence[str]) -> list[str]:
    """Return the distinct methods in the paper's order: unknown ones after CL²R, those that keep all data last."""
    place = {name: number for number, name in enumerate(FORGETTING)}
    place |= {name: 100 + number for number, name in enumerate(ALL_DATA)}
    return sorted(dict.fromkeys(methods), key=lambda name: place.get(name, 50))


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


# Line styles. A method has the same colour, marker and dashes in every plot, printed or interactive.

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#999999", "#B8A900", "#56B4E9", "#7F5539")
"""Distinguishable with every common kind of colour blindness (after Okabe and Ito)."""
MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">")
HIGHLIGHT = "#D55E00"


@dataclass(frozen=True)
class LineStyle:
    """How a line is drawn. `marker` is Matplotlib's letter; hollow markers are not filled; CL²R is highlighted."""

    colour: str
    marker: str
    dashed: bool = False
    highlighted: bool = False
    hollow: bool = False


def method_style(method: str, methods: Sequence[str]) -> LineStyle:
    """Return the style of one of `methods`; the paper's methods have the same style whatever else is drawn."""
    if method == "cl2r":
        return LineStyle(HIGHLIGHT, "o", highlighted=True)
    known = [name for name in (*FORGETTING, *ALL_DATA, *ordered(methods)) if name != "cl2r"]
    return nth_style(list(dict.fromkeys(known)).index(method))


def nth_style(place: int) -> LineStyle:
    """Return the style of the line at `place` in a list of lines; the first 32 styles differ."""
    kind, number = divmod(place, len(COLOURS))
    return LineStyle(COLOURS[number], MARKERS[number], dashed=kind % 2 == 1, hollow=kind % 4 >= 2)
