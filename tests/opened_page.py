"""A page in a browser, and what it did that it should not."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""The browsers that will do; the Makefile looks for the same."""


@dataclass
class Opened:
    """`complaints` are errors, warnings, and requests for anything but the file."""

    page: Any
    path: Path
    complaints: list[str] = field(default_factory=list)


Open = Callable[..., Opened]


def watch(view: Opened) -> None:
    """Write down errors, and requests for anything but the file itself."""

    def heard(message: Any) -> None:
        if message.type in ("error", "warning"):
            view.complaints.append(f"{message.type}: {message.text}")

    def asked(request: Any) -> None:
        if not request.url.startswith((view.path.as_uri(), "data:", "blob:")):
            view.complaints.append(f"asked for {request.url}")

    view.page.on("console", heard)
    view.page.on("pageerror", lambda error: view.complaints.append(f"exception: {error}"))
    view.page.on("request", asked)
