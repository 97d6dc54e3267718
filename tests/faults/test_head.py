"""The head of the cluster is killed: the driver reports it, ends by itself, and the same command resumes elsewhere."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cl2r.rayrun.cluster import RAY_HEAD_TIMEOUT
from tests.faults import injection
from tests.faults.fake_nodes import PATIENCE_SECONDS, wait_for
from tests.faults.faulty import Faulty

pytestmark = pytest.mark.slow
PORT = 26490
RAY = Path(sys.executable).with_name("ray")


def processes(folder: Path, kind: str) -> list[int]:
    """Return the processes of one kind of the Ray in `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes()
            if str(folder).encode() in line and kind.encode() in line.split(b"\0")[0]:
                found.append(int(path.parent.name))
    return found


@pytest.fixture
def head(injected_ray: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of another Ray, started by `ray start --head`."""
    folder = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv(RAY_HEAD_TIMEOUT, "10")
    options = ["--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats", "--object-store-memory=100000000"]
    subprocess.run([str(RAY), "start", "--head", f"--port={PORT}", *options], check=True, capture_output=True)
    yield folder
    for pid in processes(folder, ""):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("kinds", [("gcs_server",), ("gcs_server", "raylet")], ids=["head", "node-of-the-head"])
def test_the_head_is_killed(
    faulty: Faulty, head: Path, tmp_path: Path, kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    injection.lay("batch", "hold", argument="/nowhere", task=2, epoch=3)
    with faulty.driver(tmp_path / "log", address=f"127.0.0.1:{PORT}") as driver:
        wait_for(lambda: injection.struck() or driver.poll() is not None, "the second task")
        for pid in [pid for kind in kinds for pid in processes(head, kind)]:
            os.kill(pid, signal.SIGKILL)
        code = driver.wait(PATIENCE_SECONDS)
    said = (tmp_path / "log").read_text()
    assert code > 0, said
    assert "the head of the Ray cluster, " in said
    assert "Traceback" not in said
    assert faulty.remembered_epoch(task=2) == 2
    assert "interrupted" in faulty.status()
    monkeypatch.undo()
    monkeypatch.setattr("cl2r.rayrun.tune.run_trial", injection.run_trial)
    code, _ = faulty.run()
    assert code == 0
    faulty.assert_whole()
