"""Which tables a study has something to say in: chosen by what varies over its runs, the most telling first."""

from collections.abc import Callable

import pandas as pd

from analysis.groups import group_fields, varied_fields
from analysis.methods import shown_methods
from analysis.shown import shown_ablation, shown_comparison, shown_points
from analysis.study import Study
from analysis.table import Table
from analysis.trials import COSTS, shown_trials
from cl2r.errors import InputError
from cl2r.methods.catalog import ABLATION_CELLS

COMPARED = ("AC", "BC", "FC")


def study_tables(study: Study) -> list[Table]:
    """The tables that fit a study, e.g. the ablation's, or methods by number of tasks; never none.

    A table that would average over what no mean should (two budgets, two values of a field) does not fit. A row a
    point of the grid always does; it is left out where it would only repeat another table.
    """
    sweep, fields, varied = bool(study.specification.get("space")), group_fields(study.runs), varied_fields(study.runs)
    tables = _fitting(lambda: [_trials(study)]) if sweep else _compared(study.runs, varied, "variant" in fields)
    if sweep or varied or not tables:
        title = "All trials" if sweep else "Points"
        tables.append(shown_points(study.runs, fields, marked=not sweep, title=title))
    rates = [name for name in study.runs.columns if "@" in name and name.partition("@")[0] in COMPARED]
    if rates:  # measured by TAR
        tables.append(shown_points(study.runs, fields, rates, not sweep, "By false accept rate"))
    return tables


def _compared(runs: pd.DataFrame, varied: list[str], variants: bool) -> list[Table]:
    """Tables with methods as rows."""
    tables: list[Table] = []
    methods = set(runs["method.name"])
    if not varied and len(methods) > 1 and methods <= set(ABLATION_CELLS):
        tables += _fitting(lambda: [shown_ablation(runs)])
    if not varied and not variants:
        tables += _fitting(lambda: [shown_methods(runs)])
    if len(varied) == 1 and len(methods) > 1:
        tables += _fitting(lambda: shown_comparison(runs, varied[0], COMPARED))
    return tables


def _fitting(make: Callable[[], list[Table]]) -> list[Table]:
    """What is made, without empty tables; nothing if these runs are refused."""
    try:
        return [table for table in make() if table.rows]
    except InputError:
        return []


def _trials(study: Study) -> Table:
    chosen = study.specification.get("search", {}).get("objectives") or ["BC"]
    return shown_trials(study.runs, {name: "min" if name in COSTS else "max" for name in chosen})
