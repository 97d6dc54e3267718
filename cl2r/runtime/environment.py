"""The environment of a process: version of the files, command, machine, packages, memory."""

import contextlib
import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from cl2r.runtime.logs import anonymous_words

PACKAGES = ("torch", "torchvision", "ray", "optuna", "numpy", "pandas", "continuum", "scipy", "matplotlib", "plotly")
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
        return subprocess.check_output(["git", "-C", str(root), *words], stderr=subprocess.PIPE, text=True).strip()
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
        processor = re.search(r"^model name\s*:\s*(.+)$", listing.read_text(), re.MULTILINE)
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
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": gpus,
        "packages": installed,
    }


def peak_bytes() -> int:
    """Return the largest resident memory of this process so far."""
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held if sys.platform == "darwin" else 1024 * held
