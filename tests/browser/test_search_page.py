"""The search service on Ray Serve, and its page in a browser."""

import base64
import contextlib
import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import playwright.sync_api as playwright_sync
import psutil
import pytest
from axe_playwright_python.sync_playwright import Axe

from cl2r.gallery.uploads import UploadLimits
from tests.support.galleries import Trained, free_port, indexed, trained, write_images
from tests.support.ports import LOOPBACK, listening

START_SECONDS = 300
"""Time for Ray to start on a busy machine."""


@dataclass(frozen=True)
class Served:
    """A running service and what it serves."""

    address: str
    folder: Path
    """Folder of the gallery and its images."""
    chain: Trained
    process: int
    killed: list[int] = field(default_factory=list)
    """Processes of Ray that a test has killed, which Ray tells the user."""


@pytest.fixture(scope="module")
def served(tiny: Path) -> Iterator[Served]:
    """Serve 14 images by φ_1 and 7 by φ_2 with φ_3; SIGTERM must end the service without an error."""
    folder = Path(tempfile.mkdtemp(prefix="cl2r-", dir="/tmp"))  # short, for Ray's sockets
    chain, port = trained(tiny), free_port()
    for part, rows, task in (("a", slice(0, 84, 6), 1), ("b", slice(3, 84, 12), 2)):
        write_images(folder / part, chain.images[rows])
        indexed(folder / part, folder / "gallery", chain.model(task), prefix=f"{part}/")
    command = [sys.executable, "-m", "cl2r", "serve", folder / "gallery", "--model", f"{chain.run}@3"]
    command += ["--storage", chain.storage, "--port", port, "--top", 6]
    environment = {**os.environ, "RAY_ADDRESS": "local", "RAY_TMPDIR": str(folder)}
    pipes = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(list(map(str, command)), env=environment, **pipes)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_until_ready(process, address)
        served = Served(address, folder, chain, process.pid)
        yield served
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        announced = f"{chain.run}@3 searches 21 images: {address} (Ctrl-C stops)\n{chain.run}@1 beside it\nstopped\n"
        assert (process.returncode, err) == (0, f"loading torch…\n{announced}")
        said = [line for line in out.splitlines() if not any(f"Worker PID: {pid} " in line for pid in served.killed)]
        assert said == []
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_ready(process: subprocess.Popen[str], address: str) -> None:
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
            assert answer.status == 200
            return
        time.sleep(0.2)
    process.kill()
    pytest.fail(f"no service: {process.communicate()}")


@dataclass
class View:
    """A page of the service; `complaints` are errors and requests to other addresses."""

    page: Any
    complaints: list[str]


@pytest.fixture(scope="module")
def visit(browser: Any, served: Served) -> Iterator[Callable[..., View]]:
    """A function that opens the page in a new context."""
    contexts = []

    def opened(width: int = 1400, scheme: str = "light") -> View:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(20_000)
        contexts.append(context)
        view = View(context.new_page(), [])
        view.page.on("pageerror", lambda error: view.complaints.append(f"exception: {error}"))
        view.page.on("console", lambda message: heard(view, message))
        view.page.on("request", lambda request: asked(view, request))
        view.page.goto(served.address)
        view.page.wait_for_selector("html[data-ready]")
        return view

    def heard(view: View, message: Any) -> None:
        if message.type in ("error", "warning") and "status of 4" not in message.text:
            view.complaints.append(message.text)

    def asked(view: View, request: Any) -> None:
        if not request.url.startswith((f"{served.address}/", "data:", f"blob:{served.address}/")):
            view.complaints.append(f"asked for {request.url}")

    yield opened
    for context in contexts:
        context.close()


def first_image(served: Served) -> Path:
    return min((served.folder / "a").glob("*/*.png"))


def check_hits(page: Any, count: int) -> None:
    """Check that both models have `count` hits with their images, best first."""
    for column, versions in (("#hits", {"φ1", "φ2", "φ3"}), ("#old-hits", {"φ1"})):
        page.wait_for_function(
            "([column, count]) => document.querySelectorAll(`${column}:not(.stale) li`).length === count",
            arg=[column, count],
        )
        page.locator(f"{column} li").last.scroll_into_view_if_needed()  # images are loaded when they are near
        page.wait_for_function(
            "(column) => [...document.querySelectorAll(`${column} img`)].every((image) => image.naturalWidth === 16)",
            arg=column,
        )
        texts = page.locator(f"{column} .score").all_inner_texts()
        assert all(re.fullmatch(r"-?\d\.\d{3}", text) for text in texts), texts
        assert texts == sorted(texts, key=float, reverse=True)
        assert page.locator(f"{column} .rank").all_inner_texts() == [f"{rank}." for rank in range(1, count + 1)]
        assert set(page.locator(f"{column} .by").all_inner_texts()) <= versions


def check_fits(page: Any) -> None:
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide == 0


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (1400, "dark"), (400, "light"), (400, "dark")])
def test_a_chosen_image_is_searched(visit: Callable[..., View], served: Served, width: int, scheme: str) -> None:
    view = visit(width, scheme)
    page = view.page
    status = page.inner_text("#gallery")
    assert re.match(r"2[12] images, vectors by φ1 \(14\), φ2 \(7\)", status), "another test adds one image"
    assert status.endswith(f"queries by φ3 ({served.chain.run}@3)")
    page.set_input_files("#file", first_image(served))
    check_hits(page, 6)
    assert page.inner_text("#said").startswith("6 hits by the new model, 6 by the old one, in ")
    assert page.inner_text("#name") == first_image(served).name
    assert re.fullmatch(r"16 × 16 pixels, \d+ bytes", page.inner_text("#size"))
    assert page.evaluate("document.getElementById('preview').naturalWidth") == 16
    assert page.locator(".mark").count() == 0, "nobody knows the label of an upload"
    check_fits(page)
    page.select_option("#top", "12")
    check_hits(page, 12)
    assert view.complaints == []


def test_after_a_refused_file_the_next_image_is_searched(
    visit: Callable[..., View], served: Served, tmp_path: Path
) -> None:
    (tmp_path / "fake.png").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (tmp_path / "large.png").write_bytes(bytes(10**7 + 1))
    view = visit(400)
    page = view.page
    page.set_input_files("#file", first_image(served))
    check_hits(page, 6)
    for name, words in (
        ("fake.png", "Not a readable image; send one of BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP"),
        ("large.png", "The image is larger than 10 MB; scale it down"),
    ):
        page.set_input_files("#file", tmp_path / name)
        page.wait_for_function("(words) => document.getElementById('problem').textContent === words", arg=words)
        assert page.is_visible("#problem")
        assert not page.is_visible("#again")
        assert page.locator("#hits li").count() == 0
        check_fits(page)
    page.set_input_files("#file", first_image(served))
    check_hits(page, 6)
    assert not page.is_visible("#problem")
    assert view.complaints == []


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_an_example_is_searched_by_both_models(visit: Callable[..., View], width: int, scheme: str) -> None:
    view = visit(width, scheme)
    page = view.page
    page.wait_for_selector("#examples button")
    names = page.locator("#examples button").all_inner_texts()
    assert len(names) == 8
    assert set(names) == {"c00", "c01", "c02", "c03"}
    chosen = page.get_by_role("button", name="c02").first
    chosen.click()
    check_hits(page, 6)
    own = chosen.get_attribute("title")
    assert page.inner_text("#size") == f"of the gallery: {own}"
    assert chosen.get_attribute("aria-pressed") == "true"
    assert page.locator("#examples [aria-pressed=true]").count() == 1
    assert own not in page.locator(".hits img").evaluate_all("(all) => all.map((image) => image.alt)")
    for column in ("new", "old"):
        hits = page.locator(f"#by-{column} li")
        labels, marks = hits.locator(".label").all_inner_texts(), hits.locator(".mark").all_inner_texts()
        assert marks == ["same label" if label == "c02" else "other label" for label in labels]
        assert page.inner_text(f"#{column}-text").startswith(f"{labels.count('c02')} of 6 are “c02”.")
    assert page.inner_text("#old-text").endswith(
        "φ1 searches the 14 images that it or a model before it indexed, as before the upgrade."
    )
    new, old = (page.locator(f"#by-{column}").bounding_box() for column in ("new", "old"))
    assert (new["y"] == old["y"]) == (width == 1400), "side by side, on a phone one below the other"
    assert (new["x"] == old["x"]) == (width == 400)
    check_fits(page)
    check_accessible(page)
    assert view.complaints == []


@pytest.mark.parametrize(("width", "scheme"), [(1400, "dark"), (400, "light")])
def test_the_verdict_on_the_upgrade_is_shown(
    visit: Callable[..., View], served: Served, width: int, scheme: str
) -> None:
    view = visit(width, scheme)
    page = view.page
    page.wait_for_selector("#numbers:visible")
    with urllib.request.urlopen(f"{served.address}/upgrade", timeout=20) as answer:
        found = json.load(answer)
    assert page.inner_text("#verdict") == f"Upgrade from φ1 to φ3: {found['verdict']}"
    assert page.inner_text("#sentence") == found["sentence"]
    assert page.locator("#numbers dd").all_inner_texts() == [f"{found[name]:.3f}" for name in ("old", "cross", "new")]
    assert f"{found['pairs']:,} pairs" in page.inner_text("#pairs")
    check_fits(page)
    check_accessible(page)
    assert view.complaints == []


def test_a_verdict_is_said_once_and_ends_with_the_commit_it_was_measured_on(
    visit: Callable[..., View], served: Served
) -> None:
    page = visit().page
    with urllib.request.urlopen(f"{served.address}/health", timeout=20) as answer:
        commit = json.load(answer)["commit"]
    numbers = {"old": 0.5, "cross": 0.4, "new": 0.7, "pairs": 9}
    judged = {"verdict": "not safe", "sentence": "Not so well.", "old_model": "a@1", **numbers}
    answers = [
        *[{"status": "measuring"}] * 3,
        {"status": "known", "saved": False, **judged},
        {"status": "measuring"},
        {"status": "known", "saved": True, **judged},
    ]
    waiting = iter(answers)
    page.route("**/upgrade", lambda route: route.fulfill(json={"commit": commit + 1, **next(waiting)}))
    page.add_init_script(
        """window.heard = [];
        addEventListener("DOMContentLoaded", () => {
            const place = document.getElementById("sentence");
            new MutationObserver(() => heard.push(place.textContent)).observe(place, { childList: true });
        });"""
    )
    page.reload()
    page.wait_for_selector("#numbers:visible")
    assert page.evaluate("heard") == ["It is being measured on images of this gallery.", "Not so well."]
    assert page.inner_text("#pairs") == "Accuracy on 9 pairs of images of this gallery, with 95\u00a0% intervals."

    def newer(route: Any) -> None:
        answer = route.fetch()
        gone = {"commit": commit + 1, "old": {"why": "all was indexed again"}}
        route.fulfill(response=answer, json=answer.json() | gone)

    page.route("**/search?*", newer)
    page.set_input_files("#file", first_image(served))
    page.wait_for_selector("#verdict:has-text('…')")
    assert not page.is_visible("#numbers")
    assert not page.is_visible("#pairs")
    page.wait_for_selector("#numbers:visible")
    assert "a saved check, which was not measured on this gallery" in page.inner_text("#pairs")
    assert "of this gallery" not in page.inner_text("#pairs")


def test_an_old_verdict_disappears_when_there_is_no_old_model_any_more(
    visit: Callable[..., View], served: Served
) -> None:
    page = visit().page
    page.wait_for_selector("#numbers:visible")
    gone = {"commit": 99, "old": {"why": "all was indexed again"}}
    page.route("**/upgrade", lambda route: route.fulfill(json={"commit": 99, "status": "unknown", "why": "gone"}))

    def newer(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | gone)

    page.route("**/search?*", newer)
    page.set_input_files("#file", first_image(served))
    page.wait_for_selector("#upgrade", state="hidden")
    assert page.inner_text("#why") == "No old model beside it: all was indexed again."


def check_accessible(page: Any) -> None:
    """Check that axe-core finds nothing serious."""
    found = Axe().run(page).response["violations"]
    grave = [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")]
    assert grave == []


def hand_over(page: Any, kind: str, content: bytes | None, name: str = "") -> None:
    """Dispatch a drag or paste event with a file, or with text if there is no content."""
    page.evaluate(
        """([kind, content, name]) => {
            const held = new DataTransfer();
            if (content === null) held.setData("text/plain", "words");
            else held.items.add(new File([Uint8Array.from(atob(content), (sign) => sign.charCodeAt(0))], name));
            const [carrier, field] = kind === "paste" ? [ClipboardEvent, "clipboardData"] : [DragEvent, "dataTransfer"];
            document.body.dispatchEvent(new carrier(kind, { bubbles: true, cancelable: true, [field]: held }));
        }""",
        [kind, None if content is None else base64.b64encode(content).decode(), name],
    )


def test_an_image_can_be_dropped_and_pasted(visit: Callable[..., View], served: Served) -> None:
    view = visit()
    page = view.page
    content = first_image(served).read_bytes()
    for kind in ("drop", "paste"):
        hand_over(page, kind, content, f"{kind}.png")
        page.wait_for_function("(name) => document.getElementById('name').textContent === name", arg=f"{kind}.png")
        check_hits(page, 6)
        assert re.fullmatch(r"16 × 16 pixels, \d+ bytes", page.inner_text("#size"))
    assert view.complaints == []


def test_the_page_says_where_to_drop_and_what_was_wrong(visit: Callable[..., View], served: Served) -> None:
    view = visit(400)
    page = view.page
    content = first_image(served).read_bytes()
    for end in ("dragleave", "drop"):
        hand_over(page, "dragover", content, "a.png")
        assert page.inner_text("#veil") == "Drop the image to search with it"
        assert page.locator("#drop.over").count() == 1
        hand_over(page, end, content, "a.png")
        assert not page.is_visible("#veil")
        assert page.locator("#drop.over").count() == 0
    check_hits(page, 6)
    hand_over(page, "drop", None)
    assert page.inner_text("#problem") == "That is no file. Drop an image file."
    hand_over(page, "paste", None)
    assert page.inner_text("#problem") == "There is no image in the clipboard."
    hand_over(page, "drop", b"no image", "notes.txt")
    page.wait_for_function("() => document.getElementById('problem').textContent.startsWith('Not a readable image')")
    assert (page.inner_text("#name"), page.inner_text("#size")) == ("notes.txt", "8 bytes")
    assert page.is_visible("#unseen")
    check_accessible(page)
    assert view.complaints == []


def test_the_page_works_with_the_keyboard(visit: Callable[..., View], served: Served) -> None:
    page = visit().page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "file"
    for attempt in range(3):  # headless Chromium may drop a key while the page is busy
        try:
            with page.expect_file_chooser(timeout=8000) as chooser:
                page.keyboard.press("Space")
            break
        except playwright_sync.TimeoutError:
            if attempt == 2:
                raise
    chooser.value.set_files(first_image(served))
    check_hits(page, 6)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "top"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement === document.querySelector('#examples button')")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.getElementById('size').textContent.startsWith('of the gallery')")
    check_hits(page, 6)


def test_added_images_are_found_without_a_restart(visit: Callable[..., View], served: Served) -> None:
    page, new = visit().page, served.folder / "c"
    write_images(new, served.chain.images[5:6])
    indexed(new, served.folder / "gallery", served.chain.model(3), prefix="c/")
    end = time.monotonic() + 60
    while page.locator("#hits .by").all_inner_texts()[:1] != ["φ3"] and time.monotonic() < end:
        page.set_input_files("#file", next(new.glob("*/*.png")))
        page.wait_for_selector("#hits:not(.stale) li")
        page.wait_for_timeout(300)
    assert page.locator("#hits .score").first.inner_text() == "1.000"
    assert page.inner_text("#gallery").startswith("22 images, vectors by φ1 (14), φ2 (7), φ3 (1)")


def test_a_search_is_repeated_until_the_service_is_back(visit: Callable[..., View], served: Served) -> None:
    page = visit().page
    page.context.set_offline(True)
    page.set_input_files("#file", first_image(served))
    page.wait_for_selector("#problem:visible")
    assert page.inner_text("#problem") == "The service does not answer; trying again …"
    assert page.inner_text("#said") == "Not searched."
    page.wait_for_event("requestfailed", lambda request: "/search?" in request.url)  # others may fail too
    assert page.is_visible("#again"), "for those who do not want to wait"
    page.context.set_offline(False)
    check_hits(page, 6)
    assert not page.is_visible("#problem")
    assert not page.is_visible("#again")


@pytest.mark.parametrize("gone", [False, True])
def test_a_file_that_has_changed_since_it_was_chosen_is_not_tried_for_ever(
    visit: Callable[..., View], served: Served, tmp_path: Path, gone: bool
) -> None:
    page, file = visit().page, tmp_path / "mine.png"
    shutil.copy(first_image(served), file)
    page.set_input_files("#file", file)
    check_hits(page, 6)
    if gone:
        file.unlink()
    else:
        file.write_bytes(bytes(99))
        os.utime(file, (1, 1))
    page.select_option("#top", "12")
    page.wait_for_selector("#problem:visible")
    assert page.inner_text("#problem") == "The file cannot be read any more; choose it again"
    assert not page.is_visible("#again")
    page.set_input_files("#file", first_image(served))
    check_hits(page, 12)


def test_forty_slow_uploads_do_not_hold_up_a_search(served: Served) -> None:
    """Half of them send a byte, the others nothing. Without limits they would hold up the search for a minute."""

    def seconds() -> float:
        question = urllib.request.Request(f"{served.address}/search", first_image(served).read_bytes())
        began = time.monotonic()
        with urllib.request.urlopen(question, timeout=90) as answer:
            assert len(json.load(answer)["hits"]) == 6
        return time.monotonic() - began

    host, port = served.address.removeprefix("http://").split(":")
    head = b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n"
    alone = seconds()
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection((host, int(port)), 60)) for _ in range(40)]
        for place, connection in enumerate(slow):
            connection.sendall(head + b"x" * (place % 2))
        while len(select.select(slow, [], [], 60)[0]) < 40 - UploadLimits.side_by_side:  # the first that are ended
            time.sleep(0.01)
        beside = seconds()
        waiting = 40 - len(select.select(slow, [], [], 0)[0])
        assert beside < max(1, 20 * alone) or waiting > 20, "not only after the slow ones had been ended"
        for connection in slow:
            answer = connection.recv(9999).decode().lower()
            assert answer.startswith("http/1.1 408")
            assert "connection: close" in answer


def test_a_killed_proxy_is_replaced(served: Served) -> None:
    port = int(served.address.rpartition(":")[2])
    found = [each for each in psutil.net_connections("tcp4") if each.status == "LISTEN" and each.laddr.port == port]
    (proxy,) = {each.pid for each in found if each.pid}
    served.killed.append(proxy)
    os.kill(proxy, signal.SIGKILL)
    began = time.monotonic()
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{served.address}/health", timeout=15) as answer:
            assert json.load(answer)["status"] == "ready"
            break
        assert time.monotonic() - began < 60, "no answer for a minute"
        time.sleep(0.1)
    assert time.monotonic() - began < 25, "with Serve's defaults it is 33 s"


def test_only_this_machine_can_connect(served: Served) -> None:
    """None of the service's processes listens at another address than loopback, those of Ray included."""
    question = urllib.request.Request(f"{served.address}/search", first_image(served).read_bytes())
    with urllib.request.urlopen(question, timeout=90) as answer:
        assert len(json.load(answer)["hits"]) == 6
    addresses = listening(psutil.Process(served.process))
    assert ("127.0.0.1", int(served.address.rpartition(":")[2])) in addresses
    assert {"gcs_server", "raylet"} <= set(addresses.values())
    assert any(name.startswith("ray::ServeRepli") for name in addresses.values())
    assert {at: name for at, name in addresses.items() if at[0] not in LOOPBACK} == {}


def test_serve_passes_refusals_on(served: Served) -> None:
    """An upload of undeclared length, and a foreign host name that points here."""
    parts = (bytes(10**5) for _ in range(500))
    for words, status in (
        (("POST", "/search", parts), 413),
        (("GET", "/health", None, {"Host": "evil.example"}), 403),
    ):
        connection = http.client.HTTPConnection(served.address.removeprefix("http://"), timeout=60)
        connection.request(*words, encode_chunked=True)
        answer = connection.getresponse()
        assert (answer.status, list(json.load(answer))) == (status, ["error"])
        connection.close()
