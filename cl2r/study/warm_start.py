"""Trials of an earlier study that a new search starts from.

If both studies have the same data, base config and seeds, the earlier values count: the sampler learns from them. If
not, values cannot be compared, and the best earlier points are trained first.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import yaml

from cl2r.errors import InputError, nearest
from cl2r.storage.path import StoragePath, at
from cl2r.study.constraints import REFERENCE, seed_mean
from cl2r.study.folder import StudyFolder
from cl2r.study.ledger import read_events
from cl2r.study.space import Range, Scalar
from cl2r.study.spec import OBJECTIVES, StudySpec

Row = dict[str, Any]


@dataclass(frozen=True)
class EarlierTrial:
    """A point of an earlier study, with its values if they can be compared with those of the new one."""

    params: dict[str, Any]
    values: list[float] | None = None
    violations: dict[str, float] = field(default_factory=dict)


def earlier_study(name: str, storage: StoragePath) -> StudyFolder:
    """Return the study of this name below `storage`, or in this folder. Raise InputError if there is none."""
    known = [path.parent.name for path in storage.list("studies/*/study.yaml")]
    if name in known:
        return StudyFolder(storage, name)
    path = at(name).absolute()
    if not (path / "study.yaml").exists():
        raise InputError(f"search.warm_start: no study {name!r} below {storage / 'studies'}{nearest(name, known)}")
    return StudyFolder(path.parent.parent, path.name)


def earlier_trials(spec: StudySpec, folder: StudyFolder, context: dict[str, Any]) -> list[EarlierTrial]:
    """Return the trials of `search.warm_start` in this context whose points are in the space of `spec`."""
    if spec.search.warm_start is None:
        return []
    earlier = earlier_study(spec.search.warm_start, folder.storage)
    here, there = (yaml.safe_load(one.specification.read_bytes())["specification"] for one in (folder, earlier))
    comparable = all(here[key] == there.get(key) for key in ("format", "data", "base", "seeds"))
    trials: dict[int, list[Row]] = defaultdict(list)
    references: dict[str, list[Row]] = defaultdict(list)
    for entry in read_events(list(earlier.ledger.last("finished").values())):
        config, row = entry["config"], entry["frames"]["runs"][0]
        if any(config.get(name) != value for name, value in context.items()):
            continue
        if entry["variant"] == REFERENCE:
            references[config["method.name"]].append(row)
        elif entry["variant"] is None and entry["trial"] is not None:
            trials[entry["trial"]].append(config | row)
    found = []
    for rows in trials.values():
        params = {name: rows[0].get(name) for name in spec.knobs}
        values = [seed_mean(rows, OBJECTIVES[name][0]) for name in spec.search.objectives]
        inside = all(_contains(entry, params[name]) for name, entry in spec.knobs.items())
        if inside and not any(map(math.isnan, values)):
            violations = {
                str(constraint): constraint.violation(
                    seed_mean(rows, constraint.column),
                    seed_mean(references[constraint.reference or ""], constraint.column),
                )
                for constraint in spec.search.parsed_constraints()
            }
            found.append(EarlierTrial(params, values, violations))
    if comparable and all(map(math.isfinite, (one for trial in found for one in trial.violations.values()))):
        return found
    maximised = OBJECTIVES[spec.search.objectives[0]][1] == "maximize"
    found.sort(key=lambda trial: (trial.values or [0])[0], reverse=maximised)
    return [EarlierTrial(trial.params) for trial in found[: math.ceil(spec.search.startup / 2)]]


def _contains(entry: Range | list[Scalar], value: Any) -> bool:
    if isinstance(entry, list):
        return value in entry
    whole = isinstance(entry.low, int) and isinstance(entry.high, int)
    return isinstance(value, int if whole else int | float) and entry.low <= value <= entry.high
