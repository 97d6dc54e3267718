"""A driver that is killed, and two drivers of one study."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from studies import ablation
from tests.faults import injection
from tests.faults.fake_nodes import wait_for
from tests.faults.faulty import Faulty

SCRIPT = Path(ablation.__file__)


def test_a_killed_driver_can_be_resumed(faulty: Faulty, tmp_path: Path) -> None:
    """Ctrl-C, then SIGKILL with a Ray of its own, each in the middle of an epoch; then the same command to the end."""
    codes = []
    for epoch, (kind, address) in enumerate([(signal.SIGINT, None), (signal.SIGKILL, "local")], start=2):
        injection.lay("batch", "hold", argument="/nowhere", task=2, epoch=epoch)
        with faulty.driver(tmp_path / f"log{kind}", address=address) as driver:
            wait_for(lambda ended=driver.poll: not injection.left() or ended() is not None, "the second task")
            codes.append(faulty.end(driver, kind))
        assert faulty.remembered_epoch(task=2) == epoch - 1
        assert "interrupted" in faulty.status()
    log = (tmp_path / f"log{signal.SIGINT}").read_text()
    assert codes == [130, -signal.SIGKILL], log
    assert log.splitlines()[-1].startswith("ablation: stopped; ")
    code, _ = faulty.run()
    assert code == 0
    faulty.assert_whole()


def test_two_drivers_of_one_study(faulty: Faulty) -> None:
    """The second is refused while the first is at work, and changes nothing."""
    injection.lay("batch", "hold", argument=str(faulty.path / "go"), task=2, epoch=3)
    done: list[int] = []
    first = threading.Thread(target=lambda: done.append(faulty.run()[0]))
    first.start()
    wait_for(lambda: injection.struck() or not first.is_alive(), "the first driver's run")
    command = [sys.executable, str(SCRIPT), *faulty.words]
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 2
    said = f"ablation: study 'faulty' is being run by process {os.getpid()} on "
    assert second.stderr.splitlines()[-1].startswith(said)
    assert "Traceback" not in second.stderr
    (faulty.path / "go").touch()
    first.join()
    assert done == [0]
    faulty.assert_whole()
