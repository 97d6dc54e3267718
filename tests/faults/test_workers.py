"""Runs with two workers of Ray Train: either of them is killed, or both are asked to stop."""

import math
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import ray

from analysis import load_study
from cl2r.errors import REQUEUE
from cl2r.study.resources import Resources
from studies import ablation
from tests.faults import injection
from tests.faults.fake_nodes import wait_for
from tests.faults.faulty import NAME, RESUMED, Faulty
from tests.support.study_frames import finished_events

pytestmark = pytest.mark.slow
TWO = ("--workers", "2")
TOLERANCE = 0.15
"""Tolerance of an accuracy on 120 pairs after five epochs if batch norm sees other halves of a batch."""


class Reserved(threading.Thread):
    """Records the least that was left of Ray's resources at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.done, self.least = threading.Event(), dict.fromkeys(("CPU", "GPU", "accelerator_type:A100"), math.inf)

    def run(self) -> None:
        while not self.done.wait(0.2):
            left = ray.available_resources()
            self.least = {name: min(least, left.get(name, 0.0)) for name, least in self.least.items()}

    def __enter__(self) -> "Reserved":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.join()


@pytest.fixture(scope="module")
def two_undisturbed(injected_ray: None, preset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The storage of the undisturbed study with two workers.

    Each asks for an A100, in name only: where workers are placed changes no result.
    """
    storage = tmp_path_factory.mktemp("two")
    words = ["--preset", str(preset), "--storage", str(storage), "--name", "calm", "--seeds", "0", "--cells", "cl2r"]
    a100 = Resources(workers=2, gpus_per_worker=1, accelerator="A100", backend="gloo")
    with pytest.MonkeyPatch.context() as patch, Reserved() as reserved:
        patch.setattr(Resources, "from_options", lambda _: a100)
        assert ablation.main(words) == 0
    assert reserved.least == {"GPU": 0.0, "accelerator_type:A100": pytest.approx(0.998), "CPU": 0.0}
    assert list(load_study(storage / "studies" / "calm").tasks["workers"]) == [2, 2]
    return storage


@pytest.fixture
def pair(faulty: Faulty, two_undisturbed: Path) -> Iterator[Faulty]:
    """The study with faults, compared with the undisturbed one of two workers."""
    alone, faulty.undisturbed = faulty.undisturbed, two_undisturbed
    yield faulty
    faulty.undisturbed = alone


def test_workers_are_killed_at_every_point(pair: Faulty) -> None:
    """Either of the two, in the order in which a run reaches the points."""
    injection.lay("checkpoint", epoch=2)
    injection.lay("link")
    injection.lay("between", task=1, rank=1)
    injection.lay("batch", task=2, epoch=2, rank=0)
    injection.lay("batch", task=2, epoch=4, rank=1)
    injection.lay("evaluation", tasks=2)
    code, said = pair.run(*TWO)
    assert injection.left() == []
    assert code == 0
    assert said.count(RESUMED) == 6
    pair.assert_whole()


def test_the_newest_link_is_damaged_while_two_workers_train(pair: Faulty) -> None:
    injection.lay("between", "flip", task=1, rank=0)
    code, said = pair.run(*TWO)
    assert code == 0
    assert "the checksum differs; it resumes" in said
    pair.assert_whole()


def test_sigterm_stops_both_workers(pair: Faulty, tmp_path: Path) -> None:
    injection.lay("batch", "hold", argument=str(pair.marker), task=2, epoch=3, rank=0)
    with pair.driver(tmp_path / "log", *TWO) as driver:
        wait_for(lambda: injection.struck() or driver.poll() is not None, "the third epoch")
        assert pair.end(driver, signal.SIGTERM) == REQUEUE, (tmp_path / "log").read_text()
    assert pair.remembered_epoch(task=2) == 3
    assert pair.folder.ledger.outcomes() == {}
    code, _ = pair.run(*TWO)
    assert code == 0
    pair.assert_whole()


def test_workers_that_always_crash_fail(pair: Faulty) -> None:
    injection.lay("batch", task=1, epoch=2, rank=1, times=9)
    code, _ = pair.run(*TWO, "--retries", "1")
    assert code == 1
    assert injection.struck() == 2
    (event,) = pair.folder.ledger.outcomes().values()
    assert event.read()["reason"] == "its process died"


def test_one_worker_resumes_what_two_began(pair: Faulty, two_undisturbed: Path) -> None:
    """The link that two workers finished is used as it is.

    What one worker trains after it differs by rounding and batch norm, so the matrices agree within a tolerance only.
    """
    injection.lay("batch", task=2, epoch=3, rank=0)
    code, _ = pair.run(*TWO, "--retries", "0")
    assert code == 1
    code, _ = pair.run()
    assert code == 0
    tasks = pd.read_parquet(pair.path / "tasks.parquet").sort_values("task")
    assert list(tasks["workers"]) == [2, 1]
    assert len(finished_events(pair.storage, NAME)) == 1
    ours, theirs = (pd.read_parquet(path / "matrix.parquet") for path in (pair.path, two_undisturbed / "studies/calm"))
    cells = ["pairs", "t", "k"]
    both = ours.merge(theirs, on=cells, suffixes=("", "_two"))
    assert len(both) == len(ours) == len(theirs)
    first = both[both["t"] == 1]
    np.testing.assert_array_equal(first["accuracy"], first["accuracy_two"])
    np.testing.assert_allclose(both["accuracy"], both["accuracy_two"], atol=TOLERANCE)
