"""The clock of a race: how much of its time is used, and how long runs will take."""

import dataclasses
import math
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from cl2r.config.schema import AdapterConfig
from cl2r.engine.links import LinkStore
from cl2r.engine.plan import plan_run
from cl2r.study.cost import (
    GpuAssumption,
    LinkCost,
    link_costs,
    measure_flops,
    seconds_here,
    speed_group,
    stored_speeds,
)
from cl2r.study.dry_run import FlopCache
from cl2r.study.folder import StudyFolder, driver_times
from cl2r.study.jobs import Job
from cl2r.study.ledger import Event, Kind, finished, read_events
from cl2r.study.resources import Resources
from cl2r.study.spec import StudySpec

GPU = GpuAssumption()
OVERHEAD, MOST_OVERHEAD = 1.3, 5.0  # before it has been measured: processes that wait for others, or slow them down
RUN_SECONDS, STARTING_SECONDS = 3.0, 1.0  # of a run besides training, before it has been measured; to start it


class RaceClock:
    """Predicts times from FLOPs, from speeds and overhead as soon as they have been measured."""

    def __init__(self, spec: StudySpec, folder: StudyFolder, resources: Resources) -> None:
        assert spec.race is not None
        self.spec, self.folder, self.resources, self.race = spec, folder, resources, spec.race
        fitting, most = max(1, resources.fit_here()), resources.max_concurrent
        # How much a cluster runs at a time shows later.
        away = os.environ.get("RAY_ADDRESS") or resources.elsewhere()
        self.concurrent = most if most and away else min(most or fitting, fitting)
        self.store = LinkStore(folder.storage)
        self.overhead, self.run_seconds = OVERHEAD, RUN_SECONDS
        self._speeds: dict[str, list[float]] = {}
        self._flops: FlopCache = {}
        self._costs: dict[str, list[LinkCost]] = {}
        self._read: dict[str, dict[str, Any]] = {}

    def entries(self, kind: Kind) -> list[tuple[Event, dict[str, Any]]]:
        """Return the events of one kind with their contents; each file is read once, because it never changes."""
        events = self.folder.ledger.events(kind)
        new = [event for event in events if event.path.name not in self._read]
        self._read |= {event.path.name: content for event, content in zip(new, read_events(new), strict=True)}
        return [(event, self._read[event.path.name]) for event in events]

    def used(self) -> float:
        """Return the seconds that all drivers of the study have worked, the present one up to now."""
        events = self.folder.ledger.events()
        total = float(driver_times(events)["seconds"])
        working = bool(events) and self.folder.is_driven() and events[-1].kind != "closed"
        return total + (max(0.0, time.time() - events[-1].time_ns / 1e9) if working else 0.0)

    def left(self) -> float:
        """Return the seconds that are left."""
        return 3600 * self.race.hours - self.used()

    def _run_costs(self, job: Job) -> list[LinkCost]:
        """Return the links of a job with one run. What they cost does not depend on the seed."""
        (run,) = job.runs
        config = run.config.model_copy(update={"seed": self.spec.seeds[0], "adapter": AdapterConfig()})
        known = config.model_dump_json()
        if known not in self._costs:
            self._costs[known] = link_costs(plan_run(config), self._flops)
        return [dataclasses.replace(cost, key=key) for key, cost in zip(run.keys, self._costs[known], strict=True)]

    def seconds(self, jobs: Sequence[Job]) -> float:
        """Return how long the links that are missing, and the runs that have not finished, will take.

        That is at least as long as the longest of them takes.
        """
        outcomes, ways = self.folder.ledger.outcomes(), [self.resources.made_by, *self.folder.makers()]
        present = self.store.planned(ways, self.resources.accept_links)
        open_jobs = [job for job in jobs if not finished(outcomes, [job.runs[0].name])]
        chains = [[cost for cost in self._run_costs(job) if cost.key not in present] for job in open_jobs]
        missing = list({cost.key: cost for chain in chains for cost in chain}.values())
        examples = {speed_group(plan): plan for plan in (plan_run(job.runs[0].config) for job in open_jobs)}
        if not self.resources.elsewhere():
            for group in {cost.speed_group for cost in missing} - self._speeds.keys():
                torch.set_num_threads(self.resources.cpus_per_worker)
                self._speeds[group] = [measure_flops(examples[group], self.resources.device())]
        longest = max(map(self._training, chains), default=0.0)
        total = (self._training(missing) + self.run_seconds * len(open_jobs)) / self.concurrent
        return self.overhead * max(total, longest + self.run_seconds * bool(open_jobs))

    def _training(self, costs: Sequence[LinkCost]) -> float:
        """Return how long one run takes to train links; on GPUs elsewhere at an assumed speed, until it is known."""
        known = [cost for cost in costs if cost.speed_group in self._speeds]
        assumed = sum(GPU.seconds(cost) for cost in costs if cost.speed_group not in self._speeds)
        workers = self.resources.workers
        # Processes that share a GPU share its time.
        return seconds_here(known, self._speeds, workers) + assumed / workers / min(
            1, self.resources.gpus_per_worker or 1
        )

    def assumptions(self) -> list[str]:
        """Return a note if times are computed from the assumed speed of a GPU."""
        if not self.resources.elsewhere() or self._speeds:
            return []
        return [f"this machine has no GPU: times are an assumption, not measured: {GPU.name}, {GPU}"]

    def measure(self, jobs: Sequence[Job]) -> None:
        """Measure speeds and overhead of the rounds that are over, which had these jobs."""
        costs = {cost.key: cost for job in jobs for cost in self._run_costs(job)}
        self._speeds |= stored_speeds(self.folder.storage, list(costs.values()), self.resources.device_kind)
        trained, rest, runs = dict[str, float](), list[float](), 0
        for _, entry in self.entries("finished"):
            own = {row["key"]: row["seconds"] for row in entry["frames"]["tasks"] if not row["reused"]}
            trained |= own
            runs += 1
            # Less than its own links took: others trained some of them for it.
            besides = entry["frames"]["runs"][0]["wall_seconds"] - sum(own.values())
            rest += [besides] if besides > 0 else []
        if rest:
            self.run_seconds = STARTING_SECONDS + statistics.median(rest)
            starting, opened = 0.0, math.inf
            for event in self.folder.ledger.events("opened", "started"):
                starting += max(0.0, event.time_ns / 1e9 - opened)
                opened = event.time_ns / 1e9 if event.kind == "opened" else math.inf
            work = sum(trained.values()) + self.run_seconds * runs
            self.overhead = min(max(1.0, (self.used() - starting) * self.concurrent / work), MOST_OVERHEAD)
