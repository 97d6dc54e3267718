"""SIGTERM to a driver: epochs are saved, nothing new starts, the exit code is 75, and the same command resumes."""

import signal
from pathlib import Path

import pytest

from cl2r.errors import REQUEUE
from tests.faults import injection
from tests.faults.fake_nodes import wait_for
from tests.faults.faulty import Faulty


def test_sigterm_saves_the_epoch_and_the_same_command_resumes(faulty: Faulty, tmp_path: Path) -> None:
    """SIGTERM arrives in the third epoch of the second task, which is the last that is trained."""
    injection.lay("batch", "hold", argument=str(faulty.marker), task=2, epoch=3)
    with faulty.driver(tmp_path / "log") as driver:
        wait_for(lambda: injection.struck() or driver.poll() is not None, "the third epoch")
        assert faulty.end(driver, signal.SIGTERM) == REQUEUE, (tmp_path / "log").read_text()
    said = (tmp_path / "log").read_text()
    assert "ablation: stopped by SIGTERM: 0 of 1 runs finished" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert faulty.remembered_epoch(task=2) == 3
    assert faulty.folder.ledger.outcomes() == {}
    assert faulty.folder.ledger.events("closed", "noted") == []
    assert "0 of 1 runs finished, interrupted" in faulty.status()
    code, _ = faulty.run()
    assert code == 0
    assert not faulty.marker.exists()
    faulty.assert_whole()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["second signal", "end of the grace"])
def test_a_second_signal_or_the_end_of_the_grace_ends_at_once(faulty: Faulty, tmp_path: Path, way: str) -> None:
    """A training process that does not finish its epoch is left behind."""
    injection.lay("batch", "hold", argument="/nowhere", task=2, epoch=3)
    options = ["--grace", "1"] if way == "end of the grace" else []
    with faulty.driver(tmp_path / "log", *options) as driver:
        wait_for(lambda: injection.struck() or driver.poll() is not None, "the third epoch")
        driver.send_signal(signal.SIGTERM)
        wait_for(faulty.marker.exists, "the marker")
        if way == "second signal":
            driver.send_signal(signal.SIGTERM)
        assert driver.wait(injection.PATIENCE_SECONDS / 2) == REQUEUE, (tmp_path / "log").read_text()
    assert "stopped by SIGTERM" in (tmp_path / "log").read_text()
    assert faulty.remembered_epoch(task=2) == 2
    assert "interrupted" in faulty.status()
