"""Task sizes, class orders, and the split of rows, checked against plain numpy."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cl2r.data.scenario import build_scenario, class_increments, class_order
from cl2r.errors import InputError
from cl2r.storage.seal import owner_of, sealed, unsealed


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 300), st.data())
def test_equal_split(num_classes: int, data: st.DataObject) -> None:
    n_tasks = data.draw(st.integers(1, num_classes))
    sizes = class_increments(num_classes, n_tasks)
    assert len(sizes) == n_tasks
    assert sum(sizes) == num_classes
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 300), st.integers(1, 40), st.data())
def test_initial_and_increment(num_classes: int, increment: int, data: st.DataObject) -> None:
    initial = data.draw(st.integers(1, num_classes))
    sizes = class_increments(num_classes, None, initial, increment)
    assert sum(sizes) == num_classes
    assert sizes[0] == initial
    assert all(size == increment for size in sizes[1:-1])
    assert all(1 <= size <= increment for size in sizes[1:])


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ((100, 3), (34, 33, 33)),
        ((100, 1), (100,)),
        ((5, 5), (1, 1, 1, 1, 1)),
        ((100, None, 50, 10), (50, 10, 10, 10, 10, 10)),
        ((100, None, 50, 20), (50, 20, 20, 10)),
        ((10, None, None, 4), (4, 4, 2)),
        ((10, None, 10, 4), (10,)),
    ],
)
def test_known_sizes(arguments: tuple[int | None, ...], sizes: tuple[int, ...]) -> None:
    assert class_increments(*arguments) == sizes  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 11), "n_tasks = 11"),
        ((10, 0), "n_tasks = 0"),
        ((10, -1), "n_tasks = -1"),
        ((10, 2, 5, 5), "n_tasks excludes"),
        ((10, 2, None, 5), "n_tasks excludes"),
        ((10, 2, 5), "n_tasks excludes"),
        ((10, None, 5), "give n_tasks, or increment"),
        ((10, None), "give n_tasks, or increment"),
        ((10, None, 11, 1), "first task has 11 classes"),
        ((10, None, 0, 1), "first task has 0 classes"),
        ((10, None, 5, 0), "increment = 0"),
        ((10, None, 5, -2), "increment = -2"),
    ],
)
def test_impossible_sizes_are_refused(arguments: tuple[int | None, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        class_increments(*arguments)  # type: ignore[arg-type]


def test_class_order() -> None:
    identity = tuple(range(50))
    assert class_order(50, 0, "seeded") == identity
    assert class_order(50, 3, "identity") == identity
    first, second = class_order(50, 1, "seeded"), class_order(50, 2, "seeded")
    assert sorted(first) == sorted(second) == list(identity)
    assert len({identity, first, second}) == 3
    assert class_order(50, 1, "seeded") == first
    with pytest.raises(InputError, match="'random'"):
        class_order(50, 1, "random")  # type: ignore[arg-type]


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 12), st.integers(0, 2**31), st.data())
def test_split_equals_plain_numpy(num_classes: int, seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.concatenate([np.arange(num_classes), rng.integers(0, num_classes, 40)]))
    sizes = class_increments(num_classes, data.draw(st.integers(1, num_classes)))
    order = tuple(rng.permutation(num_classes).tolist())
    scenario = build_scenario(y, sizes, order)
    assert scenario.labels.tolist() == [order.index(label) for label in y]
    assert [task.index for task in scenario.tasks] == list(range(1, len(sizes) + 1))
    start = 0
    for task, size in zip(scenario.tasks, sizes, strict=True):
        assert task.classes == order[start : start + size]
        assert task.labels == range(start, start + size)
        assert task.rows.tolist() == [row for row, label in enumerate(y) if label in task.classes]
        start += size
    assert sum(len(task.rows) for task in scenario.tasks) == len(y)
    assert scenario.labels.dtype == scenario.tasks[0].rows.dtype == np.int64


def test_one_task_per_unequal_size() -> None:
    scenario = build_scenario(np.array([2, 0, 1, 3, 2]), (3, 1), (2, 0, 3, 1))
    assert scenario.labels.tolist() == [0, 1, 3, 2, 0]
    assert [task.rows.tolist() for task in scenario.tasks] == [[0, 1, 3, 4], [2]]


@pytest.mark.parametrize(
    ("sizes", "order", "message"),
    [
        ((2, 1), (0, 1, 2, 3), "must be positive and add up to 4"),
        ((4, 0), (0, 1, 2, 3), "must be positive"),
        ((), (0, 1, 2, 3), "must be positive"),
        ((2, 2), (0, 1, 2, 2), "each of 0..3 once"),
        ((2, 1), (0, 1, 2), "names 3 classes"),
        ((3, 2), (0, 1, 2, 3, 4), "names 5 classes"),
    ],
)
def test_a_split_that_does_not_fit_is_refused(sizes: tuple[int, ...], order: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_scenario(np.array([0, 1, 2, 3]), sizes, order)


def test_a_cached_split_is_the_same_and_needs_no_continuum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    labels = np.random.default_rng(5).permutation(np.repeat(np.arange(6), 5))
    order = (3, 1, 5, 0, 2, 4)
    first = build_scenario(labels, (2, 4), order)
    with monkeypatch.context() as patch:
        patch.setattr("cl2r.data.scenario._continuum_tasks", lambda *_: pytest.fail("it was cached"))
        second = build_scenario(labels, (2, 4), order)
    for one, two in zip(first.tasks, second.tasks, strict=True):
        assert one.classes == two.classes
        np.testing.assert_array_equal(one.rows, two.rows)
    np.testing.assert_array_equal(first.labels, second.labels)
    assert len(list((tmp_path / "cl2r").iterdir())) == 1
    build_scenario(labels, (3, 3), order)
    build_scenario(labels[::-1], (3, 3), order)
    assert len(list((tmp_path / "cl2r").iterdir())) == 3


@pytest.mark.parametrize("sizes", [(2, 2), (1, 1, 2), (3, 1)])
@pytest.mark.parametrize("resealed", [False, True])
def test_the_cached_split_of_other_tasks_is_named_and_not_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    sizes: tuple[int, ...],
    resealed: bool,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    labels, order = np.repeat(np.arange(4), 3), (0, 1, 2, 3)
    expected = build_scenario(labels, (1, 3), order)
    (path,) = (tmp_path / "cl2r").iterdir()
    build_scenario(labels, sizes, order)
    (other,) = set((tmp_path / "cl2r").iterdir()) - {path}
    content = other.read_bytes()
    if resealed:
        own = owner_of(path.read_bytes())
        content = sealed(unsealed(content, owner_of(content)), own)
    path.write_bytes(content)
    assert caplog.text == ""
    found = build_scenario(labels, (1, 3), order)
    for one, two in zip(expected.tasks, found.tasks, strict=True):
        np.testing.assert_array_equal(one.rows, two.rows)
    np.testing.assert_array_equal(expected.labels, found.labels)
    assert f"{path} is not used" in caplog.text
    caplog.clear()
    build_scenario(labels, (1, 3), order)
    assert caplog.text == "", "it was written again"


def test_a_damaged_or_unwritable_cache_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    split = np.repeat(np.arange(4), 3), (2, 2), (0, 1, 2, 3)
    expected = build_scenario(*split).tasks[1].rows
    (path,) = (tmp_path / "cl2r").iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(bytes(content))
    np.testing.assert_array_equal(build_scenario(*split).tasks[1].rows, expected)
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    np.testing.assert_array_equal(build_scenario(*split).tasks[1].rows, expected)
