"""The command line that all studies share: options, plan, run, table."""

import argparse
import dataclasses
import os
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NoReturn

import pandas as pd

from cl2r.config import Config, DataConfig
from cl2r.data import load_dataset
from cl2r.data.images import LazyImages
from cl2r.engine.plan import plan_run
from cl2r.engine.process_memory import megabytes, peak_bytes
from cl2r.engine.store import LinkStore, check_writable
from cl2r.errors import InputError
from cl2r.files import Place, place
from cl2r.objects import ObjectPath
from cl2r.privacy import without_secrets
from cl2r.progress import clock
from cl2r.rayrun.driver import expected_runs, run_study
from cl2r.rayrun.resources import Resources
from cl2r.stopping import GRACE_SECONDS, Termination
from cl2r.study.cost import smallest_batch
from cl2r.study.folder import StudyFolder, digest
from cl2r.study.frames import FRAMES
from cl2r.study.jobs import Job, grid_jobs
from cl2r.study.spec import Study, read_study
from cl2r.study.sweep import corner_jobs, representative_jobs

Show = Callable[[dict[str, pd.DataFrame], Study], str]


class _Parser(argparse.ArgumentParser):
    """Complains without repeating secrets."""

    def error(self, message: str) -> NoReturn:
        """Usage and one line; ends the program."""
        super().error(without_secrets(message))


def study_parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every study."""
    parser = _Parser(name, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_argument_group("what")
    what.add_argument("--preset", help="a preset, or a YAML file of config sections")
    what.add_argument("--data", metavar="PATH", help="a data set by name, an .npz file or a folder")
    what.add_argument("--data-root", metavar="DIR", help="where benchmarks lie (default: $CL2R_DATA, or data)")
    what.add_argument("--tasks", type=int, metavar="T", help="number of tasks")
    what.add_argument("--seeds", type=int, nargs="+", metavar="N")
    what.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE", help="for every run")
    where = parser.add_argument_group("where")
    where.add_argument(
        "--storage", metavar="DIR", help="links, ledger and frames; s3://bucket/folder (default: results)"
    )
    where.add_argument("--name", help="of the study (default: its file, data and a digest of its specification)")
    how = parser.add_argument_group("how")
    how.add_argument("--workers", type=int, default=1, help="processes a run (default: 1)")
    threads = "threads of a process; auto: measure which trials × threads are fastest here (default: 1)"
    how.add_argument("--cpus-per-worker", type=_count_or_auto, default=1, metavar="N", help=threads)
    how.add_argument("--gpus-per-worker", type=float, default=0, metavar="N")
    how.add_argument("--accelerator", metavar="NAME", help="only nodes with this accelerator, e.g. A100")
    how.add_argument("--max-concurrent", type=int, metavar="N", help="trials side by side (default: as many as fit)")
    how.add_argument("--sync-batchnorm", action="store_true", help="batch norm over all workers (GPUs only)")
    how.add_argument("--retries", type=int, default=2, metavar="N", help="after deaths without progress (default: 2)")
    patience = "for epochs under way after SIGTERM (default: 60)"
    how.add_argument("--grace", type=float, default=GRACE_SECONDS, metavar="SECONDS", help=patience)
    how.add_argument("--plan", action="store_true", help="say what it would cost; start nothing")
    how.add_argument("--gpu-price", type=float, default=4.10, metavar="USD", help="of an A100 hour, for --plan")
    how.add_argument("-v", "--verbose", action="store_true", help="Ray's own messages too")
    return parser


def run_command(args: argparse.Namespace, path: Path, changes: dict[str, Any], show: Show) -> int:
    """Plan everything, run what is missing, print the table. 0, or 1 if a run failed."""
    with Termination(args.grace).listening() as termination:
        return _command(args, path, changes, show, termination)


def _command(
    args: argparse.Namespace, path: Path, changes: dict[str, Any], show: Show, termination: Termination
) -> int:
    study = read_study(path, {**_changes(args), **changes}, _overrides(args), args.tasks)
    automatic = _refuse_auto(args)
    resources = _resources(args)
    jobs = representative_jobs(study) if study.is_sweep else grid_jobs(study)
    examples = corner_jobs(study) if study.is_sweep else jobs
    check_batches(examples, resources.workers)
    identity = study.identity(_fingerprints(examples))
    data = Path(examples[0].runs[0].config.data.name).stem
    folder = StudyFolder(storage_root(args.storage), args.name or f"{path.stem}-{data}-{digest(identity)}")
    if args.plan:
        from cl2r.study.plan import plan_text

        folder.check_name(identity)
        print(plan_text(study, jobs, folder, resources, args.gpu_price))
        return 0
    check_writable(folder.storage)
    folder.check_name(identity)
    with folder.driver_lock():
        owner = folder.claim_name(identity)
        left = study.spec.search.trials if study.is_sweep else len(jobs)
        left -= sum(event.kind == "finished" for event in folder.ledger.outcomes().values())
        if automatic and left > 0:
            resources = _measured(resources, examples[0].runs[0].config, left)
        return _run(study, jobs, folder, owner, resources, args.verbose, show, termination)


def _run(
    study: Study,
    jobs: Sequence[Job],
    folder: StudyFolder,
    owner: str,
    resources: Resources,
    verbose: bool,
    show: Show,
    termination: Termination,
) -> int:
    print(f"study {folder.name}: {expected_runs(study, jobs, folder)} runs", flush=True)
    if note := _loader_note(jobs[0].runs[0].config.data, resources):
        print(note, flush=True)
    before = LinkStore(folder.storage, print).keys()
    outcome = run_study(study, jobs, folder, owner, resources, verbose, termination)
    frames = {name: pd.read_parquet(BytesIO((folder.path / f"{name}.parquet").read_bytes())) for name in FRAMES}
    if outcome.finished:
        print(f"\n{show(frames, study)}\n")
    for _, row in frames["runs"].query("status == 'failed'").iterrows():
        print(f"failed: {row['run']}: {row['reason']}")
    if outcome.missing:
        print(f"missing: {outcome.missing} runs have left no trace; do all nodes share {folder.storage}?")
    trained = set(frames["tasks"].query("not reused")["key"]) - before
    counts = f"{outcome.finished} runs finished, {outcome.failed} failed, {outcome.pruned} stopped early"
    print(f"{counts}; {len(trained)} links trained in {clock(outcome.seconds)}")
    print(f"most memory: {megabytes(peak_bytes())} in the driver{_training_memory(frames['tasks'])}")
    every = ",".join(FRAMES)
    print(f"frames: {folder.path / f'{{{every}}}.parquet'}", flush=True)
    from cl2r.study.report import leave_report  # not before training: its libraries take a while to load

    for line in leave_report(folder):
        print(line)
    return 1 if outcome.failed or outcome.missing else 0


def _training_memory(tasks: pd.DataFrame) -> str:
    """Of the processes that trained links for this study; links of earlier versions do not say."""
    trained = tasks.query("not reused").reindex(columns=["peak_bytes"])["peak_bytes"].dropna()
    return f", {megabytes(trained.max())} in a process that trained" if len(trained) else ""


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _changes(args: argparse.Namespace) -> dict[str, Any]:
    """Options that replace an entry of the file."""
    return given({"preset": args.preset, "seeds": args.seeds})


def _overrides(args: argparse.Namespace) -> list[str]:
    places = given({"data.name": args.data, "data.root": args.data_root})
    return [*args.overrides, *(f"{field}={value}" for field, value in places.items())]


def _count_or_auto(text: str) -> int | Literal["auto"]:
    return "auto" if text == "auto" else int(text)


def _refuse_auto(args: argparse.Namespace) -> bool:
    """Whether trials × threads are to be measured; only this machine's can be. Stands for 1 until then."""
    if args.cpus_per_worker != "auto":
        return False
    if args.workers > 1 or args.gpus_per_worker or os.environ.get("RAY_ADDRESS"):
        raise InputError("--cpus-per-worker auto is for one worker a run without GPUs, in this machine's own Ray")
    args.cpus_per_worker = 1
    return True


def _measured(resources: Resources, config: Config, runs: int) -> Resources:
    """The fastest trials × threads of this machine for `runs` runs like `config`."""
    from cl2r.study.layout import described, fastest_layout

    print("measuring trials × threads", flush=True)
    chosen, measured = fastest_layout(config, runs)
    print(described(chosen, measured, runs), flush=True)
    trials = min(chosen.trials, resources.max_concurrent or chosen.trials)
    return dataclasses.replace(resources, cpus_per_worker=chosen.threads, max_concurrent=trials)


def _resources(args: argparse.Namespace) -> Resources:
    names = [field.name for field in dataclasses.fields(Resources) if hasattr(args, field.name)]
    return Resources(**{name: getattr(args, name) for name in names})


def _loader_note(data: DataConfig, resources: Resources) -> str | None:
    """Only images that are decoded while training have loaders."""
    images = load_dataset(data.name, data.size, data.channels, data.root).x_train
    return resources.loader_note(data.loaders) if isinstance(images, LazyImages) else None


def _fingerprints(jobs: Sequence[Job]) -> list[str]:
    sets = {run.config.data for job in jobs for run in job.runs}
    return sorted(load_dataset(data.name, data.size, data.channels, data.root).fingerprint for data in sets)


def storage_root(given: str | None) -> Place:
    """Absolute: workers have other working directories. A Ray job's own directory vanishes with the cluster."""
    uploaded = any(part.startswith("_ray_pkg_") for part in Path.cwd().parts)
    default = str(Path.home() / "cl2r-results" if uploaded else Path("results"))
    storage = place(given or os.environ.get("CL2R_STORAGE") or default)
    if isinstance(storage, ObjectPath):
        return storage
    if uploaded and not storage.is_absolute():
        raise InputError(f"--storage {storage}: give an absolute path; this job's directory goes with the cluster")
    return storage.absolute()


def check_batches(jobs: Sequence[Job], workers: int) -> None:
    """Every worker needs two rows of every batch, for batch norm."""
    if workers == 1:
        return
    for run in (run for job in jobs for run in job.runs):
        rows = smallest_batch(plan_run(run.config))
        if rows < 2 * workers:
            raise InputError(f"{run.title}: a batch of {rows} rows is too small for {workers} workers: each needs 2")
