"""A browser for the report: Chromium, without a window and without a network."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opened_page import Open, Opened, watch

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
SETTINGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Not for the session: Playwright keeps an event loop running, and other tests need one of their own."""
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        word = f"no browser: install one of {', '.join(PROGRAMS)}, e.g. `apt-get install chromium`"
        if os.environ.get("CI"):
            pytest.fail(word)
        pytest.skip(word)
    if not os.environ.get("CI"):
        pytest.importorskip("playwright.sync_api")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        started = running.chromium.launch(executable_path=program, args=list(SETTINGS))
        yield started
        started.close()


@pytest.fixture(scope="module")
def open_report(browser: Any) -> Iterator[Open]:
    """A function that opens a file and waits until all is drawn."""
    contexts = []

    def opened(path: Path, width: int = 1400, scheme: str = "light") -> Opened:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(20_000)
        contexts.append(context)
        view = Opened(context.new_page(), path)
        watch(view)
        context.route(re.compile("^(https?|wss?):"), lambda route: route.abort())
        view.page.goto(path.as_uri())
        view.page.wait_for_selector("html[data-ready]")
        return view

    yield opened
    for context in contexts:
        context.close()
