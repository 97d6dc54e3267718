"""Adapters: maps of new queries into an old model's space, fitted to stored features; no model is trained again.

Step j = 2..T knows the features A = φ_j(S_j) and B = φ_{j-1}(S_j) of images S_j that are at hand at the update. It
gives a map m_j of unit vectors towards φ_{j-1}. A query of φ_t meets a gallery of φ_k as m_{k+1} ∘ … ∘ m_t, one map a
step; nothing in the gallery is touched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cl2r.config import AdapterConfig
from cl2r.diagnostics import Features, rotation, unit_rows

Vectors = npt.NDArray[np.float64]
Map = Callable[[Vectors], Vectors]


@dataclass(frozen=True)
class Support:
    """The images of one update as the new and as the old model see them, row by row."""

    new: Features
    old: Features


def query_drift(support: Support) -> Map:
    """Subtract the mean drift: m(q) = q − mean(A − B)."""
    drift = (unit_rows(support.new) - unit_rows(support.old)).mean(0)
    return lambda queries: queries - drift


def procrustes(support: Support) -> Map:
    """m(q) = q R, R = argmin over orthogonal matrices of ‖A R − B‖."""
    turn = rotation(support.new, support.old)
    return lambda queries: queries @ turn


def aligner(support: Support, ridge: float) -> Map:
    """m(q) = q W, W = argmin ‖A W − B‖² + ρ ‖W − I‖², ρ = ridge · tr(AᵀA)/d: few images leave W near the identity."""
    new, old = unit_rows(support.new), unit_rows(support.old)
    gram, eye = new.T @ new, np.eye(new.shape[1])
    weight = ridge * np.trace(gram) / len(gram)
    linear = np.linalg.solve(gram + weight * eye, new.T @ old + weight * eye)
    return lambda queries: queries @ linear


def slerp(start: Features, end: Features, share: float) -> Vectors:
    """The point at `share` of the way from `start` to `end` along the great circle, row by row."""
    a, b = unit_rows(start), unit_rows(end)
    angle = np.arccos(np.clip((a * b).sum(1, keepdims=True), -1, 1))
    sine = np.sin(angle)
    near = sine < 1e-6  # no circle, or no single one: the straight line
    safe = np.where(near, 1, sine)
    first = np.where(near, 1 - share, np.sin((1 - share) * angle) / safe)
    second = np.where(near, share, np.sin(share * angle) / safe)
    return unit_rows(first * a + second * b)


def fit_step(support: Support, config: AdapterConfig) -> Map:
    """The map of one step."""
    if config.name == "query_drift":
        return query_drift(support)
    return aligner(support, config.ridge) if config.name == "aligner" else procrustes(support)


class QueryAdapter:
    """Queries of any model in the space of any older one; models count from 0."""

    def __init__(self, config: AdapterConfig, supports: Sequence[Support]) -> None:
        self.config = config
        self.steps = [fit_step(support, config) for support in supports]

    def __call__(self, models: Sequence[Features], t: int, k: int) -> Features:
        """The open images by φ_t, brought to the space of φ_k; as they are, bit for bit, where that is φ_t itself."""
        if k == t:
            return models[t]
        queries = unit_rows(models[t])
        for step in reversed(self.steps[k:t]):
            queries = unit_rows(step(queries))
        if self.config.name == "slerp":
            queries = slerp(queries, models[k], self.config.share)
        return np.asarray(queries, dtype=np.float32)


def adapter_flops(name: str, dim: int, steps: int, forward_flops: float) -> float:
    """FLOPs of one query of φ_T on its way to φ_1. Linear maps are multiplied out beforehand, once for all queries."""
    if name == "none" or steps == 0:
        return 0.0
    if name == "query_drift":
        return 4.0 * dim * steps  # a difference, a norm and a division a step: these do not merge
    linear = 2.0 * dim * dim
    return linear + forward_flops + 6 * dim if name == "slerp" else linear


def adapter_bytes(name: str, dim: int, steps: int, model_bytes: float) -> int:
    """What a service keeps besides, for queries of φ_T to meet all older galleries: maps, for slerp the models."""
    if name == "none":
        return 0
    numbers = dim if name == "query_drift" else dim * dim
    return steps * (4 * numbers + (int(model_bytes) if name == "slerp" else 0))
