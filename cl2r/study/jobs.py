"""The jobs of a study: what one trial trains. Small and plain, because they travel between processes.

Runs whose first links have the same keys share them: a job of its own trains the shared prefix before they part.
"""

import itertools
import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from cl2r.config.schema import Config, fields
from cl2r.engine.frames import run_name
from cl2r.engine.plan import plan_run
from cl2r.errors import InputError
from cl2r.metrics import BC, COMPATIBILITY, METRICS
from cl2r.study.constraints import CONFIRMED, DEFAULT, REFERENCE
from cl2r.study.space import Range, context_title, corner_values
from cl2r.study.spec import Point, StudySpec


@dataclass(frozen=True)
class Run:
    """One run of a study as its driver knows it: no images, no pairs."""

    name: str
    title: str
    keys: tuple[str, ...]
    config: Config


@dataclass(frozen=True)
class Job:
    """Runs that one trial trains task by task.

    With `stop_after` it trains a shared prefix instead: links `start` + 1 to `stop_after` of its only run, no more.
    """

    trial: int | None
    variant: str | None
    runs: tuple[Run, ...]
    start: int = 0
    stop_after: int | None = None
    objective: str = BC.name
    """The metric over the first t tasks that is reported after task t."""

    @property
    def label(self) -> str:
        """Name of the job, unique within the study."""
        name = self.runs[0].name
        return name if self.stop_after is None else f"prefix{self.stop_after}-{name}"

    @property
    def provides(self) -> frozenset[str]:
        """Keys of the links that other jobs wait for."""
        return frozenset() if self.stop_after is None else frozenset(self.runs[0].keys[self.start : self.stop_after])

    @property
    def needs(self) -> frozenset[str]:
        """Keys of the links that other jobs may provide."""
        return frozenset(key for run in self.runs for key in run.keys[: self.stop_after]) - self.provides

    def heading(self, run: Run) -> dict[str, Any]:
        """Return the fields that every outcome of `run` in the ledger begins with."""
        return {"trial": self.trial, "variant": self.variant, "config": fields(run.config)}

    def to_json(self) -> str:
        """Return the job as text, for the config of a Tune trial."""
        return json.dumps(_JOB.dump_python(self, mode="json"))

    @staticmethod
    def from_json(text: str) -> "Job":
        """Return the job that `to_json` described."""
        return _JOB.validate_python(json.loads(text))


_JOB = TypeAdapter(Job)


def plan_job(spec: StudySpec, point: Point, trial: int) -> Job:
    """Return the job of a point, with one run per seed. Everything that is wrong with its input is refused here."""
    metric = METRICS.objectives()[spec.search.objectives[0]]
    objective = BC.name if metric.compute is None else metric.name
    return Job(trial, point.variant, tuple(_plan_run(spec, point, seed) for seed in spec.seeds), objective=objective)


def _plan_run(spec: StudySpec, point: Point, seed: int) -> Run:
    plan = plan_run(spec.config(point, seed))
    title = " ".join(filter(None, [plan.config.method.name, point.title, f"seed {seed}"]))
    return Run(run_name(plan), title, tuple(plan.keys), plan.config)


def grid_jobs(spec: StudySpec) -> list[Job]:
    """Return one job per run, seed by seed; of runs that are equal in every field only the first is kept."""
    jobs: dict[str, Job] = {}
    for seed in spec.seeds:
        for point in spec.points():
            run = _plan_run(spec, point, seed)
            jobs.setdefault(run.name, Job(len(jobs), point.variant, (run,)))
    return list(jobs.values())


def prefix_jobs(jobs: Sequence[Job], present: Collection[str]) -> list[Job]:
    """Return jobs that train the links which two or more runs share and which are not `present` in the store.

    A link belongs to the group of runs that have it. Along a chain groups only shrink: where a group shrinks, a prefix
    ends, and if two runs are left, the next one begins there. The first run of a group trains it.
    """
    runs = {run.name: run for job in jobs for run in job.runs}
    groups: dict[str, list[str]] = defaultdict(list)
    for run in runs.values():
        for key in run.keys:
            groups[key].append(run.name)
    found: list[Job] = []
    for run in runs.values():
        end = 0
        for group, links in itertools.groupby(run.keys, key=groups.__getitem__):
            start, end = end, end + len(list(links))
            if len(group) > 1 and group[0] == run.name:
                found.append(Job(-1, None, (run,), start, end))
    found.sort(key=lambda job: job.stop_after or 0)  # each after those it continues
    return [job for job in found if not job.provides <= set(present)]


def fixed_jobs(spec: StudySpec, context: dict[str, Any], seeds: Sequence[int]) -> list[Job]:
    """Return the runs that trials of a context are judged by: one job per run, with the preset's settings.

    These are the runs that constraints refer to and, if the best trials are to be confirmed, ER and the preset itself.
    """
    constraints, confirm = spec.search.parsed_constraints(), spec.search.confirm is not None
    names = dict.fromkeys(["er"] if confirm else [])
    names |= dict.fromkeys([constraint.reference for constraint in constraints if constraint.reference])
    # A reference has no adapter but its own, whatever the other runs have.
    own = {name: {"method.name": name, "adapter.name": name.partition("+")[2] or "none"} for name in names}
    points = [Point(REFERENCE, {**context, **values}) for values in own.values()]
    points += [Point(DEFAULT, dict(context))] if confirm else []
    jobs: dict[str, Job] = {}
    for seed in seeds:
        for point in points:
            run = _plan_run(spec, point, seed)
            jobs.setdefault(run.name, Job(None, point.variant, (run,)))  # the preset itself may be ER
    return list(jobs.values())


def confirmation_jobs(spec: StudySpec, context: dict[str, Any], best: Mapping[int, dict[str, Any]]) -> list[Job]:
    """Return the best trials of a context, points by number, and the runs to compare them with, with further seeds."""
    seeds = spec.confirm_seeds
    jobs = [
        Job(trial, CONFIRMED, (_plan_run(spec, Point(CONFIRMED, point), seed),))
        for seed in seeds
        for trial, point in best.items()
    ]
    return jobs + fixed_jobs(spec, context, seeds)


def representative_jobs(spec: StudySpec) -> list[Job]:
    """Return trials at opposite corners of a space: every trial with the same early fields shares what they share.

    A field is early if it changes the first link (the number of tasks does, λ_base does not). Every combination of
    early fields has its own prefixes. With an early range, or with more combinations than trials, the list is empty
    and trials share links only if they happen to agree.
    """
    low = {name: corner_values(entry)[0] for name, entry in spec.space.items()}
    high = {name: corner_values(entry)[-1] for name, entry in spec.space.items()}

    def first_link(values: dict[str, Any]) -> str:
        return plan_job(spec, Point(None, values), -1).runs[0].keys[0]

    first = first_link(low)
    early = [
        name
        for name, entry in spec.space.items()
        if any(first_link({**low, name: value}) != first for value in corner_values(entry)[1:])
    ]
    choices = [entry for name in early if not isinstance(entry := spec.space[name], Range)]
    combinations = list(itertools.product(*choices))
    if len(choices) < len(early) or len(combinations) > spec.search.trials * len(spec.contexts()):
        return []
    points = (dict(zip(early, combination, strict=True)) for combination in combinations)
    return [plan_job(spec, Point(None, {**corner, **point}), -1) for point in points for corner in (low, high)]


def corner_jobs(spec: StudySpec) -> list[Job]:
    """Return one job per context and per end or choice of its space, and all reference runs.

    Refuses points that cannot run, or whose objective or constraint does not exist.
    """
    jobs = []
    judged = [METRICS.objectives()[name] for name in spec.search.objectives]
    judged += [constraint.metric for constraint in spec.search.parsed_constraints()]
    two_tasks = [metric.name for metric in judged if metric in COMPATIBILITY]
    for context in spec.contexts():
        jobs += fixed_jobs(spec, context, spec.seeds)
        for name, entry in spec.knobs.items():
            for value in corner_values(entry):
                job = plan_job(spec, Point(None, {**context, name: value}), -1)
                plan, what = plan_run(job.runs[0].config), context_title(context) or f"{name}={value}"
                if plan.tuning_pairs is None and any(metric.compute for metric in judged):
                    advice = "set eval.tuning_share above 0 or, if pairs are given as a list, add other open images"
                    raise InputError(f"{what}: there are no tuning pairs to judge trials on; {advice}")
                searched = [metric.name for metric in judged if metric.matrix == "recall"]
                if searched and plan.tuning_images is None:
                    raise InputError(f"{searched[0]} is not defined for {plan.dataset.name}: it has pairs, not classes")
                if two_tasks and len(job.runs[0].keys) < 2:
                    raise InputError(f"{what}: {two_tasks[0]} needs two tasks")
                jobs.append(job)
    return jobs
