"""Fixtures of all tests: a tiny data set, one finished run on it, an object store, a browser, the command line."""

import os
import re
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch

from cl2r.cli.main import main
from cl2r.engine.chain import RunResult
from cl2r.storage.path import LocalPath, ObjectPath
from tests.support.command_line import Command, Outputs
from tests.support.object_server import BUCKET, object_server
from tests.support.opened_page import PROGRAMS, Open, Opened, watch
from tests.support.quick import blobs, quick_config, train

_CACHE = tempfile.TemporaryDirectory(prefix="cl2r-cache-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name  # for this process and those it starts
# A shell starts background jobs with SIGINT ignored, and processes that tests start and interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # tensors are small: a second thread would only cost time
faiss.omp_set_num_threads(1)

SETTINGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
SETTINGS += ["--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="session")
def tmp_path_factory(tmp_path_factory: pytest.TempPathFactory) -> pytest.TempPathFactory:
    """Temporary folders, `tmp_path` included, are storage paths."""
    make = tmp_path_factory.mktemp
    tmp_path_factory.mktemp = lambda *given, **named: LocalPath(make(*given, **named))  # type: ignore[method-assign]
    return tmp_path_factory


@pytest.fixture
def tmp_path(tmp_path: Path) -> LocalPath:
    """An empty folder, as a storage path."""
    return LocalPath(tmp_path)


@pytest.fixture(autouse=True)
def any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No line of a command depends on how busy or how slow the machine of the tests is."""
    monkeypatch.setattr("cl2r.runtime.environment.busy_note", lambda: None)
    monkeypatch.setattr("cl2r.runtime.progress.SLOW_S", 3600.0)
    monkeypatch.setattr("cl2r.runtime.progress.FIRST_LINE_S", 3600.0)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an .npz file with 12 classes to learn and 6 others to verify on."""
    rng = np.random.default_rng(7)
    x_train, y_train = blobs(12, rng)
    x_open, y_open = blobs(6, rng)
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    np.savez(path, x_train=x_train, y_train=y_train, x_open=x_open, y_open=y_open + 100)
    return path


@pytest.fixture(scope="session")
def finished_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the storage of `finished`; tests must not write to it."""
    return tmp_path_factory.mktemp("finished")


@pytest.fixture(scope="session")
def finished(tiny: Path, finished_root: Path) -> RunResult:
    """Return a finished quick run of CL²R."""
    return train(quick_config(tiny), finished_root)


@pytest.fixture(scope="session")
def object_query() -> Iterator[str]:
    """Start an object store on this machine and return the query that its addresses need."""
    with object_server() as query:
        yield query


@pytest.fixture
def remote(object_query: str) -> ObjectPath:
    """Return an empty folder of the object store."""
    return ObjectPath(f"s3://{BUCKET}/{uuid.uuid4().hex}?{object_query}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start a browser; one per module, because Playwright keeps an event loop running that other tests cannot share."""
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        word = f"no browser: install one of {', '.join(PROGRAMS)}, e.g. `apt-get install chromium`"
        if os.environ.get("CI"):
            pytest.fail(f"{word}; with $CI set, tests in a browser must run")
        pytest.skip(word)
    if not os.environ.get("CI"):
        pytest.importorskip("playwright.sync_api")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        started = running.chromium.launch(executable_path=program, args=SETTINGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def open_report(browser: Any) -> Iterator[Open]:
    """Return a function that opens a page without a network and waits until everything is drawn."""
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


@pytest.fixture
def cl2r(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Return a function that runs `cl2r ...` in an empty folder and returns exit code, stdout and stderr."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")

    def call(*words: object) -> Outputs:
        monkeypatch.setattr(sys, "argv", ["cl2r", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return stopped.value.code, out, err

    return call
