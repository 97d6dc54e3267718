"""The registry of metrics: frames, tables, sweeps, plots, the report and the docs read it.

A metric is computed from the compatibility matrix, or it is a cost that a run records. To add one, add an entry:
`register(Metric("min_accuracy", "lowest accuracy", compute=...))` gives it a column in `runs` and a place in every
table. Tables and plots list metrics in the order of the registry.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from cl2r import compatibility
from cl2r.errors import InputError, nearest

Floats = npt.NDArray[np.float64]
End = Literal["", "low", "high"]
ONE_TASK = "one task has no older model to compare with"
NO_SEARCH = "data given as pairs or templates has no search, nor have open classes with one report image each"


@dataclass(frozen=True)
class Metric:
    """One value per run, and how it is shown and compared."""

    name: str
    """Column of the `runs` frame."""
    title: str
    """Words for axes and legends."""
    compute: Callable[[Floats, bool], Floats] | None = None
    """Map matrices (..., T, T) and the rule for ties to values (...); None for a cost that the run records."""
    matrix: Literal["accuracy", "recall"] = "accuracy"
    """The cells of that matrix: 1:1 verification (accuracy, or a true accept rate), or recall@1 of 1:N search."""
    label: str = ""
    """Head of a table's column; the name if empty."""
    better: Literal["higher", "lower"] = "higher"
    signed: bool = False
    bounds: tuple[float, float] = (-math.inf, math.inf)
    """Interval ends are clipped to these."""
    interval: bool = False
    """Whether a run has a bootstrap interval of it."""
    objective: str = ""
    """Name under which a sweep can optimise it; empty if it cannot."""
    in_tables: bool = True
    """Whether tables of runs have a column of it."""

    @property
    def head(self) -> str:
        """Head of a table's column."""
        return self.label or self.name

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        """Optuna's word for the better direction."""
        return "maximize" if self.better == "higher" else "minimize"

    def column(self, pairs: str = "report", far: float | None = None, end: End = "") -> str:
        """Return the column of `runs`: `AC`, `tuning_AC`, `AC@0.01`, `AC_low@0.01`. Costs have one column only."""
        if self.compute is None:
            return self.name
        name = ("tuning_" if pairs == "tuning" else "") + self.name + (f"_{end}" if end else "")
        return name if far is None else f"{name}@{far:g}"

    @property
    def undefined(self) -> str:
        """Why a finished run may have no value of a metric that is computed from a matrix."""
        return NO_SEARCH if self.matrix == "recall" else ONE_TASK

    def text(self, value: float) -> str:
        """Return the value with three digits, and with its sign if the metric is a difference; `–` for NaN."""
        return "–" if math.isnan(value) else f"{value:{'+' if self.signed else ''}.3f}"


class Registry(dict[str, Metric]):
    """Metrics by name, in the order of registration."""

    def __init__(self, *metrics: Metric) -> None:
        super().__init__({metric.name: metric for metric in metrics})

    def __missing__(self, name: str) -> Metric:
        raise InputError(f"no metric {name!r}{nearest(name, self)}; choose from {', '.join(self)}")

    def register(self, metric: Metric) -> None:
        """Add a metric. Raise ValueError if its name is taken."""
        if metric.name in self:
            raise ValueError(f"a metric {metric.name!r} is registered already")
        self[metric.name] = metric

    def of_matrix(self) -> list[Metric]:
        """Return the metrics that are computed from a compatibility matrix, of verification or of search."""
        return [metric for metric in self.values() if metric.compute is not None]

    def in_tables(self) -> list[Metric]:
        """Return the metrics of the matrices that tables of runs have columns of."""
        return [metric for metric in self.of_matrix() if metric.in_tables]

    def objectives(self) -> dict[str, Metric]:
        """Return what a sweep can optimise, by the name that `search.objectives` uses."""
        return {metric.objective: metric for metric in self.values() if metric.objective}


SHARE = (0.0, 1.0)
_summary = partial(Metric, interval=True)
AC = _summary("AC", "AC, share of compatible cells", compatibility.average_compatibility, bounds=SHARE, objective="AC")
BC = _summary("BC", "BC, backward compatibility", compatibility.backward_compatibility, signed=True, objective="BC")
FC = _summary("FC", "FC, forward compatibility", compatibility.forward_compatibility, signed=True, objective="FC")
MEAN_ACCURACY = Metric(
    "mean_accuracy",
    "mean accuracy",
    compatibility.mean_accuracy,
    label="mean accuracy",
    bounds=SHARE,
    objective="mean_accuracy",
)
_score = partial(Metric, bounds=SHARE, interval=True)
SERVICE_ACCURACY = _score(
    "service_accuracy",
    "service accuracy, last model's queries on all galleries",
    compatibility.service_score,
    label="service accuracy",
    objective="service_accuracy",
)
SERVICE_RECALL = _score(
    "service_recall",
    "service recall@1, last model's queries on all galleries",
    compatibility.service_score,
    "recall",
    "service recall",
    objective="service_recall",
)
REINDEXED_ACCURACY = _score(
    "reindexed_accuracy",
    "re-indexed accuracy, the last model alone",
    compatibility.reindexed_score,
    label="re-indexed accuracy",
    objective="reindexed_accuracy",
)
REINDEXED_RECALL = _score(
    "reindexed_recall",
    "re-indexed recall@1, the last model alone",
    compatibility.reindexed_score,
    "recall",
    "re-indexed recall",
    objective="reindexed_recall",
)
# Tables show these two as the row "never upgrade".
_first = partial(_score, compute=compatibility.first_score, in_tables=False)
FIRST_ACCURACY = _first("first_accuracy", "accuracy of the first model")
FIRST_RECALL = _first("first_recall", "recall@1 of the first model", matrix="recall")
STORED_BYTES = Metric("stored_bytes", "stored after the last task", better="lower", objective="stored_bytes")
TRAIN_SECONDS = Metric("train_seconds", "training of the chain (s)", better="lower", objective="seconds")
WALL_SECONDS = Metric("wall_seconds", "seconds from start to end", better="lower")
PEAK_BYTES = Metric("peak_bytes", "peak memory of a training process", better="lower")
ADAPTER_FLOPS = Metric("adapter_flops", "FLOPs per mapped vector", better="lower")
GALLERY_ITEMS = Metric("gallery_items_touched", "gallery vectors rewritten", better="lower")

COMPATIBILITY = (AC, BC, FC)  # the paper's three metrics
_COSTS = (STORED_BYTES, TRAIN_SECONDS, WALL_SECONDS, PEAK_BYTES, ADAPTER_FLOPS, GALLERY_ITEMS)
_SERVICE = (SERVICE_ACCURACY, SERVICE_RECALL, REINDEXED_ACCURACY, REINDEXED_RECALL, FIRST_ACCURACY, FIRST_RECALL)
METRICS = Registry(*COMPATIBILITY, MEAN_ACCURACY, *_SERVICE, *_COSTS)
