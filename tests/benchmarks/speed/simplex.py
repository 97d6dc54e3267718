"""The d-Simplex classifier with many classes, forward and backward: dense matrix and closed form."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from cl2r.simplex import SimplexClassifier
from tests.benchmarks.speed.harness import (
    DisagreementError,
    Measured,
    Sizes,
    compared,
    interleaved,
    peak_alone,
    seconds,
)
from tests.benchmarks.speed.plain import DenseSimplex

PART, TOLERANCE = "simplex", 1e-3
KINDS: dict[str, Callable[[int], nn.Module]] = {"dense": DenseSimplex, "closed": SimplexClassifier}


def measure(sizes: Sizes, folder: Path) -> Iterator[Measured]:
    """Measure seconds in turns, then memory, each in a process of its own."""
    classes = sizes.identities
    heads = {kind: build(classes) for kind, build in KINDS.items()}
    for batch in sizes.simplex_batches:
        what = f"K = {classes:,}, batch {batch:,}, forward and backward"
        features, upstream = inputs(classes, batch)
        note = f"logits and gradients agree to {apart(heads, features, upstream):.0e}"
        works = {kind: partial(passed, head, features, upstream) for kind, head in heads.items()}
        samples = interleaved({kind: partial(seconds, work) for kind, work in works.items()}, sizes.rounds)
        yield compared(PART, what, "s", samples["dense"], samples["closed"], note)
    del heads
    for batch in sizes.simplex_batches:
        peaks = [peak_alone(one_pass, kind, classes, batch) for kind in KINDS]
        what = f"K = {classes:,}, batch {batch:,}, peak memory"
        note = "matrix, features, logits and gradients; one process each"
        yield compared(PART, what, "MB", peaks[:1], peaks[1:], note)


def inputs(classes: int, batch: int) -> tuple[Tensor, Tensor]:
    """Return features, and a gradient of the logits."""
    generator = torch.Generator().manual_seed(batch)
    features = torch.randn(batch, classes - 1, generator=generator).requires_grad_()
    return features, torch.randn(batch, classes, generator=generator)


def passed(head: nn.Module, features: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits, and the gradient of the features."""
    features.grad = None
    logits: Tensor = head(features)
    logits.backward(upstream)  # type: ignore[no-untyped-call]
    assert features.grad is not None
    return logits.detach(), features.grad


def apart(heads: dict[str, nn.Module], features: Tensor, upstream: Tensor) -> float:
    """Return the largest difference; raise DisagreementError if it is more than rounding."""
    dense, closed = (passed(heads[kind], features, upstream) for kind in KINDS)
    largest = max(float((one - other).abs().max()) for one, other in zip(dense, closed, strict=True))
    if not largest <= TOLERANCE:
        raise DisagreementError(f"dense simplex and closed form differ by {largest:g}")
    return largest


def one_pass(kind: str, classes: int, batch: int) -> None:
    """Make one pass, in a process of its own."""
    passed(KINDS[kind](classes), *inputs(classes, batch))
