"""Damage to the storage, and a changed clock, between two commands."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cl2r.study.ledger import DIED
from tests.faults import injection
from tests.faults.faulty import Faulty


@pytest.fixture
def half_done(faulty: Faulty, half_storage: Path) -> Faulty:
    """The study with one link and some epochs of the next; its run counts as failed."""
    shutil.copytree(half_storage, faulty.storage)
    return faulty


def flip(faulty: Faulty) -> None:
    injection.flip("", faulty.storage / "links" / faulty.keys()[0])


def tear(faulty: Faulty) -> None:
    injection.tear("", faulty.storage / "links" / faulty.keys()[0])


@pytest.mark.parametrize("damage", [flip, pytest.param(tear, marks=pytest.mark.slow)])
def test_the_newest_link_is_damaged_between_two_commands(half_done: Faulty, damage: Callable[[Faulty], None]) -> None:
    damage(half_done)
    code, said = half_done.run()
    assert code == 0
    link = half_done.storage / "links" / half_done.keys()[0]
    assert f"link {link} is damaged (state.safetensors: the checksum differs); it is set aside" in said
    assert len(list(link.parent.glob(f".aside.{link.name}.*"))) == 1, "kept beside the new one"
    half_done.assert_whole()


def test_the_clock_is_set_back_an_hour_between_two_commands(half_done: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure seems to be in the future; later events still count."""
    before = [event.time_ns for event in half_done.folder.ledger.events()]
    now, now_ns = time.time, time.time_ns
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now() - injection.HOUR)
        patch.setattr(time, "time_ns", lambda: now_ns() - int(injection.HOUR * 1e9))
        injection.lay("batch", "turn_back", task=2, epoch=3)
        code, _ = half_done.run()
        assert "1 of 1 runs finished" in half_done.status()
        assert "interrupted" not in half_done.status()
        assert DIED not in half_done.status()
    assert code == 0
    events = half_done.folder.ledger.events()
    assert [event.time_ns for event in events[: len(before)]] == before
    assert [event.kind for event in events[len(before) :]] == ["opened", "started", "finished", "closed"]
    half_done.assert_whole()
