"""The headlines of sweeps and races: the best settings, how sure they are, and what would make that surer."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.groups import finished
from analysis.headline import Headline, command_words, difference_text, without
from analysis.stats import NO_SPREAD, Estimate, shown_estimates, t_interval
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
from analysis.tables.references import reference_runs
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

    def shown(self) -> list[Any]:
        """Return the trials to look at: the best and the confirmed ones, else the three best, of the feasible ones.

        If no trial is feasible, these are the ones that miss least.
        """
        met = self.ranked[self.ranked["miss"] <= 0]
        best = list((met if len(met) else self.ranked).index)
        again = [trial for trial in self.confirmed() if trial in best]
        return list(dict.fromkeys([*best[:1], *again])) if again else best[:3]

    def services(self, seeds: Sequence[int]) -> dict[str, pd.DataFrame]:
        """Return runs of `never upgrade` and `re-index` with these seeds; their labels name the method.

        They are ER's if the sweep has reference runs, else those of the best trial.
        """
        rows = variant_rows(self.rows, REFERENCE)
        rows = rows[finished(rows) & rows["seed"].isin(seeds)]
        if rows.empty and len(self.ranked):
            rows = trial_runs(self.rows, self.ranked.index[0])
        found = reference_runs(rows)
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
            nearest, several = 100 * ranked["miss"].iloc[0], len(sweep_constraints(study.specification)) > 1
            share = f"{nearest:,.0f} %" if nearest >= 10 else f"{nearest:.2g} %"
            missed = f"one by {share} of its bound" if several else f"it by {share} of the bound"
            close = f"; the nearest, trial {best}, misses {missed}" if nearest < math.inf else ""
            why = f"no trial met {'all constraints' if several else 'the constraint'}{close}."
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
        few_words = f"{_span(few, 'trial')}{_each(contexts)} {'is' if max(few) == 1 else 'are'} too few"
        sentences.append(f"{few_words} to call one the best ({TRIALS_FOR_BEST} needed).")
    else:
        sentences += [_unknown(own) for own in shown if own.why]
    left = len(contexts) - len(shown)
    sentences += [f"The other {counted(left, 'context')} are in the tables."] if left else []
    finding = " ".join(sentences)
    sure, command = _certainty(study, contexts, goals)
    return Headline(name, finding, sure, command, _remark(study, contexts))


def _span(counts: Sequence[int], word: str) -> str:
    """Return `1 trial`, or `9 to 12 trials`."""
    least, most = min(counts), max(counts)
    return f"{least} to {counted(most, word)}" if least < most else counted(most, word)


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
    values += [
        f"{value_text(own, cost)} {word}"
        for cost, word in costs.items()
        if cost != metric and cost.name in own and own[cost.name].notna().any()
    ]
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
    sentences = []
    if told := [own for own in contexts if own.best is not None]:
        tried = _span([len(own.ranked) for own in told], "finished trial")
        sentences = [f"Chosen on tuning pairs among {tried}{_each(told)}{_again(told)}."]
        sentences += [_against_default(told, objective(next(iter(goals))))] if len(goals) == 1 else []
        single = [own.label for own in told if len(trial_runs(own.rows, own.best)) == 1]
        where = f" at {listed(single)}" if len(single) < len(told) else ""
        sentences += [f"One seed{where}: the best of many trials looks better than it is."] if single else []
    elif max(counts) >= TRIALS_FOR_BEST:
        sentences = [f"{_span(counts, 'trial')}{each} finished."]
    command, added, cost = more_trials(study, contexts)
    if command:
        outcome = "make this surer" if told else f"reach the {TRIALS_FOR_BEST} trials that a best one needs"
        outcome = outcome if told or min(counts) < TRIALS_FOR_BEST else "search further"
        sentences.append(f"{counted(added, 'more trial')}{each}{cost} would {outcome}.")
    return " ".join(filter(None, sentences)), command


def _again(contexts: Sequence[Context]) -> str:
    """Say with how many further seeds the best trials were trained again; nothing if none was."""
    known: dict[str, int] = {}
    for own in contexts:
        found, searched = (trial_runs(rows, own.best) for rows in (own.rows, variant_rows(own.rows)))
        known |= {own.label: len(found) - len(searched)} if len(found) > len(searched) else {}
    if not known:
        return ""
    where = f" at {listed(list(known))}" if len(known) < len(contexts) else ""
    return f"; the best one{where} was trained again with {_span(list(known.values()), 'further seed')}"


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
    seeds = _span([gap.n for gap in gaps.values()], "seed")
    if len(contexts) == 1:
        return f"Over {seeds} its {metric.head} differs {difference_text(next(iter(gaps.values())), 'the default')}."
    spread = {label: gap for label, gap in gaps.items() if gap.note != NO_SPREAD}  # equal gaps allow no test
    words = {"clearly better": [label for label, gap in spread.items() if gap.low > 0]}
    words["clearly worse"] = [label for label, gap in spread.items() if gap.high < 0]
    told = {*words["clearly better"], *words["clearly worse"]}
    words["not clearly better"] = [label for label in gaps if label not in told]
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
