"""What a study would cost, said before anything is started."""

import os
from collections.abc import Collection, Mapping, Sequence

import torch

from cl2r.engine.plan import Plan, plan_run
from cl2r.engine.store import LinkStore
from cl2r.errors import InputError
from cl2r.rayrun.resources import Resources
from cl2r.study.cost import (
    LinkCost,
    SpeedGroup,
    Team,
    calibrate,
    estimate,
    link_costs,
    measured_speed,
    speed_group,
    speed_source,
)
from cl2r.study.cost_model import GLOO, GpuAssumption
from cl2r.study.cost_text import describe
from cl2r.study.dry_run import Known
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job, plan_job
from cl2r.study.ledger import finished
from cl2r.study.space import random_points
from cl2r.study.spec import Study, sweep_point


def plan_text(study: Study, jobs: Sequence[Job], folder: StudyFolder, resources: Resources, gpu_price: float) -> str:
    """Counts from the plans of all runs; a sweep's points are drawn at random, as nobody knows them yet."""
    torch.set_num_threads(resources.cpus_per_worker)
    note = ""
    if study.is_sweep:
        known = [event.read()["params"] for event in folder.ledger.events("trial")]
        left = max(0, study.spec.search.trials - len(known))
        points = known + random_points(study.spec.space, left, study.spec.search.seed)
        jobs = [plan_job(study, sweep_point(point), number) for number, point in enumerate(points)]
        note = f" (about: {left} points of the space drawn at random)" if left else ""
    plans = [plan_run(run.config) for job in jobs for run in job.runs]
    costs = _costs(plans)
    store = LinkStore(folder.storage, lambda line: None)
    missing = [cost for cost in costs.values() if not store.present(cost.key)]
    outcomes = folder.ledger.outcomes()
    done = sum(finished(outcomes, [run.name]) for job in jobs for run in job.runs)
    body = _estimate(plans, list(costs.values()), missing, folder, resources, gpu_price)
    return f"study {folder.name}{note}\n{body}\nfinished      {done} of {len(plans)} runs; nothing was started"


def _costs(plans: Sequence[Plan]) -> dict[str, LinkCost]:
    """Every link once, by its key: runs with an adapter bring none of their own."""
    known: Known = {}
    costs: dict[str, LinkCost] = {}
    for plan in plans:
        if not costs.keys() >= set(plan.keys):
            costs |= {cost.key: cost for cost in link_costs(plan, known)}
    return costs


def _estimate(
    plans: Sequence[Plan],
    costs: Sequence[LinkCost],
    missing: Sequence[LinkCost],
    folder: StudyFolder,
    resources: Resources,
    gpu_price: float,
) -> str:
    machine = {"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())}
    concurrency = resources.max_concurrent or resources.fit_into(machine)
    if concurrency < 1:
        raise InputError(f"{resources.workers} workers do not fit into this machine; --max-concurrent for a cluster's")
    speeds = measured_speed(folder.storage, costs)
    examples = {speed_group(plan): plan for plan in plans}
    device = resources.device()
    wanted = {cost.speed_group for cost in missing} - set(speeds)
    speeds |= {group: calibrate(examples[group], device) for group in sorted(wanted)}
    gpu = GpuAssumption(dollars_per_hour=gpu_price)
    needed = {group: examples[group] for group in sorted({cost.speed_group for cost in missing})}
    team = _team(needed, speeds, wanted, resources, gpu)
    total = estimate(missing, speeds, concurrency, gpu, team)
    source = speed_source(folder.storage, costs, wanted, parts=bool(team.speeds))
    return describe(total, len(plans), len(costs), len(costs) - len(missing), source)


def _team(
    plans: Mapping[SpeedGroup, Plan],
    speeds: Mapping[SpeedGroup, float],
    calibrated: Collection[SpeedGroup],
    resources: Resources,
    gpu: GpuAssumption,
) -> Team:
    """A worker's speed with its part of a batch: that with whole batches, times the ratio of both in a few steps."""
    workers, device = resources.workers, resources.device()
    if workers == 1:
        return Team()
    whole = {group: speeds[group] if group in calibrated else calibrate(plan, device) for group, plan in plans.items()}
    parts = {group: calibrate(plan, device, workers=workers) for group, plan in plans.items()}
    ring = GLOO if device.type == "cpu" else gpu.model.ring_of(workers)
    return Team(workers, {group: speeds[group] * parts[group] / whole[group] for group in plans}, ring)
