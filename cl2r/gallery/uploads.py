"""Uploads to the search service: how large and how slow one may be, and how many may arrive at a time.

Ray Serve hands a request to a replica as soon as its headers are there; the body arrives while the replica waits.
Without these limits a few clients that send nothing would keep everyone else waiting.
"""

import asyncio
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request


@dataclass(frozen=True)
class UploadLimits:
    """What a client has to keep up with; times are seconds."""

    least_rate: float = 1000.0  # bytes per second
    patience: float = 5.0  # how far behind this rate an upload may be
    longest: float = 45.0  # for a whole upload, at whatever rate
    side_by_side: int = 32  # uploads that arrive at a time; one more ends the slowest of them


class Uploads:
    """Reads the bodies of requests. All of them are read in one event loop."""

    def __init__(self, most_bytes: int, limits: UploadLimits | None = None) -> None:
        self.most_bytes, self.limits = most_bytes, limits or UploadLimits()
        self._arriving: list[asyncio.Timeout] = []  # oldest first

    async def read(self, request: Request) -> bytes:
        """Return the body of a request; raise HTTPException as soon as it is too long or too slow.

        An upload ends when its time is up. Each byte that arrives adds the time that it may take at the least rate, and
        never makes it more than `patience`: what was sent quickly does not excuse a pause afterwards.
        """
        refused = HTTPException(413, f"the image is larger than {self.most_bytes / 1e6:g} MB; scale it down")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and (len(declared) > 15 or int(declared) > self.most_bytes):
            raise refused
        content, limits, now = bytearray(), self.limits, asyncio.get_running_loop().time
        last = now() + limits.longest
        limit = asyncio.timeout(min(limits.patience, limits.longest))
        try:
            async with limit:
                self._admit(limit)
                async for part in request.stream():
                    content += part
                    if len(content) > self.most_bytes:
                        raise refused
                    if limit in self._arriving:  # otherwise it has been ended for another
                        until = (limit.when() or 0.0) + len(part) / limits.least_rate
                        limit.reschedule(min(until, now() + limits.patience, last))
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise HTTPException(408, self._why(limit, now() >= last), {"Connection": "close"}) from error
        except ClientDisconnect as error:
            raise HTTPException(400, "the upload ended too early") from error
        finally:
            if limit in self._arriving:
                self._arriving.remove(limit)
        if not content:
            raise HTTPException(400, "no image in the body of the request")
        return bytes(content)

    def _admit(self, limit: asyncio.Timeout) -> None:
        """Count an upload as arriving; end the one whose time is up first, if there are too many."""
        self._arriving.append(limit)
        if len(self._arriving) > self.limits.side_by_side:
            slowest = min(self._arriving, key=lambda each: each.when() or 0.0)
            self._arriving.remove(slowest)
            if not slowest.expired():
                slowest.reschedule(0.0)

    def _why(self, limit: asyncio.Timeout, late: bool) -> str:
        """Return why an upload was ended."""
        if limit not in self._arriving:
            return f"more than {self.limits.side_by_side} uploads at a time, of which this was the slowest; try again"
        if late:
            return f"the upload took longer than {self.limits.longest:g} s; scale the image down"
        return f"the upload is slower than {self.limits.least_rate / 1000:g} kB per second; try again"
