"""How often a run is tried again: as long as it comes further, and a few times more."""

import injection
import pytest
from faulty import EPOCHS, TASKS, Faulty
from study_frames import finished_events

from cl2r.study.ledger import DIED


@pytest.mark.slow
def test_a_run_that_comes_further_may_die_as_often_as_it_likes(faulty: Faulty) -> None:
    """Once in vain, then after every other epoch, with one attempt a death that brought nothing."""
    deaths = range(1, EPOCHS + 1, 2)
    for epoch in deaths:
        injection.lay("batch", task=1, epoch=epoch)
    code, said = faulty.run("--retries", "1")
    assert code == 0
    assert injection.struck() == len(deaths) > 2
    assert said.count(f"{DIED}; it goes on from its last epoch") == len(deaths)
    faulty.assert_whole()


def test_a_process_that_always_dies_at_the_same_place_fails(faulty: Faulty) -> None:
    injection.lay("batch", task=TASKS, epoch=2, times=9)
    code, said = faulty.run("--retries", "1")
    assert code == 1
    assert injection.struck() == 2, "the first time, and one attempt more"
    assert said.count("; it goes on from its last epoch") == 1
    (event,) = faulty.folder.ledger.outcomes().values()
    assert (event.kind, event.read()["reason"]) == ("failed", DIED)
    assert f"failed: {DIED}" in faulty.status()
    assert finished_events(faulty.storage, "faulty") == []

    injection.clear()
    code, _ = faulty.run()
    assert code == 0
    faulty.assert_whole()
