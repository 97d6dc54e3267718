"""One fault a row, in a process that trains: the study goes on by itself and ends in the same frames."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import injection
import pytest
from faulty import Faulty

from studies import ablation

DIED = "its process died; it goes on from its last epoch"


@dataclass(frozen=True)
class Row:
    """A fault at a point of training, and what the driver says of it."""

    name: str
    point: str
    where: dict[str, int] = field(default_factory=dict)
    action: str = "kill"
    said: str = DIED
    slow: bool = False


ROWS = (
    Row("killed between two batches", "batch", {"task": 2, "epoch": 3}),
    Row("killed between the tensors of an epoch and their record", "checkpoint", {"epoch": 2}),
    Row("killed between the files of a link and its manifest", "link"),
    Row("killed between two tasks", "between", {"task": 1}),
    Row("killed during the evaluation of a task", "evaluation", {"tasks": 1}, slow=True),
    Row("killed during the last evaluation", "evaluation", {"tasks": 2}),
    Row("a bit of the newest link flips", "between", {"task": 1}, "flip", "the checksum differs; it goes on"),
    Row("the newest link is torn", "between", {"task": 1}, "tear", "the checksum differs; it goes on", slow=True),
    Row("the clock goes back an hour", "batch", {"task": 2, "epoch": 3}, "turn_back", ""),
)


def parameter(row: Row) -> Any:
    return pytest.param(row, id=row.name.replace(" ", "-"), marks=[pytest.mark.slow] * row.slow)


@pytest.mark.parametrize("row", list(map(parameter, ROWS)))
def test_a_fault_in_a_training_process(faulty: Faulty, row: Row) -> None:
    injection.lay(row.point, row.action, **row.where)
    code, said = faulty.run()
    assert injection.left() == [], "it happened"
    assert code == 0
    assert row.said in said
    faulty.assert_whole()


@pytest.mark.slow
def test_runs_that_share_their_first_task(faulty: Faulty, tmp_path: Path) -> None:
    """The process that trains it for both is killed, then one that goes on from there beside another."""
    faulty.cells, faulty.undisturbed = ("fixed", "cl2r"), tmp_path / "calm"
    words = ["--preset", str(faulty.preset), "--storage", str(faulty.undisturbed), "--name", "calm"]
    assert ablation.main([*words, "--cells", *faulty.cells]) == 0
    injection.lay("batch", task=1, epoch=3)
    injection.lay("batch", task=2, epoch=3)
    code, said = faulty.run()
    assert code == 0
    assert injection.left() == []
    assert said.count(DIED) == 2
    faulty.assert_whole()
