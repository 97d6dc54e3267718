"""One command on one study: its specification, folder, jobs and resources, checked before anything starts."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

from cl2r.config.schema import Config
from cl2r.data import load_dataset, stand_ins
from cl2r.engine.links import LinkStore, check_writable
from cl2r.engine.plan import plan_run
from cl2r.errors import InputError
from cl2r.runtime.stop import Termination
from cl2r.storage.path import StoragePath
from cl2r.study.cost import smallest_batch
from cl2r.study.folder import StudyFolder, digest
from cl2r.study.jobs import Job, Run, corner_jobs, fixed_jobs, grid_jobs, plan_job, representative_jobs
from cl2r.study.ledger import Ledger, finished
from cl2r.study.race_plan import Race, entrants, with_split
from cl2r.study.resources import Resources
from cl2r.study.spec import Point, StudySpec
from cl2r.study.trackers import TENSORBOARD, Place, TrackedStudy, check_trackers
from cl2r.study.warm_start import earlier_study


@dataclass
class StudySession:
    """The state of one study command; `open` makes one."""

    spec: StudySpec
    folder: StudyFolder
    resources: Resources
    jobs: list[Job]  # of a grid; of a sweep, the runs that its trials are judged by
    examples: list[Job] = field(default_factory=list)
    """Trials at the corners of a sweep's space, which show what its trials will share."""
    identity: dict[str, str] = field(default_factory=dict)  # digest of what the study is, for the ledger
    trained_by: str = ""  # id of the study, written into the links that it trains; empty if it has not begun
    stop: Termination = field(default_factory=Termination)
    verbose: bool = False
    quiet: bool = False
    log: Sequence[str] = (TENSORBOARD,)  # trackers that the runs are logged to

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        spec: StudySpec,
        storage: StoragePath,
        resources: Resources | None = None,
        *,
        name: str | None = None,
        lock: bool = True,
        measure_layout: bool = False,
        stop: Termination | None = None,
        verbose: bool = False,
        quiet: bool = False,
        log: Sequence[str] = (TENSORBOARD,),
    ) -> Iterator[Self]:
        """Plan and check every run, name the study, and hold its lock until the end of the block.

        Raise InputError if any run cannot succeed, if the name stands for another specification, or if another driver
        runs the study. Without `lock` nothing is written: a plan may be made while a driver is at work. With
        `measure_layout` the fastest trials × threads of this machine are measured and used.
        """
        resources = resources or Resources()
        check_trackers(log, storage)
        if measure_layout and (resources.workers > 1 or resources.gpus_per_worker or os.environ.get("RAY_ADDRESS")):
            raise InputError("--cpus-per-worker auto needs one worker per run, no GPUs, and a Ray on this machine only")
        examples = list[Job]()
        if spec.race is not None:
            spec = with_split(spec)
            points = (Point(None, {"method.name": method}) for method in entrants(spec)[0])
            jobs, checked = [], [plan_job(spec, point, -1) for point in points]
        elif not spec.is_sweep:
            checked = jobs = grid_jobs(spec)
        else:
            jobs = [job for context in spec.contexts() for job in fixed_jobs(spec, context, spec.seeds)]
            examples, checked = representative_jobs(spec), corner_jobs(spec)
            if spec.search.warm_start is not None:
                earlier_study(spec.search.warm_start, storage)  # raises InputError if there is none
        runs = [run for job in checked for run in job.runs]
        check_batches(runs, resources.workers)
        sets = {run.config.data for run in runs}
        fingerprints = (load_dataset(data.name, data.size, data.channels, data.root).fingerprint for data in sets)
        identity = spec.identity(sorted(fingerprints))
        data = Path(runs[0].config.data.name).stem
        folder = StudyFolder(storage, name or f"{spec.stem}-{data}-{digest(identity)}")
        stopping = stop or Termination()
        session = cls(spec, folder, resources, jobs, examples, {}, "", stopping, verbose, quiet, log)
        if spec.race is not None and not os.environ.get("RAY_ADDRESS"):  # how much a cluster runs at a time shows later
            session.race.check()
        if not lock:
            session.trained_by = "" if stand_ins() else folder.check_name(identity)
            yield session
            return
        check_writable(storage)
        folder.check_name(identity)
        with folder.driver_lock():
            session.trained_by = folder.claim_name(identity)
            session.identity = {"specification": digest(identity)}
            session.ledger.set_damaged_aside()
            if measure_layout:
                session.resources = session._measured(runs[0].config)
                session.__dict__.pop("race", None)
            yield session

    @cached_property
    def ledger(self) -> Ledger:
        """The study's ledger."""
        return self.folder.ledger

    @cached_property
    def store(self) -> LinkStore:
        """The links of all studies below the same storage root."""
        return LinkStore(self.folder.storage)

    def present(self) -> set[str]:
        """Return the keys in plans whose links are stored and can be used by this session."""
        return self.store.planned(self.ways, self.resources.accept_links)

    @cached_property
    def ways(self) -> list[str]:
        """The ways in which links of this study may have been made: with this command's resources or earlier ones."""
        return [self.resources.made_by, *self.folder.makers()]

    @cached_property
    def tracking(self) -> TrackedStudy:
        """The trackers that the runs are logged to."""
        place = Place(self.folder.storage, self.folder.path, self.folder.name, self.trained_by)
        return TrackedStudy(self.log, place, self.store, self.ledger)

    @cached_property
    def race(self) -> Race:
        """The race of a study that is one."""
        return Race(self.spec, self.folder, self.resources)

    def expected_runs(self) -> int:
        """Return the number of runs of the whole study; a trial that repeats another's point has none of its own."""
        if self.spec.race is not None:
            return self.race.expected_runs()
        if not self.spec.is_sweep:
            return len(self.jobs)
        search, contexts = self.spec.search, self.spec.contexts()
        trials = search.trials * len(contexts) - len(self.ledger.events("repeated"))
        runs = len(self.jobs) + trials * len(self.spec.seeds)
        if search.confirm is not None:
            known: dict[int, set[int]] = {place: set() for place in range(len(contexts))}
            for event in self.ledger.events("confirming"):  # more trials later may have others to confirm
                known[int(event.subject)] |= {*event.read()["trials"]}
            best = [len(trials) or min(search.confirm.top, search.trials) for trials in known.values()]
            runs += sum(best) * len(self.spec.confirm_seeds) + self._further_fixed_runs
        return runs

    @cached_property
    def _further_fixed_runs(self) -> int:
        contexts, seeds = self.spec.contexts(), self.spec.confirm_seeds
        return sum(len(fixed_jobs(self.spec, context, seeds)) for context in contexts)

    def unfinished(self) -> list[Job]:
        """Return the jobs that have a run which has not finished."""
        outcomes = self.ledger.outcomes()
        return [job for job in self.jobs if not finished(outcomes, (run.name for run in job.runs))]

    def loader_note(self) -> str | None:
        """Return a note if processes that decode images have no CPU of their own."""
        data = self.spec.config(self.spec.points()[0], self.spec.seeds[0]).data
        cpus = self.resources.cpus_per_worker
        images = load_dataset(data.name, data.size, data.channels, data.root).x_train
        if images.in_memory or cpus >= 1 + data.loaders:
            return None
        return (
            f"note: data.loaders={data.loaders} processes run beside each training process, but --cpus-per-worker is "
            f"{cpus}: {1 + data.loaders} would give each process a CPU"
        )

    def _measured(self, config: Config) -> Resources:
        """Return the resources with the fastest trials × threads for the runs that are left."""
        from cl2r.study.calibrate import trial_layout

        left = self.expected_runs()
        left -= sum(event.kind == "finished" for event in self.ledger.outcomes().values())
        if left <= 0:
            return self.resources
        print("measuring trials × threads", flush=True)
        chosen, text = trial_layout(config, left)
        print(text, flush=True)
        trials = min(chosen.trials, self.resources.max_concurrent or chosen.trials)
        return dataclasses.replace(self.resources, cpus_per_worker=chosen.threads, max_concurrent=trials)


def check_batches(runs: Sequence[Run], workers: int) -> None:
    """Raise InputError if a batch is too small to be shared: batch norm needs two rows of every worker."""
    for run in runs if workers > 1 else []:
        rows = smallest_batch(plan_run(run.config))
        if rows < 2 * workers:
            advice = "lower --workers, or raise batches.size"
            raise InputError(f"{run.title}: {rows} rows are too few for {workers} workers, each needs 2; {advice}")
