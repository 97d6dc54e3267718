"""Backfilling: after an upgrade φ_k → φ_t the gallery is embedded anew, bit by bit. How good is search meanwhile?

Queries are by φ_t; a part of the gallery is by φ_t already, the rest still by φ_k. A query meets both by cosine, as in
`searching.Searcher`: rows by φ_k as φ_t meets that model (adapters map the query, FAN the rows), rows by φ_t as it is.
Rows are embedded anew in one of these orders:

    random        drawn; a mean needs several draws
    worst_first   those first whose old vector lies apart from its neighbourhood: the mean cosine with its ten nearest
                  old vectors is lowest. An owner knows this before φ_t has seen any image, and without any label
    oracle        those first that the upgrade moves most, lowest cos(φ_t(x), φ_k(x)). It looks at the new vectors of
                  all rows, which are what the order is to save: something to compare with, not something to do
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cl2r.compatibility import FloatArray
from cl2r.engine.evaluation import ChainFeatures
from cl2r.search.index import exact_search
from cl2r.search.retrieval import METRICS, Integers, Truth, Vectors, cosines, judge, query_blocks, unit
from cl2r.seeding import numpy_stream

Order = Literal["random", "worst_first", "oracle"]
ORDERS: tuple[Order, ...] = ("random", "worst_first", "oracle")
NEIGHBOURS = 10
FRACTIONS = tuple(step / 10 for step in range(11))


@dataclass(frozen=True, eq=False)
class Upgrade:
    """The images of a gallery, which are the queries too, before and after φ_k → φ_t; rows have length one."""

    to_old: Vectors
    """By φ_t, as they meet rows by φ_k."""
    old: Vectors
    """By φ_k, as they are met."""
    new: Vectors
    """By φ_t."""
    truth: Truth

    @classmethod
    def of(cls, features: ChainFeatures, t: int, k: int, labels: Integers) -> "Upgrade":
        """Models count from 0."""
        to_old, old = unit(features.query(t, k)), unit(features.gallery(t, k))
        return cls(to_old, old, unit(features.models[t]), Truth.of_same_images(labels))


def order_rows(upgrade: Upgrade, order: Order, draw: int = 0) -> Integers:
    """All rows, those to be embedded anew first at the front; equal ones in the order of rows."""
    if order == "random":
        return numpy_stream(draw, "backfill").permutation(len(upgrade.old))
    nearness = neighbourhood(upgrade.old) if order == "worst_first" else (upgrade.to_old * upgrade.old).sum(axis=1)
    return np.argsort(nearness, kind="stable").astype(np.int64)


def neighbourhood(vectors: Vectors) -> Vectors:
    """Mean cosine of every row with its ten nearest others, or with all there are."""
    scores, rows = exact_search([vectors], vectors, min(NEIGHBOURS + 1, len(vectors)))
    scores[rows == np.arange(len(vectors))[:, None]] = -np.inf  # of many equal rows, the row itself may be missing
    nearest = -np.sort(-scores, axis=1)[:, : min(NEIGHBOURS, len(vectors) - 1)]
    return np.asarray(nearest.mean(axis=1))


def backfill(upgrade: Upgrade, orders: Sequence[Integers], fractions: Sequence[float] = FRACTIONS) -> FloatArray:
    """(orders, fractions, metrics): search while a fraction of the rows, in the given order, is by φ_t."""
    rows, truth = len(upgrade.old), upgrade.truth
    judged = np.empty((len(orders), len(fractions), rows, len(METRICS)))
    for block in query_blocks(rows, rows):
        old, new = cosines(upgrade.to_old[block], upgrade.old), cosines(upgrade.new[block], upgrade.new)
        for place, order in enumerate(orders):
            for step, fraction in enumerate(fractions):
                renewed = np.zeros(rows, np.bool_)
                renewed[order[: round(fraction * rows)]] = True
                judged[place, step, block] = judge(np.where(renewed, new, old), truth, block)
    return np.asarray(judged[:, :, truth.answerable].mean(axis=2))
