"""The Python API: `run`, `plan_study` and `run_study`, which `from cl2r import ...` offers."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.study import FRAMES, Frames, Study, load_study
from cl2r.cli.options import find_storage
from cl2r.cli.study import study_file
from cl2r.config.layers import from_dotted, read_layer, resolve, with_base
from cl2r.config.schema import Config
from cl2r.data import published_sizes
from cl2r.engine.chain import execute
from cl2r.engine.frames import write_run
from cl2r.engine.links import LinkStore
from cl2r.engine.plan import plan_run
from cl2r.errors import InputError, check_type, nearest
from cl2r.rayrun import driver
from cl2r.rayrun.cluster import check_address
from cl2r.runtime.progress import ProgressLine
from cl2r.runtime.stop import Termination
from cl2r.storage.path import StoragePath
from cl2r.study.plan import plan_text
from cl2r.study.resources import Resources
from cl2r.study.session import StudySession
from cl2r.study.spec import StudySpec
from cl2r.study.trackers import TENSORBOARD, TrackedRun

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Spec = str | Path | Mapping[str, Any]
"""A study: the name of one in `studies`, a YAML file, or the content of such a file."""


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run."""

    config: Config
    matrix: "npt.NDArray[np.float64]"
    """C[t, k]: accuracy of model t's queries against model k's gallery on the report pairs; NaN above the diagonal."""
    metrics: dict[str, float]
    """Every metric of C and of the search matrix, by the names of `cl2r.metrics`; NaN if there is no search."""
    frames: Frames
    """The rows of this run: `runs`, `tasks`, `matrix`, `curves`."""
    folder: StoragePath
    """Where the run is stored."""


@dataclass(frozen=True)
class StudyPlan:
    """What a study would cost."""

    name: str
    runs: int
    finished: int
    """Runs that the storage has already."""
    links: int | None
    """Links of all runs, each counted once; None for a sweep, whose points are not known yet."""
    missing: int | None
    """Links to train."""
    text: str
    """Everything that `cl2r plan` prints: also hours, memory, disk and price."""

    def __str__(self) -> str:
        return self.text


def run(
    config: Config | str | Path | Mapping[str, Any] = "icons",
    *,
    storage: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    log: Sequence[str] = (),
) -> Run:
    """Train one chain of models, or find it in the storage ($CL2R_STORAGE, or `results`), and evaluate it.

    `config` is a Config, the name of a preset, a YAML file or a mapping like the content of one: sections of fields on
    top of `preset` (default: icons). `overrides` are fields by dotted name; `log` names trackers: tensorboard, mlflow,
    wandb. Raise InputError before any training if something is wrong with them.

    >>> from cl2r import run
    >>> result = run("small.yaml", overrides={"method.name": "er", "scenario.n_tasks": 2})
    >>> result.matrix.shape
    (2, 2)
    >>> list(result.metrics)[:5]
    ['AC', 'BC', 'FC', 'mean_accuracy', 'service_accuracy']
    >>> list(result.frames.tasks["task"])
    [1, 2]
    """
    check_type("config", config, Config | str | Path | Mapping, "a Config, a preset, a YAML file or a mapping")
    root = find_storage(storage)
    layer = config.model_dump(mode="json") if isinstance(config, Config) else config
    layer = with_base(layer) if isinstance(layer, Mapping) else read_layer(str(layer))
    plan = plan_run(resolve([layer, *itertools.starmap(from_dotted, _entries("overrides", overrides).items())]))
    progress, tracker = closing(ProgressLine(len(plan.keys))), TrackedRun(log, plan, root)
    with progress as listener, tracker as tracked, LinkStore(root).in_use():
        result = execute(plan, root, listener, after_task=tracked)
        tracked.finish(result)
        folder = write_run(result, root)
    frames = {name: pd.read_parquet(BytesIO((folder / f"{name}.parquet").read_bytes())) for name in FRAMES}
    return Run(plan.config, result.report.matrix, dict(result.report.values), Frames(**frames), folder)


def plan_study(
    spec: Spec,
    *,
    storage: str | Path | None = None,
    name: str | None = None,
    gpu_price: float = 4.10,
    changes: Mapping[str, Any] | None = None,
    **resources: Any,
) -> StudyPlan:
    """Return what a study would cost; nothing is started and nothing is written.

    A benchmark that is not there is planned from its published sizes; the text says so.

    The other parameters are those of `run_study`; `gpu_price` is the price of an A100 hour in dollars.

    >>> from cl2r import plan_study
    >>> plan = plan_study({"preset": "small.yaml", "grid": {"method.name": ["er", "er_fd"]}})
    >>> plan.runs, plan.links, plan.missing
    (2, 5, 5)
    >>> print(plan.text)  # doctest: +ELLIPSIS
    study ...
    """
    check_type("gpu_price", gpu_price, float | int, "a number")
    with published_sizes(), _open(spec, storage, name, changes, resources, lock=False) as session:
        total = session.expected_runs()
        text = plan_text(session, gpu_price)
        finished = sum(event.kind == "finished" for event in session.ledger.outcomes().values())
        keys = {key for job in session.jobs for run in job.runs for key in run.keys}
        counts = None if session.spec.is_sweep else (len(keys), len(keys - session.present()))
        links, missing = counts or (None, None)
        return StudyPlan(session.folder.name, total, finished, links, missing, text)


def run_study(
    spec: Spec,
    *,
    storage: str | Path | None = None,
    name: str | None = None,
    changes: Mapping[str, Any] | None = None,
    verbose: bool = False,
    log: Sequence[str] = (TENSORBOARD,),
    **resources: Any,
) -> Study:
    """Run what is missing of a study on Ray and return its frames; failed runs have rows in `runs` too.

    `spec` is the name of a study, a YAML file or a mapping like the content of one; `changes` replace entries of it,
    key by key in `grid` and `search`; `log` names trackers: tensorboard, mlflow, wandb. `resources` are the fields of
    `cl2r.study.resources.Resources`: workers, cpus_per_worker, gpus_per_worker, accelerator, max_concurrent,
    sync_batchnorm, retries; one that is not given comes from the environment, e.g. $CL2R_WORKERS, or has its default.
    Run it again to resume.

    >>> from cl2r import run_study
    >>> spec = {"preset": "small.yaml", "seeds": [0, 1], "grid": {"method.name": ["er", "cl2r"]}}
    >>> study = run_study(spec, name="mine", changes={"tasks": 2}, workers=1)
    >>> len(study.finished)
    4
    >>> study.pivot("BC").shape
    (2, 1)
    """
    with Termination().listening() as stop:
        opened = _open(spec, storage, name, changes, resources, stop=stop, verbose=verbose, log=log)
        check_address(verbose, Resources.from_options(resources).workers > 1)
        with opened as session:
            driver.run(session)
            return load_study(str(session.folder.path))


def _open(
    spec: Spec, storage: Any, name: Any, changes: Any, resources: dict[str, Any], **settings: Any
) -> AbstractContextManager[StudySession]:
    """Check the arguments that `plan_study` and `run_study` share, and open the study."""
    check_type("name", name, str | None, "the name of a folder")
    known = [field.name for field in dataclasses.fields(Resources)]
    for unknown in sorted(resources.keys() - set(known)):
        raise InputError(f"no argument {unknown!r}{nearest(unknown, known)}; resources: {', '.join(known)}")
    loaded = StudySpec.load(study_file(spec), **_entries("changes", changes))
    root = find_storage(storage).absolute()
    return StudySession.open(loaded, root, Resources.from_options(resources), name=name, **settings)


def _entries(argument: str, values: Mapping[str, Any] | None) -> Mapping[str, Any]:
    values = {} if values is None else values
    check_type(argument, values, Mapping, "a mapping")
    for key in values:
        check_type(f"{argument}: {key!r}", key, str, "a text as key")
    return values
