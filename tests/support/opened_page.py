"""A page that is open in a browser, and the errors and requests it made."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""Suitable browsers; the Makefile looks for the same ones."""


@dataclass
class Opened:
    """An open page; `complaints` are errors, warnings, and requests for anything but the file."""

    page: Any
    path: Path
    complaints: list[str] = field(default_factory=list)


Open = Callable[..., Opened]


def watch(view: Opened) -> None:
    """Record errors, warnings, and requests for anything but the file itself."""

    def heard(message: Any) -> None:
        if message.type in ("error", "warning"):
            view.complaints.append(f"{message.type}: {message.text}")

    def asked(request: Any) -> None:
        if not request.url.startswith((view.path.as_uri(), "data:", "blob:")):
            view.complaints.append(f"asked for {request.url}")

    view.page.on("console", heard)
    view.page.on("pageerror", lambda error: view.complaints.append(f"exception: {error}"))
    view.page.on("request", asked)
