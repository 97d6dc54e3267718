"""Joining a Ray cluster, or starting one on this machine, quietly."""

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from cl2r.errors import InputError
from cl2r.rayrun.resources import Resources

_ALWAYS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",  # each report waits for the next poll; the default is 2 s
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(7 * 24 * 3600),  # workers wait for CPUs, or for a cluster to grow
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths keep their meaning
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the ledger keeps what they would, and they hold every trial in memory
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C stops at once; the links make that safe
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # nothing is ever restored from Tune's own state
}
_QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "TUNE_WARN_SLOW_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "3600",
}


def set_environment(verbose: bool) -> None:
    """What Ray reads when it is imported, and hands on to its workers; what the user has set stays."""
    for name, value in (_ALWAYS if verbose else _ALWAYS | _QUIET).items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def cluster(resources: Resources, verbose: bool) -> Iterator[int]:
    """A connected Ray; yields how many trials run side by side.

    With RAY_ADDRESS (set inside a Ray job) that cluster is joined; else a Ray of this process alone is started. An
    address file left behind by another cluster on this machine is never followed. `set_environment` came before.
    """
    import ray

    address = os.environ.get("RAY_ADDRESS", "local")
    if address.startswith("http"):
        raise InputError(f"RAY_ADDRESS={address} is for `ray job submit`; a study joins `auto` or HOST:PORT")
    options: dict[str, Any] = {"address": address, "log_to_driver": verbose}
    if not verbose:
        options["logging_level"] = logging.CRITICAL  # what fails is in the ledger, in fewer words
    if address == "local":
        # Without the dashboard's state service a stopped trial with Train workers would keep their CPUs.
        options |= {"include_dashboard": resources.workers > 1, "object_store_memory": 256 * 2**20}
    started = not ray.is_initialized()
    if started:
        ray.init(**options)
    try:
        yield _concurrency(resources, ray.cluster_resources(), local=address == "local")
    finally:
        if started:
            ray.shutdown()


def _concurrency(resources: Resources, there: dict[str, float], local: bool) -> int:
    fitting = resources.fit_into(there)
    if fitting < 1 and local:
        wanted = ", ".join(f"{amount:g} {name}" for name, amount in resources.per_worker().items())
        have = ", ".join(f"{there.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
        raise InputError(f"{resources.workers} workers of {wanted} each do not fit into this machine ({have})")
    # An autoscaled cluster may still be empty: ask, and it grows.
    return min(resources.max_concurrent or max(1, fitting), fitting if local else 10**6)
