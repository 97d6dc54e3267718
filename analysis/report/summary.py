"""What a study found, in words: only what its numbers carry, and what they do not."""

import math
from dataclasses import dataclass

import pandas as pd

from analysis.cells import signed
from analysis.comparisons import paired_differences
from analysis.groups import in_order, short
from analysis.names import field_title, ordered, title
from analysis.pivot import finished
from analysis.report.comparable import comparable_sets
from analysis.report.costs import links
from analysis.report.objectives import objective_column, objectives
from analysis.report.words import counted, data_names, interval, listed
from analysis.stats import NO_SPREAD, SHARES, base_metric, summarise
from analysis.study import Study
from analysis.trials import COSTS, best_trials
from cl2r.errors import InputError

MOST_SETS = 4
MOST_NAMES = 9
"""Groups that a sentence names; more are counted."""
ONE_SEED = "One seed: no interval, no test."


@dataclass(frozen=True)
class Finding:
    """A sentence or two under a word."""

    word: str
    text: str


def findings(study: Study, runs: pd.DataFrame, fields: list[str]) -> list[Finding]:
    """From what was compared to what it cost; `runs` have their `group`, which the `fields` make."""
    done = runs[finished(runs)]
    found = [
        Finding("Compared", _compared(study, runs, fields)),
        Finding("Runs", _outcome(runs, study.about.get("expected_runs"))),
    ]
    if len(done):
        found += _sweep(study, done) if study.specification.get("space") else _grid(done)
    trained, reused = links(study)
    if trained + reused:
        found.append(Finding("Links", f"{counted(trained, 'link')} trained, {reused:,} reused from the store."))
    return found


def _compared(study: Study, runs: pd.DataFrame, fields: list[str]) -> str:
    if runs.empty:
        return "No run has ended yet."
    methods = [title(name) for name in ordered(runs["method.name"].astype(str).tolist())]
    words = [f"{counted(len(methods), 'method')} ({listed(methods, 12)})"]
    if study.specification.get("space"):
        swept = [field_title(name) for name in study.specification["space"]]
        words.append(f"{counted(runs['trial'].nunique(), 'trial')} of a sweep over {listed(swept)}")
    else:
        words += [_values(runs, name) for name in fields[1:]]
    seeds = sorted(runs["seed"].dropna().unique())
    words.append(f"{counted(len(seeds), 'seed')} ({_range([int(seed) for seed in seeds])})")
    tasks = sorted({int(count) for count in runs["tasks"].dropna()}) if "tasks" in runs else []
    where = f" on {listed(data_names(runs))}" if data_names(runs) else ""
    chain = f", {counted(tasks[0], 'task')}" if len(tasks) == 1 else ""
    return f"{' × '.join(words)}{where}{chain}."


def _range(seeds: list[int]) -> str:
    """`0 to 9`, or all of them if some are missing in between."""
    whole = len(seeds) > 3 and seeds[-1] - seeds[0] == len(seeds) - 1
    return f"{seeds[0]} to {seeds[-1]}" if whole else listed([str(seed) for seed in seeds], 12)


def _values(runs: pd.DataFrame, name: str) -> str:
    values = runs[name].drop_duplicates()
    values = values.sort_values() if pd.api.types.is_numeric_dtype(values) else values
    return f"{field_title(name)} ({listed([short(value) for value in values.astype(object)], 8)})"


def _outcome(runs: pd.DataFrame, expected: int | None) -> str:
    if runs.empty:
        return "None."
    ended, one = len(runs), len(runs) == 1
    more = f"{ended:,} of {expected:,} runs {'has' if one else 'have'} ended" if expected and expected > ended else ""
    counts = runs["status"].value_counts() if "status" in runs else pd.Series({"finished": ended})
    failed, stopped = int(counts.get("failed", 0)), int(counts.get("pruned", 0))
    if not failed + stopped:
        whole = f"{counted(ended, 'run')}, {'' if one else 'all '}finished."
        return f"{more}, {'and it' if one else 'all of them'} finished." if more else whole
    words = [f"{failed} failed"] if failed else []
    words += [f"{stopped} {'was' if stopped == 1 else 'were'} stopped early"] if stopped else []
    done = int(counts.get("finished", 0))
    ends = f"{more}; {done} finished" if more else f"{done} of {counted(ended, 'run')} finished"
    return f"{ends}; {' and '.join(words)}. Means are over finished runs only."


def _grid(done: pd.DataFrame) -> list[Finding]:
    sets = comparable_sets(done)
    found = []
    for words, runs in sets[:MOST_SETS]:
        place = f" ({words})" if words else ""
        found += [Finding(metric + place, _best(runs, metric)) for metric in ("BC", "AC") if _known(runs, metric)]
        if _known(runs, "BC") and (text := _signs(runs)):
            found.append(Finding(f"Sign of BC{place}", text))
    if len(sets) > MOST_SETS:
        found.append(Finding("More", f"{len(sets) - MOST_SETS} further settings are in the tables."))
    if not any(_known(runs, "BC") for _, runs in sets):
        found.append(Finding("AC, BC, FC", "They do not exist: a chain of one task has no older model."))
    return found


def _known(runs: pd.DataFrame, metric: str) -> bool:
    return metric in runs and bool(runs[metric].notna().any())


def _best(runs: pd.DataFrame, metric: str) -> str:
    """The best group, the next one, and what a paired test says of their difference."""
    table = (
        summarise(runs, metric, ["group"]).dropna(subset=["mean"]).sort_values("mean", ascending=False, kind="stable")
    )
    top = table[table["mean"] >= table["mean"].iloc[0] - 1e-9]
    best, rest = table.iloc[0], table[~table.index.isin(top.index)]
    figure = _figure(metric, best)
    names = _named([str(name) for name in top.index])
    if len(table) == 1:
        return f"{names}: {figure}{_over(best)}"
    text = f"{names} {'is' if len(top) == 1 else 'are'} highest with {figure}{_over(best)}"
    if rest.empty:
        return f"All groups are equal: {figure}{_over(best)}"
    second = rest.iloc[0]
    text += f" Next is {rest.index[0]} with {_figure(metric, second)}."
    return text if table["n"].max() < 2 else f"{text} {_test(runs, metric, str(top.index[0]), str(rest.index[0]))}"


def _figure(metric: str, row: pd.Series) -> str:
    """With its interval; equal seeds have one of no width, which says less than it seems to."""
    return interval(metric, row["mean"], *(math.nan, math.nan) if row["note"] else (row["low"], row["high"]))


def _over(row: pd.Series) -> str:
    if row["n"] < 2:
        return f". {ONE_SEED}"
    return f" (the same for all {row['n']} seeds)." if row["note"] else f" (95 % t-interval over {row['n']} seeds)."


def _test(runs: pd.DataFrame, metric: str, best: str, second: str) -> str:
    """Of the best against all others, since the best was found by looking."""
    try:
        tests = paired_differences(runs, metric, ("group",), baseline=best)
    except InputError as error:
        return f"No test: {error}."
    row = tests[tests["one"] == second].iloc[0]
    if row["n"] < 2:
        return f"No test: {counted(int(row['n']), 'common seed')}."
    if row["verdict"] == NO_SPREAD:
        return f"No test: all {row['n']} seeds have the same difference, {signed('BC', -row['difference'])}."
    most = 1.0 if base_metric(metric) in SHARES else math.inf
    ends = interval("BC", -row["difference"], max(-row["high"], -most), min(-row["low"], most))
    made = int(tests["p"].notna().sum())
    p = f"p\u00a0{_p(row['p_corrected'])}" + (f" after Holm's correction for {made} comparisons" if made > 1 else "")
    verdict = {"worse": "the difference is shown", "better": "on these seeds the order is the other way round"}
    outcome = verdict.get(str(row["verdict"]), "a difference is not shown")
    return f"Paired over {row['n']} common seeds the difference is {ends}, {p}: {outcome}."


def _p(value: float) -> str:
    return "<\u00a00.001" if value < 0.001 else f"=\u00a0{value:.3f}"


def _signs(runs: pd.DataFrame) -> str:
    """Which groups have BC on one side of 0 by their interval; one of no width says nothing."""
    table = summarise(runs, "BC", ["group"])
    table = table[table["note"] == ""]
    if table.empty:
        return ""
    above, below = ([str(name) for name in table.index[side]] for side in (table["low"] > 0, table["high"] < 0))
    parts = [f"above 0 for {_named(above)}"] if above else []
    parts += [f"below 0 for {_named(below)}"] if below else []
    open_ = len(table) - len(above) - len(below)
    text = f"The t-interval lies {' and '.join(parts)}" if parts else "No t-interval lies on one side of 0"
    text += f"; for {counted(open_, 'group')} it includes 0" if open_ and parts else ""
    return f"{text}. Each interval is taken by itself."


def _named(groups: list[str]) -> str:
    return listed(groups, MOST_NAMES) if len(groups) <= MOST_NAMES else counted(len(groups), "group")


def _sweep(study: Study, done: pd.DataFrame) -> list[Finding]:
    """Trials are chosen on tuning pairs; the report pairs only say what the choice is worth."""
    names = objectives(study)
    goals = {name: "min" if name in COSTS else "max" for name in names}
    try:
        table = best_trials(study.runs, goals)
    except InputError as error:
        return [Finding("Best trial", f"None: {error}.")]
    if table.empty:
        return [Finding("Best trial", "None: no trial finished with all its seeds.")]
    labels = dict(zip(done["trial"], done["group"], strict=True))
    if len(names) > 1:
        front = in_order([labels[trial] for trial in table["trial"]])
        words = f"{counted(len(front), 'trial')} on the Pareto front of {listed(names)}, judged on tuning pairs"
        return [Finding("Best trials", f"{words}: {listed(front, 4)}.")]
    best = table.iloc[0]
    column = objective_column(names[0])
    text = f"{labels[best['trial']]}: {column} {interval(names[0], best[column], float('nan'), float('nan'))}"
    if column != names[0] and names[0] in table:
        text += f"; on the report pairs {names[0]} {interval(names[0], best[names[0]], float('nan'), float('nan'))}"
    return [Finding("Best trial", f"{text}. {ONE_SEED if best['seeds'] < 2 else ''}".strip())]
