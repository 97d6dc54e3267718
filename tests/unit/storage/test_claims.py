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
