"""Numbers, times and sizes as the report writes them, and lists of names in a sentence."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.cells import EMPTY, signed

NOT_RECORDED = "not recorded"


def interval(metric: str, mean: float, low: float, high: float) -> str:
    """`+0.012 [+0.003, +0.021]`, or the mean alone where there is no interval."""
    ends = "" if pd.isna(low) or pd.isna(high) else f" [{signed(metric, low)}, {signed(metric, high)}]"
    return signed(metric, mean) + ends


def duration(seconds: float | None) -> str:
    """`2 h 5 min`, `3 min 20 s` or `12 s`."""
    if seconds is None or pd.isna(seconds):
        return EMPTY
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{seconds:.2g} s" if seconds < 9.5 else f"{whole} s"


def size(count: float | None) -> str:
    """Bytes in kB, MB or GB (of a thousand each)."""
    if count is None or pd.isna(count):
        return EMPTY
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            digits = f"{count / unit:#.3g}".rstrip(".") if count < 999.5 * unit else f"{count / unit:,.0f}"
            return f"{digits} {name}"
    return f"{count:.0f} B"


def moment(text: Any) -> str:
    """A time written down in ISO 8601, to the minute in UTC."""
    if not text:
        return ""
    try:
        when = datetime.fromisoformat(str(text))
    except ValueError:
        return str(text)
    when = when.astimezone(UTC) if when.tzinfo else when
    return f"{when:%Y-%m-%d %H:%M}{' UTC' if when.tzinfo else ''}"


def counted(number: int, word: str, many: str = "") -> str:
    """`1 run`, `3 runs`."""
    return f"{number:,} {word if number == 1 else many or word + 's'}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """`A, B and C`; with too many, how many more there are. Names with commas are parted by semicolons."""
    names = [*names[:most], f"{len(names) - most} more"] if len(names) > most + 1 else list(names)
    if len(names) < 2:
        return names[0] if names else "none"
    if any("," in name for name in names):
        return "; ".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def described(values: Mapping[str, Any] | None) -> str:
    """`workers 2, retries 2`: names and values, but for what is unset or off."""
    known = {key: value for key, value in (values or {}).items() if value is not None and value is not False}
    return ", ".join(f"{str(key).replace('_', ' ')} {value}" for key, value in known.items())


def data_names(runs: pd.DataFrame) -> list[str]:
    """The data sets of the runs, without folders and endings."""
    if "data.name" not in runs:
        return []
    return [data_name(name) for name in runs["data.name"].dropna().astype(str).unique()]


def data_name(name: str) -> str:
    """`birds` for `/somewhere/birds.npz`."""
    return Path(name).stem
