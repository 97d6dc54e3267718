"""The configuration and environment of a study, without names of people, machines or folders and without secrets."""

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import yaml

from analysis.groups import config_fields, short
from analysis.study import Study, data_title
from cl2r.runtime.logs import anonymous, anonymous_entries
from cl2r.runtime.text import size

NOT_RECORDED = "not recorded"


def entries_text(values: Mapping[str, Any] | None) -> str:
    """Return names and values such as `workers 2, retries 2`, without entries that are unset or off."""
    known = {key: value for key, value in (values or {}).items() if value is not None and value is not False}
    return ", ".join(f"{str(key).replace('_', ' ')} {value}" for key, value in known.items())


def anonymised(study: Study) -> Study:
    """Return the study with anonymous texts in `runs`; different settings stay different."""
    runs = study.runs
    cleaned = {name: _cleaned(runs[name]) for name in config_fields(runs)}
    if "reason" in runs:
        cleaned["reason"] = runs["reason"].map(lambda value: anonymous(value) if isinstance(value, str) else value)
    return replace(study, runs=runs.assign(**cleaned))


def named_data(value: Any, key: str = "") -> Any:
    """Return entries of a specification with data files by their names; `key` is the dotted name of the value."""
    if isinstance(value, Mapping):
        return {name: named_data(entry, f"{key}.{name}") for name, entry in value.items()}
    if isinstance(value, list):
        return [named_data(entry, key) for entry in value]
    return data_title(value) if isinstance(value, str) and f".{key}".endswith(".data.name") else value


def _cleaned(values: pd.Series) -> pd.Series:
    """Return the values with anonymous texts, numbered if different texts became equal."""
    texts = [value for value in values.drop_duplicates() if isinstance(value, str)]
    if not texts:
        return values
    data = values.name == "data.name"
    shown = {text: data_title(text) if data else str(anonymous_entries(text, str(values.name))) for text in texts}
    counts, seen = Counter(shown.values()), Counter[str]()
    for text, brief in shown.items():
        seen[brief] += 1
        shown[text] = f"{brief} ({seen[brief]})" if counts[brief] > 1 else brief
    return values.astype(object).map(lambda value: shown[value] if isinstance(value, str) else value)


Entry = tuple[str, str]


@dataclass(frozen=True)
class Settings:
    """Fields with their values, common to all runs or not; the specification as text; the environment."""

    common: list[Entry]
    varied: list[Entry]
    brought: list[Entry]  # differ because methods or variants set them
    specification: str
    environment: list[Entry]


def study_settings(study: Study, chosen: list[str]) -> Settings:
    """Return configuration and environment as lists; `chosen` are the fields that define the groups."""
    found: dict[str, list[Entry]] = {"common": [], "varied": [], "brought": []}
    known = (*config_fields(study.runs), "threads", "seed")
    for name in (name for name in study.runs.columns if name in known):
        values = study.runs[name].astype(object).drop_duplicates()
        words = ", ".join(map(short, values[:12])) + (f" and {len(values) - 12} more" if len(values) > 12 else "")
        kind = "common" if len(values) == 1 else "varied" if name in (*chosen, "seed") else "brought"
        if len(values) > 1 or values.notna().any():
            found[kind].append((name, words))
    specification = anonymous_entries(named_data(study.specification))
    text = yaml.safe_dump(specification, sort_keys=False, allow_unicode=True) if specification else ""
    return Settings(**found, specification=text, environment=environment(anonymous_entries(study.about)))


def environment(about: Mapping[str, Any]) -> list[Entry]:
    """Return command, version, machine and packages, as recorded; empty if nothing was recorded."""
    if not about:
        return []
    machine = dict(about.get("environment") or {})
    packages = dict(machine.pop("packages", None) or {})
    entries: dict[str, Any] = {"command": shlex.join(map(str, about.get("command") or []))}
    entries |= {"cl2r": about.get("version"), "commit": about.get("commit")}
    entries |= {str(key): value for key, value in machine.items() if key != "memory_bytes"}
    entries["memory"] = size(machine["memory_bytes"]) if machine.get("memory_bytes") else None
    entries |= {"resources": entries_text(about.get("resources")), "packages": entries_text(packages)}
    texts = {
        key: ", ".join(map(str, value)) or "none" if isinstance(value, list) else value
        for key, value in entries.items()
    }
    return [(key, NOT_RECORDED if value is None or value == "" else str(value)) for key, value in texts.items()]
