"""Tables of many runs: the paper's ablation, methods, methods × a config field, points of a grid, differences.

`*_frame` returns the values as a DataFrame, `*_table` a Table for people. Frames call methods by their names on the
command line, tables by their titles; both have them in the order of `analysis.names`.
"""

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.comparisons import paired_differences
from analysis.groups import (
    check_cells,
    check_name,
    config_fields,
    finished,
    group_of,
    label_of,
    numbered_groups,
    one_budget,
    pivot,
)
from analysis.names import field_title, on_all_data, ordered
from analysis.names import title as method_title
from analysis.stats import shown_estimates
from analysis.tables.references import NOTE, SERVED, reference_runs
from analysis.tables.table import (
    EMPTY,
    Cell,
    Mark,
    Marks,
    Table,
    column_marks,
    command_line_names,
    deviation_note,
    field_cell,
    holes,
    interval_cell,
    interval_notes,
    marked_table,
    metric_cell,
    number_cell,
    text_cells,
    to_compare,
)
from cl2r.config.builtin import ABLATION_CELLS
from cl2r.metrics import (
    AC,
    ADAPTER_FLOPS,
    BC,
    COMPATIBILITY,
    FC,
    GALLERY_ITEMS,
    MEAN_ACCURACY,
    METRICS,
    ONE_TASK,
    REINDEXED_ACCURACY,
    REINDEXED_RECALL,
    SERVICE_ACCURACY,
    SERVICE_RECALL,
    STORED_BYTES,
    TRAIN_SECONDS,
    Metric,
)

CLASSIFIERS = ("trainable", "fixed")
DISTILLATIONS = {"none": "none", "all": "FD", "memory": "FD^M"}
CELLS = dict(zip(itertools.product(CLASSIFIERS, DISTILLATIONS), ABLATION_CELLS, strict=True))
"""The method of each cell of the ablation, by classifier and distillation."""
LEADS = (SERVICE_ACCURACY, BC, AC, REINDEXED_ACCURACY, SERVICE_RECALL)
"""Metrics that tables show first: what an upgrade is for, and at what price."""
OMITTED = (FC, MEAN_ACCURACY, REINDEXED_RECALL)
"""Metrics that tables have no column of, but their data."""
ON_ALL_DATA = "BCT, CoReS and UB train on all data at every task; they are not compared with the others."
CELL_NOTE = "ER is the trainable classifier without distillation, CL²R the fixed one with FD^M."
WORTH_A_COLUMN = 1.5  # factor between the largest and the smallest storage from which on a table shows it
PLAIN = "plain"  # what tables call runs without a variant
FIELD_WORDS = {"scenario.n_tasks": "number of tasks", "memory.per_class": "images per class in memory"}
COMPARED = tuple(metric.name for metric in (*COMPATIBILITY, REINDEXED_ACCURACY, SERVICE_ACCURACY, SERVICE_RECALL))
"""Metrics of tables by a config field; sorted, because pandas warns of labels that are not sorted."""
NO_COMPATIBILITY = f"–: AC, BC and FC are not defined for one task: {ONE_TASK}."
NO_RECALL = "–: service recall and re-indexed recall are not defined for data given as pairs or templates."
ADAPTATION = {metric.name: metric.title for metric in (ADAPTER_FLOPS, GALLERY_ITEMS)}
PARTS = ("mean", "low", "high", "sd")


def counted_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with `counted`: finished and with a metric. Other runs keep their row, but no values.

    AC, BC and FC have a column even if no run has one; other metrics that the frame lacks, because it is older, do not.
    """
    metrics = [metric.name for metric in METRICS.of_matrix() if metric.name in runs or metric in COMPATIBILITY]
    names = [*metrics, TRAIN_SECONDS.name]
    values = runs.reindex(columns=names).astype(float)
    counted = finished(runs) & values[metrics].notna().any(axis=1)
    runs = runs.assign(**{name: values[name].where(counted) for name in names}, counted=counted)
    return runs.assign(variant=runs["variant"].fillna("").replace("", PLAIN)) if "variant" in runs else runs


def in_table_order(runs: pd.DataFrame, by: Sequence[str] = ("variant", "method.name")) -> pd.DataFrame:
    """Return the runs sorted by these columns: methods in the order of `analysis.names`, others as they appear."""
    keys = []
    for name in [name for name in by if name in runs]:
        labels = runs[name].astype(object).where(runs[name].notna(), None)
        known = ordered(map(str, labels)) if name == "method.name" else list(dict.fromkeys(labels))
        keys.append(labels.map({label: place for place, label in enumerate(known)}).to_numpy(dtype=float))
    return runs.iloc[np.lexsort(keys[::-1])] if keys else runs


def shown_metrics(runs: pd.DataFrame) -> list[Metric]:
    """Return the metrics that the data of a table of these counted runs has."""
    return [metric for metric in METRICS.in_tables() if metric.name in runs]


def table_metrics(runs: pd.DataFrame) -> list[Metric]:
    """Return the metrics that a table of these counted runs has columns of, in their order."""
    known = shown_metrics(runs)
    omitted = OMITTED if SERVICE_ACCURACY in known else ()
    leads = [metric for metric in LEADS if metric in known]
    return [*leads, *(metric for metric in known if metric not in (*leads, *omitted))]


def undefined_notes(runs: pd.DataFrame) -> list[str]:
    """Return why counted runs have no value of a metric: AC, BC and FC of one task, recall without a search."""
    counted = runs[runs["counted"]]
    names = [metric.name for metric in shown_metrics(runs) if metric.matrix == "recall"]
    no_recall = names and len(counted) and counted[names].isna().all(axis=None)
    one_task = "tasks" in counted and (counted["tasks"] == 1).any()
    return [note for note, holds in ((NO_COMPATIBILITY, one_task), (NO_RECALL, no_recall)) if holds]


def estimates(runs: pd.DataFrame, by: Sequence[str], metrics: Sequence[str]) -> pd.DataFrame:
    """Return by the columns `by` the number of seeds, and mean, `_low`, `_high` and `_sd` of every metric.

    Ends of intervals are those of `shown_estimates`: with one seed, they are over its pairs.
    """
    codes, groups = numbered_groups(runs, by)
    table = pd.DataFrame({"seeds": np.bincount(codes, runs["counted"], len(groups)).astype(int)})
    # Callers check that the runs of a group differ in their seed only; without these columns it is not done again.
    settings = [name for name in (*config_fields(runs), "seed") if name in runs and name not in by]
    values = runs.drop(columns=settings)
    for metric in metrics:
        found = shown_estimates(values, metric, by)
        table = table.set_axis(found.index, axis=0)
        for part in PARTS:
            table[metric if part == "mean" else f"{metric}_{part}"] = found[part]
    return table


def _with_costs(runs: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return `estimates` of all metrics, and costs, by the columns `by`."""
    table = estimates(runs, by, [metric.name for metric in shown_metrics(runs)])
    codes, _ = numbered_groups(runs, by)
    # The median is robust to one busy moment of the machine.
    table["seconds"] = runs[TRAIN_SECONDS.name].groupby(codes).median().to_numpy()
    for cost in (STORED_BYTES.name, *ADAPTATION):
        table[cost] = runs[cost].astype(float).groupby(codes).max().to_numpy() if cost in runs else np.nan
    return table


def value_cell(values: pd.Series, metric: str, mark: Mark, deviations: bool, remark: str = "") -> Cell:
    """Return the cell of a metric from a row of `estimates`: `mean [low, high]`, or `mean ± deviation`."""
    mean, low, high, deviation = (values[metric + end] for end in ("", "_low", "_high", "_sd"))
    if deviations:
        return metric_cell(metric, mean, deviation, mark, remark)
    return interval_cell(metric, mean, low, high, mark, remark)


def spread_notes(rows: pd.DataFrame, metrics: Sequence[str], deviations: bool) -> list[str]:
    """Return what stands beside the means of `estimates`: intervals or deviations, and over how many seeds."""
    if deviations:
        return [deviation_note(rows["seeds"]) or ("One seed: no deviation." if rows["seeds"].any() else "")]
    rows = rows[~rows["reference"].astype(bool)] if "reference" in rows else rows
    cells = [rows[["seeds", f"{name}_low", f"{name}_high"]].to_numpy(dtype=float) for name in metrics]
    return interval_notes(pd.DataFrame(np.concatenate(cells), columns=["seeds", "low", "high"]))


def _ablation_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the counted runs of the ablation's methods; each is named by its classifier and distillation."""
    cells = counted_runs(runs[runs["method.name"].isin(ABLATION_CELLS)] if "method.name" in runs else runs)
    names = [CELLS.get(cell, "") for cell in zip(cells["method.classifier"], cells["method.fd"], strict=True)]
    return in_table_order(cells.assign(**{"method.name": names}))


def ablation_frame(runs: pd.DataFrame) -> pd.DataFrame:
    """Return means over seeds, intervals and deviations by classifier × distillation, in the paper's order.

    A run that did not finish, or has no metrics, counts for no seed; a cell with only such runs is a row of NaN. If
    runs have a `variant`, it is the first level of the index. Runs of a cell may differ in their seed only.
    """
    runs = _ablation_runs(runs)
    one_budget(runs)
    levels = [*(["variant"] if "variant" in runs else []), "method.classifier", "method.fd"]
    check_cells(runs[runs["counted"]], levels)
    table = _with_costs(runs, levels)
    table = table[[label[-2:] in CELLS for label in table.index]]
    return table.rename(DISTILLATIONS, level="method.fd").rename_axis([*levels[:-2], "classifier", "distillation"])


def ablation_table(runs: pd.DataFrame, title: str = "Classifier × distillation", deviations: bool = False) -> Table:
    """Return one row per cell of the ablation: metrics with intervals, and costs; then references.

    With `deviations`, metrics are mean ± deviation over seeds.
    """
    rows, words = ablation_frame(runs).reset_index(), {word: fd for fd, word in DISTILLATIONS.items()}
    cells = zip(rows["classifier"], rows["distillation"].map(words), strict=True)
    rows.insert(list(rows.columns).index("classifier"), "method", [CELLS[cell] for cell in cells])
    several = "variant" in rows and rows["variant"].nunique() > 1
    leads = ["variant", "method"] if several else ["method"]
    table = _methods_table(rows, _ablation_runs(runs), leads, title, deviations)
    return replace(table, notes=(*table.notes, CELL_NOTE)) if {"er", "cl2r"} & set(rows["method"]) else table


def methods_frame(runs: pd.DataFrame) -> pd.DataFrame:
    """Return, by method, the mean over seeds of every metric, the ends of its 95 % interval and its deviation.

    Intervals are t-intervals over seeds, or over the pairs of a single seed. Runs of a method may differ in their seed
    only. `seconds` are the median over seeds, measured on a machine that may have been busy:
    `tests/benchmarks/method_cost.py` compares methods side by side.
    """
    one_budget(runs)
    runs = in_table_order(counted_runs(runs))
    check_cells(runs[runs["counted"]], ["method.name"])
    return _with_costs(runs, ["method.name"]).rename_axis("method")


def methods_table(runs: pd.DataFrame, title: str = "Methods", deviations: bool = False) -> Table:
    """Return one row per method: metrics with intervals, and costs. Adaptation is shown if some method has any.

    With `deviations`, metrics are mean ± deviation over seeds.
    """
    rows = methods_frame(runs).reset_index()
    return _methods_table(rows, in_table_order(counted_runs(runs)), ["method"], title, deviations)


def _methods_table(rows: pd.DataFrame, runs: pd.DataFrame, leads: Sequence[str], title: str, deviations: bool) -> Table:
    """Return the table of these rows and of the references of the counted runs; `leads` are the first columns."""
    by = ["method.name" if name == "method" else name for name in leads if name in ("variant", "method")]
    compared, metrics = to_compare(runs), table_metrics(runs)
    marks = {metric.name: column_marks(compared, metric.name, by) for metric in metrics}
    lost, methods = holes(compared, by), rows["method"].tolist()
    adaptation = {name: head for name, head in ADAPTATION.items() if (rows[name] > 0).any()}
    references = reference_runs(runs)
    if len(references):
        levels = [name for name in ("variant", "method.name") if name == "method.name" or name in rows]
        below = estimates(references, levels, [metric.name for metric in shown_metrics(runs)]).reset_index()
        rows = with_references(rows, below.rename(columns={"method.name": "method"}))
    count = len(rows) - len(methods)
    apart = bool(rows[STORED_BYTES.name].max() > WORTH_A_COLUMN * rows[STORED_BYTES.name].min())
    seeds = ["seeds"] if rows["seeds"].nunique() > 1 else []
    body = []
    for _, row in rows.iterrows():
        label = tuple(row["method" if name == "method.name" else name] for name in by)
        hole = lost.get(group_of(label), Cell(EMPTY))
        cells = [method_cell(row[name]) if name == "method" else field_cell(row[name]) for name in leads]
        cells += [field_cell(int(row[name])) for name in seeds]
        for name, own in marks.items():
            cells.append(value_cell(row, name, own.of(label_of(label)), deviations) if row["seeds"] else hole)
        cells += [number_cell(row["seconds"], ".0f"), *([number_cell(row[STORED_BYTES.name] / 1e6, ".1f")] * apart)]
        body.append([*cells, *(number_cell(row[cost], ",.0f") for cost in adaptation)])
    heads = [*leads, *seeds, *(metric.head for metric in metrics), "s/run", *["stored MB"] * apart]
    heads += adaptation.values()
    notes = [*spread_notes(rows, list(marks), deviations), *undefined_notes(runs), NOTE if count else ""]
    notes.append(ON_ALL_DATA if 0 < sum(map(on_all_data, methods)) < len(methods) else "")
    return marked_table(heads, body, rows, title, marks.values(), *notes, references=count, methods=methods)


def method_cell(name: str) -> Cell:
    """Return the cell of a method's title."""
    return Cell(method_title(name))


def with_references(rows: pd.DataFrame, references: pd.DataFrame) -> pd.DataFrame:
    """Return both, with a column `reference` that tells them apart."""
    both = [rows.assign(reference=False), references.reindex(columns=rows.columns).assign(reference=True)]
    return pd.concat(both, ignore_index=True)


def comparison_frame(runs: pd.DataFrame, columns: str, metrics: Sequence[str] | None = None) -> pd.DataFrame:
    """Return methods × the values of a config field: frame[metric, part]; parts are mean, low, high, sd and seeds.

    Rows have the variant as a first level if there are several. Runs of a cell may differ in their seed only. The
    default metrics are those of COMPARED that the frame has.
    """
    check_name(columns, runs.columns, "column")
    one_budget(runs)
    runs = in_table_order(counted_runs(runs))
    rows = _comparison_rows(runs)
    check_cells(runs[runs["counted"]], [*rows, columns])
    return _comparison(runs, columns, _compared(runs, metrics), rows)


def _compared(runs: pd.DataFrame, metrics: Sequence[str] | None) -> list[str]:
    """Return the metrics, by default those of COMPARED of which the counted runs have values, or AC, BC and FC."""
    if metrics is None:
        core = [metric.name for metric in COMPATIBILITY]
        return [name for name in COMPARED if name in core or (name in runs and runs[name].notna().any())]
    for metric in metrics:
        check_name(metric, [known.name for known in METRICS.of_matrix()], "metric")
        check_name(metric, runs.columns, "metric")
    return list(metrics)


def _comparison_rows(runs: pd.DataFrame) -> list[str]:
    several = "variant" in runs and runs["variant"].nunique() > 1
    return ["variant", "method.name"] if several else ["method.name"]


def _comparison(runs: pd.DataFrame, columns: str, metrics: Sequence[str], rows: list[str]) -> pd.DataFrame:
    cell = [*rows, columns]
    found, (codes, _) = estimates(runs, cell, metrics), numbered_groups(runs, cell)
    runs = runs.assign(counted=runs["counted"].where(runs["counted"]))  # `count` leaves out what is empty
    parts = {}
    for metric in metrics:
        for part in sorted(PARTS):
            own = found[metric if part == "mean" else f"{metric}_{part}"].to_numpy()[codes]
            parts[metric, part] = pivot(runs.assign(part=own), "part", rows, columns, "max")  # a cell's runs agree
        parts[metric, "seeds"] = pivot(runs, "counted", rows, columns, "count")
    return pd.concat(parts, axis=1, names=["metric", "statistic", columns])


def comparison_tables(
    runs: pd.DataFrame, field: str, metrics: Sequence[str] | None = None, deviations: bool = False
) -> list[Table]:
    """Return one table per metric: methods × the values of a config field; a mean over fewer seeds says so.

    Tables of service and re-indexed metrics end with the rows of `never upgrade` and `re-index`. With `deviations`,
    cells are mean ± deviation over seeds, else mean and interval.
    """
    frame = comparison_frame(runs, field, metrics)
    cells = in_table_order(counted_runs(runs))
    compared, references = to_compare(cells, field), reference_runs(cells)
    names = [str(name) for name in frame.columns.unique("metric")]
    if metrics is None:
        leads = [metric.name for metric in LEADS if metric.name in names]
        names = [*leads, *(name for name in names if name not in leads)]
    served = [name for name in names if name in {metric.name for metric in SERVED}]
    below = _comparison(references, field, served, _comparison_rows(cells)) if len(references) and served else None
    tables = []
    for name in names:
        own = below.reindex(columns=frame.columns) if below is not None and name in served else None
        tables.append(_comparison_table(frame, compared, name, own, deviations))
    if tables:
        tables[-1] = replace(tables[-1], notes=(*tables[-1].notes, *undefined_notes(cells)))
    return tables


def _comparison_table(
    frame: pd.DataFrame, runs: pd.DataFrame, metric: str, references: pd.DataFrame | None, deviations: bool
) -> Table:
    field, values = str(frame.columns.names[-1]), pd.DataFrame(frame[metric, "mean"]).columns
    levels, count = list(map(str, frame.index.names)), 0 if references is None else len(references)
    frame = frame if references is None else pd.concat([frame, references])
    parts = {part: frame[metric, part].to_numpy(dtype=float) for part in PARTS}
    seeds = frame[metric, "seeds"].fillna(0).to_numpy(dtype=float)
    most = seeds.max(initial=0)
    marks = []
    for value in values:
        own = runs[field].isna() if pd.isna(value) else (runs[field] == value).fillna(False).astype(bool)
        marks.append(column_marks(runs[own], metric, levels))
    lost = holes(runs, [*levels, field])
    body, data = [], []
    for place, label in enumerate(frame.index):
        labels = [label] if isinstance(label, str) else list(label)
        cells = list(text_cells([*labels[:-1], method_title(labels[-1])]))
        reference = {"reference": place >= len(frame) - count} if count else {}
        for column, value in enumerate(values):
            found = {part: own[place, column] for part, own in parts.items()}
            number = int(seeds[place, column])
            estimate = pd.Series({metric if part == "mean" else f"{metric}_{part}": own for part, own in found.items()})
            fewer = f" ({number} of {most:.0f})" if number < most else ""
            hole = lost.get(group_of((*labels, value)), Cell(EMPTY))
            cells.append(value_cell(estimate, metric, marks[column].of(label), deviations, fewer) if number else hole)
            head = dict(zip(levels, labels, strict=True)) | {field: value, "metric": metric}
            data.append(head | found | {"seeds": number} | reference)
        body.append(cells)
    columns = (*["variant", "method"][-len(levels) :], *(field_cell(value).text for value in values))
    title = f"{METRICS[metric].head} by {FIELD_WORDS.get(field, field)}"
    shown = pd.DataFrame(data)
    renamed = shown.rename(columns={part: f"{metric}_{part}" for part in ("low", "high")})
    notes = [*spread_notes(renamed, [metric], deviations), NOTE if count else ""]
    methods = list(frame.index.get_level_values("method.name"))[: len(frame) - count]
    return marked_table(columns, body, shown, title, marks, *notes, references=count, methods=methods)


def points_table(
    runs: pd.DataFrame,
    fields: Sequence[str],
    metrics: Sequence[str] | None = None,
    marked: bool = True,
    title: str = "Points",
    deviations: bool = False,
) -> Table:
    """Return one row per combination of `fields` and variant: metrics (by default all), with intervals.

    With `deviations`, metrics are mean ± deviation over seeds.
    """
    runs = counted_runs(runs)
    several = "variant" in runs and runs["variant"].nunique() > 1 and "variant" not in fields
    names = [*(["variant"] if several else []), *fields]
    runs = in_table_order(runs, [name for name in names if name in ("variant", "method.name")])
    shown = [metric.name for metric in table_metrics(runs)] if metrics is None else list(metrics)
    every = [metric.name for metric in shown_metrics(runs)] if metrics is None else shown
    runs = runs.assign(point=[", ".join(map(str, values)) for values in runs[names].itertuples(index=False, name=None)])
    compared, lost = to_compare(runs), holes(runs, ["point"])
    marks = {metric: column_marks(compared, metric, ["point"]) if marked else Marks() for metric in shown}
    frame = runs.drop_duplicates("point").set_index("point")[names].join(estimates(runs, ["point"], every))
    seeds = ["seeds"] if frame["seeds"].nunique() > 1 else []
    body = []
    for point, row in frame.astype(object).iterrows():
        cells = [
            method_cell(row[name]) if name == "method.name" else field_cell(row[name]) for name in (*names, *seeds)
        ]
        for metric, own in marks.items():
            known = row["seeds"] > 0
            cells.append(value_cell(row, metric, own.of(point), deviations) if known else lost[group_of(point)])
        body.append(cells)
    heads = [*field_heads(names), *seeds]
    heads += [METRICS[metric].head if metric in METRICS else metric for metric in shown]  # AC@0.01 is its own head
    notes = [*spread_notes(frame, shown, deviations), *undefined_notes(runs)]
    methods = runs["method.name"].astype(str) if "method.name" in names else ()
    data = frame.reset_index(drop=True)
    return marked_table(heads, body, data, title, marks.values(), *notes, methods=methods)


def field_heads(fields: Sequence[str]) -> list[str]:
    """Return short heads of columns of config fields; whole names if two of them would be equal."""
    short = ["method" if name == "method.name" else field_title(name) for name in fields]
    return [name if short.count(head) > 1 else head for name, head in zip(fields, short, strict=True)]


def differences_table(
    runs: pd.DataFrame, metric: str = "BC", by: Sequence[str] = ("method.name",), baseline: Hashable = None
) -> Table:
    """Return every two groups, or every group and the baseline: difference, 95 % interval, paired t-test."""
    methods = list(by) == ["method.name"]
    frame = paired_differences(in_table_order(runs, by) if methods else runs, metric, by, baseline)
    body = []
    for _, row in frame.iterrows():
        ends = f"{row['low']:+.3f} to {row['high']:+.3f}"
        interval = Cell(ends, float(row["high"] - row["low"])) if row["low"] < row["high"] else Cell(EMPTY)
        tests = [
            Cell("< 0.001", float(p)) if p < 0.001 else number_cell(p, ".3f") for p in (row["p"], row["p_corrected"])
        ]
        head = text_cells([method_title(row[side]) if methods else row[side] for side in ("one", "other")])
        count = Cell(str(row["n"]), int(row["n"]))
        body.append((*head, number_cell(row["difference"], "+.3f"), interval, count, *tests, Cell(row["verdict"])))
    columns = ("one", "other", "difference", "95 % interval", "seeds", "p", "p corrected", "verdict")
    notes: tuple[str, ...] = (
        "Difference: one − other, mean over common seeds. p: paired t-test; corrected by Holm over all rows.",
        "Verdict: about one, at 5 %. Not shown means that these seeds do not tell, not that both are equal.",
    )
    if not (frame["low"] < frame["high"]).all():
        notes += ("A difference without an interval has fewer than two common seeds, or the same value for all.",)
    heading = f"{METRICS[metric].head if metric in METRICS else metric}: differences"
    hints = command_line_names(runs["method.name"].astype(str)) if methods else ()
    return Table(columns, tuple(body), frame, heading, notes, hints=hints)
