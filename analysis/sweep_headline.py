"""The headlines of sweeps and races: the best settings, how sure they are, and what would make that surer."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.groups import finished
from analysis.headline import Headline, command_words, difference_text
from analysis.stats import Estimate, shown_estimates, t_interval
from analysis.study import Study
from analysis.sweeps import (
    TRIALS_FOR_BEST,
    TRIALS_FOR_IMPORTANCE,
    objective,
    ranked_trials,
    settings_brief,
    settings_order,
    settings_words,
    sweep_constraints,
    sweep_contexts,
    sweep_goals,
    too_few,
    trial_runs,
    variant_rows,
)
from analysis.tables.references import SOURCE, reference_runs
from analysis.tables.sweep import NOT_BETTER, constraint_notes, knob_fields, nothing_beats_never
from analysis.tables.table import interval_cell
from cl2r.errors import InputError
from cl2r.metrics import BC, SERVICE_ACCURACY, STORED_BYTES, TRAIN_SECONDS, Metric
from cl2r.runtime.text import counted, duration, listed, size
from cl2r.study.constraints import CONFIRMED, DEFAULT, REFERENCE

MOST_CONTEXTS = 3  # that have a sentence each; of more, the middle one has


@dataclass(frozen=True)
class Context:
    """One context of a sweep: its rows, its whole trials, best first, and the best one, if any can be called so.

    `why` says why there is none.
    """

    label: str
    rows: pd.DataFrame
    ranked: pd.DataFrame
    best: Any = None
    why: str = ""

    def confirmed(self) -> list[Any]:
        """Return the trials with further seeds, best first."""
        again = set(variant_rows(self.rows, CONFIRMED)["trial"]) if "trial" in self.rows else set()
        return [trial for trial in self.ranked.index if trial in again]

    def shown(self, count: int = 3) -> list[Any]:
        """Return the trials to look at: the best and the confirmed ones, else the `count` best, of the feasible ones.

        If no trial is feasible, these are the ones that miss least.
        """
        met = self.ranked[self.ranked["miss"] <= 0]
        best = list((met if len(met) else self.ranked).index)
        again = [trial for trial in self.confirmed() if trial in best]
        return list(dict.fromkeys([*best[:1], *again])) if again else best[:count]

    def services(self, seeds: Sequence[int]) -> dict[str, pd.DataFrame]:
        """Return runs of `never upgrade` and `re-index` with these seeds; their labels name the method.

        They are ER's if the sweep has reference runs, else those of the best trial.
        """
        rows = variant_rows(self.rows, REFERENCE)
        rows = rows[finished(rows) & rows["seed"].isin(seeds)]
        if rows.empty and len(self.ranked):
            rows = trial_runs(self.rows, self.ranked.index[0])
        found = reference_runs(rows, SOURCE)
        return {str(name): own for name, own in found.groupby("method.name", sort=False)} if len(found) else {}


def sweep_results(study: Study) -> list[Context]:
    """Return the contexts of a sweep. Raise InputError if its trials cannot be ranked."""
    goals = sweep_goals(study.specification)
    found = []
    for label, rows in sweep_contexts(study.runs):
        ranked = ranked_trials(rows, goals, study.specification)
        best, why = (ranked.index[0] if len(ranked) else None), ""
        if ranked.empty:
            why = "no trial finished with all its seeds."
        elif not (ranked["miss"] <= 0).any():
            nearest = ranked["miss"].iloc[0]
            close = (
                f"; the nearest, trial {best}, misses it by {nearest:.3f} of the bound" if nearest < math.inf else ""
            )
            why = f"no trial met the constraint{close}."
        else:
            why = too_few(len(ranked))
        found.append(Context(label, rows, ranked, None if why else best, why))
    return found


def sweep_headline(study: Study, name: str) -> Headline:
    """Return the best settings of every context, and how sure they are."""
    goals = sweep_goals(study.specification)
    try:
        contexts, knobs = sweep_results(study), settings_order(knob_fields(study))
    except InputError as error:
        return Headline(name, f"No trial can be called the best: {error}.", "")
    shown = contexts if len(contexts) <= MOST_CONTEXTS else [contexts[len(contexts) // 2]]
    told = [own for own in shown if own.best is not None]
    few = [len(own.ranked) for own in contexts if own.best is None and (own.ranked["miss"] <= 0).any()]
    if len(goals) > 1 or len(told) < 2:
        write = _front if len(goals) > 1 else _settings
        sentences = [write(own, goals, knobs) for own in told]
    else:
        sentences = [_several(told, goals, knobs)]
    if len(few) == len(contexts) > 1:
        sentences.append(
            f"{_span(few)} trials{_each(contexts)} are too few to call one the best ({TRIALS_FOR_BEST} needed)."
        )
    else:
        sentences += [_unknown(own) for own in shown if own.why]
    left = len(contexts) - len(shown)
    sentences += [f"The other {counted(left, 'context')} are in the tables."] if left else []
    finding = " ".join(sentences)
    sure, command = _certainty(study, contexts, goals)
    return Headline(name, finding, sure, command, _remark(study, contexts))


def _span(counts: Sequence[int]) -> str:
    """Return `12`, or `9 to 12`."""
    return " to ".join(str(count) for count in sorted({min(counts), max(counts)}))


def _each(contexts: Sequence[Context]) -> str:
    """Return ` of each T` if there are several numbers of tasks; nothing if there is one context."""
    if len(contexts) < 2:
        return ""
    only = all(own.label.startswith("T=") and "," not in own.label for own in contexts)
    return " of each T" if only else " of each context"


def _unknown(context: Context) -> str:
    """Say why no trial of a context is called the best."""
    start = f"{context.label}{', ' if context.why[0].isdigit() else ': '}" if context.label else ""
    return start + (context.why if start else context.why[0].upper() + context.why[1:])


def _settings(context: Context, goals: Mapping[str, str], knobs: Sequence[str]) -> str:
    """Say which settings are best in a context, what they reach and cost, and what else could be done."""
    metric, own = objective(next(iter(goals))), trial_runs(context.rows, context.best)
    words = settings_words(own.iloc[0], knobs)
    serve, have = ("serves", "has") if len(knobs) == 1 else ("serve", "have")
    verb = f"{serve} best" if metric is SERVICE_ACCURACY else f"{have} the best {metric_word(metric)}"
    start = f"{context.label}: {words} {verb}" if context.label else f"{words} {verb}"
    values = [value_text(own, metric)]
    for other in (SERVICE_ACCURACY, BC):
        if other is not metric and other.name in own and own[other.name].notna().any():
            values.append(f"{other.head} {value_text(own, other)}")
    costs = {TRAIN_SECONDS: "of training", STORED_BYTES: "stored"}
    values += [f"{value_text(own, cost)} {word}" for cost, word in costs.items() if cost.name in own and cost != metric]
    beside = _beside(context, own, metric)
    ends = f"; {', '.join(f'{word} {value}' for word, value in beside.items())}" if beside else ""
    return f"{start}: {', '.join(values)}{ends}."


def _several(contexts: Sequence[Context], goals: Mapping[str, str], knobs: Sequence[str]) -> str:
    """Say which settings are best in each of several contexts, in one sentence, and what else could be done."""
    metric, values, others = objective(next(iter(goals))), [], []
    for context in contexts:
        own = trial_runs(context.rows, context.best)
        values.append(f"{value_text(own, metric)} at {context.label} ({settings_brief(own.iloc[0], knobs)})")
        others.append(_beside(context, own, metric))
    verb = "serve" if metric is SERVICE_ACCURACY else f"have {metric_word(metric)}"
    rest = [
        f"{name} {listed([found[name] for found in others])}"
        for name in others[0]
        if all(name in found for found in others)
    ]
    ends = f" {rest[0][0].upper()}{'; '.join(rest)[1:]}." if rest else ""
    return f"The best settings {verb} {'; '.join(values)}.{ends}"


def _beside(context: Context, own: pd.DataFrame, metric: Metric) -> dict[str, str]:
    """Return what the default settings, re-indexing and never upgrading reach with the same seeds."""
    seeds, found = own["seed"].tolist(), dict[str, str]()
    default = variant_rows(context.rows, DEFAULT)
    default = default[finished(default) & default["seed"].isin(seeds)]
    if len(default) and metric.name in default:
        found["the default reaches"] = value_text(default, metric).partition(" [")[0]
    services = [
        float(rows[SERVICE_ACCURACY.name].astype(float).mean())
        for rows in context.services(seeds).values()
        if metric is SERVICE_ACCURACY
    ]
    if services and not any(map(math.isnan, services)):
        never, again = services
        found["re-indexing would reach"] = f"{again:.3f}"
        found["never upgrading"] = f"{never:.3f}"
    return found


def value_text(runs: pd.DataFrame, metric: Metric) -> str:
    """Return the mean over the runs with its interval over seeds, or over pairs; a cost with its unit."""
    values = runs[metric.name].astype(float)
    if metric is STORED_BYTES:
        return size(values.mean())
    if metric is TRAIN_SECONDS:
        return duration(values.mean())
    row = shown_estimates(runs.assign(own=0), metric.name, ["own"]).iloc[0]
    return interval_cell(metric.name, row["mean"], row["low"], row["high"]).text


def metric_word(metric: Metric) -> str:
    """Return what a metric or a cost is called in a sentence."""
    return {STORED_BYTES.name: "storage", TRAIN_SECONDS.name: "training time"}.get(metric.name, metric.head)


def _front(context: Context, goals: Mapping[str, str], knobs: Sequence[str]) -> str:
    """Say between which trials a service may choose if there are several objectives."""
    metrics = [objective(name) for name in goals]
    front = list(context.ranked.index[context.ranked["front"]])  # best by the first objective first
    names, start = listed([metric_word(metric) for metric in metrics]), f"{context.label}: " if context.label else ""
    ends = []
    for trial in dict.fromkeys([front[0], front[-1]]):
        own = trial_runs(context.rows, trial)
        values = ", ".join(value_text(own, metric) for metric in metrics)
        ends.append(f"{values} ({settings_brief(own.iloc[0], knobs)})")
    count = f"{len(front)} of {counted(len(context.ranked), 'trial')} {'is' if len(front) == 1 else 'are'}"
    return f"{start}{count} on the Pareto front of {names}: {'from ' * (len(ends) > 1)}{' to '.join(ends)}."


def _certainty(study: Study, contexts: Sequence[Context], goals: Mapping[str, str]) -> tuple[str, str]:
    """Say how many trials and seeds the choice rests on, whether it beats the default, and how to be surer."""
    counts, each = [len(own.ranked) for own in contexts], _each(contexts)
    trials = f"{_span(counts)} finished trial{'' if max(counts) == 1 else 's'}"
    sentences = []
    if told := [own for own in contexts if own.best is not None]:
        confirmed = [len(own.confirmed()) for own in told]
        seeds = {*variant_rows(study.runs, CONFIRMED)["seed"]} if any(confirmed) else set()
        many = f"the best {max(confirmed)} were" if max(confirmed) > 1 else "one was"
        again = f"; {many} trained again with {counted(len(seeds), 'further seed')}"
        sentences = [f"Chosen on tuning pairs from {trials}{each}{again if seeds else ''}."]
        sentences += [_against_default(told, objective(next(iter(goals))))] if len(goals) == 1 else []
        one = not seeds and study.runs["seed"].nunique() == 1
        sentences += ["One seed: the best of many trials looks better than it is."] if one else []
    elif max(counts) >= TRIALS_FOR_BEST:
        sentences = [f"{trials}{each} were tried."]
    command, added, cost = more_trials(study, contexts)
    if command:
        outcome = "make this surer" if told else f"reach the {TRIALS_FOR_BEST} trials that a best one needs"
        outcome = outcome if told or min(counts) < TRIALS_FOR_BEST else "search further"
        sentences.append(f"{counted(added, 'more trial')}{each}{cost} would {outcome}.")
    return " ".join(filter(None, sentences)), command


def _against_default(contexts: Sequence[Context], goal: Metric) -> str:
    """Say whether the best settings are better than the preset's default, paired by seed."""
    gaps: dict[str, Estimate] = {}
    metric = goal if goal.compute is not None else SERVICE_ACCURACY
    for context in contexts:
        own, default = trial_runs(context.rows, context.best), variant_rows(context.rows, DEFAULT)
        if metric.name in own and len(default):
            both = [rows.set_index("seed")[metric.name].astype(float) for rows in (own, default)]
            gap = t_interval((both[0] - both[1]).dropna())
            gaps |= {context.label: gap} if gap.n > 1 else {}
    if not gaps:
        return ""
    seeds = counted(max(gap.n for gap in gaps.values()), "seed")
    if len(contexts) == 1:
        return f"Over {seeds} its {metric.head} differs {difference_text(next(iter(gaps.values())), 'the default')}."
    words = {"clearly better": [label for label, gap in gaps.items() if gap.low > 0]}
    words["clearly worse"] = [label for label, gap in gaps.items() if gap.high < 0]
    words["not clearly better"] = [label for label, gap in gaps.items() if gap.low <= 0 <= gap.high]
    parts = [f"{word} ({listed(labels)})" for word, labels in words.items() if labels]
    parts[0] = parts[0].replace(" (", " than the default (", 1)
    return f"Over {seeds}, the best settings are {listed(parts)}."


def _remark(study: Study, contexts: Sequence[Context]) -> str:
    """Return the constraints, with how many trials meet them, and where nothing beats never upgrading."""
    lines = []
    limits = sweep_constraints(study.specification)
    if limits and len(contexts) == 1:
        lines += constraint_notes(contexts[0].rows, contexts[0].ranked, study.specification)[: len(limits)]
    elif limits:
        wanted = listed([str(one).replace(one.metric.name, one.metric.head, 1) for one in limits])
        met, every = (
            sum(int((own.ranked["miss"] <= 0).sum()) for own in contexts),
            sum(len(own.ranked) for own in contexts),
        )
        lines.append(f"Only trials with {wanted} on the tuning pairs count: {met} of {every}.")
    never = [own.label for own in contexts if nothing_beats_never(own.rows, own.ranked)]
    if len(never) == len(contexts):
        lines.append(NOT_BETTER)
    elif never:
        lines.append(f"{listed(never)}: {NOT_BETTER[0].lower()}{NOT_BETTER[1:]}")
    return " ".join(lines)


def more_trials(study: Study, contexts: Sequence[Context]) -> tuple[str, int, str]:
    """Return the command that adds trials to every context, how many, and `, about 6 min,`.

    The texts are empty if the command or the time is not known.
    """
    words = command_words(study)
    tried = max(variant_rows(own.rows)["trial"].nunique() for own in contexts)
    if "--trials" not in words and not any(
        word in ("sweep", "sweep.py") or word.endswith("/sweep.py") for word in words
    ):
        return "", 0, ""
    goal = next((count for count in (TRIALS_FOR_BEST, TRIALS_FOR_IMPORTANCE) if tried < count), 2 * tried)
    command, added = shlex.join([*without(words, "--trials"), "--trials", str(goal)]), goal - tried
    tasks, taken = study.tasks, study.about.get("seconds") or 0
    if not {"run", "seconds", "reused"} <= set(tasks) or tasks.empty:
        return command, added, ""
    trained = tasks[~tasks["reused"].astype("boolean").fillna(False)]
    every = float(trained["seconds"].astype(float).sum())
    searched = float(trained.loc[trained["run"].isin(variant_rows(study.runs)["run"]), "seconds"].astype(float).sum())
    share = taken / every if every > 0 and taken else 1.0  # trials run side by side
    return command, added, f", about {duration(searched * share * added / max(tried, 1))}," if searched else ""


def without(words: Sequence[str], *options: str) -> list[str]:
    """Return the words of a command without these options and their values."""
    kept, skipped = [], False
    for word in words:
        skipped = word in options if word.startswith("--") else skipped
        kept += [] if skipped else [word]
    return kept


def race_headline(study: Study, name: str) -> Headline:
    """Return what a race recommends, and how sure that is; twice the time makes it surer."""
    from analysis.recommendation import NEVER_WOULD, ROUNDS, recommendation

    found, runs = recommendation(study), study.finished
    claim, _, doubt = found.sentence.partition("; ")
    if found.alike:  # their settings are in the table
        start, _, rest = doubt.partition(listed(list(found.alike)))
        alike = listed([name.partition(" with ")[0] for name in found.alike])
        more = rest.removeprefix("; ")
        doubt = f"{start}{alike}. {more[0].upper()}{more[1:]}" if more != rest else f"{start}{alike}{rest}"
    beside = [line for line in found.details if line.startswith(NEVER_WOULD)]
    finding = " ".join([f"{claim.rstrip('.,')}.", *beside])
    sentences = [f"{doubt[0].upper()}{doubt[1:]}"] if doubt else []
    rounds = {one: runs[runs["variant"] == one] for one in ROUNDS}
    counts = [f"{own['trial'].nunique()} in the {one} round" for one, own in rounds.items() if len(own)]
    last = rounds[ROUNDS[-1]]
    seeds = f", the last with {counted(last['seed'].nunique(), 'seed')}" if len(last) else ""
    sentences.append(f"Candidates: {listed(counts)}{seeds}.")
    remark = " ".join(line for line in found.details if line not in beside)
    words, hours = command_words(study), float(study.specification["race"]["hours"])
    if not any(word == "recommend" or word.endswith("recommend.py") for word in words):
        return Headline(name, finding, " ".join(sentences), remark=remark)
    command = shlex.join([*without(words, "--hours", "--name"), "--hours", f"{2 * hours:g}"])
    sentences.append(f"Twice the time, {2 * hours:g} h, tries more settings and adds seeds.")
    return Headline(name, finding, " ".join(sentences), command, remark)
