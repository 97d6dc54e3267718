"""The space of a sweep: in Optuna's words, at its corners, and what its trials share."""

from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from cl2r.errors import InputError
from cl2r.study.jobs import Job, corner_jobs, plan_job, prefix_jobs, representative_jobs
from cl2r.study.space import Range, distributions, random_points
from cl2r.study.spec import Point, StudySpec
from tests.support.small_study import small_study

LAMBDA = {"low": 0.1, "high": 100.0, "log": True}
MEMORY = {"low": 1, "high": 8}


def sweep(tiny: Path, space: dict[str, Any], trials: int = 20, **entries: Any) -> StudySpec:
    return small_study(tiny, space=space, search={"trials": trials, **entries.pop("search", {})}, **entries)


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
    space = {"scenario.n_tasks": [2, 3, 4], "method.lambda_base": LAMBDA}
    assert representative_jobs(sweep(tiny, space, trials=2)) == []
    assert len(representative_jobs(sweep(tiny, space, trials=3))) == 6


@pytest.mark.parametrize(
    ("space", "entries", "fault"),
    [
        ({"scenario.n_tasks": [2, 13]}, {}, "n_tasks = 13"),
        ({"scenario.n_tasks": {"low": 2, "high": 13}}, {}, "n_tasks = 13"),
        ({"eval.positives": {"low": 20, "high": 5000}}, {}, "eval.positives = 5000"),
        ({"memory.per_class": MEMORY}, {"set": {"eval.tuning_share": 0}}, "no tuning pairs"),
        ({"eval.tuning_share": [0.5, 0.0]}, {"search": {"objectives": ["seconds", "AC"]}}, "eval.tuning_share=0.0"),
        ({"scenario.n_tasks": [1, 2]}, {}, "scenario.n_tasks=1: objective BC needs two tasks"),
        ({"memory.per_class": MEMORY}, {"set": {"scenario.stop_after": 1}}, "objective BC needs two tasks"),
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
