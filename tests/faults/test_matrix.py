"""Faults in a training process: the study resumes by itself and ends in the frames of an undisturbed one."""

from pathlib import Path

import pytest

from cl2r.study.ledger import DIED
from studies import ablation
from tests.faults import injection
from tests.faults.faulty import RESUMED, TASKS, Faulty
from tests.support.study_frames import finished_events

KILLED = (
    ("checkpoint", {"epoch": 2}),  # between the tensors of an epoch and their record
    ("link", {}),  # between the files of a link and its manifest
    ("between", {"task": 1}),
    ("evaluation", {"tasks": 1}),
    ("batch", {"task": 2, "epoch": 3}),
    ("evaluation", {"tasks": 2}),
)
"""Points at which the process is killed, in the order in which a run reaches them."""


def test_killed_at_every_point(faulty: Faulty) -> None:
    """Six crashes with one retry: a crash after progress does not count."""
    for point, where in KILLED:
        injection.lay(point, **where)
    code, said = faulty.run("--retries", "1")
    assert injection.left() == [], "all happened"
    assert code == 0
    assert said.count(RESUMED) == len(KILLED)
    faulty.assert_whole()


def test_the_newest_link_is_damaged_while_the_study_runs(faulty: Faulty) -> None:
    """A bit flips; the link is trained again, and then torn."""
    for damage in ("flip", "tear"):
        injection.lay("between", damage, task=1)
    code, said = faulty.run()
    assert injection.left() == []
    assert code == 0
    assert said.count("the checksum differs; it resumes") == 2
    faulty.assert_whole()


def test_the_clock_is_set_back_an_hour(faulty: Faulty) -> None:
    injection.lay("batch", "turn_back", task=2, epoch=3)
    code, _ = faulty.run()
    assert injection.left() == []
    assert code == 0
    faulty.assert_whole()


def test_a_process_that_always_crashes_at_the_same_point_fails(faulty: Faulty) -> None:
    injection.lay("batch", task=TASKS, epoch=2, times=9)
    code, said = faulty.run("--retries", "1")
    assert code == 1
    assert injection.struck() == 2, "the first time, and one retry"
    assert said.count(RESUMED) == 1
    (event,) = faulty.folder.ledger.outcomes().values()
    assert (event.kind, event.read()["reason"]) == ("failed", DIED)
    assert f"failed: {DIED}" in faulty.status()
    assert finished_events(faulty.storage, "faulty") == []

    injection.clear()
    code, _ = faulty.run()
    assert code == 0
    faulty.assert_whole()


@pytest.mark.slow
def test_runs_that_share_their_first_task(faulty: Faulty, tmp_path: Path) -> None:
    """The process that trains it for both is killed, then one that continues beside the other."""
    faulty.cells, faulty.undisturbed = ("fixed", "cl2r"), tmp_path / "calm"
    words = ["--preset", str(faulty.preset), "--storage", str(faulty.undisturbed), "--name", "calm", "--seeds", "0"]
    assert ablation.main([*words, "--cells", *faulty.cells]) == 0
    injection.lay("batch", task=1, epoch=3)
    injection.lay("batch", task=2, epoch=3)
    code, said = faulty.run()
    assert code == 0
    assert injection.left() == []
    assert said.count(RESUMED) == 2
    faulty.assert_whole()
