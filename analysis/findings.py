"""What a comparison of methods says about upgrades, in three sentences: what was found, how sure, and why."""

from collections.abc import Sequence

import pandas as pd

from analysis.comparisons import comparable_sets
from analysis.groups import finished
from analysis.names import title
from analysis.stats import NO_SPREAD, Estimate, t_interval
from analysis.tables.table import interval_cell, signed
from cl2r.metrics import BC, FIRST_ACCURACY, REINDEXED_ACCURACY, SERVICE_ACCURACY
from cl2r.runtime.text import counted

REGIMES = "studies/results/regimes_icons.md"
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth")
CL2R, ER = "cl2r", "er"


def upgrade_findings(runs: pd.DataFrame) -> list[str]:
    """Return three sentences on runs that differ in method and seed only; nothing if there is no such comparison.

    Methods are ranked by service accuracy, the mean accuracy of the last model's queries on all galleries. It is
    compared with never upgrading and with re-indexing, because a model that never changes has BC 0.
    """
    needed = [FIRST_ACCURACY.name, SERVICE_ACCURACY.name, REINDEXED_ACCURACY.name]
    if not {"method.name", "seed", *needed} <= set(runs):
        return []
    done = runs[finished(runs) & runs[needed].notna().all(axis=1)]
    if done["method.name"].nunique() < 2 or len(comparable_sets(done)) != 1:
        return []
    if done.groupby("method.name")["seed"].apply(lambda seeds: seeds.duplicated().any()).any():
        return []  # a method has several settings
    seeds = {str(name): own.set_index("seed")[needed].astype(float) for name, own in done.groupby("method.name")}
    means = pd.DataFrame({name: own.mean() for name, own in seeds.items()}).T
    means = means.sort_values(SERVICE_ACCURACY.name, ascending=False, kind="stable")
    return [_found(means), _certainty(seeds, [*means.index]), _reason(done, [*means.index])]


def _found(means: pd.DataFrame) -> str:
    """Say which method serves best, beside never upgrading and re-indexing."""
    best, row = str(means.index[0]), means.iloc[0]
    kept, served, indexed = (signed(name, row[name]) for name in means.columns)
    others = f"its first model alone would serve {kept}, and re-indexing the gallery {indexed}"
    if row[SERVICE_ACCURACY.name] > row[FIRST_ACCURACY.name]:
        text = f"{title(best)} serves best without re-indexing, with accuracy {served}; {others}."
    else:
        text = f"No upgrade pays without re-indexing: the best, {title(best)}, serves {served}; {others}."
    if CL2R in means.index[1:]:
        place, own = [*means.index].index(CL2R), float(means[SERVICE_ACCURACY.name].to_dict()[CL2R])
        rank = PLACES[place] if place < len(PLACES) else f"number {place + 1}"
        text += f" {title(CL2R)} is {rank} of {len(means)} with {signed(SERVICE_ACCURACY.name, own)}."
    return text


def _certainty(seeds: dict[str, pd.DataFrame], order: Sequence[str]) -> str:
    """Say how much of this could be chance: paired differences over seeds."""
    best = seeds[order[0]]
    served = best[SERVICE_ACCURACY.name]
    if len(served) < 2:
        return "One seed cannot tell a finding from chance: add `--seeds 0 1 2`."
    words = [_difference(t_interval(served - best[FIRST_ACCURACY.name]), "to its first model")]
    rival = next(name for name in (CL2R, ER, *order) if name in seeds and name != order[0])
    common = served.index.intersection(seeds[rival].index)
    if len(common) > 1:
        gap = t_interval(served[common] - seeds[rival].loc[common, SERVICE_ACCURACY.name])
        words.append(_difference(gap, f"to {title(rival)}"))
    return (
        f"Over {counted(len(served), 'seed')}, the paired difference of {title(order[0])} {' and '.join(words)} "
        "(95 % t-interval; an interval with 0 in it shows no difference)."
    )


def _difference(found: Estimate, to: str) -> str:
    ends = " for every seed" if found.note == NO_SPREAD else ""
    return f"{to} is {interval_cell(BC.name, found.mean, found.low, found.high).text}{ends}"


def _reason(runs: pd.DataFrame, order: Sequence[str]) -> str:
    """Say what the order depends on, with the settings of these runs."""
    first, tasks = _common(runs, "scenario.initial"), _common(runs, "tasks")
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
