"""Tables of a sweep: the best trials of each context, the best by context, and what further seeds confirm."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.comparisons import paired_differences
from analysis.groups import finished, short
from analysis.names import field_title, metric_of, title
from analysis.stats import t_interval
from analysis.study import Study
from analysis.sweeps import (
    REPORTED,
    best_part,
    best_trials,
    link_counts,
    objective,
    objective_column,
    ranked_trials,
    reference_value,
    sweep_constraints,
    sweep_contexts,
    sweep_goals,
    too_few,
    trial_settings,
    variant_rows,
)
from analysis.tables.references import NOTE, SOURCE, reference_runs
from analysis.tables.runs import counted_runs, undefined_notes, with_references
from analysis.tables.table import (
    EMPTY,
    Cell,
    Table,
    deviation_note,
    field_cell,
    interval_cell,
    marked_table,
    metric_cell,
    number_cell,
)
from cl2r.errors import InputError
from cl2r.metrics import REINDEXED_ACCURACY, SERVICE_ACCURACY, SERVICE_RECALL, STORED_BYTES, TRAIN_SECONDS
from cl2r.runtime.text import listed
from cl2r.study.constraints import CONFIRMED, DEFAULT, REFERENCE

NOT_BETTER = "No trial serves better than never upgrading: keep the first model, or re-index."
CHOSEN = "Chosen on the tuning pairs; the values on the report pairs played no part in the choice."
COST_HEADS = {STORED_BYTES.name: "stored MB", TRAIN_SECONDS.name: "training s"}


def trials_tables(runs: pd.DataFrame, specification: Mapping[str, Any], count: int = 5) -> list[Table]:
    """Return the best trials of each context."""
    goals = sweep_goals(specification)
    return [trials_table(rows, goals, count, specification, label) for label, rows in sweep_contexts(runs)]


def trials_table(
    runs: pd.DataFrame,
    objectives: Mapping[str, str],
    count: int = 5,
    specification: Mapping[str, Any] | None = None,
    label: str = "",
) -> Table:
    """Return the best trials of one context, mean ± deviation over seeds, then `never upgrade` and `re-index`.

    Nothing is marked: no choice is made on report pairs.
    """
    frame = best_trials(runs, objectives, count, specification)
    ranked = ranked_trials(runs, objectives, specification)
    names = [name for name in frame.columns if name != "miss" and ("." in name or not name.endswith("_sd"))]
    body = [[_trial_cell(row, name) for name in names] for _, row in frame.astype(object).iterrows()]
    notes = [CHOSEN, *constraint_notes(runs, ranked, specification)]
    notes += [too_few(len(ranked))] if len(ranked) else []
    notes += [deviation_note(frame["seeds"])] if frame["seeds"].any() else []
    data, below = frame, service_references(runs, ranked)
    if len(body) and len(below):
        means = below.groupby("method.name", sort=False)
        rows = pd.DataFrame({"trial": list(means.groups), "seeds": means.size().tolist()})
        for name in [name for name in names if metric_of(name) in REPORTED and name in below]:
            measured = below[name].astype(float).groupby(below["method.name"], sort=False)
            rows = rows.assign(**{name: measured.mean().tolist(), f"{name}_sd": measured.std().tolist()})
        rows = rows.drop(columns=[objective_column(name) for name in objectives], errors="ignore")
        data = with_references(frame, rows)
        for _, row in rows.astype(object).iterrows():
            body.append([_trial_cell(row, name) if name in row else Cell(EMPTY) for name in names])
        notes += [NOTE, NOT_BETTER if nothing_beats_never(runs, ranked) else ""]
    notes += undefined_notes(counted_runs(variant_rows(runs)))
    words = " and ".join(objective(name).head for name in objectives)
    heading = f"Best trials by {words}" if len(objectives) == 1 else f"Pareto front of {words}"
    heads = [_head(name) for name in names]
    heading += f", {label}" if label else ""
    methods = runs["method.name"].astype(str) if "method.name" in names else ()
    count = len(body) - len(frame)
    return marked_table(heads, body, data, heading, (), *notes, references=count, methods=methods)


def _head(name: str) -> str:
    metric = metric_of(name)
    if metric is None:
        return "method" if name == "method.name" else field_title(name) if "." in name else name
    return COST_HEADS.get(name) or metric.head + (", tuning" if name.startswith("tuning_") else "")


def _trial_cell(row: pd.Series, name: str) -> Cell:
    mean, deviation = row[name], row.get(f"{name}_sd", np.nan)
    if f"{name}_sd" not in row:
        return Cell(title(mean)) if name == "method.name" else field_cell(mean)
    if name in COST_HEADS:
        unit, form = (1e6, ",.2f") if name == STORED_BYTES.name else (1.0, ",.0f")
        return number_cell(mean / unit, form)
    return metric_cell(name, mean, deviation)


def constraint_notes(runs: pd.DataFrame, ranked: pd.DataFrame, specification: Mapping[str, Any] | None) -> list[str]:
    """Return each constraint with its bound in one context, and whether no trial met it."""
    seeds = sorted(set(variant_rows(runs).query("trial in @ranked.index")["seed"])) if len(ranked) else []
    notes = []
    for constraint in sweep_constraints(specification):
        wanted = str(constraint).replace(constraint.metric.name, constraint.metric.head, 1)
        if constraint.reference is not None:
            bound = constraint.bound(reference_value(runs, constraint, seeds))
            known = (
                f" = {bound:.3f}" if not math.isnan(bound) else ", which is not known: not all of its seeds finished"
            )
            wanted += known if seeds else ""
        pairs = "" if constraint.metric.compute is None else " (tuning pairs)"
        notes.append(f"Only trials with {wanted}{pairs} count.")
    if notes and len(ranked) and not (ranked["miss"] <= 0).any():
        which = "the constraint" if len(notes) == 1 else "the constraints"
        notes.append(f"No trial met {which}; shown are those that miss least. None of them is a best trial.")
    return notes


def service_references(runs: pd.DataFrame, ranked: pd.DataFrame) -> pd.DataFrame:
    """Return `never upgrade` and `re-index` in one context, over the seeds of its trials.

    They are those of the reference runs, ER if there are several methods; without any, those of the first trial.
    """
    trials = variant_rows(runs)
    rows = variant_rows(runs, REFERENCE)
    rows = rows[finished(rows) & rows["seed"].isin(trials["seed"])] if len(rows) else rows
    if rows.empty:
        rows = trials[trials["trial"].isin(ranked.index[:1])]
    return reference_runs(rows)


def nothing_beats_never(runs: pd.DataFrame, ranked: pd.DataFrame) -> bool:
    """Return whether the first model alone serves at least as well as every feasible trial (report pairs).

    If no trial is feasible there is nothing to compare.
    """
    name, below = SERVICE_ACCURACY.name, service_references(runs, ranked)
    if below.empty or name not in runs:
        return False
    never = float(below.loc[below["method.name"] == below["method.name"].iloc[0], name].mean())
    trials = variant_rows(runs)
    kept = trials[trials["trial"].isin(ranked.index[ranked["miss"] <= 0])]
    served = kept[name].astype(float).groupby(kept["trial"]).mean()
    return len(kept) > 0 and not math.isnan(never) and not (served > never).any()


def best_by_context(study: Study) -> Table:
    """Return one row per context: the best feasible trial, the knobs of the best fifth, and links trained.

    Raise InputError if the study is no sweep.
    """
    rows, body = [], []
    for label, summary in context_summaries(study).items():
        rows.append({"context": label} | {name: value for name, value in summary.items() if name != "cells"})
        body.append([Cell(label or "all"), *summary["cells"]])
    knobs = knob_fields(study)
    scores = [metric for metric in (SERVICE_ACCURACY, SERVICE_RECALL, REINDEXED_ACCURACY) if metric.name in study.runs]
    heads = ["context", "trials", "feasible", "best trial"]
    for name in knobs:
        heads += [field_title(name), f"{field_title(name)}, best fifth"]
    heads += [*(metric.head for metric in scores), "links trained", "without sharing"]
    goals = " and ".join(objective(name).head for name in sweep_goals(study.specification))
    notes = [
        f"Best by {goals} on the tuning pairs; metrics of the best trial on the report pairs.",
        "Best fifth: median [lowest, highest] of the best fifth of the feasible trials, at least 3.",
        "Links trained: those of all runs of the context; without sharing, every run would train all its tasks.",
    ]
    few = [row["trials"] for row in rows if too_few(row["trials"])]
    notes += [too_few(min(few))] if few else []
    return marked_table(heads, body, pd.DataFrame(rows), "Best trial by context", (), *notes)


def knob_fields(study: Study) -> list[str]:
    """Return the fields that the search chose. Raise InputError if the study is no sweep."""
    from cl2r.study.space import is_context  # imports Optuna

    space = study.specification.get("space")
    if not space or "trial" not in study.runs:
        raise InputError(f"study {study.name} is no sweep")
    return [name for name in space if not is_context(name) and name in study.runs]


def context_summaries(study: Study) -> dict[str, dict[str, Any]]:
    """Return by context the values behind a row of `best_by_context`, and its `cells`."""
    knobs, goals = knob_fields(study), sweep_goals(study.specification)
    found: dict[str, dict[str, Any]] = {}
    for label, rows in sweep_contexts(study.runs):
        ranked = ranked_trials(rows, goals, study.specification)
        met = ranked.index[ranked["miss"] <= 0]
        trials = variant_rows(rows)
        settings = trials.drop_duplicates("trial").set_index("trial")
        best, part = (met[0] if len(met) else None), best_part(ranked)
        values: dict[str, Any] = {"trials": len(ranked), "feasible": len(met), "best_trial": best}
        cells = [field_cell(len(ranked)), field_cell(len(met)), field_cell(best)]
        for name in knobs:
            own = settings.loc[part, name]
            values[name] = None if best is None else settings.loc[best, name]
            cells.append(field_cell(values[name]))
            numbers = pd.to_numeric(own, errors="coerce").astype(float)
            if len(own) and numbers.notna().all() and own.dtype != bool:
                ends = {"median": numbers.median(), "low": numbers.min(), "high": numbers.max()}
                values |= {f"{name}_{end}": value for end, value in ends.items()}
                middle, low, high = map(short, ends.values())
                cells.append(Cell(f"{middle} [{low}, {high}]", float(ends["median"])))
            else:
                cells.append(Cell(listed(list(dict.fromkeys(map(short, own)))) if len(own) else EMPTY))
        for metric in (SERVICE_ACCURACY, SERVICE_RECALL, REINDEXED_ACCURACY):
            if metric.name in trials:
                measured = trials.loc[trials["trial"] == best, metric.name].astype(float) if best is not None else []
                mean = float(np.mean(measured)) if len(measured) else math.nan
                values[metric.name] = mean
                cells.append(metric_cell(metric.name, mean, math.nan))
        values["links_trained"], values["links_without_sharing"] = link_counts(rows, study.tasks)
        cells += [field_cell(values["links_trained"]), field_cell(values["links_without_sharing"])]
        found[label] = {**values, "cells": cells}
    return found


def confirmation_tables(study: Study) -> list[Table]:
    """Return one table per context with confirmed trials, over all their seeds, beside the references and the default.

    Means have 95 % t-intervals over seeds; differences of service accuracy are paired by seed.
    """
    return [
        _confirmation_table(rows, label)
        for label, rows in sweep_contexts(study.runs)
        if len(variant_rows(rows, CONFIRMED))
    ]


def _confirmation_table(runs: pd.DataFrame, label: str) -> Table:
    confirmed = variant_rows(runs, CONFIRMED)
    searched = variant_rows(runs)
    fields = trial_settings(searched).columns
    parts: dict[str, pd.DataFrame] = {}
    for trial, rows in confirmed.groupby("trial", sort=True):
        own = pd.concat([searched[searched["trial"] == trial], rows])
        texts = {name: short(own[name].iloc[0]) for name in fields}
        words = [
            title(text) if name == "method.name" else f"{field_title(name)}={text}" for name, text in texts.items()
        ]
        point = ", ".join(words)
        parts[f"trial {trial}" + (f" ({point})" if point else "")] = own
    references = variant_rows(runs, REFERENCE)
    for method, rows in references.groupby("method.name", sort=False):
        parts[title(str(method))] = rows
    if len(default := variant_rows(runs, DEFAULT)):
        parts["default"] = default
    every = pd.concat([rows.assign(group=name) for name, rows in parts.items()], ignore_index=True)
    every = every[finished(every)].drop(columns="variant").drop_duplicates(["group", "seed"])
    metrics = [metric for metric in REPORTED if metric.name in every and every[metric.name].notna().any()]
    score = (SERVICE_ACCURACY if SERVICE_ACCURACY in metrics else metrics[0]) if metrics else None
    others = [name for name in (title(SOURCE), "default") if name in set(every["group"])] if score else []
    tests = {
        other: paired_differences(every, score.name, ("group",), baseline=other).set_index("one")
        for other in others
        if score is not None
    }
    body, data = [], []
    for name in parts:
        own = every[every["group"] == name]
        row: dict[str, Any] = {"run": name, "seeds": len(own)}
        cells = [Cell(name), field_cell(len(own))]
        for metric in metrics:
            found = t_interval(own[metric.name].astype(float))
            low, high = np.clip([found.low, found.high], *metric.bounds)
            row |= {metric.name: found.mean, f"{metric.name}_low": low, f"{metric.name}_high": high}
            cells.append(interval_cell(metric.name, found.mean, low, high))
        for other, test in tests.items():
            named = {"difference": f"minus_{other}", "low": f"minus_{other}_low", "high": f"minus_{other}_high"}
            found_ends = test.rename(columns=named).reindex([name])[list(named.values())].astype(float).iloc[0]
            row |= dict(zip(named.values(), found_ends, strict=True))
            mean, low, high = found_ends.tolist()
            cells.append(Cell(EMPTY) if math.isnan(mean) else interval_cell("BC", mean, low, high))
        body.append(cells)
        data.append(row)
    columns = ["runs", "seeds", *(metric.head for metric in metrics)]
    columns += [f"{score.head} − {other}" for other in tests if score is not None]
    chosen = listed([str(seed) for seed in sorted(set(searched["seed"]))])
    fresh = listed([str(seed) for seed in sorted(set(confirmed["seed"]))])
    word = "Seed" if searched["seed"].nunique() == 1 else "Seeds"
    notes = [
        "Report pairs. Brackets: 95 % t-interval of the mean over seeds; differences are paired by seed.",
        f"{word} {chosen} chose the trials, on tuning pairs, and counts too, so that gains are somewhat optimistic; "
        f"new: {fresh}. Differences are not corrected for their number.",
    ]
    heading = "Confirmation with further seeds" + (f", {label}" if label else "")
    return marked_table(columns, body, pd.DataFrame(data), heading, (), *notes)
