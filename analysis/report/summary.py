"""The status of the study, and what tests say beyond its headline."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import pandas as pd

from analysis.comparisons import comparable_sets, paired_differences
from analysis.groups import finished
from analysis.stats import NO_SPREAD, summarise
from analysis.study import Study
from analysis.tables.table import interval_cell, signed
from cl2r.errors import InputError
from cl2r.metrics import AC, BC, METRICS, SERVICE_ACCURACY
from cl2r.runtime.text import counted, duration, listed

Kind = Literal["good", "running", "incomplete", "bad"]


@dataclass(frozen=True)
class StudyStatus:
    """The status in words, its colour (`kind`), and when the study ran."""

    status: str
    kind: Kind
    times: str


def study_status(study: Study, live: Sequence[str], refresh: float | None = None) -> StudyStatus:
    """Return the status. Frames do not show whether the study is running: `live` and `refresh` do."""
    done, expected = len(study.runs), study.about.get("expected_runs")
    lost = int((~finished(study.runs)).sum())
    running, missing = bool(live) or refresh is not None, expected is not None and done < expected
    if running:
        status = f"running: {done} of {expected} runs ended" if expected else f"running: {counted(done, 'run')} ended"
    elif missing:
        status = f"incomplete: {done} of {expected} runs"
    else:
        status = "finished" if done - lost else "no run finished"
    kind: Kind = "running" if running else "incomplete" if missing else "bad" if lost or not done else "good"
    states = study.runs["status"].tolist() if "status" in study.runs else []
    for state, word in (("failed", "failed"), ("pruned", "stopped")):
        status += f", {states.count(state)} {word}" if state in states else ""
    about = study.about
    began, ended = moment(about.get("began")), moment(about.get("ended"))
    times = [f"began {began}"] if began else []
    times += [f"ended {ended}"] if ended and not running else []
    times += [f"took {duration(about['seconds'])}"] if about.get("seconds") and not running else []
    return StudyStatus(status, kind, ", ".join(times))


def moment(text: Any) -> str:
    """Return an ISO 8601 time to the minute in UTC; other texts as they are."""
    if not text:
        return ""
    try:
        when = datetime.fromisoformat(str(text))
    except ValueError:
        return str(text)
    when = when.astimezone(UTC) if when.tzinfo else when
    return f"{when:%Y-%m-%d %H:%M}{' UTC' if when.tzinfo else ''}"


MOST_SETS = 4
MOST_NAMES = 9  # groups in a sentence; more are counted
ONE_SEED = "One seed: no interval, no test."


@dataclass(frozen=True)
class Finding:
    """One or two sentences under a heading."""

    word: str
    text: str


def findings(study: Study, runs: pd.DataFrame) -> list[Finding]:
    """Return what the tests say beyond the headline; `runs` have their `group`."""
    done = runs[finished(runs)]
    found = [Finding("Runs", _outcome(runs, study.about.get("expected_runs")))]
    if len(done) and not (study.specification.get("race") or study.specification.get("space")):
        found += _grid(done)
    return found


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
    found: list[Finding] = []
    for words, runs in sets[:MOST_SETS]:
        place = f" ({words})" if words else ""
        for metric in (SERVICE_ACCURACY, BC, AC):
            if _known(runs, metric.name):
                word = metric.head[0].upper() + metric.head[1:]
                found.append(Finding(word + place, _best(runs, metric.name)))
        if _known(runs, BC.name) and (text := _signs(runs)):
            found.append(Finding(f"Sign of BC{place}", text))
    if len(sets) > MOST_SETS:
        found.append(Finding("More", f"{len(sets) - MOST_SETS} more settings are in the tables."))
    if not any(_known(runs, BC.name) for _, runs in sets):
        found.append(Finding("AC, BC, FC", "Not defined: a chain of one task has no older model."))
    return found


def _known(runs: pd.DataFrame, metric: str) -> bool:
    return metric in runs and bool(runs[metric].notna().any())


def _best(runs: pd.DataFrame, metric: str) -> str:
    """Return the best group, the next one, and a paired test of their difference."""
    table = summarise(runs, metric, ["group"]).dropna(subset=["mean"])
    table = table.sort_values("mean", ascending=False, kind="stable")
    rows = table[["mean", "low", "high"]].itertuples(index=False, name=None)
    values = [interval_cell(metric, *row).text for row in rows]
    equal = int((table["mean"] >= table["mean"].iloc[0] - 1e-9).sum())
    groups, n, agree = [str(name) for name in table.index], table["n"].iloc[0], table["note"].iloc[0]
    over = f" (the same for all {n} seeds)." if agree else f" (95 % t-interval over {n} seeds)."
    value = values[0] + (f". {ONE_SEED}" if n < 2 else over)
    if len(table) == 1:
        return f"{groups[0]}: {value}"
    if equal == len(table):
        return f"All groups are equal: {value}"
    text = f"{_named(groups[:equal])} {'is' if equal == 1 else 'are'} highest with {value}"
    text += f" Next is {groups[equal]} with {values[equal]}."
    return text if table["n"].max() < 2 else f"{text} {_test(runs, metric, groups[0], groups[equal])}"


def _test(runs: pd.DataFrame, metric: str, best: str, second: str) -> str:
    """Test the best group against all others; corrected, because it was selected on the same data."""
    try:
        tests = paired_differences(runs, metric, ("group",), baseline=best)
    except InputError as error:
        return f"No test: {error}."
    row = tests[tests["one"] == second].iloc[0]
    if row["n"] < 2:
        return f"No test: {counted(int(row['n']), 'common seed')}."
    if row["verdict"] == NO_SPREAD:
        return f"No test: all {row['n']} seeds have the same difference, {signed(BC.name, -row['difference'])}."
    most = METRICS[metric].bounds[1]
    ends = interval_cell(BC.name, -row["difference"], max(-row["high"], -most), min(-row["low"], most)).text
    made = int(tests["p"].notna().sum())
    p = "<\u00a00.001" if row["p_corrected"] < 0.001 else f"=\u00a0{row['p_corrected']:.3f}"
    p += f" after Holm's correction for {made} comparisons" if made > 1 else ""
    verdict = {"worse": "the difference is significant", "better": "on these seeds the order is reversed"}
    outcome = verdict.get(str(row["verdict"]), "the difference is not significant")
    return f"Paired over {row['n']} common seeds, the difference is {ends}, p\u00a0{p}: {outcome}."


def _signs(runs: pd.DataFrame) -> str:
    """Return which groups have BC on one side of 0 by their interval; an interval of width 0 does not count."""
    table = summarise(runs, BC.name, ["group"])
    table = table[table["note"] == ""]
    if table.empty:
        return ""
    above, below = ([str(name) for name in table.index[side]] for side in (table["low"] > 0, table["high"] < 0))
    parts = [f"above 0 for {_named(above)}"] if above else []
    parts += [f"below 0 for {_named(below)}"] if below else []
    open_ = len(table) - len(above) - len(below)
    text = f"The t-interval lies {' and '.join(parts)}" if parts else "No t-interval lies on one side of 0"
    text += f"; for {counted(open_, 'group')} it includes 0" if open_ and parts else ""
    return f"{text}. Intervals are not corrected for many comparisons."


def _named(groups: list[str]) -> str:
    return listed(groups, MOST_NAMES) if len(groups) <= MOST_NAMES else counted(len(groups), "group")
