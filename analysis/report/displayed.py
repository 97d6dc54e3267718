"""A study as others may read it: data sets by their names alone, and no word about people, machines or secrets."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis.groups import config_fields
from analysis.report.words import data_name
from analysis.study import Study
from cl2r.privacy import anonymous, anonymous_entries


def displayed(study: Study) -> Study:
    """With texts of `runs` cleaned; settings that were told apart before still are."""
    runs = study.runs
    cleaned = {name: _cleaned(runs[name]) for name in config_fields(runs) if _texts(runs[name])}
    if "reason" in runs:
        cleaned["reason"] = runs["reason"].map(lambda value: anonymous(value) if isinstance(value, str) else value)
    return replace(study, runs=runs.assign(**cleaned))


def named_data(value: Any, key: str = "") -> Any:
    """Entries of a specification with data sets by their names; `key` is the dotted name of the value."""
    if isinstance(value, Mapping):
        return {name: named_data(entry, f"{key}.{name}") for name, entry in value.items()}
    if isinstance(value, list):
        return [named_data(entry, key) for entry in value]
    return data_name(value) if isinstance(value, str) and f".{key}".endswith(".data.name") else value


def _texts(values: pd.Series) -> list[str]:
    return [value for value in values.drop_duplicates() if isinstance(value, str)]


def _cleaned(values: pd.Series) -> pd.Series:
    """Texts that cleaning makes equal are numbered."""
    shown = {text: _short(str(values.name), text) for text in _texts(values)}
    counts, seen = Counter(shown.values()), Counter[str]()
    for text, short in shown.items():
        seen[short] += 1
        shown[text] = f"{short} ({seen[short]})" if counts[short] > 1 else short
    return values.astype(object).map(lambda value: shown[value] if isinstance(value, str) else value)


def _short(name: str, text: str) -> str:
    return data_name(text) if name == "data.name" else str(anonymous_entries(text, name))
