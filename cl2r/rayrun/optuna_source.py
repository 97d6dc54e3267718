"""Points of a sweep, chosen by Optuna. Its journal is on disk or in the object store, so a sweep can be resumed.

Each context (a number of tasks) is an Optuna study of its own in one journal. Trials are told with their metrics on the
tuning pairs as user attributes, and with how far they violate each constraint.
"""

import logging
import math
import operator
import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.storages import BaseStorage
from optuna.trial import TrialState

from cl2r.errors import InputError
from cl2r.metrics import METRICS, STORED_BYTES, TRAIN_SECONDS
from cl2r.rayrun.optuna_journal import open_journal
from cl2r.seeding import derive
from cl2r.storage.seal import set_aside_with_seal
from cl2r.study.constraints import REFERENCE, seed_mean
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job, confirmation_jobs, fixed_jobs, plan_job
from cl2r.study.ledger import DIED, Event, Kind, finished
from cl2r.study.space import context_title, distributions
from cl2r.study.spec import OBJECTIVES, Point, StudySpec
from cl2r.study.warm_start import earlier_trials

log = logging.getLogger(__name__)
MAX_OPTUNA_SEED = 2**32
VALUED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)  # it has a value or will have one
EARLIER = "warm_start"  # user attribute of trials that an earlier study ran
UNKNOWN_VIOLATION = 1e9  # of a constraint whose reference run failed; Optuna's files have no infinity
ATTRIBUTES = [metric.column("tuning") for metric in (*METRICS.in_tables(), STORED_BYTES, TRAIN_SECONDS)]


def open_optuna(spec: StudySpec, storage: BaseStorage, name: str, tasks: int) -> optuna.Study:
    """Open or create one of Optuna's studies, for chains of `tasks` tasks.

    The sampler's seed depends on the number of trials and on the earlier study, so that neither a second command nor a
    warm start repeats start-up points.
    """
    search, pruners, samplers = spec.search, optuna.pruners, optuna.samplers
    chosen: dict[str, optuna.pruners.BasePruner] = {
        "none": pruners.NopPruner(),
        "median": pruners.MedianPruner(n_startup_trials=search.startup, n_warmup_steps=1),
        "halving": pruners.SuccessiveHalvingPruner(min_resource=2, reduction_factor=2),
        "hyperband": pruners.HyperbandPruner(min_resource=2, max_resource=max(tasks, 2), reduction_factor=2),
    }
    opened = optuna.create_study(
        study_name=name,
        storage=storage,
        directions=[OBJECTIVES[objective][1] for objective in search.objectives],
        load_if_exists=True,
        pruner=chosen[search.pruner],
    )
    with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
        opened.set_metric_names(list(search.objectives))
    stream = "search" if search.warm_start is None else f"search after {search.warm_start}"
    seed = derive(search.seed, stream, len(opened.get_trials(deepcopy=False))) % MAX_OPTUNA_SEED
    match search.sampler:
        case "nsga2":
            opened.sampler = samplers.NSGAIISampler(seed=seed, population_size=search.startup)
        case "random":
            opened.sampler = samplers.RandomSampler(seed=seed)
        case "tpe":
            opened.sampler = samplers.TPESampler(seed=seed, n_startup_trials=search.startup, constant_liar=True)
    return opened


class ContextSearch:
    """The trials of one context.

    A trial that an earlier command left open is handed out again with its number and point: its links and runs are
    found, and Optuna is told once. A trial whose process crashed is enqueued once more with a new number.
    """

    def __init__(self, spec: StudySpec, folder: StudyFolder, storage: BaseStorage, place: int) -> None:
        self.spec, self.folder, self.place = spec, folder, place
        contexts = spec.contexts()
        self.context, self.contexts = contexts[place], len(contexts)
        self.fixed = {job.runs[0].name: job for job in fixed_jobs(spec, self.context, spec.seeds)}
        tasks = len(self._checked_plan({}, 0).runs[0].keys)
        name = " ".join(filter(None, [folder.name, context_title(self.context)]))
        self.optuna = open_optuna(spec, storage, name, tasks)
        self.trials: dict[int, optuna.trial.Trial] = {}
        self.reopened: list[tuple[int, Job]] = []
        self.twins: dict[int, list[int]] = defaultdict(list)  # open trials at the point of an earlier one, by that one
        self.lost: set[int] = set()  # trials that do not count: crashed, or killed before they had a point
        self.running: set[int] = set()
        self.untold: list[tuple[Job, bool]] = []  # ended before the fixed runs that they are judged by
        outcomes = folder.ledger.outcomes()
        restored = self._restore(outcomes)  # first: points that a warm start tries had numbers before
        if EARLIER not in self.optuna.user_attrs:
            self._warm_start()
            self.optuna.set_user_attr(EARLIER, spec.search.warm_start)
        if restored:
            self.optuna = open_optuna(spec, storage, name, tasks)  # the sampler's seed depends on the trials
        for trial in self.optuna.get_trials(states=(TrialState.RUNNING, TrialState.FAIL)):
            self._settle(trial, outcomes)

    def _warm_start(self) -> None:
        """Take over an earlier study's trials or, if its values cannot be compared with ours, try its points first."""
        known = self.optuna.get_trials(deepcopy=False)  # of a command that was killed here, or from the ledger
        taken = [trial.system_attrs.get("fixed_params", trial.params) for trial in known]
        for earlier in earlier_trials(self.spec, self.folder, self.context):
            if earlier.params in taken:
                continue
            if earlier.values is None:
                self.optuna.enqueue_trial(earlier.params)
                continue
            trial = optuna.trial.create_trial(
                values=earlier.values,
                params=earlier.params,
                distributions=distributions(self.spec.knobs),
                user_attrs={EARLIER: self.spec.search.warm_start},
            )
            for name, violation in earlier.violations.items():
                trial.set_constraint(name, min(violation, UNKNOWN_VIOLATION))
            self.optuna.add_trial(trial)

    def _restore(self, outcomes: dict[str, Event]) -> bool:
        """Put the trials that the ledger has into a journal that was rebuilt: points now, outcomes by `_settle`.

        Return whether there were any.
        """
        points = dict[int, dict[str, Any]]()
        for event in outcomes.values():  # a trial's own event may be what was damaged
            content = event.read()
            if content["variant"] is None and content["trial"] is not None:
                points[content["trial"]] = content["config"]
        for event in self.folder.ledger.events("trial", "repeated"):
            points[int(event.subject)] = event.read()["params"]
        own = {label // self.contexts: point for label, point in points.items() if label % self.contexts == self.place}
        missing = range(len(self.optuna.get_trials(deepcopy=False)), max(own, default=-1) + 1)
        for number in missing:
            knobs = self.spec.knobs if number in own else {}  # without events its point is lost, its number stays free
            trial = optuna.trial.create_trial(
                state=TrialState.RUNNING if knobs else TrialState.FAIL,
                params={name: own[number][name] for name in knobs},
                distributions=distributions(knobs),
            )
            self.optuna.add_trial(trial)
        return len(missing) > 0

    def contradicts(self) -> bool:
        """Return whether Optuna knows the value of a trial that the ledger has lost."""
        outcomes = self.folder.ledger.outcomes()
        for trial in self.optuna.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)):
            job = None if EARLIER in trial.user_attrs else self._plan(trial.number, trial.params, recorded=True)
            if job is not None and any(run.name not in outcomes for run in job.runs):
                return True
        return False

    def _settle(self, trial: optuna.trial.FrozenTrial, outcomes: dict[str, Event]) -> None:
        """Decide what happens to a trial that an earlier command left open, or that failed."""
        running, job = trial.state == TrialState.RUNNING, None
        if trial.params.keys() == self.spec.knobs.keys():
            job = self._plan(trial.number, trial.params, recorded=not running)
        else:  # killed while its point was being chosen
            self.lost.add(trial.number)
        if job is None:
            if running:
                self.optuna.tell(trial.number, state=TrialState.FAIL)
            return
        events = [outcomes.get(run.name) for run in job.runs]
        kinds = {event.kind if event else None for event in events}
        if not running:
            died = any(event and event.kind == "failed" and event.read()["reason"] == DIED for event in events)
            if died or kinds == {"finished"}:  # it has been tried again with another number, or will be
                self.lost.add(trial.number)
            later = [other for other in self.optuna.get_trials(deepcopy=False) if other.number > trial.number]
            points = [other.system_attrs.get("fixed_params", other.params) for other in later]
            if died and trial.params not in points:
                self.optuna.enqueue_trial(trial.params)
        elif kinds <= {"finished", "pruned"}:
            self.running.add(trial.number)
            self.ended(job, pruned="pruned" in kinds)
        elif same := [number for number, other in self.reopened if other.runs == job.runs]:
            self.twins[same[0]].append(trial.number)
        else:
            self.reopened.append((trial.number, job))

    @property
    def begun(self) -> int:
        """Number of trials of this study that count."""
        known = self.optuna.get_trials(deepcopy=False, states=(*VALUED, TrialState.FAIL))
        return sum(trial.number not in self.lost and EARLIER not in trial.user_attrs for trial in known)

    @property
    def waiting(self) -> int:
        """Number of trials still to run: open ones of an earlier command, and those not begun."""
        return len(self.reopened) + max(0, self.spec.search.trials - self.begun)

    @property
    def over(self) -> bool:
        """Whether every trial has ended and Optuna knows it."""
        return not (self.waiting or self.running or self.untold)

    def next(self) -> Job | None:
        """Return the job of an open trial, or of a new one; None if no trials are left."""
        while self.waiting:
            if self.reopened:
                number, job = self.reopened.pop(0)
                if self._begin(number, job):
                    return job
                continue
            trial = self.optuna.ask(distributions(self.spec.knobs))
            self.trials[trial.number] = trial
            others = self.optuna.get_trials(states=VALUED)
            earlier = (other for other in others if other.number < trial.number and EARLIER not in other.user_attrs)
            first = next((other for other in earlier if other.params == trial.params), None)
            planned = self._plan(trial.number, trial.params) if first is None else None
            kind: Kind = "repeated" if first is not None or (planned and self._is_fixed(planned)) else "trial"
            entry: dict[str, Any] = {"params": self.context | trial.params}
            if planned and self._is_fixed(planned):
                entry["runs"] = [run.name for run in planned.runs]
            self.folder.ledger.write(kind, str(self._label(trial.number)), entry)
            # A point that was chosen twice (choices only) is not trained twice: it gets the value of the first.
            if first is None:
                if planned is None:
                    self.optuna.tell(trial.number, state=TrialState.FAIL)
                elif self._begin(trial.number, planned):
                    return planned
            elif first.state == TrialState.RUNNING:
                self.twins[first.number].append(trial.number)
            else:
                self._tell(trial.number, first.values, first.state, dict(first.user_attrs), first.constraints)
        return None

    def _is_fixed(self, job: Job) -> bool:
        return all(run.name in self.fixed for run in job.runs)

    def _begin(self, number: int, job: Job) -> bool:
        """Return whether the job is to be trained; the point of a fixed run gets the value of that run."""
        self.running.add(number)
        if self._is_fixed(job):
            self.ended(job, pruned=False)
            return False
        return True

    def _label(self, number: int) -> int:
        """Return the number of a trial among the trials of all contexts."""
        return number * self.contexts + self.place

    def _checked_plan(self, params: dict[str, Any], number: int) -> Job:
        return plan_job(self.spec, Point(None, self.context | params), self._label(number))

    def _plan(self, number: int, params: dict[str, Any], recorded: bool = False) -> Job | None:
        """Return the job of a point; None, and a failed row, for a combination of values that cannot be run."""
        try:
            return self._checked_plan(params, number)
        except InputError as error:
            if recorded:
                return None
            label, config = self._label(number), {**self.context, **params, "seed": self.spec.seeds[0]}
            entry = {"trial": label, "variant": None, "config": config, "reason": str(error)}
            self.folder.ledger.write("failed", f"trial{label}", entry)
            return None

    def ended(self, job: Job, pruned: bool) -> None:
        """Tell Optuna the outcome that the ledger has, as soon as the fixed runs have ended too."""
        self.untold.append((job, pruned))
        self.tell_ended()

    def tell_ended(self) -> None:
        """Tell Optuna of all trials that ended, if the fixed runs have ended."""
        outcomes, opened = self.folder.ledger.outcomes(), self.folder.ledger.last("opened").get("driver")
        for name in self.fixed:
            outcome = outcomes.get(name)
            if outcome is None or (outcome.kind != "finished" and opened is not None and outcome < opened):
                return  # it is being tried again
        untold, self.untold = self.untold, []
        for job, pruned in untold:
            assert job.trial is not None
            number, values, state = job.trial // self.contexts, None, TrialState.PRUNED
            own = job_rows([job], outcomes)
            attributes = {name: value for name in ATTRIBUTES if not math.isnan(value := seed_mean(own, name))}
            violations = dict[str, float]()
            if not pruned:
                found = [seed_mean(own, OBJECTIVES[name][0]) for name in self.spec.search.objectives]
                values = None if any(map(math.isnan, found)) else found
                state = TrialState.FAIL if values is None else TrialState.COMPLETE
                violations = self._violations(own, outcomes) if values else {}
            for one in (number, *self.twins.pop(number, [])):
                self._tell(one, values, state, attributes, violations)
            self.running.discard(number)

    def _violations(self, rows: list[dict[str, Any]], outcomes: dict[str, Event]) -> dict[str, float]:
        """Return by how much the means of these rows violate each constraint."""
        fixed = [job for job in self.fixed.values() if job.variant == REFERENCE]
        found = dict[str, float]()
        for constraint in self.spec.search.parsed_constraints():
            jobs = [job for job in fixed if job.runs[0].config.method.name == constraint.reference]
            reference = seed_mean(job_rows(jobs, outcomes), constraint.column)
            found[str(constraint)] = constraint.violation(seed_mean(rows, constraint.column), reference)
        return found

    def _trial(self, number: int) -> optuna.trial.Trial:
        if number not in self.trials:
            self.trials[number] = optuna.trial.Trial(self.optuna, self.optuna.get_trials()[number]._trial_id)
        return self.trials[number]

    def _tell(
        self,
        number: int,
        values: Sequence[float] | None,
        state: TrialState,
        attributes: dict[str, Any],
        violations: dict[str, float],
    ) -> None:
        trial = self._trial(number)
        for name, value in attributes.items():
            trial.set_user_attr(name, value)
        for name, violation in violations.items():
            trial.set_constraint(name, min(violation, UNKNOWN_VIOLATION))
        self.optuna.tell(trial, values if state == TrialState.COMPLETE else None, state=state)

    def should_prune(self, job: Job, task: int, value: float) -> bool:
        """Report the objective over the first `task` tasks and return what Optuna's pruner says."""
        assert job.trial is not None
        trial = self._trial(job.trial // self.contexts)
        with warnings.catch_warnings(action="ignore"):  # a resumed trial repeats what it reported before
            trial.report(value, task)
        return trial.should_prune()

    def best(self, count: int) -> dict[int, dict[str, Any]]:
        """Return the points of the best trials that meet the constraints, by number; of several objectives, the front.

        A point that is trained anyway, such as the preset's, is left out.
        """
        outcomes = self.folder.ledger.outcomes()
        signs = [-1 if OBJECTIVES[name][1] == "maximize" else 1 for name in self.spec.search.objectives]
        costs, points = dict[int, list[float]](), dict[int, dict[str, Any]]()
        for trial in self.optuna.get_trials(states=(TrialState.COMPLETE,)):
            if EARLIER in trial.user_attrs or self.context | trial.params in points.values():
                continue  # a point that was chosen twice counts once
            # Judged by the ledger: Optuna keeps what it was told, even if a reference run finished only later.
            job = self._checked_plan(trial.params, trial.number)
            violations = self._violations(job_rows([job], outcomes), outcomes)
            if all(violation <= 0 for violation in violations.values()):
                label = self._label(trial.number)
                costs[label] = [sign * value for sign, value in zip(signs, trial.values, strict=True)]
                points[label] = {} if self._is_fixed(job) else self.context | trial.params

        def beaten(mine: list[float]) -> bool:
            return any(other != mine and all(map(operator.le, other, mine)) for other in costs.values())

        front = [label for label in costs if len(signs) == 1 or not beaten(costs[label])]
        chosen = sorted((label for label in front if points[label]), key=lambda label: (costs[label][0], label))
        return {label: points[label] for label in chosen[:count]}


class OptunaSource:
    """The stream of jobs of a sweep: trials of all contexts in turn, then confirmations of the best ones."""

    def __init__(self, spec: StudySpec, folder: StudyFolder) -> None:
        self.spec, self.folder = spec, folder
        self.searches = self._open()
        if any(search.contradicts() for search in self.searches):
            log.warning(
                "%s has trials that the ledger lacks; it is set aside and rebuilt from the ledger", folder.journal
            )
            set_aside_with_seal(folder.journal)
            self.searches = self._open()
        self.unconfirmed = list(self.searches) if spec.search.confirm else []
        self.confirmations: list[Job] = []  # left to hand out
        self.confirmed: list[Job] = []  # all that were planned

    def _open(self) -> list[ContextSearch]:
        storage = open_journal(self.folder)
        return [ContextSearch(self.spec, self.folder, storage, place) for place in range(len(self.spec.contexts()))]

    @property
    def waiting(self) -> int:
        """Number of trials and confirmations that are known to be left."""
        return sum(search.waiting for search in self.searches) + len(self._to_confirm())

    @property
    def over(self) -> bool:
        """Whether every trial and every confirmation has ended."""
        outcomes = self.folder.ledger.outcomes()
        ended = all(run.name in outcomes for job in self.confirmed for run in job.runs)
        return ended and not self.unconfirmed and all(search.over for search in self.searches)

    def next(self) -> Job | None:
        """Return the next job, None if there is none at the moment. Contexts with fewer trials come first."""
        for search in sorted(self.searches, key=lambda search: search.begun - len(search.reopened)):
            if (job := search.next()) is not None:
                return job
        return self.confirmations.pop(0) if self._to_confirm() else None

    def _to_confirm(self) -> list[Job]:
        """Return the confirmations that are left, after planning those of the contexts whose search is over."""
        for search in [search for search in self.unconfirmed if search.over]:
            self.unconfirmed.remove(search)
            assert self.spec.search.confirm is not None
            best = search.best(self.spec.search.confirm.top)
            self.folder.ledger.write("confirming", str(search.place), {"trials": list(best)})
            outcomes = self.folder.ledger.outcomes()
            jobs = confirmation_jobs(self.spec, search.context, best)
            self.confirmed += jobs
            self.confirmations += [job for job in jobs if not finished(outcomes, (run.name for run in job.runs))]
        return self.confirmations

    def ended(self, job: Job, pruned: bool) -> None:
        """Take note of a job that ended: Optuna is told of a trial, and of trials that waited for a fixed run."""
        if job.variant is None:
            self._search(job).ended(job, pruned)
        else:
            for search in self.searches:
                search.tell_ended()

    def should_prune(self, job: Job, task: int, value: float) -> bool:
        """Return whether a trial is to be stopped after this task."""
        return job.variant is None and self._search(job).should_prune(job, task, value)

    def _search(self, job: Job) -> ContextSearch:
        assert job.trial is not None
        return self.searches[job.trial % len(self.searches)]


def job_rows(jobs: Sequence[Job], outcomes: dict[str, Event]) -> list[dict[str, Any]]:
    """Return the rows of the `runs` frame of all runs of the jobs; none if a run did not finish."""
    names = [run.name for job in jobs for run in job.runs]
    if not finished(outcomes, names):
        return []
    return [outcomes[name].read()["frames"]["runs"][0] for name in names]
