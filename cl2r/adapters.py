"""Adapters: maps of new queries into an old model's space, fitted to stored features without training a model.

Step j = 2..T knows the features A = φ_j(S_j) and B = φ_{j-1}(S_j) of images S_j that are at hand at the update, and
fits a map m_j of unit vectors towards φ_{j-1}. A query of φ_t is compared with a gallery of φ_k after one map per step,
m_{k+1} ∘ … ∘ m_t; the gallery does not change. Other packages add adapters (`AdapterInfo.build`).
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cl2r import drift_adapters
from cl2r.config.methods import ADAPTERS, AdapterInfo
from cl2r.config.schema import AdapterConfig
from cl2r.errors import InputError
from cl2r.features import Rows, unit_rows
from cl2r.stationarity import rotation

Vectors = npt.NDArray[np.float64]
Map = Callable[[Vectors], Vectors]
DRIFT_ADAPTERS = ("low_rank", "residual_mlp", "orthogonal")


@dataclass(frozen=True)
class Support:
    """Features of the images of one update by the new and by the old model, row by row."""

    new: Rows
    old: Rows


def query_drift(support: Support) -> Map:
    """Return m(q) = q − mean(A − B): subtract the mean drift."""
    drift = (unit_rows(support.new) - unit_rows(support.old)).mean(0)
    return lambda queries: queries - drift


def procrustes(support: Support) -> Map:
    """Return m(q) = q R, R = argmin over orthogonal matrices of ‖A R − B‖."""
    turn = rotation(support.new, support.old)
    return lambda queries: queries @ turn


def aligner(support: Support, ridge: float) -> Map:
    """Return m(q) = q W, W = argmin ‖A W − B‖² + ρ ‖W − I‖², ρ = ridge · tr(AᵀA)/d.

    With few images W stays near the identity.
    """
    new, old = unit_rows(support.new), unit_rows(support.old)
    gram, eye = new.T @ new, np.eye(new.shape[1])
    weight = ridge * np.trace(gram) / len(gram)
    linear = np.linalg.solve(gram + weight * eye, new.T @ old + weight * eye)
    return lambda queries: queries @ linear


def slerp(start: Rows, end: Rows, share: float) -> Vectors:
    """Return the point at `share` of the way from `start` to `end` along the great circle, row by row."""
    a, b = unit_rows(start), unit_rows(end)
    angle = np.arccos(np.clip((a * b).sum(1, keepdims=True), -1, 1))
    sine = np.sin(angle)
    near = sine < 1e-6  # no unique great circle: take the straight line
    safe = np.where(near, 1, sine)
    first = np.where(near, 1 - share, np.sin((1 - share) * angle) / safe)
    second = np.where(near, share, np.sin(share * angle) / safe)
    return unit_rows(first * a + second * b)


def installed_fit(info: AdapterInfo) -> Callable[[Support, AdapterConfig], Map]:
    """Return the function of an adapter that another package adds. Raise InputError if it cannot be loaded."""
    module, _, attribute = info.build.partition(":")
    try:
        fit: Callable[[Support, AdapterConfig], Map] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"adapter {info.name}: cannot load {info.build}: {error}") from error
    return fit


def fit_step(support: Support, config: AdapterConfig) -> Map:
    """Return the map of one step; slerp begins with a rotation."""
    if config.name in DRIFT_ADAPTERS:
        return drift_adapters.fit(unit_rows(support.new), unit_rows(support.old), config)
    info = ADAPTERS[config.name]
    if info.build:
        return installed_fit(info)(support, config)
    if config.name == "aligner":
        return aligner(support, config.ridge)
    return query_drift(support) if config.name == "query_drift" else procrustes(support)


class QueryAdapter:
    """Maps queries of any model into the space of any older one; models count from 0."""

    def __init__(self, config: AdapterConfig, supports: Sequence[Support]) -> None:
        self.config = config
        self.steps = [fit_step(support, config) for support in supports]

    def __call__(self, models: Sequence[Rows], t: int, k: int) -> Rows:
        """Return the features of φ_t in the space of φ_k; unchanged if k = t."""
        if k == t:
            return models[t]
        queries = unit_rows(models[t])
        for step in reversed(self.steps[k:t]):
            queries = unit_rows(step(queries))
        if self.config.name == "slerp":
            queries = slerp(queries, models[k], self.config.share)
        return np.asarray(queries, dtype=np.float32)


def adapter_flops(config: AdapterConfig, dim: int, steps: int, forward_flops: float) -> float:
    """Return the FLOPs to map one query of φ_T to φ_1. Linear maps are multiplied out once for all queries."""
    name = config.name
    if name in DRIFT_ADAPTERS:
        return drift_adapters.flops(config, dim) * steps  # with a shift and a norm between them: these do not merge
    if name == "none" or steps == 0:
        return 0.0
    if flops := ADAPTERS[name].flops:
        return flops(dim) * steps
    if name == "query_drift":
        return 4.0 * dim * steps  # a difference, a norm and a division per step: these do not merge
    linear = 2.0 * dim * dim
    return linear + forward_flops + 6 * dim if name == "slerp" else linear


def adapter_bytes(config: AdapterConfig, dim: int, steps: int, model_bytes: float) -> int:
    """Return the bytes that a service stores for queries of φ_T to older galleries: maps, and for slerp the models."""
    name = config.name
    if name in DRIFT_ADAPTERS:
        return steps * 4 * sum(drift_adapters.numbers(config, dim))
    if name == "none":
        return 0
    if numbers_of := ADAPTERS[name].numbers:
        return steps * 4 * numbers_of(dim)
    numbers = dim if name == "query_drift" else dim * dim
    return steps * (4 * numbers + (int(model_bytes) if name == "slerp" else 0))
