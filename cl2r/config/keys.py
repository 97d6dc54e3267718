"""The content key of every link of a chain: a hash of exactly what the model after task t depends on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from cl2r.config.methods import METHODS, method_info
from cl2r.config.schema import Config, fields, matters_from

LINK_FORMAT = 3  # increase it when the code changes what a link contains: old links are then trained again
LATER_FIELDS: dict[str, Any] = {
    "augment.crop": "padded",
    "adapter.rank": 32,
    "adapter.width": 128,
    "adapter.scaling": False,
    "adapter.orthogonality": 1.0,
    "eval.metric": "accuracy",
    "eval.far": [0.01, 0.1, 0.0001],
    "eval.order": "stratified",
    "eval.thresholds": "exact",
    "eval.normalise": "training",
    "eval.features": "float32",
    "eval.split": "images",
    "eval.average_precision": False,
    "optim.compile": False,
    "head.bias": False,
    "foster.old_on_new": "zero",
}
"""Fields added after links and studies had been stored, with the value that means the earlier behaviour."""


def telling(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without later ones at their neutral value, so that stored links and runs keep key and name."""
    return {name: value for name, value in values.items() if name not in LATER_FIELDS or LATER_FIELDS[name] != value}


def link_keys(
    config: Config, fingerprint: str, classes_by_task: Sequence[Sequence[int]], num_outputs: int
) -> list[str]:
    """Return the keys of links 1..T: hashes of data, class lists so far, K, and the fields that matter so far."""
    values, off = telling(fields(config)), _switched_off(config)
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
