"""How the settings of runs differ from the paper's preset: only equal settings give comparable numbers."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cl2r.config import field_keys, fields
from cl2r.layers import read_layer, resolve

FREE = frozenset(
    {
        *("seed", "threads", "method.name", "method.classifier", "method.fd", "scenario.n_tasks", "adapter.name"),
        *("eval.bootstrap", "eval.pairs_seed", "data.root", "data.loaders"),
    }
)
"""Fields that a row or column of a table names, that change no metric, or that say which random pairs are drawn.

All others are the budget: data, network, epochs and schedule, memory, batches, λ, options of the method.
"""


@dataclass(frozen=True)
class Change:
    """A field whose value is not the preset's, and the methods it was changed for (none: for all)."""

    field: str
    preset: str
    used: str
    methods: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = f" ({', '.join(self.methods)})" if self.methods else ""
        return f"{self.field}: {self.preset} -> {self.used}{names}"


def changes(runs: pd.DataFrame, preset: str, varied: Collection[str] = ()) -> list[Change]:
    """Fields in which runs differ from the preset, resolved for the method of each; `varied` are those of a grid."""
    compared = [name for name in field_keys() if name in runs and name not in FREE and name not in varied]
    methods = [str(name) for name in runs["method.name"].unique()]
    found: dict[tuple[str, str, str], list[str]] = {}
    for method in methods:
        expected = preset_fields(preset, method)
        own = runs[runs["method.name"] == method]
        for name in compared:
            wanted = _plain(expected.get(name))
            for value in sorted({_plain(value) for value in own[name]} - {wanted}):
                found.setdefault((name, _short(name, wanted), _short(name, value)), []).append(method)
    return [Change(*key, () if names == methods else tuple(names)) for key, names in sorted(found.items())]


def preset_fields(preset: str, method: str) -> Mapping[str, Any]:
    """All fields of the preset with this method."""
    return fields(resolve([read_layer(preset), {"method": {"name": method}}]))


def _plain(value: Any) -> str:
    """As text: frames have JSON for lists, text for numbers that may be words, and several kinds of nothing."""
    if isinstance(value, list):
        return json.dumps(value)
    if pd.isna(value):
        return "unset"
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    try:
        return f"{float(value):.12g}"
    except ValueError:
        return str(value)


def _short(name: str, value: str) -> str:
    """A file's name says enough, and is no secret."""
    return Path(value).name if name == "data.name" else value
