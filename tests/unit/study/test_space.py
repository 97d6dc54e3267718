"""The space of a sweep: in Optuna's words, at its corners, and what its trials share."""

from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from cl2r.errors import InputError
from cl2r.study.jobs import (
    Job,
    confirmation_jobs,
    corner_jobs,
    fixed_jobs,
    plan_job,
    prefix_jobs,
    representative_jobs,
)
from cl2r.study.space import Range, distributions, random_points
from cl2r.study.spec import Point, StudySpec
from tests.support.small_study import small_study

LAMBDA = {"low": 0.1, "high": 100.0, "log": True}
MEMORY = {"low": 1, "high": 8}


def sweep(tiny: Path, space: dict[str, Any], trials: int = 20, **entries: Any) -> StudySpec:
    search = {"trials": trials, "objectives": ["BC"], "constraints": {}, **entries.pop("search", {})}
    return small_study(tiny, space=space, search=search, **entries)


def test_optunas_words(tiny: Path) -> None:
    choices = [None, True, 3, 0.5, "random"]
    entries = {"a": Range(low=1, high=9, log=True), "b": Range(low=1, high=2.5), "c": Range(low=1.0, high=2.0)}
    assert distributions({**entries, "d": choices}) == {
        "a": IntDistribution(1, 9, log=True),
        "b": FloatDistribution(1.0, 2.5),
        "c": FloatDistribution(1.0, 2.0),  # a float stays one
        "d": CategoricalDistribution(choices),
    }
    space = sweep(tiny, {"method.lambda_base": LAMBDA, "memory.per_class": MEMORY, "scenario.n_tasks": [2, 3]})
    assert distributions(space.space) == {
        "method.lambda_base": FloatDistribution(0.1, 100.0, log=True),
        "memory.per_class": IntDistribution(1, 8),
        "scenario.n_tasks": CategoricalDistribution([2, 3]),
    }


def test_random_points_are_inside_repeatable_and_silent(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    space = sweep(tiny, {"method.lambda_base": LAMBDA, "memory.per_class": MEMORY, "scenario.n_tasks": [2, 3]}).space
    points = random_points(space, 30, seed=1)
    assert all(0.1 <= point["method.lambda_base"] <= 100 for point in points)
    assert {point["scenario.n_tasks"] for point in points} == {2, 3}
    assert {type(point["memory.per_class"]) for point in points} == {int}
    assert len({point["method.lambda_base"] for point in points}) == 30
    assert random_points(space, 30, seed=1) == points
    assert random_points(space, 30, seed=2) != points
    assert capfd.readouterr().err == ""


def shared(jobs: list[Job]) -> set[str]:
    return {key for job in prefix_jobs(jobs, []) for key in job.provides}


def first_links(study: StudySpec, points: list[dict[str, Any]]) -> set[str]:
    return {run.keys[0] for point in points for run in plan_job(study, Point(None, point), 0).runs}


def test_late_fields_share_the_first_task_of_every_seed(tiny: Path) -> None:
    study = sweep(tiny, {"method.lambda_base": LAMBDA, "memory.per_class": MEMORY}, seeds=[0, 1])
    jobs = representative_jobs(study)
    assert [job.trial for job in jobs] == [-1, -1]
    values = [(run.config.method.lambda_base, run.config.memory.per_class) for job in jobs for run in job.runs]
    assert values == [(0.1, 1)] * 2 + [(100.0, 8)] * 2
    anywhere = [{"method.lambda_base": 3.3, "memory.per_class": 4}]
    assert shared(jobs) == first_links(study, anywhere)
    assert len(shared(jobs)) == 2


def test_every_combination_of_early_choices_has_a_shared_prefix(tiny: Path) -> None:
    space = {"scenario.n_tasks": [2, 3], "method.lambda_base": LAMBDA, "backbone.last_relu": [True, False]}
    study = sweep(tiny, space)
    jobs = representative_jobs(study)
    assert len(jobs) == 8
    points = [{"scenario.n_tasks": n, "backbone.last_relu": relu} for n in (2, 3) for relu in (True, False)]
    assert shared(jobs) == first_links(study, points)
    assert len(shared(jobs)) == 4


def test_a_choice_in_the_middle_can_make_a_field_early(tiny: Path) -> None:
    """er and er_fd have one first task, cl2r between them another."""
    study = sweep(tiny, {"method.name": ["er", "cl2r", "er_fd"], "memory.per_class": MEMORY})
    points = [{"method.name": "er"}, {"method.name": "cl2r"}]
    assert shared(representative_jobs(study)) == first_links(study, points)
    assert len(first_links(study, points)) == 2


def test_with_an_early_range_or_too_many_combinations_links_are_shared_as_they_come(tiny: Path) -> None:
    assert (
        representative_jobs(sweep(tiny, {"optim.lr": {"low": 0.01, "high": 0.1}, "method.lambda_base": LAMBDA})) == []
    )
    space = {"backbone.last_relu": [True, False], "optim.lr": [0.1, 0.2], "method.lambda_base": LAMBDA}
    assert representative_jobs(sweep(tiny, space, trials=3)) == []
    assert len(representative_jobs(sweep(tiny, space, trials=4))) == 8
    space["scenario.n_tasks"] = [2, 3]
    assert len(representative_jobs(sweep(tiny, space, trials=4))) == 16, "four trials of each number of tasks"


@pytest.mark.parametrize(
    ("space", "entries", "fault"),
    [
        ({"scenario.n_tasks": [2, 13], "memory.per_class": MEMORY}, {}, "n_tasks = 13"),
        ({"eval.folds": [5, 5000], "memory.per_class": MEMORY}, {}, "eval.folds = 5000"),
        ({"optim.lr": [0.1, -1.0]}, {}, "optim.lr"),
        ({"memory.per_class": MEMORY}, {"set": {"eval.tuning_share": 0}}, "no tuning pairs"),
        (
            {"eval.tuning_share": [0.5, 0.0], "memory.per_class": MEMORY},
            {"search": {"objectives": ["seconds", "AC"]}},
            "tuning_share=0.0: there are no tuning pairs",
        ),
        ({"scenario.n_tasks": [1, 2], "memory.per_class": MEMORY}, {}, "T=1: BC needs two tasks"),
        ({"memory.per_class": MEMORY}, {"set": {"scenario.stop_after": 1}}, "BC needs two tasks"),
        (
            {"memory.per_class": MEMORY},
            {"set": {"scenario.stop_after": 1}, "search": {"objectives": ["seconds"], "constraints": {"AC": ">= 0.5"}}},
            "AC needs two tasks",
        ),
        (
            {"method.lambda_base": LAMBDA},
            {"set": {"memory.per_class": 2, "head.mask_unseen": True}, "search": {"constraints": {"AC": ">= lucir"}}},
            "head.mask_unseen",
        ),
    ],
)
def test_a_corner_that_cannot_be_run_or_judged_is_refused(
    tiny: Path, space: dict[str, Any], entries: dict[str, Any], fault: str
) -> None:
    with pytest.raises(InputError) as refused:
        corner_jobs(sweep(tiny, space, **entries))
    assert fault in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("objectives", "settings"),
    [
        (["BC", "AC", "FC"], {}),
        (["seconds", "stored_bytes"], {"eval.tuning_share": 0, "scenario.stop_after": 1}),
        (["mean_accuracy"], {"scenario.stop_after": 1}),
    ],
)
def test_corners_that_can_be_judged(tiny: Path, objectives: list[str], settings: dict[str, Any]) -> None:
    corner_jobs(sweep(tiny, {"memory.per_class": MEMORY}, set=settings, search={"objectives": objectives}))


def test_fixed_runs_are_those_that_constraints_refer_to(tiny: Path) -> None:
    space = {"method.lambda_base": LAMBDA, "scenario.n_tasks": [2, 3]}
    search = {"constraints": {"reindexed_accuracy": ">= er - 0.01", "AC": ">= cl2r", "stored_bytes": "<= 2e6"}}

    def told(study: StudySpec, seeds: tuple[int, ...] = (0, 1)) -> list[tuple[Any, ...]]:
        jobs = fixed_jobs(study, {"scenario.n_tasks": 3}, seeds)
        assert all(job.trial is None and len(job.runs) == 1 and len(job.runs[0].keys) == 3 for job in jobs)
        return [(job.variant, job.runs[0].config.method.name, job.runs[0].config.seed) for job in jobs]

    study = sweep(tiny, space, search=search)
    both = [("reference", "er"), ("reference", "cl2r")]
    assert told(study) == [(*entry, seed) for seed in (0, 1) for entry in both]
    assert told(sweep(tiny, space)) == []
    confirmed = sweep(tiny, space, search={"confirm": {"top": 1, "seeds": [4, 5]}}, set={"method.name": "fixed"})
    rows = [("reference", "er"), ("default", "fixed")]
    assert told(confirmed, (0,)) == [(*entry, 0) for entry in rows]
    jobs = confirmation_jobs(
        confirmed, {"scenario.n_tasks": 3}, {7: {"scenario.n_tasks": 3, "method.lambda_base": 2.0}}
    )
    assert [(job.trial, job.variant, job.runs[0].config.seed) for job in jobs] == [
        (7, "confirmed", 4),
        (7, "confirmed", 5),
        *((None, variant, seed) for seed in (4, 5) for variant in ("reference", "default")),
    ]
    assert jobs[0].runs[0].config.method.lambda_base == 2.0
