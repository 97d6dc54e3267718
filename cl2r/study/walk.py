"""What a training process does for a study: walk the chains of a job and enter the outcome in the ledger.

It runs unchanged in a Tune trial (one worker) and in every worker of Ray Train; only the first worker writes.
"""

import math
import time
from collections.abc import Callable
from typing import Any

from cl2r.config import fields
from cl2r.engine.plan import plan_run
from cl2r.engine.records import frames
from cl2r.engine.run import Chain
from cl2r.engine.workers import Workers
from cl2r.errors import InputError, StoppedError, TrainingError
from cl2r.files import place
from cl2r.objects import ObjectPath
from cl2r.stopping import Marker
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job, Run
from cl2r.study.ledger import finished
from cl2r.study.live import LiveFile
from cl2r.study.tensorboard import write_task

Report = Callable[[dict[str, Any]], None]


def walk(job: Job, folder: StudyFolder, owner: str, workers: Workers, report: Report) -> None:
    """Train what is missing of the job's runs. Training that cannot succeed is a failed run, not an exception.

    Asked to stop by the driver's marker, it leaves with its epoch saved and without any outcome.
    """
    try:
        _walk(job, folder, owner, workers, report)
    except (TrainingError, InputError) as error:
        if workers.first:
            enter_failures(job, folder, str(error))
    except StoppedError as error:
        print(f"{job.label}: {error}", flush=True)


def enter_failures(job: Job, folder: StudyFolder, reason: str) -> None:
    """Enter every run of the job that has not finished as failed. A trunk is no run: those that need it will fail."""
    if job.depth is not None:
        folder.ledger.write("noted", job.runs[0].name, {"line": f"its first {job.depth} tasks failed: {reason}"})
        return
    outcomes = folder.ledger.outcomes()
    for run in job.runs:
        if not finished(outcomes, [run.name]):
            folder.ledger.write("failed", run.name, _heading(job, run) | {"reason": reason})


def _heading(job: Job, run: Run) -> dict[str, Any]:
    return {"trial": job.trial, "variant": job.variant, "config": fields(run.config)}


def _walk(job: Job, folder: StudyFolder, owner: str, workers: Workers, report: Report) -> None:
    began = time.perf_counter()
    outcomes = workers.from_first(folder.ledger.outcomes)
    live = [_live_file(job, run, folder) for run in job.runs]
    stop = Marker(folder.path)
    try:
        chains = workers.together(
            lambda: [
                Chain(plan_run(run.config), folder.storage, listener, owner, workers, stop)
                for run, listener in zip(job.runs, live, strict=True)
            ]
        )
        unfinished = [
            (run, chain) for run, chain in zip(job.runs, chains, strict=True) if not finished(outcomes, [run.name])
        ]
        writes = workers.first and job.depth is None
        for run, _ in unfinished if writes else []:
            folder.ledger.write("started", run.name, {"trial": job.trial, "workers": workers.world})
        _train(job, folder, chains, workers, report)
        stopped = folder.ledger.last("pruned") if writes else {}  # Train's workers may outlive the verdict
        for run, chain in unfinished if writes else []:
            if run.name not in stopped:
                _finish(job, run, chain, folder, time.perf_counter() - began)
    finally:
        for listener in live if workers.first else []:
            listener.close()


def _live_file(job: Job, run: Run, folder: StudyFolder) -> LiveFile:
    label = run.name if job.depth is None else job.label
    tasks = len(run.keys) if job.depth is None else job.depth
    interval = 5.0 if isinstance(folder.path, ObjectPath) else 1.0
    live = LiveFile(folder.live, label, run.name, run.title, tasks, job.depth is not None, interval)
    live.on_warn = lambda line: folder.ledger.write("noted", run.name, {"line": line})
    return live


def _train(job: Job, folder: StudyFolder, chains: list[Chain], workers: Workers, report: Report) -> None:
    """All runs reach a task before any goes on: what is reported after it is a mean over seeds."""
    last = job.depth or max(len(run.keys) for run in job.runs)
    for task in range(1, last + 1):
        for chain in chains:
            if task in chain.tasks:
                chain.reach(task)
        if job.depth is not None:
            continue
        values = [math.nan]
        if workers.first:
            values = [_after_task(folder, run, chain, task) for run, chain in zip(job.runs, chains, strict=True)]
        report({"task": task, "value": math.fsum(values) / len(values)})


def _after_task(folder: StudyFolder, run: Run, chain: Chain, task: int) -> float:
    """Write TensorBoard's scalars of the task; BC(t) on the tuning pairs."""
    evaluation = chain.tuning_so_far(task)
    curves = chain.store.record(run.keys[task - 1])["curves"]
    value = float(evaluation.bc_curve[-1])
    scalars = {"BC(t)": value, "self_accuracy": float(evaluation.matrix[-1, -1])}
    write_task(folder.path / "tensorboard" / run.name, task, (task - 1) * len(curves), curves, scalars)
    return value


def _finish(job: Job, run: Run, chain: Chain, folder: StudyFolder, seconds: float) -> None:
    result = chain.result(seconds)
    rows = _without_nan(frames(result, run.name))
    folder.ledger.write("finished", run.name, _heading(job, run) | {"frames": rows})


def _without_nan(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def study_folder(path: str) -> StudyFolder:
    """The folder object of a study's path."""
    whole = place(path)
    return StudyFolder(whole.parent.parent, whole.name)
