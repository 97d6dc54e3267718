"""The driver of a study: what is still to do, Ray Tune to do it, and what came of it."""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from cl2r.engine.store import LinkStore
from cl2r.errors import StoppedError
from cl2r.files import remove_tree
from cl2r.objects import ObjectPath
from cl2r.progress import clock
from cl2r.rayrun.cluster import cluster, set_environment
from cl2r.rayrun.resources import Resources
from cl2r.stopping import Marker, Termination
from cl2r.study.about import update_about, write_about
from cl2r.study.folder import StudyFolder
from cl2r.study.frames import write_frames
from cl2r.study.jobs import Job, trunk_jobs
from cl2r.study.ledger import finished
from cl2r.study.live import LiveView
from cl2r.study.spec import Study

NEAR, FAR = 0.5, 5.0
"""Seconds between two looks at what is running: on a disk, in an object store."""


@dataclass(frozen=True)
class Outcome:
    """How the runs of a study stand when a command ends."""

    finished: int
    failed: int
    pruned: int
    missing: int
    """Runs that Tune was done with but the ledger does not know."""
    seconds: float


def run_study(
    study: Study,
    jobs: Sequence[Job],
    folder: StudyFolder,
    owner: str,
    resources: Resources,
    verbose: bool = False,
    termination: Termination | None = None,
) -> Outcome:
    """Do what the ledger does not have yet. `jobs` are those of a grid, or representatives of a sweep.

    After SIGTERM training processes save their epoch, and the study stays open.
    """
    try:
        return _run_study(study, jobs, folder, owner, resources, verbose, termination or Termination())
    except ConnectionError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise OSError(f"{folder.path}: {reason}; once that is mended, the same command goes on") from error


def _run_study(
    study: Study,
    jobs: Sequence[Job],
    folder: StudyFolder,
    owner: str,
    resources: Resources,
    verbose: bool,
    termination: Termination,
) -> Outcome:
    began = time.perf_counter()
    total = expected_runs(study, jobs, folder)
    remove_tree(folder.live)  # left behind by processes that were killed
    folder.ledger.write("opened", "driver", {"resources": asdict(resources), "runs": total})
    opened = folder.ledger.last("opened")["driver"]
    write_about(folder, asdict(resources), total)
    marker = Marker(folder.path)
    marker.remove()
    try:
        with termination.patience(marker.put):
            _run(study, jobs, folder, owner, resources, verbose, total, termination)
    finally:
        write_frames(folder)
    outcomes = list(folder.ledger.outcomes().values())
    counts = {kind: sum(event.kind == kind for event in outcomes) for kind in ("finished", "failed", "pruned")}
    settled = [event for event in outcomes if event.kind != "failed" or event > opened]
    if termination.requested and len(settled) < total:
        done = f"{counts['finished']} of {total} runs finished"
        raise StoppedError(f"stopped by SIGTERM: {done}; the same command goes on")
    folder.ledger.write("closed", "driver", counts)
    update_about(folder)
    missing = 0 if study.is_sweep else total - len(outcomes)
    return Outcome(**counts, missing=missing, seconds=time.perf_counter() - began)


def expected_runs(study: Study, jobs: Sequence[Job], folder: StudyFolder) -> int:
    """Runs of the whole study; a trial that repeats another's point has none of its own."""
    if not study.is_sweep:
        return len(jobs)
    repeated = len(folder.ledger.events("repeated"))
    return (study.spec.search.trials - repeated) * len(study.spec.seeds)


def _run(
    study: Study,
    jobs: Sequence[Job],
    folder: StudyFolder,
    owner: str,
    resources: Resources,
    verbose: bool,
    total: int,
    termination: Termination,
) -> None:
    set_environment(verbose)
    from cl2r.rayrun.search import OptunaSource  # imports Ray, which reads its environment then

    outcomes = folder.ledger.outcomes()
    unfinished = [job for job in jobs if not finished(outcomes, (run.name for run in job.runs))]
    source = OptunaSource(study, folder) if study.is_sweep else None
    if termination.requested or not (source.waiting if source else unfinished):
        return
    store = LinkStore(folder.storage, lambda line: None)
    queue = trunk_jobs(unfinished, store.among(key for job in jobs for run in job.runs for key in run.keys))
    queue += [] if source else unfinished
    totals = Totals(folder, store, [] if study.is_sweep else unfinished, total)
    view = LiveView(folder.live, totals.line, interval=FAR if isinstance(folder.path, ObjectPath) else NEAR)
    with cluster(resources, verbose, view.say) as concurrent:
        termination.listen()  # Ray has put its own handler there
        from cl2r.rayrun.head import HeadWatch
        from cl2r.rayrun.tuning import Monitor, tune_jobs

        monitor = Monitor(folder, view.say, total)
        view.start()
        watch = HeadWatch(view.say)
        watch.start()
        try:
            early_stopping = study.spec.search.early_stopping
            stopping = termination.asked
            tune_jobs(queue, source, folder, owner, resources, concurrent, early_stopping, monitor, stopping)
            monitor.tell_news()
        finally:
            watch.done.set()
            view.stop()


class Totals:
    """The last line of the live view."""

    def __init__(self, folder: StudyFolder, store: LinkStore, jobs: Sequence[Job], total: int) -> None:
        self.folder, self.store, self.total, self.began = folder, store, total, time.monotonic()
        keys = {key for job in jobs for run in job.runs for key in run.keys}
        self.missing = keys - store.among(keys)
        self.links = len(self.missing)

    def line(self) -> str:
        """Runs ended, links trained, time left."""
        self.missing -= self.store.among(self.missing)
        outcomes = self.folder.ledger.outcomes().values()
        failed = sum(event.kind == "failed" for event in outcomes)
        parts = [f"{len(outcomes)} of {self.total} runs"] + [f"{failed} failed"] * (failed > 0)
        elapsed, done = time.monotonic() - self.began, self.links - len(self.missing)
        if self.links:
            parts.append(f"{done} of {self.links} links")
        if done:
            parts.append(f"{clock(elapsed / done * len(self.missing))} left")
        return " · ".join([*parts, f"{clock(elapsed)} so far"])
