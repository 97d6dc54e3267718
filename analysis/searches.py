"""What a search study found: how often the right class comes first, before and after upgrades, and after re-indexing.

Queries and gallery are those of `cl2r.gallery.retrieval`; the oldest gallery is by the first model, queries are by the
first or by the last one.
"""

import math
from dataclasses import replace

import pandas as pd

from analysis.headline import MORE_SEEDS, Headline, difference_text, more_seeds
from analysis.names import ALL_DATA, ordered, title
from analysis.stats import Estimate, t_interval
from analysis.study import Study
from analysis.tables.search import fraction_to
from analysis.tables.table import interval_cell
from cl2r.runtime.text import counted, listed

Estimates = dict[tuple[str, str], Estimate]
METRIC = "recall@1"
STATES = {"first": "never upgraded", "upgraded": "upgraded, not re-indexed", "reindexed": "upgraded and re-indexed"}
"""What is compared, in the order of time: C[1,1], C[T,1] and C[T,T]."""
NAMED = 3  # methods whose values the finding names
SHARE = 0.2  # of a gallery, whose re-indexing the remark is about


def state_values(retrieval: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run and state with value, low and high, on seeds that all methods have if there are any."""
    own = retrieval[retrieval["metric"] == METRIC]
    last = int(own["t"].max())
    cells = dict(zip(STATES, ((1, 1), (last, 1), (last, last)), strict=True))
    parts = [own[(own["t"] == t) & (own["k"] == k)].assign(state=state) for state, (t, k) in cells.items()]
    values = pd.concat(parts, ignore_index=True)
    common = common_seeds(values)
    return values[values["seed"].isin(common)] if common else values


def common_seeds(values: pd.DataFrame) -> set[int]:
    """Return the seeds that all methods have."""
    return set.intersection(*(set(own["seed"]) for _, own in values.groupby("method")))


def state_estimates(values: pd.DataFrame) -> Estimates:
    """Return estimates by method and state, with intervals over seeds or, if there is one seed, over its queries."""
    found = {}
    for method in ordered(values["method"]):
        for state in STATES:
            own = values[(values["method"] == method) & (values["state"] == state)]
            estimate = t_interval(own["value"])
            if estimate.n == 1:
                low, high = own[["low", "high"]].to_numpy(dtype=float)[0]
                estimate = replace(estimate, low=float(low), high=float(high))
            found[method, state] = replace(estimate, low=max(estimate.low, 0.0), high=min(estimate.high, 1.0))
    return found


def search_headline(study: Study, name: str) -> Headline:
    """Return the headline of a search study."""
    values = state_values(study.search["retrieval"])
    if not common_seeds(values):
        return Headline(name, "No seed finished with every method: they are not ranked.", "")
    estimates = state_estimates(values)
    methods = ordered(values["method"])
    methods = [method for method in methods if method not in ALL_DATA] or methods
    order = sorted(methods, key=lambda method: -estimates[method, "upgraded"].mean)
    by_seed = {key: rows.set_index("seed")["value"] for key, rows in values.groupby(["method", "state"])}
    best = by_seed[order[0], "upgraded"]
    command, cost = more_seeds(study)
    surer = f"; {MORE_SEEDS} more seeds{cost} would make this surer" if command else ""
    if len(best) < 2:
        certainty = "One seed cannot tell a finding from chance: its intervals are over queries, not over seeds"
    else:
        rivals = {f"the next, {title(order[1])},": by_seed[order[1], "upgraded"]} if len(order) > 1 else {}
        rivals["its own first model"] = by_seed[order[0], "first"]
        gaps = [difference_text(t_interval(best - rival), other) for other, rival in rivals.items()]
        certainty = f"Over {len(best)} seeds {title(order[0])} differs {' and '.join(gaps)}"
    upgrades = int(study.search["retrieval"]["t"].max()) - 1
    backfill = study.search["backfill"]
    remarks = [backfill_remark(backfill[backfill["run"].isin(values["run"])], order[0], estimates)]
    if whole := [title(method) for method in ordered(values["method"]) if method not in order]:
        train, are = ("trains", "is") if len(whole) == 1 else ("train", "are")
        remarks.append(f"{listed(whole)} {train} on all data at every task and {are} not ranked.")
    found = _found(estimates, order, upgrades)
    return Headline(name, found, f"{certainty}{surer}.", command, " ".join(filter(None, remarks)))


def _found(estimates: Estimates, order: list[str], upgrades: int) -> str:
    """Say how often each method finds the right class after the upgrades, beside the best method's other states."""
    best, after = order[0], f"after {counted(upgrades, 'upgrade')}"
    shares = {method: estimate_text(estimates[method, "upgraded"]) for method in order[:NAMED]}
    others = [f", {title(method)} in {shares[method]}" for method in order[1:NAMED]]
    others += [f", {counted(len(order) - NAMED, 'other method')} in less"] if len(order) > NAMED else []
    start = f"{after.capitalize()} without re-indexing, {title(best)}"
    if all(estimates[method, "upgraded"].mean <= estimates[method, "first"].mean for method in order):
        start = f"No upgrade paid without re-indexing: {after} {title(best)}"
    return (
        f"{start} finds the right class first in {shares[best]} of searches on the oldest gallery ({METRIC})"
        f"{''.join(others)}; the first model of {title(best)} found it in {estimates[best, 'first'].mean:.3f}, "
        f"re-indexing would give {estimates[best, 'reindexed'].mean:.3f}."
    )


def estimate_text(found: Estimate) -> str:
    """Return `0.774 [0.746, 0.803]`."""
    return interval_cell("", found.mean, found.low, found.high).text


def backfill_remark(backfill: pd.DataFrame, method: str, estimates: Estimates) -> str:
    """Say what re-indexing a part of the gallery brings; empty if re-indexing brings nothing.

    `backfill` has the runs of the estimates.
    """
    own = backfill[(backfill["metric"] == METRIC) & (backfill["method"] == method) & (backfill["order"] == "random")]
    curve = own.groupby("fraction")["value"].mean()
    first, start, end = (estimates[method, state].mean for state in STATES)
    if SHARE not in curve.index or not start < end:
        return ""
    gained = (curve[SHARE] - start) / (end - start)
    words = [
        f"Re-indexing {100 * SHARE:.0f} % of the oldest gallery in random order would lift {title(method)} to "
        f"{curve[SHARE]:.3f}, {100 * gained:.0f} % of the way to re-indexing all of it"
    ]
    needed = fraction_to(first, curve)
    if start < first and not math.isnan(needed):
        words.append(f"{100 * needed:.0f} % would be needed to reach the first model's {first:.3f}")
    return f"{'; '.join(words)}."
