"""The tables that fit a study, chosen by what varies over its runs, and the text of a study."""

import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from analysis.groups import check_name, group_fields, varied_fields
from analysis.study import Study
from analysis.sweeps import saved_work, sweep_contexts, variant_rows
from analysis.tables.formats import LINE, markdown_text, render
from analysis.tables.runs import ablation_table, comparison_tables, methods_table, points_table
from analysis.tables.sweep import best_by_context, confirmation_tables, trials_tables
from analysis.tables.table import Table
from cl2r.config.builtin import ABLATION_CELLS
from cl2r.errors import InputError
from cl2r.metrics import COMPATIBILITY

if TYPE_CHECKING:
    from analysis.headline import Headline


def study_text(study: Study, form: Literal["terminal", "markdown"], deviations: bool = False) -> str:
    """Return a study as text: its title, its tables, what was found, how sure that is, and a command to be surer.

    Tables are those of `study_tables`, those of a sweep without the table of all its trials.
    """
    from analysis.headline import headline  # imports a module of this package

    check_name(form, ("terminal", "markdown"), "form")
    if study.runs.empty:
        return told(headline(study), "", form)
    if not study.specification.get("space"):
        return told(headline(study), render(study_tables(study, deviations), form), form)
    tables = render(_fitting(lambda: sweep_tables(study)), form)
    return told(headline(study), "\n\n".join(filter(None, [tables, saved_work(study.runs)])), form)


def told(head: "Headline", tables: str, form: Literal["terminal", "markdown"]) -> str:
    """Return the title, the given tables, what was found, how sure that is, and a command to be surer."""
    sentences = [text for text in (head.finding, head.certainty, head.remark) if text]
    if form == "markdown":
        fence = "``" if "`" in head.command else "`"
        ends = [f"surer: {fence}{head.command}{fence}"] if head.command else []
        parts = [f"## {markdown_text(head.title)}", tables, *map(markdown_text, sentences), *ends]
    else:
        ends = [f"surer: {head.command}"] if head.command else []
        parts = [head.title, tables, "\n".join([*(textwrap.fill(text, LINE) for text in sentences), *ends])]
    return "\n\n".join(filter(None, parts))


def study_tables(study: Study, deviations: bool = False) -> list[Table]:
    """Return the tables that fit a study, the most telling first, e.g. the ablation, or methods by number of tasks.

    A search study has its own tables, a study of the paper those of its item, and a race its finalists, none before
    the final round; other studies, and runs that cannot be laid out as in the paper, have those of `grid_tables`.
    """
    if study.finished.empty:
        return grid_tables(study, deviations)
    if study.search:
        from analysis.tables.search import search_tables  # imports modules of this package

        return search_tables(study.search)
    if study.paper:
        from analysis.paper.report import Report, verdicts_table  # imports modules of this package

        try:
            report = Report.of_study(study)
        except InputError:  # the headline says why
            return grid_tables(study, deviations)
        return [*report.tables, verdicts_table(report.judgements)]
    if study.specification.get("race"):
        from analysis.recommendation import recommendation  # imports Optuna, which takes a second

        finalists = recommendation(study).table
        return [finalists] if finalists is not None else []
    return grid_tables(study, deviations)


def grid_tables(study: Study, deviations: bool = False) -> list[Table]:
    """Return the tables that fit the points of a study, whatever it was made for.

    A table that would average over what must not be averaged (two budgets, two values of a field) does not fit. The
    table of all points of the grid always fits; it is left out if it would only repeat another table. Tables of methods
    and of points show intervals, with `deviations` standard deviations.
    """
    sweep = bool(study.specification.get("space"))
    marked = not (sweep or study.specification.get("race"))  # those choose on tuning pairs, and races in rounds
    runs = variant_rows(study.runs) if sweep else study.runs
    fields, varied, methods = group_fields(runs), varied_fields(runs), set(runs["method.name"])
    tables: list[Table] = []
    if sweep:
        tables += _fitting(lambda: sweep_tables(study))
    elif not varied:
        if len(methods) > 1 and methods <= set(ABLATION_CELLS):
            tables += _fitting(lambda: [ablation_table(runs, deviations=deviations)])
        elif "variant" not in fields:
            tables += _fitting(lambda: [methods_table(runs, deviations=deviations)])
    elif len(varied) == 1 and len(methods) > 1:
        tables += _fitting(lambda: comparison_tables(runs, varied[0], deviations=deviations))
    if sweep or not tables:
        name = "All trials" if sweep else "Points"
        tables.append(points_table(runs, fields, marked=marked, title=name, deviations=deviations))
    names = [metric.name for metric in COMPATIBILITY]
    rates = [name for name in runs.columns if name.partition("@")[0] in names and "@" in name]
    if rates:  # measured by TAR
        tables.append(points_table(runs, fields, rates, marked, "By false accept rate", deviations))
    return tables


def sweep_tables(study: Study) -> list[Table]:
    """Return the best trial by context if there are several, the best trials of each, and the confirmation."""
    tables = [best_by_context(study)] if len(sweep_contexts(study.runs)) > 1 else []
    return [*tables, *trials_tables(study.runs, study.specification), *confirmation_tables(study)]


def _fitting(make: Callable[[], list[Table]]) -> list[Table]:
    """Return the tables without empty ones; none if the runs do not fit."""
    try:
        return [table for table in make() if table.rows]
    except InputError:
        return []
