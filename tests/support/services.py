"""For tests of the search service: requests that are passed to it without Ray and without a socket, and galleries."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.requests import Request

from cl2r.gallery.model import Model
from cl2r.gallery.older import Older
from cl2r.gallery.service import Service, ServiceOptions
from cl2r.gallery.upgrade import Answer as UpgradeAnswer
from cl2r.gallery.upgrade import Difference
from tests.support.galleries import encoded, indexed

Pictures = list[tuple[str, Any]]
"""Paths and pixels."""
Message = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """An answer, and how many parts of the request's body were read."""

    status: int
    headers: dict[str, str]
    body: bytes
    received: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def refuses(self, status: int, *parts: str) -> bool:
        """Return whether this is an error with `status` whose text names all `parts`."""
        assert list(self.json) == ["error"]
        return self.status == status and all(part in self.json["error"] for part in parts)


def ask(
    service: Service,
    method: str,
    path: str,
    parts: Iterable[bytes] = (b"",),
    query: str = "",
    cut: bool = False,
    **headers: str,
) -> Answer:
    """Send one request with its body in parts; with `cut` the connection ends after them."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if messages and not cut:
        messages[-1]["more_body"] = False
    messages += [{"type": "http.disconnect"}] * cut
    sent: list[Message] = []
    waiting = iter(messages)

    async def receive() -> Message:
        return next(waiting)

    async def send(message: Message) -> None:
        sent.append(message)

    given = {"host": "127.0.0.1:8000"} | {name.replace("_", "-"): value for name, value in headers.items()}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given.items() if value],
    }

    async def call() -> None:
        response = await service(Request(scope, receive))
        await response(scope, receive, send)

    asyncio.run(call())
    body = b"".join(message.get("body", b"") for message in sent)
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], found, body, len(messages) - len(list(waiting)))


def search(service: Service, content: bytes, query: str = "", **headers: str) -> Answer:
    return ask(service, "POST", "/search", [content], query, **headers)


def like(service: Service, name: str, query: str = "") -> Answer:
    """Search with an image of the gallery."""
    return ask(service, "GET", "/search", query=f"id={quote(name, safe='')}&{query}")


def image(service: Service, name: str) -> Answer:
    return ask(service, "GET", "/image", query=f"id={quote(name)}")


def put(folder: Path, pictures: Iterable[tuple[str, Any]]) -> None:
    for path, pixels in pictures:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(encoded(pixels))


def build(folder: Path, pictures: Pictures, models: list[Model]) -> Path:
    """Index the first 16 images by φ_1 and 4 more by φ_2; return the gallery."""
    for model, start, end in zip(models, (0, 16), (16, 20), strict=False):
        put(folder / "images", pictures[start:end])
        indexed(folder / "images", folder / "gallery", model)
    return folder / "gallery"


def opened(root: Path, model: Model, older: Older | None = None, **options: Any) -> Service:
    service = Service(ServiceOptions(str(root), **({"host": "127.0.0.1", "refresh": 0.0} | options)))
    service.open(model, older)
    return service


def saved_answer(old: str, new: str) -> UpgradeAnswer:
    change = Difference(0.1, 0.05, 0.15)
    said = {"verdict": "safe", "sentence": "All is well.", "tolerance": 0.01, "pairs": 9}
    numbers = {"old": 0.5, "cross": 0.6, "new": 0.7, "change": change, "gain": change, "images_per_second": 1.0}
    return UpgradeAnswer(old_model=old, new_model=new, **said, **numbers)
