"""How many trials run at a time in a cluster, and what the watchers of room and head report. No Ray is started."""

import socket
import threading
from collections.abc import Sequence

import pytest

from cl2r.errors import REQUEUE, InputError
from cl2r.rayrun import cluster
from cl2r.rayrun.cluster import RAY_HEAD_TIMEOUT, HeadWatch, RoomWatcher, _concurrency
from cl2r.study.resources import Node, Resources

HEAD = {"CPU": 0.0, "node:__internal_head__": 1.0}
A100 = {"CPU": 8.0, "GPU": 4.0, "accelerator_type:A100": 1.0}
H100 = {"CPU": 8.0, "GPU": 4.0, "accelerator_type:H100": 1.0}


def joined(resources: Resources, nodes: Sequence[Node], monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Trials at a time in a cluster that was joined, and the lines that were said."""
    said: list[str] = []
    monkeypatch.setattr(cluster, "alive_nodes", lambda: nodes)
    watcher = RoomWatcher(resources, said.append)
    try:
        return _concurrency(resources, nodes, False, watcher), said
    finally:
        watcher.stop()


@pytest.mark.parametrize(
    ("resources", "trials"),
    [
        (Resources(gpus_per_worker=1, accelerator="A100"), 8),
        (Resources(gpus_per_worker=1), 12),
        (Resources(workers=4, gpus_per_worker=1, accelerator="A100"), 2),
        (Resources(workers=3, gpus_per_worker=1, accelerator="A100"), 2),
        (Resources(cpus_per_worker=3, gpus_per_worker=1, accelerator="A100"), 4),
        (Resources(gpus_per_worker=0.1, accelerator="A100"), 16),
        (Resources(gpus_per_worker=1, accelerator="A100", max_concurrent=20), 20),
        (Resources(cpus_per_worker=8), 3),
    ],
)
def test_only_suitable_nodes_count(resources: Resources, trials: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert joined(resources, [HEAD, A100, A100, H100], monkeypatch) == (trials, [])


def test_a_cluster_that_is_still_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    trials, (note,) = joined(Resources(gpus_per_worker=1), [HEAD], monkeypatch)
    assert trials == 1
    assert "--max-concurrent" in note
    assert joined(Resources(gpus_per_worker=1, max_concurrent=8), [HEAD], monkeypatch) == (8, [])


def test_resources_that_a_machine_does_not_have_are_refused() -> None:
    wanted = Resources(workers=2, gpus_per_worker=4, accelerator="A100")
    with pytest.raises(InputError) as refused:
        _concurrency(wanted, [A100], True, RoomWatcher(wanted, pytest.fail))
    assert "8 CPU, 4 GPU, accelerator A100" in str(refused.value)
    assert "2 workers of 1 CPU, 4 GPU, accelerator A100" in str(refused.value)
    assert _concurrency(Resources(max_concurrent=20), [A100], True, RoomWatcher(wanted, pytest.fail)) == 8


def test_warnings_end_when_a_suitable_node_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two checks find no suitable node, the third does."""
    seen, looked = iter([[HEAD, H100], [HEAD, H100], [HEAD, A100]]), threading.Event()

    def alive_nodes() -> list[Node]:
        found = next(seen, None)
        if found is None:
            looked.set()
        return found or [A100]

    monkeypatch.setattr(cluster, "alive_nodes", alive_nodes)
    monkeypatch.setattr(cluster, "FIRST_WARNING_S", 0.01)
    said: list[str] = []
    watcher = RoomWatcher(Resources(gpus_per_worker=1, accelerator="A100"), said.append)
    watcher.start()
    assert looked.wait(30)
    watcher.stop()
    assert len(said) == 2
    assert "1 node with 0 CPU; 1 node with 8 CPU, 4 GPU, accelerator H100" in said[0]


def test_a_head_that_is_gone_ends_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RAY_HEAD_TIMEOUT, "0.05")
    monkeypatch.setattr(cluster, "HEAD_CHECK_S", 0.02)
    said: list[str] = []
    codes: list[int] = []
    head = socket.create_server(("127.0.0.1", 0))
    watch = HeadWatch(said.append, f"127.0.0.1:{head.getsockname()[1]}", codes.append)
    assert watch.answers()
    head.close()
    assert not watch.answers()
    watch.run()
    assert len(said) == 2
    assert all(watch.address in line for line in said)
    assert codes == [REQUEUE]


def test_a_head_that_comes_back_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RAY_HEAD_TIMEOUT, "0.05")
    monkeypatch.setattr(cluster, "HEAD_CHECK_S", 0.02)
    said: list[str] = []
    answers = iter([True, False, True, False, True])

    class Unsteady(HeadWatch):
        def answers(self) -> bool:
            answer = next(answers, None)
            if answer is None:
                self.done.set()
            return bool(answer is None or answer)

    Unsteady(said.append, "head:1", lambda code: pytest.fail("too early")).run()
    assert len(said) == 2


@pytest.mark.parametrize(("own", "found"), [(None, "0"), ("5", "5")])
def test_workers_are_not_nice_unless_the_user_says_so(
    own: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Ray's default, 15, trials stand still beside other programs that use all cores."""
    monkeypatch.setattr(cluster.os, "environ", {"RAY_worker_niceness": own} if own else {})
    cluster.set_environment(verbose=True)
    assert cluster.os.environ["RAY_worker_niceness"] == found
