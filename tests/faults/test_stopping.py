"""SIGTERM to a driver: epochs are saved, nothing new starts, exit code 75, and the same command goes on."""

import signal
from pathlib import Path

import injection
import pytest
from faulty import Faulty, wait_for

from cl2r.errors import REQUEUE


def test_sigterm_saves_the_epoch_and_the_same_command_goes_on(faulty: Faulty, tmp_path: Path) -> None:
    """SIGTERM comes in the third epoch of the second task; that epoch is the last."""
    injection.lay("batch", "hold", argument=str(faulty.marker), task=2, epoch=3)
    with faulty.driver(tmp_path / "log") as driver:
        wait_for(lambda: injection.struck() or driver.poll() is not None, "the third epoch")
        assert faulty.end(driver, signal.SIGTERM) == REQUEUE, (tmp_path / "log").read_text()
    said = (tmp_path / "log").read_text()
    assert said.endswith("ablation: stopped by SIGTERM: 0 of 1 runs finished; the same command goes on\n")
    assert "Traceback" not in said
    assert faulty.remembered_epoch(task=2) == 3
    assert faulty.folder.ledger.outcomes() == {}
    assert faulty.folder.ledger.events("closed", "noted") == []
    assert "0 of 1 runs finished, interrupted: the same command goes on" in faulty.status()
    code, _ = faulty.run()
    assert code == 0
    assert not faulty.marker.exists()
    faulty.assert_whole()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["second signal", "end of the grace"])
def test_who_cannot_wait(faulty: Faulty, tmp_path: Path, way: str) -> None:
    """A training process that does not come to the end of its epoch is left behind."""
    injection.lay("batch", "hold", argument="/nowhere", task=2, epoch=3)
    options = ["--grace", "1"] if way == "end of the grace" else []
    with faulty.driver(tmp_path / "log", *options) as driver:
        wait_for(lambda: injection.struck() or driver.poll() is not None, "the third epoch")
        driver.send_signal(signal.SIGTERM)
        wait_for(faulty.marker.exists, "the marker")
        if way == "second signal":
            driver.send_signal(signal.SIGTERM)
        assert driver.wait(injection.PATIENCE_SECONDS / 2) == REQUEUE, (tmp_path / "log").read_text()
    assert "stopped by SIGTERM; the same command goes on" in (tmp_path / "log").read_text()
    assert faulty.remembered_epoch(task=2) == 2
    assert "interrupted" in faulty.status()
    code, _ = faulty.run()
    assert code == 0
    faulty.assert_whole()
