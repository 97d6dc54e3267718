"""Slow uploads to the search service, on a clock that jumps to the next event instead of waiting."""

import asyncio
import contextlib
import json
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from cl2r.gallery.model import Model
from cl2r.gallery.uploads import Limit, UploadLimits, Uploads
from tests.support.galleries import encoded
from tests.support.services import Message, Pictures, opened

MOST = 10**6
LIMITS = UploadLimits(least_rate=1000.0, patience=5.0, side_by_side=3, less_patience=1.0, longest=45.0)
Result = TypeVar("Result")
Receive = Callable[[], Awaitable[Message]]


class Jumping(asyncio.SelectorEventLoop):
    """An event loop whose clock shows the time of the next event as soon as there is nothing else to do."""

    def __init__(self) -> None:
        self.seconds = 0.0
        selector = selectors.DefaultSelector()
        select = selector.select

        def jump(timeout: float | None = None) -> Any:
            self.seconds += timeout or 0.0
            return select(0 if timeout else timeout)

        selector.select = jump  # type: ignore[method-assign]
        super().__init__(selector)

    def time(self) -> float:
        return self.seconds


def jumping(work: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=Jumping) as runner:
        return runner.run(work)


def request(receive: Receive) -> Request:
    scope = {"type": "http", "method": "POST", "path": "/search", "query_string": b""}
    return Request({**scope, "headers": [(b"host", b"127.0.0.1")]}, receive)


def drip(size: int, pause: float, count: int = 10**9, first: int = 0) -> Receive:
    """Return a body: `first` bytes at once, then `count` times `size` bytes after a pause each."""
    sent = -1

    async def receive() -> Message:
        nonlocal sent
        sent += 1
        if sent:
            await asyncio.sleep(pause)
        body = b"x" * (size if sent else first)
        return {"type": "http.request", "body": body, "more_body": sent < count}

    return receive


async def silent() -> Message:
    """Send nothing after the headers, and never end."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError


async def outcome(uploads: Uploads, receive: Receive) -> tuple[float, int | str]:
    """Return when an upload was over, and its length or why it was ended."""
    now = asyncio.get_running_loop().time
    try:
        content = await uploads.read(request(receive))
    except HTTPException as refused:
        return now(), f"{refused.status_code}: {refused.detail}"
    return now(), len(content)


@pytest.mark.parametrize(
    ("body", "seconds", "reason"),
    [
        (silent, 5.0, "408: the upload is slower than 1 kB"),
        (drip(1, 1.0), 5.0, "408: the upload is slower than 1 kB"),
        (drip(490, 1.0), 8.92, "408: the upload is slower than 1 kB"),
        (drip(1000, 4.0), 6.0, "408: the upload is slower than 1 kB"),
        (drip(1, 9.0, first=900_000), 5.0, "408: the upload is slower than 1 kB"),
        (drip(1100, 1.0), 45.0, "408: the upload took longer than 45 s"),
    ],
    ids=["nothing", "a byte per second", "half the rate", "pauses", "a pause after a quick start", "no end"],
)
def test_an_upload_ends_when_it_is_too_slow(body: Receive, seconds: float, reason: str) -> None:
    when, why = jumping(outcome(Uploads(MOST, LIMITS), body))
    assert when == pytest.approx(seconds, abs=0.01)
    assert reason in str(why)


@pytest.mark.parametrize(
    ("body", "seconds", "length"),
    [
        (drip(1100, 1.0, count=40), 40.0, 44_000),
        (drip(900, 1.0, count=40), 40.0, 36_000),
        (drip(900_000, 4.9, count=1), 4.9, 900_000),
    ],
    ids=["fast enough", "a little behind for a short time", "all of it late"],
)
def test_an_upload_that_keeps_up_is_read_to_its_end(body: Receive, seconds: float, length: int) -> None:
    assert jumping(outcome(Uploads(MOST, LIMITS), body)) == (pytest.approx(seconds), length)


def test_one_upload_too_many_ends_the_slowest() -> None:
    async def scene() -> list[tuple[float, int | str]]:
        uploads, bodies = Uploads(MOST, LIMITS), [drip(2000, 1.0, count=20), silent, drip(500, 0.5), silent]
        tasks = []
        for body in bodies:  # at 0, 1.1, 2.2 and 3.3 s
            tasks.append(asyncio.create_task(outcome(uploads, body)))
            await asyncio.sleep(1.1)
        return await asyncio.gather(*tasks[:2], tasks[3])

    (first, length), (second, crowded), (fourth, slow) = jumping(scene())
    assert (first, length) == (pytest.approx(20.0), 40_000), "older than the others, but fast"
    assert second == pytest.approx(3.3), "when the fourth came"
    assert "408: more than 3 uploads" in str(crowded)
    assert fourth == pytest.approx(8.3), "it had its own five seconds"
    assert "408: the upload is slower than 1 kB" in str(slow)


def test_many_uploads_at_a_time_are_read_if_none_is_slow() -> None:
    async def scene() -> list[tuple[float, int | str]]:
        uploads = Uploads(MOST, LIMITS)
        return await asyncio.gather(*(outcome(uploads, drip(2000, 0.9, count=10)) for _ in range(100)))

    assert jumping(scene()) == [(pytest.approx(9.0), 20_000)] * 100


def test_many_uploads_at_a_time_may_be_a_second_behind() -> None:
    async def scene() -> list[tuple[float, int | str]]:
        uploads = Uploads(MOST, LIMITS)
        return await asyncio.gather(*(outcome(uploads, silent) for _ in range(10)))

    ends = [when for when, _ in jumping(scene())]
    assert ends == pytest.approx([1.0] * 7 + [5.0] * 3)


def test_a_deadline_that_is_moved_to_the_past_twice_ends_once() -> None:
    errors = list[dict[str, Any]]()

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        limit = Limit(loop.time() + 1)
        async with limit.timeout:
            loop.call_later(1, limit._end)  # in the same turn of the loop as its own timer
            await asyncio.sleep(10)

    with pytest.raises(TimeoutError):
        jumping(scene())
    assert errors == []


@pytest.mark.parametrize(("count", "held"), [(1, 5.2), (10, 1.2)])
def test_uploads_that_arrive_while_the_service_is_busy_are_read(count: int, held: float) -> None:
    """Nothing is read while the event loop is held; its timers are the first to notice that it is free again."""

    async def scene() -> list[tuple[float, int | str]]:
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        assert isinstance(loop, Jumping)

        async def late() -> Message:
            await arrived.wait()
            return {"type": "http.request", "body": b"x" * 5000, "more_body": False}

        uploads = Uploads(MOST, LIMITS)
        tasks = [asyncio.create_task(outcome(uploads, late)) for _ in range(count)]
        silence = asyncio.create_task(outcome(uploads, silent))
        await asyncio.sleep(0)
        loop.seconds += held
        loop.call_soon(loop.call_soon, arrived.set)
        return [*await asyncio.gather(*tasks), await silence]

    *read, (ended, _) = jumping(scene())
    assert read == [(pytest.approx(held), 5000)] * count
    assert ended == pytest.approx(5.4 if held > 5 else 5.0), "it has the delay once"


def test_uploads_that_are_over_do_not_count() -> None:
    """Whether they were complete, too large, too slow or given up by the client."""

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def scene() -> float:
        uploads = Uploads(MOST, LIMITS)
        for body in (drip(9, 0.1, count=1), drip(MOST, 0.1), silent, gone) * 2:
            with contextlib.suppress(HTTPException):
                await uploads.read(request(body))
        cancelled = asyncio.create_task(uploads.read(request(silent)))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        began = asyncio.get_running_loop().time()
        ends = await asyncio.gather(*(outcome(uploads, silent) for _ in range(3)))
        return min(when for when, _ in ends) - began

    assert jumping(scene()) == pytest.approx(5.0), "all three had their time"


def test_forty_silent_uploads_do_not_hold_up_a_search(shared: Path, models: list[Model], pictures: Pictures) -> None:
    """The clock is a real one here, and the limits of time are far away."""
    service = opened(shared, models[2])
    service.uploads = Uploads(MOST, replace(UploadLimits(), patience=1e9, less_patience=0.0, longest=1e9))

    async def whole() -> Message:
        return {"type": "http.request", "body": encoded(pictures[0][1]), "more_body": False}

    async def scene() -> None:
        slow = [asyncio.create_task(service(request(silent))) for _ in range(40)]
        await asyncio.sleep(0)  # they are waiting for their bodies now
        good = await service(request(whole))
        assert good.status_code == 200
        ended = [task.result() for task in slow if task.done()]
        assert len(ended) == 40 + 1 - service.uploads.limits.side_by_side
        for answer in ended:
            assert answer.status_code == 408
            assert "uploads at a time" in json.loads(answer.body)["error"]
            assert (answer.headers["connection"], answer.headers["cache-control"]) == ("close", "no-store")
        for task in slow:
            task.cancel()

    asyncio.run(scene())
