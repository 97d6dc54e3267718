"""What a training process does for a study: train the chains of a job and record the outcome in the ledger.

It runs unchanged in a Tune trial (one worker) and in every worker of Ray Train; only the first worker writes.
"""

import contextlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from cl2r.config.keys import AcceptLinks
from cl2r.engine.chain import Chain
from cl2r.engine.frames import frames
from cl2r.engine.plan import plan_run
from cl2r.engine.workers import Workers
from cl2r.errors import InputError, StoppedError, TrainingError
from cl2r.runtime.stop import Marker
from cl2r.storage.path import at
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job
from cl2r.study.ledger import Event, Ledger, finished
from cl2r.study.live import LiveFile
from cl2r.study.trackers import task_scalars

log = logging.getLogger(__name__)
Report = Callable[[dict[str, Any]], None]


def train_job(
    job: Job,
    folder: StudyFolder,
    trained_by: str,
    workers: Workers,
    report: Report,
    accept_links: AcceptLinks = "same",
) -> None:
    """Train what is missing of the job's runs. Record a run as failed if training raises TrainingError or InputError.

    If the driver's marker asks it to stop, it returns with its epoch saved and without an outcome.
    """
    with _warnings_in(folder.ledger, job.runs[0].name) if workers.first else contextlib.nullcontext():
        try:
            _train_job(job, folder, trained_by, workers, report, accept_links)
        except (TrainingError, InputError) as error:
            if workers.first:
                record_failed(job, folder, str(error))
        except StoppedError as error:
            log.info("%s", error)


@contextlib.contextmanager
def _warnings_in(ledger: Ledger, run: str) -> Iterator[None]:
    """Record the warnings that this process logs as notes of `run`; the driver shows them."""

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with contextlib.suppress(OSError):  # a full disk must not stop what logs
                ledger.write("noted", run, {"line": record.getMessage()})

    notes, logger = Notes(logging.WARNING), logging.getLogger("cl2r")
    logger.addHandler(notes)
    try:
        yield
    finally:
        logger.removeHandler(notes)


def record_failed(job: Job, folder: StudyFolder, reason: str) -> None:
    """Record every run of the job that has not finished as failed.

    A shared prefix is only noted: the runs that need it will fail themselves.
    """
    if job.stop_after is not None:
        folder.ledger.write("noted", job.runs[0].name, {"line": f"its first {job.stop_after} tasks failed: {reason}"})
        return
    outcomes = folder.ledger.outcomes()
    for run in job.runs:
        if not finished(outcomes, [run.name]):
            folder.ledger.write("failed", run.name, job.heading(run) | {"reason": reason})


def _train_job(
    job: Job, folder: StudyFolder, trained_by: str, workers: Workers, report: Report, accept: AcceptLinks
) -> None:
    began, whole, ledger = time.perf_counter(), job.stop_after is None, folder.ledger
    outcomes = workers.from_first(ledger.outcomes)
    # Links of an earlier command with other resources are this study's own, and are kept.
    earlier = workers.from_first(folder.makers)
    stop, live = Marker(folder.path), list[LiveFile]()
    for run in job.runs:
        path = folder.live / f"{run.name if whole else job.label}.json"
        live.append(LiveFile(path, run.title, job.stop_after or len(run.keys)))
    try:
        chains = workers.together(
            lambda: [
                Chain(plan_run(run.config), folder.storage, listener, trained_by, workers, stop, earlier, accept)
                for run, listener in zip(job.runs, live, strict=True)
            ]
        )
        pairs = zip(job.runs, chains, strict=True) if whole and workers.first else ()
        unfinished = [pair for pair in pairs if not finished(outcomes, [pair[0].name])]
        workers.from_first(lambda: _record_begin(job, ledger, outcomes, workers.world))
        # All runs reach a task before any continues, because a report is a mean over seeds.
        for task in range(1, (job.stop_after or max(len(run.keys) for run in job.runs)) + 1):
            for chain in chains:
                if task in chain.tasks:
                    chain.ensure_link(task)
            if whole:
                scalars = [task_scalars(chain, task, job.objective) for chain in chains] if workers.first else []
                values = [entry[job.objective] for entry in scalars] or [math.nan]
                keys = [[chain.key(t) for t in chain.tasks[:task]] for chain in chains]
                report({"task": task, "value": math.fsum(values) / len(values), "scalars": scalars, "keys": keys})
        pruned = ledger.last("pruned") if unfinished else {}  # Train's workers may outlive the decision
        for run, chain in unfinished:
            if run.name not in pruned:
                text = json.dumps(frames(chain.result(time.perf_counter() - began), run.name))
                # Other readers of JSON know no NaN: the ledger has null instead.
                rows = json.loads(text, parse_constant=lambda name: None if name == "NaN" else float(name))
                ledger.write("finished", run.name, job.heading(run) | {"frames": rows})
    finally:
        for listener in live if workers.first else []:
            listener.close()


def _record_begin(job: Job, ledger: Ledger, outcomes: dict[str, Event], workers: int) -> None:
    """Record that the runs of a job have started, or the number of a trial whose runs have finished already."""
    if job.stop_after is not None:
        return
    for run in job.runs:
        if not finished(outcomes, [run.name]):
            ledger.write("started", run.name, {"trial": job.trial, "workers": workers})
        elif job.variant is None and job.trial is not None:
            known = outcomes[run.name].read()
            if known["variant"] is None and known["trial"] != job.trial:  # a trial that died got a new number
                ledger.write("finished", run.name, known | job.heading(run))


def study_folder(path: str) -> StudyFolder:
    """Return the study folder at `path`."""
    whole = at(path)
    return StudyFolder(whole.parent.parent, whole.name)
