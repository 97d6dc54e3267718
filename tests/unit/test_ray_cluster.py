"""How many trials run side by side in a cluster, and what is said while there is no room for any."""

import threading
from collections.abc import Sequence

import pytest

from cl2r.errors import InputError
from cl2r.rayrun import cluster
from cl2r.rayrun.cluster import Complaints, _concurrency
from cl2r.rayrun.resources import Node, Resources

HEAD = {"CPU": 0.0, "node:__internal_head__": 1.0}
A100 = {"CPU": 8.0, "GPU": 4.0, "accelerator_type:A100": 1.0}
H100 = {"CPU": 8.0, "GPU": 4.0, "accelerator_type:H100": 1.0}


def joined(resources: Resources, nodes: Sequence[Node], monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Trials at once, and what was said, in a cluster that was joined."""
    said: list[str] = []
    monkeypatch.setattr(cluster, "alive_nodes", lambda: nodes)
    complaints = Complaints(resources, said.append)
    try:
        return _concurrency(resources, nodes, False, complaints), said
    finally:
        complaints.stop()


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
    wish = Resources(gpus_per_worker=1, accelerator="A100")
    note = "note: the cluster has no room for a trial now: it grows to 1; --max-concurrent N: to N"
    assert joined(wish, [HEAD], monkeypatch) == (1, [note])
    asked = Resources(gpus_per_worker=1, accelerator="A100", max_concurrent=8)
    assert joined(asked, [HEAD], monkeypatch) == (8, [])


def test_what_a_machine_cannot_take_is_refused() -> None:
    wish = Resources(workers=2, gpus_per_worker=4, accelerator="A100")
    with pytest.raises(InputError) as refused:
        _concurrency(wish, [A100], True, Complaints(wish, pytest.fail))
    assert str(refused.value) == (
        "this machine (1 node with 8 CPU, 4 GPU, accelerator A100) has no room for "
        "2 workers of 1 CPU, 4 GPU, accelerator A100 each"
    )
    assert _concurrency(Resources(max_concurrent=20), [A100], True, Complaints(wish, pytest.fail)) == 8


def test_complaints_end_when_a_node_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two looks at nodes that will not do, then one at a node that does."""
    seen, looked = iter([[HEAD, H100], [HEAD, H100], [HEAD, A100]]), threading.Event()

    def alive_nodes() -> list[Node]:
        found = next(seen, None)
        if found is None:
            looked.set()
        return found or [A100]

    monkeypatch.setattr(cluster, "alive_nodes", alive_nodes)
    monkeypatch.setattr(cluster, "FIRST_COMPLAINT_SECONDS", 0.01)
    said: list[str] = []
    complaints = Complaints(Resources(gpus_per_worker=1, accelerator="A100"), said.append)
    complaints.start()
    assert looked.wait(30)
    complaints.stop()
    line = "no room for a trial (a worker of 1 CPU, 1 GPU, accelerator A100) in the cluster: "
    assert said == [f"{line}1 node with 0 CPU; 1 node with 8 CPU, 4 GPU, accelerator H100"] * 2
