"""A table or figure of the paper on the page: what became of the statements of the paper's text about it."""

from dataclasses import replace

import pandas as pd
from markupsafe import Markup

from analysis.groups import group_fields, varied_fields
from analysis.paper.items import COMPARED
from analysis.paper.report import Report, verdicts_table
from analysis.paper.verdicts import FAILS, HOLDS, NOT_JUDGED, OPEN, Outcome
from analysis.report.figures import study_figures
from analysis.report.page import Section, shown_table
from analysis.report.pictures import Picture, ranking_picture
from analysis.study import Study
from cl2r.errors import InputError

SIGNS = {HOLDS: ("✓", "good"), FAILS: ("✗", "bad"), OPEN: ("?", "unsure"), NOT_JUDGED: ("–", "muted")}
"""Sign and style of a verdict; the word stands beside the sign."""
DEFINITIONS = (
    ("Holds", "every judgement that these runs allow agrees with the statement."),
    ("Does not hold", "at least one judgement differs from it by more than the noise between seeds."),
    ("Open", "at least one judgement is within noise: its 95 % interval over seeds includes the opposite verdict."),
)


def paper_section(study: Study) -> Section:
    """Return the item's tables, the settings that differ from the paper's, and every single verdict."""
    try:
        report = Report.of_study(study)
    except InputError as error:
        return Section("paper", "Paper", (), (f"The runs cannot be laid out as in the paper: {error}.",))
    tables = [*report.tables, verdicts_table(report.judgements)]
    shown = tuple(shown_table(table, f"paper-{place}") for place, table in enumerate(tables, start=1))
    return Section("paper", report.item.number, shown, (report.budget,))


def paper_pictures(study: Study, runs: pd.DataFrame) -> list[Picture]:
    """Return the verdicts, and what the item's table or figure shows."""
    try:
        report = Report.of_study(study)
    except InputError:  # the headline and the section say why
        return []
    caption = "A statement is judged for every method, metric, number of tasks and size of memory that it names."
    verdicts = Picture("verdicts", "What the paper's text states", caption, verdict_list(report.outcomes))
    return [verdicts, *item_picture(study, report, runs)]


def verdict_list(outcomes: list[Outcome]) -> Markup:
    """Return one line per statement with a sign, a word and the number of judgements that agree."""
    rows = []
    for row in outcomes:
        sign, style = SIGNS[row.verdict]
        cases = f"{row.agreeing} of {row.judged} agree" if row.judged > 1 else ""
        rows.append(
            Markup(
                '<li><span class="verdict {}"><span aria-hidden="true">{}</span> {}</span>'
                '<span class="says">{}</span> <span class="cases">{}</span></li>'
            ).format(style, sign, row.verdict, row.statement.says, cases)
        )
    return Markup('<ul class="verdicts">{}</ul>').format(Markup("").join(rows))


def item_picture(study: Study, report: Report, runs: pd.DataFrame) -> list[Picture]:
    """Return a drawing of the item's values: lines over what it varies, else its methods in rows."""
    varied = varied_fields(study.runs)
    wanted = "bc-curve" if report.item.layout == "bc" else f"over-{'-'.join(varied).replace('.', '-')}"
    for figure in study_figures(study, runs, group_fields(study.runs)):
        if figure.id == wanted:
            views = sorted(figure.views, key=lambda view: view.name not in COMPARED)  # the paper's metrics first
            copy = replace(figure, id="paper-figure", views=tuple(views))  # the section of curves has it too
            return [Picture("paper-picture", f"Values of {report.item.number}", figure.caption, figure=copy)]
    return [] if varied else [ranking_picture(runs)]
