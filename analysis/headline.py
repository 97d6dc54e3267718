"""What a study says in a title and two sentences: what was found, and how sure that is. Page and terminal agree.

Methods are ranked by service accuracy, the mean accuracy of the last model's queries on all galleries. It is compared
with never upgrading and with re-indexing, because a model that never changes has BC 0.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from analysis.comparisons import comparable_sets
from analysis.groups import finished, group_labels, short, varied_fields
from analysis.names import field_title, on_all_data, ordered, title
from analysis.paper.items import ITEMS
from analysis.stats import NO_SPREAD, ROUNDING, Estimate, shown_estimates, t_interval
from analysis.study import Study, data_title
from analysis.sweeps import settings_order, variant_rows
from analysis.tables.table import interval_cell, signed
from cl2r.config.builtin import ABLATION_CELLS
from cl2r.errors import InputError
from cl2r.metrics import (
    BC,
    FIRST_ACCURACY,
    FIRST_RECALL,
    GALLERY_ITEMS,
    REINDEXED_ACCURACY,
    SERVICE_ACCURACY,
    SERVICE_RECALL,
    STORED_BYTES,
    TRAIN_SECONDS,
)
from cl2r.runtime.logs import anonymous_words
from cl2r.runtime.text import counted, duration, listed, size

Kind = Literal["ablation", "methods", "field", "sweep", "race", "search", "paper", "points"]
WORDS = {
    **{"ablation": "Ablation", "methods": "Methods", "sweep": "Sweep", "race": "Recommendation"},
    "search": "Search after upgrades",
}
"""What the title of a study begins with."""
SHARED = (
    "optim.epochs",
    "method.budget",
    "variant",
    "backbone.name",
    "head.centre",
    "batches.size",
)
"""Columns in which compared runs must agree, if they have them."""
NEEDED = [FIRST_ACCURACY.name, SERVICE_ACCURACY.name, REINDEXED_ACCURACY.name]
ONE_SEED = "One seed cannot tell a finding from chance: its intervals are over pairs, not over seeds"
MORE_SEEDS = 2  # that a study is told to add
REGIMES = "studies/results/regimes_icons.md"
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth")
CL2R = "cl2r"


@dataclass(frozen=True)
class Headline:
    """A title, and two sentences; `command` makes the finding surer, and is empty if none is known to.

    `remark` says what else a reader must know before using the finding.
    """

    title: str
    finding: str
    certainty: str
    command: str = ""
    remark: str = ""


def study_kind(study: Study) -> Kind:
    """Return what a study is about, by what varies over its runs."""
    runs = study.runs
    if study.search:
        return "search"
    if study.paper:
        return "paper"
    if study.specification.get("race"):
        return "race"
    if study.specification.get("space"):
        return "sweep"
    if runs.empty or "method.name" not in runs:
        return "points"
    varied, methods = varied_fields(runs), set(runs["method.name"])
    values = runs[varied[0]] if len(varied) == 1 else None
    if values is not None and pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        return "field"
    if varied or len(methods) < 2 or ("variant" in runs and runs["variant"].nunique() > 1):
        return "points"
    return "ablation" if methods <= set(ABLATION_CELLS) else "methods"


def headline(study: Study) -> Headline:
    """Return the headline of a study of any kind; a study without a finished run has a title only."""
    kind = study_kind(study)
    name = study_title(study, kind)
    if study.finished.empty:
        return Headline(name, "No run has finished yet.", "")
    if kind == "search":
        from analysis.searches import search_headline  # imports this module

        return search_headline(study, name)
    if kind == "paper":
        return paper_headline(study, name)
    if kind in ("ablation", "methods"):
        return compared_methods(study, name)
    if kind in ("sweep", "race"):
        from analysis.sweep_headline import race_headline, sweep_headline  # imports Optuna, which takes a second

        return sweep_headline(study, name) if kind == "sweep" else race_headline(study, name)
    if kind == "field":
        from analysis.field_headline import compared_field  # imports this module

        return compared_field(study, name)
    return compared_points(study, name)


def paper_headline(study: Study, name: str) -> Headline:
    """Return the headline of a table or figure of the paper."""
    from analysis.paper.report import Report  # reads presets, which few studies need

    try:
        report = Report.of_study(study)
    except InputError as error:
        return Headline(name, f"The runs cannot be laid out as in the paper: {error}.", "")
    command, cost = more_seeds(study)
    surer = f"; {MORE_SEEDS} more seeds{cost} would make this surer" if command and report.judged else ""
    return Headline(name, report.finding, f"{report.certainty}{surer}.", command if surer else "")


def study_title(study: Study, kind: Kind) -> str:
    """Return a title that a person would give, e.g. `Ablation on icons: 6 methods, 6 tasks, 3 seeds`."""
    runs = study.runs
    names = runs["data.name"].dropna().astype(str).unique().tolist() if "data.name" in runs else []
    where = f" on {listed([data_title(name) for name in names])}" if len(names) else ""
    if runs.empty or "method.name" not in runs:
        return f"Study{where}"
    methods, seeds = ordered(runs["method.name"].astype(str)), runs["seed"].nunique()
    counts = [counted(len(methods), "method") if len(methods) > 1 else title(methods[0])]
    word = WORDS.get(kind, "Study")
    if kind == "field":
        (field,) = varied_fields(runs)
        values = sorted(runs[field].dropna().unique())
        word = {"scenario.n_tasks": "Numbers of tasks", "memory.per_class": "Sizes of memory"}.get(
            field, f"Values of {field_title(field)}"
        )
        counts.append(f"{field_title(field)} = {listed([short(value) for value in values], 8)}")
    elif kind == "sweep":
        trials = variant_rows(runs)
        searched = ordered(trials["method.name"].astype(str))
        chosen = settings_order([name for name in study.specification["space"] if name != "scenario.n_tasks"])
        knobs = listed([field_title(name) for name in chosen])
        knobs += f" of {title(searched[0])}" if len(searched) == 1 else ""
        contexts = sorted({int(count) for count in trials["tasks"].dropna()}) if "tasks" in trials else []
        counts = [knobs, *([f"T = {listed(list(map(str, contexts)))}"] if len(contexts) > 1 else [])]
        counts.append(counted(trials["trial"].nunique(), "trial"))
    elif kind == "race":
        counts = [counted(runs["trial"].nunique(), "candidate")]
    elif kind == "paper":
        word = f"{ITEMS[study.paper['item']].number} of the paper"
        for field in varied_fields(runs):
            values = sorted(runs[field].dropna().unique())
            counts.append(f"{field_title(field)} = {listed([short(value) for value in values], 8)}")
    tasks = runs["tasks"].dropna().unique().tolist() if "tasks" in runs else []
    if len(tasks) == 1:
        counts.append(counted(int(tasks[0]), "task"))
    counts.append(counted(seeds, "seed"))
    return f"{word}{where}: {', '.join(counts)}"


def compared_methods(study: Study, name: str) -> Headline:
    """Return the headline of runs that differ in method and seed only; those on all data are not ranked."""
    runs = study.runs
    if older := older_note(runs):
        return Headline(name, older, "")
    every = {str(method) for method in runs["method.name"]}
    ranked = {method for method in every if not on_all_data(method)} or every
    done = runs[finished(runs) & runs[NEEDED].notna().all(axis=1) & runs["method.name"].isin(ranked)]
    if done.empty or len(comparable_sets(done)) != 1 or done.duplicated(["method.name", "seed"]).any():
        return Headline(name, "The runs cannot be ranked in one list: see the tables.", "")
    if differing := [column for column in SHARED if column in done and done[column].nunique(dropna=False) > 1]:
        return Headline(name, f"The runs differ in {listed(differing)}: they are not ranked.", "")
    seeds = common_seeds(done)
    if seeds.empty:
        return Headline(name, "No seed finished with every method: they are not ranked.", "")
    means = seeds.groupby("method.name")[SERVICE_ACCURACY.name].mean().astype(float)
    order = [str(method) for method in means.sort_values(ascending=False, kind="stable").index]
    common = listed([str(seed) for seed in sorted(seeds["seed"].unique())])
    left = "" if len(seeds) == len(done) else f" Only seeds that all methods have count ({common})."
    lost = ordered(ranked - set(order))
    left += f" Without a finished run: {listed([title(method) for method in lost])}." if lost else ""
    remark = [_unequal(seeds, ordered(every - ranked)), _place_of_cl2r(seeds, order), _recall(seeds)]
    found = _found(seeds, means.reindex(order))
    return Headline(name, found, *_certainty(study, seeds, order, left), " ".join(filter(None, remark)))


def compared_points(study: Study, name: str) -> Headline:
    """Return the headline of runs of any other kind: the best of their groups, if they can be ranked."""
    if older := older_note(study.runs):
        return Headline(name, older, "")
    done = study.runs[finished(study.runs) & study.runs[NEEDED].notna().all(axis=1)]
    if len(comparable_sets(done)) != 1:
        return Headline(name, "The runs differ in data or tasks and are not ranked in one list: see the tables.", "")
    done = done.assign(group=group_labels(done).astype(str))
    table = shown_estimates(done, SERVICE_ACCURACY.name, ["group"]).sort_values("mean", ascending=False, kind="stable")
    best, row = str(table.index[0]), table.iloc[0]
    own = done[done["group"] == best]
    first, indexed = (own[metric.name].astype(float).mean() for metric in (FIRST_ACCURACY, REINDEXED_ACCURACY))
    value = interval_cell(SERVICE_ACCURACY.name, row["mean"], row["low"], row["high"]).text
    start = (
        f"{best}: service accuracy {value}" if len(table) == 1 else f"{best} has the highest service accuracy, {value}"
    )
    command, cost = more_seeds(study)
    surer = f"; {MORE_SEEDS} more seeds{cost} would make this surer" if command else ""
    over = "One seed: intervals are over its pairs, not over seeds" if row["n"] < 2 else f"Over {row['n']} seeds"
    picked = f", the highest of {len(table)}" if len(table) > 1 else ""
    beside = f"re-indexing it would reach {indexed:.3f}, its first model alone {first:.3f}"
    return Headline(name, f"{start}; {beside}.", f"{over}{picked}{surer}.", command)


def older_note(runs: pd.DataFrame) -> str:
    """Return a sentence if no run has the metrics of a service, as in frames that are older than these."""
    known = {"method.name", "seed", *NEEDED} <= set(runs) and runs.loc[finished(runs), NEEDED].notna().any(axis=None)
    return "" if known else "The runs have no service accuracy: they are older than this metric."


def estimate_text(runs: pd.DataFrame, metric: str) -> str:
    """Return `0.774 [0.746, 0.803]` of runs that differ in their seed only."""
    row = shown_estimates(runs, metric, ["method.name"]).iloc[0]
    return interval_cell(metric, row["mean"], row["low"], row["high"]).text


def _found(runs: pd.DataFrame, means: pd.Series) -> str:
    """Say which method serves best and at what cost, beside re-indexing and never upgrading; best means come first."""
    leading = [str(method) for method in means.index[means > means.iloc[0] - ROUNDING]]
    best, own = leading[0], runs[runs["method.name"] == leading[0]]
    values = f"service accuracy {estimate_text(own, SERVICE_ACCURACY.name)}"
    if BC.name in own and own[BC.name].notna().any():
        values += f" and BC {estimate_text(own, BC.name)}"
    spent = []
    if TRAIN_SECONDS.name in own and own[TRAIN_SECONDS.name].notna().any():
        spent.append(f"{duration(own[TRAIN_SECONDS.name].median())} of training")
    if STORED_BYTES.name in own and own[STORED_BYTES.name].notna().any():
        spent.append(f"{size(own[STORED_BYTES.name].max())} stored")
    cost = f", for {listed(spent)}" if spent else ""
    first, indexed = (float(own[metric.name].astype(float).mean()) for metric in (FIRST_ACCURACY, REINDEXED_ACCURACY))
    beside = f"re-indexing it would reach {signed('', indexed)}, its first model alone {signed('', first)}"
    touched = own[GALLERY_ITEMS.name].fillna(0).max() if GALLERY_ITEMS.name in own else 0
    name = f"{title(best)}, which maps the stored gallery at every update," if touched else title(best)
    if "tasks" in runs and (runs["tasks"] == 1).all():
        return f"One task: there is no upgrade yet. {name} is most accurate: {values}{cost}."
    if len(leading) > 1:
        return f"{listed(list(map(title, leading)))} serve equally, best without re-indexing: {values}{cost}; {beside}."
    gains = runs[SERVICE_ACCURACY.name].astype(float) - runs[FIRST_ACCURACY.name].astype(float)
    if (gains.groupby(runs["method.name"]).mean() > 0).any():
        return f"{name} serves best without re-indexing: {values}{cost}; {beside}."
    return f"No upgrade paid without re-indexing: the best, {name.rstrip(',')}, has {values}{cost}; {beside}."


def _certainty(study: Study, runs: pd.DataFrame, order: Sequence[str], left: str) -> tuple[str, str]:
    """Say how much could be chance, by paired differences over seeds, and what would make it surer."""
    by_method = {name: runs[runs["method.name"] == name].set_index("seed").sort_index() for name in order}
    best = by_method[order[0]]
    served = best[SERVICE_ACCURACY.name].astype(float)
    command, cost = more_seeds(study)
    surer = f"{MORE_SEEDS} more seeds{cost} would make this surer" if command else ""
    if len(served) < 2:
        return f"{ONE_SEED}{f'; {surer}' if surer else ''}.{left}", command
    gaps = [
        difference_text(t_interval(served - by_method[rival][SERVICE_ACCURACY.name]), f"the next, {title(rival)},")
        for rival in order[1:2]
    ]
    gaps.append(difference_text(t_interval(served - best[FIRST_ACCURACY.name].astype(float)), "its own first model"))
    ends = f"; {surer}" if surer else ""
    picked = f", and was picked from {len(order)}" if len(order) > 2 else ""
    return f"Over {len(served)} seeds it differs {' and '.join(gaps)}{picked}{ends}.{left}", command


def difference_text(found: Estimate, other: str) -> str:
    """Return `from the next by +0.012 [+0.003, +0.021] (clear)`."""
    shown = "for every seed" if found.note == NO_SPREAD else "clear" if found.low > 0 or found.high < 0 else "not clear"
    return f"from {other} by {interval_cell(BC.name, found.mean, found.low, found.high).text} ({shown})"


def _unequal(runs: pd.DataFrame, whole: Sequence[str]) -> str:
    """Say which methods have less to train on than the other runs, or more; `whole` are on all data."""
    names, words = listed([title(method) for method in whole]), []
    if whole:
        words.append(f"{names} {'trains' if len(whole) == 1 else 'train'} on all data at every task: not ranked")
    known = runs.dropna(subset="memory.per_class") if "memory.per_class" in runs else runs.iloc[:0]
    if len(known):
        memory = known.groupby("method.name")["memory.per_class"].first()
        usual = memory.mode().iloc[0]
        words += [
            f"{title(str(name))} keeps {'no memory' if not size else f'{size:.0f} images per class'}"
            for name, size in memory.items()
            if size != usual
        ]
    return f"{'; '.join(words)}." if words else ""


def _place_of_cl2r(runs: pd.DataFrame, order: Sequence[str]) -> str:
    """Say where CL²R stands, and what that depends on, with the settings of these runs."""
    if CL2R not in order:
        return ""
    place = order.index(CL2R)
    rank = PLACES[place] if place < len(PLACES) else f"number {place + 1}"
    first = _common(runs, "scenario.initial") or _common(runs, "scenario.increment")
    tasks = _common(runs, "scenario.n_tasks") or _common(runs, "tasks")
    split = f" ({first:.0f} here)" if first else f" (one of {tasks:.0f} equal tasks here)" if tasks else ""
    settings = [f"how many classes the first task has{split}"]
    if "head.centre" in runs and runs["head.centre"].nunique() == 1:
        settings.append(
            f"whether features are centred ({'they are' if runs['head.centre'].iloc[0] else 'they are not'})"
        )
    depends = f"which depends on {', '.join(settings)} and how long tasks are trained: see {REGIMES}"
    served = runs.set_index(["method.name", "seed"])[SERVICE_ACCURACY.name].astype(float)
    gap = t_interval(served[order[0]] - served[CL2R])
    behind = f", {interval_cell('', gap.mean, gap.low, gap.high).text} behind" if place else ""
    return f"{title(CL2R)} is {rank} of {len(order)} here{behind}, {depends}."


def _recall(runs: pd.DataFrame) -> str:
    """Say so if no method finds as many images by 1:N search as its first model did."""
    names = [SERVICE_RECALL.name, FIRST_RECALL.name]
    if not set(names) <= set(runs):
        return ""
    means = runs.groupby("method.name")[names].mean().astype(float)
    if means.isna().any(axis=None) or not (means[names[0]] < means[names[1]]).all():
        return ""
    found, first = means.sort_values(names[0]).iloc[-1]
    return f"In recall@1 every first model is better: the best method reaches {found:.3f}, its first model {first:.3f}."


def _common(runs: pd.DataFrame, name: str) -> float | None:
    """Return the one value of a numeric column, None if it has none or several."""
    if name not in runs:
        return None
    values = set(pd.to_numeric(runs[name], errors="coerce").dropna())
    return float(values.pop()) if len(values) == 1 else None


def common_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of seeds that every method of the runs has."""
    count = runs.groupby("seed")["method.name"].transform("nunique")
    return runs[count == runs["method.name"].nunique()]


def command_words(study: Study) -> list[str]:
    """Return the words of the command that ran the study, without names and secrets; none if it was not recorded."""
    return anonymous_words([str(word) for word in study.about.get("command") or ()])


def without(words: Sequence[str], *options: str) -> list[str]:
    """Return the words of a command without these options and their values."""
    kept, skipped = [], False
    for word in words:
        skipped = word.partition("=")[0] in options if word.startswith("--") else skipped
        kept += [] if skipped else [word]
    return kept


def more_seeds(study: Study) -> tuple[str, str]:
    """Return the command that adds seeds to a study, and `, about 6 min,`; empty texts if that is not recorded."""
    words = command_words(study)
    seeds = sorted(int(seed) for seed in study.runs["seed"].dropna().unique())
    if not words or not seeds:
        return "", ""
    kept = without(words, "--seeds", "--name")
    added = [seeds[-1] + 1 + place for place in range(MORE_SEEDS)]
    command = shlex.join([*kept, "--seeds", *map(str, [*seeds, *added])])
    tasks = study.tasks
    if not {"key", "seconds", "reused"} <= set(tasks) or tasks.empty:
        return command, ""
    each = tasks.drop_duplicates("key")["seconds"].astype(float).sum() / len(seeds)
    trained = tasks.loc[~tasks["reused"].astype("boolean").fillna(False), "seconds"].astype(float).sum()
    taken = study.about.get("seconds") or 0
    share = taken / trained if trained > 0 and taken else 1.0  # trials run side by side
    return command, f", about {duration(each * MORE_SEEDS * share)},"
