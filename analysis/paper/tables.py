"""The paper's tables and the values of its figures, laid out as in the paper."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.matrices import bc_by_task
from analysis.names import ALL_DATA, ordered, title
from analysis.paper.items import COMPARED, RATES, Item
from analysis.paper.values import Values
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


def base_metric(metric: str) -> str:
    """Return AC for `AC@0.1`, BC for `BC(3)` and for the mean of BC(t)."""
    return "BC" if metric == "mean_BC_t" else metric.partition("@")[0].partition("(")[0]


def item_tables(item: Item, frames: Mapping[str, pd.DataFrame]) -> list[Table]:
    """Return the tables of an item, or the values of a figure: means over seeds ± one standard deviation."""
    values = Values.of_frames(frames)
    counts = values.counts
    match item.layout:
        case "two_tasks":
            return [_two_tasks(values, tasks) for tasks in counts]
        case "task_counts":  # methods × numbers of tasks
            columns = [Column(f"T={tasks}: {metric}", metric, tasks) for tasks in counts for metric in COMPARED]
            return [_methods(values, columns, "Compatibility by number of tasks")]
        case "rates":
            return [_rates(values)]
        case "ablation":
            cells = {tasks: [Column(metric, metric, tasks) for metric in COMPARED] for tasks in counts}
            return [_methods(values, cells[tasks], f"Ablation, T={tasks}") for tasks in counts]
        case "bc":  # methods × t, one table per number of tasks
            wide = bc_by_task(frames["matrix"]).pivot(index="run", columns="t", values="BC")
            wide = wide.rename(columns=lambda t: f"BC({t})").reset_index()
            values = Values(values.rows.merge(wide, on="run", how="left"), values.planned)
            curves = {tasks: [Column(f"t={t}", f"BC({t})", tasks) for t in range(2, tasks + 1)] for tasks in counts}
            means = {tasks: Column("mean", "mean_BC_t", tasks) for tasks in counts}
            return [_methods(values, [*curves[tasks], means[tasks]], f"BC(t), T={tasks}") for tasks in counts]
        case "memory":  # methods × images per class, one table per metric
            return [
                _methods(
                    values,
                    [Column(str(size), metric, tasks, size) for size in values.sizes],
                    f"{metric} by images per class in memory, T={tasks}",
                )
                for tasks in counts
                for metric in COMPARED
            ]


def _two_tasks(values: Values, tasks: int) -> Table:
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


def _rates(values: Values) -> Table:
    """Return numbers of tasks and methods × false accept rates, with AC, BC and FC each."""
    heads = [f"{metric}@{rate}" for rate in RATES for metric in COMPARED]
    columns = {tasks: [Column(head, head, tasks) for head in heads] for tasks in values.counts}
    marks = _marks(values, list(itertools.chain(*columns.values())))
    rows = [
        (field_cell(tasks), Cell(title(method)), *(_cell(values, method, column, marks) for column in row))
        for tasks, row in columns.items()
        for method in ordered(values.methods)
    ]
    return _table(values, ["T", "method", *heads], rows, "Compatibility by false accept rate", marks)


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
    notes = (deviation_note(data["seeds"]), note)
    return marked_table(heads, rows, data, name, marks.values(), *notes, methods=values.methods)


def _marks(values: Values, columns: Sequence[Column]) -> dict[Column, Marks]:
    """Mark the best methods by AC, BC and FC; self-tests and methods that keep all data are not compared."""
    rows = to_compare(values.rows[~values.rows["method.name"].isin(ALL_DATA)], "memory.per_class")
    marks = {}
    for column in columns:
        base = base_metric(column.metric)
        if base not in COMPARED or column.metric not in rows:
            marks[column] = Marks()
            continue
        own = rows[rows["tasks_planned"] == column.tasks]
        if column.memory is not None:
            own = own[own["memory.per_class"] == column.memory]
        marks[column] = column_marks(own.assign(**{base: own[column.metric]}), base, ["method.name"])
    return marks


def _cell(values: Values, method: str, column: Column, marks: Mapping[Column, Marks]) -> Cell:
    found = values.of(column.metric, method, column.tasks, column.memory)
    if column.head == "ECC":  # Eq. 1 for two models, over seeds
        fulfilled = int((found == 1).sum())
        words = {0: "no", len(found): "yes"}.get(fulfilled, f"{fulfilled} of {len(found)}")
        return Cell(EMPTY if found.empty else words)
    if found.empty:
        return Cell(values.missing_text(method, column.tasks, column.memory))
    seeds = values.planned["seed"].nunique()
    fewer = f" ({len(found)} of {seeds})" if len(found) < seeds else ""
    return metric_cell(base_metric(column.metric), found.mean(), found.std(), marks[column].of(method), fewer)


def value_text(metric: str, found: pd.Series) -> str:
    """Return mean ± deviation over seeds, with a sign if the metric is a difference of accuracies."""
    return spread(base_metric(metric), found.mean(), found.std())
