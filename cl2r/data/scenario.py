"""The class-incremental scenario: which classes, and so which training rows, arrive with which task.

Task t brings D_t, the images of the next classes in the class order; no class returns in a later task.
Labels are positions in that order, so task t always owns consecutive labels and consecutive simplex vertices.
"""

import contextlib
import hashlib
import io
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cl2r.data.dataset import Labels
from cl2r.data.npz import UNREADABLE
from cl2r.errors import InputError
from cl2r.seeding import numpy_stream
from cl2r.storage.path import cache_folder
from cl2r.storage.seal import sealed, unsealed

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Task:
    """One task: its number from 1, its original class ids in order, their labels, its rows of x_train."""

    index: int
    classes: tuple[int, ...]
    labels: range
    rows: Labels


@dataclass(frozen=True, eq=False)
class Scenario:
    """All tasks, and the label of every training row."""

    tasks: tuple[Task, ...]
    labels: Labels


def class_increments(
    num_classes: int, n_tasks: int | None, initial: int | None = None, increment: int | None = None
) -> tuple[int, ...]:
    """Return the number of classes per task: n_tasks equal ones, or `initial` and then `increment` at a time."""
    if n_tasks is not None:
        if initial is not None or increment is not None:
            raise InputError("scenario.n_tasks excludes scenario.initial and scenario.increment: give one form only")
        if not 1 <= n_tasks <= num_classes:
            raise InputError(
                f"scenario.n_tasks = {n_tasks}: give a number from 1 to the {num_classes} training classes"
            )
        base, remainder = divmod(num_classes, n_tasks)
        return tuple(base + (task < remainder) for task in range(n_tasks))
    if increment is None:
        raise InputError("scenario: give n_tasks, or increment with an optional initial")
    if increment < 1:
        raise InputError(f"scenario.increment = {increment}: must be at least 1")
    first = increment if initial is None else initial
    if not 1 <= first <= num_classes:
        raise InputError(f"scenario: the first task has {first} classes, give 1 to {num_classes}, all of them")
    full, rest = divmod(num_classes - first, increment)
    return (first, *[increment] * full, *[rest] * (rest > 0))


def class_order(num_classes: int, seed: int, kind: Literal["seeded", "identity"]) -> tuple[int, ...]:
    """Return the order in which classes arrive; seed 0 keeps the order of the data set, as does `identity`."""
    if kind not in ("seeded", "identity"):
        raise InputError(f"scenario.class_order {kind!r}: expected 'seeded' or 'identity'")
    if kind == "identity" or seed == 0:
        return tuple(range(num_classes))
    return tuple(numpy_stream(seed, "class_order").permutation(num_classes).tolist())


def build_scenario(y_train: Labels, increments: Sequence[int], order: Sequence[int]) -> Scenario:
    """Split the training rows into tasks of `increments` classes, taken in `order`."""
    if sorted(order) != list(range(len(order))):
        raise InputError(f"class order must name each of 0..{len(order) - 1} once")
    if not np.array_equal(np.unique(y_train), np.arange(len(order))):
        raise InputError(f"class order names {len(order)} classes, but the training labels are different")
    if min(increments, default=0) < 1 or sum(increments) != len(order):
        raise InputError(f"task sizes {list(increments)} must be positive and add up to {len(order)} classes")
    raw = _split(y_train, list(increments), list(order))
    labels, tasks, start = np.empty(len(y_train), np.int64), list[Task](), 0
    for index, (count, (rows, row_labels)) in enumerate(zip(increments, raw, strict=True), start=1):
        labels[rows], stop = row_labels, start + count
        tasks.append(Task(index, tuple(order[start:stop]), range(start, stop), rows))
        start = stop
    return Scenario(tuple(tasks), labels)


def _split(y_train: Labels, increments: list[int], order: list[int]) -> list[tuple[Labels, Labels]]:
    """Return rows and labels of every task, cached on disk: every worker would take seconds to import continuum."""
    content = json.dumps([increments, order]).encode() + np.ascontiguousarray(y_train, np.int64).tobytes()
    digest = hashlib.sha256(content).hexdigest()[:32]
    owner = f"split {digest}"
    try:
        path = cache_folder() / f"split-{digest}.npz"
    except RuntimeError:  # the user has no home folder
        return _continuum_tasks(y_train, increments, order)
    try:
        return _stored_tasks(unsealed(path.read_bytes(), owner), len(y_train), increments)
    except (FileNotFoundError, NotADirectoryError):  # not cached, or there is no place for a cache
        pass
    except (KeyError, *UNREADABLE) as error:
        log.warning("%s is not used (%s); the split is computed again", path, error)
    raw = _continuum_tasks(y_train, increments, order)
    arrays = {f"rows{task}": rows for task, (rows, _) in enumerate(raw)}
    arrays |= {f"labels{task}": labels for task, (_, labels) in enumerate(raw)}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, not results
        path.write_file(sealed(buffer.getvalue(), owner))
    return raw


def _stored_tasks(content: bytes, count: int, increments: list[int]) -> list[tuple[Labels, Labels]]:
    """Return rows and labels of every task from a file. Raise ValueError unless they are a split of `count` rows."""
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        raw = [(stored[f"rows{task}"], stored[f"labels{task}"]) for task in range(len(increments))]
    fits, start = np.array_equal(np.sort(np.concatenate([rows for rows, _ in raw])), np.arange(count)), 0
    for classes, (rows, labels) in zip(increments, raw, strict=True):
        fits &= len(rows) == len(labels) and np.array_equal(np.unique(labels), np.arange(start, start + classes))
        start += classes
    if not fits:
        raise ValueError("its rows are not those of the tasks")
    return raw


def _continuum_tasks(y_train: Labels, increments: list[int], order: list[int]) -> list[tuple[Labels, Labels]]:
    # imported here: continuum loads scipy and matplotlib, which most commands can do without
    from continuum import ClassIncremental, TaskType, datasets

    # continuum gets row numbers instead of images, so that no pixel is copied
    rows = datasets.InMemoryDataset(np.arange(len(y_train), dtype=np.int64), y_train, data_type=TaskType.TENSOR)
    stream = ClassIncremental(rows, increment=increments, class_order=order)
    raw = [stream[index].get_raw_samples() for index in range(len(stream))]
    return [(np.asarray(x, np.int64), np.asarray(y, np.int64)) for x, y, _ in raw]
