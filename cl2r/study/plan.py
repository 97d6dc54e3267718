"""The text of `cl2r plan`: what a study would train and what that would cost, before anything is started."""

import os

import torch

from cl2r.engine.plan import plan_run
from cl2r.errors import InputError
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
from cl2r.study.race_plan import plan_lines
from cl2r.study.session import StudySession
from cl2r.study.space import random_points
from cl2r.study.spec import Point


def plan_text(session: StudySession, gpu_price: float) -> str:
    """Return counts, time, price and disk as aligned lines. Points of a sweep that are not chosen yet are drawn.

    The usual `gpu_price` is an eighth of a p4d.24xlarge on demand; check the price list before use.
    """
    study, jobs, folder, resources = session.spec, session.jobs, session.folder, session.resources
    if study.race is not None:
        return "\n".join([f"study {folder.name}", *plan_lines(session.race), "nothing was started"])
    torch.set_num_threads(resources.cpus_per_worker)
    note = ""
    if study.is_sweep:
        jobs, drawn = sweep_jobs(session)
        note = f" (about: {counted(drawn, 'point')} of the space drawn at random)" if drawn else ""
    plans = [plan_run(run.config) for job in jobs for run in job.runs]
    cache: FlopCache = {}
    costs: dict[str, LinkCost] = {}
    for plan in plans:
        if not costs.keys() >= set(plan.keys):  # a run with an adapter has no links of its own
            costs |= {cost.key: cost for cost in link_costs(plan, cache)}
    missing = [cost for cost in costs.values() if cost.key not in session.store]

    machine = {"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())}
    concurrent = resources.max_concurrent or resources.fit_into(machine)
    if concurrent < 1:
        raise InputError(
            f"{resources.workers} workers do not fit into this machine; plan for a cluster with --max-concurrent N"
        )
    speeds = stored_speeds(folder.storage, list(costs.values()))
    stored = sum(map(len, speeds.values()))
    examples = {speed_group(plan): plan for plan in plans}
    unknown = sorted({cost.speed_group for cost in missing} - set(speeds))
    speeds |= {group: [measure_flops(examples[group], resources.device())] for group in unknown}
    speed = [f"from {counted(stored, 'stored link')}"] if stored else []
    speed += [f"calibrated in {CALIBRATION_SECONDS:g} s"] if unknown else []

    here = f"{concurrent} at a time"
    if resources.workers > 1:
        here += f", each by {resources.workers} workers, assumed to share it without loss"
    here += f"; speed {' and '.join(speed)}" if speed else ""
    gpu = GpuAssumption()
    gpu_hours = sum(map(gpu.seconds, missing)) / 3600
    hours = f"{gpu_hours:,.2f}" if gpu_hours >= 0.01 or not missing else "under 0.01"
    images, extracted = sum(cost.images for cost in missing), sum(cost.extracted for cost in missing)
    outcomes = folder.ledger.outcomes()
    done = sum(finished(outcomes, [run.name]) for job in jobs for run in job.runs)
    lines = {
        f"study {folder.name}{note}": "",
        "runs": f"{len(plans):,}",
        "links": f"{len(missing):,} to train, {len(costs) - len(missing):,} of {len(costs):,} present",
        "images": f"{images:,} to train on, {extracted:,} to extract",
        "this machine": f"{duration(seconds_here(missing, speeds, concurrent * resources.workers))} ({here})",
        gpu.name: f"{hours} GPU-hours, about ${gpu_hours * gpu_price:,.2f} (an assumption, not measured: {gpu}, "
        f"${gpu_price:.2f} per hour)",
        "disk": size(sum(cost.disk_bytes for cost in missing)),
        "finished": f"{done} of {len(plans)} runs; nothing was started",
    }
    return "\n".join(f"{name:<12}  {text}".rstrip() for name, text in lines.items())


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
