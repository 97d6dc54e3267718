"""The runs that each table and figure of the paper needs; `analysis.paper.tables` lays them out."""

from dataclasses import dataclass
from typing import Literal

from cl2r.config.builtin import ABLATION_CELLS
from cl2r.metrics import COMPATIBILITY

COMPARED = tuple(metric.name for metric in COMPATIBILITY)
RATES = ("0.1", "0.01", "0.0001")  # false accept rates of Table 8


@dataclass(frozen=True)
class Item:
    """A table or a figure: its number in the paper, its preset followed by other admissible ones, rows and columns."""

    number: str
    presets: tuple[str, ...]
    methods: tuple[str, ...]
    tasks: tuple[int, ...]
    layout: Literal["two_tasks", "task_counts", "rates", "ablation", "bc", "memory"]
    sizes: tuple[int, ...] = ()  # images per class in memory, if they vary


FORGETTING = ("er", "lwf", "lucir", "bic_inclearn", "podnet", "foster", "fan", "lifelong_bct", "cl2r")
_ALL = (*FORGETTING, "bct", "upper_bound")
_TWO = ("lifelong_bct", "cl2r")
_CURVES = ("er", "lwf", "bic_inclearn", "lucir", "fan", "lifelong_bct", "cl2r")
_SIZES = ("er", "lucir", "fan", "cl2r")
ITEMS = {
    "table 2": Item("Table 2", ("cifar100",), _ALL, (2,), "two_tasks"),
    "table 3": Item("Table 3", ("cifar100",), _ALL, (3, 5, 10), "task_counts"),
    "table 4": Item("Table 4", ("tiny_imagenet200",), _ALL, (2,), "two_tasks"),
    "table 5": Item("Table 5", ("tiny_imagenet200",), _ALL, (3, 5, 10), "task_counts"),
    "table 6": Item("Table 6", ("imagenet900",), _TWO, (2, 3), "task_counts"),
    "table 7": Item("Table 7", ("casia_lfw",), _TWO, (2, 3, 5, 10), "task_counts"),
    "table 8": Item("Table 8", ("casia_ijbc",), _TWO, (2, 3, 5, 10), "rates"),
    "table ablation": Item("Table 9", ("cifar100",), ABLATION_CELLS, (10,), "ablation"),
    "figure bc": Item("Figure 2", ("cifar100", "tiny_imagenet200"), _CURVES, (5, 10), "bc"),
    "figure memory": Item("Figure 3", ("cifar100",), _SIZES, (10,), "memory", (0, 5, 10, 20, 50)),
}
