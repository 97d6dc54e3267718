"""The driver of a study: run what the ledger does not have yet, and join the frames."""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import pandas as pd

from cl2r.errors import StoppedError
from cl2r.rayrun.cluster import HeadWatch, cluster, set_environment
from cl2r.runtime.stop import Marker
from cl2r.runtime.text import clock
from cl2r.study.frames import write_frames
from cl2r.study.jobs import Job, prefix_jobs
from cl2r.study.live import LiveView
from cl2r.study.session import StudySession

POLL_LOCAL_S, POLL_REMOTE_S = 0.5, 5.0
"""Seconds between two looks at the progress files: on a disk, in an object store."""


@dataclass(frozen=True)
class Outcome:
    """The state of a study's runs when a command ends, and its frames."""

    finished: int
    failed: int
    pruned: int
    missing: int
    """Runs that Tune completed but the ledger does not have."""
    seconds: float
    links_trained: int = 0
    frames: dict[str, pd.DataFrame] = field(default_factory=dict)


def run(session: StudySession) -> Outcome:
    """Run what the ledger does not have yet and write the frames.

    After SIGTERM the training processes save their epoch, the study stays open, and StoppedError is raised.
    """
    try:
        return _run(session)
    except ConnectionError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        again = "fix that and run the same command again to resume"
        raise OSError(f"{session.folder.path}: {reason}; {again}") from error


def _run(session: StudySession) -> Outcome:
    began, folder, ledger = time.perf_counter(), session.folder, session.ledger
    total, links_before = session.expected_runs(), session.store.keys()
    folder.live.remove_tree()  # left behind by processes that were killed
    ledger.write("opened", "driver", {"resources": asdict(session.resources), "runs": total})
    opened = ledger.last("opened")["driver"]
    folder.write_about(asdict(session.resources), total)
    marker = Marker(folder.path)
    marker.remove()
    try:
        with session.stop.graceful(marker.put):
            run_jobs(session)
    finally:
        frames = write_frames(folder)
    outcomes = list(ledger.outcomes().values())
    counts = {kind: sum(event.kind == kind for event in outcomes) for kind in ("finished", "failed", "pruned")}
    settled = [event for event in outcomes if event.kind != "failed" or event > opened]
    if session.stop.requested and len(settled) < total:
        done = f"{counts['finished']} of {total} runs finished"
        raise StoppedError(f"stopped by SIGTERM: {done}; run the same command again to resume")
    ledger.write("closed", "driver", counts)
    folder.update_about()
    return Outcome(
        **counts,
        missing=0 if session.spec.is_sweep else total - len(outcomes),
        seconds=time.perf_counter() - began,
        links_trained=len(set(frames["tasks"].query("not reused")["key"]) - links_before),
        frames=frames,
    )


def run_jobs(session: StudySession) -> None:
    """Start or join Ray and run every job that has not finished; return at once if there is none."""
    set_environment(session.verbose)
    from cl2r.rayrun.optuna_source import OptunaSource

    unfinished = session.unfinished()
    source = OptunaSource(session.spec, session.folder) if session.spec.is_sweep else None
    if session.stop.requested or not (source.waiting if source else unfinished):
        return
    queue = prefix_jobs(unfinished, session.store.keys()) + ([] if source else unfinished)
    totals = Totals(session, [] if source else unfinished)
    interval = POLL_REMOTE_S if session.folder.path.remote else POLL_LOCAL_S
    view = LiveView(session.folder.live, totals.line, interval=interval)
    with cluster(session.resources, session.verbose, view.say) as concurrent:
        session.stop.listen()  # ray.init has replaced the handler
        from cl2r.rayrun.tune import tune_jobs

        watch = HeadWatch(view.say)
        view.start()
        watch.start()
        try:
            tune_jobs(session, queue, source, concurrent, view.say)
        finally:
            watch.done.set()
            view.stop()


class Totals:
    """The last line of the live view: runs that ended, links trained, time left."""

    def __init__(self, session: StudySession, jobs: Sequence[Job]) -> None:
        self.session, self.total, self.began = session, session.expected_runs(), time.monotonic()
        keys = {key for job in jobs for run in job.runs for key in run.keys}
        self.missing = keys - session.store.keys()
        self.links = len(self.missing)

    def line(self) -> str:
        """Return the line as of now."""
        self.missing -= self.session.store.keys()
        outcomes = self.session.ledger.outcomes().values()
        failed = sum(event.kind == "failed" for event in outcomes)
        parts = [f"{len(outcomes)} of {self.total} runs"] + [f"{failed} failed"] * (failed > 0)
        elapsed, done = time.monotonic() - self.began, self.links - len(self.missing)
        if self.links:
            parts.append(f"{done} of {self.links} links")
        if done:
            parts.append(f"{clock(elapsed / done * len(self.missing))} left")
        return " · ".join([*parts, f"{clock(elapsed)} so far"])
