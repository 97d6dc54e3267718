"""Figures as short JSON: what the page shows, to the last digit it shows, and no more. Infinity is not shown."""

import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from markupsafe import Markup

SHOWN = 3
"""Decimals of accuracies and metrics everywhere in the report."""


def floats(values: Any) -> npt.NDArray[np.float64]:
    """As floats, whatever kind of column it was; NaN where empty."""
    return pd.to_numeric(pd.Series(values), errors="coerce").to_numpy(dtype=float, na_value=np.nan)


def exact(values: Any) -> list[float | None]:
    """Every digit: for figures from which the page computes others."""
    return [value if math.isfinite(value) else None for value in floats(values).tolist()]


def shown(values: Any, decimals: int = SHOWN) -> list[float | None]:
    """Rounded once, as Python's own formatting does, so that the page shows what the tables show."""
    return [round(value, decimals) if math.isfinite(value) else None for value in floats(values).tolist()]


def significant(values: Any, digits: int = 4) -> list[float | None]:
    """Rounded to some significant digits: for lines of a figure."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in floats(values).tolist()]


def embedded(value: Any) -> Markup:
    """JSON that nothing can break out of inside <script>: no `<`, `>` or `&` is left as such."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)
