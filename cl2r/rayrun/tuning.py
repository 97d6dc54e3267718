"""The one call of Ray Tune, and what its driver says about trials as they end."""

import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import FIFOScheduler

from cl2r.engine.store import LinkStore
from cl2r.files import remove_tree
from cl2r.privacy import without_secrets
from cl2r.progress import clock
from cl2r.rayrun.attempts import Attempts
from cl2r.rayrun.resources import Resources
from cl2r.rayrun.search import EarlyStopping, JobSearcher, OptunaSource, Unsaved
from cl2r.rayrun.trial import run_trial
from cl2r.stopping import Stop, never
from cl2r.study.folder import StudyFolder
from cl2r.study.frames import write_frames
from cl2r.study.jobs import Job
from cl2r.study.ledger import DIED, Event
from cl2r.study.walk import enter_failures

GONE = ("The actor is dead", "The actor died", "ActorUnavailable", "The actor is temporarily unavailable")
"""What Ray says of a process that was killed, or whose node was."""
MANY = 10**9  # trials: as many as there are jobs
Say = Callable[[str], None]


def tune_jobs(
    jobs: Sequence[Job],
    source: OptunaSource | None,
    folder: StudyFolder,
    owner: str,
    resources: Resources,
    concurrent: int,
    early_stopping: bool,
    monitor: "Monitor",
    stopping: Stop = never,
) -> None:
    """Run the jobs, then what `source` gives. Tune's own files are of no use afterwards and are removed."""
    remove_tree(folder.path / "ray")  # of a driver that was killed
    common = {"study": str(folder.path), "owner": owner, "resources": asdict(resources)}
    attempts = Attempts(LinkStore(folder.storage, monitor.say), resources.retries)
    searcher = JobSearcher(jobs, source, folder, concurrent, common, attempts, stopping)
    monitor.tried_again = searcher.tried_again
    scratch = folder.path / "ray" / uuid.uuid4().hex[:8]
    try:
        tune.Tuner(
            tune.with_resources(run_trial, resources.per_trial()),
            tune_config=tune.TuneConfig(
                search_alg=searcher,
                scheduler=EarlyStopping(searcher, source) if source and early_stopping else FIFOScheduler(),
                num_samples=MANY,
                reuse_actors=resources.workers == 1,
                trial_name_creator=lambda trial: f"trial-{trial.trial_id}",
                trial_dirname_creator=lambda trial: f"trial-{trial.trial_id}",
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(scratch),
                verbose=0,
                callbacks=[monitor],
            ),
        ).fit()
    finally:
        remove_tree(folder.path / "ray")


class Monitor(Unsaved, tune.Callback):  # type: ignore[misc]  # Ray has no types
    """Says how trials end, enters those that died in the ledger, and writes the frames now and then."""

    def __init__(self, folder: StudyFolder, say: Say, total: int) -> None:
        self.folder, self.say, self.total = folder, say, total
        self.tried_again: set[str] = set()
        self._heard = {event.path for event in folder.ledger.events()}
        self._next_frames = time.monotonic() + 10

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The ledger has the outcome already."""
        self.tell_news()
        if time.monotonic() > self._next_frames:
            began = time.monotonic()
            try:
                write_frames(self.folder)
            except OSError as error:  # they are written again at the end, and that must succeed
                self.say(f"note: the frames cannot be written now: {error}")
            self._next_frames = time.monotonic() + max(10, 20 * (time.monotonic() - began))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A process died, or could not go on; the searcher has just decided whether there is another attempt."""
        if trial.trial_id in self.tried_again:
            self.say(f"{_job(trial).runs[0].title}: {_reason(trial)}; it goes on from its last epoch")
            return
        enter_failures(_job(trial), self.folder, _reason(trial))
        self.tell_news()

    def tell_news(self) -> None:
        """Say what the ledger has learned since the last time."""
        ended = len(self.folder.ledger.outcomes())
        for event in self.folder.ledger.events("finished", "failed", "pruned", "noted"):
            if event.path not in self._heard:
                self._heard.add(event.path)
                self.say(f"[{ended}/{self.total}] {_news(event)}")


def _job(trial: Any) -> Job:
    return Job.from_plain(json.loads(trial.config["job"]))


def _reason(trial: Any) -> str:
    """The last line of what the trial raised last, or that its process is gone."""
    path = Path(trial.error_file) if trial.error_file else None
    text = path.read_text() if path and path.exists() else ""
    last = text.rstrip().rsplit("Failure #", 1)[-1]
    if not last or any(words in last for words in GONE):
        return DIED
    line = last.splitlines()[-1]
    return DIED if line.endswith(DIED) else without_secrets(line)[:500]


def _news(event: Event) -> str:
    content = event.read()
    if event.kind == "noted":
        return f"{event.subject}: {content['line']}"
    if event.kind != "finished":
        return f"{event.subject} {event.kind}: {content['reason']}"
    row = content["frames"]["runs"][0]
    shown = [(name, sign) for name, sign in (("AC", ""), ("BC", "+"), ("FC", "+")) if row[name] is not None]
    metrics = (f"{name} {row[name]:{sign}.3f}" for name, sign in shown)
    return f"{event.subject} {' '.join(metrics)} ({clock(row['wall_seconds'])})"
