"""Backfilling: after an upgrade φ_k → φ_t the gallery is re-embedded bit by bit. How good is the search meanwhile?

Queries are by φ_t; one part of the gallery is by φ_t already, the rest still by φ_k. A query is compared with both by
cosine, as in `search.Searcher`: with rows by φ_k as φ_t searches that model's gallery (adapters map the query, FAN the
rows), with rows by φ_t directly. Rows are re-embedded in one of these orders:

    random        drawn; a mean needs several draws
    worst_first   first the rows whose old vector is far from its neighbours: the mean cosine with its ten nearest old
                  vectors is lowest. The owner knows this before φ_t has seen any image, and without labels
    oracle        first the rows that the upgrade moves most, lowest cos(φ_t(x), φ_k(x)). It needs the new vectors of
                  all rows, which the order is meant to save: a reference, not a policy
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cl2r.compatibility import FloatArray
from cl2r.engine.evaluation import ChainFeatures
from cl2r.gallery.index import exact_search
from cl2r.retrieval import SEARCH_METRICS, Integers, SearchImages, Vectors, cosines, judge, query_blocks
from cl2r.seeding import numpy_stream

Order = Literal["random", "worst_first", "oracle"]
ORDERS: tuple[Order, ...] = ("random", "worst_first", "oracle")
NEIGHBOURS = 10
FRACTIONS = tuple(step / 10 for step in range(11))


@dataclass(frozen=True, eq=False)
class Upgrade:
    """The images of a gallery, some of them queries, before and after φ_k → φ_t; rows have length one."""

    to_old: Vectors  # all images by φ_t, as queries are compared with rows by φ_k
    old: Vectors  # rows by φ_k, as they are compared with queries by φ_t
    new: Vectors  # queries and rows by φ_t
    images: SearchImages

    @classmethod
    def of(cls, features: ChainFeatures, t: int, k: int, images: SearchImages) -> "Upgrade":
        """Return the upgrade from model k to model t, both counted from 0."""
        to_old, old = features.query(t, k).unit(images.rows), features.gallery(t, k).unit(images.rows)
        return cls(to_old, old, features.models[t].unit(images.rows), images)


def order_rows(upgrade: Upgrade, order: Order, draw: int = 0) -> Integers:
    """Return all rows in the order in which they are re-embedded; ties are in row order."""
    if order == "random":
        return numpy_stream(draw, "backfill").permutation(len(upgrade.old))
    nearness = neighbourhood(upgrade.old) if order == "worst_first" else (upgrade.to_old * upgrade.old).sum(axis=1)
    return np.argsort(nearness, kind="stable").astype(np.int64)


def neighbourhood(vectors: Vectors) -> Vectors:
    """Return the mean cosine of every row with its ten nearest others, or with all if there are fewer."""
    scores, rows = exact_search([vectors], vectors, min(NEIGHBOURS + 1, len(vectors)))
    scores[rows == np.arange(len(vectors))[:, None]] = -np.inf  # it may be missing among many equal rows
    nearest = -np.sort(-scores, axis=1)[:, : min(NEIGHBOURS, len(vectors) - 1)]
    return np.asarray(nearest.mean(axis=1))


def backfill(upgrade: Upgrade, orders: Sequence[Integers], fractions: Sequence[float] = FRACTIONS) -> FloatArray:
    """Return (orders, fractions, metrics) of a search while the first fraction of the rows is by φ_t."""
    rows, images = len(upgrade.old), upgrade.images
    judged = np.empty((len(orders), len(fractions), len(images.queries), len(SEARCH_METRICS)))
    for block in query_blocks(len(images.queries), rows):
        asked = images.queries[block]
        old, new = cosines(upgrade.to_old[asked], upgrade.old), cosines(upgrade.new[asked], upgrade.new)
        for place, order in enumerate(orders):
            for step, fraction in enumerate(fractions):
                renewed = np.zeros(rows, np.bool_)
                renewed[order[: round(fraction * rows)]] = True
                judged[place, step, block] = judge(np.where(renewed, new, old), images, block)
    return np.asarray(judged.mean(axis=2))


def backfill_rows(features: ChainFeatures, images: SearchImages, draws: int) -> Iterator[dict[str, Any]]:
    """Yield one row per order, draw, fraction and metric of the upgrade from the first model to the last."""
    upgrade = Upgrade.of(features, len(features.models) - 1, 0, images)
    orders = [(order, draw) for order in ORDERS for draw in range(draws if order == "random" else 1)]
    curves = backfill(upgrade, [order_rows(upgrade, order, draw) for order, draw in orders])
    for (order, draw), curve in zip(orders, curves, strict=True):
        for fraction, values in zip(FRACTIONS, curve, strict=True):
            for metric, value in zip(SEARCH_METRICS, values, strict=True):
                yield {"order": order, "draw": draw, "fraction": fraction, "metric": metric, "value": value}
