"""Losses in plain Python, row by row: what the methods' own are compared with."""

import math
from collections.abc import Sequence

from torch import Tensor


def softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Σ = 1."""
    powers = [math.exp(z / temperature) for z in logits]
    return [power / math.fsum(powers) for power in powers]


def slow_kd(logits: Tensor, old: Tensor, temperature: float) -> float:
    """KD_T over as many of the first logits as there are old ones."""
    total = 0.0
    for z, before in zip(logits.tolist(), old.tolist(), strict=True):
        target, now = softmax(before, temperature), softmax(z[: len(before)], temperature)
        total -= sum(p * math.log(q) for p, q in zip(target, now, strict=True))
    return total / len(logits)
