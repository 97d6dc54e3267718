"""The environment of a process: version of the files, command, machine and how busy it is, packages, memory."""

import contextlib
import os
import platform
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from cl2r.runtime.logs import anonymous_words

PACKAGES = ("torch", "torchvision", "ray", "optuna", "numpy", "pandas", "continuum", "scipy", "matplotlib", "plotly")
BUSY_SHARE, BUSY_SECONDS = (
    0.5,
    0.2,
)  # share of the cores from which a machine is called busy, and how long it is watched
STAT = Path("/proc/stat")
ROOT = Path(__file__).resolve().parents[2]  # the checkout, or the folder that the packages are installed in


def commit(root: Path = ROOT) -> str:
    """Return the commit of the checkout at `root`, and whether files differ from it (except stored results)."""
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():
        return "unknown, not a git checkout"
    changed = _git(root, "status", "--porcelain", "--", ".", ":(exclude)studies/results")
    return f"{_git(root, 'rev-parse', 'HEAD') or 'none yet'}{', with uncommitted changes' if changed else ''}"


def _git(root: Path, *words: str) -> str | None:
    """Return the output of git, None if it fails."""
    try:
        found = subprocess.check_output(["git", "-C", str(root), *words], stderr=subprocess.PIPE)
        return found.decode("utf-8", "replace").strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def shareable_command(words: Sequence[str]) -> list[str]:
    """Return the command as any user could give it in a checkout: no path of the interpreter, no home, no secret."""
    program, path = Path(words[0]), Path(words[0]).resolve()
    head = [program.name]
    if program.name == "__main__.py":
        head = ["python", "-m", program.parent.name]
    elif program.suffix == ".py":
        head = ["python", str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else program.name]
    return [*head, *anonymous_words(words[1:])]


def environment() -> dict[str, Any]:
    """Return facts about this machine and the installed libraries."""
    listing, processor = Path("/proc/cpuinfo"), None
    if listing.exists():
        processor = re.search(r"^model name\s*:\s*(.+)$", listing.read_text(encoding="utf-8"), re.MULTILINE)
    gpus: list[str] = []
    torch: Any = sys.modules.get("torch")  # not imported here: that takes seconds
    if torch is not None and torch.cuda.is_available():
        gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    installed = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor[1] if processor else platform.machine(),
        "cpus": cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": gpus,
        "packages": installed,
    }


def peak_bytes() -> int:
    """Return the largest resident memory of this process so far."""
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held if sys.platform == "darwin" else 1024 * held


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy_note() -> str | None:
    """Return a note if others use half of the cores that this process may use, or more; it watches them for 0.2 s."""
    load = os.getloadavg()[0]
    before = _core_times()
    if before:
        time.sleep(BUSY_SECONDS)
        after = _core_times()
        if len(after) != len(before):  # a core went offline or came back: nothing can be said
            return None
        spent = [(now[0] - then[0], now[1] - then[1]) for then, now in zip(before, after, strict=True)]
        used = sum(busy / total for busy, total in spent if total)
    else:  # not Linux: the mean of the last minute
        used = load
    if used < BUSY_SHARE * cores():
        return None
    return f"note: the machine is busy (load {max(load, used):.1f} on {cores()} cores); times will be longer"


def _core_times() -> list[tuple[int, int]]:
    """Return busy and total time so far of each core that this process may use; nothing if the system does not say."""
    if not STAT.exists():
        return []
    allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    found = [line.split() for line in STAT.read_text(encoding="utf-8").splitlines()]
    times = [[int(word) for word in words[1:9]] for words in found if words and words[0] in allowed]
    return [(sum(spent) - spent[3] - spent[4], sum(spent)) for spent in times]  # without idle and waiting for a disk
