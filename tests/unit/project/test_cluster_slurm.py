"""cluster/slurm.sh, run with stand-ins for Slurm, Ray and the study, which write one line per call."""

import contextlib
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
JOIN = "ray start --address=192.0.2.1:24321 --block --num-cpus=96"

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
    echo "$PWD ${CL2R_GPUS_PER_WORKER:-none} ${CL2R_CPUS_PER_WORKER:-none}" > "$CALLS.study"
    [ -z "${LASTS:-}" ] || while :; do sleep 0.1; done
    exit "${CODE:-0}"
    """,
}


@dataclass
class Job:
    """A job of two nodes."""

    folder: Path
    process: "subprocess.Popen[str] | None" = None

    def run(self, *words: str, until: str = "", **variables: object) -> tuple[int, str]:
        """Return the exit code and the output; send SIGTERM after the call `until`."""
        (self.folder / "bin").mkdir(exist_ok=True)
        for name, text in PROGRAMS.items():
            (self.folder / "bin" / name).write_text(f"#!/bin/bash\n{text}")
            (self.folder / "bin" / name).chmod(0o755)
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
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(command, env=environment, cwd=self.folder, text=True, **output)
        deadline = time.monotonic() + WAIT_SECONDS
        while until and until not in self.calls():
            assert time.monotonic() < deadline, self.calls()
            time.sleep(0.05)
        if until:
            self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode, out

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def requeued(self) -> bool:
        return "scontrol requeue 4321" in self.calls()

    def left(self) -> list[str]:
        """End what still runs of it, and return that and the files it should have removed."""
        running = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if f"{self.folder}/bin" in (words := " ".join(process.cmdline())):
                    running.append(words)
                    process.kill()
        files = (self.folder / ".cl2r-slurm" / "4321", self.folder / "r4321")
        return [*running, *(str(path) for path in files if path.exists())]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    if made.process:
        made.process.kill()
    assert made.left() == []


@pytest.mark.parametrize("code", [0, 1, 2, 130, 137, REQUEUE])
def test_the_drivers_exit_code_is_the_jobs_and_75_goes_back_into_the_queue(job: Job, code: int) -> None:
    assert job.run(CODE=code)[0] == code
    assert job.requeued() == (code == REQUEUE)


def test_ray_is_started_as_it_should(job: Job) -> None:
    job.run("python", "studies/ablation.py", "--seeds", "0 1")
    head, others = (call for call in job.calls() if call.startswith("srun") and "ray start" in call)
    assert head == (
        "srun --nodes=1 --ntasks=1 --nodelist=one ray start --head --block --node-ip-address=192.0.2.1 --port=24321"
        " --num-cpus=96 --dashboard-host=127.0.0.1 --dashboard-port=34321 --disable-usage-stats"
    )
    assert others == f"srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --exclude=one {JOIN}"
    assert (job.folder / "calls.token").read_text() == "token 600 64\n"
    assert "python studies/ablation.py --seeds 0 1" in job.calls()
    assert not any("ray stop" in call for call in job.calls())


@pytest.mark.parametrize(
    ("variables", "seen"),
    [
        ({"SLURM_GPUS_ON_NODE": 8}, "1 11"),
        ({"SLURM_GPUS_ON_NODE": 8, "SLURM_CPUS_PER_TASK": 8}, "1 1"),
        ({"SLURM_GPUS_ON_NODE": 8, "CL2R_GPUS_PER_WORKER": 0.25}, "0.25 2"),
        ({"SLURM_GPUS_ON_NODE": 8, "CL2R_GPUS_PER_WORKER": 2}, "2 22"),
        ({"SLURM_GPUS_ON_NODE": 8, "CL2R_GPUS_PER_WORKER": 0.5, "CL2R_CPUS_PER_WORKER": 5}, "0.5 5"),
        ({}, "none none"),
    ],
)
def test_a_study_without_options_has_a_gpu_per_trial(job: Job, variables: dict[str, object], seen: str) -> None:
    job.run(**variables)
    assert (job.folder / "calls.study").read_text() == f"{job.folder} {seen}\n"


def test_one_node_is_enough(job: Job) -> None:
    assert job.run(NODES="one")[0] == 0
    assert sum("ray start" in call and call.startswith("srun") for call in job.calls()) == 1


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


@pytest.mark.parametrize(("until", "variable"), [("started", "LASTS"), (JOIN, "JOIN_FAILS")])
def test_term_reaches_the_driver_or_comes_before_it(job: Job, until: str, variable: str) -> None:
    assert job.run(until=until, **{variable: 1})[0] == REQUEUE
    assert ("TERM" in job.calls()) == ("started" in job.calls()) == (until == "started")
    assert job.requeued()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"HEAD_FAILS": 1}, "the head on one did not start: ray start has ended"),
        ({"OTHERS_FAIL": 1}, "not all of 2 nodes joined: ray start has ended"),
        ({"JOIN_FAILS": 1, "CL2R_START_SECONDS": 4}, "not all of 2 nodes joined: nothing after 4 s"),
    ],
)
def test_a_cluster_that_does_not_come_up(job: Job, variables: dict[str, object], message: str) -> None:
    code, text = job.run(**variables)
    assert code == 1
    assert f"slurm.sh: {message}" in text
    assert "started" not in job.calls()
    assert not job.requeued()


def test_what_it_needs(job: Job) -> None:
    code, text = job.run(SLURM_JOB_ID="")
    assert (code, "this is a batch script" in text) == (2, True)
    done = subprocess.run(["bash", str(CLUSTER / "slurm.sh")], capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert (done.returncode, "give the command of a study" in done.stderr) == (2, True)
