"""How the runs were configured, and where and by what they were run."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import yaml

from analysis.groups import config_fields, short
from analysis.report.displayed import named_data
from analysis.report.words import NOT_RECORDED, described, size
from analysis.study import Study
from cl2r.privacy import anonymous_entries

Entry = tuple[str, str]


@dataclass(frozen=True)
class Settings:
    """Fields with their values: common, varied, brought along; the specification as text, and the environment."""

    common: tuple[Entry, ...]
    varied: tuple[Entry, ...]
    brought: tuple[Entry, ...]
    """Fields that differ because methods or variants set them."""
    specification: str
    environment: tuple[Entry, ...]


def study_settings(study: Study, chosen: list[str]) -> Settings:
    """Config and environment as lists; `chosen` are the fields that make groups."""
    runs = study.runs
    known = (*config_fields(runs), "threads", "seed")
    fields = [name for name in runs.columns if name in known]
    kinds = {name: runs[name].astype(object).drop_duplicates() for name in fields}
    chosen = [*chosen, "seed"]
    several = {name: _several(values) for name, values in kinds.items() if len(values) > 1}
    single = {name: short(values.iloc[0]) for name, values in kinds.items() if len(values) == 1}
    return Settings(
        common=tuple(entry for entry in single.items() if entry[1] != short(None)),
        varied=tuple(entry for entry in several.items() if entry[0] in chosen),
        brought=tuple(entry for entry in several.items() if entry[0] not in chosen),
        specification=_yaml(anonymous_entries(named_data(study.specification))) if study.specification else "",
        environment=tuple(environment(anonymous_entries(study.about))),
    )


def _yaml(entries: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(entries, sort_keys=False, allow_unicode=True))


def _several(values: pd.Series, most: int = 12) -> str:
    words = [short(value) for value in values[:most]]
    return ", ".join(words) + (f" and {len(values) - most} more" if len(values) > most else "")


def environment(about: Mapping[str, Any]) -> list[Entry]:
    """Command, version, machine and packages, as far as they were recorded."""
    machine = dict(about.get("environment") or {})
    packages = dict(machine.pop("packages", None) or {})
    entries: dict[str, Any] = {"command": shlex.join(map(str, about.get("command") or []))}
    entries |= {"cl2r": about.get("version"), "commit": about.get("commit")}
    entries |= {str(key): value for key, value in machine.items() if key != "memory_bytes"}
    entries["memory"] = size(machine["memory_bytes"]) if machine.get("memory_bytes") else None
    entries |= {"resources": described(about.get("resources")), "packages": described(packages)}
    return [(key, _text(value)) for key, value in entries.items()] if about else []


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return NOT_RECORDED if value is None or value == "" else str(value)
