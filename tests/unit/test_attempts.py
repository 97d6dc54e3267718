"""Which deaths of a process count, and what is done about each."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.tune.search import Searcher
from small_study import bare_run

from cl2r.engine.store import DamagedError, LinkStore, Partial
from cl2r.errors import ProcessDiedError
from cl2r.rayrun.attempts import Attempts, saved
from cl2r.rayrun.search import JobSearcher
from cl2r.rayrun.worker import cause
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job
from cl2r.study.ledger import DIED

JOB = Job(0, None, (bare_run("run", ["one", "two", "three"]),))
TENSORS = {"a": torch.ones(2)}


@pytest.fixture
def store(tmp_path: Path) -> LinkStore:
    return LinkStore(tmp_path, lambda line: pytest.fail(line))


def remember(store: LinkStore, key: str, epoch: int, stage: int = 0) -> None:
    store.save_partial(key, Partial(stage, epoch, TENSORS, {}))


# ---------------------------------------------------------------- what is saved


def test_a_later_epoch_a_later_stage_and_a_link_are_further(store: LinkStore) -> None:
    states = [saved(JOB, store)]
    remember(store, "one", 1)
    states.append(saved(JOB, store))
    remember(store, "one", 7)
    states.append(saved(JOB, store))
    remember(store, "one", 2, stage=1)
    states.append(saved(JOB, store))
    store.save("one", TENSORS, TENSORS, {})
    states.append(saved(JOB, store))
    remember(store, "two", 1)
    states.append(saved(JOB, store))
    for position, state in enumerate(states):
        assert [state.beyond(other) for other in states] == [position > other for other in range(len(states))]


def test_a_trunk_is_judged_by_its_own_links(store: LinkStore) -> None:
    trunk = Job(-1, None, JOB.runs, 0, 1)
    before = saved(trunk, store)
    store.save("two", TENSORS, TENSORS, {})
    assert not saved(trunk, store).beyond(before)
    assert saved(JOB, store).beyond(before)


def test_a_damaged_epoch_is_none(store: LinkStore) -> None:
    before = saved(JOB, store)
    remember(store, "one", 3)
    (store.partials / "one" / "partial.json").write_bytes(b"torn")
    assert not saved(JOB, store).beyond(before)


# ---------------------------------------------------------------- how often


def test_without_progress_there_are_as_many_attempts_as_asked_for(store: LinkStore) -> None:
    for retries in (0, 1, 2):
        attempts = Attempts(store, retries)
        assert [attempts.another(JOB) for _ in range(retries + 1)] == [True] * retries + [False]


def test_progress_makes_good_for_all_deaths_before(store: LinkStore) -> None:
    attempts = Attempts(store, 2)
    for epoch in range(1, 6):
        remember(store, "one", epoch)
        assert attempts.another(JOB)
        assert attempts.another(JOB), "once in vain"
    assert attempts.another(JOB), "twice in vain"
    assert not attempts.another(JOB)


def test_jobs_are_counted_apart(store: LinkStore) -> None:
    attempts = Attempts(store, 1)
    other = Job(1, None, (bare_run("other", ["four"]),))
    assert [attempts.another(job) for job in (JOB, other, JOB, other)] == [True, True, False, False]


# ---------------------------------------------------------------- Tune's stream of jobs


def handed_out(answer: Any) -> str:
    return Job.from_plain(json.loads(answer["job"])).label


def test_a_job_whose_process_died_comes_again(store: LinkStore, tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path, "study")
    searcher = JobSearcher([JOB], None, folder, 2, {}, Attempts(store, 1))
    assert handed_out(searcher.suggest("a")) == "run"
    assert searcher.suggest("b") is None, "it may die yet"
    searcher.on_trial_complete("a", error=True)
    assert handed_out(searcher.suggest("b")) == "run"
    searcher.on_trial_complete("b", error=True)
    assert searcher.tried_again == {"a"}
    assert searcher.suggest("c") == Searcher.FINISHED


def test_who_stops_is_not_told_of_and_nothing_new_starts(store: LinkStore, tmp_path: Path) -> None:
    class Source:
        def __getattr__(self, name: str) -> Any:
            pytest.fail(f"Optuna was told: {name}")

    stopping: list[bool] = []
    folder = StudyFolder(tmp_path, "study")
    other = Job(1, None, (bare_run("other", ["four"]),))
    source: Any = Source()
    searcher = JobSearcher([JOB, other], source, folder, 3, {}, Attempts(store, 0), lambda: bool(stopping))
    for trial in "ab":
        searcher.suggest(trial)
    stopping.append(True)
    assert searcher.suggest("c") == Searcher.FINISHED
    searcher.on_trial_complete("a", {"stopped": True})
    searcher.on_trial_complete("b", error=True)
    assert searcher.tried_again == {"a", "b"}
    assert folder.ledger.events() == []


def test_who_saw_the_marker_of_an_earlier_driver_comes_again(store: LinkStore, tmp_path: Path) -> None:
    searcher = JobSearcher([JOB], None, StudyFolder(tmp_path, "study"), 1, {}, Attempts(store, 0))
    searcher.suggest("a")
    searcher.on_trial_complete("a", {"stopped": True})
    assert handed_out(searcher.suggest("b")) == "run"


# ---------------------------------------------------------------- Ray Train's workers


class UnhealthyError(Exception):
    """As Ray Train wraps it."""

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
def test_a_group_that_lost_a_process_is_tried_again(failures: list[Exception]) -> None:
    reason = cause(failures)
    assert isinstance(reason, ProcessDiedError)
    assert str(reason) == DIED


def test_what_the_disk_did_is_named() -> None:
    full, damaged = OSError(28, "No space left on device"), DamagedError("the checksum differs")
    assert cause([full, CLOSED]) is full
    assert cause([damaged, damaged]) is damaged


def test_a_bug_is_not_tried_again() -> None:
    bug = ValueError("two\nlines")
    assert cause([bug]) is bug
    assert not isinstance(cause([bug]), OSError)
