"""Durations, sizes, counts and lists of names as text."""

from collections.abc import Sequence


def clock(seconds: float) -> str:
    """Return `1:02:03` or `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def duration(seconds: float) -> str:
    """Return `2 h 5 min`, `3 min 20 s` or `12 s`."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{seconds:.2g} s" if seconds < 9.5 else f"{whole} s"


def size(count: float) -> str:
    """Return a number of bytes in B, kB, MB or GB (powers of 1000), with three digits."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            digits = f"{count / unit:#.3g}".rstrip(".") if count < 999.5 * unit else f"{count / unit:,.0f}"
            return f"{digits} {name}"
    return f"{count:.0f} B"


def megabytes(count: float) -> str:
    """Return `1,234 MB`, for values that are compared with each other."""
    return f"{count / 1e6:,.0f} MB"


def printable(text: str) -> str:
    """Return a name of a file on one line: control characters and bytes that are no UTF-8 are escaped."""
    shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in shown)


def counted(number: int, word: str, plural: str = "") -> str:
    """Return `1 run` or `3 runs`."""
    return f"{number:,} {word if number == 1 else plural or word + 's'}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """Return `A, B and C`; beyond `most` names, how many more there are. Names with commas: `A, B; and C`."""
    names = [*names[:most], f"{len(names) - most} more"] if len(names) > most + 1 else list(names)
    if len(names) < 2:
        return names[0] if names else "none"
    if any("," in name for name in names):
        return f"{'; '.join(names[:-1])}; and {names[-1]}"
    return f"{', '.join(names[:-1])} and {names[-1]}"
