"""Mean and t-interval of many groups at once; `analysis.stats.t_interval` does one."""

from typing import Any

import numpy as np
import pandas as pd
from scipy import special  # scipy.stats takes a second to import

CONFIDENCE = 0.95


def mean_interval(groups: Any, share: bool) -> pd.DataFrame:
    """`mean`, `low`, `high`, `sd` and `n` of a grouped column: mean ± t · s/√n; a share's ends stay within 0 and 1."""
    table: pd.DataFrame = groups.agg(mean="mean", sd="std", n="count")
    n = table["n"].to_numpy(dtype=float)
    factors = special.stdtrit(np.maximum(n - 1, 1), (1 + CONFIDENCE) / 2) / np.sqrt(np.maximum(n, 1))
    half = table["sd"] * np.where(n > 1, factors, np.nan)
    ends = {"low": table["mean"] - half, "high": table["mean"] + half}
    return table.assign(**{name: end.clip(0, 1) if share else end for name, end in ends.items()})
