"""Tickets: locks in an object store. `tests/contract/test_storage.py` has what locks of both kinds promise."""

import json
import threading
import time

import pytest

from cl2r.storage import claims
from cl2r.storage.claims import Ticket
from cl2r.storage.path import ObjectPath


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make processes count as dead after half a second instead of a minute."""
    monkeypatch.setattr(claims, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(claims, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(claims, "DEAD_SECONDS", 0.5)


def put_foreign_ticket(claim: ObjectPath) -> None:
    """Put the ticket of a process of another machine."""
    entry = {"who": "process 7 on far", "pid": 7, "kernel": ["another boot", "pid:[1]"], "beats": 1}
    (claim.parent / f"{claim.name}.far.json").write_file(json.dumps(entry).encode())


def test_a_ticket_of_another_machine_counts_until_it_is_not_rewritten(remote: ObjectPath) -> None:
    put_foreign_ticket(remote / "claim")
    began = time.monotonic()
    with (remote / "claim").lock():
        assert time.monotonic() - began > claims.DEAD_SECONDS
        assert len(list(remote.walk_files())) == 1
    assert list(remote.walk_files()) == []


def test_a_process_that_is_taken_for_dead_learns_of_it(remote: ObjectPath) -> None:
    lost = threading.Event()
    ticket = Ticket(remote / "claim", on_loss=lost.set)
    with ticket.held(wait=False):
        ticket.path.unlink()
        assert lost.wait(30)
    assert list(remote.walk_files()) == [], "a lost ticket is not put again"


def test_of_many_that_want_a_lock_at_once_one_holds_it_at_a_time(remote: ObjectPath) -> None:
    """Those that see each other do not all step back: they would do so again and again."""
    wanting, inside, most, turns = 8, [0], [0], list[float]()
    at_once, began = threading.Barrier(wanting), time.monotonic()

    def take() -> None:
        at_once.wait()
        with (remote / "claim").lock():
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            turns.append(time.monotonic() - began)
            time.sleep(0.02)
            inside[0] -= 1

    threads = [threading.Thread(target=take) for _ in range(wanting)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(turns) == wanting
    assert most == [1]
    assert list(remote.walk_files()) == []


def test_the_first_by_name_waits_and_the_others_step_back(remote: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "DEAD_SECONDS", 3600.0)
    monkeypatch.setattr(claims, "PAUSE_SECONDS", 0.2)
    put_foreign_ticket(remote / "claim")
    first, last = Ticket(remote / "claim"), Ticket(remote / "claim")
    first.path, last.path = remote / "claim.a.json", remote / "claim.z.json"
    threads = [
        threading.Thread(target=lambda one=one: one.held(wait=True).__enter__(), daemon=True) for one in (first, last)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    while {file.path for file in remote.walk_files()} != {"claim.a.json", "claim.far.json"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (remote / "claim.far.json").unlink()
    threads[0].join(30)
    assert not threads[0].is_alive(), "it holds the lock"
    assert threads[1].is_alive()


def test_a_waiting_process_whose_ticket_was_removed_does_not_hold_the_lock(
    remote: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_foreign_ticket(remote / "claim")
    ticket, pauses = Ticket(remote / "claim"), []
    ticket.path = remote / "claim.a.json"

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        for path in (remote / "claim.a.json", remote / "claim.far.json"):
            path.unlink()

    with monkeypatch.context() as patient:
        patient.setattr(claims.time, "sleep", sleep)
        ticket._acquire(wait=True)
    assert len(pauses) == 1
    assert [file.path for file in remote.walk_files()] == ["claim.a.json"], "it has put its ticket again"


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_a_ticket_that_does_not_parse_counts_until_it_is_old(
    remote: ObjectPath, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    (remote / "claim.x.json").write_file(content)
    with monkeypatch.context() as patient:
        patient.setattr(claims, "DEAD_SECONDS", 3600.0)
        assert (remote / "claim").holder() == str(remote / "claim.x.json")
    with (remote / "claim").lock():
        assert len(list(remote.walk_files())) == 1


def test_the_holder_of_an_old_ticket_is_not_named(remote: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    put_foreign_ticket(remote / "claim")
    monkeypatch.setattr(claims, "DEAD_SECONDS", 3600.0)
    assert (remote / "claim").holder() == "process 7 on far"
    assert (remote / "other").holder() is None
    info = ObjectPath.file_info
    monkeypatch.setattr(
        ObjectPath, "file_info", lambda path: info(path)._replace(mtime_ns=time.time_ns() - 3601 * 10**9)
    )
    assert (remote / "claim").holder() is None
