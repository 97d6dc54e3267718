"""Losses in plain Python, row by row: the references for the methods' own."""

import math
from collections.abc import Sequence

from torch import Tensor


def softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Return probabilities."""
    powers = [math.exp(z / temperature) for z in logits]
    return [power / math.fsum(powers) for power in powers]


def slow_ce(logits: Tensor, labels: Tensor, first: int = 0) -> float:
    """Return CE over the logits from `first` on and the rows whose label is among them."""
    pairs = zip(logits.tolist(), labels.tolist(), strict=True)
    rows = [-math.log(softmax(z[first:])[label - first]) for z, label in pairs if label >= first]
    return math.fsum(rows) / len(rows)


def slow_kd(logits: Tensor, old: Tensor, temperature: float) -> float:
    """Return KD_T over as many of the first logits as there are old ones."""
    total = 0.0
    for z, before in zip(logits.tolist(), old.tolist(), strict=True):
        target, now = softmax(before, temperature), softmax(z[: len(before)], temperature)
        total -= sum(p * math.log(q) for p, q in zip(target, now, strict=True))
    return total / len(logits)


def cosine(f: Sequence[float], g: Sequence[float]) -> float:
    """Return cos(f, g)."""
    dot = math.fsum(a * b for a, b in zip(f, g, strict=True))
    return dot / math.sqrt(math.fsum(a * a for a in f) * math.fsum(b * b for b in g))


def slow_fd(new: Tensor, old: Tensor) -> float:
    """Return the mean of 1 − cos over the rows."""
    return math.fsum(1 - cosine(f, g) for f, g in zip(new.tolist(), old.tolist(), strict=True)) / len(new)
