"""Jobs: what a trial is told, and what it waits for."""

import json
from pathlib import Path

import pytest
from small_study import bare_run, small_study

from cl2r.engine.plan import plan_run
from cl2r.engine.records import run_name
from cl2r.errors import InputError
from cl2r.study.jobs import Job, grid_jobs, plan_job, trunk_jobs
from cl2r.study.spec import Point, sweep_point


def test_a_job_survives_json(tiny: Path) -> None:
    study = small_study(tiny, seeds=[0, 4], set={"optim.lr_later": 0.01, "optim.milestones": [1, 2]})
    job = plan_job(study, Point("masked", {"head.mask_unseen": True}), 3)
    for original in (job, Job(-1, None, job.runs[:1], 1, 2)):
        assert Job.from_plain(json.loads(json.dumps(original.to_plain()))) == original
    assert job.runs[0].config.head.mask_unseen
    assert [run.config.seed for run in job.runs] == [0, 4]


def test_a_planned_run_has_the_name_and_the_keys_of_the_plan(tiny: Path) -> None:
    study = small_study(tiny, seeds=[2])
    run = plan_job(study, Point(None, {"memory.per_class": 1}), 0).runs[0]
    plan = plan_run(run.config)
    assert (run.name, list(run.keys)) == (run_name(plan), plan.keys)
    assert (run.config.seed, run.config.memory.per_class) == (2, 1)


def test_titles(tiny: Path) -> None:
    grid = {"method.name": ["er", "fixed"], "memory.per_class": [2]}
    study = small_study(tiny, seeds=[4], variants={"plain": {}, "masked": {"head.mask_unseen": True}}, grid=grid)
    assert [plan_job(study, point, 0).runs[0].title for point in study.points()] == [
        "er plain per_class=2 seed 4",
        "fixed plain per_class=2 seed 4",
        "er masked per_class=2 seed 4",
        "fixed masked per_class=2 seed 4",
    ]
    point = sweep_point({"method.lambda_base": 1 / 3})
    assert plan_job(small_study(tiny, seeds=[4]), point, 0).runs[0].title == "cl2r lambda_base=0.333 seed 4"


def test_bad_input_is_refused_when_a_job_is_planned(tiny: Path) -> None:
    with pytest.raises(InputError, match=r"n_tasks = 13"):
        plan_job(small_study(tiny), Point(None, {"scenario.n_tasks": 13}), 0)


def test_who_provides_and_who_needs() -> None:
    run, other = bare_run("run", "abcde"), bare_run("other", "abxy")
    whole = Job(0, None, (run, other))
    assert (whole.provides, whole.needs, whole.label) == (frozenset(), frozenset("abcdexy"), "run")
    trunk = Job(-1, None, (run,), 0, 2)
    assert (trunk.provides, trunk.needs, trunk.label) == (frozenset("ab"), frozenset(), "trunk2-run")
    later = Job(-1, None, (run,), 2, 4)
    assert (later.provides, later.needs, later.label) == (frozenset("cd"), frozenset("ab"), "trunk4-run")


def test_a_grid_is_laid_out_seed_by_seed(tiny: Path) -> None:
    study = small_study(tiny, seeds=[1, 0], grid={"method.name": ["er", "cl2r"], "memory.per_class": [1, 2]})
    jobs = grid_jobs(study)
    rows = [(run.config.seed, run.config.method.name, run.config.memory.per_class) for job in jobs for run in job.runs]
    assert rows == [(seed, name, size) for seed in (1, 0) for name in ("er", "cl2r") for size in (1, 2)]
    assert [job.trial for job in jobs] == list(range(8))
    assert len({job.label for job in jobs}) == 8


def test_equal_runs_are_one_job(tiny: Path) -> None:
    """`er` with fd: memory is er_fdm; the variant `again` changes nothing."""
    study = small_study(
        tiny,
        variants={"plain": {}, "again": {"memory.per_class": 3}, "distilled": {"method.fd": "memory"}},
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
    assert [(job.start, job.depth) for job in trunk_jobs(jobs, [])] == [(0, 3)]


def test_trunks_whose_links_are_there_are_left_out() -> None:
    jobs = [Job(n, None, (bare_run(f"run{n}", keys),)) for n, keys in enumerate(["abcx", "abcy", "abz", "pq", "pr"])]
    assert [(job.label, job.provides) for job in trunk_jobs(jobs, [])] == [
        ("trunk1-run3", frozenset("p")),
        ("trunk2-run0", frozenset("ab")),
        ("trunk3-run0", frozenset("c")),
    ]
    assert [job.provides for job in trunk_jobs(jobs, "pa")] == [frozenset("ab"), frozenset("c")], "half is not enough"
    assert [job.provides for job in trunk_jobs(jobs, ["a", "b", "p", "x"])] == [frozenset("c")]
    assert trunk_jobs(jobs, "abcp") == []
    assert all(job.trial == -1 and len(job.runs) == 1 for job in trunk_jobs(jobs, []))
