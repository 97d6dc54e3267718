"""A process that always crashes at the same point is not tried for ever."""

from cl2r.study.ledger import DIED
from tests.faults import injection
from tests.faults.faulty import RESUMED, TASKS, Faulty
from tests.support.study_frames import finished_events


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
