"""Trials of a sweep: their contexts, constraints and ranking, and the work saved. Rows with a variant are no trials.

Metrics of different contexts, such as numbers of tasks, are different quantities: each context is ranked by itself.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.groups import FREE, PLACES, check_name, config_fields, finished, short
from analysis.matrices import pareto_front
from analysis.names import field_title, title
from cl2r.errors import InputError
from cl2r.metrics import (
    AC,
    BC,
    FC,
    METRICS,
    REINDEXED_ACCURACY,
    SERVICE_ACCURACY,
    SERVICE_RECALL,
    STORED_BYTES,
    TRAIN_SECONDS,
    Metric,
)
from cl2r.runtime.text import counted, listed
from cl2r.study.constraints import CONFIRMED, DEFAULT, REFERENCE, Constraint

TRIALS_FOR_BEST = 10  # finished trials of a context; with fewer, none is called the best
TRIALS_FOR_IMPORTANCE = 20  # with fewer, the importance of parameters is not shown
BEST_SHARE, BEST_LEAST = 0.2, 3  # the best fifth of the trials, at least three, shows how sharp an optimum is
REPORTED = (SERVICE_ACCURACY, SERVICE_RECALL, REINDEXED_ACCURACY, AC, BC, FC)
"""Metrics on the report pairs that every table of trials has."""


def variant_rows(runs: pd.DataFrame, variant: str = "") -> pd.DataFrame:
    """Return the rows with this variant; without one, the trials.

    A trial at the point of a reference or of the preset has no run of its own: that row has the number of the trial.
    """
    if "variant" not in runs:
        return runs.iloc[: None if not variant else 0]
    variants = runs["variant"].astype(object).where(runs["variant"].notna(), "")
    if variant or "trial" not in runs:
        return runs[variants == variant]
    return runs[(variants == "") | (runs["trial"].notna() & variants.isin([REFERENCE, DEFAULT]))]


def context_fields(runs: pd.DataFrame) -> list[str]:
    """Return the fields of the scenario, the data and the evaluation in which the runs of a sweep differ."""
    from cl2r.study.space import is_context  # Optuna takes a while to import, and few studies are sweeps

    # References count too: they begin before the trials of their context.
    names = [name for name in config_fields(runs) if is_context(name) and name not in (*PLACES, *FREE)]
    return [name for name in names if runs[name].nunique(dropna=False) > 1]


def sweep_contexts(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return all rows of each context, with a label such as `T=5`; one context has no label."""
    fields = context_fields(runs)
    if not fields:
        return [("", runs)]
    groups = runs.groupby(fields, dropna=False, sort=True)
    labels = (", ".join(f"{field_title(n)}={short(v)}" for n, v in zip(fields, key, strict=True)) for key, _ in groups)
    return [(label, runs.loc[rows.index]) for label, (_, rows) in zip(labels, groups, strict=True)]


def sweep_goals(specification: Mapping[str, Any]) -> dict[str, str]:
    """Return the direction of each objective in the specification of a sweep, `max` or `min`."""
    names = (specification.get("search") or {}).get("objectives") or [BC.name]
    return {str(name): objective(str(name)).direction[:3] for name in names}


def objective(name: str) -> Metric:
    """Return the metric that a sweep optimises under this name."""
    known = METRICS.objectives()
    check_name(name, list(known), "objective")
    return known[name]


def objective_column(name: str) -> str:
    """Return the column that trials are judged by: a cost, or a metric on the tuning pairs."""
    return objective(name).column("tuning")


def sweep_constraints(specification: Mapping[str, Any] | None) -> list[Constraint]:
    """Return the constraints of a sweep; studies that are older than constraints have none."""
    entries = ((specification or {}).get("search") or {}).get("constraints") or {}
    return [Constraint.parse(str(metric), str(text)) for metric, text in entries.items()]


def reference_value(runs: pd.DataFrame, constraint: Constraint, seeds: Sequence[int]) -> float:
    """Return the reference's mean over these seeds in the rows of one context; NaN if a seed is missing."""
    if constraint.reference is None or constraint.column not in runs:
        return math.nan
    rows = variant_rows(runs, REFERENCE)
    rows = rows[finished(rows) & (rows["method.name"] == constraint.reference) & rows["seed"].isin(seeds)]
    values = rows.drop_duplicates("seed")[constraint.column].astype(float)
    return float(values.mean(skipna=False)) if len(values) == len(set(seeds)) else math.nan


def feasible(runs: pd.DataFrame, specification: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row per trial: how far it misses each constraint, 0 or less if it meets it, ∞ if that is not known.

    A trial is judged by its mean over seeds on the tuning pairs, a reference by its mean over the same seeds in that
    context.
    """
    constraints = sweep_constraints(specification)
    found: dict[Any, list[float]] = {}
    for _, rows in sweep_contexts(runs):
        trials = variant_rows(rows)
        for trial, own in trials.groupby("trial"):
            ended = own[finished(own)]
            values = []
            for constraint in constraints:
                known = ended[constraint.column].astype(float) if constraint.column in ended else pd.Series(dtype=float)
                reference = reference_value(rows, constraint, ended["seed"].tolist())
                values.append(constraint.violation(float(known.mean(skipna=False)), reference))
            found[trial] = values
    names = [str(constraint) for constraint in constraints]
    table = pd.DataFrame(list(found.values()), index=pd.Index(list(found), name="trial"), columns=names, dtype=float)
    return table.sort_index()


def ranked_trials(
    runs: pd.DataFrame, objectives: Mapping[str, str], specification: Mapping[str, Any] | None = None
) -> pd.DataFrame:
    """Return the whole trials of one context by their number, best first, those that miss a constraint last.

    A trial is whole if all its runs finished, and if it has as many as the largest trial: else it is still running.
    Columns are the means of the objectives over seeds, `miss` (the largest violation of a constraint; −∞ without
    constraints) and `front`, whether it is feasible and no feasible trial is better in all objectives. The first
    objective sorts feasible trials, `miss` the others.
    """
    if not objectives:
        raise InputError("best_trials needs an objective, e.g. {'BC': 'max'}")
    columns = {}
    for name, goal in objectives.items():
        column = objective_column(name)
        check_name(goal, ("max", "min"), f"direction of {name}")
        if column not in runs:
            raise InputError(f"no column {column!r}: trials are chosen on tuning pairs, and none were evaluated")
        columns[column] = goal
    check_name("trial", runs.columns, "column")
    if fields := context_fields(runs):
        raise InputError(
            f"trials differ in {', '.join(fields)} and cannot be ranked in one list; select one value first"
        )
    trials = variant_rows(runs)
    sizes = trials.groupby("trial")["trial"].transform("size")
    whole = trials[finished(trials).groupby(trials["trial"]).transform("all") & (sizes == sizes.max())]
    whole = whole[whole[list(columns)].notna().all(axis=1).groupby(whole["trial"]).transform("all")]
    means = whole.astype(dict.fromkeys(columns, float)).groupby("trial")[list(columns)].mean()
    missed = feasible(runs, specification or {}).reindex(means.index)
    means = means.assign(miss=missed.max(axis=1) if len(missed.columns) else -math.inf)
    costs = means[list(columns)] * [-1.0 if goal == "max" else 1.0 for goal in columns.values()]
    met = means["miss"] <= 0
    front = pd.Series(False, means.index)
    if met.any():
        front[met] = pareto_front(costs[met].to_numpy(dtype=float))
    order = pd.DataFrame({"miss": means["miss"].where(~met, -math.inf), "cost": costs[next(iter(columns))]})
    ranked: pd.DataFrame = means.assign(front=front).loc[order.sort_values(["miss", "cost"], kind="stable").index]
    return ranked


def best_trials(
    runs: pd.DataFrame,
    objectives: Mapping[str, str],
    count: int = 5,
    specification: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Return the `count` best trials of one context, e.g. by {"BC": "max"}; by several objectives, the Pareto front.

    Trials are compared by their means over seeds on the tuning pairs. With the study's specification, trials that miss
    one of its constraints are left out; if all do, those that miss least are returned. `ranked_trials` says which
    trials are candidates. Columns are the fields that vary over trials, then metrics on the report pairs, objectives
    and costs with their deviations, and `miss`, how far the trial misses a constraint (above 0), if there is one.
    """
    ranked = ranked_trials(runs, objectives, specification)
    chosen = ranked.index[:count]
    if (ranked["miss"] <= 0).any():
        kept = ranked[ranked["miss"] <= 0] if len(objectives) == 1 else ranked[ranked["front"]]
        chosen = kept.index[: count if len(objectives) == 1 else None]
    rows = variant_rows(runs)
    table = trial_settings(rows)
    groups = rows[rows["trial"].isin(chosen)].groupby("trial")
    table = table.loc[chosen].assign(seeds=groups.size())
    names = [metric.name for metric in REPORTED if metric.name in rows]
    names += [objective_column(name) for name in objectives]
    names += [metric.name for metric in (STORED_BYTES, TRAIN_SECONDS) if metric.name in rows]
    for name in dict.fromkeys(names):
        table = table.assign(**{name: groups[name].mean(), f"{name}_sd": groups[name].std()})
    if sweep_constraints(specification):
        table = table.assign(miss=ranked["miss"])
    return table.reset_index()


def trial_settings(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the fields in which trials differ, by trial."""
    first = trials.drop_duplicates("trial").set_index("trial")
    varied = [name for name in config_fields(first) if name != "variant" and first[name].nunique(dropna=False) > 1]
    return first[varied]


def trial_runs(runs: pd.DataFrame, trial: Any) -> pd.DataFrame:
    """Return the finished runs of a trial, one per seed, those that confirm it among them; they have no variant."""
    rows = pd.concat([variant_rows(runs), variant_rows(runs, CONFIRMED)])
    rows = rows[(rows["trial"] == trial).fillna(False) & finished(rows)]
    found: pd.DataFrame = rows.drop(columns="variant", errors="ignore").drop_duplicates("seed").sort_values("seed")
    return found


def settings_brief(row: Mapping[str, Any] | pd.Series, fields: Sequence[str]) -> str:
    """Return settings in few letters, e.g. `λ_base 3.2, memory 12`."""
    texts = {name: f"{row[name]:.3g}" if isinstance(row[name], float) else short(row[name]) for name in fields}
    return ", ".join(
        title(text) if name == "method.name" else f"{field_title(name)} {text}" for name, text in texts.items()
    )


def settings_words(row: Mapping[str, Any] | pd.Series, fields: Sequence[str]) -> str:
    """Return settings in words, e.g. `λ_base 3.2 and 12 images per class`; the method is first, the memory last."""
    words = []
    for name in settings_order(fields):
        value = row[name]
        text = f"{value:.3g}" if isinstance(value, float) else short(value)
        if name == "method.name":
            words.append(title(text))
        elif name == "memory.per_class":
            words.append(f"{text} image{'' if value == 1 else 's'} per class")
        else:
            words.append(f"{field_title(name)} {text}")
    return listed(words)


def settings_order(fields: Sequence[str]) -> list[str]:
    """Return fields in the order in which sentences and panels have them: the method, its settings, the memory."""
    return sorted(fields, key=lambda name: (name != "method.name", name.startswith("memory.")))


def best_part(ranked: pd.DataFrame) -> list[Any]:
    """Return the best fifth of the feasible ones among ranked trials, at least three if there are."""
    met = ranked.index[ranked["miss"] <= 0]
    return list(met[: max(BEST_LEAST, math.ceil(BEST_SHARE * len(met)))])


def too_few(count: int) -> str:
    """Return a sentence if there are too few finished trials to call one of them the best."""
    if count >= TRIALS_FOR_BEST:
        return ""
    return f"{counted(count, 'trial')}: too few to call one the best ({TRIALS_FOR_BEST} needed)."


def saved_work(runs: pd.DataFrame) -> str:
    """Return how many tasks early stopping saved, in words; nothing if no trial was stopped.

    A stopped run saved the tasks that finished runs of its context have and it has not.
    """
    if "status" not in runs or "trial" not in runs:
        return ""
    trials, stopped, saved, whole = 0, 0, 0, 0
    for _, rows in sweep_contexts(runs):
        own = variant_rows(rows)
        early = own[own["status"] == "pruned"]
        tasks = own.loc[finished(own), "tasks"].max()
        length = int(own["scenario.n_tasks"].max() if pd.isna(tasks) and "scenario.n_tasks" in own else tasks or 0)
        trials += int(own["trial"].nunique())
        stopped += int(early["trial"].nunique())
        saved += int((length - early["tasks"].fillna(0).astype(float)).clip(lower=0).sum())
        whole += length * int(own["status"].isin(["finished", "pruned"]).sum())
    if not stopped:
        return ""
    were = "was" if stopped == 1 else "were"
    share = f" ({saved / whole:.0%})".replace("%", " %") if whole else ""
    return f"{stopped} of {counted(trials, 'trial')} {were} stopped early, which saved {saved} of {whole} tasks{share}."


def link_counts(rows: pd.DataFrame, tasks: pd.DataFrame) -> tuple[int, int]:
    """Return the links that these runs trained, and those that they would have trained without sharing any."""
    if not {"run", "key", "reused"} <= set(tasks):
        return 0, 0
    own = tasks[tasks["run"].isin(rows["run"])]
    fresh = own[~own["reused"].astype("boolean").fillna(False).to_numpy(dtype=np.bool_)]
    return int(fresh["key"].nunique()), len(own)
