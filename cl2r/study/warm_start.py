"""Trials of an earlier study that a new search starts from.

Runs have the same name only if data, settings, pairs and seed are the same. The sampler learns from the values of
earlier trials whose runs the new search would make itself; if there are none, the best earlier points come first.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from cl2r.errors import InputError, nearest
from cl2r.storage.path import StoragePath, at
from cl2r.study.constraints import REFERENCE, seed_mean
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import fixed_jobs, plan_job
from cl2r.study.ledger import read_events
from cl2r.study.space import Range, Scalar
from cl2r.study.spec import OBJECTIVES, Point, StudySpec

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
    """Return the trials of `search.warm_start` whose points are in the space of `spec`, in this context.

    A trial whose runs are exactly those that `spec` would make, by name, and that can be judged, comes with its values.
    If there is none, the best points come without values.
    """
    if spec.search.warm_start is None:
        return []
    earlier = earlier_study(spec.search.warm_start, folder.storage)
    trials: dict[int, list[Row]] = defaultdict(list)
    references: dict[str, dict[str, Row]] = defaultdict(dict)
    for entry in read_events(list(earlier.ledger.last("finished").values())):
        config, row = entry["config"], entry["frames"]["runs"][0]
        references[config["method.name"]] |= {row["run"]: row} if entry["variant"] == REFERENCE else {}
        if entry["variant"] is None and entry["trial"] is not None:
            trials[entry["trial"]].append(config | row)
    fixed = {job.runs[0].name for job in fixed_jobs(spec, context, spec.seeds) if job.variant == REFERENCE}
    valued, others = list[EarlierTrial](), list[EarlierTrial]()
    for rows in trials.values():
        params = {name: rows[0].get(name) for name in spec.knobs}
        values = [seed_mean(rows, OBJECTIVES[name][0]) for name in spec.search.objectives]
        if any(map(math.isnan, values)) or not all(
            _contains(entry, params[name]) for name, entry in spec.knobs.items()
        ):
            continue
        violations = {}
        for constraint in spec.search.parsed_constraints():
            same = [row for run, row in references[constraint.reference or ""].items() if run in fixed]
            reference = seed_mean(same, constraint.column)
            violations[str(constraint)] = constraint.violation(seed_mean(rows, constraint.column), reference)
        trial = EarlierTrial(params, values, violations)
        try:
            planned = plan_job(spec, Point(None, context | params), -1)
        except InputError:  # these values cannot be combined here
            continue
        known = {run.name for run in planned.runs} == {row["run"] for row in rows}
        (valued if known and all(map(math.isfinite, violations.values())) else others).append(trial)
    maximised = OBJECTIVES[spec.search.objectives[0]][1] == "maximize"
    others.sort(key=lambda trial: (trial.values or [0])[0], reverse=maximised)
    return valued or [EarlierTrial(trial.params) for trial in others[: math.ceil(spec.search.startup / 2)]]


def _contains(entry: Range | list[Scalar], value: Any) -> bool:
    if isinstance(entry, list):
        return value in entry
    whole = isinstance(entry.low, int) and isinstance(entry.high, int)
    return isinstance(value, int if whole else int | float) and entry.low <= value <= entry.high
