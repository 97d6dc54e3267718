"""How much is measured: sizes of the paper's CIFAR-100 runs and of IJB-C, or tiny ones to see that all works."""

import os
from dataclasses import dataclass, fields

from cl2r.errors import InputError


@dataclass(frozen=True)
class Sizes:
    """What the parts take their sizes from."""

    rounds: int = 7
    threads: int = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    tasks: int = 10
    """Models of the matrix."""
    check_cells: int = 10**6
    """Cells of the matrix, at most, whose accuracy is sought a second time by exhaustion."""
    trials: int = 20
    backbone: str = "resnet32"
    batch: int = 128
    steps: int = 4
    """Of a variant in a round."""
    per_class: int = 500
    """Training images; ten classes a task, 20 images of each kept in memory."""
    outputs: int = 100
    """K."""
    open_images: int = 10_000
    pairs: int = 6000
    identities: int = 10_575
    """K of the large simplex."""
    simplex_batches: tuple[int, ...] = (128, 1024)
    compared_pairs: int = 15_658_489
    """Of IJB-C's size."""
    positive_pairs: int = 19_557
    timed_thresholds: int = 40
    study_rounds: int = 3


SMALL = Sizes(
    rounds=2,
    tasks=2,
    trials=6,
    backbone="resnet8s",
    batch=32,
    steps=2,
    per_class=30,
    outputs=30,
    open_images=300,
    pairs=200,
    identities=50,
    simplex_batches=(16,),
    compared_pairs=20_000,
    positive_pairs=400,
    timed_thresholds=5,
    study_rounds=1,
)


def check(sizes: Sizes) -> None:
    """Refuse what cannot be measured."""
    least = {"check_cells": 0, "trials": 6}
    for field in fields(sizes):
        value, low = getattr(sizes, field.name), least.get(field.name, 1)
        if isinstance(value, int) and value < low:
            raise InputError(f"--{field.name.replace('_', '-')} {value}: at least {low}")
