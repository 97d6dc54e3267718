"""One trial of Ray Tune: it trains a job in its own process, or drives the workers of Ray Train that do."""

import json
import traceback
from typing import Any

import torch
from ray import tune

from cl2r.engine.workers import ALONE
from cl2r.rayrun.resources import Resources
from cl2r.study.jobs import Job
from cl2r.study.walk import enter_failures, study_folder, walk


def run_trial(config: dict[str, Any]) -> None:
    """The trainable. Its last report says that it came to its end; what came of the runs is in the ledger."""
    job, resources = Job.from_plain(json.loads(config["job"])), Resources(**config["resources"])
    if resources.workers == 1:
        _alone(job, config["study"], config["owner"], resources)
    else:
        from cl2r.rayrun.worker import fit  # Ray Train is only imported by those who need it

        fit(job, config["study"], config["owner"], resources)
    tune.report({"ended": True})


def _alone(job: Job, study: str, owner: str, resources: Resources) -> None:
    """No process group for one worker. What a second attempt may mend is raised, so that Tune makes one."""
    folder = study_folder(study)
    torch.set_num_threads(resources.cpus_per_worker)
    try:
        walk(job, folder, owner, ALONE, tune.report)
    except OSError:
        raise
    except Exception as error:
        traceback.print_exc()
        if job.depth is None:
            enter_failures(job, folder, one_line(error))


def one_line(error: BaseException) -> str:
    """An exception as a reason."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
