"""Points of a sweep, chosen by Optuna. Its journal is on disk or in the object store, so a sweep can be resumed."""

import json
import math
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from optuna.trial import TrialState

from cl2r.errors import InputError
from cl2r.seeding import derive
from cl2r.storage.path import StoragePath
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job, plan_job
from cl2r.study.ledger import DIED, Event, Kind, finished
from cl2r.study.space import distributions
from cl2r.study.spec import OBJECTIVES, Point, StudySpec

MAX_OPTUNA_SEED = 2**32
VALUED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)  # it has a value or will have one


class ObjectJournal(BaseJournalBackend):
    """Optuna's journal in an object store: one numbered object per entry. Only the driver of a study writes it."""

    def __init__(self, folder: StoragePath) -> None:
        self.folder = folder
        with ThreadPoolExecutor(16) as readers:
            written = list(readers.map(lambda path: path.read_bytes(), folder.list("*.json")))
        self.appended = len(written)
        self.entries: list[dict[str, Any]] = [entry for content in written for entry in json.loads(content)]

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        return self.entries[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        (self.folder / f"{self.appended:08d}.json").write_file(json.dumps(logs).encode())
        self.appended += 1
        self.entries += json.loads(json.dumps(logs))


def open_optuna(spec: StudySpec, folder: StudyFolder) -> optuna.Study:
    """Open or create the study in Optuna's storage; on a disk, optuna-dashboard can open its journal.

    The sampler's seed depends on the number of trials, so that a second command does not repeat the start-up points of
    the first.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    journal: BaseJournalBackend
    if folder.journal.remote:
        journal = ObjectJournal(folder.journal)
    else:
        Path(str(folder.journal)).parent.mkdir(parents=True, exist_ok=True)
        journal = JournalFileBackend(str(folder.journal))
    opened = optuna.create_study(
        study_name=folder.name,
        storage=JournalStorage(journal),
        directions=[OBJECTIVES[name][1] for name in spec.search.objectives],
        load_if_exists=True,
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=2, reduction_factor=2),
    )
    with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
        opened.set_metric_names(list(spec.search.objectives))
    seed = derive(spec.search.seed, "search", len(opened.get_trials(deepcopy=False))) % MAX_OPTUNA_SEED
    startup, samplers = spec.search.startup, optuna.samplers
    match spec.search.sampler:
        case "nsga2":
            opened.sampler = samplers.NSGAIISampler(seed=seed, population_size=startup)
        case "random":
            opened.sampler = samplers.RandomSampler(seed=seed)
        case "tpe":
            opened.sampler = samplers.TPESampler(seed=seed, n_startup_trials=startup, constant_liar=True)
    return opened


class OptunaSource:
    """A stream of jobs at points that Optuna chooses.

    A trial that an earlier command left open is handed out again with its number and point: its links and runs are
    found, and Optuna is told once. A trial whose process crashed is enqueued once more with a new number.
    """

    def __init__(self, spec: StudySpec, folder: StudyFolder) -> None:
        self.spec, self.folder = spec, folder
        self.optuna = open_optuna(spec, folder)
        self.trials: dict[int, optuna.trial.Trial] = {}
        self.reopened: list[tuple[int, Job]] = []
        self.twins: dict[int, list[int]] = defaultdict(list)  # open trials at the point of an earlier one, by that one
        self.lost: set[int] = set()  # trials that do not count: crashed, or killed before they had a point
        outcomes = folder.ledger.outcomes()
        for trial in self.optuna.get_trials(states=(TrialState.RUNNING, TrialState.FAIL)):
            self._settle(trial, outcomes)

    def _settle(self, trial: optuna.trial.FrozenTrial, outcomes: dict[str, Event]) -> None:
        """Decide what happens to a trial that an earlier command left open, or that failed."""
        running, job = trial.state == TrialState.RUNNING, None
        if trial.params.keys() == self.spec.space.keys():
            job = self._plan(trial.number, trial.params)
        else:  # killed while its point was being chosen
            self.lost.add(trial.number)
        if job is None:
            if running:
                self.optuna.tell(trial.number, state=TrialState.FAIL)
            return
        events = [outcomes.get(run.name) for run in job.runs]
        kinds = {event.kind if event else None for event in events}
        if not running:
            if any(event and event.kind == "failed" and event.read()["reason"] == DIED for event in events):
                self.lost.add(trial.number)
                self.optuna.enqueue_trial(trial.params)
        elif kinds <= {"finished", "pruned"}:
            self.ended(job, pruned="pruned" in kinds)
        elif same := [number for number, other in self.reopened if other.runs == job.runs]:
            self.twins[same[0]].append(trial.number)
        else:
            self.reopened.append((trial.number, job))

    @property
    def waiting(self) -> int:
        """Number of trials still to run: open ones of an earlier command, and those not begun."""
        begun = self.optuna.get_trials(deepcopy=False, states=(*VALUED, TrialState.FAIL))
        known = sum(trial.number not in self.lost for trial in begun)
        return len(self.reopened) + max(0, self.spec.search.trials - known)

    def next(self) -> Job | None:
        """Return the job of an open trial, or of a new one; None if no trials are left."""
        while self.waiting:
            if self.reopened:
                number, job = self.reopened.pop(0)
                self.trials[number] = optuna.trial.Trial(self.optuna, self.optuna.trials[number]._trial_id)
                return job
            trial = self.optuna.ask(distributions(self.spec.space))
            self.trials[trial.number] = trial
            earlier = (other for other in self.optuna.get_trials(states=VALUED) if other.number < trial.number)
            first = next((other for other in earlier if other.params == trial.params), None)
            kind: Kind = "trial" if first is None else "repeated"
            self.folder.ledger.write(kind, str(trial.number), {"params": trial.params})
            # A point that was chosen twice (choices only) is not trained twice: it gets the value of the first.
            if first is None:
                if (planned := self._plan(trial.number, trial.params)) is not None:
                    return planned
                self.optuna.tell(trial.number, state=TrialState.FAIL)
            elif first.state == TrialState.RUNNING:
                self.twins[first.number].append(trial.number)
            else:
                self.optuna.tell(trial.number, first.values, state=first.state)
        return None

    def _plan(self, number: int, params: dict[str, Any]) -> Job | None:
        """Return the job of a point; None, and a failed row, for a combination of values that cannot be run."""
        try:
            return plan_job(self.spec, Point(None, params), number)
        except InputError as error:
            config = {**params, "seed": self.spec.seeds[0]}
            entry = {"trial": number, "variant": None, "config": config, "reason": str(error)}
            self.folder.ledger.write("failed", f"trial{number}", entry)
            return None

    def ended(self, job: Job, pruned: bool) -> None:
        """Tell Optuna the outcome that the ledger has."""
        values, state = None, TrialState.PRUNED
        if not pruned:
            values = objective_values(self.spec.search.objectives, job, self.folder.ledger.outcomes())
            state = TrialState.FAIL if values is None else TrialState.COMPLETE
        for number in (job.trial, *self.twins.pop(job.trial, [])):
            self.optuna.tell(number, values, state=state)

    def should_prune(self, job: Job, task: int, value: float) -> bool:
        """Return whether the trial is in the worse half of the trials that reached this task."""
        trial = self.trials[job.trial]
        with warnings.catch_warnings(action="ignore"):  # a resumed trial repeats what it reported before
            trial.report(value, task)
        return trial.should_prune()


def objective_values(names: Sequence[str], job: Job, outcomes: dict[str, Event]) -> list[float] | None:
    """Return means over the seeds of a finished trial; None if a run did not finish or a value does not exist."""
    if not finished(outcomes, (run.name for run in job.runs)):
        return None
    rows = [outcomes[run.name].read()["frames"]["runs"][0] for run in job.runs]
    columns = [[row[OBJECTIVES[name][0]] for row in rows] for name in names]
    if any(value is None for column in columns for value in column):
        return None
    return [math.fsum(column) / len(column) for column in columns]
