"""1:N search with the features of a chain: C[t, k] by recall@1, 5, 10 and mAP, and how it sums up.

C[t, k] of one of these metrics (`cl2r/retrieval.py`) is read like that of verification: AC, BC, FC. Gallery and queries
are those of the run's report, so recall@1 and mAP are those of its `matrix` frame. Intervals resample queries; gallery
and models are fixed. Queries of one class are alike: on icons, with 20 open classes, intervals of BC that resampled
whole classes were three to four times as wide.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from cl2r.engine.evaluation import ChainFeatures, Evaluation
from cl2r.engine.plan import Plan
from cl2r.errors import InputError
from cl2r.metrics import COMPATIBILITY
from cl2r.retrieval import SEARCH_METRICS, SearchImages, resampled_matrices, retrieved, search_matrix

SAMPLES = 1000


def evaluate(
    features: ChainFeatures, images: SearchImages, samples: int = SAMPLES, seed: int = 0, ties: bool = False
) -> dict[str, Evaluation]:
    """Return C and its summaries by every metric of a search among `images`."""
    tasks, evaluations = len(features.models), dict[str, Evaluation]()
    judged = [retrieved(*features.searched(t, k, images), images) for t in range(tasks) for k in range(t + 1)]
    for place, metric in enumerate(SEARCH_METRICS):
        cells = np.stack([cell[:, place] for cell in judged])
        boot = resampled_matrices(cells, tasks, samples, seed) if samples else None
        evaluations[metric] = Evaluation.of_matrix(metric, search_matrix(cells, tasks), ties, boot)
    return evaluations


def retrieval_rows(evaluations: dict[str, Evaluation]) -> Iterator[dict[str, Any]]:
    """Yield one row per metric and cell of C."""
    for metric, found in evaluations.items():
        for t, k in zip(*np.tril_indices(len(found.matrix)), strict=True):
            bounds = found.cells
            low, high = (bounds.low[t, k], bounds.high[t, k]) if bounds else (np.nan, np.nan)
            cell = {"t": int(t) + 1, "k": int(k) + 1, "metric": metric, "value": found.matrix[t, k]}
            yield {**cell, "low": low, "high": high, "compatible": bool(found.compatible[t, k])}


def compatibility_rows(evaluations: dict[str, Evaluation]) -> Iterator[dict[str, Any]]:
    """Yield one row per metric and summary of C: AC, BC, FC."""
    for metric, found in evaluations.items():
        for name in (entry.name for entry in COMPATIBILITY):
            low, high = found.intervals.get(name, (np.nan, np.nan))
            yield {"metric": metric, "summary": name, "value": found.values[name], "low": low, "high": high}


def report_images(plan: Plan) -> SearchImages:
    """Return the images of the run's report. Raise InputError if there is nothing to search, or no upgrade."""
    name = plan.dataset.name
    if plan.dataset.templates is not None:
        raise InputError(
            f"{name} compares templates of unnamed people: there is nothing to search for, use another data set"
        )
    if plan.dataset.pairs is not None:
        raise InputError(f"{name} has a list of pairs and no images to report a search on; use a data set without one")
    if len(plan.keys) < 2:
        raise InputError(f"{name} in one task: an upgrade needs two models, use --tasks 2 or more")
    if plan.report_images is None:
        raise InputError(
            f"{name}: no class of the open images has two of them: there is nothing to search for, add images"
        )
    return plan.report_images
