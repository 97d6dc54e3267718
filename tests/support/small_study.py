"""Small studies for tests: specifications on the tiny data set, runs without training, made-up outcomes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from optuna.trial import TrialState

from cl2r.config.layers import resolve
from cl2r.config.schema import Config
from cl2r.rayrun.optuna_source import OptunaSource
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job, Run
from cl2r.study.resources import Resources
from cl2r.study.session import StudySession
from cl2r.study.spec import StudySpec
from tests.support.quick import QUICK, flat_quick

CONFIG: Config = resolve([QUICK])


def small_study(data: Path, overrides: Sequence[str] = (), **entries: Any) -> StudySpec:
    """The quick config on `data`, with the `entries` of a study's file."""
    settings = {**flat_quick(), "data.name": str(data), **entries.pop("set", {})}
    return StudySpec.load({"set": settings, **entries}, overrides)


def write_preset(folder: Path, data: Path, **sections: Any) -> Path:
    """Write the quick config on `data` to a file for `--preset`; `sections` replace its own."""
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump({"preset": "none", **QUICK, "data": {"name": str(data)}, **sections}))
    return path


SPACE = {"method.lambda_base": {"low": 0.1, "high": 100.0, "log": True}, "memory.per_class": {"low": 1, "high": 9}}


def small_sweep(data: Path, trials: int = 5, tasks: int = 3, seeds: Sequence[int] = (0,), **search: Any) -> StudySpec:
    """A sweep over λ and memory on `data`, by BC and without constraints."""
    search = {"trials": trials, "objectives": ["BC"], "constraints": {}, **search}
    entries = {"space": SPACE, "seeds": list(seeds), "search": search}
    return small_study(data, set={"scenario.n_tasks": tasks}, **entries)


def small_session(folder: StudyFolder, spec: StudySpec | None = None, retries: int = 0) -> StudySession:
    """A session without jobs."""
    return StudySession(spec or StudySpec(), folder, Resources(retries=retries), [])


def bare_run(name: str, keys: Sequence[str]) -> Run:
    """A run that cannot be trained."""
    return Run(name, f"title of {name}", tuple(keys), CONFIG)


def chains(paths: Sequence[Sequence[int]]) -> dict[str, list[str]]:
    """Chains of link keys, one run per path in a forest; runs share links as long as their paths agree."""
    return {
        f"run{number}": ["_".join(map(str, path[: depth + 1])) for depth in range(len(path))]
        for number, path in enumerate(paths)
    }


def finish(folder: StudyFolder, job: Job, row: Mapping[str, Any]) -> None:
    """Record all runs of a job as finished with these values."""
    for run in job.runs:
        rows = {"runs": [{"run": run.name, **row}]}
        folder.ledger.write("finished", run.name, job.heading(run) | {"frames": rows})


def point_of(job: Job) -> tuple[float, int]:
    """λ_base and memory per class of a job."""
    config = job.runs[0].config
    return config.method.lambda_base, config.memory.per_class


def states(source: OptunaSource) -> list[TrialState]:
    """The states of the trials of the first context."""
    return [trial.state for trial in source.searches[0].optuna.get_trials()]


def tree(root: Path) -> list[str]:
    """Everything below `root`."""
    return sorted(str(path) for path in root.rglob("*"))
