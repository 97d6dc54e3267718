"""A run that was interrupted, killed or damaged resumes with the same command and ends with the same bits."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cl2r.cli.main import main
from cl2r.config.layers import override, read_layer, resolve
from cl2r.engine.chain import RunResult, execute
from cl2r.engine.frames import write_run
from cl2r.engine.links import MANIFEST, PARTIAL, STATE, LinkStore
from cl2r.engine.plan import plan_run
from tests.support.quick import (
    EPOCHS,
    TASKS,
    Interrupter,
    Recorder,
    assert_same_chain,
    flat_quick,
    flip_bit,
    quick_config,
    set_options,
    train,
)

TIMEOUT_SECONDS = 120


@pytest.fixture(scope="module")
def undisturbed(
    finished: RunResult, finished_root: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[RunResult, Path]]:
    """Result and store of both methods."""
    root = tmp_path_factory.mktemp("er")
    return {
        "cl2r": (finished, finished_root),
        "er": (train(quick_config(tiny, {"method": {"name": "er"}}), root), root),
    }


def actions(recorder: Recorder, keys: list[str]) -> list[tuple[str, int]]:
    """Return what happened to which task, according to the log."""
    found = []
    for line in recorder.lines:
        action = next(word for word in ("damaged", "reused", "resumed", "trained") if f" {word} " in line)
        (task,) = (number for number, key in enumerate(keys, 1) if key in line.partition("(")[0])
        found.append((action, task))
    return found


@pytest.mark.parametrize("method", ["cl2r", "er"])
@pytest.mark.parametrize("after", [1, EPOCHS + 2, 2 * EPOCHS])
def test_interrupted_after_an_epoch(
    undisturbed: dict[str, tuple[RunResult, Path]], tiny: Path, tmp_path: Path, method: str, after: int
) -> None:
    expected, root = undisturbed[method]
    keys, config = expected.plan.keys, quick_config(tiny, {"method": {"name": method}})
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path, Interrupter(after=after))
    recorder = Recorder()
    result = train(config, tmp_path, recorder)

    done, saved = divmod(after - 1, EPOCHS)
    assert actions(recorder, keys) == [
        *(("reused", task) for task in range(1, done + 1)),
        *([("resumed", done + 1)] if saved else []),
        *(("trained", task) for task in range(done + 1, TASKS + 1)),
    ]
    assert len(recorder.reports) == TASKS * EPOCHS - done * EPOCHS - saved
    np.testing.assert_array_equal(result.report.matrix, expected.report.matrix)
    assert_same_chain(expected.plan, root, tmp_path)
    for link, undisturbed_link in zip(result.links, expected.links, strict=True):
        one, two = link.record, undisturbed_link.record
        assert one["images"] == two["images"]
        assert [row | {"seconds": 0} for row in one["curves"]] == [row | {"seconds": 0} for row in two["curves"]]


def test_interrupted_in_every_epoch(finished: RunResult, finished_root: Path, tiny: Path, tmp_path: Path) -> None:
    """Every attempt saves one more epoch and loses the next, so the run is resumed after each epoch of each task."""
    attempts = 0
    while True:
        try:
            result = train(quick_config(tiny), tmp_path, Interrupter(after=2))
            break
        except KeyboardInterrupt:
            attempts += 1
    assert attempts == TASKS * EPOCHS - 1
    np.testing.assert_array_equal(result.report.matrix, finished.report.matrix)
    assert_same_chain(finished.plan, finished_root, tmp_path)


def test_interrupted_between_the_last_epoch_and_the_link(
    finished: RunResult, finished_root: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LinkStore, "save", stopped)
        with pytest.raises(KeyboardInterrupt):
            train(quick_config(tiny), tmp_path)
    recorder = Recorder()
    train(quick_config(tiny), tmp_path, recorder)
    assert actions(recorder, finished.plan.keys)[0] == ("resumed", 1)
    assert [report.task for report in recorder.reports] == [2] * EPOCHS + [3] * EPOCHS
    assert_same_chain(finished.plan, finished_root, tmp_path)


def test_a_damaged_epoch_makes_its_task_start_again(
    finished: RunResult, finished_root: Path, tiny: Path, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(quick_config(tiny), tmp_path, Interrupter(after=EPOCHS + 2))
    key = finished.plan.keys[1]
    flip_bit(next((tmp_path / "partials" / key).glob("stage*.safetensors")))
    recorder = Recorder()
    train(quick_config(tiny), tmp_path, recorder)
    assert actions(recorder, finished.plan.keys) == [("reused", 1), ("damaged", 2), ("trained", 2), ("trained", 3)]
    assert_same_chain(finished.plan, finished_root, tmp_path)


def kill_in_task_2(words: list[str], partial: Path, log: Path) -> None:
    """Start the command, wait for the first saved epoch of task 2, then kill the process."""
    script = "from cl2r.cli.main import main; main()"
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, "-c", script, *words], stdout=out, stderr=out)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not partial.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.kill()
        assert process.wait() == -signal.SIGKILL, log.read_text()


def test_killed(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = flat_quick() | {"scenario.n_tasks": 2, "optim.epochs": 20, "optim.milestones": [15]}
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    words = ["run", "--data", str(tiny), "--storage", str(root), *set_options(settings)]
    layers = [override(f"{key}={value}") for key, value in settings.items()]
    plan = plan_run(resolve([read_layer("icons"), {"data": {"name": str(tiny)}}, *layers]))
    first, second = plan.keys
    kill_in_task_2(words, root / "partials" / second / PARTIAL, tmp_path / "log")
    assert (root / "links" / first / MANIFEST).exists()
    assert not (root / "links" / second / MANIFEST).exists()

    monkeypatch.setattr(sys, "argv", ["cl2r", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    err = capsys.readouterr().err
    assert f"task 1: reused link {first}\n" in err
    assert f"task 2: resumed link {second} after epoch " in err

    folder = write_run(execute(plan, elsewhere, Recorder()), elsewhere)
    results = [base / "runs" / folder.name / "result.json" for base in (root, elsewhere)]
    killed, whole = (json.loads(path.read_text()) for path in results)
    assert (killed["report"], killed["tuning"]) == (whole["report"], whole["tuning"])
    assert_same_chain(plan, root, elsewhere)


@pytest.mark.parametrize(("tasks", "file"), [([1], STATE), ([2], STATE), ([3], STATE), ([1, 2], MANIFEST), ([2], None)])
def test_only_damaged_and_deleted_links_are_trained_again(
    finished: RunResult, finished_root: Path, tiny: Path, tmp_path: Path, tasks: list[int], file: str | None
) -> None:
    shutil.copytree(finished_root / "links", tmp_path / "links")
    for task in tasks:
        link = tmp_path / "links" / finished.plan.keys[task - 1]
        if file:
            flip_bit(next(link.glob(f"*{file}")))
        else:
            shutil.rmtree(link)
    recorder = Recorder()
    result = train(quick_config(tiny), tmp_path, recorder)
    again = ("damaged", "trained") if file else ("trained",)
    expected = [(action, task) for task in (1, 2, 3) for action in (again if task in tasks else ("reused",))]
    assert actions(recorder, finished.plan.keys) == expected
    assert recorder.begun == ([] if file else tasks)
    assert [link.reused for link in result.links] == [task not in tasks for task in (1, 2, 3)]
    np.testing.assert_array_equal(result.report.matrix, finished.report.matrix)
    assert_same_chain(finished.plan, finished_root, tmp_path)


OTHERS = {"other seed": {"seed": 5}, "other learning rate": {"optim": {"lr": 0.05}}}


@pytest.mark.parametrize(("one", "two"), [(1, 2), (2, 3)])
def test_links_that_were_exchanged_are_not_used(
    finished: RunResult, finished_root: Path, tiny: Path, tmp_path: Path, one: int, two: int
) -> None:
    shutil.copytree(finished_root / "links", tmp_path / "links")
    first, second = (tmp_path / "links" / finished.plan.keys[task - 1] for task in (one, two))
    first.rename(tmp_path / "first")
    second.rename(first)
    (tmp_path / "first").rename(second)
    recorder = Recorder()
    result = train(quick_config(tiny), tmp_path, recorder)
    for mine, other in ((first, second), (second, first)):
        (line,) = (line for line in recorder.lines if f"link {mine} is damaged" in line)
        assert f"it belongs to link {other.name}, not to link {mine.name}" in line
        assert len(list(mine.parent.glob(f".aside.{mine.name}.*"))) == 1
    assert [link.reused for link in result.links] == [task not in (one, two) for task in (1, 2, 3)]
    np.testing.assert_array_equal(result.report.matrix, finished.report.matrix)
    assert_same_chain(finished.plan, finished_root, tmp_path)


@pytest.mark.parametrize("layer", OTHERS.values(), ids=OTHERS)
def test_a_link_copied_from_another_run_is_not_used(
    finished: RunResult, finished_root: Path, tiny: Path, tmp_path: Path, layer: dict[str, Any]
) -> None:
    """The folder of another run's second task, renamed; everything in it is whole."""
    shutil.copytree(finished_root / "links", tmp_path / "links")
    other = train(quick_config(tiny, layer), tmp_path / "other").plan.keys[1]
    mine = tmp_path / "links" / finished.plan.keys[1]
    shutil.rmtree(mine)
    shutil.copytree(tmp_path / "other" / "links" / other, mine)
    recorder = Recorder()
    result = train(quick_config(tiny), tmp_path, recorder)
    assert actions(recorder, finished.plan.keys) == [("reused", 1), ("damaged", 2), ("trained", 2), ("reused", 3)]
    assert f"it belongs to link {other}, not to link {mine.name}" in "".join(recorder.lines)
    np.testing.assert_array_equal(result.report.matrix, finished.report.matrix)
    assert_same_chain(finished.plan, finished_root, tmp_path)


@pytest.mark.parametrize("layer", OTHERS.values(), ids=OTHERS)
def test_an_epoch_copied_from_another_run_is_not_resumed(
    finished: RunResult, finished_root: Path, tiny: Path, tmp_path: Path, layer: dict[str, Any]
) -> None:
    for config, root in ((quick_config(tiny), tmp_path), (quick_config(tiny, layer), tmp_path / "other")):
        with pytest.raises(KeyboardInterrupt):
            train(config, root, Interrupter(after=EPOCHS + 3))
    other, mine = plan_run(quick_config(tiny, layer)).keys[1], finished.plan.keys[1]
    shutil.rmtree(tmp_path / "partials" / mine)
    shutil.copytree(tmp_path / "other" / "partials" / other, tmp_path / "partials" / mine)
    recorder = Recorder()
    result = train(quick_config(tiny), tmp_path, recorder)
    assert actions(recorder, finished.plan.keys) == [("reused", 1), ("damaged", 2), ("trained", 2), ("trained", 3)]
    assert f"it belongs to the unfinished link {other}, not to the unfinished link {mine}" in "".join(recorder.lines)
    assert [report.epoch for report in recorder.reports if report.task == 2] == [1, 2, 3], "from its first epoch"
    assert len(list((tmp_path / "partials").glob(f".aside.{mine}.*"))) == 1
    np.testing.assert_array_equal(result.report.matrix, finished.report.matrix)
    assert_same_chain(finished.plan, finished_root, tmp_path)
