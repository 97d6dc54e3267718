"""The search service: requests are passed to it directly, without Ray and without a socket."""

import base64
import hashlib
import io
import re
import socket
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import pytest
import ray
from PIL import Image, ImageFile

from cl2r.gallery.gallery import Gallery
from cl2r.gallery.model import Model, write_export
from cl2r.gallery.older import Older
from cl2r.gallery.service import Service, ServiceOptions, page
from cl2r.rayrun.serve import serve
from cl2r.storage.path import sha256
from tests.support.galleries import declared_png, encoded, free_port, indexed, item_rows, refused, resealed
from tests.support.services import Pictures, ask, build, image, like, opened, put, saved_answer, search

NEVER = 1e9


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """The images of `root`."""
    return tmp_path / "images"


@pytest.fixture
def root(tmp_path: Path, pictures: Pictures, models: list[Model]) -> Path:
    """A gallery that a test may change."""
    return build(tmp_path, pictures, models)


def test_hits_are_ranked_by_all_cosines(
    service: Service, pictures: Pictures, models: list[Model], shared: Path
) -> None:
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
    assert str(shared.parent) not in answer.body.decode(), "clients do not learn where files are"
    described = {key: value for key, value in answer.json.items() if key not in ("hits", "seconds")}
    assert described == facts(models) | {"top": 7}
    assert len(search(service, encoded(query)).json["hits"]) == 12


def facts(models: list[Model]) -> dict[str, Any]:
    """Return what `root` and `shared` hold."""
    first, second, third = (model.card.name for model in models)
    versions = [{"model": first, "task": 1, "items": 16}, {"model": second, "task": 2, "items": 4}]
    old = {"model": first, "task": 1, "items": 16}
    return {"model": third, "task": 3, "items": 20, "commit": 2, "versions": versions, "old": old}


def test_top_is_a_number_from_1_to_100(service: Service, pictures: Pictures) -> None:
    query = encoded(pictures[0][1])
    for top in (1, 20, 100):
        assert len(search(service, query, f"top={top}").json["hits"]) == min(top, 20)
    for text in ("0", "101", "-1", "1.5", "x", "", "٣", "9" * 5000):
        assert search(service, query, f"top={text}").refuses(400, "top"), text


def test_metadata_of_any_kind_is_sent(tmp_path: Path, models: list[Model], pictures: Pictures) -> None:
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


def test_an_upload_that_is_too_large_is_not_read_to_its_end(
    shared: Path, models: list[Model], pictures: Pictures
) -> None:
    service = opened(shared, models[2], most_bytes=1000)
    for length, received in (("1001", 0), ("9" * 5000, 0), ("", 3), ("10", 3)):
        answer = ask(service, "POST", "/search", [b"x" * 400] * 50, content_length=length)
        assert answer.refuses(413, "0.001 MB")
        assert answer.received == received
    content = encoded(pictures[0][1])
    assert search(opened(shared, models[2], most_bytes=len(content)), content).status == 200, "just small enough"
    assert search(opened(shared, models[2], most_bytes=len(content) - 1), content).status == 413


def test_an_upload_in_parts_is_put_together(service: Service, pictures: Pictures) -> None:
    content = encoded(pictures[5][1])
    parts = [content[start : start + 10] for start in range(0, len(content), 10)]
    assert ask(service, "POST", "/search", parts).json["hits"] == search(service, content).json["hits"]
    assert ask(service, "POST", "/search", parts[:5], cut=True).refuses(400, "upload")
    assert search(service, b"").refuses(400, "body")
    assert search(service, b"--x", content_type="multipart/form-data; boundary=x").refuses(415, "curl --data-binary")


@pytest.mark.parametrize(
    ("content", "status", "part"),
    [
        (b"hello", 415, "JPEG"),
        (b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', 415, "JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", 415, "JPEG"),
        (encoded(np.zeros((40, 40), np.uint8))[:45], 415, "JPEG"),
        (encoded(np.zeros((40, 40, 3), np.uint8), "ICO"), 415, "JPEG"),
        (encoded(np.zeros((9, 9), np.uint16)), 422, "8 bits"),
    ],
)
def test_what_is_no_image_is_refused(service: Service, content: bytes, status: int, part: str) -> None:
    assert search(service, content, content_type="image/png").refuses(status, part)


@pytest.mark.parametrize("size", [(20000, 10000), (12000, 9000), (2**31 - 1, 2**31 - 1)])
def test_an_image_of_too_many_pixels_is_not_decoded(
    service: Service, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert search(service, declared_png(9, 9)).status == 200, "a small one is"
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("decoded"))
    assert len(declared_png(*size)) < 100
    assert search(service, declared_png(*size)).refuses(422, "89 million")


def test_only_images_of_the_gallery_are_sent(root: Path, images: Path, pictures: Pictures, models: list[Model]) -> None:
    service, inside = opened(root, models[2]), pictures[0][0]
    put(images, [("new.png", pictures[0][1])])
    assert image(service, inside).status == 200
    near = ["new.png", str(images / inside), f"./{inside}", f"x/../{inside}", f"../images/{inside}"]
    for name in [*near, "", "/etc/passwd", "../gallery/gallery.json", "a\0b", "é" * 9999]:
        assert image(service, name).refuses(404, "id"), name
        assert like(service, name).refuses(404, "id"), name
    assert ask(service, "GET", "/image").status == 400
    assert ask(service, "GET", "/search").refuses(400, "id=")


def test_images_are_sent_small_and_as_png(tmp_path: Path, models: list[Model]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (600, 900, 3), np.uint8)
    (tmp_path / "images" / "wide.jpg").write_file(encoded(pixels, "JPEG"))
    indexed(tmp_path / "images", tmp_path / "gallery", models[0])
    wide = opened(tmp_path / "gallery", models[0])
    (hit,) = search(wide, encoded(pixels)).json["hits"]
    path, _, query = hit["image"].partition("?")
    answer = ask(wide, "GET", f"/{path}", query=query)
    shown = Image.open(io.BytesIO(answer.body))
    assert (shown.format, shown.size) == ("PNG", (256, 171))
    assert answer.headers["content-type"] == "image/png"


def test_a_file_that_has_changed_is_not_sent(root: Path, images: Path, pictures: Pictures, models: list[Model]) -> None:
    service, (name, pixels) = opened(root, models[2]), pictures[2]
    shown = np.asarray(Image.open(io.BytesIO(image(service, name).body)))
    assert np.array_equal(shown, np.repeat(pixels[..., None], 3, axis=2))
    for content in (b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"secret text", None):
        (images / name).unlink() if content is None else (images / name).write_bytes(content)
        assert image(service, name).refuses(404, "no longer")
        assert like(service, name).refuses(404, "no longer")


def test_a_gallery_that_points_elsewhere_is_not_followed(tmp_path: Path, models: list[Model]) -> None:
    """A stranger may have written it: only files below its source are read."""
    (tmp_path / "images").mkdir()
    put(tmp_path, [("private.png", np.zeros((16, 16), np.uint8))])
    gallery, model = Gallery.open_or_create(tmp_path / "gallery"), models[0]
    paths, version = ["../private.png", str(tmp_path / "private.png")], model.version
    items = item_rows(["0", "1"]).assign(source=str(tmp_path / "images"), path=paths)
    vectors = np.eye(2, model.dim, dtype=np.float32)
    shard = gallery.shards.write("made", version.key, vectors, items, [], "float32")
    gallery.change({version.key: version}, [shard], "made")
    service = opened(tmp_path / "gallery", model)
    for name in ("0", "1"):
        assert image(service, name).refuses(404, "outside")
        assert like(service, name).refuses(404, "outside")


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("POST", "/", "GET, HEAD"),
        ("PUT", "/search", "GET, HEAD, POST"),
        ("OPTIONS", "/search", "GET, HEAD, POST"),
        ("POST", "/examples", "GET, HEAD"),
        ("POST", "/upgrade", "GET, HEAD"),
        ("DELETE", "/image", "GET, HEAD"),
        ("PUT", "/health", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_refused(service: Service, method: str, path: str, right: str) -> None:
    answer = ask(service, method, path)
    assert answer.refuses(405, path, right)
    assert answer.headers["allow"] == right


def test_an_unknown_path_is_refused(service: Service) -> None:
    for path in ("/x", "/search/", "//", "/gallery.json", "/../etc/passwd", "/image/x.png", ""):
        assert ask(service, "GET", path).refuses(404, "/search"), path


def test_requests_to_other_hosts_and_from_other_sites_are_refused(
    service: Service, shared: Path, models: list[Model]
) -> None:
    """A page of evil.example whose name leads to 127.0.0.1 shares an origin with what it reads."""
    own = ("127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000", "localhost:9000")  # a tunnel's port
    other = ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "192.0.2.9:8000", "localhost.", "")
    wrong = ("[::1", "localhost/health", "localhost?x", "evil@localhost")
    sites = ("https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1", "http://[::1")
    named = opened(shared, models[2], names=("search.example",))
    network, server = opened(shared, models[2], host="0.0.0.0"), {"host": "server7:8000"}
    for asked, refusal, headers in (
        *((service, "", {"host": host, "origin": f"http://{host}"}) for host in own),
        *((service, "Host", {"host": host}) for host in (*other, *wrong)),
        *((service, "another site", {"origin": origin}) for origin in sites),
        (named, "", {"host": "search.example"}),
        (named, "", {"origin": "https://search.example"}),
        (named, "Host", {"host": "other.example"}),
        (network, "", server),
        (network, "", server | {"origin": "http://server7:8000"}),
        (network, "another site", server | {"origin": "http://evil.example"}),
        (network, "", {"host": "server7/x?"}),  # the path is not read from the Host
    ):
        for path in ("/health", "/x"):
            answer = ask(asked, "GET", path, **headers)
            assert answer.refuses(403, refusal) if refusal else answer.status != 403, headers


def test_images_and_links_of_other_sites_reach_only_the_page(service: Service, pictures: Pictures) -> None:
    """An <img> of another site sends no Origin, but browsers say where it comes from."""
    name = f"id={quote(pictures[0][0])}"
    for path in ("/search", "/image", "/examples", "/upgrade", "/health", "/"):
        for site in ("cross-site", "same-origin", "none", ""):
            answer = ask(service, "GET", path, query=name, sec_fetch_site=site)
            if site == "cross-site" and path != "/":
                assert answer.refuses(403, "another site"), path
            else:
                assert answer.status == 200, (path, site)


def test_every_answer_has_its_headers(service: Service, pictures: Pictures) -> None:
    answers = [ask(service, "GET", path) for path in ("/", "/health", "/x", "/search", "/examples", "/upgrade")]
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


def test_health_is_503_until_the_gallery_is_open(shared: Path, models: list[Model]) -> None:
    service = Service(ServiceOptions(str(shared), "127.0.0.1", top=5, most_bytes=777))
    asked = [ask(service, "GET", path) for path in ("/health", "/examples", "/upgrade")]
    for answer in (*asked, search(service, b"x"), image(service, "x"), like(service, "x")):
        assert answer.refuses(503, "try again")
        assert answer.headers["retry-after"] == "2"
    assert ask(service, "GET", "/").status == 200
    service.open(models[2], Older(models[0].files))
    answer = ask(service, "GET", "/health")
    assert answer.status == 200
    assert answer.json == {"status": "ready", **facts(models), "top": 5, "most_hits": 100, "most_bytes": 777}


def test_a_new_commit_is_used_if_it_can_be(root: Path, images: Path, models: list[Model], pictures: Pictures) -> None:
    service, waiting, old = opened(root, models[2]), opened(root, models[2], refresh=NEVER), opened(root, models[1])
    name, pixels = pictures[22]
    before = search(service, encoded(pixels), "top=100").json
    assert name not in [hit["id"] for hit in before["hits"]]
    put(images, pictures[20:])
    indexed(images, root, models[2])
    newest = root / "commits" / "00000003.json"
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1])
    assert newest.name in ask(service, "GET", "/health").json["warning"], "until the commit is restored"
    newest.write_bytes(whole)
    after = search(service, encoded(pixels), "top=100").json
    assert (after["commit"], after["items"], len(after["hits"]), "warning" in after) == (3, 24, 24, False)
    assert (after["hits"][0]["id"], after["hits"][0]["task"]) == (name, 3)
    assert after["hits"][0]["score"] == pytest.approx(1, abs=1e-5)
    assert image(service, name).status == 200
    assert search(waiting, encoded(pixels)).json["commit"] == 2, "not before `refresh` seconds have passed"
    answer = search(old, encoded(pixels), "top=100").json
    assert (answer["commit"], len(answer["hits"])) == (2, 20)
    assert models[2].card.name in answer["warning"], "the commit has vectors by a later model"
    assert str(root) not in answer["warning"]
    assert ask(old, "GET", "/health").json["warning"] == answer["warning"]


def test_a_commit_whose_items_make_no_sense_is_a_warning(
    root: Path, images: Path, models: list[Model], pictures: Pictures
) -> None:
    service = opened(root, models[2])
    put(images, pictures[20:])
    shard = indexed(images, root, models[2]).commit.shards[-1]
    items = root / "shards" / shard.name / "items.parquet"
    items.write_bytes(pd.read_parquet(items).assign(id=None).to_parquet(index=False))

    def forge(entry: Any) -> Any:
        entry["shards"][-1]["rows"] = sha256(items.read_bytes())
        return entry

    newest = root / "commits" / "00000003.json"
    newest.write_bytes(resealed(newest.read_bytes(), forge))
    answer = search(service, encoded(pictures[0][1]))
    assert answer.json["commit"] == 2
    assert "items.parquet is damaged (its column 'id'" in answer.json["warning"]
    assert ask(service, "GET", "/examples").status == 200


@pytest.mark.parametrize(("kind", "status"), [(OSError, 503), (RuntimeError, 500)])
def test_an_error_shows_neither_traceback_nor_secret(
    shared: Path, kind: type[Exception], status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    service = Service(ServiceOptions(str(shared), "127.0.0.1"))

    def broken() -> Any:
        raise kind("s3 said no to wJalrXUtnFEMI in /home/somebody")

    monkeypatch.setattr(service, "gallery", broken)
    answer = ask(service, "GET", "/health")
    assert answer.refuses(status)
    assert b"s3 said no" not in answer.body
    assert "s3 said no" in caplog.text
    assert "wJalrXUtnFEMI" not in caplog.text


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"port": 0}, ["--port 0"]),
        ({"port": 65536}, ["--port 65536"]),
        ({"top": 0}, ["--top 0", "100"]),
        ({"replicas": 0}, ["--replicas 0"]),
        ({"most_bytes": 0}, ["--max-bytes 0"]),
        ({"host": "192.0.2.77", "port": 8000}, ["--host 192.0.2.77", "--port 8000"]),
        ({"host": "no such name", "port": 8000}, ["--host no such name"]),
        ({"model": "other@3"}, ["--model other"]),
        ({"task": 1}, ["{shared}", "later model"]),
        ({"old": "other@1"}, ["--old other"]),
        ({"old": "model"}, ["--old", "not an earlier model"]),
        ({"check": "missing.json"}, ["--check", "missing.json", "no such file", "upgrade-check"]),
        ({"check": "wrong.json"}, ["--check", "wrong.json", "does not parse"]),
        ({"check": "other.json"}, ["--check", "about a@1 → a@2", "upgrade-check"]),
        ({"gallery": "empty"}, ["empty: the gallery is empty"]),
        ({"gallery": "nowhere"}, ["nowhere: no gallery"]),
        ({"setting": "RAY_SERVE_ENABLE_HA_PROXY"}, ["RAY_SERVE_ENABLE_HA_PROXY"]),
        ({"port": "taken"}, ["--port {port}", "another"]),
    ],
    ids=str,
)
def test_bad_options_are_refused_before_ray_starts(
    tmp_path: Path,
    shared: Path,
    models: list[Model],
    options: dict[str, Any],
    parts: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("started"))
    if "setting" in options:
        monkeypatch.setenv(options["setting"], "1")
    Gallery.open_or_create(tmp_path / "empty")
    (tmp_path / "wrong.json").write_text('{"verdict": "safe"}')
    (tmp_path / "other.json").write_text(saved_answer("a@1", "a@2").model_dump_json())
    write_export(models[options.get("task", 3) - 1].files, tmp_path / "model")
    gallery = tmp_path / options["gallery"] if "gallery" in options else shared
    own = {name: options[name] for name in ("host", "top", "most_bytes") if name in options}
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # may be shared, as Serve's port may
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        port = taken if options.get("port") == "taken" else options.get("port", free_port())
        with refused(*(part.format(port=taken, shared=shared) for part in parts)):
            chosen = ServiceOptions(str(gallery), **({"host": "127.0.0.1"} | own))
            model, replicas = options.get("model", str(tmp_path / "model")), options.get("replicas", 1)
            old = str(tmp_path / "model") if options.get("old") == "model" else options.get("old", "none")
            check = tmp_path / options["check"] if "check" in options else None
            serve(chosen, model, tmp_path, port, replicas, False, old, check)
