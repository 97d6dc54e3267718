"""What all trials of a sweep have in common, known before any point is chosen."""

import itertools
from collections.abc import Sequence
from typing import Any

from cl2r.engine.plan import plan_run
from cl2r.errors import InputError
from cl2r.study.jobs import Job, Run, plan_job
from cl2r.study.space import Range, corner_values
from cl2r.study.spec import OBJECTIVES, Point, Study


def representative_jobs(study: Study) -> list[Job]:
    """Trials at opposite corners of the space: what they share, every trial with the same early fields shares.

    A field is early if it changes the first link (the number of tasks does, λ_base does not). Every combination of
    early fields has trunks of its own; with an early range, or more combinations than trials, there are none, and
    links are shared as they come.
    """
    space = study.spec.space
    low = {name: corner_values(entry)[0] for name, entry in space.items()}
    high = {name: corner_values(entry)[-1] for name, entry in space.items()}
    first = _first_link(study, low)
    early = [
        name
        for name, entry in space.items()
        if any(_first_link(study, {**low, name: value}) != first for value in corner_values(entry)[1:])
    ]
    choices = [entry for name in early if not isinstance(entry := space[name], Range)]
    combinations = list(itertools.product(*choices))
    if len(choices) < len(early) or len(combinations) > study.spec.search.trials:
        return []
    points = (dict(zip(early, combination, strict=True)) for combination in combinations)
    return [plan_job(study, Point(None, {**corner, **point}), -1) for point in points for corner in (low, high)]


def _first_link(study: Study, values: dict[str, Any]) -> str:
    return plan_job(study, Point(None, values), -1).runs[0].keys[0]


def corner_jobs(study: Study) -> list[Job]:
    """A job for each end and choice of the space. Refuses points that cannot be run or have no objective."""
    jobs = []
    for name, entry in study.spec.space.items():
        for value in corner_values(entry):
            jobs.append(plan_job(study, Point(None, {name: value}), -1))
            _check_objectives(study.spec.search.objectives, jobs[-1].runs[0], f"{name}={value}")
    return jobs


def _check_objectives(objectives: Sequence[str], run: Run, where: str) -> None:
    columns = [OBJECTIVES[name][0] for name in objectives]
    if any(column.startswith("tuning_") for column in columns) and plan_run(run.config).tuning_pairs is None:
        raise InputError(f"{where}: there are no tuning pairs to judge trials on; see eval.tuning_share")
    needing = [name for name in objectives if name in ("AC", "BC", "FC")]
    if needing and len(run.keys) < 2:
        raise InputError(f"{where}: objective {needing[0]} needs two tasks")
