"""Trunks: what runs share is trained once, before they part."""

from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_study import chains, small_study

from cl2r.methods.catalog import ABLATION_CELLS
from cl2r.study.jobs import grid_jobs, trunk_jobs
from cl2r.study.trunks import Trunk, trunks

PATHS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), max_size=7)


@given(PATHS)
@settings(deadline=None, max_examples=60)
def test_every_shared_link_has_one_trunk_and_no_other_link_has_any(paths: list[list[int]]) -> None:
    forest = chains(paths)
    owners: dict[str, set[str]] = defaultdict(set)
    for run, keys in forest.items():
        for key in keys:
            owners[key].add(run)
    shared = {key for key, runs in owners.items() if len(runs) >= 2}
    found = trunks(forest)

    provided: Counter[str] = Counter()
    for trunk in found:
        keys = forest[trunk.run]
        assert 0 <= trunk.start < trunk.depth <= len(keys)
        assert all(key in provided for key in keys[: trunk.start]), "it grows from earlier trunks"
        assert len({frozenset(owners[key]) for key in keys[trunk.start : trunk.depth]}) == 1
        provided.update(keys[trunk.start : trunk.depth])
    assert provided == Counter(shared)
    assert len(found) == len({frozenset(owners[key]) for key in shared}), "no trunk is cut in two"


def test_one_run_has_no_trunk() -> None:
    assert trunks({}) == []
    assert trunks(chains([[0, 1, 2]])) == []


def test_a_trunk_grows_from_a_trunk() -> None:
    """a ─ b ─┬─ c ─┬─ d      two runs part after c, a third left after b."""
    forest = {"early": ["a", "b", "x"], "one": ["a", "b", "c", "d"], "two": ["a", "b", "c", "e"]}
    assert trunks(forest) == [Trunk("early", 0, 2), Trunk("one", 2, 3)]


def test_runs_with_equal_chains_share_all_of_it() -> None:
    assert trunks({"one": ["a", "b"], "two": ["a", "b"]}) == [Trunk("one", 0, 2)]


@pytest.mark.parametrize("tasks", [2, 3, 4])
def test_the_ablation_trains_two_first_tasks_and_each_other_task_six_times(tiny: Path, tasks: int) -> None:
    grid = {"method.name": list(ABLATION_CELLS)}
    jobs = grid_jobs(small_study(tiny, grid=grid, set={"scenario.n_tasks": tasks}))
    assert len(jobs) == 6
    found = trunk_jobs(jobs, [])
    assert [(job.start, job.depth, len(job.provides)) for job in found] == [(0, 1, 1), (0, 1, 1)]
    assert {job.runs[0].config.method.classifier for job in found} == {"trainable", "fixed"}
    assert len({key for job in jobs for run in job.runs for key in run.keys}) == 2 + 6 * (tasks - 1)
