"""How often a job is tried again. A death does not count if the job had come further since the last one.

On nodes that are taken away again and again a long run dies often and finishes nevertheless; a process that always dies
at the same point must not be tried for ever. What counts is what is saved: links, and epochs of links not yet whole.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from cl2r.engine.store import PARTIAL, LinkStore
from cl2r.study.jobs import Job

Epoch = tuple[int, int]


@dataclass(frozen=True)
class Saved:
    """How far a job is: its links that are there, and stage and epoch of those that are not."""

    links: frozenset[str]
    epochs: Mapping[str, Epoch]

    def beyond(self, other: "Saved") -> bool:
        """Whether this is further: a link more, or a later epoch of one."""
        later = any(epoch > other.epochs[key] for key, epoch in self.epochs.items() if key in other.epochs)
        return bool(self.links - other.links) or later


def saved(job: Job, store: LinkStore) -> Saved:
    """What the store has of a job; reads no tensors and changes nothing."""
    keys = {key for run in job.runs for key in run.keys[: job.depth]}
    links = store.among(keys)
    return Saved(frozenset(links), {key: _epoch(store, key) for key in keys - links})


def _epoch(store: LinkStore, key: str) -> Epoch:
    try:
        entry = json.loads((store.partials / key / PARTIAL).read_bytes().partition(b"\n")[2])
        return int(entry["stage"]), int(entry["epoch"])
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):  # none, or one as good as none
        return 0, 0


class Attempts:
    """Counts the deaths of every job, one after the other, that brought nothing."""

    def __init__(self, store: LinkStore, retries: int) -> None:
        self.store, self.retries = store, retries
        self._at_death: dict[str, Saved] = {}
        self._in_vain: dict[str, int] = {}

    def another(self, job: Job) -> bool:
        """A process of the job has died: whether to try again."""
        now, before = saved(job, self.store), self._at_death.get(job.label)
        progressed = before is not None and now.beyond(before)
        self._at_death[job.label] = now
        self._in_vain[job.label] = 0 if progressed else self._in_vain.get(job.label, 0) + 1
        return self._in_vain[job.label] <= self.retries
