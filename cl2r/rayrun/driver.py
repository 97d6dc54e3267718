"""The driver of a study: run what the ledger does not have yet, and join the frames."""

import contextlib
import errno
import importlib
import logging
import os
import ssl
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import pandas as pd

from cl2r.errors import StoppedError
from cl2r.rayrun.cluster import HeadWatch, Say, cluster, set_environment
from cl2r.runtime.stop import Marker
from cl2r.runtime.text import clock
from cl2r.storage.leftovers import clear
from cl2r.study.frames import write_frames
from cl2r.study.jobs import Job, prefix_jobs
from cl2r.study.live import LiveView
from cl2r.study.session import StudySession

log = logging.getLogger(__name__)
STORAGE = ("cl2r.storage", "pyarrow")  # modules that read and write the storage, also for Ray Tune


@dataclass(frozen=True)
class Outcome:
    """The state of a study's runs when a command ends, and its frames."""

    finished: int
    failed: int
    pruned: int
    missing: int  # runs that Tune completed but the ledger does not have
    seconds: float
    links_trained: int = 0
    frames: dict[str, pd.DataFrame] = field(default_factory=dict)


def run(session: StudySession) -> Outcome:
    """Run what the ledger does not have yet and write the frames.

    After SIGTERM the training processes save their epoch, the study stays open, and StoppedError is raised.
    """
    try:
        with session.tracking:
            return _run(session)
    except OSError as error:
        if isinstance(error, ConnectionError):
            raise
        raise OSError(_explained(error, str(session.folder.path))) from error


def _explained(error: OSError, folder: str) -> str:
    """Return which path the error is about, what is wrong there, and what to do.

    An error without a path is about the study's folder if it was raised by what reads and writes storage; a full disk
    is reported so.
    """
    known = error.errno in errno.errorcode and not isinstance(error, ssl.SSLError)  # others have numbers of their own
    reason = os.strerror(error.errno or 0) if known else " ".join((error.strerror or str(error)).split())
    paths = [
        os.fsdecode(path) for path in (error.filename, error.filename2) if isinstance(path, str | bytes | os.PathLike)
    ]
    modules = {str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)}
    if not paths and any(module.startswith(STORAGE) for module in modules):
        paths = [folder]
    if not paths:
        return f"{reason}; the study is intact; run the same command again to resume"
    return f"{' → '.join(paths)}: {reason}; fix that and run the same command again to resume"


def _run(session: StudySession) -> Outcome:
    began, folder, ledger = time.perf_counter(), session.folder, session.ledger
    total, links_before = session.expected_runs(), session.store.keys()
    clear(folder.live)  # left behind by processes that were killed
    entry = {**session.identity, "made_by": session.resources.made_by, "resources": asdict(session.resources)}
    ledger.write("opened", "driver", {**entry, "runs": total, "runs_per_trial": len(session.spec.seeds)})
    opened = ledger.last("opened")["driver"]
    folder.write_about(asdict(session.resources), total)
    marker = Marker(folder.path)
    marker.remove()
    try:
        with session.stop.graceful(marker.put):
            left = run_jobs(session)
    finally:
        frames = write_frames(folder)
    outcomes = list(ledger.outcomes().values())
    counts = {kind: sum(event.kind == kind for event in outcomes) for kind in ("finished", "failed", "pruned")}
    settled = [event for event in outcomes if event.kind != "failed" or event > opened]
    if session.stop.requested and (left or len(settled) < (total := session.expected_runs())):
        done = f"{counts['finished']} of {total} runs finished"
        raise StoppedError(f"stopped by SIGTERM: {done}; run the same command again to resume")
    expected = session.expected_runs()
    ledger.write("closed", "driver", {**counts, "runs": expected})
    folder.write_about(asdict(session.resources), expected)
    return Outcome(
        **counts,
        missing=0 if session.spec.grows else total - len(outcomes),
        seconds=time.perf_counter() - began,
        links_trained=len(set(frames["tasks"].query("not reused")["key"]) - links_before),
        frames=frames,
    )


def run_jobs(session: StudySession) -> bool:
    """Start or join Ray and run every job that has not finished; return at once if there is none.

    Return whether a sweep or a race that was stopped has something left to do.
    """
    set_environment(session.verbose)
    from cl2r.rayrun.optuna_source import OptunaSource
    from cl2r.rayrun.race_source import RaceSource

    unfinished = session.unfinished()
    source: OptunaSource | RaceSource | None = None
    if session.spec.grows:
        source = RaceSource(session) if session.spec.race else OptunaSource(session.spec, session.folder)
    if session.stop.requested or not (unfinished or (source and source.waiting)):
        return session.stop.requested
    queue = prefix_jobs([*unfinished, *session.examples], session.present()) + unfinished
    view = LiveView(session.folder.live, totals(session, [] if source else unfinished))
    say: Say = log.info if session.quiet else view.say
    address = os.environ.get("RAY_ADDRESS")
    say(f"joining Ray at {address}…" if address and address != "local" else "starting Ray…")
    import ray

    # Tune is imported while Ray's processes start; the import below waits for it.
    load = threading.Thread(target=_load_tune, daemon=True)
    with cluster(session.resources, session.verbose, view.say, load.start) as concurrent:
        session.stop.listen()  # ray.init has replaced the handler
        if isinstance(source, RaceSource):
            source.enter(concurrent, say)
        from cl2r.rayrun.tune import tune_jobs

        watch = HeadWatch(view.say, ray.get_runtime_context().gcs_address)
        if not session.quiet:
            view.start()
        watch.start()
        try:
            tune_jobs(session, queue, source, concurrent, say)
        finally:
            watch.done.set()
            view.stop()
    return source is not None and not source.over


def _load_tune() -> None:
    with contextlib.suppress(Exception):  # the main thread imports it again, and that raises
        importlib.import_module("cl2r.rayrun.tune")


def totals(session: StudySession, jobs: Sequence[Job]) -> Callable[[], str]:
    """Return a function that returns the last line of the live view: runs that ended, links trained, time left."""
    began = time.monotonic()
    needed = {key for job in jobs for run in job.runs for key in run.keys} - session.present()

    def line() -> str:
        outcomes = session.ledger.outcomes().values()
        failed = sum(event.kind == "failed" for event in outcomes)
        parts = [f"{len(outcomes)} of {session.expected_runs()} runs"] + [f"{failed} failed"] * (failed > 0)
        elapsed, missing = time.monotonic() - began, len(needed - session.present())
        done = len(needed) - missing
        if needed:
            parts.append(f"{done} of {len(needed)} links")
        if done:
            parts.append(f"{clock(elapsed / done * missing)} left")
        return " · ".join([*parts, f"{clock(elapsed)} so far"])

    return line
