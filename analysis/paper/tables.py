"""The paper's tables, and the numbers of its figures, laid out as the paper has them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.bc_curves import bc_by_task
from analysis.cells import (
    EMPTY,
    Marks,
    column_marks,
    deviation_note,
    field_cell,
    marked_table,
    metric_cell,
    spread,
    to_compare,
)
from analysis.names import ALL_DATA, ordered, title
from analysis.paper.items import COMPARED, RATES, Item
from analysis.paper.values import Values
from analysis.shown import shown_ablation
from analysis.stats import base_metric
from analysis.table import Cell, Table, text_cells


@dataclass(frozen=True)
class Column:
    """A column of figures: a metric of the runs with so many tasks (and so much memory)."""

    head: str
    metric: str
    tasks: int
    memory: int | None = None

    @property
    def base(self) -> str:
        """The metric of a run that it belongs to."""
        return run_metric(self.metric)


def run_metric(metric: str) -> str:
    """AC of `AC@0.1`, BC of `BC(3)` and of their mean."""
    return "BC" if metric == "mean_BC_t" else base_metric(metric).partition("(")[0]


def item_tables(item: Item, frames: Mapping[str, pd.DataFrame]) -> list[Table]:
    """The table, or the numbers of the figure: means over seeds ± one standard deviation."""
    values = Values.of_frames(frames)
    match item.layout:
        case "two_tasks":
            return [two_tasks(values, tasks) for tasks in values.counts]
        case "task_counts":
            return [task_counts(values)]
        case "rates":
            return [rates(values)]
        case "ablation":
            return [ablation(values, tasks) for tasks in values.counts]
        case "bc":
            return bc_over_tasks(values, frames["matrix"])
        case "memory":
            return memory_sizes(values)


def ablation(values: Values, tasks: int) -> Table:
    """Classifier × distillation, with one number of tasks."""
    return shown_ablation(values.planned[values.planned["tasks_planned"] == tasks], f"Ablation, T={tasks}")


def two_tasks(values: Values, tasks: int) -> Table:
    """The first model's self-test, then a row a method: self-test, cross-test, ECC, BC, FC.

    The paper has one first model. Here methods begin differently, so each row has its own and the first row their mean.
    """
    heads = {f"self-test C[{tasks},{tasks}]": "self_test", f"cross-test C[{tasks},1]": "cross_test", "ECC": "AC"}
    heads |= {"BC": "BC", "FC": "FC", "own first model C[1,1]": "initial"}
    columns = [Column(head, metric, tasks) for head, metric in heads.items()]
    first = (Cell("Initial task"), _initial(values, tasks), *text_cells([""] * (len(columns) - 1)))
    return _methods(values, columns, f"One update, T={tasks}", [first])


def _initial(values: Values, tasks: int) -> Cell:
    """Mean over methods, then over seeds."""
    means = values.rows[values.rows["tasks_planned"] == tasks].groupby("seed")["initial"].mean()
    return metric_cell("self_test", means.mean(), means.std())


def _ecc(compatible: pd.Series) -> Cell:
    """Eq. 1 of two models, over seeds."""
    if compatible.empty:
        return Cell(EMPTY)
    fulfilled = int((compatible == 1).sum())
    return Cell({0: "no", len(compatible): "yes"}.get(fulfilled, f"{fulfilled} of {len(compatible)}"))


def task_counts(values: Values) -> Table:
    """Methods × numbers of tasks, with AC, BC and FC each."""
    columns = [Column(f"T={tasks}: {metric}", metric, tasks) for tasks in values.counts for metric in COMPARED]
    return _methods(values, columns, "Compatibility by number of tasks")


def rates(values: Values) -> Table:
    """Numbers of tasks and methods × false accept rates, with AC, BC and FC each."""
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
    """One table a metric: methods × images a class in memory."""
    tables = []
    for tasks in values.counts:
        for metric in COMPARED:
            columns = [Column(str(size), metric, tasks, size) for size in values.sizes]
            tables.append(_methods(values, columns, f"{metric} by images a class in memory, T={tasks}"))
    return tables


def bc_over_tasks(values: Values, matrix: pd.DataFrame) -> list[Table]:
    """One table a number of tasks: methods × t, BC(t)."""
    wide = bc_by_task(matrix).pivot(index="run", columns="t", values="BC").rename(columns=lambda t: f"BC({t})")
    values = Values(values.rows.merge(wide.reset_index(), on="run", how="left"), values.planned)
    tables = []
    for tasks in values.counts:
        columns = [Column(f"t={t}", f"BC({t})", tasks) for t in range(2, tasks + 1)]
        tables.append(_methods(values, [*columns, Column("mean", "mean_BC_t", tasks)], f"BC(t), T={tasks}"))
    return tables


def _methods(values: Values, columns: Sequence[Column], name: str, first: Sequence[tuple[Cell, ...]] = ()) -> Table:
    """A row a method; those that keep all data come last, under a line that says so."""
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
    data = _data(values, list(marks))
    apart = any(own.by_group for own in marks.values()) and set(values.methods) & set(ALL_DATA)
    note = "Methods that keep all data are not marked." if apart else ""
    return marked_table(heads, rows, data, name, marks.values(), deviation_note(data["seeds"]), note)


def _marks(values: Values, columns: Sequence[Column]) -> dict[Column, Marks]:
    """Of the metrics, not of self-tests; methods that keep all data do not compete."""
    rows = to_compare(values.rows[~values.rows["method.name"].isin(ALL_DATA)], "memory.per_class")
    return {column: _column_marks(rows, column) for column in columns}


def _column_marks(rows: pd.DataFrame, column: Column) -> Marks:
    if column.base not in COMPARED or column.metric not in rows:
        return Marks()
    rows = rows[rows["tasks_planned"] == column.tasks]
    if column.memory is not None:
        rows = rows[rows["memory.per_class"] == column.memory]
    return column_marks(rows.assign(**{column.base: rows[column.metric]}), column.base, ["method.name"])


def _cell(values: Values, method: str, column: Column, marks: Mapping[Column, Marks]) -> Cell:
    found = values.of(column.metric, method, column.tasks, column.memory)
    if column.head == "ECC":
        return _ecc(found)
    if found.empty:
        return Cell(values.hole(method, column.tasks, column.memory))
    return metric_cell(column.base, found.mean(), found.std(), marks[column].of(method), values.fewer(found))


def _data(values: Values, columns: Sequence[Column]) -> pd.DataFrame:
    """A row a figure."""
    rows = []
    for method in ordered(values.methods):
        for column in columns:
            found = values.of(column.metric, method, column.tasks, column.memory)
            place = {"method": method, "tasks": column.tasks, "memory": column.memory, "metric": column.metric}
            rows.append({**place, "mean": found.mean(), "sd": found.std(), "seeds": len(found)})
    frame = pd.DataFrame(rows)
    return frame if frame["memory"].notna().any() else frame.drop(columns="memory")


def figure(metric: str, found: pd.Series) -> str:
    """Mean ± deviation over seeds, with a sign if the metric is a difference of accuracies."""
    return spread(run_metric(metric), found.mean(), found.std())
