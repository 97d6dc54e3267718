"""The two commands of cluster/a100.yaml on one machine: its head, and `ray job submit -- python studies/ablation.py`.

Taken from the file: the commands that start the head, the environment of its containers, the folder they run in. Only
what this machine cannot have is different: the project's folder is a copy, bucket and NVMe are folders, ports are free
ones, nobody starts further nodes, `ray stop` (which would end the Rays of others) is left out, and the head instead of
another node has two A100s, which are names: CL2R_BACKEND=gloo trains on CPUs. So that the bare command takes seconds,
the copy's `studies/ablation.yaml` names a small preset and two methods. The client's folder has nothing in it.
"""

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from analysis import load_study
from cl2r.storage.path import at
from cl2r.study.folder import StudyFolder
from tests.support.cluster_rules import environment, read
from tests.support.galleries import free_port

ROOT = Path(__file__).parents[2]
RAY = str(Path(sys.executable).with_name("ray"))
PROJECT = "/home/ray/cl2r"  # in the containers
MEGABYTE = 2**20
TWO_A100 = {"CPU": 24, "GPU": 2, "accelerator_type:A100": 1}
BARE = ("python", "studies/ablation.py")


@dataclass(frozen=True)
class Head:
    """A running head node, and what a client knows of it."""

    folder: Path
    client: dict[str, str]

    @property
    def storage(self) -> Path:
        """What stands for the bucket."""
        return self.folder / "bucket" / "cl2r"

    def submit(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """`ray job submit` with these words, in a folder that has nothing to do with the project."""
        elsewhere = self.folder / "client"
        return subprocess.run(
            [RAY, "job", "submit", *words],
            cwd=cwd or elsewhere,
            env=self.client,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def exit_codes(self) -> list[int | None]:
        """The exit code of every job's driver, as `ray job list` has it."""
        done = subprocess.run(
            [sys.executable, "-c", _LIST], env=self.client, capture_output=True, text=True, check=True, timeout=60
        )
        return list(json.loads(done.stdout))


_LIST = """
import json
from ray.job_submission import JobSubmissionClient
print(json.dumps([job.driver_exit_code for job in JobSubmissionClient().list_jobs() if job.submission_id]))
"""


def copy_project(folder: Path, preset: Path) -> Path:
    """Copy what runs of the project, with a small default study."""
    copy = folder / "project"
    for part in ("cl2r", "analysis", "studies"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "results"))
    small = {"preset": str(preset), "seeds": [0], "grid": {"method.name": ["er", "cl2r"]}}
    (copy / "studies" / "ablation.yaml").write_text(yaml.safe_dump(small))
    return copy


def head_command(config: dict[str, object], project: Path) -> tuple[str, int]:
    """Return the command of the file that starts the head, for this machine, and the port of its dashboard."""
    stop, start = config["head_start_ray_commands"]
    assert stop == "ray stop"
    ports = {name: free_port() for name in ("port", "object-manager-port", "dashboard-port", "ray-client-server-port")}
    ports |= {name: free_port() for name in ("dashboard-agent-listen-port", "dashboard-agent-grpc-port")}
    own = {"--port=6379": "", "--object-manager-port=8076": "", "--autoscaling-config=~/ray_bootstrap_config.yaml": ""}
    for words, instead in (own | {PROJECT: str(project)}).items():
        assert words in start
        start = start.replace(words, instead)
    start += " --block --node-ip-address=127.0.0.1" + "".join(f" --{name}={port}" for name, port in ports.items())
    start += f" --metrics-export-port={free_port()} --object-store-memory={100 * MEGABYTE}"
    # As Ray's updater runs it, with the resources of the node type.
    resources = f"export RAY_OVERRIDE_RESOURCES='{json.dumps(TWO_A100)}';"
    return f"export OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore && ({resources}{start})", ports["dashboard-port"]


@pytest.fixture(scope="module")
def head(preset: Path) -> Iterator[Head]:
    """The head of a100.yaml; everything ends with it."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    for name in ("client", "home", "bucket"):
        (folder / name).mkdir()
    token = folder / "auth_token"
    token.write_text(secrets.token_hex(32))
    config, project = read("a100.yaml"), copy_project(folder, preset)
    command, port = head_command(config, project)
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "CL2R_"))}
    plain["PATH"] = f"{Path(sys.executable).parent}:{plain['PATH']}"
    container = environment(config)
    for name, words, instead in (
        ("CL2R_STORAGE", "s3://my-cl2r-bucket", str(folder / "bucket")),
        ("CL2R_DATA", "/mnt/cl2r/data", str(folder / "data")),
        ("RAY_AUTH_TOKEN_PATH", "/home/ray/.cl2r-token/auth_token", str(token)),
    ):
        assert container[name].startswith(words)
        container[name] = container[name].replace(words, instead)
    # PYTHONPATH stands for the editable install; 11 threads per trial would only wait for two cores.
    container |= {
        "PYTHONPATH": str(project),
        "CL2R_BACKEND": "gloo",
        "OMP_THREAD_LIMIT": "1",
        "RAY_TMPDIR": str(folder),
    }
    log = folder / "head.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=folder / "home",
            env=plain | container,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    client = plain | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    # The README exports it with 8265, to which `ray dashboard` forwards; without it another Ray here would be used.
    client |= {"RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{port}"}
    deadline = time.monotonic() + 90
    while not (_answers(port) and (folder / "ray" / "ray_current_cluster").exists()):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.3)
    yield Head(folder, client)
    processes = psutil.Process(process.pid).children(recursive=True)
    (start,) = (one for one in processes if one.cmdline()[1:4] == [RAY, "start", "--head"])
    start.terminate()  # it ends its own; Ray drains for up to 30 s
    for one in psutil.wait_procs(processes, timeout=45)[1]:
        one.kill()
    process.wait(10)
    shutil.rmtree(folder, ignore_errors=True)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_bare_command_runs_the_study_on_the_clusters_terms(head: Head) -> None:
    """No option says where results go or what a trial may use: that is in the environment of the head."""
    done = head.submit("--", *BARE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 runs finished, 0 failed" in done.stdout
    lines = done.stdout.splitlines()
    top = max(number for number, line in enumerate(lines) if {"method", "AC", "BC"} <= set(line.split()))
    rows = [line for line in lines[top + 1 : top + 5] if re.search(r"\b0\.\d\d", line)]
    assert len(rows) >= 2, done.stdout
    (path,) = (one for one in (head.storage / "studies").iterdir() if one.name != "sick")
    study = load_study(path)
    assert list(study.runs["status"]) == ["finished", "finished"]
    assert (~study.tasks["reused"]).sum() == 6
    (opened,) = StudyFolder(at(str(head.storage)), path.name).ledger.events("opened")
    wanted = {"workers": 1, "gpus_per_worker": 1, "cpus_per_worker": 11, "accelerator": "A100", "max_concurrent": 16}
    assert opened.read()["resources"].items() >= wanted.items()


def test_a_failed_run_and_bad_input(head: Head) -> None:
    """A failed run ends the script with 1, bad input with 2; `ray job submit` reports both as failures.

    The failing one uploads the client's own code (`--working-dir`): no results, environments or history are in it.
    """
    words = ("--name", "sick", "--cells", "er", "--set", "optim.lr=1e30")
    sick = head.submit("--working-dir", ".", "--", *BARE, *words, "--preset", _preset(head), cwd=ROOT)
    assert sick.returncode == 1
    assert "loss term 'ce' is" in sick.stdout
    packages = list(head.folder.glob("ray/session_2*/runtime_resources/working_dir_files/_ray_pkg_*"))
    (folder,) = (path for path in packages if path.is_dir())
    assert (folder / "studies" / "ablation.py").exists()
    assert not [name for name in (".git", "results", ".venv") if (folder / name).exists()]
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 12 * MEGABYTE
    wrong = head.submit("--", *BARE, "--set", "optim.speed=1")
    assert wrong.returncode == 1
    assert "unknown key 'optim.speed'" in wrong.stdout + wrong.stderr
    assert sorted(code for code in head.exit_codes() if code) == [1, 2]


def _preset(head: Head) -> str:
    return str(yaml.safe_load((head.folder / "project" / "studies" / "ablation.yaml").read_text())["preset"])


def test_a_driver_without_the_token_or_the_head_is_told(head: Head) -> None:
    """A driver outside a job: one line instead of Ray's traceback, or of minutes of waiting."""
    address = (head.folder / "ray" / "ray_current_cluster").read_text().strip()
    plain = {key: value for key, value in head.client.items() if not key.startswith("RAY_")}
    for given, words in ((address, ("RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN_PATH")), ("127.0.0.1:1", ("no Ray head",))):
        done = subprocess.run(
            [sys.executable, "studies/ablation.py", "--storage", str(head.folder / "other"), "--cells", "er"],
            cwd=head.folder / "project",
            env=plain | {"RAY_ADDRESS": given, "PYTHONPATH": str(head.folder / "project")},
            capture_output=True,
            text=True,
            timeout=120,
        )
        line = done.stderr.strip().splitlines()[-1]  # after notes, such as that the machine is busy
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        assert f"RAY_ADDRESS={given}" in line
        assert all(word in line for word in words)
