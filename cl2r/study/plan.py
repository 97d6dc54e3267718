"""The text of `cl2r plan`: what a study would train and what that would cost, before anything is started."""

import os

import torch

from cl2r.engine.plan import plan_run
from cl2r.errors import InputError
from cl2r.study.cost import (
    CALIBRATION_SECONDS,
    GpuAssumption,
    LinkCost,
    estimate,
    link_costs,
    measure_flops,
    speed_group,
    stored_speeds,
)
from cl2r.study.dry_run import FlopCache
from cl2r.study.jobs import plan_job
from cl2r.study.ledger import finished
from cl2r.study.session import StudySession
from cl2r.study.space import random_points
from cl2r.study.spec import sweep_point


def plan_text(session: StudySession, gpu_price: float) -> str:
    """Return counts, time, price and disk as aligned lines. Points of a sweep that are not chosen yet are drawn."""
    study, jobs, folder, resources = session.spec, session.jobs, session.folder, session.resources
    torch.set_num_threads(resources.cpus_per_worker)
    note = ""
    if study.is_sweep:
        known = [event.read()["params"] for event in folder.ledger.events("trial")]
        left = max(0, study.search.trials - len(known))
        points = known + random_points(study.space, left, study.search.seed)
        jobs = [plan_job(study, sweep_point(point), number) for number, point in enumerate(points)]
        note = f" (about: {left} points of the space drawn at random)" if left else ""
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
    sources = [f"from {stored} stored link{'s' * (stored != 1)}"] if stored else []
    sources += [f"calibrated in {CALIBRATION_SECONDS:g} s"] if unknown else []

    gpu = GpuAssumption(dollars_per_hour=gpu_price)
    total = estimate(missing, speeds, concurrent * resources.workers, gpu)
    at_a_time = f"{concurrent} at a time"
    if resources.workers > 1:
        at_a_time += f", each by {resources.workers} workers, assumed to share it without loss"
    outcomes = folder.ledger.outcomes()
    done = sum(finished(outcomes, [run.name]) for job in jobs for run in job.runs)
    lines = {
        f"study {folder.name}{note}": "",
        "runs": f"{len(plans):,}",
        "links": f"{total.links:,} to train, {len(costs) - len(missing):,} of {len(costs):,} present",
        "images": f"{total.images:,} to train on, {total.extracted:,} to extract",
        "this machine": f"{_duration(total.seconds_here)} ({'; '.join([at_a_time, *_speed(sources)])})",
        gpu.name: f"{_gpu_hours(total.gpu_hours, gpu_price)} (an assumption, not measured: {gpu}, "
        f"${gpu_price:.2f} per hour)",
        "disk": _size(total.disk_bytes),
        "finished": f"{done} of {len(plans)} runs; nothing was started",
    }
    return "\n".join(f"{name:<12}  {text}".rstrip() for name, text in lines.items())


def _speed(sources: list[str]) -> list[str]:
    return [f"speed {' and '.join(sources)}"] if sources else []


def _gpu_hours(hours: float, dollars_per_hour: float) -> str:
    price = hours * dollars_per_hour
    if 0 < hours < 0.01:
        return f"under 0.01 GPU-hours, {'about' if price >= 0.01 else 'under'} ${max(price, 0.01):.2f}"
    return f"{hours:,.2f} GPU-hours, about ${price:,.2f}"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if whole or not seconds else "under 1 s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{seconds / 3600:,.1f} h"


def _size(count: int) -> str:
    value, units = float(count), iter(("bytes", "kB", "MB", "GB"))
    unit = next(units)
    while value >= 999.5 and (larger := next(units, None)):
        value, unit = value / 1000, larger
    return f"{value:,.1f} {unit}" if unit != "bytes" and value < 9.95 else f"{value:,.0f} {unit}"
