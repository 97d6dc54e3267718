"""The one call of Ray Tune, and the callback that reports how trials end."""

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.execution import class_cache
from ray.tune.schedulers import FIFOScheduler

from cl2r.errors import InputError
from cl2r.metrics import COMPATIBILITY, REINDEXED_ACCURACY, SERVICE_ACCURACY
from cl2r.rayrun.cluster import Say
from cl2r.rayrun.probes import NodeChecks
from cl2r.rayrun.searcher import EarlyStopping, JobSearcher, NotPickled, Source
from cl2r.rayrun.trial import run_trial
from cl2r.runtime.logs import TELLING, without_secrets
from cl2r.runtime.text import clock
from cl2r.storage.leftovers import clear
from cl2r.study.frames import write_frames
from cl2r.study.jobs import Job
from cl2r.study.ledger import DIED, Event
from cl2r.study.session import StudySession

GONE = ("The actor is dead", "The actor died", "ActorUnavailable", "The actor is temporarily unavailable")
"""Ray's words for a process that was killed, or whose node was lost."""
UNLIMITED = 10**9  # trials for Tune; the searcher ends the stream of jobs
FRAMES_EVERY_S = 10.0

# Tune copies AWS keys of the driver into the runtime environment of its trials, and Ray's agent writes that to its log
# in clear. A Ray on this machine inherits the keys anyway, and the nodes of a cluster have credentials of their own.
class_cache.ENV_VARS_TO_PROPAGATE -= set(filter(TELLING.search, class_cache.ENV_VARS_TO_PROPAGATE))


def tune_jobs(session: StudySession, jobs: Sequence[Job], source: Source | None, concurrent: int, say: Say) -> None:
    """Run the jobs, then those that `source` gives. Tune's own files are removed: a new command reads the ledger."""
    first = session.spec.config(session.spec.points()[0], session.spec.seeds[0])
    nodes = NodeChecks(session.resources, {first.data} | {run.config.data for job in jobs for run in job.runs}, say)
    if problems := nodes.problems():
        raise InputError(problems)
    scratch = session.folder.path / "ray"
    clear(scratch)  # left behind by a driver that was killed
    searcher = JobSearcher(session, jobs, source, concurrent)
    monitor = TrialMonitor(session, searcher, say, nodes)
    scheduler = FIFOScheduler()
    if source is not None and session.spec.search.pruner != "none":
        scheduler = EarlyStopping(searcher, source)
    try:
        tune.Tuner(
            tune.with_resources(run_trial, session.resources.per_trial()),
            tune_config=tune.TuneConfig(
                search_alg=searcher,
                scheduler=scheduler,
                num_samples=UNLIMITED,
                reuse_actors=session.resources.workers == 1,
                trial_name_creator=lambda trial: f"trial-{trial.trial_id}",
                trial_dirname_creator=lambda trial: f"trial-{trial.trial_id}",
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(scratch / uuid.uuid4().hex[:8]),
                verbose=0,
                callbacks=[monitor],
            ),
        ).fit()
        monitor.log_new_events()
    finally:
        clear(scratch)


class TrialMonitor(NotPickled, tune.Callback):  # type: ignore[misc]  # Ray has no types
    """Reports how trials end, records crashed ones as failed, and writes the frames from time to time."""

    def __init__(self, session: StudySession, searcher: JobSearcher, say: Say, nodes: NodeChecks) -> None:
        self.session, self.searcher, self.say, self.nodes = session, searcher, say, nodes
        self._seen = {event.path for event in session.ledger.events()}
        self._next_frames = time.monotonic() + FRAMES_EVERY_S

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self.session.tracking.report(Job.from_json(trial.config["job"]), result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.log_new_events()
        if time.monotonic() > self._next_frames:
            began = time.monotonic()
            try:
                write_frames(self.session.folder)
            except OSError as error:  # they are written again at the end, and that must succeed
                self.say(f"note: the frames cannot be written now: {error}")
            self._next_frames = time.monotonic() + max(FRAMES_EVERY_S, 20 * (time.monotonic() - began))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        # The searcher was asked before this callback and has decided whether the job is tried again.
        job, reason = Job.from_json(trial.config["job"]), failure_reason(trial)
        if reason == DIED and (problems := self.nodes.problems()):  # of any node, not only of the one where it ran
            reason = f"{DIED}, perhaps because of {problems}"
        if trial.trial_id in self.searcher.retried:
            self.say(f"{job.runs[0].title}: {reason}; it resumes from its last saved epoch")
            return
        self.searcher.record_crash(trial.trial_id, reason)
        self.log_new_events()

    def log_new_events(self) -> None:
        """Report the outcomes and notes that the ledger has received since the last call."""
        self.session.tracking.settle()
        ended, total = len(self.session.ledger.outcomes()), self.session.expected_runs()
        for event in self.session.ledger.events("finished", "failed", "pruned", "noted"):
            if event.path not in self._seen:
                self._seen.add(event.path)
                self.say(f"[{ended}/{total}] {_event_text(event)}")


def failure_reason(trial: Any) -> str:
    """Return the last line of the trial's last error, or that its process died."""
    path = Path(trial.error_file) if trial.error_file else None
    text = path.read_text(encoding="utf-8", errors="replace") if path and path.exists() else ""
    last = text.rstrip().rsplit("Failure #", 1)[-1]
    if not last or any(words in last for words in GONE):
        return DIED
    line = last.splitlines()[-1]
    return DIED if line.endswith(DIED) else without_secrets(line)[:500]


def _event_text(event: Event) -> str:
    content = event.read()
    if event.kind == "noted":
        return f"{event.subject}: {content['line']}"
    if event.kind != "finished":
        return f"{event.subject} {event.kind}: {content['reason']}"
    row = content["frames"]["runs"][0]
    shown = (SERVICE_ACCURACY, REINDEXED_ACCURACY, *COMPATIBILITY)
    metrics = (f"{one.head} {one.text(row[one.name])}" for one in shown if row.get(one.name) is not None)
    return f"{event.subject} {', '.join(metrics)} ({clock(row['wall_seconds'])})"
