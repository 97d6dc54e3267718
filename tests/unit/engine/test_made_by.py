"""What made a link is part of it: links of other devices and other numbers of workers are not mixed by accident."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cl2r.config.keys import stored_key
from cl2r.engine.chain import Chain, RunResult
from cl2r.engine.frames import frames
from cl2r.engine.links import MODEL, LinkStore
from cl2r.engine.plan import Plan, plan_run
from tests.support.pretended import pretended
from tests.support.quick import TASKS, Recorder, flip_bit, quick_config

SHORT = {"optim": {"epochs": 1, "milestones": []}}


@pytest.fixture(scope="module")
def plan(tiny: Path) -> Plan:
    return plan_run(quick_config(tiny, SHORT))


def chain(plan: Plan, root: Path, count: int, **settings: Any) -> tuple[Chain, Recorder]:
    """Return a chain that `count` workers train, and what it tells."""
    recorder = Recorder()
    return Chain(plan, root, recorder, f"by {count}", pretended(count), **settings), recorder


def trained(plan: Plan, root: Path, count: int, tasks: int = TASKS, **settings: Any) -> tuple[Chain, list[str]]:
    """Let `count` workers ensure the first links; return the chain and what happened to each link."""
    made, recorder = chain(plan, root, count, **settings)
    for task in made.tasks[:tasks]:
        made.ensure_link(task)
    words = [line.split()[2] for line in recorder.lines if line.startswith("task ") and " link " in line]
    return made, [word for word in words if word in ("trained", "reused", "resumed")]


def assert_consistent(made: Chain, tasks: int = TASKS) -> None:
    """Assert that every link was trained on the links before it that the chain uses."""
    keys = [made.key(task) for task in made.tasks[:tasks]]
    for task, key in enumerate(keys, 1):
        assert made.store.record(key)[MODEL]["keys"] == keys[:task]


def is_mixed(result: RunResult) -> bool:
    """Return what the row of the run says."""
    (row,) = frames(result, "run")["runs"]
    mixed: bool = row["mixed"]
    return mixed


def test_links_of_other_numbers_of_workers_are_other_links(plan: Plan, tmp_path: Path) -> None:
    one, did = trained(plan, tmp_path, 1)
    assert did == ["trained"] * TASKS
    two, did = trained(plan, tmp_path, 2)
    assert did == ["trained"] * TASKS
    assert LinkStore(tmp_path).keys() == {*plan.keys, *(f"{key}-cpu2" for key in plan.keys)}
    for made, count in ((one, 1), (two, 2)):
        assert_consistent(made)
        result = made.result(0.0)
        assert [link.record["workers"] for link in result.links] == [count] * TASKS
        assert [link.record["device"] for link in result.links] == ["cpu"] * TASKS
        assert [link.reused for link in result.links] == [False] * TASKS
        assert is_mixed(result) is False
    assert trained(plan, tmp_path, 1)[1] == trained(plan, tmp_path, 2)[1] == ["reused"] * TASKS
    assert trained(plan, tmp_path, 3, tasks=1)[1] == ["trained"], "two are not three"


def test_a_run_resumed_with_other_workers_keeps_its_own_links_and_is_mixed(plan: Plan, tmp_path: Path) -> None:
    trained(plan, tmp_path, 1, tasks=2)
    made, recorder = chain(plan, tmp_path, 2, earlier=["cpu1"])
    for task in made.tasks:
        made.ensure_link(task)
    assert made.made == ["cpu1", "cpu1", "cpu2"]
    assert [made.key(1), made.key(2)] == plan.keys[:2]
    assert made.key(3) == stored_key(plan.keys[2], ["cpu1", "cpu1", "cpu2"])
    assert_consistent(made)
    warnings = [line for line in recorder.lines if "trained by" in line]
    assert warnings == [f"task {task}: its link was trained by cpu1; this command trains by cpu2" for task in (1, 2)]
    result = made.result(0.0)
    assert is_mixed(result) is True
    assert [row["workers"] for row in frames(result, "run")["tasks"]] == [1, 1, 2]
    assert [row["key"] for row in frames(result, "run")["tasks"]] == [made.key(task) for task in made.tasks]
    again, did = trained(plan, tmp_path, 1, earlier=["cpu2"])
    assert (again.made, did) == (["cpu1", "cpu1", "cpu2"], ["reused"] * TASKS)
    np.testing.assert_array_equal(again.result(0.0).report.matrix, result.report.matrix)


def test_a_resumed_run_keeps_its_own_links_if_another_study_made_the_first_one_here(plan: Plan, tmp_path: Path) -> None:
    trained(plan, tmp_path, 2, tasks=2)
    trained(plan, tmp_path, 1, tasks=1)
    made, did = trained(plan, tmp_path, 1, earlier=["cpu2"])
    assert (made.made, did) == (["cpu2", "cpu2", "cpu1"], ["reused", "reused", "trained"])
    assert_consistent(made)


@pytest.mark.parametrize("counts", list(itertools.product([1, 2], repeat=TASKS)))
def test_no_chain_has_a_link_on_a_predecessor_that_it_was_not_trained_on(
    plan: Plan, tmp_path: Path, counts: tuple[int, ...]
) -> None:
    """Other studies fill the same store before; the run is resumed for every task, with other workers."""
    trained(plan, tmp_path, 1, tasks=2)
    trained(plan, tmp_path, 2, tasks=1)
    earlier: list[str] = []
    for tasks, count in enumerate(counts, 1):
        made, _ = trained(plan, tmp_path, count, tasks, earlier=earlier)
        assert_consistent(made, tasks)
        earlier = [f"cpu{count}", *earlier]
    last, did = trained(plan, tmp_path, counts[-1], earlier=earlier)
    assert (did, last.made) == (["reused"] * TASKS, made.made)


@pytest.mark.parametrize("damaged", [1, 2])
def test_a_damaged_link_of_a_mixed_run_is_trained_as_a_new_one(plan: Plan, tmp_path: Path, damaged: int) -> None:
    """Its successors were trained on the link that is gone, and are not combined with the one that replaces it."""
    trained(plan, tmp_path, 1, tasks=2)
    trained(plan, tmp_path, 2, earlier=["cpu1"])
    flip_bit(next((tmp_path / "links" / plan.keys[damaged - 1]).glob("*-state.safetensors")))
    made, _ = trained(plan, tmp_path, 2, earlier=["cpu1"])
    assert made.made == ["cpu1"] * (damaged - 1) + ["cpu2"] * (TASKS - damaged + 1)
    assert_consistent(made)


@pytest.mark.parametrize("before", [(1,) * TASKS, (3,) * TASKS, (1, 2, 2), (2, 1, 4)])
def test_any_links_are_used_if_that_is_asked_for(plan: Plan, tmp_path: Path, before: Sequence[int]) -> None:
    for tasks, count in enumerate(before, 1):
        trained(plan, tmp_path, count, tasks, earlier=[f"cpu{other}" for other in before])
    stored = LinkStore(tmp_path).keys()
    made, did = trained(plan, tmp_path, 5, accept_links="any")
    assert did == ["reused"] * TASKS
    assert made.made == [f"cpu{count}" for count in before]
    assert LinkStore(tmp_path).keys() == stored
    assert_consistent(made)
    assert is_mixed(made.result(0.0)) is (len(set(before)) > 1)
    strict, did = trained(plan, tmp_path, 5)
    assert (strict.made, did) == (["cpu5"] * TASKS, ["trained"] * TASKS)
    preferred, _ = trained(plan, tmp_path, 5, accept_links="any")
    assert preferred.made == ["cpu5"] * TASKS, "a run's own kind comes first"


def test_the_model_of_a_mixed_run_names_links_that_are_stored(plan: Plan, tmp_path: Path) -> None:
    """What a link keeps about its model names links under the keys that they are stored under."""
    trained(plan, tmp_path, 1, tasks=1)
    made, _ = trained(plan, tmp_path, 2, earlier=["cpu1"])
    for key in made.store.record(made.key(TASKS))[MODEL]["keys"]:
        assert made.store.load(key) is not None
