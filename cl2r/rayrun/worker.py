"""Ray Train: the workers that train the runs of one job together.

One TorchTrainer walks all tasks; a process group a task would cost more than the task. Nothing is checkpointed through
Ray: after the loss of a worker the whole group starts again and finds links and epochs in the store. Batches are dealt
by `cl2r.batches`, never by Ray's `prepare_data_loader`, which would replace the sampler.
"""

import uuid
from dataclasses import asdict
from typing import Any

import torch
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer
from ray.tune.integration.ray_train import TuneReportCallback

from cl2r.engine.workers import Workers
from cl2r.rayrun.resources import Resources
from cl2r.study.jobs import Job
from cl2r.study.walk import study_folder, walk

LONG = 24 * 3600
"""Seconds that a collective may wait: another study may be training the link this one needs."""


def fit(job: Job, study: str, owner: str, resources: Resources) -> None:
    """Train the job with `resources.workers` processes; raises if they cannot be kept alive."""
    gpus = resources.gpus_per_worker > 0
    scaling = train.ScalingConfig(
        num_workers=resources.workers,
        use_gpu=gpus,
        resources_per_worker={"CPU": resources.cpus_per_worker} | ({"GPU": resources.gpus_per_worker} if gpus else {}),
        accelerator_type=resources.accelerator,
    )
    run = train.RunConfig(
        name=f"{job.label}-{uuid.uuid4().hex[:8]}",  # an old name would make Ray resume an old run
        storage_path=f"{study}/ray",
        failure_config=train.FailureConfig(max_failures=resources.retries, controller_failure_limit=resources.retries),
        callbacks=[TuneReportCallback()],
        logging_config=train.LoggingConfig(log_level="ERROR"),
    )
    config = {"job": job.to_plain(), "study": study, "owner": owner, "resources": asdict(resources)}
    TorchTrainer(
        _work,
        train_loop_config=config,
        scaling_config=scaling,
        run_config=run,
        torch_config=TorchConfig(backend=resources.backend, timeout_s=LONG),
    ).fit()


def _work(config: dict[str, Any]) -> None:
    """What every worker runs."""
    resources, context = Resources(**config["resources"]), train.get_context()
    torch.set_num_threads(resources.cpus_per_worker)
    rank, world = context.get_world_rank(), context.get_world_size()
    workers = Workers(rank, world, resources.sync_batchnorm, resources.device())
    walk(Job.from_plain(config["job"]), study_folder(config["study"]), config["owner"], workers, train.report)
