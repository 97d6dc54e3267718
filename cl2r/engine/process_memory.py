"""How much memory this process has held."""

import resource
import sys


def peak_bytes() -> int:
    """The most it ever held at once, resident: a process that trains several links reports the largest so far."""
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held if sys.platform == "darwin" else 1024 * held


def megabytes(count: float) -> str:
    """`1,234 MB`."""
    return f"{count / 1e6:,.0f} MB"
