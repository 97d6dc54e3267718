"""A table or figure of the paper from runs: its values, how the settings differ from the preset, and the verdicts."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.paper.items import ITEMS, Item
from analysis.paper.statements import paper_statements
from analysis.paper.tables import item_tables
from analysis.paper.values import Values
from analysis.paper.verdicts import (
    AGREES,
    DIFFERS,
    FAILS,
    HOLDS,
    NOT_COMPARABLE,
    NOT_JUDGED,
    NOT_RUN,
    OPEN,
    RULE,
    Change,
    Judgement,
    Outcome,
    judge,
    outcomes,
)
from analysis.study import Study, data_title
from analysis.tables.formats import Form, render
from analysis.tables.table import Table, text_cells
from cl2r.config.layers import read_layer, resolve
from cl2r.config.schema import field_keys, fields
from cl2r.runtime.environment import commit
from cl2r.runtime.text import counted, listed

FREE = frozenset(
    {
        *("seed", "threads", "method.name", "method.classifier", "method.fd", "scenario.n_tasks", "adapter.name"),
        *("eval.bootstrap", "eval.pairs_seed", "data.root", "data.loaders"),
    }
)
"""Fields that a table names, that change no metric, or that draw the random pairs; all others are the budget."""


@dataclass(frozen=True)
class Report:
    """An item of the paper from runs: its tables, the verdicts, and the settings that differ from the preset."""

    item: Item
    preset: str
    tables: list[Table]
    judgements: list[Judgement]
    changes: list[Change]
    seeds: int

    @classmethod
    def of_study(cls, study: Study) -> "Report":
        """Report on the item that the study shows. Raise InputError if its runs cannot be laid out as in the paper."""
        frames = {"runs": study.runs, "tasks": study.tasks, "matrix": study.matrix}
        return cls.of_frames(study.paper["item"], ITEMS[study.paper["item"]], frames, study.paper["preset"])

    @classmethod
    def of_frames(cls, name: str, item: Item, frames: dict[str, pd.DataFrame], preset: str) -> "Report":
        """Report on the item called `name`; `preset` has the paper's settings, except fields that the item varies."""
        changed = changes(frames["runs"], preset, ["memory.per_class"] if item.sizes else [])
        own = [statement for statement in paper_statements() if statement.item == name]
        judgements = judge(own, Values.of_frames(frames), changed)
        return cls(item, preset, item_tables(item, frames), judgements, changed, frames["runs"]["seed"].nunique())

    @property
    def outcomes(self) -> list[Outcome]:
        """What became of every statement of the text about the item."""
        return outcomes(self.judgements)

    @property
    def judged(self) -> int:
        """How many statements these runs can judge."""
        return sum(row.verdict != NOT_JUDGED for row in self.outcomes)

    @property
    def finding(self) -> str:
        """How many statements of the text hold."""
        counts, total = Counter(row.verdict for row in self.outcomes), len(self.outcomes)
        about = f"of the paper's text about {self.item.number}"
        if not self.judged:
            return f"These runs can judge none of the {counted(total, 'statement')} {about}."
        words = {HOLDS: ("holds", "hold"), FAILS: ("does not", "do not"), OPEN: ("is open", "are open")}
        if not counts[HOLDS]:
            words[FAILS] = ("does not hold", "do not hold")
        (count, verb), *others = [(counts[key], forms[counts[key] > 1]) for key, forms in words.items() if counts[key]]
        start = f"{count} of the {self.judged} statements" if others else f"All {self.judged} statements"
        start = "The only statement" if self.judged == 1 else start
        parts = [f"{start} {about} that these runs can judge {verb}", *(f"{own} {form}" for own, form in others)]
        rest = f"; {counts[NOT_JUDGED]} of {total} cannot be judged here" if counts[NOT_JUDGED] else ""
        return f"{listed(parts)}{rest}."

    @property
    def certainty(self) -> str:
        """How much seeds and settings allow to say; a sentence without its full stop."""
        other = next((change for change in self.changes if change.field == "data.name"), None)
        if other:
            used, wanted = data_title(other.used), data_title(other.preset)
            return f"Nothing is judged on other data than the paper's: these runs are on {used}, not on {wanted}"
        words = f"Judged on means over {self.seeds} seeds"
        if self.seeds < 2:
            words = "One seed cannot tell an agreement from chance"
        elif any(row.verdict == OPEN for row in self.outcomes):
            words += "; open: the 95 % interval of a difference includes the opposite verdict"
        fields = list(dict.fromkeys(change.field for change in self.changes))
        if not fields:
            return f"{words}; all settings are the paper's, so numbers are judged too"
        differ = f"{listed(fields, 3)} {'differs' if len(fields) == 1 else 'differ'} from the paper's settings"
        return f"{words}; {differ}, so orders, signs and trends are judged, but no numbers"

    @property
    def budget(self) -> str:
        """Which settings differ from those of the preset."""
        if not self.changes:
            return f"All settings are those of the preset {self.preset}."
        return f"Settings that differ from the preset {self.preset}: {'; '.join(map(str, self.changes))}."

    def text(self, form: Form = "markdown") -> str:
        """Return the tables, the budget, the verdicts and the rule behind them; as Markdown or for a terminal."""
        budget = f"All settings are those of the preset `{self.preset}`."
        if self.changes:
            head = [f"Settings that differ from the preset `{self.preset}`:", ""]
            budget = "\n".join([*head, *(f"- {change}" for change in self.changes)])
        return "\n\n".join([render(self.tables, form), budget, render(verdicts_table(self.judgements), form)])


def verdicts_table(judgements: Sequence[Judgement]) -> Table:
    """Return one row per judgement, grouped by statement, with the number of verdicts of each kind below."""
    columns = ("statement", "place", "where", "metric", "here", "verdict")
    rows, full, former = [], [], None
    for row in judgements:
        reading = f" (read as: {row.statement.reading})" if row.statement.reading else ""
        said = [row.statement.says + reading, row.statement.source]
        found = [row.where, row.metric, row.here, row.verdict]
        full.append([*said, *found])
        rows.append(text_cells([*(["", ""] if row.statement is former else said), *found]))
        former = row.statement
    counts = Counter(row.verdict.partition(",")[0] for row in judgements)
    words = [f"{word}: {counts[word]}" for word in (AGREES, DIFFERS, NOT_COMPARABLE, NOT_RUN)]
    data = pd.DataFrame(full, columns=list(columns))
    return Table(columns, tuple(rows), data, "What the paper's text states", (f"{', '.join(words)}.", RULE))


def document(report: Report, frames: dict[str, pd.DataFrame], command: str, images: Sequence[str] = ()) -> str:
    """Return the report as a Markdown file that names its command, commit, seeds and training time."""
    pictures = [f"![{report.item.number}]({name})" for name in images]
    head = f"# {report.item.number} of the paper, reproduced by this project"
    return "\n\n".join([head, origin(frames, command), *pictures, report.text()]) + "\n"


def origin(frames: Mapping[str, pd.DataFrame], command: str) -> str:
    """Return a list of what a document was made by; links that runs share are counted once."""
    seeds = ", ".join(str(seed) for seed in sorted(frames["runs"]["seed"].unique()))
    data = ", ".join(sorted({data_title(str(name)) for name in frames["runs"]["data.name"]}))
    seconds = frames["tasks"].drop_duplicates("key")["seconds"].sum()
    lines = (
        f"command: `{command}`",
        f"commit: {commit()}",
        f"seeds: {seeds}; ± is one standard deviation over seeds",
        f"data: {data}",
        f"training: {seconds:,.0f} s in total; links that runs share count once",
    )
    return "\n".join(f"- {line}" for line in lines)


def changes(runs: pd.DataFrame, preset: str, varied: Collection[str] = ()) -> list[Change]:
    """Return the fields in which runs differ from the preset, resolved per method; fields of a grid are `varied`."""
    compared = [name for name in field_keys() if name in runs and name not in FREE and name not in varied]
    methods = [str(name) for name in runs["method.name"].unique()]
    found: dict[tuple[str, str, str], list[str]] = {}
    for method in methods:
        expected = preset_fields(preset, method)
        own = runs[runs["method.name"] == method]
        for name in compared:
            wanted = _plain(expected.get(name))
            for value in sorted({_plain(value) for value in own[name]} - {wanted}):
                # The name of a data file is enough; its folder may be private.
                shown = [Path(text).name if name == "data.name" else text for text in (wanted, value)]
                found.setdefault((name, shown[0], shown[1]), []).append(method)
    return [Change(*key, () if names == methods else tuple(names)) for key, names in sorted(found.items())]


def preset_fields(preset: str, method: str) -> Mapping[str, Any]:
    """Return all fields of the preset with this method."""
    return fields(resolve([read_layer(preset), {"method": {"name": method}}]))


def _plain(value: Any) -> str:
    """Return a value as text; frames hold lists as JSON, some numbers as text, and several kinds of missing values."""
    if isinstance(value, list):
        return json.dumps(value)
    if pd.isna(value):
        return "unset"
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    try:
        return f"{float(value):.12g}"
    except ValueError:
        return str(value)
