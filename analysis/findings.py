"""What a comparison of methods says about upgrades, in three sentences: what was found, how sure, and why."""

from collections.abc import Mapping, Sequence

import pandas as pd

from analysis.comparisons import comparable_sets
from analysis.groups import finished
from analysis.names import title
from analysis.stats import NO_SPREAD, Estimate, t_interval
from analysis.tables.table import interval_cell, signed
from cl2r.metrics import BC, FIRST_ACCURACY, FIRST_RECALL, REINDEXED_ACCURACY, SERVICE_ACCURACY, SERVICE_RECALL
from cl2r.runtime.text import counted, listed

REGIMES = "studies/results/regimes_icons.md"
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth")
CL2R = "cl2r"
SHARED = (
    "memory.per_class",
    "optim.epochs",
    "method.budget",
    "variant",
    "backbone.name",
    "head.centre",
    "batches.size",
)
"""Columns in which compared runs must agree, if they have them."""


def upgrade_findings(runs: pd.DataFrame) -> list[str]:
    """Return three sentences on runs that differ in method and seed only; nothing if there is no such comparison.

    Methods are ranked by service accuracy, the mean accuracy of the last model's queries on all galleries, over the
    seeds that all of them have. It is compared with never upgrading and with re-indexing, because a model that never
    changes has BC 0.
    """
    needed = [FIRST_ACCURACY.name, SERVICE_ACCURACY.name, REINDEXED_ACCURACY.name]
    if not {"method.name", "seed", *needed} <= set(runs):
        return []
    done = runs[finished(runs) & runs[needed].notna().all(axis=1)]
    if done["method.name"].nunique() < 2 or len(comparable_sets(done)) != 1 or _settings_differ(done):
        return []
    tables = {str(name): own.set_index("seed") for name, own in done.groupby("method.name")}
    common = sorted(set.intersection(*(set(own.index) for own in tables.values())))
    if not common:
        return []
    seeds = {name: own.loc[common] for name, own in tables.items()}
    means = pd.DataFrame({name: own[needed].astype(float).mean() for name, own in seeds.items()}).T
    means = means.sort_values(SERVICE_ACCURACY.name, ascending=False, kind="stable")
    return [_found(means, seeds), _certainty(seeds, [*means.index], len(done)), _reason(done, [*means.index])]


def _settings_differ(runs: pd.DataFrame) -> bool:
    """Return whether a method has several settings, or methods differ in memory, budget or variant."""
    if runs.duplicated(["method.name", "seed"]).any():
        return True
    shared = [name for name in SHARED if name in runs]
    return any(runs[name].nunique(dropna=False) > 1 for name in shared)


def _found(means: pd.DataFrame, seeds: Mapping[str, pd.DataFrame]) -> str:
    """Say which method serves best, beside never upgrading and re-indexing."""
    best, row = str(means.index[0]), means.iloc[0]
    kept, served, indexed = (signed(name, row[name]) for name in means.columns)
    others = f"its first model alone would serve {kept}, and re-indexing the gallery {indexed}"
    if row[SERVICE_ACCURACY.name] > row[FIRST_ACCURACY.name]:
        text = f"{title(best)} serves best without re-indexing, with accuracy {served}; {others}."
    else:
        text = f"No upgrade paid without re-indexing: the best, {title(best)}, serves {served}; {others}."
    if CL2R in means.index[1:]:
        place, own = [*means.index].index(CL2R), float(means[SERVICE_ACCURACY.name].to_dict()[CL2R])
        rank = PLACES[place] if place < len(PLACES) else f"number {place + 1}"
        text += f" {title(CL2R)} is {rank} of {len(means)} with {signed(SERVICE_ACCURACY.name, own)}."
    names = [SERVICE_RECALL.name, FIRST_RECALL.name]
    if all(set(names) <= set(own) for own in seeds.values()):
        recalls = [tuple(float(own[name].astype(float).mean()) for name in names) for own in seeds.values()]
        found, first = max(recalls)
        if found < first:  # never true of NaN
            ends = f"the best reaches {signed(names[0], found)}, its first model {signed(names[0], first)}"
            text += f" In recall@1 the first model was better: {ends}."
    return text


def _certainty(seeds: Mapping[str, pd.DataFrame], order: Sequence[str], runs: int) -> str:
    """Say how much of this could be chance: paired differences over seeds."""
    best = seeds[order[0]]
    served, first = (best[metric.name].astype(float) for metric in (SERVICE_ACCURACY, FIRST_ACCURACY))
    lost = max(len(own) for own in seeds.values()) * len(seeds) < runs
    left = f" Only seeds that all methods have count ({listed([str(seed) for seed in best.index])})." if lost else ""
    if len(served) < 2:
        return f"One seed cannot tell a finding from chance: add `--seeds 0 1 2`.{left}"
    differences = [_difference(t_interval(served - first), "its first model")]
    for rival in dict.fromkeys([order[1], *([CL2R] if CL2R in order[1:] else [])]):
        gap = t_interval(served - seeds[rival][SERVICE_ACCURACY.name].astype(float))
        differences.append(_difference(gap, title(rival)))
    words = f"{'; '.join(differences[:-1])}; and {differences[-1]}"
    return (
        f"Over {counted(len(served), 'seed')}, {title(order[0])} differs {words} (95 % t-intervals of paired "
        f"differences; one that holds 0 does not show a difference, and the best was picked from {len(order)}).{left}"
    )


def _difference(found: Estimate, other: str) -> str:
    ends = " for every seed" if found.note == NO_SPREAD else ""
    return f"from {other} by {interval_cell(BC.name, found.mean, found.low, found.high).text}{ends}"


def _reason(runs: pd.DataFrame, order: Sequence[str]) -> str:
    """Say what the order depends on, with the settings of these runs."""
    first = _common(runs, "scenario.initial") or _common(runs, "scenario.increment")
    tasks = _common(runs, "scenario.n_tasks") or _common(runs, "tasks")
    split = f"{first:.0f} classes here" if first else f"one of {tasks:.0f} equal tasks here" if tasks else ""
    centred = runs["head.centre"].astype("boolean").fillna(False) if "head.centre" in runs else None
    settings = [f"how many classes the first task has{f' ({split})' if split else ''}"]
    if centred is not None and centred.nunique() == 1:
        settings.append(f"whether features are centred ({'they are' if centred.iloc[0] else 'they are not'})")
    start = "Which method is first depends on the regime"
    if CL2R in order:
        start = f"{title(CL2R)} is {'' if order[0] == CL2R else 'not '}first here, which depends on the regime"
    return f"{start}: {', '.join(settings)}, and how long tasks are trained; see {REGIMES}."


def _common(runs: pd.DataFrame, name: str) -> float | None:
    """Return the one value of a numeric column, None if it has none or several."""
    if name not in runs:
        return None
    values = set(pd.to_numeric(runs[name], errors="coerce").dropna())
    return float(values.pop()) if len(values) == 1 else None
