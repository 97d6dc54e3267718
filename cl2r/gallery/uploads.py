"""Uploads to the search service: how large and how slow one may be, and how many may arrive at a time.

Ray Serve hands a request to a replica as soon as its headers are there; the body arrives while the replica waits.
Without these limits a few clients that send nothing would block all others.
"""

import asyncio
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

LATE = 0.1  # seconds of delay that are the service's own fault


@dataclass(frozen=True)
class UploadLimits:
    """What a client has to keep up with; times are in seconds."""

    least_rate: float = 1000.0  # bytes per second
    patience: float = 5.0  # how far behind this rate an upload may be
    side_by_side: int = 32  # uploads with this patience; for each further one, the slowest gets `less_patience`
    less_patience: float = 1.0
    longest: float = 45.0  # for a whole upload, at whatever rate


class Limit:
    """A deadline that can be moved; it ends the block of `timeout`.

    If the service itself was late because it was busy, data may have arrived in time that it has not read yet. It then
    gets, once, as long to read as it was late.
    """

    def __init__(self, when: float) -> None:
        self.timeout, self.when = asyncio.timeout(None), when
        self._loop, self._forgiven = asyncio.get_running_loop(), False
        self._timer = self._loop.call_at(when, self._end)

    def move(self, when: float) -> None:
        """Move the deadline."""
        self.cancel()
        self.when = when
        self._timer = self._loop.call_at(when, self._end)

    def cancel(self) -> None:
        """Remove the deadline."""
        self._timer.cancel()

    def _end(self) -> None:
        late = self._loop.time() - self.when
        if late > LATE and not self._forgiven:
            self._forgiven = True
            self.move(self._loop.time() + late)
        elif not self.timeout.expired():
            self.timeout.reschedule(self._loop.time())


class Uploads:
    """Reads the bodies of requests. All of them are read in one event loop."""

    def __init__(self, most_bytes: int, limits: UploadLimits | None = None) -> None:
        self.most_bytes, self.limits = most_bytes, limits or UploadLimits()
        self._patient: list[Limit] = []  # uploads with full patience, oldest first

    async def read(self, request: Request) -> bytes:
        """Return the body of a request; raise HTTPException as soon as it is too long or too slow.

        An upload ends when its time is up. Each byte that arrives adds the time that it may take at the least rate, but
        never leaves more than the patience: what was sent quickly does not excuse a pause.
        """
        refused = HTTPException(413, f"the image is larger than {self.most_bytes / 1e6:g} MB; scale it down")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and (len(declared) > 15 or int(declared) > self.most_bytes):
            raise refused
        content, limits, now = bytearray(), self.limits, asyncio.get_running_loop().time
        last = now() + limits.longest
        limit = Limit(now() + min(limits.patience, limits.longest))
        try:
            async with limit.timeout:
                self._admit(limit)
                async for part in request.stream():
                    content += part
                    if len(content) > self.most_bytes:
                        raise refused
                    until = limit.when + len(part) / limits.least_rate
                    patience = limits.patience if limit in self._patient else limits.less_patience
                    limit.move(min(until, now() + patience, last))
        except TimeoutError as error:
            if not limit.timeout.expired():
                raise
            why = f"the upload is slower than {limits.least_rate / 1000:g} kB per second; try again"
            if now() >= last:
                why = f"the upload took longer than {limits.longest:g} s; scale the image down"
            elif limit not in self._patient:
                why = f"more than {limits.side_by_side} uploads at a time, and this is one of the slowest; try again"
            raise HTTPException(408, why, {"Connection": "close"}) from error
        except ClientDisconnect as error:
            raise HTTPException(400, "the upload ended too early") from error
        finally:
            limit.cancel()
            if limit in self._patient:
                self._patient.remove(limit)
        if not content:
            raise HTTPException(400, "no image in the body of the request")
        return bytes(content)

    def _admit(self, limit: Limit) -> None:
        """Grant an upload full patience; if too many have it, reduce that of the one nearest to its deadline."""
        self._patient.append(limit)
        if len(self._patient) > self.limits.side_by_side:
            slowest = min(self._patient, key=lambda each: each.when)
            self._patient.remove(slowest)
            if not slowest.timeout.expired():
                less = slowest.when - self.limits.patience + self.limits.less_patience
                slowest.move(max(less, asyncio.get_running_loop().time()))
