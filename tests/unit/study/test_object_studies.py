"""Runs, ledgers, searches and reports in an object store are those of a disk."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from analysis import load_study
from cl2r.engine.chain import RunResult
from cl2r.errors import InputError
from cl2r.rayrun.optuna_source import OptunaSource
from cl2r.storage.path import ObjectPath
from cl2r.study.folder import StudyFolder
from cl2r.study.frames import study_frames, write_frames
from cl2r.study.status import overview, phase
from cl2r.study.trackers import Place, TaskLog, TensorBoard
from tests.support.command_line import Command
from tests.support.made_ledger import enter, made_folder
from tests.support.made_study import made_study
from tests.support.quick import Interrupter, Recorder, assert_same_chain, flat_quick, quick_config, set_options, train
from tests.support.small_study import finish, small_study

TRAIN = """
import json, sys
from pathlib import Path
from tests.support.quick import Recorder, quick_config, train
from cl2r.storage import claims
from cl2r.storage.path import at
claims.PAUSE_SECONDS = 0.1
listener = Recorder()
result = train(quick_config(Path(sys.argv[1])), at(sys.argv[2]), listener)
print(json.dumps([listener.lines, result.report.matrix.tolist()]))
"""


def test_an_interrupted_run_resumes(tiny: Path, remote: ObjectPath, finished: RunResult, finished_root: Path) -> None:
    config = quick_config(tiny)
    with pytest.raises(KeyboardInterrupt):
        train(config, remote, Interrupter(after=5))
    listener = Recorder()
    result = train(config, remote, listener)
    assert any(line.startswith("task 2: resumed link") for line in listener.lines)
    assert_same_chain(finished.plan, finished_root, remote)
    assert json.dumps(result.report.matrix.tolist()) == json.dumps(finished.report.matrix.tolist())
    assert [name for name, *_ in remote.walk_files() if not name.startswith("links/")] == []


def test_two_processes_train_a_link_once(tiny: Path, remote: ObjectPath, finished: RunResult) -> None:
    """Started together on one store: of every link one trains it and the other finds it."""
    words = [sys.executable, "-c", TRAIN, str(tiny), str(remote)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    answers = [json.loads(process.communicate(timeout=240)[0].splitlines()[-1]) for process in running]
    lines = [line for heard, _ in answers for line in heard]
    for task in (1, 2, 3):
        assert sum(line.startswith(f"task {task}: trained link") for line in lines) == 1
        assert sum(line.startswith(f"task {task}: reused link") for line in lines) == 1
    for _, matrix in answers:
        assert json.dumps(matrix) == json.dumps(finished.report.matrix.tolist())


def test_a_name_belongs_to_one_driver(remote: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cl2r.storage.claims.BEAT_SECONDS", 0.05)
    monkeypatch.setattr("cl2r.storage.claims.PAUSE_SECONDS", 0.05)
    folder = StudyFolder(remote, "study")
    with folder.driver_lock():
        first = folder.claim_name({"a": (1, 2)})
        assert folder.is_driven()
        second = StudyFolder(ObjectPath(str(remote)), "study")
        with pytest.raises(InputError, match="study 'study' is being run by process"), second.driver_lock():
            pass
    assert not folder.is_driven()
    assert StudyFolder(remote, "study").check_name({"a": [1, 2]}) == first
    with pytest.raises(InputError, match="another specification"):
        folder.check_name({"a": [1, 3]})


def test_a_sweep_resumes(tiny: Path, remote: ObjectPath, tmp_path: Path) -> None:
    """An open trial is handed out again, a finished one is known; the points are those of a sweep on a disk."""
    study = small_study(
        tiny,
        space={"memory.per_class": {"low": 1, "high": 9}},
        search={"trials": 4, "seed": 5, "objectives": ["BC"], "constraints": {}},
    )
    points = []
    for folder in (StudyFolder(remote, "sweep"), StudyFolder(tmp_path, "sweep")):
        source = OptunaSource(study, folder)
        first, second = source.next(), source.next()
        assert first is not None
        assert second is not None
        finish(folder, first, {"tuning_BC": 0.25})
        source.ended(first, pruned=False)
        again = OptunaSource(study, folder)
        third = again.next()
        assert third is not None
        assert third.runs == second.runs
        states = [(trial.number, trial.state, trial.values, trial.params) for trial in again.searches[0].optuna.trials]
        assert [state.name for _, state, _, _ in states] == ["COMPLETE", "RUNNING"]
        points.append(states)
    assert points[0] == points[1]


def test_a_ledger_and_its_frames(remote: ObjectPath, tmp_path: Path, cl2r: Command) -> None:
    made = made_study(name="young")
    here, there = made_folder(remote, made), made_folder(tmp_path / "disk", made)
    for folder in (here, there):
        enter(folder, made, 0)
        enter(folder, made, 1, failed="its process died")
        write_frames(folder)
    for name, frame in study_frames(there).items():
        assert study_frames(here)[name].equals(frame)
        assert getattr(load_study(str(here.path)), name).equals(getattr(load_study(there.path), name))
    assert phase(here) == "interrupted"
    assert overview(remote).startswith("young  1 of ")
    code, out, _ = cl2r("status", "young", "--storage", remote)
    assert (code, "failed: its process died" in out) == (0, True)
    code, out, err = cl2r("report", "young", "--storage", remote, "--tables", "csv")
    assert (code, err) == (0, "")
    enter(here, made, 2)
    assert cl2r("report", here.path, "--out", "page.html")[:2] == (0, "report: page.html\n")
    assert made.runs["run"].iloc[2] in Path("page.html").read_text(), "the ledger knows more than the frames"


def test_scalars_of_a_task_are_written_once(remote: ObjectPath) -> None:
    for _ in range(2):
        tracker = TensorBoard(Place(remote, remote, "study"))
        tracker.task("run", TaskLog(1, [{"epoch": 1, "loss_ce": 0.5}], {"BC(t)": 0.25}))
    ((name, *_),) = remote.walk_files()
    assert name.startswith("tensorboard/run/events.out.tfevents.")
    tracker.finish("run", 1, {"AC": 1.0})
    assert TensorBoard(Place(remote, remote, "study")).state("run") == (0, "finished")
    assert b"train/loss_ce" in (remote / name).read_bytes()


def test_one_run_from_the_command_line(remote: ObjectPath, tiny: Path, cl2r: Command) -> None:
    words = ["run", "--data", tiny, "--method", "er", *set_options(flat_quick()), "--set", "optim.epochs=1"]
    for trained in (3, 0):
        code, out, _ = cl2r(*words, "--storage", remote)
        assert (code, f"{trained} links trained" in out) == (0, True)
    assert any(
        name.startswith("runs/tiny-er-T3-s0-") and name.endswith("runs.parquet") for name, *_ in remote.walk_files()
    )
