"""What all parts of the speed benchmark share: sizes, measuring in turns, peak memory, and the table of results."""

import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from analysis.tables.formats import render
from analysis.tables.table import EMPTY, Cell, Table
from cl2r.errors import InputError

Result = TypeVar("Result")
STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
COLUMNS = ("what", "reference", "cl2r", "ratio (quartiles)")


class DisagreementError(RuntimeError):
    """Reference and engine do not compute the same, so their times must not be compared."""


# Sizes


@dataclass(frozen=True)
class Sizes:
    """How much is measured; the defaults are the sizes of the paper's CIFAR-100 runs and of IJB-C."""

    rounds: int = 7
    threads: int = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    tasks: int = 10
    """Number of models of the matrix."""
    check_cells: int = 10**6
    """Largest number of cells of the matrix that are also checked by exhaustive search."""
    trials: int = 20
    backbone: str = "resnet32"
    batch: int = 128
    steps: int = 4
    """Training steps per variant and round."""
    per_class: int = 500
    """Training images per class; a task has ten classes, and the memory keeps 20 images of each."""
    outputs: int = 100
    """K, the number of outputs of the classifier."""
    open_images: int = 10_000
    pairs: int = 6000
    identities: int = 10_575
    """K of the large simplex."""
    simplex_batches: tuple[int, ...] = (128, 1024)
    compared_pairs: int = 15_658_489
    """Number of pairs for TAR@FAR; the default is that of IJB-C."""
    positive_pairs: int = 19_557
    timed_thresholds: int = 40
    study_rounds: int = 3

    def check(self) -> None:
        """Raise InputError if a size is too small to be measured."""
        least = {"check_cells": 0, "trials": 6}
        for field in fields(self):
            value, low = getattr(self, field.name), least.get(field.name, 1)
            if isinstance(value, int) and value < low:
                raise InputError(f"--{field.name.replace('_', '-')} {value}: at least {low}")


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


# Time and memory


@dataclass(frozen=True)
class Measured:
    """A row of the table: medians of both ways, and the median and quartiles of the ratios of the rounds.

    A ratio says how many times better the engine is; it is NaN if a sample is not above zero.
    """

    part: str
    what: str
    unit: str
    reference: float
    engine: float
    ratio: float
    low: float | None
    """First quartile of the ratios; None if there is only one round."""
    high: float | None
    repeats: int
    note: str
    reference_samples: tuple[float, ...]
    engine_samples: tuple[float, ...]


def interleaved(variants: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, tuple[float, ...]]:
    """Return what each variant measures in each round, after one call of each that does not count.

    The variants take turns, so that a slow moment of the machine hits all of them; every other round runs backwards.
    """
    for measure in variants.values():
        measure()
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds):
        for name in reversed(samples) if number % 2 else list(samples):
            samples[name].append(variants[name]())
    return {name: tuple(values) for name, values in samples.items()}


def compared(
    part: str, what: str, unit: str, reference: Sequence[float], engine: Sequence[float], note: str = ""
) -> Measured:
    """Return a row from samples of the same rounds; more is better for rates, less for all other units."""
    pairs = list(zip(reference, engine, strict=True))
    ratios = [math.nan]
    if min(map(min, pairs)) > 0:  # an overhead can be zero
        ratios = [own / plain if unit.endswith("/s") else plain / own for plain, own in pairs]
    low = high = None
    if len(ratios) > 1:
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    theirs, ours, ratio = (statistics.median(values) for values in (reference, engine, ratios))
    samples = tuple(reference), tuple(engine)
    return Measured(part, what, unit, theirs, ours, ratio, low, high, len(pairs), note, *samples)


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Return the result of `work` and the seconds that it takes."""
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes."""
    return timed(work)[1]


def say(line: str) -> None:
    """Print progress to stderr; stdout is for the table only."""
    print(line, file=sys.stderr, flush=True)


def alone(work: Callable[..., Result], *words: object) -> Result:
    """Call `work`, a function of a module, in a fresh process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *words).result()


def peak_alone(work: Callable[..., object], *words: object) -> float:
    """Return the peak memory of `work` in a fresh process, in megabytes above what the process held before."""
    return alone(_peak, work, words)


def _peak(work: Callable[..., object], words: tuple[object, ...]) -> float:
    CLEAR_REFS.write_text("5", encoding="utf-8")  # resets the peak: loading libraries may have taken more for a moment
    before = held("VmRSS")
    work(*words)
    return (held("VmHWM") - before) / 1e6


def held(field: str) -> float:
    """Return the bytes that this process holds (VmRSS) or held at most (VmHWM). Linux only."""
    line = next(line for line in STATUS.read_text(encoding="utf-8").splitlines() if line.startswith(f"{field}:"))
    return 1024 * float(line.split()[1])


# Results


def markdown(rows: Sequence[Measured], about: Mapping[str, Any]) -> str:
    """Return the Markdown table with a heading per part, and the notes and the machine below it."""
    body, last = list[tuple[Cell, ...]](), ""
    for row in rows:
        if row.part != last:
            body.append((Cell(row.part, mark="heading"), *(Cell("") for _ in COLUMNS[1:])))
            last = row.part
        values = (with_unit(row.reference, row.unit), with_unit(row.engine, row.unit), spread(row))
        body.append((Cell(row.what), *map(Cell, values)))
    machine = about["machine"]
    where = f"{machine['processor']}, {machine['cpus']} cores, {about['threads']} threads, {about['capability']}"
    notes = (
        *(f"{row.part}, {row.what}: {row.note}." for row in rows if row.note),
        "Figures are medians. A ratio is how many times better cl2r is, the median and the quartiles over rounds, each "
        "of which takes both in turns; without quartiles it was measured once.",
        f"{where}, torch {about['torch']}.",
    )
    return render(Table(COLUMNS, tuple(body), pd.DataFrame([asdict(row) for row in rows]), "", notes), "markdown")


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def with_unit(value: float, unit: str) -> str:
    """Return the value with three significant digits, or as a whole number if it is 100 or more."""
    return f"{_short(value)} {unit}"


def spread(row: Measured) -> str:
    """Return the ratio with its quartiles; below 1 the engine is worse."""
    if math.isnan(row.ratio):
        return EMPTY
    middle = f"{_short(row.ratio)}×"
    return middle if row.low is None or row.high is None else f"{middle} ({_short(row.low)}–{_short(row.high)})"


def to_json(rows: Sequence[Measured], about: Mapping[str, Any]) -> str:
    """Return all rows with their samples as JSON; NaN becomes null."""

    def finite(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    plain = [{key: finite(value) for key, value in asdict(row).items()} for row in rows]
    return json.dumps({**about, "rows": plain}, indent=1, ensure_ascii=False, allow_nan=False)


def read_json(text: str) -> tuple[list[Measured], dict[str, Any]]:
    """Return the rows and facts that `to_json` wrote."""
    facts: dict[str, Any] = json.loads(text)
    rows = []
    for row in facts.pop("rows"):
        ratio = math.nan if row["ratio"] is None else row["ratio"]
        samples = {name: tuple(row[name]) for name in ("reference_samples", "engine_samples")}
        rows.append(Measured(**{**row, "ratio": ratio, **samples}))
    return rows, facts


def joined(
    old: Sequence[Measured], facts: Mapping[str, Any], new: Sequence[Measured], about: Mapping[str, Any]
) -> list[Measured]:
    """Return the new rows together with the old rows of parts that were not measured again, in the old order.

    Old rows are dropped if they come from another machine, other libraries or another number of threads.
    """
    if any(facts.get(name) != about[name] for name in ("machine", "torch", "capability", "threads")):
        old = ()
    order = list(dict.fromkeys(row.part for row in (*old, *new)))
    fresh = {row.part for row in new}
    kept = [row for row in old if row.part not in fresh]
    return sorted([*kept, *new], key=lambda row: order.index(row.part))
