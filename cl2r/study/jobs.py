"""What one trial is told to do, and which jobs a study consists of. Small and plain: it travels between processes."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cl2r.config import Config
from cl2r.engine.plan import plan_run
from cl2r.engine.records import run_name
from cl2r.study.spec import Point, Study
from cl2r.study.trunks import trunks


@dataclass(frozen=True)
class Run:
    """One run of a study as its driver knows it: no images, no pairs."""

    name: str
    title: str
    keys: tuple[str, ...]
    config: Config


@dataclass(frozen=True)
class Job:
    """Runs that one trial trains, task by task; a trunk's job stops after `depth` links and finishes no run."""

    trial: int
    variant: str | None
    runs: tuple[Run, ...]
    start: int = 0
    depth: int | None = None

    @property
    def label(self) -> str:
        """Unique within the study."""
        return self.runs[0].name if self.depth is None else f"trunk{self.depth}-{self.runs[0].name}"

    @property
    def provides(self) -> frozenset[str]:
        """Links that others wait for."""
        return frozenset() if self.depth is None else frozenset(self.runs[0].keys[self.start : self.depth])

    @property
    def needs(self) -> frozenset[str]:
        """Links that others may provide."""
        return frozenset(key for run in self.runs for key in run.keys[: self.depth]) - self.provides

    def to_plain(self) -> dict[str, Any]:
        """For the config of a Tune trial."""
        plain = asdict(self)
        for run, original in zip(plain["runs"], self.runs, strict=True):
            run["config"] = original.config.model_dump(mode="json")
        return plain

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Job":
        """The inverse."""
        runs = tuple(
            Run(run["name"], run["title"], tuple(run["keys"]), Config.model_validate(run["config"]))
            for run in plain["runs"]
        )
        return cls(plain["trial"], plain["variant"], runs, plain["start"], plain["depth"])


def plan_job(study: Study, point: Point, trial: int) -> Job:
    """The job of a point: one run a seed. Everything that can be wrong with its input is refused here."""
    return Job(trial, point.variant, tuple(_run(study, point, seed) for seed in study.spec.seeds))


def _run(study: Study, point: Point, seed: int) -> Run:
    plan = plan_run(study.config(point, seed))
    title = " ".join(filter(None, [plan.config.method.name, point.title, f"seed {seed}"]))
    return Run(run_name(plan), title, tuple(plan.keys), plan.config)


def grid_jobs(study: Study) -> list[Job]:
    """A job a run, seed by seed; of runs that are the same in every field only the first is kept."""
    jobs: dict[str, Job] = {}
    for seed in study.spec.seeds:
        for point in study.points():
            run = _run(study, point, seed)
            jobs.setdefault(run.name, Job(len(jobs), point.variant, (run,)))
    return list(jobs.values())


def trunk_jobs(jobs: Sequence[Job], present: Collection[str]) -> list[Job]:
    """Jobs that train what two or more runs share and the store does not have."""
    runs = {run.name: run for job in jobs for run in job.runs}
    found = [
        Job(-1, None, (runs[trunk.run],), trunk.start, trunk.depth)
        for trunk in trunks({name: run.keys for name, run in runs.items()})
    ]
    return [job for job in found if not job.provides <= set(present)]
