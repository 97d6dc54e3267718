"""The paper's tables and the values of its figures, laid out as in the paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.matrices import bc_by_task
from analysis.names import ALL_DATA, ordered, title
from analysis.paper.items import COMPARED, RATES, Item
from analysis.paper.values import Values
from analysis.tables.runs import ablation_table
from analysis.tables.table import (
    EMPTY,
    Cell,
    Marks,
    Table,
    column_marks,
    deviation_note,
    field_cell,
    marked_table,
    metric_cell,
    spread,
    text_cells,
    to_compare,
)


@dataclass(frozen=True)
class Column:
    """A column of values: a metric of the runs with this number of tasks and, if given, this memory."""

    head: str
    metric: str
    tasks: int
    memory: int | None = None

    @property
    def base(self) -> str:
        """Name of the metric in the registry."""
        return base_metric(self.metric)


def base_metric(metric: str) -> str:
    """Return AC for `AC@0.1`, BC for `BC(3)` and for the mean of BC(t)."""
    return "BC" if metric == "mean_BC_t" else metric.partition("@")[0].partition("(")[0]


def item_tables(item: Item, frames: Mapping[str, pd.DataFrame]) -> list[Table]:
    """Return the tables of an item, or the values of a figure: means over seeds ± one standard deviation."""
    values = Values.of_frames(frames)
    match item.layout:
        case "two_tasks":
            return [two_tasks(values, tasks) for tasks in values.counts]
        case "task_counts":
            return [task_counts(values)]
        case "rates":
            return [rates(values)]
        case "ablation":
            rows = values.planned
            return [ablation_table(rows[rows["tasks_planned"] == t], f"Ablation, T={t}") for t in values.counts]
        case "bc":
            return bc_over_tasks(values, frames["matrix"])
        case "memory":
            return memory_sizes(values)


def two_tasks(values: Values, tasks: int) -> Table:
    """Return the first model's self-test, then one row per method: self-test, cross-test, ECC, BC, FC.

    In the paper all methods share the first model. Here each method has its own, and the first row has their mean.
    """
    heads = {f"self-test C[{tasks},{tasks}]": "self_test", f"cross-test C[{tasks},1]": "cross_test", "ECC": "AC"}
    heads |= {"BC": "BC", "FC": "FC", "own first model C[1,1]": "initial"}
    columns = [Column(head, metric, tasks) for head, metric in heads.items()]
    means = values.rows[values.rows["tasks_planned"] == tasks].groupby("seed")["initial"].mean()
    initial = metric_cell("self_test", means.mean(), means.std())
    first = (Cell("Initial task"), initial, *text_cells([""] * (len(columns) - 1)))
    return _methods(values, columns, f"One update, T={tasks}", [first])


def task_counts(values: Values) -> Table:
    """Return methods × numbers of tasks, with AC, BC and FC each."""
    columns = [Column(f"T={tasks}: {metric}", metric, tasks) for tasks in values.counts for metric in COMPARED]
    return _methods(values, columns, "Compatibility by number of tasks")


def rates(values: Values) -> Table:
    """Return numbers of tasks and methods × false accept rates, with AC, BC and FC each."""
    heads = [f"{metric}@{rate}" for rate in RATES for metric in COMPARED]
    columns = [[Column(head, head, tasks) for head in heads] for tasks in values.counts]
    marks = _marks(values, [column for row in columns for column in row])
    rows = [
        (field_cell(tasks), Cell(title(method)), *(_cell(values, method, column, marks) for column in row))
        for tasks, row in zip(values.counts, columns, strict=True)
        for method in ordered(values.methods)
    ]
    heads = ["T", "method", *heads]
    return _table(values, heads, rows, "Compatibility by false accept rate", marks)


def memory_sizes(values: Values) -> list[Table]:
    """Return one table per metric: methods × images per class in memory."""
    tables = []
    for tasks in values.counts:
        for metric in COMPARED:
            columns = [Column(str(size), metric, tasks, size) for size in values.sizes]
            tables.append(_methods(values, columns, f"{metric} by images per class in memory, T={tasks}"))
    return tables


def bc_over_tasks(values: Values, matrix: pd.DataFrame) -> list[Table]:
    """Return one table of BC(t) per number of tasks: methods × t."""
    wide = bc_by_task(matrix).pivot(index="run", columns="t", values="BC").rename(columns=lambda t: f"BC({t})")
    values = Values(values.rows.merge(wide.reset_index(), on="run", how="left"), values.planned)
    tables = []
    for tasks in values.counts:
        columns = [Column(f"t={t}", f"BC({t})", tasks) for t in range(2, tasks + 1)]
        tables.append(_methods(values, [*columns, Column("mean", "mean_BC_t", tasks)], f"BC(t), T={tasks}"))
    return tables


def _methods(values: Values, columns: Sequence[Column], name: str, first: Sequence[tuple[Cell, ...]] = ()) -> Table:
    """Return one row per method; methods that keep all data come last, under a line that says so."""
    methods, marks = ordered(values.methods), _marks(values, columns)
    rows = {m: (Cell(title(m)), *(_cell(values, m, column, marks) for column in columns)) for m in methods}
    below = [method for method in methods if method in ALL_DATA]
    heading = (Cell("all data at every task:", mark="heading"), *text_cells([""] * len(columns)))
    body = [*first, *(rows[method] for method in methods if method not in ALL_DATA)]
    body += [*([heading] if 0 < len(below) < len(methods) else []), *(rows[method] for method in below)]
    return _table(values, ["method", *(column.head for column in columns)], body, name, marks)


def _table(
    values: Values, heads: Sequence[str], rows: Sequence[tuple[Cell, ...]], name: str, marks: Mapping[Column, Marks]
) -> Table:
    found = []
    for method in ordered(values.methods):
        for column in marks:
            own = values.of(column.metric, method, column.tasks, column.memory)
            place = {"method": method, "tasks": column.tasks, "memory": column.memory, "metric": column.metric}
            found.append({**place, "mean": own.mean(), "sd": own.std(), "seeds": len(own)})
    data = pd.DataFrame(found)
    data = data if data["memory"].notna().any() else data.drop(columns="memory")
    apart = any(own.by_group for own in marks.values()) and set(values.methods) & set(ALL_DATA)
    note = "Methods that keep all data are not marked." if apart else ""
    return marked_table(heads, rows, data, name, marks.values(), deviation_note(data["seeds"]), note)


def _marks(values: Values, columns: Sequence[Column]) -> dict[Column, Marks]:
    """Mark the best methods by AC, BC and FC; self-tests and methods that keep all data are not compared."""
    rows = to_compare(values.rows[~values.rows["method.name"].isin(ALL_DATA)], "memory.per_class")
    marks = {}
    for column in columns:
        if column.base not in COMPARED or column.metric not in rows:
            marks[column] = Marks()
            continue
        own = rows[rows["tasks_planned"] == column.tasks]
        if column.memory is not None:
            own = own[own["memory.per_class"] == column.memory]
        marks[column] = column_marks(own.assign(**{column.base: own[column.metric]}), column.base, ["method.name"])
    return marks


def _cell(values: Values, method: str, column: Column, marks: Mapping[Column, Marks]) -> Cell:
    found = values.of(column.metric, method, column.tasks, column.memory)
    if column.head == "ECC":  # Eq. 1 for two models, over seeds
        fulfilled = int((found == 1).sum())
        words = {0: "no", len(found): "yes"}.get(fulfilled, f"{fulfilled} of {len(found)}")
        return Cell(EMPTY if found.empty else words)
    if found.empty:
        return Cell(values.missing_text(method, column.tasks, column.memory))
    return metric_cell(column.base, found.mean(), found.std(), marks[column].of(method), values.fewer(found))


def value_text(metric: str, found: pd.Series) -> str:
    """Return mean ± deviation over seeds, with a sign if the metric is a difference of accuracies."""
    return spread(base_metric(metric), found.mean(), found.std())
