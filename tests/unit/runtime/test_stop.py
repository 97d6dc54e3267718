"""SIGTERM: how a run, a program and the training processes of a study stop."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cl2r.config.keys import stored_key
from cl2r.engine.chain import Chain, RunResult, execute
from cl2r.engine.links import LinkStore
from cl2r.engine.plan import plan_run
from cl2r.engine.workers import Workers
from cl2r.errors import REQUEUE, StoppedError
from cl2r.methods import bic
from cl2r.runtime.logs import exit_code
from cl2r.runtime.progress import ProgressLine
from cl2r.runtime.stop import Marker, Termination
from tests.support.command_line import Command
from tests.support.quick import EPOCHS, Recorder, assert_same_chain, flat_quick, quick_config, set_options, train
from tests.support.two_workers import WORLD, spawned


class After:
    """Asks to stop the `count`-th time it is asked."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self) -> bool:
        self.left -= 1
        return self.left <= 0


def test_the_epoch_is_saved_and_the_run_resumes_with_the_same_bits(
    finished: RunResult, finished_root: Path, tiny: Path, tmp_path: Path
) -> None:
    """Asked before task 1 and after its epochs, before task 2 and after its first two."""
    plan = plan_run(quick_config(tiny))
    with pytest.raises(StoppedError) as stopped:
        execute(plan, tmp_path, Recorder(), After(1 + EPOCHS + 1 + 2))
    assert str(stopped.value) == "stopped by SIGTERM after epoch 2 of task 2; run the same command again to resume"
    recorder = Recorder()
    result = train(quick_config(tiny), tmp_path, recorder)
    assert f"task 2: resumed link {plan.keys[1]} after epoch 2" in recorder.lines
    np.testing.assert_array_equal(result.report.matrix, finished.report.matrix)
    assert_same_chain(plan, finished_root, tmp_path)


def test_a_run_stops_before_a_task(tiny: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    with pytest.raises(StoppedError, match="before task 2"):
        execute(plan_run(quick_config(tiny)), tmp_path, recorder, After(1 + EPOCHS + 1))
    assert {report.task for report in recorder.reports} == {1}


def test_an_epoch_that_is_not_due_is_saved_before_stopping(tiny: Path, tmp_path: Path) -> None:
    """BiC's second stage remembers every twentieth epoch only."""
    assert bic.SAVE_EVERY > 2
    plan = plan_run(quick_config(tiny, {"method": {"name": "bic"}}))
    with pytest.raises(StoppedError):
        execute(plan, tmp_path, Recorder(), After(1 + EPOCHS + 1 + EPOCHS + 2))
    partial = LinkStore(tmp_path).load_partial(plan.keys[1])
    assert partial is not None
    assert (partial.stage, partial.epoch) == (1, 2)


def stopped_together(workers: Workers, arguments: tuple[Path, Path]) -> tuple[str, int]:
    """Only the first worker is asked."""
    data, root = arguments
    stop = After(3) if workers.first else After(1)
    chain = Chain(plan_run(quick_config(data)), root, Recorder(), "owner", workers, stop)
    try:
        chain.ensure_link(1)
    except StoppedError as error:
        return str(error), stop.left
    return "", 0


def test_workers_stop_together(tiny: Path, tmp_path: Path) -> None:
    heard = spawned(stopped_together, (tiny, tmp_path))
    message = "stopped by SIGTERM after epoch 2 of task 1; run the same command again to resume"
    assert heard == [(message, 0), (message, 1)]
    assert len(heard) == WORLD
    partial = LinkStore(tmp_path).load_partial(stored_key(plan_run(quick_config(tiny)).keys[0], ["cpu2"]))
    assert partial is not None
    assert partial.epoch == 2


def test_the_command_ends_with_75_and_resumes(
    cl2r: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "--data", tiny, "--storage", tmp_path / "out", *set_options(flat_quick())]
    with monkeypatch.context() as patch:
        first = (2, 1)
        patch.setattr(ProgressLine, "epoch", lambda self, report: (report.task, report.epoch) == first and terminate())
        code, _, err = cl2r(*words)
    assert code == REQUEUE
    assert err.endswith("cl2r: stopped by SIGTERM after epoch 2 of task 2; run the same command again to resume\n")
    assert "Traceback" not in err
    code, out, err = cl2r(*words)
    assert code == 0
    assert "after epoch 2" in err
    assert "2 links trained" in out


def test_the_command_before_training(
    cl2r: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cl2r.engine.plan.plan_run", lambda config: terminate())
    assert cl2r("run", "--data", tiny, "--storage", tmp_path / "out")[0] == REQUEUE
    assert not (tmp_path / "out").exists()


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def terminate_and_wait() -> None:
    terminate()
    time.sleep(60)


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Check that every test restores the handler."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) is before


def test_outside_graceful_a_program_ends_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end, Termination().listening():
        terminate()
    assert end.value.code == REQUEUE
    assert "SIGTERM" in capfd.readouterr().err


def test_the_first_signal_asks_and_the_second_ends() -> None:
    asked = threading.Event()
    with Termination().listening() as termination:
        assert not termination.asked()
        with termination.graceful(asked.set):
            terminate()
            assert termination.asked()
            assert asked.wait(60)
            with pytest.raises(SystemExit) as end:
                terminate()
    assert end.value.code == REQUEUE


def test_a_program_ends_after_its_grace_period(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end, Termination(0.01).listening() as termination, termination.graceful():
        terminate_and_wait()
    assert end.value.code == REQUEUE
    assert "for 0.01 s at most" in capfd.readouterr().err


def test_the_handler_of_ray_is_replaced() -> None:
    """Ray installs a handler while it starts; its exit code is translated, and `listen` installs ours again."""

    def of_ray(*_: Any) -> None:
        raise SystemExit(15)

    def start() -> None:
        signal.signal(signal.SIGTERM, of_ray)
        terminate()

    with pytest.raises(SystemExit) as end, Termination().listening():
        start()
    assert end.value.code == REQUEUE
    with Termination().listening() as termination, termination.graceful():
        signal.signal(signal.SIGTERM, of_ray)
        termination.listen()
        terminate()
        assert termination.asked()


def test_a_forked_process_ends_like_any_other() -> None:
    here, there = os.pipe()
    with Termination().listening() as termination, termination.graceful():
        child = os.fork()
        if not child:
            os.write(there, b"!")
            time.sleep(60)
            os._exit(0)
        os.read(here, 1)  # Python forgets signals that come while it forks
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM


def test_a_failing_announcement_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    with pytest.raises(SystemExit), Termination(0.01).listening() as termination, termination.graceful(fail):
        terminate_and_wait()
    assert "cannot ask training processes to stop: the disk is gone" in capfd.readouterr().err


def test_listening_in_another_thread_does_nothing() -> None:
    def listen() -> None:
        with Termination().listening() as termination:
            heard.append(termination.asked())

    heard: list[bool] = []
    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert heard == [False]


def test_a_stopped_program_exits_with_75_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def stopped() -> int:
        raise StoppedError("1 of 2 runs finished")

    assert exit_code("ablation", stopped) == REQUEUE == 75
    assert capsys.readouterr().err == "ablation: 1 of 2 runs finished\n"


def test_the_marker_is_checked_once_per_interval(tmp_path: Path) -> None:
    driver, patient, eager = Marker(tmp_path), Marker(tmp_path, interval=3600), Marker(tmp_path, interval=0)
    driver.remove()
    assert not patient()
    assert not eager()
    driver.put()
    assert not patient(), "not yet"
    assert eager()
    driver.remove()
    assert not (tmp_path / "stop").exists()
    assert eager(), "a process that was asked to stop does not start again"
    assert not Marker(tmp_path)()
