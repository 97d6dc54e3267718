"""Which job Ray Tune runs next: queued jobs of a grid, points of a sweep, jobs whose process crashed.

Jobs that train shared prefixes come first; a job waits until every prefix that it needs has been trained.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol

from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from cl2r.engine.links import LinkStore
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job
from cl2r.study.session import StudySession
from cl2r.study.train_job import record_failed


class Source(Protocol):
    """Where jobs come from that depend on how earlier ones ended, such as the points of a sweep."""

    def next(self) -> Job | None:
        """Return the next job; None if there is none until a running job ends, or none at all if nothing is running."""

    def ended(self, job: Job, pruned: bool) -> None:
        """Take note of a job that ended; the ledger has its outcome."""

    def should_prune(self, job: Job, task: int, value: float) -> bool:
        """Return whether to stop a job whose objective over the first `task` tasks is `value`."""


class RetryPolicy:
    """A crash counts only if nothing was saved since the previous one.

    On nodes that are often taken away a long run crashes often and finishes nevertheless; a process that always crashes
    at the same point must not be tried for ever. Links and saved epochs count as progress.
    """

    def __init__(self, store: LinkStore, retries: int) -> None:
        self.store, self.retries = store, retries
        self._crashes: dict[str, tuple[int, dict[str, tuple[float, int]]]] = {}

    def should_retry(self, job: Job) -> bool:
        """Record a crash of the job and return whether to try it again."""
        now = self.saved(job)
        count, before = self._crashes.get(job.label, (0, now))
        count = 0 if any(saved > before.get(key, (0, 0)) for key, saved in now.items()) else count + 1
        self._crashes[job.label] = count, now
        return count <= self.retries

    def saved(self, job: Job) -> dict[str, tuple[float, int]]:
        """Return the stored stage and epoch of each link, (∞, 0) if it is complete; no tensors are read.

        Links trained differently (`stored_key`) count too, each by itself: the run may use them.
        """
        planned = {key for run in job.runs for key in run.keys[: job.stop_after]}
        stored = self.store.keys()
        found = {key: (math.inf, 0) for key in stored if key.partition("-")[0] in planned}
        for path in self.store.partials.list("[!.]*"):
            if path.name.partition("-")[0] in planned and path.name not in found:
                try:
                    entry = self.store.read_partial(path.name)
                    found[path.name] = int(entry["stage"]), int(entry["epoch"])
                except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
                    continue  # gone, or useless if damaged
        return found


class NotPickled:
    """Tune pickles its callbacks and searchers in order to restore them; a new command reads the ledger instead."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class JobSearcher(NotPickled, Searcher):  # type: ignore[misc]  # Ray has no types
    """A study as Ray Tune sees it: a stream of jobs, at most `concurrent` at a time."""

    def __init__(self, session: StudySession, jobs: Sequence[Job], source: Source | None, concurrent: int) -> None:
        super().__init__()
        self.folder, self.stop, self.source, self.concurrent = session.folder, session.stop.asked, source, concurrent
        study, resources = str(session.folder.path), asdict(session.resources)
        self.common = {"study": study, "trained_by": session.trained_by, "resources": resources}
        self.retry = RetryPolicy(session.store, session.resources.retries)
        self.retried: set[str] = set()  # trials whose end is not an outcome: their jobs will be handed out again
        self.waiting = list(jobs)
        self.running: dict[str, Job] = {}
        self.crashed: dict[str, Job] = {}
        self.asked = False  # whether the source had no job, and nothing has ended since

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the config of the next trial, None for "not now", or FINISHED.

        While a job is running the answer is never FINISHED: its process may crash, and the job be tried again.
        """
        if self.stop():
            return str(Searcher.FINISHED)
        if len(self.running) >= self.concurrent:
            return None
        job = self._next_ready()
        if job is None and self.source and not self.asked and all(one.stop_after for one in self.waiting):
            # One point ahead, never more, because Optuna learns from every trial that ends.
            point = self.source.next()
            self.asked = point is None
            self.waiting += [point] if point else []
            job = self._next_ready()
        if job is None:
            return None if self.waiting or self.running else str(Searcher.FINISHED)
        self.running[trial_id] = job
        return {**self.common, "job": job.to_json()}

    def _next_ready(self) -> Job | None:
        """Remove and return the first waiting job that needs no link which another job is going to provide."""
        coming = frozenset[str]().union(*(job.provides for job in [*self.waiting, *self.running.values()]))
        for position, job in enumerate(self.waiting):
            if not job.needs & coming:
                return self.waiting.pop(position)
        return None

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Free the slot, retry a crashed job, record a job that was stopped early, and tell Optuna.

        A trial that ends because the whole study stops has no outcome: the next command hands its job out again.
        """
        job, last = self.running.pop(trial_id), result or {}
        self.asked = False
        if self.stop():
            self.retried.add(trial_id)
        elif last.get("stopped"):  # by the marker of an earlier driver, which a node saw with delay
            self.waiting.insert(0, job)
        elif error and self.retry.should_retry(job):
            self.retried.add(trial_id)
            self.waiting.insert(0, job)
        elif error:
            self.crashed[trial_id] = job  # the callback learns why and calls `record_crash`
        elif job.stop_after is None:
            pruned = not last.get("ended")
            if pruned:
                record_pruned(job, self.folder, last.get("task"))
            if self.source:
                self.source.ended(job, pruned)

    def record_crash(self, trial_id: str, reason: str) -> None:
        """Record a job that will not be tried again as failed; then its outcome is in the ledger, and the source may
        look at it."""
        job = self.crashed.pop(trial_id)
        record_failed(job, self.folder, reason)
        self.asked = False
        if self.source and job.stop_after is None:
            self.source.ended(job, pruned=False)

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: the ledger and Optuna's journal are always up to date."""


def record_pruned(job: Job, folder: StudyFolder, task: int | None) -> None:
    """Record the runs of a trial that was stopped early after `task`."""
    reason = f"stopped early after task {task}: {job.objective} over {task} tasks is among the worse ones"
    for run in job.runs:
        folder.ledger.write("pruned", run.name, job.heading(run) | {"reason": reason, "metrics": {"tasks": task}})
        (folder.live / f"{run.name}.json").unlink(missing_ok=True)


class EarlyStopping(NotPickled, FIFOScheduler):  # type: ignore[misc]  # Ray has no types
    """Asks Optuna's pruner after every task; its state is Optuna's journal, so that it survives a restart."""

    def __init__(self, searcher: JobSearcher, source: Source) -> None:
        super().__init__()
        self.searcher, self.source = searcher, source

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        job = self.searcher.running[trial.trial_id]
        task, value = int(result.get("task", 0)), float(result.get("value", math.nan))
        # The first task is the same for most trials and says nothing about what they choose.
        comparable = job.stop_after is None and 1 < task < len(job.runs[0].keys) and math.isfinite(value)
        prune = comparable and self.source.should_prune(job, task, value)
        return str(TrialScheduler.STOP if prune else TrialScheduler.CONTINUE)
