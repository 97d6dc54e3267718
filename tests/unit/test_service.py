"""What the search service answers: requests straight to it, without Ray and without a socket."""

import asyncio
import base64
import hashlib
import io
import json
import re
import socket
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import pytest
import ray
from made_gallery import indexed, trained
from PIL import Image, ImageFile
from starlette.requests import Request

from cl2r.errors import InputError
from cl2r.rayrun.serving import serve
from cl2r.search.gallery import Gallery, Version
from cl2r.search.image_source import ImageEntry
from cl2r.search.indexing import item_frame
from cl2r.search.model import Model
from cl2r.search.service import MOST_HITS, Service, ServiceOptions, page
from cl2r.search.shards import write_shard
from cl2r.search.snapshot import write_export

NEVER = 1e9
Pictures = list[tuple[str, Any]]
"""Paths and pixels."""
Message = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What came back, and how many parts of the body were asked for."""

    status: int
    headers: dict[str, str]
    body: bytes
    received: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        assert list(self.json) == ["error"]
        return str(self.json["error"])


def ask(
    service: Service,
    method: str,
    path: str,
    parts: Iterable[bytes] = (b"",),
    query: str = "",
    cut: bool = False,
    **headers: str,
) -> Answer:
    """One request, the body in parts; `cut`: the connection ends after them."""
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


def image(service: Service, name: str) -> Answer:
    return ask(service, "GET", "/image", query=f"id={quote(name)}")


def encoded(pixels: Any, kind: str = "PNG") -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, kind)
    return content.getvalue()


def declared_png(width: int, height: int) -> bytes:
    """A whole PNG file of a few bytes that says it has so many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


# ---------------------------------------------------------------- a gallery of two versions


@pytest.fixture(scope="module")
def models(tiny: Path) -> list[Model]:
    return [trained(tiny).model(task) for task in (1, 2, 3)]


@pytest.fixture(scope="module")
def pictures(tiny: Path) -> Pictures:
    """24 images, four a class."""
    pixels = trained(tiny).images[..., 0]
    return [(f"class {row // 4}/é {row:03d}.png", pixels[14 * (row // 4) + row % 4]) for row in range(24)]


def put(folder: Path, pictures: Iterable[tuple[str, Any]]) -> None:
    for path, pixels in pictures:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(encoded(pixels))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return tmp_path / "images"


@pytest.fixture
def root(tmp_path: Path, images: Path, pictures: Pictures, models: list[Model]) -> Path:
    """The first 16 images by φ_1, 4 more by φ_2."""
    for model, start, end in zip(models, (0, 16), (16, 20), strict=False):
        put(images, pictures[start:end])
        indexed(images, tmp_path / "gallery", model)
    return tmp_path / "gallery"


def opened(root: Path, model: Model, **options: Any) -> Service:
    service = Service(ServiceOptions(str(root), **({"host": "127.0.0.1", "refresh": 0.0} | options)))
    service.open(model)
    return service


@pytest.fixture
def service(root: Path, models: list[Model]) -> Service:
    return opened(root, models[2])


# ---------------------------------------------------------------- searching


def test_hits_are_those_of_all_cosines(service: Service, pictures: Pictures, models: list[Model], images: Path) -> None:
    query = pictures[21][1]
    answer = search(service, encoded(query), "top=7")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    vector = models[2].embed(query[None, ..., None])[0]
    cosines = {
        path: float(models[0 if row < 16 else 1].embed(pixels[None, ..., None])[0] @ vector)
        for row, (path, pixels) in enumerate(pictures[:20])
    }
    best = sorted(cosines, key=lambda path: -cosines[path])[:7]
    hits = answer.json["hits"]
    assert [hit["id"] for hit in hits] == best
    assert [hit["rank"] for hit in hits] == [1, 2, 3, 4, 5, 6, 7]
    assert [hit["score"] for hit in hits] == pytest.approx([cosines[path] for path in best], abs=1e-5)
    first = {path for path, _ in pictures[:16]}
    for hit in hits:
        task = 1 if hit["id"] in first else 2
        assert (hit["task"], hit["model"], hit["metadata"]) == (task, models[task - 1].card.name, {})
        assert hit["label"] == hit["id"].split("/")[0]
    assert str(images) not in answer.body.decode()


def facts(models: list[Model]) -> dict[str, Any]:
    """Of the gallery at `root`."""
    first, second, third = (model.card.name for model in models)
    versions = [{"model": first, "task": 1, "items": 16}, {"model": second, "task": 2, "items": 4}]
    return {"model": third, "task": 3, "items": 20, "commit": 2, "versions": versions}


def test_an_answer_says_what_was_searched(service: Service, pictures: Pictures, models: list[Model]) -> None:
    answer = search(service, encoded(pictures[0][1])).json
    expected = facts(models) | {"top": 12}
    assert {key: answer[key] for key in expected} == expected
    assert len(answer["hits"]) == 12
    assert answer["seconds"] >= 0
    assert "warning" not in answer


def test_the_address_of_a_hit_leads_to_its_image(service: Service, pictures: Pictures) -> None:
    hit = search(service, encoded(pictures[3][1]), "top=1").json["hits"][0]
    path, _, query = hit["image"].partition("?")
    answer = ask(service, "GET", f"/{path}", query=query)
    assert (answer.status, answer.headers["content-type"]) == (200, "image/png")
    shown = np.asarray(Image.open(io.BytesIO(answer.body)))
    assert np.array_equal(shown, np.repeat(dict(pictures)[hit["id"]][..., None], 3, axis=2))


def test_top(service: Service, pictures: Pictures) -> None:
    query = encoded(pictures[0][1])
    for top in (1, 20, 100):
        assert len(search(service, query, f"top={top}").json["hits"]) == min(top, 20)
    for text in ("0", "101", "-1", "1.5", "x", "", "٣", "9" * 5000):
        answer = search(service, query, f"top={text}")
        assert (answer.status, answer.error) == (400, f"top is a number from 1 to {MOST_HITS}"), text


def test_metadata_of_any_kind_can_be_sent(tmp_path: Path, models: list[Model], pictures: Pictures) -> None:
    put(tmp_path / "images", pictures[:3])
    ids = [path for path, _ in pictures[:3]]
    known = pd.DataFrame({"id": ids, "price": [1.5, np.inf, np.nan], "day": [date(2026, 1, 2)] * 3, "count": [1, 2, 3]})
    indexed(tmp_path / "images", tmp_path / "gallery", models[0], metadata=known)
    hits = search(opened(tmp_path / "gallery", models[0]), encoded(pictures[0][1])).json["hits"]
    by_id = {hit["id"]: hit["metadata"] for hit in hits}
    assert [by_id[name] for name in ids] == [
        {"price": 1.5, "day": "2026-01-02", "count": 1},
        {"price": None, "day": "2026-01-02", "count": 2},
        {"price": None, "day": "2026-01-02", "count": 3},
    ]


# ---------------------------------------------------------------- uploads


def test_an_upload_that_says_it_is_too_large_is_not_read(root: Path, models: list[Model]) -> None:
    service = opened(root, models[2], most_bytes=1000)
    for length in ("1001", "9" * 5000):
        answer = search(service, b"x" * 1001, content_length=length)
        assert (answer.status, answer.received) == (413, 0)
        assert answer.error == "the image is larger than 0.001 MB; scale it down"


def test_an_upload_that_becomes_too_large_is_not_read_to_its_end(root: Path, models: list[Model]) -> None:
    service = opened(root, models[2], most_bytes=1000)
    for length in ("", "10"):
        answer = ask(service, "POST", "/search", [b"x" * 400] * 50, content_length=length)
        assert (answer.status, answer.received) == (413, 3)


def test_an_upload_of_the_largest_size_is_read(root: Path, models: list[Model], pictures: Pictures) -> None:
    content = encoded(pictures[0][1])
    assert search(opened(root, models[2], most_bytes=len(content)), content).status == 200
    assert search(opened(root, models[2], most_bytes=len(content) - 1), content).status == 413


def test_an_upload_in_parts_is_put_together(service: Service, pictures: Pictures) -> None:
    content = encoded(pictures[5][1])
    whole = search(service, content).json["hits"]
    parts = [content[start : start + 10] for start in range(0, len(content), 10)]
    assert ask(service, "POST", "/search", parts).json["hits"] == whole


def test_an_upload_that_is_cut_off(service: Service, pictures: Pictures) -> None:
    answer = ask(service, "POST", "/search", [encoded(pictures[0][1])[:50]], cut=True)
    assert (answer.status, answer.error) == (400, "the upload ended too early")


def test_no_upload(service: Service) -> None:
    assert search(service, b"").error == "no image in the body of the request"


def test_a_form_is_told_what_to_send(service: Service) -> None:
    answer = search(service, b"--x", content_type="multipart/form-data; boundary=x")
    assert answer.status == 415
    assert "curl --data-binary" in answer.error


NO_IMAGES = {
    "text": b"hello",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n",
    "half": encoded(np.zeros((40, 40), np.uint8))[:45],
    "ico": encoded(np.zeros((40, 40, 3), np.uint8), "ICO"),
}


@pytest.mark.parametrize("kind", NO_IMAGES)
def test_what_is_no_image_is_refused(service: Service, kind: str) -> None:
    answer = search(service, NO_IMAGES[kind], content_type="image/png")
    assert answer.status == 415
    assert answer.error == "not a readable image; send one of BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP"


@pytest.mark.parametrize("size", [(20000, 10000), (12000, 9000), (2**31 - 1, 2**31 - 1)])
def test_an_image_of_too_many_pixels_is_not_decoded(
    service: Service, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("decoded"))
    content = declared_png(*size)
    assert len(content) < 100
    answer = search(service, content)
    assert answer.status == 422
    assert "more than 89 million" in answer.error
    assert answer.error.endswith("scale it down")


def test_a_small_declared_image_is_decoded(service: Service) -> None:
    """So the one above is refused for its size alone."""
    assert search(service, declared_png(9, 9)).status == 200


def test_an_image_of_16_bits_is_refused(service: Service) -> None:
    answer = search(service, encoded(np.zeros((9, 9), np.uint16)))
    assert answer.status == 422
    assert answer.error.endswith("save it with 8 bits")


# ---------------------------------------------------------------- images of the gallery


def test_only_images_of_the_gallery_are_sent(service: Service, images: Path, pictures: Pictures) -> None:
    inside = pictures[0][0]
    put(images, [("new.png", pictures[0][1])])
    assert image(service, inside).status == 200
    near = ["new.png", str(images / inside), f"./{inside}", f"x/../{inside}", f"../images/{inside}"]
    for name in [*near, "", "/etc/passwd", "../gallery/gallery.json", "a\0b", "é" * 9999]:
        answer = image(service, name)
        assert (answer.status, answer.error) == (404, "no image of the gallery has this id"), name
    assert ask(service, "GET", "/image").status == 400


def test_images_are_sent_small_and_as_png(tmp_path: Path, models: list[Model]) -> None:
    (tmp_path / "images").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (600, 900, 3), np.uint8)
    (tmp_path / "images" / "wide.jpg").write_bytes(encoded(pixels, "JPEG"))
    indexed(tmp_path / "images", tmp_path / "gallery", models[0])
    answer = image(opened(tmp_path / "gallery", models[0]), "wide.jpg")
    shown = Image.open(io.BytesIO(answer.body))
    assert (shown.format, shown.size) == ("PNG", (256, 171))
    assert answer.headers["content-type"] == "image/png"


@pytest.mark.parametrize("content", [b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"secret text", None])
def test_a_file_that_has_changed_is_not_sent(
    service: Service, images: Path, pictures: Pictures, content: bytes | None
) -> None:
    path = images / pictures[2][0]
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    answer = image(service, pictures[2][0])
    assert answer.status == 404
    assert answer.error == "the image is not, or not readable, where it was when it was indexed"


def test_a_gallery_that_points_elsewhere_is_not_followed(tmp_path: Path, models: list[Model]) -> None:
    """Whoever wrote it: what lies outside of its source is not read."""
    (tmp_path / "images").mkdir()
    put(tmp_path, [("private.png", np.zeros((16, 16), np.uint8))])
    gallery, model = Gallery.open_or_create(tmp_path / "gallery"), models[0]
    paths = ["../private.png", str(tmp_path / "private.png")]
    rows = [ImageEntry(f"{number}", path, "", 1) for number, path in enumerate(paths)]
    vectors = np.eye(2, model.dim, dtype=np.float32)
    version = Version.of(model.card, model.dim, model.digest)
    items = item_frame(rows, str(tmp_path / "images"), None)
    shard = write_shard(gallery.shards, "made", version.key, vectors, items, [], "float32")
    gallery.change({version.key: version}, [shard], "made")
    service = opened(tmp_path / "gallery", model)
    for name in ("0", "1"):
        answer = image(service, name)
        assert (answer.status, answer.error) == (404, "the gallery has the image outside of its source")


# ---------------------------------------------------------------- who may ask for what


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("POST", "/", "GET"),
        ("GET", "/search", "POST"),
        ("HEAD", "/search", "POST"),
        ("OPTIONS", "/search", "POST"),
        ("DELETE", "/image", "GET"),
        ("PUT", "/health", "GET"),
    ],
)
def test_a_wrong_method_is_refused(service: Service, method: str, path: str, right: str) -> None:
    answer = ask(service, method, path)
    assert (answer.status, answer.headers["allow"]) == (405, right)
    assert answer.error == f"{path} takes {right} only"


def test_an_unknown_path_is_refused(service: Service) -> None:
    for path in ("/x", "/search/", "//", "/gallery.json", "/../etc/passwd", "/image/x.png", ""):
        answer = ask(service, "GET", path)
        assert (answer.status, answer.error) == (404, "no such path; there are / /search /image /health"), path


def test_names_of_this_machine_are_known(service: Service) -> None:
    """At any port: a tunnel may end at another one."""
    for host in ("127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000", "localhost:9000"):
        assert ask(service, "GET", "/health", host=host, origin=f"http://{host}").status == 200, host


def test_a_name_that_points_here_is_refused(service: Service) -> None:
    """A page of evil.example whose name leads to 127.0.0.1 shares an origin with what it reads."""
    hosts = ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "192.0.2.9:8000", "localhost.", ""]
    for host in [*hosts, "[::1", "localhost/health", "localhost?x", "evil@localhost"]:
        for path in ("/", "/health", "/image", "/x"):
            answer = ask(service, "GET", path, host=host)
            assert (answer.status, answer.error) == (403, "the Host of the request is not this service"), host


def test_a_page_of_another_site_is_refused(service: Service, pictures: Pictures) -> None:
    for origin in ("https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1"):
        answer = search(service, encoded(pictures[0][1]), origin=origin)
        assert (answer.status, answer.error) == (403, "the request comes from a page of another site"), origin


def test_a_further_name_is_known(root: Path, models: list[Model]) -> None:
    service = opened(root, models[2], names=("search.example",))
    assert ask(service, "GET", "/health", host="search.example").status == 200
    assert ask(service, "GET", "/health", origin="https://search.example").status == 200
    assert ask(service, "GET", "/health", host="other.example").status == 403


def test_in_a_network_any_name_may_be_right(root: Path, models: list[Model]) -> None:
    service = opened(root, models[2], host="0.0.0.0")
    assert ask(service, "GET", "/health", host="server7:8000").status == 200
    assert ask(service, "GET", "/health", host="server7:8000", origin="http://server7:8000").status == 200
    assert ask(service, "GET", "/health", host="server7:8000", origin="http://evil.example").status == 403
    assert ask(service, "GET", "/health", host="server7/x?").status == 200, "the path is not read from the Host"


def test_every_answer_has_its_headers(service: Service, pictures: Pictures) -> None:
    answers = [ask(service, "GET", path) for path in ("/", "/health", "/x", "/search")]
    answers += [image(service, pictures[0][0]), image(service, "x"), search(service, b"x")]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cache-control"] in ("no-store", "private, max-age=60")
        assert answer.headers["content-type"] in ("application/json", "image/png", "text/html; charset=utf-8")


def test_the_page_may_run_its_own_script_and_nothing_else(service: Service) -> None:
    answer = ask(service, "GET", "/")
    html, policy = answer.body.decode(), answer.headers["content-security-policy"]
    allowed = dict(entry.split(" ", 1) for entry in policy.split("; "))
    for tag, name in (("script", "script-src"), ("style", "style-src")):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert allowed[name] == f"'sha256-{digest}'"
        assert len(inside) > 1000
    assert allowed["default-src"] == allowed["frame-ancestors"] == allowed["form-action"] == "'none'"
    assert not re.findall(r"https?://|\bon\w+=|\{\{|style=", html)
    assert page() == (html, policy)


# ---------------------------------------------------------------- readiness, new commits, faults


def test_health_is_503_until_the_gallery_is_open(root: Path, models: list[Model]) -> None:
    service = Service(ServiceOptions(str(root), "127.0.0.1", top=5, most_bytes=777))
    for answer in (ask(service, "GET", "/health"), search(service, b"x"), image(service, "x")):
        assert (answer.status, answer.headers["retry-after"]) == (503, "2")
        assert answer.error == "the gallery is being opened; try again"
    assert ask(service, "GET", "/").status == 200
    service.open(models[2])
    answer = ask(service, "GET", "/health")
    assert answer.status == 200
    assert answer.json == {"status": "ready", **facts(models), "top": 5, "most_hits": 100, "most_bytes": 777}


def append(root: Path, images: Path, model: Model, pictures: Pictures) -> None:
    put(images, pictures)
    indexed(images, root, model)


def test_images_of_a_new_commit_are_found(
    service: Service, root: Path, images: Path, models: list[Model], pictures: Pictures
) -> None:
    name, pixels = pictures[22]
    before = search(service, encoded(pixels), "top=100").json
    assert name not in [hit["id"] for hit in before["hits"]]
    append(root, images, models[2], pictures[20:])
    after = search(service, encoded(pixels), "top=100").json
    assert (after["commit"], after["items"], len(after["hits"])) == (3, 24, 24)
    assert (after["hits"][0]["id"], after["hits"][0]["task"]) == (name, 3)
    assert after["hits"][0]["score"] == pytest.approx(1, abs=1e-5)
    assert image(service, name).status == 200


def test_a_new_commit_is_not_looked_for_all_the_time(
    root: Path, images: Path, models: list[Model], pictures: Pictures
) -> None:
    service = opened(root, models[2], refresh=NEVER)
    append(root, images, models[2], pictures[20:])
    assert search(service, encoded(pictures[22][1])).json["commit"] == 2


def test_a_gallery_that_a_later_model_has_changed_is_still_searched_as_it_was(
    root: Path, images: Path, models: list[Model], pictures: Pictures
) -> None:
    service = opened(root, models[1])
    append(root, images, models[2], pictures[20:])
    answer = search(service, encoded(pictures[0][1]), "top=100").json
    assert (answer["commit"], len(answer["hits"])) == (2, 20)
    assert answer["warning"].startswith("commit 2 answers; the newest cannot be opened (")
    assert models[2].card.name in answer["warning"]
    assert str(root) not in answer["warning"]
    assert ask(service, "GET", "/health").json["warning"] == answer["warning"]


def test_a_damaged_commit_is_said_and_gone_once_it_is_whole(
    service: Service, root: Path, images: Path, models: list[Model], pictures: Pictures
) -> None:
    append(root, images, models[2], pictures[20:])
    newest = root / "commits" / "00000003.json"
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1])
    assert "is damaged" in ask(service, "GET", "/health").json["warning"]
    newest.write_bytes(whole)
    answer = ask(service, "GET", "/health").json
    assert (answer["commit"], "warning" in answer) == (3, False)


@pytest.mark.parametrize(
    ("kind", "answered"),
    [
        (OSError, (503, "the gallery cannot be read now; try again")),
        (RuntimeError, (500, "an error of the service; its log says more")),
    ],
)
def test_an_error_shows_neither_traceback_nor_secret(
    service: Service,
    kind: type[Exception],
    answered: tuple[int, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")

    def broken() -> Any:
        raise kind("s3 said no to wJalrXUtnFEMI in /home/somebody")

    monkeypatch.setattr(service, "gallery", broken)
    answer = ask(service, "GET", "/health")
    assert (answer.status, answer.error) == answered
    assert "s3 said no" in caplog.text
    assert "wJalrXUtnFEMI" not in caplog.text


# ---------------------------------------------------------------- what is refused before Ray starts


@pytest.fixture
def exported(tmp_path: Path, models: list[Model]) -> str:
    write_export(models[2].snapshot, tmp_path / "model")
    return str(tmp_path / "model")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 0}, "--port 0: a number from 1 to 65535"),
        ({"port": 65536}, "--port 65536: a number from 1 to 65535"),
        ({"top": 0}, "--top 0: a number from 1 to 100"),
        ({"replicas": 0}, "--replicas 0: at least 1"),
        ({"most_bytes": 0}, "--max-bytes 0: at least 1"),
        ({"host": "192.0.2.77", "port": 8000}, "--host 192.0.2.77 --port 8000: cannot listen there"),
        ({"host": "no such name", "port": 8000}, "--host no such name --port 8000: cannot listen there"),
        ({"model": "other@3"}, "--model other: no such run"),
    ],
)
def test_bad_options_are_refused_before_ray_starts(
    root: Path, exported: str, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("started"))
    with pytest.raises(InputError) as refused:
        serve(**({"gallery": root, "model": exported, "storage": root.parent, "port": free_port()} | options))
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_a_port_in_use_is_refused(root: Path, exported: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is shared by whoever asks to, as Serve does."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=f"--port {port}: another program listens there; give another port"):
            serve(root, exported, root.parent, port=port)


def test_settings_that_open_further_ports_are_refused(
    root: Path, exported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    with pytest.raises(InputError, match="RAY_SERVE_ENABLE_HA_PROXY makes Ray Serve listen at all addresses"):
        serve(root, exported, root.parent)


def test_a_gallery_that_cannot_be_searched_is_refused(
    tmp_path: Path, root: Path, exported: str, models: list[Model]
) -> None:
    Gallery.open_or_create(tmp_path / "empty")
    write_export(models[0].snapshot, tmp_path / "first")
    with pytest.raises(InputError, match="the gallery is empty"):
        serve(tmp_path / "empty", exported, tmp_path, port=free_port())
    with pytest.raises(InputError, match="no gallery"):
        serve(tmp_path / "nowhere", exported, tmp_path, port=free_port())
    with pytest.raises(InputError, match="a later model of the same chain"):
        serve(root, str(tmp_path / "first"), tmp_path, port=free_port())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
