"""The content key of every link of a chain: a hash of exactly what the model after task t depends on."""

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Literal

from cl2r.config.methods import METHODS, method_info
from cl2r.config.schema import Config, fields, matters_from

LINK_FORMAT = 5  # increase it when the code changes what a link contains: old links are then trained again
KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""What the key of a link looks like; anything else in the store's folder is not ours."""
ONE_CPU = "cpu1"
AcceptLinks = Literal["same", "any"]
"""Use stored links made with as many workers on the same kind of device, or any."""
MAKERS = ("device", "workers", "sync_batchnorm")
"""Columns of `tasks` that describe what trained a link; `mixed` in `runs` is true if they differ between the links of a
run."""


def made_by(device: str, workers: int, sync_batchnorm: bool) -> str:
    """Return a short name of device kind and worker count: `cpu1`, `cuda4`, `cuda4s` with synchronised batch norm."""
    return f"{device}{workers}{'s' * sync_batchnorm}"


def stored_key(key: str, made: Sequence[str]) -> str:
    """Return the key that a link is stored under: `key`, and what computed this link and those before it.

    Rounding and the statistics of batch norm depend on the kind of device and on the number of workers: links trained
    differently have different keys. A link that one process made on a CPU, like all before it, is stored under `key`.
    """
    if len(set(made)) > 1:
        return f"{key}-mixed{hashlib.sha256(json.dumps(list(made)).encode()).hexdigest()[:12]}"
    return key if made[0] == ONE_CPU else f"{key}-{made[0]}"


def link_keys(
    config: Config, fingerprint: str, classes_by_task: Sequence[Sequence[int]], num_outputs: int
) -> list[str]:
    """Return the keys of links 1..T: hashes of data, class lists so far, K, and the fields that matter so far."""
    values, off = fields(config), _switched_off(config)
    values["optim.milestones"] = [epoch for epoch in config.optim.milestones if epoch < config.optim.epochs]
    first = {name: since for name, since in matters_from().items() if since is not None and name not in off}
    info = method_info(config.method.name)
    keys = []
    for task in range(1, len(classes_by_task) + 1):
        family = info.first_task if task == 1 and info.first_task else info.family
        version = next((other.version for other in METHODS.values() if other.family == family), "")
        content = {
            "format": LINK_FORMAT,
            "family": [family, version],
            "data": fingerprint,
            "outputs": num_outputs,
            "classes": [list(map(int, classes)) for classes in classes_by_task[:task]],
            "fields": {name: values[name] for name, since in first.items() if since <= task and name in values},
        }
        keys.append(hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32])
    return keys


def _switched_off(config: Config) -> set[str]:
    """Return the fields that have no effect because of others: a sweep over λ trains ER once."""
    off: set[str] = set()
    info, fixed = method_info(config.method.name), config.method.classifier == "fixed"
    if not fixed:
        off |= {"simplex.scale"}
    # An installed method may follow its switches in its own way: for these only a switch that is not on has no effect.
    built_in = info.build.startswith("cl2r.")
    if fixed and (built_in or not config.head.preallocate):
        off |= {"head.preallocate"}
    if not fixed and not config.head.preallocate and (built_in or not config.head.mask_unseen):
        off |= {"head.mask_unseen"}
    if config.method.fd == "none":
        off |= {"method.lambda_base", "method.lambda_rule", "method.fd_when_no_memory"}
    if config.optim.schedule == "cosine":
        off |= {"optim.milestones", "optim.gamma"}
    if config.augment.crop == "resized":
        off |= {"augment.padding"}
    if info.memory == "all":
        off |= {"memory.per_class", "memory.selection"}
    return off
