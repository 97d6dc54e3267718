"""The tables of results on the page, and the paired differences between groups."""

from dataclasses import replace

import pandas as pd
from markupsafe import Markup

from analysis.comparisons import standings
from analysis.report.comparable import comparable_sets
from analysis.report.page import ShownTable, shown_table
from analysis.shown import differences_table
from analysis.study import Study
from analysis.study_tables import study_tables
from analysis.table import Table
from cl2r.errors import InputError

ALL_PAIRS = 8
"""Groups of which every two are compared; of more, each is compared with the best."""


def result_tables(study: Study) -> tuple[list[ShownTable], list[str]]:
    """The tables that fit the study, or why there are none."""
    if study.runs.empty:
        return [], []
    try:
        tables = study_tables(study)
    except InputError as error:
        return [], [f"No tables: {error}."]
    shown = [shown_table(table, f"table-{number}") for number, table in enumerate(tables)]
    return [_without(one, after) for one, after in zip(shown, [*shown[1:], None], strict=True)], []


def _without(table: ShownTable, after: ShownTable | None) -> ShownTable:
    """Notes that the next table has too are left to it."""
    notes = [line for line in table.notes.splitlines() if after is None or line not in after.notes.splitlines()]
    return replace(table, notes=Markup("\n").join(notes))


def difference_tables(runs: pd.DataFrame) -> list[ShownTable]:
    """BC and AC of groups that can be compared and have seeds in common; `runs` are finished and have their `group`."""
    shown: list[ShownTable] = []
    for words, own in comparable_sets(runs) if len(runs) else []:
        for metric in ("BC", "AC"):
            if metric in own and own[metric].notna().any() and own["group"].nunique() > 1 and own["seed"].nunique() > 1:
                title = f"{metric}: differences" + (f", {words}" if words else "")
                shown.append(shown_table(_differences(own, metric), f"differences-{len(shown)}", title))
    return shown


def _differences(runs: pd.DataFrame, metric: str) -> Table:
    if runs["group"].nunique() <= ALL_PAIRS:
        return differences_table(runs, metric, ("group",))
    marks = standings(runs, metric, ("group",))
    best = marks.index[marks["mark"] == "best"][0]
    return differences_table(runs, metric, ("group",), baseline=best)
