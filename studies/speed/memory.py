"""The most memory that a piece of work holds, in a process that does nothing else. Linux only."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

from cl2r.errors import InputError

STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FORGET_PEAK = "5"
MEGABYTE = 1e6
Result = TypeVar("Result")


def peak_alone(work: Callable[..., object], *words: object) -> float:
    """Megabytes above what the process held before, libraries loaded. `work` is a function of a module."""
    return alone(_peak, work, words)


def require_linux() -> None:
    """Refuse to measure where the kernel does not tell."""
    if not FORGET.exists():
        raise InputError(f"{FORGET} is not there: memory (--parts simplex tar) is measured on Linux only")


def alone(work: Callable[..., Result], *words: object) -> Result:
    """Call `work` in a fresh process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *words).result()


def _peak(work: Callable[..., object], words: tuple[object, ...]) -> float:
    FORGET.write_text(FORGET_PEAK)  # loading libraries may have taken more for a moment
    before = held("VmRSS")
    work(*words)
    return (held("VmHWM") - before) / MEGABYTE


def held(field: str) -> float:
    """Bytes that this process holds (VmRSS), or held at most (VmHWM)."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return 1024 * float(line.split()[1])
