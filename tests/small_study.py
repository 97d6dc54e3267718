"""Small studies for tests: specifications on the tiny data set, runs without training, outcomes written by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quick import QUICK, flat_quick

from cl2r.config import Config, fields
from cl2r.layers import resolve
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job, Run
from cl2r.study.spec import Study, build_study

CONFIG: Config = resolve([QUICK])


def small_study(data: Path, overrides: Sequence[str] = (), **entries: Any) -> Study:
    """The quick config on `data`, with the `entries` of a study's file."""
    settings = {**flat_quick(), "data.name": str(data), **entries.pop("set", {})}
    return build_study({"set": settings, **entries}, list(overrides), "study.yaml")


def bare_run(name: str, keys: Sequence[str]) -> Run:
    """A run that nobody can train."""
    return Run(name, f"title of {name}", tuple(keys), CONFIG)


def chains(paths: Sequence[Sequence[int]]) -> dict[str, list[str]]:
    """Chains of link keys: a run a path in a forest; runs share links as far as their paths agree."""
    return {
        f"run{number}": ["-".join(map(str, path[: depth + 1])) for depth in range(len(path))]
        for number, path in enumerate(paths)
    }


def finish(folder: StudyFolder, job: Job, row: Mapping[str, Any]) -> None:
    """Enter all runs of a job as finished with these figures."""
    for run in job.runs:
        entry = {"trial": job.trial, "variant": job.variant, "config": fields(run.config)}
        rows = {"runs": [{"run": run.name, **row}]}
        folder.ledger.write("finished", run.name, entry | {"frames": rows})


def tree(root: Path) -> list[str]:
    """Everything below `root`."""
    return sorted(str(path) for path in root.rglob("*"))
