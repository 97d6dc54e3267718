"""Runs logged for TensorBoard, MLflow and Weights & Biases, with their own libraries.

The process that starts the runs logs them, with one thread per tracker: no other needs a library or a key, and a slow
server delays nothing. A resumed study adds what a tracker does not have, from reports after tasks or from the ledger.
"""

import importlib.util
import json
import logging
import math
import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar

import numpy as np

from cl2r.config.schema import fields, scalar
from cl2r.errors import InputError, StoppedError, nearest
from cl2r.metrics import BC, METRICS, REINDEXED_ACCURACY, SERVICE_ACCURACY
from cl2r.runtime.logs import without_secrets
from cl2r.storage.documents import json_mapping
from cl2r.storage.path import StoragePath

if TYPE_CHECKING:
    from cl2r.engine.chain import Chain, RunResult
    from cl2r.engine.links import LinkStore
    from cl2r.engine.plan import Plan
    from cl2r.study.jobs import Job
    from cl2r.study.ledger import Event, Ledger

log = logging.getLogger(__name__)
Status = Literal["running", "finished", "failed", "pruned", "stopped"]
T = TypeVar("T")
Read = Callable[[], T]  # called when it is logged, in a tracker's thread
Entry = Callable[["Tracker"], None]
TENSORBOARD = "tensorboard"
EXTRAS = {TENSORBOARD: "tensorboardX", "mlflow": "mlflow", "wandb": "wandb"}  # modules by the names that --log takes
SCALARS = {"BC(t)": BC, "self_accuracy": REINDEXED_ACCURACY, "service_accuracy": SERVICE_ACCURACY}
"""Values over the first t tasks that are logged after task t."""
RETRY_SECONDS, CLOSE_SECONDS = 60.0, 120.0  # after an error; at the end, if nothing is logged for so long
REST = "the same command logs the rest"
MAX_PARAMS, MAX_METRICS, MAX_RUNS = 100, 1000, 50_000  # per request of MLflow


@dataclass(frozen=True)
class Place:
    """Where trackers keep what they log: `home` is the folder of a study, or the storage itself for single runs."""

    storage: StoragePath
    home: StoragePath
    group: str  # name of the study
    owner: str = ""  # id of the study: another one of the same name on the same server is not this one


@dataclass(frozen=True)
class TaskLog:
    """What is logged after a task: one row per epoch, and values of the task."""

    task: int
    curves: Sequence[Mapping[str, Any]]
    scalars: Mapping[str, Any]
    before: int = 0  # epochs of the earlier tasks, which may have other stages

    def epochs(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Yield the number of every epoch, counted over the run, and its values as `train/<name>`."""
        for step, row in enumerate(self.curves, start=self.before + 1):
            yield step, numbers("train/", row)


def numbers(prefix: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are numbers; names of stages, null and NaN are left out."""
    found = {name: float(value) for name, value in values.items() if isinstance(value, int | float | np.number)}
    return {f"{prefix}{name}": value for name, value in found.items() if not math.isnan(value)}


class Tracker(Protocol):
    """A service or a folder that runs are logged to, by their names in the ledger; not all open and close them."""

    def state(self, run: str) -> tuple[int, str]:
        """Return how many tasks of the run are logged, and its status; (0, "") if it is not known."""

    def open(self, run: str, config: Mapping[str, Any]) -> None:
        """Begin the run with its config, one value per dotted name, or continue it."""

    def task(self, run: str, entry: TaskLog) -> None:
        """Log the epochs and the values of a task."""

    def finish(self, run: str, tasks: int, metrics: Mapping[str, float]) -> None:
        """Log the final metrics of a run of so many tasks."""

    def close(self, run: str, status: Status) -> None:
        """End the run."""


def check_trackers(names: Sequence[str], storage: StoragePath) -> None:
    """Raise InputError if there is no such tracker, or its library or its place is missing."""
    for name in names:
        if name not in EXTRAS:
            raise InputError(f"--log {name}: no such tracker{nearest(name, EXTRAS)}; choose from {', '.join(EXTRAS)}")
        found = importlib.util.find_spec(EXTRAS[name])
        if found is None or found.origin is None:  # a folder of that name, such as W&B's own, is no library
            raise InputError(f"--log {name}: the library is not installed: pip install 'cl2r[{name}]'")
    if storage.remote and "mlflow" in names and not os.environ.get("MLFLOW_TRACKING_URI"):
        raise InputError(f"--log mlflow: no database can be kept in {storage}; set MLFLOW_TRACKING_URI to a server")
    if storage.remote and "wandb" in names and not os.environ.get("WANDB_DIR") and WandB.mode() == "offline":
        raise InputError(f"--log wandb: offline files cannot be kept in {storage}; set WANDB_API_KEY or WANDB_DIR")


class TensorBoard(Tracker):
    """One small event file per task below `home`/tensorboard/<run>; writing a task again replaces its file."""

    def __init__(self, place: Place) -> None:
        self.folder = place.home / "tensorboard"
        self._finished = {path.parent.name for path in self.folder.list("*/events.*.final")}
        self._tasks: dict[str, int] = {}  # that this command wrote; a resumed run writes all of them again

    def state(self, run: str) -> tuple[int, str]:
        return self._tasks.get(run, 0), "finished" if run in self._finished else ""

    def task(self, run: str, entry: TaskLog) -> None:
        values = numbers("task/", entry.scalars)
        self._write(run, f".task{entry.task:04d}", [*entry.epochs(), (entry.task, values)])
        self._tasks[run] = entry.task

    def finish(self, run: str, tasks: int, metrics: Mapping[str, float]) -> None:
        self._write(run, ".final", [(tasks, numbers("final/", metrics))])
        self._finished.add(run)

    def _write(self, run: str, suffix: str, steps: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        from tensorboardX import SummaryWriter
        from tensorboardX.proto.summary_pb2 import Summary

        # The writer names its file by the second and overwrites: two tasks within one second need different names.
        folder = self.folder / run
        for former in folder.list(f"events.*{suffix}"):
            former.unlink(missing_ok=True)
        with folder.staging() as here, SummaryWriter(str(here), filename_suffix=suffix) as writer:
            for step, values in steps:
                for tag, value in values.items():
                    # Not add_scalar, which would turn `BC(t)` into `BC_t_`.
                    writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=tag, simple_value=value)]), step)


class MLflow:
    """One run of MLflow per run, in an experiment per study: at $MLFLOW_TRACKING_URI, or in `storage`/mlflow.db."""

    def __init__(self, place: Place) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # seven would take minutes
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells of every table that it creates
        address, artifacts = os.environ.get("MLFLOW_TRACKING_URI"), None
        if not address:
            root = place.storage.absolute()
            address, artifacts = f"sqlite:///{root / 'mlflow.db'}", str(root / "mlflow-artifacts")
        self.client, self.owner = MlflowClient(tracking_uri=address), place.owner
        known = self.client.get_experiment_by_name(place.group)
        self.experiment = known.experiment_id if known else self.client.create_experiment(place.group, artifacts)
        own = self.client.search_runs([self.experiment], f"tags.`cl2r.study` = '{self.owner}'", max_results=MAX_RUNS)
        self._runs: dict[str, tuple[str, dict[str, str], set[str]]] = {  # MLflow's id, tags, and names of parameters
            run.data.tags["cl2r.run"]: (run.info.run_id, {**run.data.tags}, {*run.data.params}) for run in own
        }

    def state(self, run: str) -> tuple[int, str]:
        tags = self._runs[run][1] if run in self._runs else {"cl2r.task": "0", "cl2r.status": ""}
        return int(tags["cl2r.task"]), tags["cl2r.status"]

    def open(self, run: str, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        if run not in self._runs:
            tags = {"cl2r.run": run, "cl2r.study": self.owner, "cl2r.task": "0", "cl2r.status": "running"}
            self._runs[run] = self.client.create_run(self.experiment, None, tags, run).info.run_id, tags, set()
        number, tags, known = self._runs[run]
        if tags["cl2r.status"] != "running":
            self.client.update_run(number, status="RUNNING")
            self._set(run, "cl2r.status", "running")
        params = [Param(name, str(value)) for name, value in config.items() if name not in known]
        for start in range(0, len(params), MAX_PARAMS):
            self.client.log_batch(number, params=(batch := params[start : start + MAX_PARAMS]))
            known |= {param.key for param in batch}

    def task(self, run: str, entry: TaskLog) -> None:
        self._log(run, [*entry.epochs(), (entry.task, numbers("task/", entry.scalars))])
        self._set(run, "cl2r.task", str(entry.task))

    def finish(self, run: str, tasks: int, metrics: Mapping[str, float]) -> None:
        self._log(run, [(tasks, metrics)])

    def close(self, run: str, status: Status) -> None:
        ending = {"finished": "FINISHED", "failed": "FAILED"}.get(status, "KILLED")
        self.client.set_terminated(self._runs[run][0], ending)
        self._set(run, "cl2r.status", status)

    def _log(self, run: str, steps: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        from mlflow.entities import Metric

        now, metrics = time.time_ns() // 10**6, list[Metric]()
        for step, values in steps:
            for name, value in values.items():  # MLflow takes `recall_at_1` and `BC_t`
                allowed = re.sub(r"[^\w./ -]+", "_", name.replace("@", "_at_")).strip("_")
                metrics.append(Metric(allowed, value, now, step))
        for start in range(0, len(metrics), MAX_METRICS):
            self.client.log_batch(self._runs[run][0], metrics=metrics[start : start + MAX_METRICS])

    def _set(self, run: str, tag: str, value: str) -> None:
        self.client.set_tag(self._runs[run][0], tag, value)
        self._runs[run][1][tag] = value


class WandB:
    """One run of Weights & Biases per run, grouped by study; offline unless there is a key or $WANDB_MODE says so.

    Offline nothing can be asked: `home`/wandb/cl2r/<run>.json has ids by project; `wandb sync` joins files of one id.
    """

    def __init__(self, place: Place) -> None:
        self.project, self.group = os.environ.get("WANDB_PROJECT") or "cl2r", place.group
        self.notes = place.home / "wandb" / "cl2r"
        near = tempfile.gettempdir() if place.home.remote else str(place.home.absolute())
        self.folder = os.environ.get("WANDB_DIR") or near
        self._notes: dict[str, dict[str, dict[str, Any]]] = {}  # by run and project
        self._open: dict[str, Any] = {}

    @staticmethod
    def mode() -> str:
        """Return `online`, `offline`, or what $WANDB_MODE says."""
        import wandb

        return os.environ.get("WANDB_MODE") or ("online" if wandb.api.api_key else "offline")

    def state(self, run: str) -> tuple[int, str]:
        return self._known(run)["task"], self._known(run)["status"]

    def open(self, run: str, config: Mapping[str, Any]) -> None:
        import wandb

        if run in self._open:
            return
        mode, entry = self.mode(), {"id": uuid.uuid4().hex[:12]} | self._known(run)
        # Its metadata would hold the command line, which may have a login, and names of the user and the machine.
        hidden = dict.fromkeys(("disable_git", "disable_code", "x_disable_meta", "x_disable_stats"), True)
        quiet = wandb.Settings(mode=mode, silent=True, console="off", host="", x_save_requirements=False, **hidden)
        names: dict[str, Any] = {"project": self.project, "group": self.group, "id": entry["id"], "name": run}
        opened = wandb.init(
            **names | {"config": dict(config), "dir": self.folder, "settings": quiet},
            resume="allow" if mode == "online" else None,
            reinit="create_new",  # the runs of a study are open side by side
        )
        opened.define_metric("train/*", step_metric="epoch")
        opened.define_metric("task/*", step_metric="task")
        self._open[run] = opened
        self._note(run, entry | {"status": "running"})

    def task(self, run: str, entry: TaskLog) -> None:
        for step, values in entry.epochs():
            self._open[run].log({"epoch": step, **values})
        self._open[run].log({"task": entry.task, **numbers("task/", entry.scalars)})
        self._note(run, self._known(run) | {"task": entry.task})

    def finish(self, run: str, tasks: int, metrics: Mapping[str, float]) -> None:
        self._open[run].summary.update(dict(metrics))

    def close(self, run: str, status: Status) -> None:
        self._open.pop(run).finish(exit_code=0 if status == "finished" else 1)
        self._note(run, self._known(run) | {"status": status})

    def _known(self, run: str) -> dict[str, Any]:
        if run not in self._notes:
            path = self.notes / f"{run}.json"
            self._notes[run] = json_mapping(path.read_bytes(), path, "remove it") if path.exists() else {}
        return self._notes[run].get(self.project, {"task": 0, "status": ""})

    def _note(self, run: str, entry: dict[str, Any]) -> None:
        self._notes[run][self.project] = entry
        if self.mode() != "disabled":
            (self.notes / f"{run}.json").write_file(json.dumps(self._notes[run], indent=1).encode())


def _reason(error: Exception) -> str:
    return without_secrets(" ".join(f"{type(error).__name__}: {error}".split()))[:300]


class _Line(Thread):
    """Logs the entries of one tracker in order; if that fails, it tries again a minute later, and at the end."""

    def __init__(self, name: str, make: Callable[[], Tracker]) -> None:
        super().__init__(name=name, daemon=True)  # one that hangs must not keep the program
        self.make, self.retry_at = make, -math.inf
        self.tracker: Tracker | None = None
        self.queue = SimpleQueue[Entry | None]()
        self.waiting: list[Entry] = []
        self.opened: dict[str, None] = {}

    def submit(self, entry: Entry | None) -> None:
        """Let the thread log an entry; after None it closes the tracker and ends."""
        if self.ident is None:
            self.start()
        self.queue.put(entry)

    def run(self) -> None:
        for entry in iter(self.queue.get, None):
            self.log(entry)
        self.log(self.close, last=True)

    def wait(self) -> None:
        """Wait for the last entry, as long as entries are logged."""
        left = math.inf
        while self.is_alive() and (now := self.queue.qsize() + len(self.waiting)) < left:
            left = now
            self.join(CLOSE_SECONDS)
        if self.is_alive():
            log.warning("note: --log %s does not answer, %d entries are not logged; %s", self.name, left, REST)

    def log(self, *entries: Entry, last: bool = False) -> None:
        """Log what waits and these entries; say once if that is not possible."""
        self.waiting.extend(entries)
        if not self.waiting or (time.monotonic() < self.retry_at and not last):
            return
        try:
            self.tracker = self.tracker or self.make()
            while self.waiting:
                self.waiting[0](self.tracker)
                del self.waiting[0]
            self.retry_at = -math.inf
        except Exception as error:  # whatever the library raises: what is logged is no result, so the runs continue
            if last or self.retry_at == -math.inf:
                again = REST if last else "it is tried again later"
                log.warning("note: --log %s fails, %s: %s", self.name, again, _reason(error))
            self.retry_at = time.monotonic() + RETRY_SECONDS

    def task(self, run: str, config: Mapping[str, Any], task: int, read: Read[TaskLog], tracker: Tracker) -> None:
        """Log what `read` returns of a task, unless the tracker has it."""
        tasks, status = tracker.state(run)
        if status != "finished" and task > tasks and (entry := self._read(f"task {task} of {run}", read)):
            tracker.open(run, config)
            self.opened[run] = None
            tracker.task(run, entry)

    def end(self, run: str, status: Status, read: Read[Mapping[str, Any]], tracker: Tracker) -> None:
        """Log what is missing of a run that has ended; `read` returns its config and, if it finished, its frames."""

        def outcome() -> tuple[dict[str, Any], list[TaskLog], dict[str, float]]:
            content = read()
            config = {name: scalar(value) for name, value in content["config"].items()}
            if status != "finished":
                return config, [], {}
            results = {name: value for name, value in content["frames"]["runs"][0].items() if name not in config}
            return config, task_logs(content["frames"]), numbers("", results)

        if tracker.state(run)[1] in (status, "finished") or not (found := self._read(f"the end of {run}", outcome)):
            return
        config, entries, results = found
        tracker.open(run, config)
        self.opened[run] = None
        for entry in entries:
            if entry.task > tracker.state(run)[0]:
                tracker.task(run, entry)
        if status == "finished":
            tracker.finish(run, len(entries), results)
        tracker.close(run, status)
        self.opened.pop(run, None)

    def close(self, tracker: Tracker) -> None:
        """Close the runs that have no outcome: a later command continues them."""
        for run in list(self.opened):
            tracker.close(run, "stopped")
            del self.opened[run]

    def _read(self, what: str, read: Read[T]) -> T | None:
        try:
            return read()
        except Exception as error:  # e.g. a damaged file: to wait for it would block the other runs
            log.warning("note: --log %s: %s cannot be read and is left out: %s", self.name, what, _reason(error))
            return None


def task_logs(frames: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[TaskLog]:
    """Return what would have been logged after every task of a finished run, from its frames."""
    rows = frames["matrix"]
    pairs = "tuning" if any(row["pairs"] == "tuning" for row in rows) else "report"
    cells = {(row["t"], row["k"]): row for row in reversed(rows) if row["pairs"] == pairs}  # of several rates the first
    found, before = list[TaskLog](), 0
    for task in range(1, len(frames["tasks"]) + 1):
        matrix = np.full((task, task), np.nan)
        for t, k in zip(*np.tril_indices(task), strict=True):
            matrix[t, k] = cells[t + 1, k + 1]["accuracy"]
        scalars = {name: metric.compute(matrix, False) for name, metric in SCALARS.items() if metric.compute}
        own = [row for row in frames["curves"] if row["task"] == task]
        curves = [{name: value for name, value in row.items() if name not in ("run", "task")} for row in own]
        found.append(TaskLog(task, curves, {name: float(value) for name, value in scalars.items()}, before))
        before += len(curves)
    return found


def task_scalars(chain: "Chain", task: int, objective: str = BC.name) -> dict[str, float]:
    """Return the values over the first `task` tasks (on tuning pairs, if there are any), among them the objective."""
    metric = METRICS[objective]
    evaluation = chain.evaluate_so_far(task, search=metric.matrix == "recall")
    return {name: evaluation.values[one.name] for name, one in {**SCALARS, objective: metric}.items()}


def _read_task(store: "LinkStore", keys: Sequence[str], scalars: Mapping[str, float]) -> TaskLog:
    *before, curves = (store.record(key)["curves"] for key in keys)
    return TaskLog(len(keys), curves, scalars, sum(map(len, before)))


class Tracking:
    """The trackers of a command; leaving the `with` block closes them. Raise InputError if one cannot be used."""

    def __init__(self, names: Sequence[str], place: Place) -> None:
        check_trackers(names, place.storage)
        kinds: dict[str, Callable[[Place], Tracker]] = {TENSORBOARD: TensorBoard, "mlflow": MLflow, "wandb": WandB}
        self._lines = [_Line(name, partial(kinds[name], place)) for name in dict.fromkeys(names)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for line in self._lines:
            line.submit(None)
        for line in self._lines:
            line.wait()

    def task(self, run: str, config: Mapping[str, Any], task: int, read: Read[TaskLog]) -> None:
        """Log a task."""
        flat = {name: scalar(value) for name, value in config.items()}
        for line in self._lines:
            line.submit(partial(line.task, run, flat, task, read))

    def end(self, run: str, status: Status, read: Read[Mapping[str, Any]]) -> None:
        """Log the end of a run; `read` returns `config` and, of a finished run, `frames`."""
        for line in self._lines:
            line.submit(partial(line.end, run, status, read))


class TrackedStudy(Tracking):
    """Logs the runs of a study: its driver tells what Tune reports, the ledger has the outcomes."""

    def __init__(self, names: Sequence[str], place: Place, store: "LinkStore", ledger: "Ledger") -> None:
        super().__init__(names, place)
        self.store, self.ledger = store, ledger
        self._settled: set[Event] = set()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.settle()
        finally:
            super().__exit__(kind, error, trace)

    def report(self, job: "Job", result: Mapping[str, Any]) -> None:
        """Log what a training process reported after a task."""
        for run, scalars, keys in zip(job.runs, result.get("scalars", ()), result.get("keys", ()), strict=False):
            if result["task"] <= len(run.keys):
                read = partial(_read_task, self.store, keys, scalars)
                self.task(run.name, fields(run.config), result["task"], read)

    def settle(self) -> None:
        """Log the outcomes that the ledger has received since the last call."""
        for run, event in self.ledger.outcomes().items():
            if event not in self._settled:
                self._settled.add(event)
                self.end(run, event.kind, event.read)  # type: ignore[arg-type]  # the kinds of outcomes


class TrackedRun(Tracking):
    """Logs a single run; `execute` calls it after every task."""

    def __init__(self, names: Sequence[str], plan: "Plan", storage: StoragePath) -> None:
        from cl2r.engine.frames import run_name

        super().__init__(names, Place(storage, storage, "runs"))
        self.name, self.config = run_name(plan), fields(plan.config)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, StoppedError):
            self.end(self.name, "failed", lambda: {"config": self.config})
        super().__exit__(kind, error, trace)

    def __call__(self, chain: "Chain", task: int) -> None:
        if self._lines:
            keys = [chain.key(t) for t in chain.tasks[:task]]
            read = partial(_read_task, chain.store, keys, task_scalars(chain, task))
            self.task(self.name, self.config, task, read)

    def finish(self, result: "RunResult") -> None:
        """Log the final metrics."""
        from cl2r.engine.frames import frames

        if self._lines:
            content = {"config": self.config, "frames": frames(result, self.name)}
            self.end(self.name, "finished", lambda: content)
