"""What a study would train and what that would cost, before anything is started: `cl2r plan`, as text and as JSON."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from cl2r.data import DATASETS, stand_ins
from cl2r.engine.plan import Plan, plan_run
from cl2r.errors import InputError
from cl2r.runtime.progress import announced
from cl2r.runtime.text import counted, duration, size
from cl2r.study.cost import (
    CALIBRATION_SECONDS,
    GpuAssumption,
    LinkCost,
    link_costs,
    measure_flops,
    seconds_here,
    speed_group,
    stored_speeds,
)
from cl2r.study.dry_run import FlopCache
from cl2r.study.jobs import Job, confirmation_jobs, plan_job
from cl2r.study.ledger import finished
from cl2r.study.race_plan import plan_json as race_json
from cl2r.study.race_plan import plan_lines
from cl2r.study.session import StudySession
from cl2r.study.space import random_points
from cl2r.study.spec import Point

GPU = GpuAssumption()


@dataclass(frozen=True)
class Estimate:
    """The cost of a study; its fields are the keys of `cl2r plan --json`."""

    study: str
    runs: int
    finished: int
    """Runs that have finished."""
    drawn_points: int
    """Points of a sweep that are not chosen yet and were drawn at random; with any, all other values are estimates."""
    links: int
    links_to_train: int
    images: int
    """Images to train on, in all epochs of the links to train."""
    images_to_extract: int
    concurrent: int
    """Runs at a time, on machines that only the user knows."""
    concurrent_here: int
    """Runs at a time on this machine: at most as many as fit."""
    workers: int
    """Processes per run."""
    seconds: float | None
    """Time on this machine; None if it has no room for a run, or no GPU and one was asked for."""
    speed: str
    """What the time on this machine was computed from."""
    gpu: str
    gpu_hours: float
    gpu_seconds: float
    """Time on such GPUs, with as many runs at a time."""
    dollars: float
    gpu_price: float
    bytes: int
    """Disk space of the links to train."""
    notes: list[str]

    def __str__(self) -> str:
        """Return aligned lines."""
        about = f" (about: {counted(self.drawn_points, 'point')} of the space drawn at random)"
        hours = f"{self.gpu_hours:,.2f}" if self.gpu_hours >= 0.01 or not self.links_to_train else "under 0.01"
        each = f", each by {self.workers} workers, assumed to share it without loss" if self.workers > 1 else ""
        time = f"; {duration(self.gpu_seconds)} with {self.concurrent} at a time{each}"
        machine = "has no room for such a run: planned for others"
        if self.seconds is not None:
            speed = f"; speed {self.speed}" if self.speed else ""
            machine = f"{duration(self.seconds)} ({self.concurrent_here} at a time{each}{speed})"
            time = time if self.concurrent > self.concurrent_here else ""
        present = self.links - self.links_to_train
        lines = {
            f"study {self.study}{about if self.drawn_points else ''}": "",
            "runs": f"{self.runs:,}",
            "links": f"{self.links_to_train:,} to train, {present:,} of {self.links:,} present",
            "images": f"{self.images:,} to train on, {self.images_to_extract:,} to extract",
            "this machine": machine,
            self.gpu: f"{hours} GPU-hours, about ${self.dollars:,.2f}{time} (an assumption, not measured: {GPU}, "
            f"${self.gpu_price:.2f} per hour)",
            "disk": size(self.bytes),
            "finished": f"{self.finished} of {self.runs} runs; nothing was started",
        }
        text = [f"{name:<12}  {value}".rstrip() for name, value in lines.items()]
        return "\n".join([*text, *(f"{'note':<12}  {note}" for note in self.notes)])


def plan_text(session: StudySession, gpu_price: float) -> str:
    """Return counts, time, price and disk as lines."""
    if session.spec.race is not None:
        return "\n".join([f"study {_name(session)}", *plan_lines(session.race), *_notes(), "nothing was started"])
    return str(estimate(session, gpu_price))


def plan_json(session: StudySession, gpu_price: float) -> dict[str, Any]:
    """Return the same as plain values: the fields of Estimate or, of a race, its rounds."""
    if session.spec.race is not None:
        runs, outcomes = session.expected_runs(), session.ledger.outcomes().values()
        done = sum(event.kind == "finished" for event in outcomes)
        head = {"study": _name(session), "runs": runs, "finished": done}
        return head | race_json(session.race) | {"notes": [*session.race.assumptions(), *_notes()]}
    return asdict(estimate(session, gpu_price))


def estimate(session: StudySession, gpu_price: float) -> Estimate:
    """Return the cost of a study that is no race. Points of a sweep that are not chosen yet are drawn.

    The usual `gpu_price` is an eighth of a p4d.24xlarge on demand; check the price list before use.
    """
    jobs, resources, drawn = session.jobs, session.resources, 0
    torch.set_num_threads(resources.cpus_per_worker)
    if session.spec.is_sweep:
        jobs, drawn = sweep_jobs(session)
    plans = [plan_run(run.config) for job in jobs for run in job.runs]
    cache: FlopCache = {}
    costs: dict[str, LinkCost] = {}
    with announced(f"counting the work of {counted(len(plans), 'run')}…"):
        for plan in plans:
            if not costs.keys() >= set(plan.keys):  # a run with an adapter has no links of its own
                costs |= {cost.key: cost for cost in link_costs(plan, cache)}
    present = session.present()
    missing = [cost for cost in costs.values() if cost.key not in present]
    fitting = 0 if resources.elsewhere() else resources.fit_here()
    concurrent = resources.max_concurrent or (1 if resources.elsewhere() else fitting)
    if concurrent < 1:
        hint = "plan for a cluster with --max-concurrent N"
        raise InputError(f"{resources.workers} workers do not fit into this machine; {hint}")
    here = min(concurrent, fitting)
    seconds, speed = _time_here(session, plans, costs, missing, here) if here else (None, "")
    gpu_hours = sum(map(GPU.seconds, missing)) / 3600
    outcomes = session.ledger.outcomes()
    return Estimate(
        study=_name(session),
        runs=len(plans),
        finished=sum(finished(outcomes, [run.name]) for job in jobs for run in job.runs),
        drawn_points=drawn,
        links=len(costs),
        links_to_train=len(missing),
        images=sum(cost.images for cost in missing),
        images_to_extract=sum(cost.extracted for cost in missing),
        concurrent=concurrent,
        concurrent_here=here,
        workers=resources.workers,
        seconds=seconds,
        speed=speed,
        gpu=GPU.name,
        gpu_hours=gpu_hours,
        # Processes that share a GPU share its time.
        gpu_seconds=3600 * gpu_hours / (concurrent * resources.workers * min(1, resources.gpus_per_worker or 1)),
        dollars=gpu_hours * gpu_price,
        gpu_price=gpu_price,
        bytes=sum(cost.disk_bytes for cost in missing),
        notes=_notes(),
    )


def _time_here(
    session: StudySession, plans: list[Plan], costs: dict[str, LinkCost], missing: list[LinkCost], concurrent: int
) -> tuple[float, str]:
    """Return the seconds that the missing links take on this machine, and what that was computed from."""
    speeds = stored_speeds(session.folder.storage, list(costs.values()), session.resources.device_kind)
    stored = sum(map(len, speeds.values()))
    examples = {speed_group(plan): plan for plan in plans}
    unknown = sorted({cost.speed_group for cost in missing} - set(speeds))
    with announced("measuring the speed of this machine…"):
        speeds |= {group: [measure_flops(examples[group], session.resources.device())] for group in unknown}
    source = [f"from {counted(stored, 'stored link')}"] if stored else []
    source += [f"calibrated in {CALIBRATION_SECONDS:g} s"] if unknown else []
    return seconds_here(missing, speeds, concurrent * session.resources.workers), " and ".join(source)


def _name(session: StudySession) -> str:
    """Return the name of the study; without the digest of its data where that is not known."""
    name = session.folder.name
    return name.rpartition("-")[0] if stand_ins() and name.startswith(f"{session.spec.stem}-") else name


def _notes() -> list[str]:
    return [
        f"{name} is not here: planned from its published sizes, {DATASETS[name].classes:,} classes of equal size, "
        f"{DATASETS[name].images_text} with the open ones, as if nothing had been trained"
        for name in stand_ins()
    ]


def sweep_jobs(session: StudySession) -> tuple[list[Job], int]:
    """Return what a sweep will train, and how many of its points are not chosen yet and were drawn at random."""
    study, jobs, drawn = session.spec, list(session.jobs), 0
    known = [event.read()["params"] for event in session.ledger.events("trial")]
    for context in study.contexts():
        points = [point for point in known if context.items() <= point.items()]
        left = max(0, study.search.trials - len(points))
        points += [context | point for point in random_points(study.knobs, left, study.search.seed)]
        jobs += [plan_job(study, Point(None, point), -1) for point in points]
        if study.search.confirm is not None:
            best = dict(enumerate(points[: study.search.confirm.top]))  # which ones changes the cost little
            jobs += confirmation_jobs(study, context, best)
        drawn += left
    return jobs, drawn
