"""A table or figure of the paper beside what the paper's text says of it, with where it comes from."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.formats import Form, render
from analysis.paper.budget import Change, changes
from analysis.paper.items import Item
from analysis.paper.statements import paper_statements
from analysis.paper.tables import item_tables
from analysis.paper.values import Values
from analysis.paper.verdicts import AGREES, DIFFERS, NOT_COMPARABLE, NOT_RUN, RULE, Judgement, judge
from analysis.table import Table, text_cells
from cl2r.checkout import commit


@dataclass(frozen=True)
class Report:
    """An item of the paper as runs give it: its tables, the verdicts, and in what the runs differ from its preset."""

    item: Item
    preset: str
    tables: list[Table]
    judgements: list[Judgement]
    changes: list[Change]

    @classmethod
    def of_frames(cls, name: str, item: Item, frames: dict[str, pd.DataFrame], preset: str) -> "Report":
        """`preset` is the one that stands for the paper's settings. Fields that the item itself varies are free."""
        changed = changes(frames["runs"], preset, ["memory.per_class"] if item.sizes else [])
        own = [statement for statement in paper_statements() if statement.item == name]
        judgements = judge(own, Values.of_frames(frames), changed)
        return cls(item, preset, item_tables(item, frames), judgements, changed)

    def text(self, form: Form = "markdown") -> str:
        """The tables, the budget, the verdicts and the rule behind them; as Markdown or for a terminal."""
        return "\n\n".join([render(self.tables, form), self.budget(), render(verdicts_table(self.judgements), form)])

    def budget(self) -> str:
        """Settings that are not the preset's."""
        if not self.changes:
            return f"All settings are those of the preset `{self.preset}`."
        lines = [f"Settings that differ from the preset `{self.preset}`:", ""]
        return "\n".join([*lines, *(f"- {change}" for change in self.changes)])


def verdicts_table(judgements: Sequence[Judgement]) -> Table:
    """A row a judgement, under the statement it belongs to; below, how many verdicts of each kind there are."""
    counts = Counter(row.verdict.partition(",")[0] for row in judgements)
    words = [f"{word}: {counts[word]}" for word in (AGREES, DIFFERS, NOT_COMPARABLE, NOT_RUN)]
    columns = ("statement", "place", "where", "metric", "here", "verdict")
    rows, former = [], None
    for row in judgements:
        heading = ["", ""] if row.statement is former else _said(row)
        rows.append(text_cells([*heading, row.where, row.metric, row.here, row.verdict]))
        former = row.statement
    full = [[*_said(row), row.where, row.metric, row.here, row.verdict] for row in judgements]
    data = pd.DataFrame(full, columns=list(columns))
    return Table(columns, tuple(rows), data, "What the paper's text states", (f"{', '.join(words)}.", RULE))


def _said(row: Judgement) -> list[str]:
    """What the paper says, and where."""
    reading = f" (read as: {row.statement.reading})" if row.statement.reading else ""
    return [row.statement.says + reading, row.statement.source]


def document(report: Report, frames: dict[str, pd.DataFrame], command: str, images: Sequence[str] = ()) -> str:
    """The report as a file that says how it came about."""
    seeds = ", ".join(str(seed) for seed in sorted(frames["runs"]["seed"].unique()))
    origin = [
        f"- command: `{command}`",
        f"- commit: {commit()}",
        f"- seeds: {seeds}; tables have means ± one standard deviation over them",
        f"- training: {training_seconds(frames['tasks']):,.0f} s in all; a link that runs share counts once",
    ]
    pictures = [f"![{report.item.number}]({name})" for name in images]
    head = f"# {report.item.number} of the paper, by this project"
    return "\n\n".join([head, "\n".join(origin), *pictures, report.text()]) + "\n"


def training_seconds(tasks: pd.DataFrame) -> float:
    """Over distinct links."""
    return float(tasks.drop_duplicates("key")["seconds"].sum())
