"""Published losses a second time, in NumPy and double precision: values within 1e-6, gradients within 1e-5.

The second versions follow the formulas of the papers and share nothing with the methods' own; their gradients are
central differences.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from cl2r.batches import Batch
from cl2r.config.builtin import HocOptions
from cl2r.distillation import feature_distillation, logit_distillation
from cl2r.methods.base import AuxiliaryOutputs, Outputs
from cl2r.methods.bic import sigmoid_distillation
from cl2r.methods.foster import class_weights
from cl2r.methods.hoc import contrastive
from cl2r.methods.lucir import margin_ranking
from cl2r.methods.podnet import nca_of_code, nca_of_paper, pod_spatial
from cl2r.simplex import SimplexClassifier
from tests.support.method_case import advanced

Array = npt.NDArray[np.float64]
LABELS = np.array([0, 2, 1, 2, 5, 0, 4])
STEP = 1e-5


@dataclass(frozen=True)
class Twice:
    """A loss as the package computes it, and a second time; `at` is where both are evaluated."""

    ours: Callable[[Tensor], Tensor]
    plain: Callable[[Array], float]
    at: Array


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def single(values: Array) -> Tensor:
    return torch.from_numpy(values).float()


def probabilities(z: Array) -> Array:
    powers = np.exp(z)
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def cosines(f: Array, g: Array) -> Array:
    """Return the cosine of every row of f with every row of g."""
    return np.asarray([[a @ b / np.sqrt((a @ a) * (b @ b)) for b in g] for a in f])


def effective_weights(counts: list[int], beta: float) -> Array:
    """Return ω: 1/(1 + β + … + β^{n−1}) for every class, scaled to mean 1."""
    inverse = np.array([1 / sum(beta**power for power in range(n)) for n in counts])
    return inverse * len(inverse) / inverse.sum()


def fd() -> Twice:
    old = drawn(7, 5, seed=1)

    def plain(f: Array) -> float:
        return float(np.mean([1 - cosines(f[i : i + 1], old[i : i + 1])[0, 0] for i in range(len(f))]))

    return Twice(lambda f: feature_distillation(f, single(old)), plain, drawn(7, 5))


def kd(temperature: float) -> Twice:
    old = 2 * drawn(7, 4, seed=1)

    def plain(z: Array) -> float:
        target = probabilities(old) ** (1 / temperature)  # the published form: powers of probabilities, renormalised
        target /= target.sum(1, keepdims=True)
        return float(-(target * np.log(probabilities(z / temperature))).sum(1).mean())

    return Twice(lambda z: logit_distillation(z, single(old), temperature), plain, 2 * drawn(7, 4))


def bic_sigmoid(temperature: float) -> Twice:
    old = 2 * drawn(7, 4, seed=1)

    def plain(z: Array) -> float:
        p, q = (1 / (1 + np.exp(-v / temperature)) for v in (z, old))
        return float(-(q * np.log(p) + (1 - q) * np.log(1 - p)).mean())

    return Twice(lambda z: sigmoid_distillation(z, single(old), temperature), plain, 2 * drawn(7, 4))


def margin(first: int, top: int) -> Twice:
    labels = LABELS % 3  # old classes

    def plain(scores: Array) -> float:
        terms = []
        for row, label in zip(scores, labels, strict=True):
            rivals = sorted((row[j] for j in range(first, 6) if j != label), reverse=True)[:top]
            terms += [max(0.0, 0.5 - row[label] + rival) for rival in rivals]
        return sum(terms) / len(terms)

    def ours(scores: Tensor) -> Tensor:
        return margin_ranking(scores, torch.from_numpy(labels), first, top, 0.5)

    return Twice(ours, plain, np.tanh(0.5 * drawn(7, 6)))


def pod() -> Twice:
    old = drawn(3, 4, 5, 6, seed=1)

    def strips(h: Array) -> Array:
        pooled = np.concatenate([(h**2).sum(-1).ravel(), (h**2).sum(-2).ravel()])
        return np.asarray(pooled / np.sqrt(pooled @ pooled))

    def plain(maps: Array) -> float:
        return float(np.mean([np.sqrt(((strips(a) - strips(b)) ** 2).sum()) for a, b in zip(maps, old, strict=True)]))

    return Twice(lambda maps: pod_spatial([maps], [single(old)]).mean(), plain, drawn(3, 4, 5, 6))


def lsc_of_code() -> Twice:
    """As released: the own class is e^0 = 1 in the sum, and the largest score, which is subtracted, has a gradient."""

    def plain(z: Array) -> float:
        total = 0.0
        for row, label in zip(z, LABELS, strict=True):
            scores = row - row.max()
            total += np.log(1 + sum(np.exp(scores[j]) for j in range(6) if j != label)) - scores[label]
        return float(total / len(z))

    return Twice(lambda z: nca_of_code(z, torch.from_numpy(LABELS)).mean(), plain, drawn(7, 6))


def lsc_of_paper(eta_margin: float) -> Twice:
    def plain(z: Array) -> float:
        total = 0.0
        for row, label in zip(z, LABELS, strict=True):
            others = sum(np.exp(row[j]) for j in range(6) if j != label)
            total += max(0.0, -np.log(np.exp(row[label] - eta_margin) / others))
        return float(total / len(z))

    def ours(z: Tensor) -> Tensor:
        return nca_of_paper(z, torch.from_numpy(LABELS), torch.tensor(eta_margin)).mean()

    at = drawn(7, 6)
    at[0, LABELS[0]] = 9.0  # clipped
    return Twice(ours, plain, at)


def icarl_bce() -> Twice:
    """Old classes have the old sigmoids as targets whatever the label, new ones their label; summed over classes."""
    made = advanced("icarl", steps=0)
    batch = made.batch_of(2, range(8), 1)
    old = 2 * drawn(8, 4, seed=1)
    made.method.old_outputs = lambda x: Outputs(single(old), single(old))

    def ours(z: Tensor) -> Tensor:
        return torch.stack([*made.method.loss(batch, lambda x: Outputs(z, z)).values()]).sum()

    def plain(z: Array) -> float:
        p, q = (1 / (1 + np.exp(-v)) for v in (z, old))
        total = 0.0
        for i, label in enumerate(batch.y.tolist()):
            targets = [*q[i], *(float(label == j) for j in range(4, 8))]
            total -= sum(t * np.log(a) + (1 - t) * np.log(1 - a) for t, a in zip(targets, p[i], strict=True))
        return float(total / len(z))

    return Twice(ours, plain, drawn(8, 8))


def influence_of_bct() -> Twice:
    """The mean over the rows of old classes alone."""
    made = advanced("lifelong_bct", "bct.weight=0.7", steps=0)
    batch: Batch = made.batch_of(2, range(8), 1)
    old, bias = made.method.old_head.double().numpy(), made.method.old_bias.double().numpy()

    def ours(f: Tensor) -> Tensor:
        return made.method.loss(batch, lambda x: Outputs(f, torch.zeros(8, 8)))["influence"]

    def plain(f: Array) -> float:
        rows = [i for i, label in enumerate(batch.y.tolist()) if label < 4]
        terms = [np.log(probabilities(f[i] @ old.T + bias))[int(batch.y[i])] for i in rows]
        return float(-0.7 * sum(terms) / len(terms))

    return Twice(ours, plain, drawn(8, old.shape[1]))


def foster_boost() -> Twice:
    made = advanced("foster", "foster.beta_boost=0.8", steps=0)
    batch, omega = made.batch_of(2, range(8), 1), effective_weights([2] * 4 + [6] * 4, 0.8)

    def ours(z: Tensor) -> Tensor:
        def network(x: Tensor, old: Tensor) -> AuxiliaryOutputs:
            return AuxiliaryOutputs(z, z, z)

        return made.method.boost(batch, network)["ce"]

    def plain(z: Array) -> float:
        return float(-np.log(probabilities(z / omega)[np.arange(8), batch.y.numpy()]).mean())

    return Twice(ours, plain, drawn(8, 8))


def foster_bkd() -> Twice:
    made = advanced("foster", "foster.beta_compress=0.8", "foster.temperature=3", steps=0)
    batch, omega = made.batch_of(2, range(8), 1), effective_weights([2] * 4 + [6] * 4, 0.8)
    boosted = 3 * drawn(8, 8, seed=1)
    made.method.boosted_logits = lambda x: single(boosted)

    def ours(z: Tensor) -> Tensor:
        def network(x: Tensor) -> Outputs:
            return Outputs(z, z)

        return made.method.compress(batch, network)["bkd"]

    def plain(z: Array) -> float:
        target = probabilities(boosted / 3) * omega
        target /= target.sum(1, keepdims=True)
        return float(-(target * np.log(probabilities(z / 3))).sum(1).mean())

    return Twice(ours, plain, drawn(8, 8))


def hoc(mask: str, anchor: str) -> Twice:
    old, labels, mu = drawn(7, 5, seed=1), torch.from_numpy(LABELS), 2.0
    options = HocOptions.model_validate({"mask": mask, "anchor": anchor, "mu": mu})

    def plain(new: Array) -> float:
        scores = np.exp(mu * (cosines(new, old) if anchor == "new" else cosines(old, new)))
        total = 0.0
        for i, label in enumerate(LABELS):
            others = scores[i, label != LABELS].sum() + (np.sum(label == LABELS) if mask == "code" else 0)
            total -= np.log(scores[i, i] / others)
        return float(total / len(LABELS))

    return Twice(lambda new: contrastive(new, single(old), labels, labels, options), plain, drawn(7, 5))


def simplex(classes: int) -> Twice:
    """Cross-entropy of the fixed classifier, its vertices as a dense matrix with the right angles."""
    gram = np.full((classes, classes), -1 / (classes - 1))
    np.fill_diagonal(gram, 1.0)
    raw = np.vstack([np.eye(classes - 1), np.full((1, classes - 1), (1 - np.sqrt(classes)) / (classes - 1))])
    vertices = raw - raw.mean(0)
    vertices /= np.sqrt((vertices**2).sum(1, keepdims=True))
    np.testing.assert_allclose(vertices @ vertices.T, gram, atol=1e-12)
    classifier, labels = SimplexClassifier(classes), LABELS % classes

    def ours(f: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(classifier(f), torch.from_numpy(labels))

    def plain(f: Array) -> float:
        return float(-np.log(probabilities(f @ vertices.T)[np.arange(7), labels]).mean())

    return Twice(ours, plain, drawn(7, classes - 1))


CASES: dict[str, Callable[[], Twice]] = {
    "FD": fd,
    "KD, T = 1": lambda: kd(1.0),
    "KD, T = 2": lambda: kd(2.0),
    "sigmoid distillation of BiC": lambda: bic_sigmoid(2.0),
    "margin ranking of LUCIR, new classes": lambda: margin(3, 2),
    "margin ranking of LUCIR, all classes": lambda: margin(0, 2),
    "POD-spatial": pod,
    "LSC of PODNet as released": lsc_of_code,
    "LSC of PODNet as written": lambda: lsc_of_paper(0.6),
    "BCE of iCaRL": icarl_bce,
    "influence loss of BCT": influence_of_bct,
    "boosting of FOSTER": foster_boost,
    "BKD of FOSTER": foster_bkd,
    "HOC": lambda: hoc("inf", "new"),
    "HOC, similarities of the own class 0": lambda: hoc("code", "new"),
    "HOC, old features compared with new ones": lambda: hoc("inf", "old"),
    "HOC as released": lambda: hoc("code", "old"),
    "simplex, K = 3": lambda: simplex(3),
    "simplex, K = 20": lambda: simplex(20),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_those_of_the_formula(name: str) -> None:
    twice = CASES[name]()
    x = single(twice.at).requires_grad_()
    loss = twice.ours(x)
    (gradient,) = torch.autograd.grad(loss, x)
    at = x.detach().double().numpy()
    assert loss.item() == pytest.approx(twice.plain(at), abs=1e-6)
    slopes = np.empty_like(at)
    for place in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[place] = STEP
        slopes[place] = (twice.plain(at + step) - twice.plain(at - step)) / (2 * STEP)
    assert np.abs(slopes).max() > 1e-3
    np.testing.assert_allclose(gradient.numpy(), slopes, rtol=0, atol=1e-5)


@pytest.mark.parametrize("beta", [0.0, 0.94, 0.97])
def test_the_weights_of_foster_are_inverse_effective_numbers(beta: float) -> None:
    counts = [4, 4, 20, 86, 500]
    np.testing.assert_allclose(class_weights(np.array(counts), beta), effective_weights(counts, beta), atol=1e-9)
