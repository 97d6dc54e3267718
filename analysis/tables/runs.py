"""Tables of many runs: the paper's ablation, methods, methods × a config field, points of a grid, differences, trials.

`*_frame` returns the values as a DataFrame, `*_table` a Table for people.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.comparisons import paired_differences
from analysis.groups import check_cells, check_name, config_fields, finished, group_of, one_budget, pivot, with_defaults
from analysis.matrices import pareto_front
from analysis.names import metric_of
from analysis.stats import summarise
from analysis.tables.table import (
    EMPTY,
    Cell,
    Marks,
    Table,
    column_marks,
    deviation_note,
    field_cell,
    holes,
    interval_cell,
    marked_table,
    metric_cell,
    number_cell,
    text_cells,
    to_compare,
)
from cl2r.config.builtin import ABLATION_CELLS
from cl2r.errors import InputError
from cl2r.metrics import ADAPTER_FLOPS, BC, COMPATIBILITY, GALLERY_ITEMS, METRICS, STORED_BYTES, TRAIN_SECONDS, Metric

CLASSIFIERS = {"trainable": "Trainable", "fixed": "Fixed"}
DISTILLATIONS = {"none": "none", "all": "FD", "memory": "FD^M"}
PLAIN = "plain"  # what tables call runs without a variant
UNITS = {"memory.per_class": "images per class in memory"}
COMPARED = tuple(metric.name for metric in COMPATIBILITY)
BRACKETS = (
    "Brackets: 95 % t-interval of the mean over seeds. A mean without brackets has one seed, or the same value for all."
)
ADAPTATION = {metric.name: metric.title for metric in (ADAPTER_FLOPS, GALLERY_ITEMS)}


def counted_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with `counted`: finished and with a metric. Other runs keep their row, but no values."""
    runs = with_defaults(runs)
    metrics = [metric.name for metric in METRICS.of_matrix()]
    names = [*metrics, TRAIN_SECONDS.name]
    values = runs.reindex(columns=names).astype(float)
    counted = finished(runs) & values[metrics].notna().any(axis=1)
    runs = runs.assign(**{name: values[name].where(counted) for name in names}, counted=counted)
    return runs.assign(variant=runs["variant"].fillna("").replace("", PLAIN)) if "variant" in runs else runs


def _value_cells(row: pd.Series, marks: Mapping[str, Marks], label: Hashable, hole: Cell) -> list[Cell]:
    """Return the cells of the metrics that have marks, from a row with means, deviations (`_sd`) and `seeds`."""
    if not row["seeds"]:
        return [hole] * len(marks)
    return [metric_cell(name, row[name], row[f"{name}_sd"], own.of(label)) for name, own in marks.items()]


def _ablation_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the counted runs of the ablation's methods."""
    return counted_runs(runs[runs["method.name"].isin(ABLATION_CELLS)] if "method.name" in runs else runs)


def ablation_frame(runs: pd.DataFrame) -> pd.DataFrame:
    """Return mean and standard deviation over seeds by classifier × distillation, in the paper's order.

    A run that did not finish, or has no metrics, counts for no seed; a cell with only such runs is a row of NaN. If
    runs have a `variant`, it is the first level of the index. Runs of a cell may differ in their seed only.
    """
    runs = _ablation_runs(runs)
    one_budget(runs)
    levels = (["variant"] if "variant" in runs else []) + ["method.classifier", "method.fd"]
    check_cells(runs[runs["counted"]], levels)
    groups = runs.groupby(levels)
    table = pd.DataFrame({"seeds": groups["counted"].sum()})
    for metric in METRICS.of_matrix():
        table[metric.name] = groups[metric.name].mean()
        table[f"{metric.name}_sd"] = groups[metric.name].std()
    table["seconds"] = groups[TRAIN_SECONDS.name].median()  # robust to one busy moment of the machine
    variants = [(name,) for name in runs["variant"].unique()] if "variant" in runs else [()]
    cells = [(*v, c, d) for v in variants for c in CLASSIFIERS for d in DISTILLATIONS]
    table = table.loc[[cell for cell in cells if cell in table.index]]
    table = table.rename(CLASSIFIERS, level="method.classifier").rename(DISTILLATIONS, level="method.fd")
    return table.rename_axis([*levels[:-2], "classifier", "distillation"])


def ablation_table(runs: pd.DataFrame, title: str = "Classifier × distillation") -> Table:
    """Return one row per cell of the ablation: metrics, mean ± deviation over seeds, and seconds."""
    frame = ablation_frame(runs)
    rows = frame.reset_index()
    names = [str(name) for name in frame.index.names if name != "variant" or rows["variant"].nunique() > 1]
    cells = _ablation_runs(runs)
    classifiers, distillations = cells["method.classifier"].map(CLASSIFIERS), cells["method.fd"].map(DISTILLATIONS)
    compared = to_compare(cells.assign(classifier=classifiers, distillation=distillations))
    metrics = METRICS.of_matrix()
    marks = {metric.name: column_marks(compared, metric.name, names) for metric in metrics}
    lost = holes(compared, names)
    body = []
    for _, row in rows.iterrows():
        label, seconds = tuple(row[names]), number_cell(row["seconds"], ".0f")
        values = _value_cells(row, marks, label, lost[group_of(label)])
        body.append([*map(field_cell, (*label, row["seeds"])), *values, seconds])
    columns = (*names, "seeds", *(metric.head for metric in metrics), "s/run")
    return marked_table(columns, body, rows, title, marks.values(), deviation_note(rows["seeds"]))


def methods_frame(runs: pd.DataFrame) -> pd.DataFrame:
    """Return, by method, the mean over seeds of every metric and the ends of its 95 % t-interval (NaN for one seed).

    Runs of a method may differ in their seed only. `seconds` are the median over seeds, measured on a machine that may
    have been busy: `tests/benchmarks/method_cost.py` compares methods side by side.
    """
    one_budget(runs)
    runs = counted_runs(runs)
    check_cells(runs[runs["counted"]], ["method.name"])
    groups = runs.groupby("method.name", sort=False)
    table = pd.DataFrame({"seeds": groups["counted"].sum().astype(int)})
    for metric in METRICS.of_matrix():
        found = summarise(runs, metric.name, ["method.name"])
        table[metric.name] = found["mean"]
        table[f"{metric.name}_low"], table[f"{metric.name}_high"] = found["low"], found["high"]
    table["seconds"] = groups[TRAIN_SECONDS.name].median()
    for cost in (STORED_BYTES.name, *ADAPTATION):
        table[cost] = groups[cost].max() if cost in runs else float("nan")
    return table.rename_axis("method")


def methods_table(runs: pd.DataFrame, title: str = "Methods") -> Table:
    """Return one row per method: metrics with t-intervals, and costs. Adaptation is shown if some method has any."""
    frame = methods_frame(runs)
    compared = to_compare(counted_runs(runs))
    metrics = METRICS.of_matrix()
    marks = {metric.name: column_marks(compared, metric.name, ["method.name"]) for metric in metrics}
    lost = holes(compared, ["method.name"])
    adaptation = {name: head for name, head in ADAPTATION.items() if (frame[name].astype(float) > 0).any()}
    body = []
    for method, row in frame.astype(float).iterrows():
        values = [
            interval_cell(name, row[name], row[f"{name}_low"], row[f"{name}_high"], own.of(method))
            for name, own in marks.items()
        ]
        values = values if row["seeds"] else [lost[group_of(method)]] * len(metrics)
        costs = [number_cell(row["seconds"], ".0f"), number_cell(row[STORED_BYTES.name] / 1e6, ".1f")]
        costs += [number_cell(row[cost], ",.0f") for cost in adaptation]
        body.append([Cell(str(method)), number_cell(row["seeds"], ".0f"), *values, *costs])
    heads = ("method", "seeds", *(metric.head for metric in metrics), "s/run", "stored MB", *adaptation.values())
    note = BRACKETS if (frame["seeds"] > 1).any() else ""
    return marked_table(heads, body, frame.reset_index(), title, marks.values(), note)


def comparison_frame(runs: pd.DataFrame, columns: str, metrics: Sequence[str] = COMPARED) -> pd.DataFrame:
    """Return methods × the values of a config field: frame[metric, "mean"], [metric, "sd"] and [metric, "seeds"].

    Rows have the variant as a first level if there are several. Runs of a cell may differ in their seed only.
    """
    check_name(columns, runs.columns, "column")
    one_budget(runs)
    runs = counted_runs(runs)
    several = "variant" in runs and runs["variant"].nunique() > 1
    rows = ["variant", "method.name"] if several else ["method.name"]
    check_cells(runs[runs["counted"]], [*rows, columns])
    runs = runs.assign(counted=runs["counted"].where(runs["counted"]))  # `count` leaves out what is empty
    parts = {}
    for metric in metrics:
        check_name(metric, [known.name for known in METRICS.of_matrix()], "metric")
        parts[metric, "mean"] = pivot(runs, metric, rows, columns)
        parts[metric, "sd"] = pivot(runs, metric, rows, columns, "std")
        parts[metric, "seeds"] = pivot(runs, "counted", rows, columns, "count")
    return pd.concat(parts, axis=1, names=["metric", "statistic", columns])


def comparison_tables(runs: pd.DataFrame, field: str, metrics: Sequence[str] = COMPARED) -> list[Table]:
    """Return one table per metric: methods × the values of a config field; a mean over fewer seeds says so."""
    frame = comparison_frame(runs, field, metrics)
    compared = to_compare(counted_runs(runs), field)
    return [_comparison_table(frame, compared, metric) for metric in metrics]


def _comparison_table(frame: pd.DataFrame, runs: pd.DataFrame, metric: str) -> Table:
    field, values = str(frame.columns.names[-1]), pd.DataFrame(frame[metric, "mean"]).columns
    means, deviations, seeds = (frame[metric, part].to_numpy(dtype=float) for part in ("mean", "sd", "seeds"))
    levels, most = list(map(str, frame.index.names)), seeds.max(initial=0)
    marks = []
    for value in values:
        own = runs[field].isna() if pd.isna(value) else (runs[field] == value).fillna(False).astype(bool)
        marks.append(column_marks(runs[own], metric, levels))
    lost = holes(runs, [*levels, field])
    body, data = [], []
    for place, label in enumerate(frame.index):
        labels = [label] if isinstance(label, str) else list(label)
        cells = list(text_cells(labels))
        for column, value in enumerate(values):
            mean, deviation, count = (part[place, column] for part in (means, deviations, seeds))
            fewer = f" ({count:.0f} of {most:.0f})" if count < most else ""
            hole = lost.get(group_of((*labels, value)), Cell(EMPTY))
            cells.append(metric_cell(metric, mean, deviation, marks[column].of(label), fewer) if count else hole)
            head = dict(zip(levels, labels, strict=True)) | {field: value, "metric": metric}
            data.append(head | {"mean": mean, "sd": deviation, "seeds": int(count)})
        body.append(cells)
    columns = (*["variant", "method"][-len(levels) :], *(field_cell(value).text for value in values))
    title = f"{metric} by {field}" + (f" ({UNITS[field]})" if field in UNITS else "")
    return marked_table(columns, body, pd.DataFrame(data), title, marks, deviation_note(seeds.ravel()))


def points_table(
    runs: pd.DataFrame,
    fields: Sequence[str],
    metrics: Sequence[str] | None = None,
    marked: bool = True,
    title: str = "Points",
) -> Table:
    """Return one row per combination of `fields` and variant: metrics (by default all), mean ± deviation over seeds."""
    metrics = [metric.name for metric in METRICS.of_matrix()] if metrics is None else metrics
    runs = counted_runs(runs)
    several = "variant" in runs and runs["variant"].nunique() > 1 and "variant" not in fields
    names = [*(["variant"] if several else []), *fields]
    runs = runs.assign(point=[", ".join(map(str, values)) for values in runs[names].itertuples(index=False, name=None)])
    compared = to_compare(runs)
    marks = {metric: column_marks(compared, metric, ["point"]) if marked else Marks() for metric in metrics}
    groups, lost = runs.groupby("point", sort=False), holes(runs, ["point"])
    frame = runs.drop_duplicates("point").set_index("point")[names].assign(seeds=groups["counted"].sum())
    for metric in metrics:
        own = runs[metric].astype(float).where(runs["counted"]).groupby(runs["point"])
        frame = frame.assign(**{metric: own.mean(), f"{metric}_sd": own.std()})
    body = [
        [*map(field_cell, row[[*names, "seeds"]]), *_value_cells(row, marks, point, lost[group_of(point)])]
        for point, row in frame.astype(object).iterrows()
    ]
    note, data = deviation_note(frame["seeds"]), frame.reset_index(drop=True)
    return marked_table([*names, "seeds", *metrics], body, data, title, marks.values(), note)


def differences_table(
    runs: pd.DataFrame, metric: str = "BC", by: Sequence[str] = ("method.name",), baseline: Hashable = None
) -> Table:
    """Return every two groups, or every group and the baseline: difference, 95 % interval, paired t-test."""
    frame = paired_differences(runs, metric, by, baseline)
    body = []
    for _, row in frame.iterrows():
        ends = f"{row['low']:+.3f} to {row['high']:+.3f}"
        interval = Cell(ends, float(row["high"] - row["low"])) if row["low"] < row["high"] else Cell(EMPTY)
        tests = [
            Cell("< 0.001", float(p)) if p < 0.001 else number_cell(p, ".3f") for p in (row["p"], row["p_corrected"])
        ]
        head = text_cells([row["one"], row["other"]])
        count = Cell(str(row["n"]), int(row["n"]))
        body.append((*head, number_cell(row["difference"], "+.3f"), interval, count, *tests, Cell(row["verdict"])))
    columns = ("one", "other", "difference", "95 % interval", "seeds", "p", "p corrected", "verdict")
    notes: tuple[str, ...] = (
        "Difference: one − other, mean over common seeds. p: paired t-test; corrected by Holm over all rows.",
        "Verdict: about one, at 5 %. Not shown means that these seeds do not tell, not that both are equal.",
    )
    if not (frame["low"] < frame["high"]).all():
        notes += ("A difference without an interval has fewer than two common seeds, or the same value for all.",)
    return Table(columns, tuple(body), frame, f"{metric}: differences", notes)


def sweep_goals(specification: Mapping[str, Any]) -> dict[str, str]:
    """Return the direction of each objective in the specification of a sweep, `max` or `min`."""
    names = (specification.get("search") or {}).get("objectives") or [BC.name]
    return {str(name): _objective(str(name)).direction[:3] for name in names}


def objective_column(name: str) -> str:
    """Return the column that trials are judged by: a cost, or a metric on the tuning pairs."""
    return _objective(name).column("tuning")


def _objective(name: str) -> Metric:
    known = METRICS.objectives()
    check_name(name, list(known), "objective")
    return known[name]


def best_trials(runs: pd.DataFrame, objectives: Mapping[str, str], count: int = 5) -> pd.DataFrame:
    """Return the `count` best trials by one objective, e.g. {"BC": "max"}; by several, the whole Pareto front.

    Trials are compared by their means over seeds on the tuning pairs. A trial is no candidate if one of its runs did
    not finish, or if it has fewer runs than the largest trial: it is still running. The first objective sorts the
    front. Columns are the fields that vary over trials, then each objective with its deviation.
    """
    if not objectives:
        raise InputError("best_trials needs an objective, e.g. {'BC': 'max'}")
    columns = {}
    for name, goal in objectives.items():
        column = objective_column(name)
        check_name(goal, ("max", "min"), f"direction of {name}")
        if column not in runs:
            raise InputError(f"no column {column!r}: trials are chosen on tuning pairs, and none were evaluated")
        columns[column] = goal
    check_name("trial", runs.columns, "column")
    sizes = runs.groupby("trial")["trial"].transform("size")
    whole = runs[finished(runs).groupby(runs["trial"]).transform("all") & (sizes == sizes.max())]
    whole = whole[whole[list(columns)].notna().all(axis=1).groupby(whole["trial"]).transform("all")]
    groups = whole.groupby("trial")
    costs = groups[list(columns)].mean() * [-1.0 if goal == "max" else 1.0 for goal in columns.values()]
    if len(columns) > 1:
        costs = costs[pareto_front(costs.to_numpy(dtype=float))]
    ranked = costs.sort_values(next(iter(columns)), kind="stable").index[: count if len(columns) == 1 else None]
    trials = with_defaults(runs).drop_duplicates("trial").set_index("trial")
    varied = [name for name in config_fields(trials) if trials[name].nunique(dropna=False) > 1]
    table: pd.DataFrame = trials[varied].assign(seeds=groups.size())
    for column in dict.fromkeys(name for chosen in columns for name in (chosen, chosen.removeprefix("tuning_"))):
        table = table.assign(**{column: groups[column].mean(), f"{column}_sd": groups[column].std()})
    best: pd.DataFrame = table.loc[ranked]
    return best.reset_index()


def trials_table(runs: pd.DataFrame, objectives: Mapping[str, str], count: int = 5) -> Table:
    """Return the best trials, mean ± deviation over seeds. Nothing is marked: no choice is made on report pairs."""
    frame = best_trials(runs, objectives, count)
    names = [name for name in frame.columns if "." in name or not name.endswith("_sd")]
    body = []
    for _, row in frame.astype(object).iterrows():
        cells = []
        for name in names:
            metric, mean, deviation = metric_of(name), row[name], row.get(f"{name}_sd", np.nan)
            if f"{name}_sd" not in row:
                cells.append(field_cell(mean))
            elif metric is not None and metric.compute is None:
                text = f"{mean:,.0f}" + ("" if pd.isna(deviation) else f" ± {deviation:,.0f}")
                cells.append(Cell(text, float(mean)))
            else:
                cells.append(metric_cell(name, mean, deviation))
        body.append(cells)
    words = " and ".join(objectives)
    title = f"Best trials by {words}" if len(objectives) == 1 else f"Pareto front of {words}"
    notes = ["Chosen on the tuning pairs (tuning_*); the values on the report pairs played no part in the choice."]
    notes += [deviation_note(frame["seeds"])] if frame["seeds"].any() else []
    return marked_table(names, body, frame, title, (), *notes)
