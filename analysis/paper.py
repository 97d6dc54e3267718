"""The paper's tables and figures: which runs each needs, and the tables laid out as the paper has them.

Tables 2 and 4 show one update in detail, 3, 5, 6 and 7 have AC, BC and FC by number of tasks, 8 by false accept rate,
9 is the ablation. Figures 2 (`bc`) and 3 (`memory`) are given as numbers here and drawn by `paper_figures`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from analysis.names import ALL_DATA, FORGETTING, ordered, title
from analysis.paper_values import Values, bc_curves
from analysis.tables import EMPTY, ablation_table, markdown, spread, table_head, table_line
from cl2r.methods.catalog import ABLATION_CELLS

COMPARED = ("AC", "BC", "FC")
RATES = ("0.1", "0.01", "0.0001")
"""False accept rates of Table 8."""


@dataclass(frozen=True)
class Item:
    """A table or a figure: the paper's number, its preset (and others it may be asked for with), rows and columns."""

    number: str
    presets: tuple[str, ...]
    methods: tuple[str, ...]
    tasks: tuple[int, ...]
    layout: Literal["two_tasks", "task_counts", "rates", "ablation", "bc", "memory"]
    sizes: tuple[int, ...] = ()
    """Images a class in memory, where they vary."""


_ALL = (*FORGETTING, *ALL_DATA)
_TWO = ("lifelong_bct", "cl2r")
ITEMS = {
    "table 2": Item("Table 2", ("cifar100",), _ALL, (2,), "two_tasks"),
    "table 3": Item("Table 3", ("cifar100",), _ALL, (3, 5, 10), "task_counts"),
    "table 4": Item("Table 4", ("tiny_imagenet200",), _ALL, (2,), "two_tasks"),
    "table 5": Item("Table 5", ("tiny_imagenet200",), _ALL, (3, 5, 10), "task_counts"),
    "table 6": Item("Table 6", ("imagenet900",), _TWO, (2, 3), "task_counts"),
    "table 7": Item("Table 7", ("casia_lfw",), _TWO, (2, 3, 5, 10), "task_counts"),
    "table 8": Item("Table 8", ("casia_ijbc",), _TWO, (2, 3, 5, 10), "rates"),
    "table ablation": Item("Table 9", ("cifar100",), ABLATION_CELLS, (10,), "ablation"),
    "figure bc": Item(
        "Figure 2",
        ("cifar100", "tiny_imagenet200"),
        ("er", "lwf", "bic", "lucir", "fan", "lifelong_bct", "cl2r"),
        (5, 10),
        "bc",
    ),
    "figure memory": Item(
        "Figure 3", ("cifar100",), ("er", "lucir", "fan", "cl2r"), (10,), "memory", (0, 5, 10, 20, 50)
    ),
}


def item_markdown(item: Item, frames: dict[str, pd.DataFrame]) -> str:
    """The table, or the numbers of the figure: means over seeds ± one standard deviation."""
    layouts = {"two_tasks": two_tasks, "task_counts": task_counts, "rates": rates, "memory": memory_sizes}
    layouts |= {"ablation": ablation, "bc": lambda values: bc_markdown(values, bc_curves(frames))}
    return layouts[item.layout](Values.of_frames(frames))


def ablation(values: Values) -> str:
    """Classifier × distillation, one table a number of tasks."""
    parts = []
    for tasks in values.counts:
        heading = [f"T={tasks}"] if len(values.counts) > 1 else []
        parts += [*heading, markdown(ablation_table(values.planned[values.planned["tasks_planned"] == tasks]))]
    return "\n\n".join(parts)


def two_tasks(values: Values) -> str:
    """The first model's self-test, then a row a method: self-test, cross-test, ECC, BC, FC.

    The paper has one first model. Here methods begin differently, so each row has its own and the first row their mean.
    """
    return "\n\n".join(_one_update(values, tasks) for tasks in values.counts)


def _one_update(values: Values, tasks: int) -> str:
    names = [f"self-test C[{tasks},{tasks}]", f"cross-test C[{tasks},1]", "ECC", "BC", "FC", "own first model C[1,1]"]

    def row(method: str) -> list[str]:
        own, cross, bc, fc, first = (
            _cell(values, metric, method, tasks) for metric in ("self_test", "cross_test", "BC", "FC", "initial")
        )
        return [title(method), own, cross, _ecc(values.of("AC", method, tasks)), bc, fc, first]

    initial = table_line(["Initial task", _initial(values, tasks), *[""] * (len(names) - 1)])
    return "\n".join([*table_head(["method", *names]), initial, *_body(values, row)])


def _initial(values: Values, tasks: int) -> str:
    """Mean over methods, then over seeds."""
    means = values.rows[values.rows["tasks_planned"] == tasks].groupby("seed")["initial"].mean()
    return spread("self_test", means.mean(), means.std())


def _ecc(compatible: pd.Series) -> str:
    """Eq. 1 of two models, over seeds."""
    if compatible.empty:
        return EMPTY
    fulfilled = int((compatible == 1).sum())
    return {0: "no", len(compatible): "yes"}.get(fulfilled, f"{fulfilled} of {len(compatible)}")


def task_counts(values: Values) -> str:
    """Methods × numbers of tasks, with AC, BC and FC each."""
    columns = [(tasks, metric) for tasks in values.counts for metric in COMPARED]

    def row(method: str) -> list[str]:
        return [title(method), *(_cell(values, metric, method, tasks) for tasks, metric in columns)]

    head = table_head(["method", *(f"T={tasks}: {metric}" for tasks, metric in columns)])
    return "\n".join([*head, *_body(values, row)])


def rates(values: Values) -> str:
    """Numbers of tasks and methods × false accept rates, with AC, BC and FC each."""
    columns = [f"{metric}@{rate}" for rate in RATES for metric in COMPARED]
    lines = table_head(["T", "method", *columns])
    for tasks in values.counts:
        for method in ordered(values.methods):
            cells = [_cell(values, metric, method, tasks) for metric in columns]
            lines.append(table_line([str(tasks), title(method), *cells]))
    return "\n".join(lines)


def memory_sizes(values: Values) -> str:
    """One table a metric: methods × images a class in memory."""
    parts = []
    for tasks in values.counts:
        for metric in COMPARED:
            lines = [f"{metric} by images a class in memory, T={tasks}", ""]
            lines += table_head(["method", *map(str, values.sizes)])
            for method in ordered(values.methods):
                cells = [_cell(values, metric, method, tasks, size) for size in values.sizes]
                lines.append(table_line([title(method), *cells]))
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


def bc_markdown(values: Values, curves: pd.DataFrame) -> str:
    """One table a number of tasks: methods × t, BC(t)."""
    parts = []
    for tasks in values.counts:
        lines = [f"BC(t), T={tasks}", "", *table_head(["method", *(f"t={t}" for t in range(2, tasks + 1)), "mean"])]
        for method in ordered(values.methods):
            own = curves[(curves["method"] == method) & (curves["tasks"] == tasks)].groupby("t")["BC"]
            means, deviations = (part.reindex(range(2, tasks + 1)) for part in (own.mean(), own.std()))
            cells = [spread("BC", *both) for both in zip(means, deviations, strict=True)]
            lines.append(table_line([title(method), *cells, _cell(values, "mean_BC_t", method, tasks)]))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _body(values: Values, row: Callable[[str], list[str]]) -> list[str]:
    """A line a method; those that keep all data come last, under a line that says so."""
    methods = ordered(values.methods)
    lines = {method: row(method) for method in methods}
    below = [method for method in methods if method in ALL_DATA]
    mark = (
        ["*all data at every task:*", *[""] * (len(lines[methods[0]]) - 1)] if 0 < len(below) < len(methods) else None
    )
    cells = [lines[method] for method in methods if method not in ALL_DATA]
    cells += [*([mark] if mark else []), *(lines[method] for method in below)]
    return [table_line(line) for line in cells]


def _cell(values: Values, metric: str, method: str, tasks: int, memory: int | None = None) -> str:
    found = values.of(metric, method, tasks, memory)
    if found.empty:
        return values.hole(method, tasks, memory)
    return figure(metric, found) + values.fewer(found)


def figure(metric: str, found: pd.Series) -> str:
    """Mean ± deviation over seeds, with a sign if the metric is a difference of accuracies."""
    base = "BC" if metric == "mean_BC_t" else metric.partition("@")[0]
    return spread(base, found.mean(), found.std())
