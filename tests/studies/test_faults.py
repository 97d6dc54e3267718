"""Processes are killed at bad moments; the frames end up equal to those of a study that nothing happened to."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import ray
from study_frames import assert_same_frames, finished_events

from analysis import load_study
from cl2r.rayrun.resources import Resources
from studies import ablation

SCRIPT = Path(ablation.__file__)
PATIENCE_SECONDS = 180


def wait_for(found: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not found():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def mid_task(study: Path, task: int = 2) -> int | None:
    """The process (the first worker's) of a run that is inside `task` right now."""
    for path in (study / "live").glob("*.json"):
        try:
            entry = json.loads(path.read_text())
        except FileNotFoundError:
            continue
        if not entry["trunk"] and entry["task"] == task and entry["epoch"] < entry["epochs"]:
            return int(entry["pid"])
    return None


class Hunter(threading.Thread):
    """Kills a process inside the second task of a run and, if `twice`, another worker inside the third."""

    def __init__(self, study: Path, twice: bool = False) -> None:
        super().__init__()
        self.study, self.twice, self.killed = study, twice, list[int]()
        self.start()

    def run(self) -> None:
        self.kill(lambda: mid_task(self.study))
        if self.twice:
            self.kill(lambda: mid_task(self.study, task=3) and other_worker(mid_task(self.study, task=3)))

    def kill(self, find: Callable[[], int | None]) -> None:
        found: list[int | None] = [None]
        wait_for(lambda: found.append(find()) or found[-1], "a run in the middle of a task")
        assert found[-1] is not None
        os.kill(found[-1], signal.SIGKILL)
        self.killed.append(found[-1])


def other_worker(first: int | None) -> int | None:
    """A worker of Ray Train, in the Ray of these tests, that is not the first one."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            pid = int(path.parent.name)
            parent = (path.parent / "stat").read_text().rsplit(")", 1)[1].split()[1]
            ours = os.environ["RAY_TMPDIR"].encode() in Path(f"/proc/{parent}/cmdline").read_bytes()
            if ours and b"RayTrainWorker" in path.read_bytes() and pid != first:
                return pid
    return None


def test_a_killed_trial_goes_on(
    undisturbed: Path, preset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hunter = Hunter(tmp_path / "studies" / "hunted")
    words = ["--preset", str(preset), "--storage", str(tmp_path), "--name", "hunted"]
    assert ablation.main(words) == 0
    hunter.join()
    assert len(hunter.killed) == 1
    assert_same_frames((tmp_path, "hunted"), (undisturbed, "calm"))
    assert "its process died; it goes on from its last epoch" in capsys.readouterr().err
    runs = finished_events(tmp_path, "hunted")
    assert len(runs) == len(set(runs)) == 6


class Reserved(threading.Thread):
    """The least that was left of Ray's resources at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.done, self.least = threading.Event(), dict.fromkeys(("CPU", "GPU", "accelerator_type:A100"), math.inf)

    def run(self) -> None:
        while not self.done.wait(0.2):
            left = ray.available_resources()
            self.least = {name: min(least, left.get(name, 0.0)) for name, least in self.least.items()}

    def __enter__(self) -> "Reserved":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.join()


@pytest.mark.slow
def test_killed_train_workers_go_on(
    small_ray: None, preset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers, first one and then the other is killed; each time both start again from the last epoch.

    The undisturbed study asks for an A100 a worker, in name only: where workers are placed changes no result.
    """
    words = ["--preset", str(preset), "--cells", "cl2r", "--workers", "2"]
    calm, hunted = ([*words, "--storage", str(tmp_path / name), "--name", name] for name in ("calm", "hunted"))
    with monkeypatch.context() as patch:
        a100 = Resources(workers=2, gpus_per_worker=1, accelerator="A100", backend="gloo")
        patch.setattr("cl2r.study.command._resources", lambda _: a100)
        with Reserved() as reserved:
            assert ablation.main(calm) == 0
    assert reserved.least == {"GPU": 0.0, "accelerator_type:A100": pytest.approx(0.998), "CPU": 0.0}
    study = load_study(tmp_path / "calm" / "studies" / "calm")
    assert list(study.tasks["workers"]) == [2, 2, 2]
    hunter = Hunter(tmp_path / "hunted" / "studies" / "hunted", twice=True)
    assert ablation.main(hunted) == 0
    hunter.join()
    assert len(hunter.killed) == 2
    assert_same_frames((tmp_path / "hunted", "hunted"), (tmp_path / "calm", "calm"))


def test_a_killed_driver_goes_on(undisturbed: Path, preset: Path, tmp_path: Path, ray_folder: Path) -> None:
    """Ctrl-C, then SIGKILL, each in the middle of a run; then the same command to the end."""
    words = [sys.executable, str(SCRIPT), "--preset", str(preset), "--storage", str(tmp_path), "--name", "driver"]
    study = tmp_path / "studies" / "driver"
    codes = []
    for kind in (signal.SIGINT, signal.SIGKILL):
        with (tmp_path / f"log{kind}").open("w") as log:
            driver = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, "RAY_ADDRESS": "local"})
            wait_for(lambda ended=driver.poll: mid_task(study) or ended() is not None, "a run in its second task")
            driver.send_signal(kind)
            codes.append(driver.wait(PATIENCE_SECONDS))
    log_text = (tmp_path / f"log{signal.SIGINT}").read_text()
    assert codes == [130, -signal.SIGKILL], log_text
    assert "stopped; the same command goes on where it stopped" in log_text
    before = finished_events(tmp_path, "driver")
    assert len(before) < 6
    assert ablation.main(words[2:]) == 0
    assert_same_frames((tmp_path, "driver"), (undisturbed, "calm"))
    runs = finished_events(tmp_path, "driver")
    assert len(runs) == len(set(runs)) == 6


def test_two_drivers_of_one_study(undisturbed: Path, preset: Path, tmp_path: Path) -> None:
    """The second is refused while the first is at work."""
    words = ["--preset", str(preset), "--storage", str(tmp_path), "--name", "double", "--cells", "er"]
    done: list[int] = []
    first = threading.Thread(target=lambda: done.append(ablation.main(words)))
    first.start()
    wait_for(lambda: (tmp_path / "studies" / "double" / "driver.lock").exists(), "the first driver")
    command = [sys.executable, str(SCRIPT), *words]
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 2
    assert second.stderr.startswith(f"ablation: study 'double' is being run by process {os.getpid()} on ")
    first.join()
    assert done == [0]
