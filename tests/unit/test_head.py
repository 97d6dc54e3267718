"""A driver whose head does not answer. No Ray is started; the head is a socket."""

import socket

import pytest

from cl2r.errors import REQUEUE
from cl2r.rayrun import head
from cl2r.rayrun.head import HeadWatch


@pytest.fixture
def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def address(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_head_that_is_gone_ends_the_driver(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two looks find it, three do not; Ray would have waited for four."""
    monkeypatch.setenv(head.RAY_WAITS, "0.05")
    said: list[str] = []
    codes: list[int] = []
    watch = HeadWatch(said.append, address(listening), 0.02, codes.append)
    assert watch.answers()
    listening.close()
    assert not watch.answers()
    watch.run()
    where = f"the head of the Ray cluster, {watch.address},"
    assert said == [f"{where} does not answer", f"{where} is gone; the same command goes on with another"]
    assert codes == [REQUEUE]


def test_a_head_that_comes_back_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(head.RAY_WAITS, "0.05")
    said: list[str] = []
    answers = iter([True, False, True, False, True])

    class Moody(HeadWatch):
        def answers(self) -> bool:
            answer = next(answers, None)
            if answer is None:
                self.done.set()
            return bool(answer is None or answer)

    Moody(said.append, "head:1", 0.02, lambda code: pytest.fail("too early")).run()
    assert len(said) == 2


def test_ray_waits_longer_than_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(head.RAY_WAITS, raising=False)
    assert head.LOOK_SECONDS < head.patience() < 60
