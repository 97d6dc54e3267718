"""cluster/slurm.sh, run with stand-ins for Slurm, Ray and the study; they write a line a call."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.cluster_rules import CLUSTER

REQUEUE = 75
WAIT_SECONDS = 60  # a limit on waiting, not what it takes

CALL = 'printf "%s\\n" "$(basename "$0") $*" >> "$CALLS"\n'
PROGRAMS = {
    # `srun OPTIONS command`: the command itself, on this machine
    "srun": CALL + 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n',
    "scontrol": CALL + '[ "$1" != show ] || printf "%s\\n" $NODES\n[ "$1" != requeue ] || exit "${REQUEUE_FAILS:-0}"\n',
    "hostname": "echo 192.0.2.1 192.0.2.9\n",
    "ray": CALL
    + """case "$*" in
        *--head*) token=$RAY_AUTH_TOKEN_PATH
                  echo "$RAY_AUTH_MODE $(stat -c %a "$token") $(wc -c < "$token")" > "$CALLS.token"
                  [ -z "${HEAD_FAILS:-}" ] || { echo "no port" >&2; exit 1; }
                  touch "$CALLS.up" ;;
        *--address=*) [ -z "${OTHERS_FAIL:-}" ] || exit 1
                      touch "$CALLS.joined" ;;
        status*) test -e "$CALLS.up"; exit ;;
    esac
    trap 'exit 0' TERM
    while :; do sleep 0.1; done
    """,
    "python": CALL
    + """if [ "$1" = -c ]; then test -z "${JOIN_FAILS:-}" -a -e "$CALLS.joined"; exit; fi
    trap 'echo TERM >> "$CALLS"; exit 75' TERM
    echo started >> "$CALLS"
    [ -z "${LASTS:-}" ] || while :; do sleep 0.1; done
    exit "${CODE:-0}"
    """,
}


@dataclass
class Job:
    """A job of two nodes."""

    folder: Path
    process: "subprocess.Popen[str] | None" = None

    def start(self, *words: str, **variables: object) -> "subprocess.Popen[str]":
        for name, text in PROGRAMS.items():
            program = self.folder / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/bin/bash\n{text}")
            program.chmod(0o755)
        own = {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.folder),
            "CL2R_TMP": str(self.folder),
            "CALLS": str(self.folder / "calls"),
            "NODES": "one two",
            "SLURM_JOB_ID": "4321",
            "SLURM_JOB_NODELIST": "[one,two]",
            "SLURM_CPUS_PER_TASK": "96",
        }
        command = ["bash", str(CLUSTER / "slurm.sh"), *(words or ("python", "studies/ablation.py"))]
        environment = own | {name: str(value) for name, value in variables.items()}
        self.process = subprocess.Popen(
            command, env=environment, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        return self.process

    def run(self, *words: str, **variables: object) -> tuple[int, str]:
        process = self.start(*words, **variables)
        out, err = process.communicate(timeout=WAIT_SECONDS)
        return process.returncode, out + err

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for(self, call: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while call not in self.calls():
            assert time.monotonic() < deadline, self.calls()
            time.sleep(0.05)

    def left(self) -> list[str]:
        """What still runs of it, which is then ended, and the files it should have removed."""
        mine = [(process, command_line(process)) for process in psutil.process_iter()]
        running = [(process, words) for process, words in mine if f"{self.folder}/bin" in words]
        for process, _ in running:
            process.kill()
        files = [path for path in (self.folder / ".cl2r-slurm" / "4321", self.folder / "r4321") if path.exists()]
        return [*(words for _, words in running), *map(str, files)]


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    if made.process:
        made.process.kill()
    assert made.left() == []


@pytest.mark.parametrize("code", [0, 1, 2, 130, 137])
def test_the_drivers_exit_code_is_the_jobs(job: Job, code: int) -> None:
    found, _ = job.run(CODE=code)
    assert found == code
    assert not any(call.startswith("scontrol requeue") for call in job.calls())


def test_ray_is_started_as_it_should(job: Job) -> None:
    job.run("python", "studies/ablation.py", "--seeds", "0 1")
    head, others = (call for call in job.calls() if call.startswith("srun") and "ray start" in call)
    assert head == (
        "srun --nodes=1 --ntasks=1 --nodelist=one ray start --head --block --node-ip-address=192.0.2.1 --port=24321"
        " --num-cpus=96 --dashboard-host=127.0.0.1 --dashboard-port=34321 --disable-usage-stats"
    )
    assert others == (
        "srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --exclude=one"
        " ray start --address=192.0.2.1:24321 --block --num-cpus=96"
    )
    assert (job.folder / "calls.token").read_text() == "token 600 64\n"
    assert "python studies/ablation.py --seeds 0 1" in job.calls()
    assert not any("ray stop" in call for call in job.calls())


def test_one_node_is_enough(job: Job) -> None:
    assert job.run(NODES="one")[0] == 0
    assert sum("ray start" in call and call.startswith("srun") for call in job.calls()) == 1


def test_75_goes_back_into_the_queue(job: Job) -> None:
    assert job.run(CODE=REQUEUE)[0] == REQUEUE
    assert job.calls()[-1] == "scontrol requeue 4321"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"REQUEUE_FAILS": 1}, "could not be requeued"),
        ({"SLURM_RESTART_COUNT": 100}, "requeued 100 times already"),
    ],
)
def test_a_queue_that_does_not_take_it(job: Job, variables: dict[str, object], message: str) -> None:
    code, text = job.run(CODE=REQUEUE, **variables)
    assert code == REQUEUE
    assert message in text


def test_term_reaches_the_driver(job: Job) -> None:
    process = job.start(LASTS=1)
    job.wait_for("started")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == REQUEUE
    assert "TERM" in job.calls()
    assert job.calls()[-1] == "scontrol requeue 4321"


def test_term_before_the_driver(job: Job) -> None:
    process = job.start(JOIN_FAILS=1)
    job.wait_for("ray start --address=192.0.2.1:24321 --block --num-cpus=96")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == REQUEUE
    assert "started" not in job.calls()
    assert job.calls()[-1] == "scontrol requeue 4321"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"HEAD_FAILS": 1}, "the head on one did not start: ray start has ended"),
        ({"OTHERS_FAIL": 1}, "not all of 2 nodes joined: ray start has ended"),
        ({"JOIN_FAILS": 1, "CL2R_START_SECONDS": 1}, "not all of 2 nodes joined: nothing after 1 s"),
    ],
)
def test_a_cluster_that_does_not_come_up(job: Job, variables: dict[str, object], message: str) -> None:
    code, text = job.run(**variables)
    assert code == 1
    assert f"slurm.sh: {message}" in text
    assert "started" not in job.calls()
    assert not any(call.startswith("scontrol requeue") for call in job.calls())


def test_what_it_needs(job: Job) -> None:
    code, text = job.run(SLURM_JOB_ID="")
    assert (code, "this is a batch script" in text) == (2, True)
    done = subprocess.run(["bash", str(CLUSTER / "slurm.sh")], capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert (done.returncode, "give the command of a study" in done.stderr) == (2, True)
