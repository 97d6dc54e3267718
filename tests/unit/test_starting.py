"""The first trials wait for the processes beside them, but not for ever."""

import threading
import time
from pathlib import Path

from cl2r.rayrun.starting import Starting
from cl2r.stopping import never

LONG = 60.0


def test_it_waits_until_all_have_begun(tmp_path: Path) -> None:
    starting = Starting(tmp_path, interval=0.01)
    starting.hand_out("1")
    starting.hand_out("2")
    starting.begun("1")
    waiting = threading.Thread(target=starting.wait, args=(time.monotonic() + LONG, never))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    starting.begun("2")
    waiting.join(LONG / 2)
    assert not waiting.is_alive()


def test_nobody_is_waited_for_when_the_time_is_over_or_all_shall_stop(tmp_path: Path) -> None:
    starting = Starting(tmp_path)
    starting.hand_out("1")
    began = time.monotonic()
    starting.wait(began - 1, never)
    starting.wait(began + LONG, lambda: True)
    assert time.monotonic() < began + LONG


def test_alone_there_is_nobody_to_wait_for(tmp_path: Path) -> None:
    starting = Starting(tmp_path)
    starting.begun("1")  # its file was lost: no reason to fail
    began = time.monotonic()
    starting.wait(began + LONG, never)
    assert time.monotonic() < began + LONG
