"""The search service without Ray: which request gets which answer. `cl2r/rayrun/serve.py` runs it.

    GET  /                  the page (`pages/serve.html`)
    POST /search?top=&old=  the body is an image; the answer is its hits
    GET  /search?id=        the same with an image of the gallery as query, which is not among its own hits
    GET  /image?id=         an image of the gallery, as a small PNG
    GET  /examples          images of the gallery to try, of different labels
    GET  /upgrade           whether the upgrade from the old model is safe
    GET  /health            models, gallery, versions; 503 until the gallery is open

All answers except the page and images are JSON, including errors: {"error": "…"}. An upload that is larger than 10 MB
ends with 413; one that falls 5 s behind 1 kB/s, or is not complete after 45 s, with 408. While more than 32 arrive at a
replica, the slowest end when they are 1 s behind (`uploads.py`).

    /health    status, and model, task, items, commit, versions [{model, task, items}], top, most_hits, most_bytes;
               old: {model, task, items} of the older model and the images it searches, or {why} there is none;
               warning, if the newest commit cannot be opened
    /search    the same without status and limits, and top, seconds, hits [{rank, score, id, label, model, task,
               metadata, image}]; query: {id, label} if an image of the gallery was asked for; with old=1 the
               entry `old` has hits of its own: by the older model, among the images that it or a model before it
               indexed
    /examples  examples: [{id, label, image}]
    /upgrade   commit, and status: known, with the entries of `cl2r upgrade-check --json` (`upgrade.Answer`) and saved,
               which is true if they were not measured by the service; measuring; or unknown, with why
"""

import asyncio
import base64
import hashlib
import ipaddress
import json
import logging
import math
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib import resources
from pathlib import PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import numpy as np
import pandas as pd
from jinja2 import Template
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Match, Route

from cl2r.data.images import FORMATS
from cl2r.errors import InputError
from cl2r.gallery.gallery import Gallery, commit_number, newest_commit
from cl2r.gallery.images import decode, decode_one, thumbnail
from cl2r.gallery.model import Images, Model
from cl2r.gallery.older import Older
from cl2r.gallery.search import Hit, Searcher
from cl2r.gallery.upgrade import PAIRS, TOLERANCE, Answer, UpgradeCheck, draw_pairs
from cl2r.gallery.uploads import Uploads
from cl2r.runtime.logs import without_secrets
from cl2r.storage.path import StoragePath, at

LOG = logging.getLogger(__name__)
Result = TypeVar("Result")
THUMBNAIL = 256  # longer side of the gallery images that are sent, in pixels
MOST_HITS = 100
EXAMPLES = 8
GONE = "the image is no longer there, or no longer readable"
MOST_BYTES = 10 * 10**6
SIDE_BY_SIDE = 2  # requests that one replica decodes and searches at a time: the largest image takes 300 MB
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class OpenGallery:
    """One commit of a gallery, opened for the queries of a model, and for those of an older one beside it."""

    def __init__(self, root: StoragePath, model: Model, old: Model | None = None, why: str = "") -> None:
        self.searcher = Searcher(Gallery(root), model)
        self.commit = self.searcher.gallery.commit
        self.old, self.why = None, why
        try:
            self.old = self.searcher.earlier(old) if old else None
        except InputError as error:  # its images have been indexed again since
            self.why = str(error).replace(str(root), root.name)
        self._rows = pd.Index(self.searcher.items["id"].astype(object))

    def search(self, content: bytes, top: int, both: bool) -> dict[str, Any]:
        """Return the hits of an encoded image, with `both` by both models."""
        try:
            images = decode_one(content, "the image", self.searcher.model.card)
        except InputError as error:
            if error.__cause__ is None or isinstance(error.__cause__, Image.DecompressionBombError):
                raise HTTPException(422, str(error)) from error  # an image, but too large or too deep
            raise HTTPException(415, f"not a readable image; send one of {', '.join(FORMATS)}") from error
        return self._found(images, top, both)

    def search_like(self, name: str, top: int, both: bool) -> dict[str, Any]:
        """Return the hits of an image of the gallery except itself, with `both` by both models."""
        item, _ = self._item(name)
        images, bad = decode(item.to_frame().T, self.searcher.model.card)
        if bad:
            raise HTTPException(404, GONE)
        return {"query": {"id": name, "label": str(item["label"])}, **self._found(images, top, both, name)}

    def _found(self, images: Images, top: int, both: bool, without: str | None = None) -> dict[str, Any]:
        """Return the hits of one image that have another id than `without`."""

        def hits(searcher: Searcher) -> list[dict[str, Any]]:
            found = searcher.search(images, top + (without is not None))[0]
            others = [hit for hit in found if hit.id != without][:top]
            return [_public(replace(hit, rank=rank)) for rank, hit in enumerate(others, 1)]

        found = {"hits": hits(self.searcher)}
        if both and self.old:
            return {**found, "old": {**self.facts["old"], "hits": hits(self.old)}}
        return found

    def thumbnail(self, name: str) -> bytes:
        """Return an image of the gallery as PNG. Whatever its file contains, only pixels leave this function."""
        try:
            return thumbnail(self._item(name)[1], THUMBNAIL)
        except InputError as error:
            raise HTTPException(404, GONE) from error

    def _item(self, name: str) -> tuple[pd.Series, StoragePath]:
        """Return the row of an image of the gallery, and its file."""
        row = int(self._rows.get_indexer_for([name])[0])
        if row < 0:
            raise HTTPException(404, "no image of the gallery has this id")
        item = self.searcher.items.iloc[row]
        source, path = str(item["source"]), str(item["path"])
        parts = PurePosixPath(path)
        if parts.is_absolute() or ".." in parts.parts:
            raise HTTPException(404, "the gallery places the image outside its source")
        return item, at(source) / path

    @cached_property
    def examples(self) -> list[dict[str, str]]:
        """Up to EXAMPLES images to try, spread over the labels in alphabetical order."""
        items = self.searcher.items[["id", "label"]]
        each = -(-EXAMPLES // items["label"].nunique())
        few = items.groupby("label", sort=False).head(each).sort_values(["label", "id"]).astype(str)
        places = np.unique(np.linspace(0, len(few) - 1, EXAMPLES).round().astype(int))
        chosen = few.iloc[places].to_dict("records")
        return [{"id": one["id"], "label": one["label"], "image": _address(one["id"])} for one in chosen]

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What the gallery holds, and the model that searches it."""
        card, commit = self.searcher.model.card, self.commit
        items = {key: sum(shard.items for shard in commit.of(key)) for key in commit.versions}
        versions = [{"model": one.name, "task": one.task, "items": items[one.key]} for one in commit.by_task]
        facts = {"model": card.name, "task": card.task, "items": commit.items, "commit": commit.number}
        old: dict[str, Any] = {"why": self.why}
        if self.old:
            older = self.old.model.card
            old = {"model": older.name, "task": older.task, "items": self.old.gallery.commit.items}
        return {**facts, "versions": versions, "old": old}


def _address(name: str) -> str:
    """Return where the page finds an image of the gallery."""
    return f"image?id={quote(name, safe='')}"


def _public(hit: Hit) -> dict[str, Any]:
    """Return what clients may know about a hit, which is not where its file is."""
    known = {name: getattr(hit, name) for name in ("rank", "score", "id", "label", "model", "task")}
    absent = [key for key, value in hit.metadata.items() if isinstance(value, float) and not math.isfinite(value)]
    metadata = hit.metadata | dict.fromkeys(absent)
    return {**known, "metadata": metadata, "image": _address(hit.id)}


@dataclass(frozen=True)
class ServiceOptions:
    """What a replica has to know besides its model."""

    gallery: str
    host: str  # address to listen at
    top: int = 12  # hits per search, if a request does not say how many
    most_bytes: int = MOST_BYTES  # largest image that may be uploaded
    names: tuple[str, ...] = ()  # further names of the service, e.g. behind another web server
    refresh: float = 3.0  # seconds between two looks for a new commit

    def __post_init__(self) -> None:
        if not 1 <= self.top <= MOST_HITS:
            raise InputError(f"--top {self.top}: give a number from 1 to {MOST_HITS}")
        if self.most_bytes < 1:
            raise InputError(f"--max-bytes {self.most_bytes}: give at least 1")

    @property
    def loopback(self) -> bool:
        """Whether only programs on the same machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def knows(self, name: str) -> bool:
        """Return whether a request to host `name` may be meant for this service.

        A page elsewhere could make its own name point here and then read the answers. A service that listens to a
        network cannot know all of its names, so there every name is accepted.
        """
        return not self.loopback or name in {self.host, "localhost", "127.0.0.1", "::1", *self.names}


class NewestGallery:
    """The newest commit of a gallery. One caller looks for a new commit every `refresh` seconds; no other waits."""

    def __init__(self, options: ServiceOptions, model: Model, old: Model | None, why: str) -> None:
        self.root, self.refresh = at(options.gallery), options.refresh
        self.warning = ""  # why the newest commit cannot be used; meanwhile the one before it answers
        self._open = partial(OpenGallery, self.root, model, old, why)
        self._opened, self._lock = self._open(), threading.Lock()
        self._next = time.monotonic() + self.refresh

    def __call__(self) -> OpenGallery:
        """Return the newest commit that can be opened."""
        if time.monotonic() >= self._next and self._lock.acquire(blocking=False):
            try:
                if commit_number(newest_commit(self.root)) != self._opened.commit.number:
                    self._opened = self._open()
                self.warning = ""
            except (InputError, OSError) as error:
                why = without_secrets(str(error)).replace(str(self.root), self.root.name)
                self.warning = f"commit {self._opened.commit.number} answers; the newest cannot be opened ({why})"
                LOG.warning(self.warning)
            finally:
                self._next = time.monotonic() + self.refresh
                self._lock.release()
        return self._opened


class Service:
    """Answers requests; ready after `open` was called."""

    def __init__(self, options: ServiceOptions) -> None:
        self.options = options
        self.gallery: NewestGallery | None = None
        self.uploads = Uploads(options.most_bytes)
        self._saved: Answer | None = None
        self._measured: tuple[int, dict[str, Any]] = (-1, {})  # number of a commit, and what was measured on it
        self._measuring = threading.Lock()
        self._pool = ThreadPoolExecutor(SIDE_BY_SIDE)
        self._routes = [
            Route("/", self._page),
            Route("/search", self._search, methods=["GET", "POST"]),
            Route("/image", self._image),
            Route("/examples", self._examples),
            Route("/upgrade", self._upgrade),
            Route("/health", self._health),
        ]

    def open(self, model: Model, older: Older | None = None) -> None:
        """Open the gallery for the queries of a model, and of an older one if there is one."""
        older = older or Older()
        old = Model(older.files, model.device) if older.files else None
        self._saved = older.check
        self.gallery = NewestGallery(self.options, model, old, older.why)

    def measure(self) -> None:
        """Find out whether the upgrade is safe, unless the newest commit has an answer; may take a minute."""
        if self.gallery is None:
            return
        with self._measuring:
            opened = self.gallery()
            if opened.old and self._known(opened)["status"] == "measuring":
                self._measured = opened.commit.number, self._check(opened, opened.old.model)

    def _known(self, opened: OpenGallery) -> dict[str, Any]:
        """Return whether the upgrade is safe, as far as that is known about this commit."""
        saved, (number, measured) = self._saved, self._measured
        if saved:
            if opened.old is None and saved.old_model not in {version.name for version in opened.commit.by_task}:
                return {"status": "unknown", "why": f"the gallery has no vectors by {saved.old_model}"}
            return {"status": "known", "saved": True, **saved.model_dump()}
        if opened.old is None:
            return {"status": "unknown", "why": without_secrets(opened.why)}
        return measured if number == opened.commit.number else {"status": "measuring"}

    def _check(self, opened: OpenGallery, old: Model) -> dict[str, Any]:
        """Measure on one commit whether the upgrade is safe; return the answer, or why there is none."""
        gallery = opened.searcher.gallery
        try:
            check = UpgradeCheck(gallery, old, opened.searcher.model)
            answer = check.answer(check.sample(draw_pairs(gallery, PAIRS)), TOLERANCE)
            return {"status": "known", "saved": False, **answer.model_dump()}
        except InputError as error:
            why = str(error).replace(str(gallery.root), gallery.root.name)
            why += "; the service takes an answer of `cl2r upgrade-check --json` by --check"
        except Exception:  # of a thread: nobody else would hear of it
            LOG.error(without_secrets(traceback.format_exc()))
            why = "it could not be measured; the log of the service says more"
        return {"status": "unknown", "why": without_secrets(why)}

    async def __call__(self, request: Request) -> Response:
        """Return the answer; of an unexpected error the client learns one line, the log the rest."""
        try:
            response = await self._answer(request)
        except HTTPException as refused:
            response = _json({"error": without_secrets(refused.detail)}, refused.status_code)
            response.headers.update(refused.headers or {})
        except Exception as error:  # Serve would log secrets too, and answer in plain text
            LOG.error(without_secrets(traceback.format_exc()))
            away = isinstance(error, OSError)
            line = "the gallery cannot be read now; try again" if away else "an error of the service; its log says more"
            response = _json({"error": line}, 503 if away else 500)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    async def _answer(self, request: Request) -> Response:
        asked, origin = request.headers.get("host", ""), request.headers.get("origin")
        if not self.options.knows(_host(f"//{asked}")):
            raise HTTPException(403, "the Host of the request is not this service")
        if origin is not None and origin.partition("://")[2] != asked and _host(origin) not in self.options.names:
            raise HTTPException(403, "the request comes from a page of another site")
        if request.headers.get("sec-fetch-site") == "cross-site" and request.scope["path"] != "/":
            raise HTTPException(403, "the request comes from a page of another site")  # e.g. an <img>: it has no Origin
        for route in self._routes:
            match, _ = route.matches(request.scope)  # not by `request.url`, which contains the Host
            if match is Match.PARTIAL:
                allowed = ", ".join(sorted(route.methods or ()))
                raise HTTPException(405, f"{route.path} takes {allowed} only", {"Allow": allowed})
            if match is Match.FULL:
                response: Response = await route.endpoint(request)
                return response
        raise HTTPException(404, f"no such path; there are {' '.join(route.path for route in self._routes)}")

    async def _aside(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Call `work` in a thread, so that other requests are answered meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    async def _opened(self) -> tuple[OpenGallery, dict[str, Any]]:
        if self.gallery is None:
            raise HTTPException(503, "the gallery is being opened; try again", {"Retry-After": "2"})
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
            raise HTTPException(400, "say which image: /image?id=…")
        opened, _ = await self._opened()
        content = await self._aside(opened.thumbnail, name)
        return Response(content, media_type="image/png", headers={"Cache-Control": "private, max-age=60"})

    async def _examples(self, _: Request) -> Response:
        opened, _facts = await self._opened()
        return _json({"examples": await self._aside(lambda: opened.examples)})

    async def _upgrade(self, _: Request) -> Response:
        opened, _facts = await self._opened()
        known = self._known(opened)
        if known["status"] == "measuring" and not self._measuring.locked():
            threading.Thread(target=self.measure, name="measure", daemon=True).start()
        return _json({"commit": opened.commit.number, **known})

    async def _search(self, request: Request) -> Response:
        asked = request.query_params
        text, both, name = asked.get("top", str(self.options.top)), asked.get("old", "0"), asked.get("id")
        if not (text.isdecimal() and len(text) <= 3 and 1 <= int(text) <= MOST_HITS):
            raise HTTPException(400, f"top is a number from 1 to {MOST_HITS}")
        if both not in ("0", "1"):
            raise HTTPException(400, "old is 1, for hits by the older model as well, or 0")
        if (name is None) == (request.method != "POST"):
            raise HTTPException(400, "send an image by POST, or ask for one of the gallery by GET /search?id=…")
        if request.headers.get("content-type", "").startswith("multipart/"):
            raise HTTPException(415, "send the image itself as the body, e.g. curl --data-binary @image.jpg")
        content = await self.uploads.read(request) if name is None else b""
        began = time.perf_counter()
        opened, facts = await self._opened()
        work = partial(opened.search, content) if name is None else partial(opened.search_like, name)
        found = await self._aside(work, int(text), both == "1")
        return _json({**facts, "top": int(text), "seconds": round(time.perf_counter() - began, 4), **found})


@cache
def page() -> tuple[str, str]:
    """Return the page with its style and script inside, and a policy that lets it run these and nothing else."""
    folder = resources.files("cl2r.gallery").joinpath("pages")
    html, style, script = (folder.joinpath(f"serve.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))

    def source(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    policy = (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; img-src 'self' blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Template(html).render(style=style, script=script), policy


def _host(address: str) -> str:
    """Return the host of an address without its port; empty if there is a path or a login, or no host."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    return "" if parts.path or parts.query or "@" in parts.netloc else parts.hostname or ""


def _json(entries: dict[str, Any], status: int = 200) -> Response:
    """Return a JSON response; dates and the like become text."""
    return Response(json.dumps(entries, default=str), status, media_type="application/json")
