"""`about.json` of a study: by which command, version and machine it was run, and when.

Drivers write it; training processes have no need of it. It may be shown to others, so it holds no name of a user or of
a machine, no path of a home directory and no secret. The machine is the driver's; workers on other nodes may have
other ones.
"""

import json
import os
import platform
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from cl2r import __version__
from cl2r.checkout import ROOT, commit
from cl2r.errors import InputError
from cl2r.files import write_file
from cl2r.privacy import anonymous_words
from cl2r.study.folder import StudyFolder
from cl2r.study.ledger import Event

FORMAT = 1
PACKAGES = (
    "torch",
    "torchvision",
    "ray",
    "optuna",
    "numpy",
    "pandas",
    "continuum",
    "scipy",
    "matplotlib",
    "plotly",
)


def write_about(folder: StudyFolder, resources: dict[str, Any], expected_runs: int) -> None:
    """As a driver starts, after it has opened the ledger."""
    entry = {"format": FORMAT, "version": __version__, "commit": commit(), "command": command(sys.argv)}
    entry |= times(folder.ledger.events())
    entry |= {"expected_runs": expected_runs, "resources": resources, "environment": environment()}
    _write(folder, entry)


def update_about(folder: StudyFolder) -> None:
    """Bring the times up to date; a study whose driver left no such file stays without."""
    entry = read_about(folder)
    if entry:
        _write(folder, entry)


def read_about(folder: StudyFolder) -> dict[str, Any]:
    """The file, with the times as the ledger has them now; empty if there is none."""
    if not folder.about.exists():
        return {}
    try:
        entry = dict(json.loads(folder.about.read_bytes()))
    except (ValueError, TypeError) as error:
        raise InputError(f"{folder.about} is damaged: {error}") from error
    return {**entry, **times(folder.ledger.events())}


def _write(folder: StudyFolder, entry: dict[str, Any]) -> None:
    write_file(folder.about, json.dumps(entry, indent=1, ensure_ascii=False).encode())


def times(events: Sequence[Event]) -> dict[str, Any]:
    """When the first driver began and the last one ended (None if it has not), and how long drivers were at work."""
    sessions: list[list[Event]] = []
    for event in events:
        if event.kind == "opened":
            sessions.append([])
        if sessions:
            sessions[-1].append(event)
    closed = [event for session in sessions[-1:] for event in session if event.kind == "closed"]
    return {
        "began": _moment(sessions[0][0]) if sessions else None,
        "ended": _moment(closed[-1]) if closed else None,
        "seconds": round(sum(session[-1].time_ns - session[0].time_ns for session in sessions) / 1e9, 3),
    }


def _moment(event: Event) -> str:
    return datetime.fromtimestamp(event.time_ns / 1e9, UTC).isoformat(timespec="seconds")


def command(words: Sequence[str]) -> list[str]:
    """The command as anybody could give it in a checkout: no place of the interpreter, no home, no secret."""
    program = Path(words[0])
    head = [program.name]
    if program.name == "__main__.py":
        head = ["python", "-m", program.parent.name]
    elif program.suffix == ".py":
        inside = program.resolve().is_relative_to(ROOT)
        head = ["python", str(program.resolve().relative_to(ROOT)) if inside else program.name]
    return [*head, *anonymous_words(words[1:])]


def environment() -> dict[str, Any]:
    """This machine and the libraries on it."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": _gpus(),
        "packages": _versions(),
    }


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", listing.read_text(), re.MULTILINE) if listing.exists() else None
    return found[1] if found else platform.machine()


def _gpus() -> list[str]:
    """By name, as torch sees them; nobody waits here for torch to be imported."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def _versions() -> dict[str, str]:
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed
