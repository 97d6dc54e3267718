"""Errors in a trial: which end as a failed row, and which are raised for another attempt."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from ray.exceptions import ActorDiedError, ActorUnavailableError

from cl2r.engine.links import DamagedError
from cl2r.errors import InputError, ProcessDiedError
from cl2r.rayrun import trial
from cl2r.rayrun.trial import root_cause
from cl2r.runtime.environment import ROOT
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job, plan_job
from cl2r.study.ledger import DIED
from cl2r.study.resources import Resources
from cl2r.study.spec import Point
from tests.support.small_study import small_study


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    found = StudyFolder(tmp_path, "study")
    found.claim_name({})
    return found


@pytest.fixture
def job(tiny: Path) -> Job:
    return plan_job(small_study(tiny, seeds=[0, 1]), Point(None, {}), 7)


def run(job: Job, folder: StudyFolder, monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> list[Any]:
    """Run the trial with training that raises; return what is reported to Tune."""
    reports: list[Any] = []

    def train(*_: Any) -> None:
        if error:
            raise error

    monkeypatch.setattr(trial, "train_job", train)
    monkeypatch.setattr(trial.tune, "report", reports.append)
    monkeypatch.setattr(trial, "configure", lambda _: None)  # logging of the test process stays as it is
    resources = {"workers": 1, "cpus_per_worker": 1}
    config = {"job": job.to_json(), "study": str(folder.path), "trained_by": "x", "resources": resources}
    trial.run_trial(config)
    return reports


def test_a_bug_is_a_failed_row_at_once(job: Job, folder: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(job, folder, monkeypatch, ValueError("two\nlines")) == [{"ended": True}]
    outcomes = folder.ledger.outcomes()
    assert {name: event.kind for name, event in outcomes.items()} == {run.name: "failed" for run in job.runs}
    assert {event.read()["reason"] for event in outcomes.values()} == {"ValueError: two lines"}


def test_an_error_of_the_disk_is_raised(job: Job, folder: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="full"):
        run(job, folder, monkeypatch, OSError("full"))
    assert folder.ledger.outcomes() == {}


def test_a_node_that_does_not_share_the_storage_is_named(
    job: Job, folder: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.specification.unlink()
    with pytest.raises(OSError, match="is not the driver's storage"):
        run(job, folder, monkeypatch, None)


@pytest.mark.parametrize("lacking", ["data", "GPU"])
def test_a_node_that_lacks_the_data_or_a_gpu_is_named_and_another_may_be_tried(
    job: Job, folder: StudyFolder, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    def missing(*_: Any) -> None:
        raise InputError(f"there is no {lacking}")

    monkeypatch.setattr(*{"data": (trial, "load_dataset"), "GPU": (Resources, "device")}[lacking], missing)
    monkeypatch.setattr(trial, "get_node_ip_address", lambda: "192.0.2.7")
    with pytest.raises(OSError, match=f"node 192.0.2.7: there is no {lacking}"):
        run(job, folder, monkeypatch, None)
    assert folder.ledger.outcomes() == {}


def test_bad_input_is_a_failed_row_at_once(job: Job, folder: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(job, folder, monkeypatch, InputError("no such thing")) == [{"ended": True}]
    assert {event.read()["reason"] for event in folder.ledger.outcomes().values()} == {"no such thing"}


def imported(module: str, seen: set[str]) -> set[str]:
    """The modules of this project that are loaded when `module` is."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    if module in seen or not path.exists():
        return seen
    seen.add(module)
    for node in ast.parse(path.read_text()).body:  # functions import later
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                imported(name, seen)
    return seen


def test_training_processes_import_neither_pandas_nor_the_command_line() -> None:
    """A study waits for their start."""
    processes = imported("cl2r.rayrun.trial", set())
    assert {"cl2r.study.train_job", "cl2r.engine.chain"} < processes
    assert not {"cl2r.cli.report", "cl2r.study.frames", "cl2r.study.session"} & processes


class UnhealthyError(Exception):
    """As Ray Train wraps a failed health check."""

    health_check_failure = ActorDiedError()


CLOSED = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1234")


@pytest.mark.parametrize(
    "failures",
    [
        [ActorDiedError()],
        [ActorUnavailableError("away", b"0" * 16)],
        [UnhealthyError()],
        [CLOSED, UnhealthyError()],
        [CLOSED],
        [dist.DistNetworkError("reset")],
        [ConnectionResetError("reset"), CLOSED],
    ],
)
def test_a_group_that_lost_a_process_can_be_retried(failures: list[Exception]) -> None:
    reason = root_cause(failures)
    assert isinstance(reason, ProcessDiedError)
    assert str(reason) == DIED


def test_an_error_of_the_disk_or_a_bug_is_named() -> None:
    full, damaged, bug = OSError(28, "No space left on device"), DamagedError("the checksum differs"), ValueError("bug")
    assert root_cause([full, CLOSED]) is full
    assert root_cause([damaged, damaged]) is damaged
    assert root_cause([bug]) is bug


def test_workers_get_the_wait_policy_before_they_load_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[Any] = []

    class Trainer:
        def __init__(self, loop: Any, *, run_config: Any, **_: Any) -> None:
            given.append(run_config.worker_runtime_env)

        def fit(self) -> None:
            """Train nothing."""

    monkeypatch.setattr("ray.train.torch.TorchTrainer", Trainer)
    for policy in ("PASSIVE", "ACTIVE"):
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
        trial.fit_workers(lambda config: None, {}, Resources(workers=2), "name", str(tmp_path))
    assert given == [{"env_vars": {"OMP_WAIT_POLICY": policy}} for policy in ("PASSIVE", "ACTIVE")]
