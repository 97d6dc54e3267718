"""The search service without Ray: what is answered to which request; `cl2r/rayrun/serving.py` runs it.

    GET  /             the page (`pages/serve.html`)
    POST /search?top=  the body is an image; the answer its hits
    GET  /image?id=    an image of the gallery, as a small PNG
    GET  /health       model, gallery, versions; 503 until the gallery is open

Answers are JSON, but for the page and the images; of errors too: {"error": "…"}.
"""

import asyncio
import base64
import hashlib
import ipaddress
import json
import logging
import time
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, TypeVar
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response

from cl2r.errors import InputError
from cl2r.files import place
from cl2r.privacy import without_secrets
from cl2r.search.model import Model
from cl2r.search.open_gallery import NewestGallery, OpenGallery, RefusedError

LOG = logging.getLogger(__name__)
Result = TypeVar("Result")
MOST_HITS = 100
MOST_BYTES = 10 * 10**6
SIDE_BY_SIDE = 2
"""Requests of a replica that decode and search at a time: an image of the largest size takes 300 MB."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class ServiceOptions:
    """What a replica has to know besides its model."""

    gallery: str
    host: str
    """Address that is listened at."""
    top: int = 12
    """Hits, where a request does not say how many."""
    most_bytes: int = MOST_BYTES
    """Of an uploaded image."""
    names: tuple[str, ...] = ()
    """By which the service is reached besides its address, e.g. through another web server."""
    refresh: float = 3.0
    """Seconds between two looks for a new commit."""

    def __post_init__(self) -> None:
        if not 1 <= self.top <= MOST_HITS:
            raise InputError(f"--top {self.top}: a number from 1 to {MOST_HITS}")
        if self.most_bytes < 1:
            raise InputError(f"--max-bytes {self.most_bytes}: at least 1")

    @property
    def loopback(self) -> bool:
        """Whether only programs of the same machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def knows(self, name: str) -> bool:
        """Whether a request for `name` may be meant for this service.

        A page elsewhere could have its own name point here, and then read the answers. Whoever listens to a network
        cannot know all names by which it is reached.
        """
        return not self.loopback or name in {self.host, "localhost", "127.0.0.1", "::1", *self.names}


class Service:
    """Answers requests; ready once `open` was called."""

    def __init__(self, options: ServiceOptions) -> None:
        self.options = options
        self.gallery: NewestGallery | None = None
        self._pool = ThreadPoolExecutor(SIDE_BY_SIDE)
        self._routes: dict[str, tuple[str, Callable[[Request], Awaitable[Response]]]] = {
            "/": ("GET", self._page),
            "/search": ("POST", self._search),
            "/image": ("GET", self._image),
            "/health": ("GET", self._health),
        }

    def open(self, model: Model) -> None:
        """Open the gallery for the queries of a model."""
        self.gallery = NewestGallery(place(self.options.gallery), model, self.options.refresh)

    async def __call__(self, request: Request) -> Response:
        """The answer; errors have a line for whoever asks, the rest is for the log."""
        try:
            response = await self._answer(request)
        except RefusedError as refused:
            response = _json({"error": without_secrets(str(refused))}, refused.status)
            response.headers.update(refused.headers)
        except Exception as error:  # the last resort: Serve would log secrets too, and answer in plain text
            LOG.error(without_secrets(traceback.format_exc()))
            away = isinstance(error, OSError)
            line = "the gallery cannot be read now; try again" if away else "an error of the service; its log says more"
            response = _json({"error": line}, 503 if away else 500)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    async def _answer(self, request: Request) -> Response:
        self._refuse_strangers(request)
        path = request.scope["path"]  # `request.url` is made of the Host too
        if path not in self._routes:
            raise RefusedError(404, f"no such path; there are {' '.join(self._routes)}")
        method, answer = self._routes[path]
        if request.method != method and (request.method, method) != ("HEAD", "GET"):
            raise RefusedError(405, f"{path} takes {method} only", Allow=method)
        return await answer(request)

    def _refuse_strangers(self, request: Request) -> None:
        asked = request.headers.get("host", "")
        if not self.options.knows(_name(f"//{asked}")):
            raise RefusedError(403, "the Host of the request is not this service")
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != asked and _name(origin) not in self.options.names:
            raise RefusedError(403, "the request comes from a page of another site")

    async def _aside(self, work: Callable[..., Result], *words: Any) -> Result:
        """In a thread, for others to be answered meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *words)

    async def _opened(self) -> tuple[OpenGallery, dict[str, Any]]:
        if self.gallery is None:
            raise RefusedError(503, "the gallery is being opened; try again", **{"Retry-After": "2"})
        opened = await self._aside(self.gallery)
        return opened, opened.facts | ({"warning": self.gallery.warning} if self.gallery.warning else {})

    async def _page(self, _: Request) -> Response:
        html, policy = page()
        return HTMLResponse(html, headers={"Content-Security-Policy": policy})

    async def _health(self, _: Request) -> Response:
        facts = (await self._opened())[1]
        limits = {"top": self.options.top, "most_hits": MOST_HITS, "most_bytes": self.options.most_bytes}
        return _json({"status": "ready", **facts, **limits})

    async def _image(self, request: Request) -> Response:
        name = request.query_params.get("id")
        if name is None:
            raise RefusedError(400, "say which image: /image?id=…")
        opened, _ = await self._opened()
        content = await self._aside(opened.thumbnail, name)
        return Response(content, media_type="image/png", headers={"Cache-Control": "private, max-age=60"})

    async def _search(self, request: Request) -> Response:
        top = self._top(request.query_params.get("top"))
        if request.headers.get("content-type", "").startswith("multipart/"):
            raise RefusedError(415, "send the image itself as the body, e.g. curl --data-binary @image.jpg")
        content = await self._body(request)
        began = time.perf_counter()
        opened, facts = await self._opened()
        hits = await self._aside(opened.search, content, top)
        return _json({**facts, "top": top, "seconds": round(time.perf_counter() - began, 4), "hits": hits})

    def _top(self, text: str | None) -> int:
        if text is None:
            return self.options.top
        if not (text.isdecimal() and len(text) <= 3 and 1 <= int(text) <= MOST_HITS):
            raise RefusedError(400, f"top is a number from 1 to {MOST_HITS}")
        return int(text)

    async def _body(self, request: Request) -> bytes:
        """Refused as soon as it is too long, not when all of it is here."""
        most = self.options.most_bytes
        refused = RefusedError(413, f"the image is larger than {most / 1e6:g} MB; scale it down")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and (len(declared) > 15 or int(declared) > most):
            raise refused
        content = bytearray()
        try:
            async for part in request.stream():
                content += part
                if len(content) > most:
                    raise refused
        except ClientDisconnect as error:
            raise RefusedError(400, "the upload ended too early") from error
        if not content:
            raise RefusedError(400, "no image in the body of the request")
        return bytes(content)


@cache
def page() -> tuple[str, str]:
    """The page with its style and script in it, and a policy that lets it run these and nothing else."""
    folder = resources.files("cl2r.search").joinpath("pages")
    html, style, script = (folder.joinpath(f"serve.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    allowed = {
        "default-src": "'none'",
        "script-src": _hash_source(script),
        "style-src": _hash_source(style),
        "img-src": "'self' blob: data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    policy = "; ".join(f"{name} {value}" for name, value in allowed.items())
    return html.replace("{{ style }}", style).replace("{{ script }}", script), policy


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _name(address: str) -> str:
    """The host of an address, without its port; empty if there is more to it, or less."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    return "" if parts.path or parts.query or "@" in parts.netloc else parts.hostname or ""


def _json(entries: dict[str, Any], status: int = 200) -> Response:
    """Dates and the like become text."""
    return Response(json.dumps(entries, default=str), status, media_type="application/json")
