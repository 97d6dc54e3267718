"""Tables of many runs: the paper's ablation, methods, methods × a config field, points of a grid, differences.

`*_frame` returns the values as a DataFrame, `*_table` a Table for people.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from analysis.comparisons import paired_differences
from analysis.groups import check_cells, check_name, finished, group_of, label_of, one_budget, pivot, with_defaults
from analysis.stats import summarise
from analysis.tables.references import NOTE, SERVED, reference_runs
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
from cl2r.metrics import (
    ADAPTER_FLOPS,
    COMPATIBILITY,
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

CLASSIFIERS = {"trainable": "Trainable", "fixed": "Fixed"}
DISTILLATIONS = {"none": "none", "all": "FD", "memory": "FD^M"}
CELL_TITLES = {
    ("Trainable", "none"): "ER (trainable)",
    ("Fixed", "none"): "Fixed",
    ("Fixed", "FD^M"): "CL²R (fixed, FD^M)",
}
"""Cells of the ablation with a name other than `classifier, distillation`."""
ABLATION_LEADS = (SERVICE_ACCURACY, SERVICE_RECALL, REINDEXED_ACCURACY)
ABLATION_OMITS = (MEAN_ACCURACY, REINDEXED_RECALL)  # of the table, not of its data
PLAIN = "plain"  # what tables call runs without a variant
UNITS = {"memory.per_class": "images per class in memory"}
COMPARED = tuple(metric.name for metric in (*COMPATIBILITY, REINDEXED_ACCURACY, SERVICE_ACCURACY, SERVICE_RECALL))
"""Metrics of tables by a config field; sorted, because pandas warns of labels that are not."""
NO_COMPATIBILITY = f"–: AC, BC and FC are not defined for one task: {ONE_TASK}."
NO_RECALL = "–: service recall and re-indexed recall are not defined for data given as pairs or templates."
BRACKETS = (
    "Brackets: 95 % t-interval of the mean over seeds. A mean without brackets has one seed, or the same value for all."
)
ADAPTATION = {metric.name: metric.title for metric in (ADAPTER_FLOPS, GALLERY_ITEMS)}


def counted_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with `counted`: finished and with a metric. Other runs keep their row, but no values.

    AC, BC and FC have a column even if no run has one; other metrics that the frame lacks, because it is older, do not.
    """
    runs = with_defaults(runs)
    metrics = [metric.name for metric in METRICS.of_matrix() if metric.name in runs or metric in COMPATIBILITY]
    names = [*metrics, TRAIN_SECONDS.name]
    values = runs.reindex(columns=names).astype(float)
    counted = finished(runs) & values[metrics].notna().any(axis=1)
    runs = runs.assign(**{name: values[name].where(counted) for name in names}, counted=counted)
    return runs.assign(variant=runs["variant"].fillna("").replace("", PLAIN)) if "variant" in runs else runs


def shown_metrics(runs: pd.DataFrame) -> list[Metric]:
    """Return the metrics that a table of these counted runs has columns of."""
    return [metric for metric in METRICS.in_tables() if metric.name in runs]


def undefined_notes(runs: pd.DataFrame) -> list[str]:
    """Return why counted runs have no value of a metric: AC, BC and FC of one task, recall without a search."""
    counted = runs[runs["counted"]]
    names = [metric.name for metric in shown_metrics(runs) if metric.matrix == "recall"]
    no_recall = names and len(counted) and counted[names].isna().all(axis=None)
    one_task = "tasks" in counted and (counted["tasks"] == 1).any()
    return [note for note, holds in ((NO_COMPATIBILITY, one_task), (NO_RECALL, no_recall)) if holds]


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
    table = _means(runs, levels)
    variants = [(name,) for name in runs["variant"].unique()] if "variant" in runs else [()]
    cells = [(*v, c, d) for v in variants for c in CLASSIFIERS for d in DISTILLATIONS]
    table = table.loc[[cell for cell in cells if cell in table.index]]
    table = table.rename(CLASSIFIERS, level="method.classifier").rename(DISTILLATIONS, level="method.fd")
    return table.rename_axis([*levels[:-2], "classifier", "distillation"])


def _means(runs: pd.DataFrame, levels: list[str]) -> pd.DataFrame:
    """Return seeds, mean and deviation of every metric, and seconds, by the columns `levels`."""
    groups = runs.groupby(levels, sort=False)
    table = pd.DataFrame({"seeds": groups["counted"].sum()})
    for metric in shown_metrics(runs):
        table[metric.name] = groups[metric.name].mean()
        table[f"{metric.name}_sd"] = groups[metric.name].std()
    table["seconds"] = groups[TRAIN_SECONDS.name].median()  # robust to one busy moment of the machine
    return table


def cell_titles(classifiers: pd.Series, distillations: pd.Series) -> list[str]:
    """Return what people call each cell of the ablation; both are given as in `ablation_frame`."""
    cells = zip(classifiers, distillations, strict=True)
    return [CELL_TITLES.get(cell, ", ".join(cell)) for cell in cells]


def ablation_table(runs: pd.DataFrame, title: str = "Classifier × distillation") -> Table:
    """Return one row per cell of the ablation: metrics, mean ± deviation over seeds, and seconds; then references."""
    frame = ablation_frame(runs)
    rows = frame.reset_index()
    rows.insert(0, "method", cell_titles(rows["classifier"], rows["distillation"]))
    names = [*(["variant"] if "variant" in rows and rows["variant"].nunique() > 1 else []), "method"]
    cells = _ablation_runs(runs)
    classifiers, distillations = cells["method.classifier"].map(CLASSIFIERS), cells["method.fd"].map(DISTILLATIONS)
    compared = to_compare(cells.assign(method=cell_titles(classifiers, distillations)))
    metrics = shown_metrics(cells)
    if SERVICE_ACCURACY in metrics:  # what an upgrade is for comes first
        metrics = [*ABLATION_LEADS, *(metric for metric in metrics if metric not in (*ABLATION_LEADS, *ABLATION_OMITS))]
    marks = {metric.name: column_marks(compared, metric.name, names) for metric in metrics}
    lost = holes(compared, names)
    body = []
    for _, row in rows.iterrows():
        label, seconds = tuple(row[names]), number_cell(row["seconds"], ".0f")
        values = _value_cells(row, marks, label_of(label), lost[group_of(label)])
        body.append([*map(field_cell, (*label, row["seeds"])), *values, seconds])
    notes = [deviation_note(rows["seeds"]), *undefined_notes(cells)]
    references = reference_runs(cells)
    if len(references):
        levels = [*(["variant"] if "variant" in cells else []), "method.name"]
        below = _means(references, levels).reset_index().rename(columns={"method.name": "method"})
        below = below.assign(classifier="", distillation="", seconds=float("nan"))
        unmarked = dict.fromkeys(marks, Marks())
        for _, row in below.iterrows():
            values = _value_cells(row, unmarked, "", Cell(EMPTY))
            body.append([*map(field_cell, (*row[names], row["seeds"])), *values, Cell(EMPTY)])
        notes.append(NOTE)
        rows = with_references(rows, below)
    columns = (*names, "seeds", *(metric.head for metric in metrics), "s/run")
    count = len(body) - len(frame)
    return marked_table(columns, body, rows, title, marks.values(), *notes, references=count)


def with_references(rows: pd.DataFrame, references: pd.DataFrame) -> pd.DataFrame:
    """Return both, with a column `reference` that tells them apart."""
    both = [rows.assign(reference=False), references.reindex(columns=rows.columns).assign(reference=True)]
    return pd.concat(both, ignore_index=True)


def methods_frame(runs: pd.DataFrame) -> pd.DataFrame:
    """Return, by method, the mean over seeds of every metric and the ends of its 95 % t-interval (NaN for one seed).

    Runs of a method may differ in their seed only. `seconds` are the median over seeds, measured on a machine that may
    have been busy: `tests/benchmarks/method_cost.py` compares methods side by side.
    """
    one_budget(runs)
    runs = counted_runs(runs)
    check_cells(runs[runs["counted"]], ["method.name"])
    return _intervals(runs)


def _intervals(runs: pd.DataFrame) -> pd.DataFrame:
    """Return seeds, mean and interval of every metric, and costs, by method."""
    groups = runs.groupby("method.name", sort=False)
    table = pd.DataFrame({"seeds": groups["counted"].sum().astype(int)})
    for metric in shown_metrics(runs):
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
    cells = counted_runs(runs)
    compared, metrics = to_compare(cells), shown_metrics(cells)
    marks = {metric.name: column_marks(compared, metric.name, ["method.name"]) for metric in metrics}
    lost = holes(compared, ["method.name"])
    adaptation = {name: head for name, head in ADAPTATION.items() if (frame[name].astype(float) > 0).any()}
    references, costs = reference_runs(cells), ["seconds", STORED_BYTES.name, *ADAPTATION]
    below = _intervals(references).assign(**dict.fromkeys(costs, float("nan")))
    body = []
    for method, row in pd.concat([frame.astype(float), below.astype(float)]).iterrows():
        values = [
            interval_cell(name, row[name], row[f"{name}_low"], row[f"{name}_high"], own.of(method))
            for name, own in marks.items()
        ]
        values = values if row["seeds"] else [lost[group_of(method)]] * len(metrics)
        spent = [number_cell(row["seconds"], ".0f"), number_cell(row[STORED_BYTES.name] / 1e6, ".1f")]
        spent += [number_cell(row[cost], ",.0f") for cost in adaptation]
        body.append([Cell(str(method)), number_cell(row["seeds"], ".0f"), *values, *spent])
    heads = ("method", "seeds", *(metric.head for metric in metrics), "s/run", "stored MB", *adaptation.values())
    notes = [BRACKETS if (frame["seeds"] > 1).any() else "", *undefined_notes(cells), NOTE if len(below) else ""]
    data = frame.reset_index()
    data = with_references(data, below.reset_index()) if len(below) else data
    return marked_table(heads, body, data, title, marks.values(), *notes, references=len(below))


def comparison_frame(runs: pd.DataFrame, columns: str, metrics: Sequence[str] | None = None) -> pd.DataFrame:
    """Return methods × the values of a config field: frame[metric, "mean"], [metric, "sd"] and [metric, "seeds"].

    Rows have the variant as a first level if there are several. Runs of a cell may differ in their seed only. The
    default metrics are those of COMPARED that the frame has.
    """
    check_name(columns, runs.columns, "column")
    one_budget(runs)
    runs = counted_runs(runs)
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
    runs = runs.assign(counted=runs["counted"].where(runs["counted"]))  # `count` leaves out what is empty
    parts = {}
    for metric in metrics:
        parts[metric, "mean"] = pivot(runs, metric, rows, columns)
        parts[metric, "sd"] = pivot(runs, metric, rows, columns, "std")
        parts[metric, "seeds"] = pivot(runs, "counted", rows, columns, "count")
    return pd.concat(parts, axis=1, names=["metric", "statistic", columns])


def comparison_tables(runs: pd.DataFrame, field: str, metrics: Sequence[str] | None = None) -> list[Table]:
    """Return one table per metric: methods × the values of a config field; a mean over fewer seeds says so.

    Tables of service and re-indexed metrics end with the rows of `never upgrade` and `re-index`.
    """
    frame = comparison_frame(runs, field, metrics)
    cells = counted_runs(runs)
    compared, references = to_compare(cells, field), reference_runs(cells)
    names = [str(name) for name in frame.columns.unique("metric")]
    served = [name for name in names if name in {metric.name for metric in SERVED}]
    below = _comparison(references, field, served, _comparison_rows(cells)) if len(references) and served else None
    tables = []
    for name in names:
        own = below.reindex(columns=frame.columns) if below is not None and name in served else None
        tables.append(_comparison_table(frame, compared, name, own))
    if tables:
        tables[-1] = replace(tables[-1], notes=(*tables[-1].notes, *undefined_notes(cells)))
    return tables


def _comparison_table(
    frame: pd.DataFrame, runs: pd.DataFrame, metric: str, references: pd.DataFrame | None = None
) -> Table:
    field, values = str(frame.columns.names[-1]), pd.DataFrame(frame[metric, "mean"]).columns
    levels, count = list(map(str, frame.index.names)), 0 if references is None else len(references)
    frame = frame if references is None else pd.concat([frame, references])
    means, deviations = (frame[metric, part].to_numpy(dtype=float) for part in ("mean", "sd"))
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
        cells = list(text_cells(labels))
        reference = {"reference": place >= len(frame) - count} if count else {}
        for column, value in enumerate(values):
            mean, deviation, found = (part[place, column] for part in (means, deviations, seeds))
            fewer = f" ({found:.0f} of {most:.0f})" if found < most else ""
            hole = lost.get(group_of((*labels, value)), Cell(EMPTY))
            cells.append(metric_cell(metric, mean, deviation, marks[column].of(label), fewer) if found else hole)
            head = dict(zip(levels, labels, strict=True)) | {field: value, "metric": metric}
            data.append(head | {"mean": mean, "sd": deviation, "seeds": int(found)} | reference)
        body.append(cells)
    columns = (*["variant", "method"][-len(levels) :], *(field_cell(value).text for value in values))
    title = f"{METRICS[metric].head} by {field}" + (f" ({UNITS[field]})" if field in UNITS else "")
    notes = [deviation_note(seeds.ravel()), NOTE if count else ""]
    return marked_table(columns, body, pd.DataFrame(data), title, marks, *notes, references=count)


def points_table(
    runs: pd.DataFrame,
    fields: Sequence[str],
    metrics: Sequence[str] | None = None,
    marked: bool = True,
    title: str = "Points",
) -> Table:
    """Return one row per combination of `fields` and variant: metrics (by default all), mean ± deviation over seeds."""
    runs = counted_runs(runs)
    metrics = [metric.name for metric in shown_metrics(runs)] if metrics is None else metrics
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
    heads = [METRICS[metric].head if metric in METRICS else metric for metric in metrics]  # AC@0.01 is its own head
    notes = [deviation_note(frame["seeds"]), *undefined_notes(runs)]
    data = frame.reset_index(drop=True)
    return marked_table([*names, "seeds", *heads], body, data, title, marks.values(), *notes)


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
    heading = f"{METRICS[metric].head if metric in METRICS else metric}: differences"
    return Table(columns, tuple(body), frame, heading, notes)
