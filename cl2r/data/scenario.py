"""The class-incremental scenario: which classes, and so which training rows, arrive with which task.

Task t brings D_t, the images of the next classes of the class order; no class comes back in a later task.
Labels are positions in that order, so task t always owns one run of labels and one run of simplex vertices.
The split is made by continuum, which is given row numbers in place of images: no pixel is copied.
"""

import contextlib
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from cl2r.data.dataset import Labels
from cl2r.errors import InputError
from cl2r.files import write_file
from cl2r.seeding import numpy_stream

_PARTS = ("rows", "labels")


@dataclass(frozen=True, eq=False)
class Task:
    """One task: its number from 1, its original class ids in order, their labels, its rows of x_train."""

    index: int
    classes: tuple[int, ...]
    labels: range
    rows: Labels


@dataclass(frozen=True, eq=False)
class Scenario:
    """All tasks, and the label and the task (from 1) of every training row."""

    tasks: tuple[Task, ...]
    num_classes: int
    labels: Labels
    task_of_row: Labels


def class_increments(
    num_classes: int, n_tasks: int | None, initial: int | None = None, increment: int | None = None
) -> tuple[int, ...]:
    """Classes of every task: an equal split in n_tasks, or `initial` and then `increment` at a time."""
    if n_tasks is not None and (initial is not None or increment is not None):
        raise InputError("scenario.n_tasks excludes scenario.initial and scenario.increment: give one form only")
    if n_tasks is not None:
        return _equal_split(num_classes, n_tasks)
    if increment is None:
        raise InputError("scenario: give n_tasks, or increment with an optional initial")
    return _growing(num_classes, increment if initial is None else initial, increment)


def class_order(num_classes: int, seed: int, kind: Literal["seeded", "identity"]) -> tuple[int, ...]:
    """The order in which classes arrive; seed 0 keeps the order of the data set, as does `identity`."""
    if kind not in ("seeded", "identity"):
        raise InputError(f"scenario.class_order {kind!r}: expected 'seeded' or 'identity'")
    if kind == "identity" or seed == 0:
        return tuple(range(num_classes))
    return tuple(numpy_stream(seed, "class_order").permutation(num_classes).tolist())


def build_scenario(y_train: Labels, increments: Sequence[int], order: Sequence[int]) -> Scenario:
    """Split the training rows into tasks of `increments` classes, taken in `order`."""
    _check_split(y_train, increments, order)
    raw = _split(y_train, list(increments), list(order))
    labels, task_of_row = np.empty(len(y_train), np.int64), np.empty(len(y_train), np.int64)
    tasks, start = [], 0
    for index, (count, (rows, row_labels)) in enumerate(zip(increments, raw, strict=True), start=1):
        labels[rows], task_of_row[rows] = row_labels, index
        stop = start + count
        tasks.append(Task(index, tuple(order[start:stop]), range(start, stop), rows))
        start = stop
    return Scenario(tuple(tasks), len(order), labels, task_of_row)


def _equal_split(num_classes: int, n_tasks: int) -> tuple[int, ...]:
    if not 1 <= n_tasks <= num_classes:
        raise InputError(f"scenario.n_tasks = {n_tasks}: must be between 1 and the {num_classes} training classes")
    base, remainder = divmod(num_classes, n_tasks)
    return tuple(base + (task < remainder) for task in range(n_tasks))


def _growing(num_classes: int, initial: int, increment: int) -> tuple[int, ...]:
    if increment < 1:
        raise InputError(f"scenario.increment = {increment}: must be at least 1")
    if not 1 <= initial <= num_classes:
        field = f"the first task would have {initial} classes"
        raise InputError(f"scenario: {field}, must be between 1 and the {num_classes} training classes")
    full, rest = divmod(num_classes - initial, increment)
    return (initial, *[increment] * full, *[rest] * (rest > 0))


def _check_split(y_train: Labels, increments: Sequence[int], order: Sequence[int]) -> None:
    if sorted(order) != list(range(len(order))):
        raise InputError(f"class order must name each of 0..{len(order) - 1} once")
    if not np.array_equal(np.unique(y_train), np.arange(len(order))):
        raise InputError(f"class order names {len(order)} classes, the training labels are others")
    if min(increments, default=0) < 1 or sum(increments) != len(order):
        raise InputError(f"task sizes {list(increments)} must be positive and add up to {len(order)} classes")


def cache_folder() -> Path:
    """Where splits are kept for the next process: `$XDG_CACHE_HOME`/cl2r."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cl2r"


def _split(y_train: Labels, increments: list[int], order: list[int]) -> list[tuple[Labels, Labels]]:
    """Rows and labels of every task, remembered: to import continuum takes seconds, and every worker would."""
    content = json.dumps([increments, order]).encode() + np.ascontiguousarray(y_train, np.int64).tobytes()
    try:
        path = cache_folder() / f"split1-{hashlib.sha256(content).hexdigest()[:32]}.npz"
    except RuntimeError:  # a user without a home
        return _continuum_tasks(y_train, increments, order)
    try:
        with np.load(path, allow_pickle=False) as stored:
            return [(stored[f"rows{task}"], stored[f"labels{task}"]) for task in range(len(increments))]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):  # none yet, or damaged: zip files carry checksums
        raw = _continuum_tasks(y_train, increments, order)
    arrays = {f"{part}{task}": array for task, pair in enumerate(raw) for part, array in zip(_PARTS, pair, strict=True)}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    with contextlib.suppress(OSError):  # a home that cannot be written costs time, not results
        write_file(path, buffer.getvalue())
    return raw


def _continuum_tasks(y_train: Labels, increments: list[int], order: list[int]) -> list[tuple[Labels, Labels]]:
    """Rows and labels of every task. continuum takes explicit task sizes as a list only, never as a tuple."""
    # imported here: continuum loads scipy and matplotlib, which most commands can do without
    from continuum import ClassIncremental, TaskType, datasets

    rows = np.arange(len(y_train), dtype=np.int64)
    stream = ClassIncremental(
        datasets.InMemoryDataset(rows, y_train, data_type=TaskType.TENSOR),
        increment=increments,
        class_order=order,
    )
    raw = [stream[index].get_raw_samples() for index in range(len(stream))]
    return [(np.asarray(x, np.int64), np.asarray(y, np.int64)) for x, y, _ in raw]
