"""Tables of many runs as they are shown: the ablation, methods against a field, points of a grid, differences."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.cells import (
    EMPTY,
    Marks,
    column_marks,
    deviation_note,
    field_cell,
    figure_cell,
    holes,
    marked_table,
    metric_cell,
    to_compare,
)
from analysis.comparisons import paired_differences
from analysis.groups import group_of, short
from analysis.pivot import METRICS
from analysis.table import Cell, Table, text_cells
from analysis.tables import CLASSIFIERS, DISTILLATIONS, ablation_runs, ablation_table, comparison_table, counted_runs

WORDS = {"mean_accuracy": "mean accuracy"}
UNITS = {"memory.per_class": "images a class in memory"}


def shown_ablation(runs: pd.DataFrame, title: str = "Classifier × distillation") -> Table:
    """A row a cell of the ablation: metrics, mean ± deviation over seeds, and seconds."""
    frame = ablation_table(runs)
    rows = frame.reset_index()
    names = [str(name) for name in frame.index.names if name != "variant" or rows["variant"].nunique() > 1]
    compared = _labelled(runs)
    marks, lost = {metric: column_marks(compared, metric, names) for metric in METRICS}, holes(compared, names)
    body = []
    for _, row in rows.iterrows():
        label, seconds = tuple(row[names]), figure_cell(row["seconds"], ".0f")
        figures = _figures(row, marks, label, lost[group_of(label)])
        body.append([*map(field_cell, (*label, row["seeds"])), *figures, seconds])
    columns = (*names, "seeds", *(WORDS.get(name, name) for name in METRICS), "s/run")
    return marked_table(columns, body, rows, title, marks.values(), deviation_note(rows["seeds"]))


def _labelled(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of the ablation with the labels of its frame."""
    cells = ablation_runs(runs)
    classifiers, distillations = cells["method.classifier"].map(CLASSIFIERS), cells["method.fd"].map(DISTILLATIONS)
    return to_compare(cells.assign(classifier=classifiers, distillation=distillations))


def shown_comparison(runs: pd.DataFrame, field: str, metrics: Sequence[str] = ("AC", "BC", "FC")) -> list[Table]:
    """Methods × the values of a config field, one table a metric; a mean over fewer seeds than others' says so.

    A cell that no run was planned for is empty.
    """
    frame = comparison_table(runs, field, metrics)
    compared = to_compare(counted_runs(runs), field)
    return [_comparison(frame, compared, metric) for metric in metrics]


def _comparison(frame: pd.DataFrame, runs: pd.DataFrame, metric: str) -> Table:
    field, values = str(frame.columns.names[-1]), pd.DataFrame(frame[metric, "mean"]).columns
    means, deviations, seeds = (frame[metric, part].to_numpy(dtype=float) for part in ("mean", "sd", "seeds"))
    levels, most = list(map(str, frame.index.names)), seeds.max(initial=0)
    marks = [column_marks(runs[_equal(runs[field], value)], metric, levels) for value in values]
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
    columns = (*["variant", "method"][-len(levels) :], *map(short, values))
    title = f"{metric} by {field}" + (f" ({UNITS[field]})" if field in UNITS else "")
    return marked_table(columns, body, pd.DataFrame(data), title, marks, deviation_note(seeds.ravel()))


def _equal(column: pd.Series, value: Any) -> pd.Series:
    return column.isna() if pd.isna(value) else (column == value).fillna(False).astype(bool)


def shown_points(
    runs: pd.DataFrame,
    fields: Sequence[str],
    metrics: Sequence[str] = METRICS,
    marked: bool = True,
    title: str = "Points",
) -> Table:
    """A row a combination of the config `fields` (and the variant): metrics, mean ± deviation over seeds."""
    runs = counted_runs(runs)
    several = "variant" in runs and runs["variant"].nunique() > 1 and "variant" not in fields
    names = [*(["variant"] if several else []), *fields]
    runs = runs.assign(point=[", ".join(map(str, values)) for values in runs[names].itertuples(index=False)])
    compared = to_compare(runs)
    marks = {metric: column_marks(compared, metric, ["point"]) if marked else Marks() for metric in metrics}
    groups, lost = runs.groupby("point", sort=False), holes(runs, ["point"])
    frame = runs.drop_duplicates("point").set_index("point")[names].assign(seeds=groups["counted"].sum())
    for metric in metrics:
        own = runs[metric].astype(float).where(runs["counted"]).groupby(runs["point"])
        frame = frame.assign(**{metric: own.mean(), f"{metric}_sd": own.std()})
    rows = frame.astype(object).iterrows()
    body = [
        [*map(field_cell, row[[*names, "seeds"]]), *_figures(row, marks, point, lost[group_of(point)])]
        for point, row in rows
    ]
    note = deviation_note(frame["seeds"])
    data = frame.reset_index(drop=True)
    return marked_table([*names, "seeds", *metrics], body, data, title, marks.values(), note)


def _figures(row: pd.Series, marks: Mapping[str, Marks], label: Hashable, hole: Cell) -> list[Cell]:
    """The cells of the metrics that have marks, from a row of means, deviations (`_sd`) and seeds."""
    if not row["seeds"]:
        return [hole] * len(marks)
    return [metric_cell(name, row[name], row[f"{name}_sd"], own.of(label)) for name, own in marks.items()]


def differences_table(
    runs: pd.DataFrame, metric: str = "BC", by: Sequence[str] = ("method.name",), baseline: Hashable = None
) -> Table:
    """Every two groups, or each and the baseline, on their common seeds: difference, 95 % interval, paired t-test."""
    frame = paired_differences(runs, metric, by, baseline)
    body = []
    for _, row in frame.iterrows():
        ends = f"{row['low']:+.3f} to {row['high']:+.3f}"
        interval = Cell(ends, float(row["high"] - row["low"])) if row["low"] < row["high"] else Cell(EMPTY)
        tests = (_p_cell(row["p"]), _p_cell(row["p_corrected"]))
        head = text_cells([row["one"], row["other"]])
        count = Cell(str(row["n"]), int(row["n"]))
        body.append((*head, figure_cell(row["difference"], "+.3f"), interval, count, *tests, Cell(row["verdict"])))
    columns = ("one", "other", "difference", "95 % interval", "seeds", "p", "p corrected", "verdict")
    notes: tuple[str, ...] = (
        "Difference: one − other, mean over common seeds. p: paired t-test; corrected by Holm over all rows.",
        "Verdict: about one, at 5 %. Not shown means that these seeds do not tell, not that both are equal.",
    )
    if not (frame["low"] < frame["high"]).all():
        notes += ("A difference without an interval has less than two common seeds, or the same value for all.",)
    return Table(columns, tuple(body), frame, f"{metric}: differences", notes)


def _p_cell(value: float) -> Cell:
    if pd.isna(value):
        return Cell(EMPTY)
    return Cell("< 0.001" if value < 0.001 else f"{value:.3f}", float(value))
