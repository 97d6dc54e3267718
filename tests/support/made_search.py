"""Made frames of a search study, with the columns of real ones."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from analysis import Study
from tests.support.made_study import made_study

METRICS = ("recall@1", "recall@5", "recall@10", "mAP")
States = tuple[float, float, float]
VALUES: dict[str, Sequence[States]] = {
    "er": [(0.70, 0.50, 0.80), (0.72, 0.52, 0.80)],
    "cl2r": [(0.60, 0.64, 0.84), (0.62, 0.68, 0.84)],
}
"""C[1,1], C[T,1] and C[T,T] of every seed, by method."""


def made_search(values: Mapping[str, Sequence[States]] = VALUES, tasks: int = 3) -> Study:
    """Return a search study with these values of all metrics; intervals over queries are ± 0.03.

    In random order, re-indexing a fifth of the gallery brings half of what re-indexing all of it does; other orders
    bring as much as the share.
    """
    seeds = list(range(max(map(len, values.values()))))
    study = made_study(list(values), seeds, tasks)
    rows: dict[str, list[dict[str, object]]] = {
        name: [] for name in ("retrieval", "compatibility", "backfill", "formats")
    }
    indexes = []
    for run, method, seed in study.runs[["run", "method.name", "seed"]].itertuples(index=False):
        if seed >= len(values[method]):
            continue
        first, upgraded, indexed = values[method][seed]
        indexes.append({"run": run, "kind": "exact", "rows": 40, "recall@10": 1.0, "queries_per_second": 1e5})
        for metric in METRICS:
            head = {"run": run, "method": method, "seed": seed, "metric": metric}
            for (t, k), value in {(1, 1): first, (tasks, 1): upgraded, (tasks, tasks): indexed}.items():
                interval = {"value": value, "low": value - 0.03, "high": value + 0.03}
                rows["retrieval"].append({**head, "t": t, "k": k, **interval})
                rows["formats"].append({**head, "format": "float32", "bytes": 44, "t": t, "k": k, "value": value})
            for name, value in {"AC": 0.5, "BC": upgraded - first, "FC": upgraded - indexed}.items():
                interval = {"value": value, "low": value - 0.03, "high": value + 0.03}
                rows["compatibility"].append({**head, "summary": name, **interval})
            for order in ("random", "worst_first", "oracle"):
                for step in range(11):
                    share = step / 10
                    gained = min(2.5 * share, 0.5 + (share - 0.2) * 0.625) if order == "random" else share
                    place = {"order": order, "draw": 0, "fraction": share}
                    rows["backfill"].append({**head, **place, "value": upgraded + gained * (indexed - upgraded)})
    frames = {name: pd.DataFrame(entries) for name, entries in rows.items()}
    return replace(study, search={**frames, "indexes": pd.DataFrame(indexes)})


def one_seed() -> Study:
    """Return the same with the first seed only."""
    return made_search({method: own[:1] for method, own in VALUES.items()})
