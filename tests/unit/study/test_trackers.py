"""Runs logged to TensorBoard, MLflow and W&B by the real libraries, offline, and read back."""

import json
import math
import shutil
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from cl2r.engine.links import DamagedError
from cl2r.engine.plan import plan_run
from cl2r.engine.workers import ALONE
from cl2r.errors import InputError, StoppedError, TrainingError
from cl2r.storage.path import LocalPath, at
from cl2r.study import trackers
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job, plan_job
from cl2r.study.session import StudySession
from cl2r.study.spec import Point
from cl2r.study.trackers import MLflow, Place, TaskLog, TensorBoard, WandB, check_trackers, task_logs
from cl2r.study.train_job import train_job
from tests.support.command_line import Command, quick_options, refused
from tests.support.quick import quick_config
from tests.support.small_study import small_session, small_study

Scalars = dict[tuple[str, int], list[float]]
ENDS = [
    (TrainingError(), "failed"),
    (KeyError(), "failed"),
    (StoppedError(), "stopped"),
    (KeyboardInterrupt(), "stopped"),
]
VARIABLES = ("MLFLOW_TRACKING_URI", "WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT")


@pytest.fixture(autouse=True)
def _without_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No service, no key, and no file of this user's."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    folder = at(tmp_path / "storage")
    return Place(folder, folder / "studies" / "mine", "mine", "0123")


def events_of(path: Path) -> list[Any]:
    """The records of one file: length (8 bytes), checksum (4), event, checksum (4)."""
    content, events, offset = path.read_bytes(), [], 0
    while offset < len(content):
        (length,) = struct.unpack_from("<Q", content, offset)
        body = content[offset + 12 : offset + 12 + length]
        assert len(body) == length
        events.append(event_pb2.Event.FromString(body))
        offset += 12 + length + 4
    assert offset == len(content)
    return events


def scalars_below(folder: Path) -> Scalars:
    found: Scalars = {}
    for path in sorted(folder.iterdir()):
        for event in events_of(path):
            for value in event.summary.value:
                found.setdefault((value.tag, event.step), []).append(value.simple_value)
    return found


def row(stage: str, epoch: int, **losses: float) -> dict[str, Any]:
    return {"stage": stage, "epoch": epoch, "lr": 0.5, "seconds": 2.0, **losses}


def test_epochs_are_counted_over_the_run_and_values_over_tasks(place: Place) -> None:
    curves = [row("train", 1, loss_ce=1.5), row("train", 2, loss_ce=1.25, loss_fd=0.25), row("tune", 1, loss_ce=0.75)]
    TensorBoard(place).task("run", TaskLog(2, curves, {"BC(t)": 0.5, "self_accuracy": 0.875}, before=3))
    expected = {
        ("train/loss_ce", 4): 1.5,
        ("train/loss_ce", 5): 1.25,
        ("train/loss_ce", 6): 0.75,
        ("train/loss_fd", 5): 0.25,
        ("task/BC(t)", 2): 0.5,
        ("task/self_accuracy", 2): 0.875,
    }
    for step, epoch in ((4, 1), (5, 2), (6, 1)):
        expected |= {("train/epoch", step): epoch, ("train/lr", step): 0.5, ("train/seconds", step): 2.0}
    found = scalars_below(Path(str(place.home / "tensorboard" / "run")))
    assert found == {key: [value] for key, value in expected.items()}


def test_nan_is_left_out_and_numpy_numbers_are_kept() -> None:
    curves = [{"loss_ce": math.nan, "loss_fd": np.float32(0.5), "lr": np.float64(np.nan), "epoch": np.int64(1)}]
    assert list(TaskLog(1, curves, {}).epochs()) == [(1, {"train/loss_fd": 0.5, "train/epoch": 1.0})]
    assert trackers.numbers("", {"AC": None, "BC": math.nan, "status": "finished", "FC": 1}) == {"FC": 1.0}


def test_tasks_of_the_same_second_do_not_overwrite_each_other(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1.7e9)
    for task in (1, 2, 3):
        TensorBoard(place).task("run", TaskLog(task, [{"loss_ce": task / 4}], {}, task - 1))
    found = scalars_below(Path(str(place.home / "tensorboard" / "run")))
    assert found == {("train/loss_ce", task): [task / 4] for task in (1, 2, 3)}


def test_a_task_written_again_replaces_its_scalars(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for now, value in ((1.7e9, 0.25), (1.8e9, 0.5)):
        monkeypatch.setattr("time.time", lambda now=now: now)
        for task in (1, 11):
            TensorBoard(place).task("run", TaskLog(task, [], {"self_accuracy": value}))
    found = scalars_below(Path(str(place.home / "tensorboard" / "run")))
    assert found == {("task/self_accuracy", 1): [0.5], ("task/self_accuracy", 11): [0.5]}


# What each tracker has, read with its own library: the config, and all logged values by name and step.


def mlflow_runs(place: Place) -> dict[str, tuple[str, dict[str, str], Scalars]]:
    """Status, parameters and values of every run of the experiment."""
    from mlflow import MlflowClient

    client, found = MlflowClient(tracking_uri=f"sqlite:///{place.storage}/mlflow.db"), {}
    experiment = client.get_experiment_by_name(place.group)
    for run in client.search_runs([experiment.experiment_id]):
        values: Scalars = {}
        for name in run.data.metrics:
            for metric in client.get_metric_history(run.info.run_id, name):
                values.setdefault((name, metric.step), []).append(metric.value)
        assert run.info.run_name not in found, "one run of MLflow per run"
        found[run.info.run_name] = run.info.status, run.data.params, values
    return found


def wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of an offline file, which is a log of LevelDB after 7 bytes: blocks of 32 KiB, with parts in them."""
    offset, whole = 7, b""
    while offset + 7 <= len(content):
        room = 32768 - offset % 32768
        if room < 7:  # no header fits: the rest of the block is empty
            offset += room
            continue
        length, kind = struct.unpack_from("<HB", content, offset + 4)
        whole += content[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):  # all of a record, or its last part
            yield whole
            whole = b""


def wandb_runs(place: Place) -> dict[str, tuple[set[str], dict[str, Any], Scalars, dict[str, Any]]]:
    """Ids, config, values by name and epoch or task, and summary of every run, from the offline files."""
    from wandb.proto import wandb_internal_pb2

    found: dict[str, tuple[set[str], dict[str, Any], Scalars, dict[str, Any]]] = {}
    for path in sorted(Path(str(place.home)).glob("wandb/offline-run-*/run-*.wandb")):
        name = ""
        for data in wandb_records(path.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.HasField("run") and not name:
                name = record.run.display_name
                found.setdefault(name, (set(), {}, {}, {}))[0].add(record.run.run_id)
                found[name][1].update({item.key: json.loads(item.value_json) for item in record.run.config.update})
            if record.HasField("history"):
                items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                step = items.get("epoch", items.get("task"))
                for key in items:
                    if key.startswith(("train/", "task/")):
                        found[name][2].setdefault((key, step), []).append(items[key])
            if record.HasField("summary"):
                for item in record.summary.update:
                    found[name][3][item.key or item.nested_key[0]] = json.loads(item.value_json)
    return found


def reported(job: Job, folder: StudyFolder) -> list[dict[str, Any]]:
    """Train a job and return what it reported."""
    reports: list[dict[str, Any]] = []
    train_job(job, folder, "x", ALONE, reports.append)
    return reports


@pytest.fixture(scope="module")
def study(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyFolder, Job, list[dict[str, Any]]]:
    """A trained study of one run with two tasks and two epochs each, and what its training process reported."""
    settings = {"scenario.n_tasks": 2, "optim.epochs": 2, "optim.milestones": []}
    job = plan_job(small_study(tiny, seeds=[0], set=settings), Point(None, {}), 0)
    folder = StudyFolder(LocalPath(tmp_path_factory.mktemp("tracked")), "mine")
    return folder, job, reported(job, folder)


@pytest.fixture
def session(study: tuple[StudyFolder, Job, list[dict[str, Any]]], tmp_path: Path) -> StudySession:
    """A session on a copy of that study, of which nothing is logged."""
    copy = shutil.copytree(str(study[0].storage), tmp_path / "copy")
    session = small_session(StudyFolder(at(copy), "mine"))
    session.trained_by = "0123"
    return session


def again(session: StudySession, *names: str) -> trackers.TrackedStudy:
    """The trackers of a new command on the same study."""
    session.__dict__.pop("tracking", None)
    session.log = names
    return session.tracking


def place_of(session: StudySession) -> Place:
    return Place(session.folder.storage, session.folder.path, "mine", "0123")


def tensorboard_values(session: StudySession, run: str) -> Scalars:
    return scalars_below(Path(str(session.folder.path / "tensorboard" / run)))


def mlflow_values(session: StudySession, run: str) -> Scalars:
    status, params, values = mlflow_runs(place_of(session))[run]
    assert (status, params["optim.epochs"], params["optim.milestones"]) == ("FINISHED", "2", "[]")
    named = {(name.replace("BC_t", "BC(t)"), step): value for (name, step), value in values.items()}
    return {(f"final/{name}" if "/" not in name else name, step): value for (name, step), value in named.items()}


def wandb_values(session: StudySession, run: str) -> Scalars:
    ids, config, values, summary = wandb_runs(place_of(session))[run]
    assert len(ids) == 1, "a resumed run keeps its id"
    assert (config["optim.epochs"], config["optim.milestones"]) == (2, "[]")
    for name in ("AC", "service_accuracy"):
        values["final/" + name, 2] = [summary[name]]
    return values


READERS: dict[str, Callable[[StudySession, str], Scalars]] = {
    "tensorboard": tensorboard_values,
    "mlflow": mlflow_values,
    "wandb": wandb_values,
}


def assert_logged(session: StudySession, job: Job, reports: list[dict[str, Any]], found: Scalars) -> None:
    """Every epoch, every task and the final metrics were logged once, with their values."""
    (run,) = job.runs
    final = session.ledger.outcomes()[run.name].read()["frames"]["runs"][0]
    assert found["final/AC", 2] == pytest.approx([final["AC"]])
    assert found["final/service_accuracy", 2] == pytest.approx([final["service_accuracy"]])
    for report in reports:
        task, curves = report["task"], session.store.record(run.keys[report["task"] - 1])["curves"]
        for name in ("self_accuracy", "service_accuracy"):
            assert found[f"task/{name}", task] == pytest.approx([report["scalars"][0][name]])
        assert [found["train/loss_ce", 2 * task + k - 1] for k in (0, 1)] == [
            pytest.approx([row["loss_ce"]]) for row in curves
        ]
    assert found["task/BC(t)", 2] == pytest.approx([reports[1]["scalars"][0]["BC(t)"]])
    assert ("task/BC(t)", 1) not in found, "one task has no BC"


@pytest.mark.parametrize("name", READERS)
def test_a_resumed_study_logs_every_run_once(
    study: tuple[StudyFolder, Job, list[dict[str, Any]]], session: StudySession, name: str
) -> None:
    _, job, reports = study
    run = job.runs[0].name
    outcomes = session.ledger.outcomes
    session.ledger.outcomes = dict  # type: ignore[method-assign]  # the run has not ended
    with again(session, name) as tracking:
        tracking.report(job, reports[0])
    if name == "mlflow":
        assert mlflow_runs(place_of(session))[run][0] == "KILLED", "stopped, to be resumed"
    with again(session, name) as tracking:
        tracking.report(job, reports[0])  # a link that was reused
        session.ledger.outcomes = outcomes  # type: ignore[method-assign]
        tracking.report(job, reports[1])
    for _ in range(2):
        with again(session, name):  # nothing is left to do
            pass
    assert_logged(session, job, reports, READERS[name](session, run))


@pytest.mark.parametrize("name", READERS)
def test_a_finished_study_is_logged_from_its_ledger(
    study: tuple[StudyFolder, Job, list[dict[str, Any]]], session: StudySession, name: str
) -> None:
    """Its driver was killed, or had no such tracker."""
    _, job, reports = study
    with again(session, name):
        pass
    assert_logged(session, job, reports, READERS[name](session, job.runs[0].name))


def test_failed_runs_and_studies_of_the_same_name(place: Place) -> None:
    mine = MLflow(place)
    mine.open("run", {"seed": 0})
    mine.close("run", "failed")
    mine.open("other", {"seed": 1})
    mine.close("other", "pruned")
    assert {name: status for name, (status, *_) in mlflow_runs(place).items()} == {"run": "FAILED", "other": "KILLED"}
    assert MLflow(place).state("run") == (0, "failed")
    assert MLflow(Place(place.storage, place.home, place.group, "4567")).state("run") == (0, "")


def test_wandb_is_offline_without_a_key_and_keeps_projects_apart(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert WandB.mode() == "offline"
    (first := WandB(place)).open("run", {"seed": 0})
    first.task("run", TaskLog(1, [], {}))
    first.close("run", "failed")
    assert WandB(place).state("run") == (1, "failed")
    monkeypatch.setenv("WANDB_PROJECT", "another")
    assert WandB(place).state("run") == (0, "")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert WandB.mode() == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert WandB.mode() == "disabled"


def test_what_fails_is_said_once_and_logged_later(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    down, logged = True, []

    def entry(number: int, _: object) -> None:
        if down:
            raise ConnectionError(f"{'x' * 268} https://me:planted@server")  # 300 characters end within the login
        logged.append(number)

    line = trackers._Line("mlflow", lambda: TensorBoard(place))
    for number in range(3):
        line.log(lambda _, number=number: entry(number, _))
    assert len(caplog.messages) == 1
    assert "--log mlflow fails" in caplog.text
    assert "me:pla" not in caplog.text
    down = False
    line.log(last=True)
    assert logged == [0, 1, 2]


def test_what_cannot_be_read_does_not_block_the_other_runs(
    study: tuple[StudyFolder, Job, list[dict[str, Any]]], session: StudySession, caplog: pytest.LogCaptureFixture
) -> None:
    _, job, reports = study

    def damaged() -> Any:
        raise DamagedError("planted")

    with again(session, "tensorboard") as tracking:
        tracking.task("first", {}, 1, damaged)
        tracking.end("second", "failed", damaged)
        tracking.end("third", "finished", lambda: {"config": {}, "frames": {}})
    assert_logged(session, job, reports, tensorboard_values(session, job.runs[0].name))
    found = [message.partition(" cannot be read and is left out: ") for message in caplog.messages]
    whats = [what.removeprefix("note: --log tensorboard: ") for what, *_ in found]
    assert whats == ["task 1 of first", "the end of second", "the end of third"]
    assert [why for *_, why in found] == ["DamagedError: planted", "DamagedError: planted", "KeyError: 'runs'"]


def test_parameters_that_failed_are_logged_into_the_same_run(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {f"name{number}": number for number in range(trackers.MAX_PARAMS + 1)}
    tracker = MLflow(place)
    with monkeypatch.context() as patched:
        patched.setattr(tracker.client, "log_batch", raising(ConnectionError()))
        for _ in range(2):
            with pytest.raises(ConnectionError):
                tracker.open("run", config)
    MLflow(place).open("run", config)  # of a later command
    tracker.open("run", config)
    assert mlflow_runs(place)["run"][1] == {name: str(value) for name, value in config.items()}


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_commands_at_the_same_time_keep_the_notes_of_all_runs(place: Place) -> None:
    commands = {name: WandB(place) for name in ("first", "second")}
    for name, tracker in commands.items():
        tracker.open(name, {})
        tracker.close(name, "failed")
    assert [WandB(place).state(name)[1] for name in commands] == ["failed", "failed"]


@pytest.mark.parametrize(("error", "status"), ENDS)
@pytest.mark.parametrize("tasks", [0, 1])
def test_how_a_run_that_raises_is_closed(
    error: BaseException, status: str, tasks: int, tiny: Path, place: Place
) -> None:
    tracked = trackers.TrackedRun(["wandb"], plan_run(quick_config(tiny)), place.home)
    for task in range(1, tasks + 1):
        tracked.task(tracked.name, tracked.config, task, lambda: TaskLog(1, [], {}))
    with pytest.raises(type(error)), tracked:
        raise error
    assert WandB(place).state(tracked.name) == (tasks, status if tasks or status == "failed" else "")


def test_trackers_are_closed_if_the_ledger_cannot_be_read(session: StudySession) -> None:
    session.ledger.outcomes = raising(OSError("planted"))  # type: ignore[method-assign]
    with pytest.raises(OSError, match="planted"), again(session, "wandb") as tracking:
        tracking.task("run", {}, 1, lambda: TaskLog(1, [], {}))
    assert WandB(place_of(session)).state("run") == (1, "stopped")


def test_a_tracker_that_hangs_does_not_keep_the_command(
    session: StudySession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answer = threading.Event()
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(TensorBoard, "task", lambda *_: answer.wait())
    session.ledger.outcomes = dict  # type: ignore[method-assign]
    with again(session, "tensorboard") as tracking:
        tracking.task("run", {}, 1, lambda: TaskLog(1, [], {}))
    answer.set()
    assert [line for line in caplog.messages if "--log tensorboard does not answer, 2 entries are not logged" in line]


def test_epochs_of_tasks_with_other_stages_are_counted(
    study: tuple[StudyFolder, Job, list[dict[str, Any]]], session: StudySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, job, reports = study
    (run,) = job.runs
    record, rows = session.store.record, session.ledger.outcomes()[run.name].read()["frames"]
    more = {run.keys[0]: 1, run.keys[1]: 3}
    monkeypatch.setattr(session.store, "record", lambda key: {"curves": record(key)["curves"][:1] * more[key]})
    session.ledger.outcomes = dict  # type: ignore[method-assign]
    with again(session, "tensorboard") as tracking:
        tracking.report(job, reports[1])  # a resumed command need not see the first task
    found = tensorboard_values(session, run.name)
    assert sorted(step for name, step in found if name == "train/loss_ce") == [2, 3, 4]
    entries = task_logs(rows | {"curves": rows["curves"][1:]})  # one epoch in the first task
    assert [[step for step, _ in entry.epochs()] for entry in entries] == [[1], [2, 3]]


def test_command_lines_of_runs_with_trackers(tmp_path: Path, tiny: Path, cl2r: Command) -> None:
    storage = tmp_path / "results"
    words = ["run", *quick_options(tiny, optim__epochs=1, optim__milestones=[]), "--tasks", 2, "--storage", storage]
    for _ in range(2):
        code, _, err = cl2r(*words, "--log", "tensorboard", "--log", "mlflow", "--log", "wandb")
        assert (code, "note:" in err) == (0, False), err
    place = Place(at(storage), at(storage), "runs")
    ((run, (status, params, values)),) = mlflow_runs(place).items()
    assert (status, params["scenario.n_tasks"]) == ("FINISHED", "2")
    assert len(values["train/loss_ce", 2]) == 1
    assert wandb_runs(place).keys() == {run}
    assert ("final/AC", 2) in scalars_below(storage / "tensorboard" / run)
    assert not (tmp_path / "mlruns").exists()


@pytest.mark.parametrize("kind", [MLflow, WandB])
def test_secrets_and_the_machine_are_not_logged(
    kind: type[MLflow | WandB], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["cl2r", "run", "--storage", "s3://me:planted@bucket"])
    monkeypatch.setattr("socket.gethostname", lambda: "planted")
    monkeypatch.setenv("USER", "planted")
    monkeypatch.setenv("WANDB_API_KEY", "planted" * 6)
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker = kind(place)
    tracker.open("run", {"seed": 123456})
    tracker.close("run", "finished")
    files = [path for path in Path(str(place.storage)).rglob("*") if path.is_file()]
    content = b"".join(path.read_bytes() for path in files)
    assert b"123456" in content
    assert [path for path in files if b"planted" in path.read_bytes()] == []
    assert b"torchvision" not in content, "no list of installed packages"


@pytest.mark.parametrize("words", [["run"], ["study", "ablation"]])
def test_trackers_that_cannot_be_used(
    words: list[str], tmp_path: Path, cl2r: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "did you mean 'mlflow'?" in refused(cl2r, tmp_path, *words, "--storage", tmp_path, "--log", "mlfow")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = refused(cl2r, tmp_path, *words, "--storage", tmp_path, "--log", "wandb")
    assert "pip install 'cl2r[wandb]'" in line


def test_what_an_object_store_cannot_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = at("s3://bucket/results?region=x")
    with pytest.raises(InputError, match="MLFLOW_TRACKING_URI"):
        check_trackers(["mlflow"], bucket)
    with pytest.raises(InputError, match="WANDB_API_KEY or WANDB_DIR"):
        check_trackers(["wandb"], bucket)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://server")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    check_trackers(["mlflow", "wandb", "tensorboard"], bucket)


def test_frames_give_what_was_reported(study: tuple[StudyFolder, Job, list[dict[str, Any]]]) -> None:
    folder, job, reports = study
    rows = folder.ledger.outcomes()[job.runs[0].name].read()["frames"]
    for entry, report in zip(task_logs(rows), reports, strict=True):
        known = {name: value for name, value in report["scalars"][0].items() if name != "BC"}
        assert entry.scalars == pytest.approx(known, nan_ok=True)
