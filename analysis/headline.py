"""What a study says in a title and two sentences: what was found, and how sure that is. Page and terminal agree.

Methods are ranked by service accuracy, the mean accuracy of the last model's queries on all galleries. It is compared
with never upgrading and with re-indexing, because a model that never changes has BC 0.
"""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import pandas as pd

from analysis.comparisons import comparable_sets
from analysis.groups import finished, short, varied_fields
from analysis.names import ALL_DATA, field_title, ordered, title
from analysis.stats import NO_SPREAD, ROUNDING, Estimate, shown_estimates, t_interval
from analysis.study import Study, data_title
from analysis.sweeps import variant_rows
from analysis.tables.table import interval_cell, signed
from cl2r.config.builtin import ABLATION_CELLS
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
    Metric,
)
from cl2r.runtime.text import counted, duration, listed, size

Kind = Literal["ablation", "methods", "field", "sweep", "race", "search", "paper", "points"]
SHARED = (
    "optim.epochs",
    "method.budget",
    "variant",
    "backbone.name",
    "head.centre",
    "batches.size",
)
"""Columns in which compared runs must agree, if they have them."""
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
    if study.specification.get("race"):
        return "race"
    if study.specification.get("space"):
        return "sweep"
    if runs.empty or "method.name" not in runs:
        return "points"
    varied, methods = varied_fields(runs), set(runs["method.name"])
    if len(varied) == 1 and pd.api.types.is_numeric_dtype(runs[varied[0]]):
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
    if kind in ("ablation", "methods"):
        return compared_methods(study, name)
    if kind == "field":
        return compared_field(study, name)
    return Headline(name, "", "")


def study_title(study: Study, kind: Kind) -> str:
    """Return a title that a person would give, e.g. `Ablation on icons: 6 methods, 6 tasks, 3 seeds`."""
    runs = study.runs
    names = runs["data.name"].dropna().astype(str).unique().tolist() if "data.name" in runs else []
    where = f" on {listed([data_title(name) for name in names])}" if len(names) else ""
    if runs.empty or "method.name" not in runs:
        return f"Study{where}"
    methods, seeds = ordered(runs["method.name"].astype(str)), runs["seed"].nunique()
    counts = [counted(len(methods), "method") if len(methods) > 1 else title(methods[0])]
    word = {"ablation": "Ablation", "methods": "Methods", "sweep": "Sweep", "race": "Recommendation"}.get(kind, "Study")
    if kind == "field":
        (field,) = varied_fields(runs)
        values = sorted(runs[field].dropna().unique())
        word = {"scenario.n_tasks": "Numbers of tasks", "memory.per_class": "Sizes of memory"}.get(field, field)
        counts.append(f"{field_title(field)} = {listed([short(value) for value in values], 8)}")
    elif kind == "sweep":
        trials = variant_rows(runs)["trial"].nunique()
        knobs = listed([field_title(name) for name in study.specification["space"]])
        counts = [f"{knobs} of {title(methods[0])}" if len(methods) == 1 else knobs, counted(trials, "trial")]
    elif kind == "race":
        counts = [counted(runs["trial"].nunique(), "candidate")]
    tasks = runs["tasks"].dropna().unique().tolist() if "tasks" in runs else []
    if len(tasks) == 1:
        counts.append(counted(int(tasks[0]), "task"))
    counts.append(counted(seeds, "seed"))
    return f"{word}{where}: {', '.join(counts)}"


def compared_methods(study: Study, name: str) -> Headline:
    """Return the headline of runs that differ in method and seed only."""
    needed = [FIRST_ACCURACY.name, SERVICE_ACCURACY.name, REINDEXED_ACCURACY.name]
    runs = study.runs
    if not {"method.name", "seed", *needed} <= set(runs):
        return Headline(name, "The runs have no service accuracy: they are older than this metric.", "")
    done = runs[finished(runs) & runs[needed].notna().all(axis=1)]
    tables = {str(method): own for method, own in done.groupby("method.name")}
    common = set.intersection(*(set(own["seed"]) for own in tables.values())) if tables else set()
    shared = [column for column in SHARED if column in done]
    if len(tables) < 2 or len(comparable_sets(done)) != 1 or done.duplicated(["method.name", "seed"]).any():
        return Headline(name, "The runs cannot be ranked in one list: see the tables.", "")
    if differing := [column for column in shared if done[column].nunique(dropna=False) > 1]:
        return Headline(name, f"The runs differ in {listed(differing)}: they are not ranked.", "")
    if not common:
        return Headline(name, "No seed finished with every method: they are not ranked.", "")
    seeds = done[done["seed"].isin(common)]
    means = seeds.groupby("method.name")[SERVICE_ACCURACY.name].mean().astype(float)
    order = [str(method) for method in means.sort_values(ascending=False, kind="stable").index]
    left = "" if len(seeds) == len(done) else f" Only seeds that all methods have count ({_words(common)})."
    order = [method for method in order if method not in ALL_DATA] or order
    remark = " ".join(filter(None, [_unequal(seeds), _place_of_cl2r(seeds, order), _recall(seeds)]))
    return Headline(name, _found(seeds, order[0]), *_certainty(study, seeds, order, left), remark)


def _words(seeds: set[int]) -> str:
    return listed([str(seed) for seed in sorted(seeds)])


def _estimate(runs: pd.DataFrame, metric: str) -> str:
    """Return `0.774 [0.746, 0.803]` of runs that differ in their seed only."""
    row = shown_estimates(runs, metric, ["method.name"]).iloc[0]
    return interval_cell(metric, row["mean"], row["low"], row["high"]).text


def _found(runs: pd.DataFrame, best: str) -> str:
    """Say which method serves best and at what cost, beside re-indexing and never upgrading."""
    own = runs[runs["method.name"] == best]
    metrics = (FIRST_ACCURACY, SERVICE_ACCURACY, REINDEXED_ACCURACY)
    first, served, indexed = (float(own[metric.name].astype(float).mean()) for metric in metrics)
    values = f"service accuracy {_estimate(own, SERVICE_ACCURACY.name)}"
    if BC.name in own and own[BC.name].notna().any():
        values += f" and BC {_estimate(own, BC.name)}"
    spent = [f"{duration(own[TRAIN_SECONDS.name].median())} of training"] if TRAIN_SECONDS.name in own else []
    spent += [f"{size(own[STORED_BYTES.name].max())} stored"] if STORED_BYTES.name in own else []
    cost = f", for {listed(spent)}" if spent else ""
    beside = f"re-indexing would reach {signed('', indexed)}, never upgrading {signed('', first)}"
    touched = own[GALLERY_ITEMS.name].fillna(0).max() if GALLERY_ITEMS.name in own else 0
    name = f"{title(best)}, which maps the stored gallery at every update," if touched else title(best)
    if served > first:
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
        words = "One seed cannot tell a finding from chance: its intervals are over pairs, not over seeds"
        return f"{words}{f'; {surer}' if surer else ''}.{left}", command
    rival = by_method[order[1]][SERVICE_ACCURACY.name].astype(float)
    gaps = (
        _difference(t_interval(served - rival), f"the next, {title(order[1])},"),
        _difference(t_interval(served - best[FIRST_ACCURACY.name].astype(float)), "its own first model"),
    )
    ends = f"; {surer}" if surer else ""
    picked = f", and was picked from {len(order)}" if len(order) > 2 else ""
    return f"Over {len(served)} seeds it differs {' and '.join(gaps)}{picked}{ends}.{left}", command


def _difference(found: Estimate, other: str) -> str:
    shown = "for every seed" if found.note == NO_SPREAD else "clear" if found.low > 0 or found.high < 0 else "not clear"
    return f"from {other} by {interval_cell(BC.name, found.mean, found.low, found.high).text} ({shown})"


def _unequal(runs: pd.DataFrame) -> str:
    """Say which methods have more or less to train on than the others."""
    words = []
    whole = [title(name) for name in ordered(runs["method.name"]) if name in ALL_DATA]
    if whole:
        words.append(f"{listed(whole)} train on all data at every task and are not ranked")
    if "memory.per_class" in runs:
        memory = runs.groupby("method.name")["memory.per_class"].first()
        usual = memory.mode().iloc[0]
        words += [
            f"{title(str(name))} keeps {'no memory' if not size else f'{size:.0f} images per class'}"
            for name, size in memory.items()
            if size != usual and name not in ALL_DATA
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


def compared_field(study: Study, name: str) -> Headline:
    """Return the headline of runs over one numeric config field: which method is best at each of its values."""
    needed = [FIRST_ACCURACY.name, SERVICE_ACCURACY.name, REINDEXED_ACCURACY.name]
    runs, (field,) = study.runs, varied_fields(study.runs)
    if not {"seed", *needed} <= set(runs):
        return Headline(name, "The runs have no service accuracy: they are older than this metric.", "")
    done = runs[finished(runs) & runs[[field, *needed]].notna().all(axis=1)]
    shared = [column for column in SHARED if column in done and column != field]
    if done.empty or done.duplicated(["method.name", field, "seed"]).any():
        return Headline(name, "The runs cannot be ranked: see the tables.", "")
    if differing := [column for column in shared if (done.groupby(field)[column].nunique(dropna=False) > 1).any()]:
        return Headline(name, f"The runs differ in {listed(differing)}: they are not ranked.", "")
    tables = {value: _common_seeds(own) for value, own in done.groupby(field, sort=True)}
    tables = {value: own for value, own in tables.items() if len(own)}
    if not tables or any(len(comparable_sets(own)) != 1 for own in tables.values()):
        return Headline(name, "The runs cannot be ranked: see the tables.", "")
    means = {value: own.groupby("method.name")[SERVICE_ACCURACY.name].mean() for value, own in tables.items()}
    leading = {value: [str(method) for method in own.index[own > own.max() - ROUNDING]] for value, own in means.items()}
    wins = Counter(method for methods in leading.values() for method in methods)
    best = {value: max(methods, key=lambda method: wins[method]) for value, methods in leading.items()}
    left = "" if sum(map(len, tables.values())) == len(done) else " Only seeds that all methods have at a value count."
    every = {str(method) for method in runs["method.name"]}
    lost = [
        f"{title(method)} at {field_title(field)}={short(value)}"
        for value in sorted(runs[field].dropna().unique())
        for method in ordered(every - set(done.loc[done[field] == value, "method.name"].astype(str)))
    ]
    apart = [short(value) for value in done[field].drop_duplicates().sort_values() if value not in tables]
    left += f" Methods have no seed in common at {field_title(field)}={listed(apart)}." if apart else ""
    left += f" Without a finished run: {listed(lost)}." if lost else ""
    return Headline(
        name, _found_over(field, tables, best, len(every)), *_certainty_over(study, field, tables, best, left)
    )


def _common_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of seeds that every method of the runs has."""
    count = runs.groupby("seed")["method.name"].transform("nunique")
    return runs[count == runs["method.name"].nunique()]


def _found_over(field: str, tables: dict[Any, pd.DataFrame], best: dict[Any, str], methods: int) -> str:
    """Say which method serves best at which values of a field, beside re-indexing and never upgrading."""
    symbol, values = field_title(field), list(tables)

    def served(value: Any) -> str:
        return _estimate(tables[value][tables[value]["method.name"] == best[value]], SERVICE_ACCURACY.name)

    def level(value: Any, metric: Metric) -> float:
        return float(tables[value].loc[tables[value]["method.name"] == best[value], metric.name].astype(float).mean())

    def beside(*some: Any) -> str:
        indexed, first = (
            listed([f"{level(v, metric):.3f}" for v in some]) for metric in (REINDEXED_ACCURACY, FIRST_ACCURACY)
        )
        return f"re-indexing would reach {indexed}, never upgrading {first}"

    first, last = values[0], values[-1]
    unpaid = [short(value) for value in values if level(value, SERVICE_ACCURACY) <= level(value, FIRST_ACCURACY)]
    end = f" No upgrade pays without re-indexing at {symbol}={listed(unpaid)}." if unpaid else ""
    if len(values) == 1:
        start = f"{title(best[last])} serves best" if methods > 1 else f"{title(best[last])} serves"
        return f"{start} at {symbol}={short(last)}: service accuracy {served(last)}; {beside(last)}.{end}"
    if len(set(best.values())) == 1:
        change = level(last, SERVICE_ACCURACY) - level(first, SERVICE_ACCURACY)
        move = "falls" if change < -ROUNDING else "rises" if change > ROUNDING else "goes"
        who = (
            f"{title(best[last])} serves best at every {symbol} from {short(first)} to {short(last)}: service accuracy"
        )
        start = who if methods > 1 else f"Service accuracy of {title(best[last])}"
        course = f"{move} from {served(first)} at {symbol}={short(first)} to {served(last)} at {symbol}={short(last)}"
        return f"{start} {course}; {beside(first, last)}.{end}"
    parts = [
        f"{title(method)} {'serves best ' if not number else ''}{_where(symbol, values, own)} "
        f"({served(own[-1])}{'' if len(own) == 1 else f' at {symbol}={short(own[-1])}'})"
        for number, (method, own) in enumerate(_stretches(best))
    ]
    return f"{'; '.join(parts)}; at {symbol}={short(last)} {beside(last)}.{end}"


def _stretches(best: dict[Any, str]) -> list[tuple[str, list[Any]]]:
    """Return the best methods in the order of the values, each with the values in a row at which it is best."""
    return [(method, [value for value, _ in own]) for method, own in groupby(best.items(), key=lambda item: item[1])]


def _where(symbol: str, values: list[Any], own: list[Any]) -> str:
    """Return `at T=2`, `up to T=5`, `from T=5 on` or `from T=3 to 5`; `own` are some of the `values` in a row."""
    if len(own) == 1:
        return f"at {symbol}={short(own[0])}"
    if own[0] == values[0]:
        return f"up to {symbol}={short(own[-1])}"
    return f"from {symbol}={short(own[0])} " + ("on" if own[-1] == values[-1] else f"to {short(own[-1])}")


def _certainty_over(
    study: Study, field: str, tables: dict[Any, pd.DataFrame], best: dict[Any, str], left: str
) -> tuple[str, str]:
    """Say at which values the lead over the next method is more than chance, and what would make it surer."""
    command, cost = more_seeds(study)
    surer = f"; {MORE_SEEDS} more seeds{cost} would make this surer" if command else ""
    counts = sorted({int(own["seed"].nunique()) for own in tables.values()})
    if counts[-1] < 2:
        return (
            f"One seed cannot tell a finding from chance: its intervals are over pairs, not over seeds{surer}.{left}",
            command,
        )
    seeds = counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    found: dict[bool, list[str]] = {True: [], False: []}
    for value, own in tables.items():
        served = own.pivot(index="seed", columns="method.name", values=SERVICE_ACCURACY.name).astype(float)
        others = served.drop(columns=best[value])
        if len(others.columns):
            lead = t_interval(served[best[value]] - others[others.mean().idxmax()])
            found[bool(lead.low > ROUNDING)].append(short(value))
    symbol, known = field_title(field), sum(map(len, found.values()))
    if not known:
        return f"Intervals are over {seeds}{surer}.{left}", command
    parts = [
        f"{word} at {symbol}={listed(found[clear])}"
        for clear, word in ((True, "clear"), (False, "not clear"))
        if found[clear]
    ]
    if known > 1 and len(parts) == 1:
        parts = [f"{'clear' if found[True] else 'not clear'} at {'every' if found[True] else 'any'} {symbol}"]
    return f"Over {seeds} the lead over the next method is {', '.join(parts)}{surer}.{left}", command


def more_seeds(study: Study) -> tuple[str, str]:
    """Return the command that adds seeds to a study, and `, about 6 min,`; empty texts if that is not recorded."""
    words = [str(word) for word in study.about.get("command") or ()]
    seeds = sorted(int(seed) for seed in study.runs["seed"].dropna().unique())
    if not words or not seeds:
        return "", ""
    kept, skipped = [], ""
    for word in words:
        skipped = word if word in ("--seeds", "--name") else "" if word.startswith("--") else skipped
        kept += [] if skipped else [word]
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
