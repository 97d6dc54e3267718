"""Every term that a method adds to the cross-entropy moves φ: beside the gradient of the labels its own is not small.

Losses themselves would not tell: distillation of logits includes the entropy of the teacher's answers, which moves
nothing. tests/benchmarks/loss_shares.py measures the losses on a preset, where training takes much longer than here.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cl2r.config.methods import METHODS
from tests.benchmarks.loss_shares import LABELS
from tests.support.method_case import advanced, mixed

NO_TERM_OF_THEIR_OWN = {"er", "fixed", "cores"}
STEPS = 20
"""At the beginning of a task student and teacher are the same, and distillation has no gradient yet."""
LEAST = 0.05
"""The least share of the gradient of the labels. The smallest one measured is 0.13, that of bic_inclearn."""


def gradients(name: str) -> dict[str, float]:
    """Return the length of the gradient of every own term in task 2, in multiples of that of the labels, both by φ."""
    made = advanced(name, steps=STEPS)
    method = made.method
    stage = method.stages()[0]
    trained = set(map(id, stage.parameters()))
    weights = [weight for name, weight in method.network.named_parameters() if "phi." in name and id(weight) in trained]
    method.network.train(stage.statistics)
    terms: dict[str, Tensor] = stage.loss(mixed(made, 2), method.network)

    def length(value: Tensor) -> float:
        parts = torch.autograd.grad(value, weights, retain_graph=True, allow_unused=True)
        return float(torch.cat([part.flatten() for part in parts if part is not None]).norm())

    labels = length(torch.stack([value for term, value in terms.items() if term in LABELS]).sum())
    return {term: length(value) / labels for term, value in terms.items() if term not in LABELS}


def negligible(name: str) -> set[str]:
    """Return the own terms whose gradient is too small."""
    return {term for term, share in gradients(name).items() if share < LEAST}


@pytest.mark.parametrize("name", METHODS)
def test_every_term_of_its_own_moves_the_features(name: str) -> None:
    """Also of lifelong_bct: its old classifier is not as sure of the memory here as on the default preset."""
    assert bool(gradients(name)) == (name not in NO_TERM_OF_THEIR_OWN)
    assert not negligible(name)


@pytest.mark.parametrize(
    ("name", "function", "term"),
    [
        ("cl2r", "cl2r.methods.incremental.feature_distillation", "fd"),
        ("wa", "cl2r.methods.incremental.logit_distillation", "kd"),
        ("bic_inclearn", "cl2r.methods.bic.sigmoid_distillation", "kd"),
        ("podnet", "cl2r.methods.podnet.pod_spatial", "spatial"),
    ],
)
def test_a_term_that_is_multiplied_by_zero_is_found(
    name: str, function: str, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not negligible(name)
    module, _, attribute = function.rpartition(".")
    original: Callable[..., Any] = getattr(__import__(module, fromlist=[attribute]), attribute)
    monkeypatch.setattr(function, lambda *given: 0 * original(*given))
    assert negligible(name) == {term}
