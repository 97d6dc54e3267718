"""Interrupted, killed, damaged: the same command goes on and ends in the same bits."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from quick import (
    EPOCHS,
    Interrupter,
    Recorder,
    assert_same_chain,
    chain_tensors,
    flat_quick,
    flip_bit,
    quick_config,
    set_options,
    train,
)

from cl2r.cli import main
from cl2r.engine.plan import plan_run
from cl2r.engine.records import write_run
from cl2r.engine.run import RunResult, execute
from cl2r.engine.store import MANIFEST, PARTIAL, STATE, LinkStore
from cl2r.layers import override, read_layer, resolve

PATIENCE_SECONDS = 120


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


# ---------------------------------------------------------------- Ctrl-C


@pytest.mark.parametrize("method", ["cl2r", "er"])
@pytest.mark.parametrize("after", [1, EPOCHS + 2, 2 * EPOCHS])
def test_stopped_after_an_epoch(
    undisturbed: dict[str, tuple[RunResult, Path]], tiny: Path, tmp_path: Path, method: str, after: int
) -> None:
    expected, root = undisturbed[method]
    keys, config = expected.plan.keys, quick_config(tiny, {"method": {"name": method}})
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path, Interrupter(after=after))
    recorder = Recorder()
    result = train(config, tmp_path, recorder)

    done, remembered = divmod(after - 1, EPOCHS)
    lines = [f"task {task}: reused link {keys[task - 1]}" for task in range(1, done + 1)]
    if remembered:
        lines.append(f"task {done + 1}: resumed link {keys[done]} after epoch {remembered}")
    assert recorder.lines[: len(lines)] == lines
    assert [line.split(" in ")[0] for line in recorder.lines[len(lines) :]] == [
        f"task {task}: trained link {keys[task - 1]}" for task in range(done + 1, 4)
    ]
    assert len(recorder.reports) == 3 * EPOCHS - done * EPOCHS - remembered
    np.testing.assert_array_equal(result.report.matrix, expected.report.matrix)
    assert_same_chain(expected.plan, root, tmp_path)


def test_a_resumed_task_has_the_curves_of_an_undisturbed_one(finished: RunResult, tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(quick_config(tiny), tmp_path, Interrupter(after=EPOCHS + 2))
    result = train(quick_config(tiny), tmp_path)
    for link, expected in zip(result.links, finished.links, strict=True):
        assert link.record["images"] == expected.record["images"]
        for one, two in zip(link.record["curves"], expected.record["curves"], strict=True):
            assert {**one, "seconds": 0} == {**two, "seconds": 0}


def test_stopped_again_and_again(finished: RunResult, finished_root: Path, tiny: Path, tmp_path: Path) -> None:
    """Each attempt gets one epoch further: the first of two is remembered, the second is lost."""
    attempts = 0
    while True:
        try:
            result = train(quick_config(tiny), tmp_path, Interrupter(after=2))
            break
        except KeyboardInterrupt:
            attempts += 1
    assert attempts == 3 * EPOCHS - 1
    np.testing.assert_array_equal(result.report.matrix, finished.report.matrix)
    assert_same_chain(finished.plan, finished_root, tmp_path)


def test_stopped_between_the_last_epoch_and_the_link(
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
    assert recorder.lines[0] == f"task 1: resumed link {finished.plan.keys[0]} after epoch {EPOCHS}"
    assert [report.task for report in recorder.reports] == [2] * EPOCHS + [3] * EPOCHS
    assert_same_chain(finished.plan, finished_root, tmp_path)


def test_a_damaged_epoch_starts_its_task_again(
    finished: RunResult, finished_root: Path, tiny: Path, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(quick_config(tiny), tmp_path, Interrupter(after=EPOCHS + 2))
    key = finished.plan.keys[1]
    flip_bit(next((tmp_path / "partials" / key).glob("stage*.safetensors")))
    recorder = Recorder()
    train(quick_config(tiny), tmp_path, recorder)
    assert any(key in line and "damaged" in line for line in recorder.lines)
    assert not any("resumed" in line for line in recorder.lines)
    assert_same_chain(finished.plan, finished_root, tmp_path)


# ---------------------------------------------------------------- SIGKILL


def kill_in_task_2(words: list[str], partial: Path, log: Path) -> None:
    """Start the command, wait for the first remembered epoch of task 2, then pull the plug."""
    script = "from cl2r.cli import main; main()"
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, "-c", script, *words], stdout=out, stderr=out)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not partial.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.kill()
        assert process.wait() == -signal.SIGKILL, log.read_text()


def test_killed(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = flat_quick() | {"scenario.n_tasks": 2, "optim.epochs": 20, "optim.milestones": [15]}
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    words = ["run", "--data", str(tiny), "--out", str(root), *set_options(settings)]
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
    killed, whole = (
        json.loads((base / "runs" / folder.name / "result.json").read_text()) for base in (root, elsewhere)
    )
    assert killed["report"] == whole["report"]
    assert killed["tuning"] == whole["tuning"]
    assert_same_chain(plan, root, elsewhere)


# ---------------------------------------------------------------- damage at rest


@pytest.fixture
def copy(finished: RunResult, finished_root: Path, tmp_path: Path) -> Path:
    """A store of one's own with the finished chain."""
    shutil.copytree(finished_root / "links", tmp_path / "copy" / "links")
    return tmp_path / "copy"


@pytest.mark.parametrize("task", [1, 2, 3])
def test_a_flipped_bit_costs_its_link_only(
    finished: RunResult, finished_root: Path, tiny: Path, copy: Path, task: int
) -> None:
    key = finished.plan.keys[task - 1]
    flip_bit(copy / "links" / key / STATE)
    recorder = Recorder()
    result = train(quick_config(tiny), copy, recorder)
    assert recorder.lines[0].startswith("task 1: reused") or "damaged" in recorder.lines[0]
    assert [line for line in recorder.lines if "damaged" in line] == [
        f"link {key} is damaged ({STATE}: the checksum differs); it will be trained again"
    ]
    assert [link.reused for link in result.links] == [number != task for number in (1, 2, 3)]
    np.testing.assert_array_equal(result.report.matrix, finished.report.matrix)
    assert_same_chain(finished.plan, finished_root, copy)


def test_a_deleted_middle_link_is_trained_again_and_the_later_one_kept(
    finished: RunResult, finished_root: Path, tiny: Path, copy: Path
) -> None:
    shutil.rmtree(copy / "links" / finished.plan.keys[1])
    recorder = Recorder()
    result = train(quick_config(tiny), copy, recorder)
    assert [link.reused for link in result.links] == [True, False, True]
    assert recorder.begun == [2]
    assert not any("damaged" in line for line in recorder.lines)
    np.testing.assert_array_equal(result.report.matrix, finished.report.matrix)
    assert_same_chain(finished.plan, finished_root, copy)


def test_two_damaged_neighbours(finished: RunResult, finished_root: Path, tiny: Path, copy: Path) -> None:
    for key in finished.plan.keys[:2]:
        flip_bit(copy / "links" / key / MANIFEST)
    result = train(quick_config(tiny), copy)
    assert [link.reused for link in result.links] == [False, False, True]
    assert len(chain_tensors(result.plan, copy)) == 3
    assert_same_chain(finished.plan, finished_root, copy)
