"""Studies submitted with `ray job submit` to a real `ray start --head` on loopback."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from analysis import load_study
from tests.support.galleries import free_port

ROOT = Path(__file__).parents[2]
RAY = str(Path(sys.executable).with_name("ray"))
MEGABYTE = 2**20


@dataclass(frozen=True)
class Head:
    """A running head node."""

    address: str
    folder: Path
    environment: dict[str, str]

    def submit(self, *entrypoint: str) -> subprocess.CompletedProcess[str]:
        command = [RAY, "job", "submit", "--address", self.address, "--working-dir", ".", "--", *entrypoint]
        return subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False, timeout=300
        )


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """`ray start --head --block` with its own ports; everything ends with it."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    dashboard = free_port()
    ports = ("port", "ray-client-server-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port")
    options = {name: str(free_port()) for name in (*ports, "metrics-export-port")}
    options |= {"num-cpus": "2", "temp-dir": str(folder), "node-ip-address": "127.0.0.1"}
    options |= {"dashboard-host": "127.0.0.1", "dashboard-port": str(dashboard)}
    options |= {"object-store-memory": str(100 * MEGABYTE)}
    command = [RAY, "start", "--head", "--block", "--disable-usage-stats"]
    command += [f"--{name}={value}" for name, value in options.items()]
    names = [name for name in os.environ if name.startswith("RAY_")]
    environment = {key: value for key, value in os.environ.items() if key not in names}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    with (folder / "head.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    running = Head(f"http://127.0.0.1:{dashboard}", folder, environment)
    deadline = time.monotonic() + 90
    while not _answers(dashboard):
        assert process.poll() is None, (folder / "head.log").read_text()
        assert time.monotonic() < deadline, (folder / "head.log").read_text()
        time.sleep(0.3)
    yield running
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(45)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_study_as_a_job(head: Head, preset: Path, tmp_path: Path) -> None:
    words = ["--preset", str(preset), "--storage", str(tmp_path), "--name", "job", "--cells", "er", "cl2r"]
    done = head.submit("python", "studies/ablation.py", *words, "--set", "optim.epochs=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 runs finished, 0 failed" in done.stdout
    assert ["Fixed", "FD^M"] in [line.split()[:2] for line in done.stdout.splitlines()]
    study = load_study(tmp_path / "studies" / "job")
    assert list(study.runs["status"]) == ["finished", "finished"]
    assert (~study.tasks["reused"]).sum() == 6
    # Code was uploaded, but no results, environments or history.
    packages = list(head.folder.glob("session_2*/runtime_resources/working_dir_files/_ray_pkg_*"))
    folders = [path for path in packages if path.is_dir()]
    assert folders
    for folder in folders:
        assert (folder / "studies" / "ablation.py").exists()
        assert not (folder / ".git").exists()
        assert not (folder / "results").exists()
        assert not (folder / ".venv").exists()
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        assert size < 12 * MEGABYTE


def test_a_failing_job(head: Head, preset: Path, tmp_path: Path) -> None:
    """A failed run ends the script with 1, bad input with 2; `ray job submit` reports both as failures."""
    words = ["--preset", str(preset), "--storage", str(tmp_path), "--name", "sick", "--cells", "er"]
    sick = head.submit("python", "studies/ablation.py", *words, "--set", "optim.lr=1e30")
    assert sick.returncode == 1
    assert "loss term 'ce' is" in sick.stdout
    wrong = head.submit("python", "studies/ablation.py", *words, "--set", "optim.speed=1")
    assert wrong.returncode == 1
    assert "unknown key 'optim.speed'" in wrong.stdout + wrong.stderr
    listed = subprocess.run(
        [sys.executable, "-c", _LIST, head.address], env=head.environment, capture_output=True, text=True, check=True
    )
    assert set(json.loads(listed.stdout)) >= {1, 2}


_LIST = """
import json, sys
from ray.job_submission import JobSubmissionClient
print(json.dumps([job.driver_exit_code for job in JobSubmissionClient(sys.argv[1]).list_jobs() if job.submission_id]))
"""
