"""The configuration and environment of a study, without names of people, machines or folders and without secrets."""

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from analysis.groups import config_fields, short
from analysis.study import Study
from cl2r.runtime.logs import anonymous, anonymous_entries
from cl2r.runtime.text import size

NOT_RECORDED = "not recorded"


def data_name(name: str) -> str:
    """Return `birds` for `/somewhere/birds.npz`."""
    return Path(name).stem


def entries_text(values: Mapping[str, Any] | None) -> str:
    """Return names and values such as `workers 2, retries 2`, without entries that are unset or off."""
    known = {key: value for key, value in (values or {}).items() if value is not None and value is not False}
    return ", ".join(f"{str(key).replace('_', ' ')} {value}" for key, value in known.items())


def anonymised(study: Study) -> Study:
    """Return the study with anonymous texts in `runs`; different settings stay different."""
    runs = study.runs
    cleaned = {name: _cleaned(runs[name]) for name in config_fields(runs) if _texts(runs[name])}
    if "reason" in runs:
        cleaned["reason"] = runs["reason"].map(lambda value: anonymous(value) if isinstance(value, str) else value)
    return replace(study, runs=runs.assign(**cleaned))


def named_data(value: Any, key: str = "") -> Any:
    """Return entries of a specification with data files by their names; `key` is the dotted name of the value."""
    if isinstance(value, Mapping):
        return {name: named_data(entry, f"{key}.{name}") for name, entry in value.items()}
    if isinstance(value, list):
        return [named_data(entry, key) for entry in value]
    return data_name(value) if isinstance(value, str) and f".{key}".endswith(".data.name") else value


def _texts(values: pd.Series) -> list[str]:
    return [value for value in values.drop_duplicates() if isinstance(value, str)]


def _cleaned(values: pd.Series) -> pd.Series:
    """Return the values with anonymous texts, numbered if different texts became equal."""
    data = values.name == "data.name"
    shown = {t: data_name(t) if data else str(anonymous_entries(t, str(values.name))) for t in _texts(values)}
    counts, seen = Counter(shown.values()), Counter[str]()
    for text, brief in shown.items():
        seen[brief] += 1
        shown[text] = f"{brief} ({seen[brief]})" if counts[brief] > 1 else brief
    return values.astype(object).map(lambda value: shown[value] if isinstance(value, str) else value)


# Configuration and environment as lists.

Entry = tuple[str, str]


@dataclass(frozen=True)
class Settings:
    """Fields with their values, common to all runs or not; the specification as text; the environment."""

    common: tuple[Entry, ...]
    varied: tuple[Entry, ...]
    brought: tuple[Entry, ...]
    """Fields that differ because methods or variants set them."""
    specification: str
    environment: tuple[Entry, ...]


def study_settings(study: Study, chosen: list[str]) -> Settings:
    """Return configuration and environment as lists; `chosen` are the fields that define the groups."""
    runs = study.runs
    known = (*config_fields(runs), "threads", "seed")
    fields = [name for name in runs.columns if name in known]
    kinds = {name: runs[name].astype(object).drop_duplicates() for name in fields}
    chosen, specification = [*chosen, "seed"], anonymous_entries(named_data(study.specification))
    several = {name: _several(values) for name, values in kinds.items() if len(values) > 1}
    single = {name: short(values.iloc[0]) for name, values in kinds.items() if len(values) == 1}
    return Settings(
        common=tuple(entry for entry in single.items() if entry[1] != short(None)),
        varied=tuple(entry for entry in several.items() if entry[0] in chosen),
        brought=tuple(entry for entry in several.items() if entry[0] not in chosen),
        specification=yaml.safe_dump(specification, sort_keys=False, allow_unicode=True) if specification else "",
        environment=tuple(environment(anonymous_entries(study.about))),
    )


def _several(values: pd.Series, most: int = 12) -> str:
    words = [short(value) for value in values[:most]]
    return ", ".join(words) + (f" and {len(values) - most} more" if len(values) > most else "")


def environment(about: Mapping[str, Any]) -> list[Entry]:
    """Return command, version, machine and packages, as recorded; empty if nothing was recorded."""
    machine = dict(about.get("environment") or {})
    packages = dict(machine.pop("packages", None) or {})
    entries: dict[str, Any] = {"command": shlex.join(map(str, about.get("command") or []))}
    entries |= {"cl2r": about.get("version"), "commit": about.get("commit")}
    entries |= {str(key): value for key, value in machine.items() if key != "memory_bytes"}
    entries["memory"] = size(machine["memory_bytes"]) if machine.get("memory_bytes") else None
    entries |= {"resources": entries_text(about.get("resources")), "packages": entries_text(packages)}
    return [(key, _text(value)) for key, value in entries.items()] if about else []


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return NOT_RECORDED if value is None or value == "" else str(value)
