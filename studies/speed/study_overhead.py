"""Seconds a trial beyond training, and of everything: plain Ray Tune and cl2r's study, on the same tiny runs."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from studies.speed.memory import alone
from studies.speed.sizes import Sizes
from studies.speed.timing import Measured, compared, say
from studies.speed.tiny_runs import CONCURRENT, Timed, by_study, by_tune, write_preset

PART = "study"


def measure(sizes: Sizes, folder: Path) -> Iterator[Measured]:
    """One after the other, some times, each in a fresh process with a Ray of its own."""
    plain, study = list[Timed](), list[Timed]()
    for number in range(sizes.study_rounds):
        plain.append(timed(by_tune, folder, sizes.trials))
        study.append(timed(by_study, folder, sizes.trials))
        walls = f"{plain[-1].wall:.1f} s by Tune, {study[-1].wall:.1f} s by a study"
        say(f"{sizes.trials} trials, {number + 1} of {sizes.study_rounds}: {walls}")
    note = (
        f"{sizes.trials} runs of two short tasks, {CONCURRENT} at a time, while both lanes have work; Tune with its "
        "defaults, a new process a trial; its Ray has no dashboard, as cl2r's"
    )
    beyond = [one.overhead for one in plain], [one.overhead for one in study]
    yield compared(PART, "overhead a trial", "s", *beyond, note)
    whole = [one.wall for one in plain], [one.wall for one in study]
    yield compared(
        PART,
        f"wall of {sizes.trials} trials",
        "s",
        *whole,
        "Ray's start and end included; and, of cl2r, its frames, figures and report",
    )


def timed(way: Callable[[Path, int], Timed], folder: Path, trials: int) -> Timed:
    """In a folder and a process of their own."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        write_preset(Path(own))
        return alone(way, Path(own), trials)
