"""Which job comes next. Ray Tune asks; a grid has a list, a sweep asks Optuna. The ledger is the memory.

Trunks come first; a job is handed out when no trunk that it needs is still to be trained.
"""

import json
import math
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.trial import TrialState
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from cl2r.config import fields
from cl2r.errors import InputError
from cl2r.rayrun.attempts import Attempts
from cl2r.rayrun.starting import Starting
from cl2r.seeding import derive
from cl2r.stopping import Stop, never
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job, plan_job
from cl2r.study.journal import journal
from cl2r.study.ledger import DIED, Event, Kind, finished
from cl2r.study.space import distributions
from cl2r.study.spec import OBJECTIVES, Study, sweep_point

MAX_OPTUNA_SEED = 2**32
START_SECONDS = 60.0
"""How long a trial waits at most for the processes of those beside it (see `starting.py`)."""
_BEGUN = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


class OptunaSource:
    """Points of a space, chosen by Optuna. Its journal survives; after a restart it goes on where it was.

    A trial that a killed command left open is handed out again under its number, with its point: its links and runs
    are found, and it is told once. One whose process died for good gets a second chance under a new number. The
    sampler's seed depends on how many trials there are already, so that a second command does not repeat the start-up
    points of the first.
    """

    def __init__(self, study: Study, folder: StudyFolder) -> None:
        self.study, self.folder = study, folder
        self.optuna = open_optuna(study, folder)
        self.trials: dict[int, optuna.trial.Trial] = {}
        self.reopened: list[tuple[int, Job]] = []
        self.twins: dict[int, list[int]] = defaultdict(list)
        self.lost: set[int] = set()
        outcomes = folder.ledger.outcomes()
        for trial in self.optuna.get_trials(states=(TrialState.RUNNING, TrialState.FAIL)):
            self._settle(trial, outcomes)

    def _settle(self, trial: optuna.trial.FrozenTrial, outcomes: dict[str, Event]) -> None:
        """Decide about a trial that an earlier command left open, or failed."""
        running = trial.state == TrialState.RUNNING
        if trial.params.keys() != self.study.spec.space.keys():  # killed while its point was being chosen
            self.lost.add(trial.number)
            if running:
                self.optuna.tell(trial.number, state=TrialState.FAIL)
            return
        job = self._job(trial.number, trial.params)
        if job is None:
            if running:
                self.optuna.tell(trial.number, state=TrialState.FAIL)
            return
        ends = {outcomes[run.name].kind if run.name in outcomes else None for run in job.runs}
        if not running:
            if "failed" in ends and any(_died(outcomes.get(run.name)) for run in job.runs):
                self.lost.add(trial.number)
                self.optuna.enqueue_trial(trial.params)
        elif ends <= {"finished", "pruned"}:
            self.ended(job, pruned="pruned" in ends)
        elif same := [number for number, other in self.reopened if other.runs == job.runs]:
            self.twins[same[0]].append(trial.number)
        else:
            self.reopened.append((trial.number, job))

    @property
    def waiting(self) -> int:
        """Open trials of an earlier command, and those never begun."""
        asked = self.optuna.get_trials(deepcopy=False, states=_BEGUN)
        known = sum(trial.number not in self.lost for trial in asked)
        return len(self.reopened) + max(0, self.study.spec.search.trials - known)

    def next(self) -> Job | None:
        """An open trial of an earlier command, or a new one while there are trials left."""
        while self.waiting:
            if self.reopened:
                number, job = self.reopened.pop(0)
                self.trials[number] = optuna.trial.Trial(self.optuna, self.optuna.trials[number]._trial_id)
                return job
            trial = self.optuna.ask(distributions(self.study.spec.space))
            self.trials[trial.number] = trial
            first = self._first_with(trial.params, trial.number)
            kind: Kind = "trial" if first is None else "repeated"
            self.folder.ledger.write(kind, str(trial.number), {"params": trial.params})
            if first is not None:
                self._repeat(first, trial.number)
            elif (planned := self._job(trial.number, trial.params)) is not None:
                return planned
            else:
                self.optuna.tell(trial.number, state=TrialState.FAIL)
        return None

    def _first_with(self, params: dict[str, Any], number: int) -> optuna.trial.FrozenTrial | None:
        """An earlier trial at the same point that has, or will have, a value."""
        good = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
        same = (trial for trial in self.optuna.get_trials(states=good) if trial.params == params)
        return next((trial for trial in same if trial.number < number), None)

    def _repeat(self, first: optuna.trial.FrozenTrial, number: int) -> None:
        """A point that was chosen twice (choices only) is not trained twice: it has the value of the first."""
        if first.state == TrialState.RUNNING:
            self.twins[first.number].append(number)
        else:
            self.optuna.tell(number, first.values, state=first.state)

    def _job(self, number: int, params: dict[str, Any]) -> Job | None:
        """None, and a failed row, for a point that cannot be run; only combinations of values can come to this."""
        try:
            return plan_job(self.study, sweep_point(params), number)
        except InputError as error:
            config = {**params, "seed": self.study.spec.seeds[0]}
            heading = {"trial": number, "variant": None, "config": config, "reason": str(error)}
            self.folder.ledger.write("failed", f"trial{number}", heading)
            return None

    def ended(self, job: Job, pruned: bool) -> None:
        """Tell Optuna what the ledger says."""
        values, state = None, TrialState.PRUNED
        if not pruned:
            values = objective_values(self.study.spec.search.objectives, job, self.folder.ledger.outcomes())
            state = TrialState.FAIL if values is None else TrialState.COMPLETE
        for number in (job.trial, *self.twins.pop(job.trial, [])):
            self.optuna.tell(number, values, state=state)

    def should_prune(self, job: Job, task: int, value: float) -> bool:
        """Whether the trial is among the worse half of those that came as far."""
        trial = self.trials[job.trial]
        with warnings.catch_warnings(action="ignore"):  # a trial that goes on repeats what it reported before
            trial.report(value, task)
        return trial.should_prune()


def _died(event: Event | None) -> bool:
    return event is not None and event.kind == "failed" and event.read()["reason"] == DIED


def open_optuna(study: Study, folder: StudyFolder) -> optuna.Study:
    """The study in Optuna's own storage."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search = study.spec.search
    if isinstance(folder.path, Path):
        folder.path.mkdir(parents=True, exist_ok=True)
    opened = optuna.create_study(
        study_name=folder.name,
        storage=JournalStorage(journal(folder.journal)),
        directions=[OBJECTIVES[name][1] for name in search.objectives],
        load_if_exists=True,
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=2, reduction_factor=2),
    )
    with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
        opened.set_metric_names(list(search.objectives))
    seed = derive(search.seed, "search", len(opened.get_trials(deepcopy=False))) % MAX_OPTUNA_SEED
    opened.sampler = _sampler(search.sampler, seed, search.startup)
    return opened


def _sampler(name: str, seed: int, startup: int) -> optuna.samplers.BaseSampler:
    if name == "nsga2":
        return optuna.samplers.NSGAIISampler(seed=seed, population_size=startup)
    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup, constant_liar=True)


def objective_values(names: Sequence[str], job: Job, outcomes: dict[str, Event]) -> list[float] | None:
    """Means over the seeds of a finished trial; None if a run did not finish or a value does not exist."""
    if not finished(outcomes, (run.name for run in job.runs)):
        return None
    rows = [outcomes[run.name].read()["frames"]["runs"][0] for run in job.runs]
    columns = [[row[OBJECTIVES[name][0]] for row in rows] for name in names]
    if any(value is None for column in columns for value in column):
        return None
    return [math.fsum(column) / len(column) for column in columns]


class Unsaved:
    """Tune pickles what it is given, to restore it one day. A new command reads the ledger instead."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class JobSearcher(Unsaved, Searcher):  # type: ignore[misc]  # Ray has no types
    """Ray Tune's view of a study: a stream of jobs, at most `concurrent` at a time."""

    def __init__(
        self,
        jobs: Sequence[Job],
        source: OptunaSource | None,
        folder: StudyFolder,
        concurrent: int,
        common: dict[str, Any],
        attempts: Attempts | None = None,
        stopping: Stop = never,
    ) -> None:
        super().__init__()
        self.waiting = list(jobs)
        self.attempts, self.stopping = attempts, stopping
        self.tried_again: set[str] = set()
        self.source, self.folder, self.concurrent, self.common = source, folder, concurrent, common
        self.running: dict[str, Job] = {}
        self.handed_out = 0
        self.exhausted = source is None

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Tune's question. None: not now. Nothing is the last answer while a process that runs may still die."""
        if self.stopping():
            return str(Searcher.FINISHED)
        if len(self.running) >= self.concurrent:
            return None
        job = self._ready()
        if job is None and self._fetch():
            job = self._ready()
        if job is None:
            return None if self.waiting or self.running else str(Searcher.FINISHED)
        self.running[trial_id] = job
        self.handed_out += 1
        return {**self.common, "job": json.dumps(job.to_plain()), **self._company()}

    def _company(self) -> dict[str, Any]:
        """What a trial needs to know of those that start beside it. Later ones find a process that is there."""
        if self.concurrent == 1 or self.handed_out > 2 * self.concurrent or not START_SECONDS:
            return {"starting": None, "patience": 0.0}
        name = str(self.handed_out)
        Starting(self.folder.path).hand_out(name)
        return {"starting": name, "patience": START_SECONDS}

    def _ready(self) -> Job | None:
        """The first waiting job that needs no trunk which is still to come."""
        coming = frozenset[str]().union(*(job.provides for job in [*self.waiting, *self.running.values()]))
        for position, job in enumerate(self.waiting):
            if not job.needs & coming:
                return self.waiting.pop(position)
        return None

    def _fetch(self) -> bool:
        """Ask Optuna, but never for more than one point ahead: it learns from every trial that ends."""
        if self.source is None or self.exhausted or any(job.depth is None for job in self.waiting):
            return False
        job = self.source.next()
        self.exhausted = job is None
        self.waiting += [job] if job else []
        return job is not None

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """The scheduler looks at results."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Free the place; enter a trial that was stopped early in the ledger.

        One whose process died may have another attempt. Of one that leaves because all do, nothing is said to anyone:
        it stays open, and the next command hands it out again.
        """
        job = self.running.pop(trial_id)
        if self.stopping():
            self.tried_again.add(trial_id)
            return
        if (result or {}).get("stopped"):  # by an earlier driver, whose marker a node still saw
            self.waiting.insert(0, job)
            return
        if error and self.attempts and self.attempts.another(job):
            self.tried_again.add(trial_id)
            self.waiting.insert(0, job)
            return
        if job.depth is not None:
            return
        pruned = not error and not (result or {}).get("ended")
        if pruned:
            enter_pruned(job, self.folder, result or {})
        if self.source:
            self.source.ended(job, pruned)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the ledger and Optuna's journal are saved all the time."""


def enter_pruned(job: Job, folder: StudyFolder, result: dict[str, Any]) -> None:
    """The runs of a trial that was stopped early, and how far they came."""
    task = result.get("task")
    reason = f"stopped early after task {task}: BC({task}) is among the worse half"
    for run in job.runs:
        heading = {"trial": job.trial, "variant": job.variant, "config": fields(run.config), "reason": reason}
        folder.ledger.write("pruned", run.name, heading | {"metrics": {"tasks": task}})
        (folder.live / f"{run.name}.json").unlink(missing_ok=True)


class EarlyStopping(Unsaved, FIFOScheduler):  # type: ignore[misc]  # Ray has no types
    """Asks Optuna's pruner after every task. Its memory is Optuna's journal, so it survives a restart."""

    def __init__(self, searcher: JobSearcher, source: OptunaSource) -> None:
        super().__init__()
        self.searcher, self.source = searcher, source

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Stop or go on."""
        job = self.searcher.running[trial.trial_id]
        task, value = int(result.get("task", 0)), float(result.get("value", math.nan))
        comparable = job.depth is None and 0 < task < len(job.runs[0].keys) and math.isfinite(value)
        stop = comparable and self.source.should_prune(job, task, value)
        return str(TrialScheduler.STOP if stop else TrialScheduler.CONTINUE)
