"""Ray Train: the workers that train the runs of one job together.

One TorchTrainer walks all tasks; a process group a task would cost more than the task. Nothing is checkpointed through
Ray: after the loss of a worker the trial is tried again, by the same rule as one of a single process, and finds
links and epochs in the store. Batches are dealt by `cl2r.batches`, never by Ray's `prepare_data_loader`, which would
replace the sampler.
"""

import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from ray import train
from ray.exceptions import RayActorError
from ray.train.torch import TorchConfig, TorchTrainer
from ray.tune.integration.ray_train import TuneReportCallback

from cl2r.engine.workers import Workers
from cl2r.errors import ProcessDiedError
from cl2r.privacy import errors_without_secrets
from cl2r.rayrun.resources import Resources
from cl2r.study.jobs import Job
from cl2r.study.ledger import DIED
from cl2r.study.walk import study_folder, walk

LONG = 24 * 3600
"""Seconds that a collective may wait: another study may be training the link this one needs."""


def fit(job: Job, study: str, owner: str, resources: Resources) -> None:
    """Train the job with `resources.workers` processes; an OSError where another attempt may help."""
    gpus = resources.gpus_per_worker > 0
    scaling = train.ScalingConfig(
        num_workers=resources.workers,
        use_gpu=gpus,
        resources_per_worker={"CPU": resources.cpus_per_worker} | ({"GPU": resources.gpus_per_worker} if gpus else {}),
        accelerator_type=resources.accelerator,
        placement_strategy="PACK",  # one node if they fit; several rather than wait
    )
    run = train.RunConfig(
        name=f"{job.label}-{uuid.uuid4().hex[:8]}",  # an old name would make Ray resume an old run
        storage_path=str(study_folder(study).path / "ray"),
        failure_config=train.FailureConfig(max_failures=0, controller_failure_limit=resources.retries),
        callbacks=[TuneReportCallback()],
        logging_config=train.LoggingConfig(log_level="ERROR"),
    )
    config = {"job": job.to_plain(), "study": study, "owner": owner, "resources": asdict(resources)}
    trainer = TorchTrainer(
        _work,
        train_loop_config=config,
        scaling_config=scaling,
        run_config=run,
        torch_config=TorchConfig(backend=resources.backend, timeout_s=LONG),
    )
    run_to_end(trainer)


def run_to_end(trainer: TorchTrainer) -> None:
    """Raise what made it fail, not what Ray says of it."""
    try:
        trainer.fit()
    except train.WorkerGroupError as error:
        raise cause(list(error.worker_failures.values())) from error
    except train.ControllerError as error:
        raise cause([error.controller_failure]) from error
    except RayActorError as error:  # the controller itself
        raise ProcessDiedError(DIED) from error


def cause(failures: Sequence[Exception]) -> Exception:
    """What made the group fail. When one process dies, those that talked to it fail in many ways."""
    own = [error for error in failures if isinstance(error, OSError) and not isinstance(error, ConnectionError)]
    if own:
        return own[0]
    if any(_by_death(error) for error in failures):
        return ProcessDiedError(DIED)
    return failures[0]


def _by_death(error: Exception) -> bool:
    """Whether a worker failed because its process, or another one, is gone."""
    lost = isinstance(getattr(error, "health_check_failure", error), (RayActorError, dist.DistError, ConnectionError))
    return lost or (isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "Gloo", "NCCL")))


@errors_without_secrets()
def _work(config: dict[str, Any]) -> None:
    """What every worker runs."""
    resources, context = Resources(**config["resources"]), train.get_context()
    torch.set_num_threads(resources.cpus_per_worker)
    rank, world = context.get_world_rank(), context.get_world_size()
    workers = Workers(rank, world, resources.sync_batchnorm, resources.device())
    walk(Job.from_plain(config["job"]), study_folder(config["study"]), config["owner"], workers, train.report)
