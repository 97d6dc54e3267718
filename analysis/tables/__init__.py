"""The tables that fit a study, chosen by what varies over its runs."""

from collections.abc import Callable

import pandas as pd

from analysis.groups import group_fields, varied_fields
from analysis.study import Study
from analysis.tables.runs import (
    COMPARED,
    ablation_table,
    comparison_tables,
    goals,
    methods_table,
    points_table,
    trials_table,
)
from analysis.tables.table import Table
from cl2r.config.builtin import ABLATION_CELLS
from cl2r.errors import InputError


def study_tables(study: Study) -> list[Table]:
    """Return the tables that fit a study, the most telling first, e.g. the ablation, or methods by number of tasks.

    A table that would average over what must not be averaged (two budgets, two values of a field) does not fit. The
    table of all points of the grid always fits; it is left out if it would only repeat another table.
    """
    sweep, fields, varied = bool(study.specification.get("space")), group_fields(study.runs), varied_fields(study.runs)
    if sweep:
        objectives = study.specification.get("search", {}).get("objectives") or ["BC"]
        tables = _fitting(lambda: [trials_table(study.runs, goals(objectives))])
    else:
        tables = _method_tables(study.runs, varied, "variant" in fields)
    if sweep or varied or not tables:
        title = "All trials" if sweep else "Points"
        tables.append(points_table(study.runs, fields, marked=not sweep, title=title))
    rates = [name for name in study.runs.columns if "@" in name and name.partition("@")[0] in COMPARED]
    if rates:  # measured by TAR
        tables.append(points_table(study.runs, fields, rates, not sweep, "By false accept rate"))
    return tables


def _method_tables(runs: pd.DataFrame, varied: list[str], variants: bool) -> list[Table]:
    """Return the tables that have methods as rows."""
    tables: list[Table] = []
    methods = set(runs["method.name"])
    if not varied and len(methods) > 1 and methods <= set(ABLATION_CELLS):
        tables += _fitting(lambda: [ablation_table(runs)])
    if not varied and not variants:
        tables += _fitting(lambda: [methods_table(runs)])
    if len(varied) == 1 and len(methods) > 1:
        tables += _fitting(lambda: comparison_tables(runs, varied[0]))
    return tables


def _fitting(make: Callable[[], list[Table]]) -> list[Table]:
    """Return the tables without empty ones; none if the runs do not fit."""
    try:
        return [table for table in make() if table.rows]
    except InputError:
        return []
