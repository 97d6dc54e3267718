"""Jobs: what a trial trains, what it waits for, and which links runs share."""

from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cl2r.config.builtin import ABLATION_CELLS
from cl2r.engine.frames import run_name
from cl2r.engine.plan import plan_run
from cl2r.errors import InputError
from cl2r.study.jobs import Job, grid_jobs, plan_job, prefix_jobs
from cl2r.study.spec import Point
from tests.support.small_study import bare_run, chains, small_study

PATHS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), max_size=7)


def test_a_job_survives_json(tiny: Path) -> None:
    study = small_study(tiny, seeds=[0, 4], set={"optim.lr_later": 0.01, "optim.milestones": [1, 2]})
    job = plan_job(study, Point("masked", {"head.mask_unseen": True}), 3)
    for original in (job, Job(-1, None, job.runs[:1], 1, 2)):
        assert Job.from_json(original.to_json()) == original
    assert job.runs[0].config.head.mask_unseen
    assert [run.config.seed for run in job.runs] == [0, 4]
    plans = [plan_run(run.config) for run in job.runs]
    assert [(run.name, list(run.keys)) for run in job.runs] == [(run_name(plan), plan.keys) for plan in plans]


def test_titles(tiny: Path) -> None:
    grid = {"method.name": ["er", "fixed"], "memory.per_class": [2]}
    study = small_study(tiny, seeds=[4], variants={"plain": {}, "masked": {"head.mask_unseen": True}}, grid=grid)
    assert [plan_job(study, point, 0).runs[0].title for point in study.points()] == [
        "er plain per_class=2 seed 4",
        "fixed plain per_class=2 seed 4",
        "er masked per_class=2 seed 4",
        "fixed masked per_class=2 seed 4",
    ]
    point = Point(None, {"method.lambda_base": 1 / 3})
    assert plan_job(small_study(tiny, seeds=[4]), point, 0).runs[0].title == "cl2r lambda_base=0.333 seed 4"


def test_bad_input_is_refused_when_a_job_is_planned(tiny: Path) -> None:
    with pytest.raises(InputError, match=r"n_tasks = 13"):
        plan_job(small_study(tiny), Point(None, {"scenario.n_tasks": 13}), 0)


def test_links_that_a_job_provides_and_needs() -> None:
    run, other = bare_run("run", "abcde"), bare_run("other", "abxy")
    whole = Job(0, None, (run, other))
    assert (whole.provides, whole.needs, whole.label) == (frozenset(), frozenset("abcdexy"), "run")
    first = Job(-1, None, (run,), 0, 2)
    assert (first.provides, first.needs, first.label) == (frozenset("ab"), frozenset(), "prefix2-run")
    later = Job(-1, None, (run,), 2, 4)
    assert (later.provides, later.needs, later.label) == (frozenset("cd"), frozenset("ab"), "prefix4-run")


def test_a_grid_is_laid_out_seed_by_seed(tiny: Path) -> None:
    study = small_study(tiny, seeds=[1, 0], grid={"method.name": ["er", "cl2r"], "memory.per_class": [1, 2]})
    jobs = grid_jobs(study)
    rows = [(run.config.seed, run.config.method.name, run.config.memory.per_class) for job in jobs for run in job.runs]
    assert rows == [(seed, name, size) for seed in (1, 0) for name in ("er", "cl2r") for size in (1, 2)]
    assert [job.trial for job in jobs] == list(range(8))
    assert len({job.label for job in jobs}) == 8


def test_equal_runs_are_one_job(tiny: Path) -> None:
    """The variant `again` changes nothing."""
    study = small_study(
        tiny,
        variants={"plain": {}, "again": {"memory.per_class": 3}, "distilled": {"method.name": "er_fdm"}},
        set={"method.name": "er"},
    )
    jobs = grid_jobs(study)
    assert [(job.trial, job.variant) for job in jobs] == [(0, "plain"), (1, "distilled")]
    twice = small_study(tiny, grid={"memory.per_class": [3, 4, 3]})
    assert [job.runs[0].config.memory.per_class for job in grid_jobs(twice)] == [3, 4]


def test_runs_that_share_all_links_but_not_their_pairs_are_two_jobs(tiny: Path) -> None:
    jobs = grid_jobs(small_study(tiny, grid={"eval.pairs_seed": [0, 1]}))
    assert jobs[0].runs[0].keys == jobs[1].runs[0].keys
    assert jobs[0].label != jobs[1].label
    assert [(job.start, job.stop_after) for job in prefix_jobs(jobs, [])] == [(0, 3)]


def test_prefixes_whose_links_are_present_are_left_out() -> None:
    jobs = [Job(n, None, (bare_run(f"run{n}", keys),)) for n, keys in enumerate(["abcx", "abcy", "abz", "pq", "pr"])]
    assert [(job.label, job.provides) for job in prefix_jobs(jobs, [])] == [
        ("prefix1-run3", frozenset("p")),
        ("prefix2-run0", frozenset("ab")),
        ("prefix3-run0", frozenset("c")),
    ]
    assert [job.provides for job in prefix_jobs(jobs, "pa")] == [frozenset("ab"), frozenset("c")], "half is not enough"
    assert [job.provides for job in prefix_jobs(jobs, ["a", "b", "p", "x"])] == [frozenset("c")]
    assert prefix_jobs(jobs, "abcp") == []
    assert all(job.trial == -1 and len(job.runs) == 1 for job in prefix_jobs(jobs, []))


def prefixes_of(forest: dict[str, list[str]]) -> list[tuple[str, int, int]]:
    jobs = [Job(number, None, (bare_run(*chain),)) for number, chain in enumerate(forest.items())]
    return [(job.runs[0].name, job.start, job.stop_after or 0) for job in prefix_jobs(jobs, [])]


@given(PATHS)
@settings(deadline=None, max_examples=60)
def test_every_shared_link_is_in_one_prefix_and_no_other_link_is_in_any(paths: list[list[int]]) -> None:
    forest = chains(paths)
    owners: dict[str, set[str]] = defaultdict(set)
    for run, keys in forest.items():
        for key in keys:
            owners[key].add(run)
    shared = {key for key, runs in owners.items() if len(runs) >= 2}
    found = prefixes_of(forest)

    provided: Counter[str] = Counter()
    for run, start, stop_after in found:
        keys = forest[run]
        assert 0 <= start < stop_after <= len(keys)
        assert all(key in provided for key in keys[:start]), "it continues earlier ones"
        assert len({frozenset(owners[key]) for key in keys[start:stop_after]}) == 1
        provided.update(keys[start:stop_after])
    assert provided == Counter(shared)
    assert len(found) == len({frozenset(owners[key]) for key in shared}), "no prefix is cut in two"


def test_a_prefix_continues_another() -> None:
    """a ─ b ─┬─ c ─┬─ d      two runs part after c, a third left after b."""
    forest = {"early": ["a", "b", "x"], "one": ["a", "b", "c", "d"], "two": ["a", "b", "c", "e"]}
    assert prefixes_of(forest) == [("early", 0, 2), ("one", 2, 3)]


@pytest.mark.parametrize("tasks", [2, 3, 4])
def test_the_ablation_trains_two_first_tasks_and_each_other_task_six_times(tiny: Path, tasks: int) -> None:
    grid = {"method.name": list(ABLATION_CELLS)}
    jobs = grid_jobs(small_study(tiny, grid=grid, set={"scenario.n_tasks": tasks}))
    assert len(jobs) == 6
    found = prefix_jobs(jobs, [])
    assert [(job.start, job.stop_after, len(job.provides)) for job in found] == [(0, 1, 1), (0, 1, 1)]
    assert {job.runs[0].config.method.classifier for job in found} == {"trainable", "fixed"}
    assert len({key for job in jobs for run in job.runs for key in run.keys}) == 2 + 6 * (tasks - 1)
