"""A table or figure of the paper beside what the paper's text says of it, as Markdown, with where it comes from."""

import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.paper import Item, item_markdown
from analysis.paper_budget import Change, changes
from analysis.paper_statements import paper_statements
from analysis.paper_values import Values
from analysis.paper_verdicts import AGREES, DIFFERS, NOT_COMPARABLE, NOT_RUN, RULE, Judgement, judge
from analysis.tables import table_head, table_line

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Report:
    """An item of the paper as runs give it: its table, the verdicts, and in what the runs differ from its preset."""

    item: Item
    preset: str
    table: str
    judgements: list[Judgement]
    changes: list[Change]

    @classmethod
    def of_frames(cls, name: str, item: Item, frames: dict[str, pd.DataFrame], preset: str) -> "Report":
        """`preset` is the one that stands for the paper's settings. Fields that the item itself varies are free."""
        changed = changes(frames["runs"], preset, ["memory.per_class"] if item.sizes else [])
        own = [statement for statement in paper_statements() if statement.item == name]
        judgements = judge(own, Values.of_frames(frames), changed)
        return cls(item, preset, item_markdown(item, frames), judgements, changed)

    def text(self) -> str:
        """The table, the budget, the verdicts and the rule behind them."""
        return "\n\n".join([self.table, self.budget(), verdicts_markdown(self.judgements), RULE])

    def budget(self) -> str:
        """Settings that are not the preset's."""
        if not self.changes:
            return f"All settings are those of the preset `{self.preset}`."
        lines = [f"Settings that differ from the preset `{self.preset}`:", ""]
        return "\n".join([*lines, *(f"- {change}" for change in self.changes)])


def verdicts_markdown(judgements: Sequence[Judgement]) -> str:
    """A row a judgement, under the statement it belongs to; first how many verdicts of each kind there are."""
    counts = Counter(row.verdict.partition(",")[0] for row in judgements)
    words = [f"{word}: {counts[word]}" for word in (AGREES, DIFFERS, NOT_COMPARABLE, NOT_RUN)]
    lines = [f"What the paper's text states. {', '.join(words)}.", ""]
    lines += table_head(["statement", "place", "where", "metric", "here", "verdict"])
    former = None
    for row in judgements:
        said = row.statement
        reading = f" (read as: {said.reading})" if said.reading else ""
        heading = ["", ""] if said is former else [said.says + reading, said.source]
        lines.append(table_line([*heading, row.where, row.metric, row.here, row.verdict]))
        former = said
    return "\n".join(lines)


def document(report: Report, frames: dict[str, pd.DataFrame], command: str, images: Sequence[str] = ()) -> str:
    """The report as a file that says how it came about."""
    seeds = ", ".join(str(seed) for seed in sorted(frames["runs"]["seed"].unique()))
    origin = [
        f"- command: `{command}`",
        f"- commit: {commit(ROOT)}",
        f"- seeds: {seeds}; tables have means ± one standard deviation over them",
        f"- training: {training_seconds(frames['tasks']):,.0f} s in all; a link that runs share counts once",
    ]
    pictures = [f"![{report.item.number}]({name})" for name in images]
    head = f"# {report.item.number} of the paper, by this project"
    return "\n\n".join([head, "\n".join(origin), *pictures, report.text()]) + "\n"


def training_seconds(tasks: pd.DataFrame) -> float:
    """Over distinct links."""
    return float(tasks.drop_duplicates("key")["seconds"].sum())


def commit(root: Path) -> str:
    """The commit of the checkout at `root`, and whether files differ from it (kept results apart)."""
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():
        return "unknown, not a git checkout"
    changed = _git(root, "status", "--porcelain", "--", ".", ":(exclude)studies/results")
    return f"{_git(root, 'rev-parse', 'HEAD') or 'none yet'}{', with uncommitted changes' if changed else ''}"


def _git(root: Path, *words: str) -> str | None:
    """What git answers; None if it cannot."""
    try:
        answer = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
