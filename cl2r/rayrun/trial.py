"""One trial of Ray Tune: it trains a job in its own process, or drives the workers of Ray Train that do."""

import json
import socket
import sys
import time
import traceback
from typing import Any

import torch
from ray import tune

from cl2r.engine.workers import Workers
from cl2r.privacy import errors_without_secrets, without_secrets
from cl2r.rayrun.resources import Resources
from cl2r.rayrun.starting import Starting
from cl2r.stopping import Marker
from cl2r.study.jobs import Job
from cl2r.study.walk import enter_failures, study_folder, walk


@errors_without_secrets()
def run_trial(config: dict[str, Any]) -> None:
    """The trainable. Its last report says that it came to its end, or was asked to stop; what came of the runs is in
    the ledger.

    What a second attempt may mend (OSError) is raised: like the death of this process, it leads to one.
    """
    began = time.monotonic()
    job, resources = Job.from_plain(json.loads(config["job"])), Resources(**config["resources"])
    folder = study_folder(config["study"])
    if not folder.specification.exists():
        raise OSError(f"{folder.storage} is not the storage of the driver: {socket.gethostname()} does not share it")
    starting, name = Starting(folder.path), config["starting"]
    if name:
        starting.begun(name)
    try:
        if resources.workers == 1:
            torch.set_num_threads(resources.cpus_per_worker)
            walk(job, folder, config["owner"], Workers(device=resources.device()), tune.report)
        else:
            _drive(job, config["study"], config["owner"], resources)
    except OSError:
        raise
    except Exception as error:
        print(without_secrets(traceback.format_exc()), file=sys.stderr, flush=True)
        enter_failures(job, folder, one_line(error))
    stop = Marker(folder.path)
    if name:
        starting.wait(began + config["patience"], stop)
    tune.report({"stopped": True} if stop() else {"ended": True})


def _drive(job: Job, study: str, owner: str, resources: Resources) -> None:
    from cl2r.rayrun.worker import fit  # Ray Train is only imported by those who need it

    fit(job, study, owner, resources)


def one_line(error: BaseException) -> str:
    """An exception as a reason."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
