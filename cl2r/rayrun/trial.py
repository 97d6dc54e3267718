"""One trial of Ray Tune: it trains a job in its own process, or drives the workers of Ray Train that do.

One TorchTrainer trains all tasks of a job: a process group per task would cost more than the task. Nothing is
checkpointed through Ray: after the loss of a worker the trial is tried again, by the same rule as a trial with a single
process, and finds links and epochs in the store. Batches are dealt by `cl2r.batches`, never by Ray's
`prepare_data_loader`, which would replace the sampler.
"""

import logging
import os
import socket
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from ray import tune
from ray.exceptions import RayActorError
from ray.util import get_node_ip_address

from cl2r.data import load_dataset
from cl2r.engine.workers import Workers
from cl2r.errors import InputError, ProcessDiedError
from cl2r.rayrun.private import FOLDER
from cl2r.runtime.logs import configure, errors_without_secrets
from cl2r.runtime.stop import Marker
from cl2r.study.jobs import Job
from cl2r.study.ledger import DIED
from cl2r.study.resources import Resources
from cl2r.study.train_job import record_failed, study_folder, train_job

log = logging.getLogger(__name__)
COLLECTIVE_TIMEOUT_S = 24 * 3600  # another study may be training the link that this one needs


@errors_without_secrets()
def run_trial(config: dict[str, Any]) -> None:
    """The trainable. Its last report is `ended` or `stopped`; the outcomes of the runs are in the ledger.

    An OSError is raised, because another attempt may succeed: Tune treats it like a crash of this process.
    """
    job, resources = Job.from_json(config["job"]), Resources(**config["resources"])
    folder = study_folder(config["study"])
    configure(f"{job.label}: ")
    if not folder.specification.exists():
        raise OSError(f"{folder.storage} is not the driver's storage: {socket.gethostname()} does not share it")
    try:
        if resources.workers == 1:
            alone, accepted = Workers(device=prepare(job, resources)), resources.accept_links
            train_job(job, folder, config["trained_by"], alone, tune.report, accepted)
        else:
            from ray.tune.integration.ray_train import TuneReportCallback

            scratch = str(folder.path / "ray")
            fit_workers(_work, config, resources, job.label, scratch, [TuneReportCallback()])
    except OSError:
        raise
    except InputError as error:
        record_failed(job, folder, str(error))
    except Exception as error:
        log.info("an unexpected error ends this trial", exc_info=True)  # a warning would be a note in the ledger
        record_failed(job, folder, f"{type(error).__name__}: {' '.join(str(error).split())[:500]}")
    tune.report({"stopped": True} if Marker(folder.path)() else {"ended": True})


def prepare(job: Job, resources: Resources) -> torch.device:
    """Set the threads of a training process, load its data and return its device.

    Raise OSError with the node's address if the node, unlike the driver's, lacks the data or a GPU: another attempt may
    run on another node.
    """
    torch.set_num_threads(resources.cpus_per_worker)
    try:
        for data in {run.config.data for run in job.runs}:
            load_dataset(data.name, data.size, data.channels, data.root)
        return resources.device()
    except InputError as error:
        raise OSError(f"node {get_node_ip_address()}: {error}") from error


def fit_workers(
    loop: Callable[[dict[str, Any]], None],
    config: dict[str, Any],
    resources: Resources,
    name: str,
    storage: str,
    callbacks: Sequence[Any] = (),
) -> None:
    """Run `loop` in every worker of a Ray Train group; if it fails, raise the error of a worker, not Ray's wrapper."""
    from ray import train  # a trial with one process does without Ray Train, which takes a while to import
    from ray.train.torch import TorchTrainer

    amounts = {name: amount for name, amount in resources.per_worker().items() if name in ("CPU", "GPU")}
    trainer = TorchTrainer(
        loop,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(
            num_workers=resources.workers,
            use_gpu="GPU" in amounts,
            resources_per_worker=amounts,
            accelerator_type=resources.accelerator,
            placement_strategy="PACK",  # one node if they fit; several rather than wait
        ),
        run_config=train.RunConfig(
            name=f"{name}-{uuid.uuid4().hex[:8]}",  # a known name would make Ray resume an old run
            storage_path=storage,
            failure_config=train.FailureConfig(max_failures=0, controller_failure_limit=resources.retries),
            callbacks=list(callbacks),
            # Workers load torch before this package, on nodes whose Ray may have been started without the variable.
            worker_runtime_env={"env_vars": {"OMP_WAIT_POLICY": os.environ["OMP_WAIT_POLICY"]}},
            logging_config=train.LoggingConfig(log_level="ERROR"),
        ),
        torch_config=_process_group(resources.backend),
    )
    try:
        trainer.fit()
    except train.WorkerGroupError as error:
        raise root_cause(list(error.worker_failures.values())) from error
    except train.ControllerError as error:
        raise root_cause([error.controller_failure]) from error
    except RayActorError as error:  # the controller itself
        raise ProcessDiedError(DIED) from error


def _process_group(backend: str | None) -> Any:
    """Return how workers form a process group: as in Ray Train, but by a private file if all are on this machine.

    Ray Train uses torch's store, whose content workers trust; it listens at all addresses, without authentication.
    """
    import ray
    from ray.train.torch import TorchConfig
    from ray.train.torch.config import _setup_torch_process_group, _TorchBackend

    class FileBackend(_TorchBackend):  # type: ignore[misc]  # Ray has no types
        def on_start(self, worker_group: Any, backend_config: Any) -> None:
            file = f"file://{os.environ[FOLDER]}/{uuid.uuid4().hex}"
            kind = backend_config.backend or ("nccl" if "GPU" in worker_group.get_resources_per_worker() else "gloo")
            world, wait, join = len(worker_group), backend_config.timeout_s, worker_group.execute_single_async
            ray.get([join(rank, _setup_torch_process_group, kind, rank, world, file, wait) for rank in range(world)])

    class FileConfig(TorchConfig):  # type: ignore[misc]
        backend_cls = FileBackend

    return (FileConfig if FOLDER in os.environ else TorchConfig)(backend=backend, timeout_s=COLLECTIVE_TIMEOUT_S)


def root_cause(failures: Sequence[Exception]) -> Exception:
    """Return what made the group fail. When one process dies, the others fail in many ways as they talk to it."""
    for error in failures:
        if isinstance(error, OSError) and not isinstance(error, ConnectionError):
            return error
    for error in failures:
        cause = getattr(error, "health_check_failure", error)
        library = isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "Gloo", "NCCL"))
        if library or isinstance(cause, (RayActorError, dist.DistError, ConnectionError)):
            return ProcessDiedError(DIED)
    return failures[0]


@errors_without_secrets()
def _work(config: dict[str, Any]) -> None:
    """The training function of every Ray Train worker."""
    from ray import train

    job, resources = Job.from_json(config["job"]), Resources(**config["resources"])
    context = train.get_context()
    configure(f"{job.label}: ")
    rank, world = context.get_world_rank(), context.get_world_size()
    workers = Workers(rank, world, resources.sync_batchnorm, prepare(job, resources))
    folder, accepted = study_folder(config["study"]), resources.accept_links
    train_job(job, folder, config["trained_by"], workers, train.report, accepted)
