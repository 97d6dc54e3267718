"""The soak itself: what it counts, that it detects a loss, and a short run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cl2r.study.folder import StudyFolder
from tests.faults import soak
from tests.faults.epoch_log import Epoch
from tests.faults.soak_faults import Fault
from tests.support.small_study import bare_run


def epoch(time: float, run: str, number: int, task: int = 1) -> Epoch:
    return Epoch(time, run, task, "train", number, 0, 1, "node", "", {})


def test_repeated_epochs_are_charged_to_a_fault() -> None:
    """To the damage of a link of that run, else to the last fault before; what is trained once is free."""
    faults = [Fault("driver", 10.0, ""), Fault("link", 20.0, "a-0"), Fault("node", 30.0, "node1")]
    epochs = [epoch(1.0, "a-0", 1), epoch(2.0, "a-0", 2), epoch(3.0, "b-0", 1), epoch(11.0, "b-0", 1)]
    epochs += [epoch(31.0, "a-0", 1), epoch(32.0, "a-0", 2), epoch(33.0, "b-0", 1), epoch(34.0, "b-0", 1, task=2)]
    assert soak.repeated(epochs, faults) == {"driver": 1, "link": 2, "node": 1}


def finish(folder: StudyFolder, *runs: str) -> None:
    for run in runs:
        folder.ledger.write("finished", run, {})


@pytest.mark.parametrize(
    ("finished", "failed", "losses"),
    [
        (["one", "two"], [], []),
        (["one"], [], ["two finished 0 times"]),
        (["one", "two", "two"], [], ["two finished 2 times"]),
        (["one", "two"], ["two"], ["two failed: its process died"]),
    ],
)
def test_a_loss_is_noticed(tmp_path: Path, finished: list[str], failed: list[str], losses: list[str]) -> None:
    folder = StudyFolder(tmp_path, soak.STUDY)
    finish(folder, *finished)
    for run in failed:
        folder.ledger.write("failed", run, {"reason": "its process died"})
    there: Any = SimpleNamespace(folder=folder, runs=[bare_run("one", "a"), bare_run("two", "b")])
    assert soak.Soak.losses(there) == losses


@pytest.mark.slow
def test_a_short_soak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--trials", "8", "--seed", "1", "--out", str(tmp_path / "table.md")]) == 0
    table = capsys.readouterr().out
    assert (tmp_path / "table.md").read_text() == table
    injected, survived = (int(cell) for cell in table.split("| **all** |")[1].split("|")[:2])
    assert injected == survived > 0
