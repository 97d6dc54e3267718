"""One process at a time, on a disk and in an object store; a dead one's claim is freed."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cl2r import claims
from cl2r.claims import HeldError, Ticket, claimed, is_held
from cl2r.files import Place, listed
from cl2r.objects import ObjectPath

COUNTING = """
import sys, time
from cl2r import claims
from cl2r.files import place, write_file
claims.PAUSE_SECONDS = 0.02
root = place(sys.argv[1])
for _ in range(int(sys.argv[2])):
    with claims.claimed(root / "claim"):
        count = int((root / "count").read_text())
        time.sleep(0.01)
        write_file(root / "count", str(count + 1).encode())
"""
HOLD = """
import sys, time
from cl2r import claims
from cl2r.files import place
with claims.claimed(place(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(claims, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(claims, "DEAD_SECONDS", 0.5)


@pytest.fixture(params=["disk", "objects"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return tmp_path if request.param == "disk" else request.getfixturevalue("remote")


def test_processes_take_turns(root: Place) -> None:
    """Three processes add to a number that none of them may read while another is about to write it."""
    (root / "count").write_bytes(b"0")
    words = [sys.executable, "-c", COUNTING, str(root), "4"]
    adding = [subprocess.Popen(words) for _ in range(3)]
    assert [process.wait(120) for process in adding] == [0, 0, 0]
    assert (root / "count").read_text() == "12"
    assert [path.name for path in listed(root, "*")] == ["count"]


def test_the_claim_of_a_killed_process_is_free_at_once(root: Place) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(root / "claim")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.wait()
    taken: list[bool] = []

    def take() -> None:
        with claimed(root / "claim"):
            taken.append(True)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(30)
    assert taken == [True]


def strange(claim: ObjectPath) -> None:
    """The ticket of a process of another machine."""
    entry = {"who": "process 7 on far", "pid": 7, "kernel": ["another boot", "pid:[1]"], "beats": 1}
    (claim.parent / f"{claim.name}.far.json").write_bytes(json.dumps(entry).encode())


@pytest.mark.usefixtures("hasty")
def test_a_ticket_of_another_machine_counts_until_nobody_touches_it(remote: ObjectPath) -> None:
    strange(remote / "claim")
    began = time.monotonic()
    with claimed(remote / "claim"):
        assert time.monotonic() - began > claims.DEAD_SECONDS
        assert len(remote.below()) == 1
    assert remote.below() == []


@pytest.mark.usefixtures("hasty")
def test_a_living_holder_refuses_who_does_not_wait(remote: ObjectPath) -> None:
    claim = remote / "claim"
    with Ticket(claim).held(wait=False):
        with pytest.raises(HeldError, match=r"^process \d+ on "), Ticket(claim).held(wait=False):
            pass
        assert len(remote.below()) == 1, "who is refused leaves nothing"
        with Ticket(remote / "other").held(wait=False):
            assert len(remote.below()) == 2


@pytest.mark.usefixtures("hasty")
def test_who_is_taken_for_dead_hears_of_it(remote: ObjectPath) -> None:
    lost = threading.Event()
    ticket = Ticket(remote / "claim", on_loss=lost.set)
    with ticket.held(wait=False):
        ticket.path.unlink()
        assert lost.wait(10)
    assert remote.below() == [], "a lost ticket is not put again"


def test_a_look_from_outside(remote: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = remote / "claim"
    with Ticket(claim).held(wait=False):
        assert is_held(claim)
        assert not is_held(remote / "other")
    assert not is_held(claim)
    strange(claim)
    assert is_held(claim)
    monkeypatch.setattr(ObjectPath, "modified", lambda _: time.time() - claims.DEAD_SECONDS - 1)
    assert not is_held(claim)
    assert len(remote.below()) == 1, "looking changes nothing"
