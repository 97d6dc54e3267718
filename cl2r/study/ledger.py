"""The ledger of a study: an append-only log with one small file per event.

The name of a file holds time, kind and subject, so the state of a study is a listing of one folder. Files appear whole
and are never changed, so any number of processes can write. Times never decrease: an event is dated after all events
that its writer can see, whatever the clock says.
"""

import json
import time
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cl2r.runtime.logs import without_secrets
from cl2r.storage.path import StoragePath, at

Kind = Literal[
    "opened", "round", "trial", "repeated", "confirming", "started", "finished", "failed", "pruned", "noted", "closed"
]
FREE_TEXT = ("reason", "line")
"""Fields that may repeat the message of a library, with a signed address or a login in it."""
DIED = "its process died"  # the reason of a run that failed because its process was lost


@dataclass(frozen=True, order=True)
class Event:
    """One entry, parsed from its file name. `subject` is a run's name, a trial's or context's number, or `driver`."""

    time_ns: int
    kind: str
    subject: str
    path: StoragePath

    def read(self) -> dict[str, Any]:
        """Return the content of the entry."""
        content: dict[str, Any] = json.loads(self.path.read_bytes())
        return content


def read_events(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return the contents of the entries, read in parallel: an object store needs one request for each."""
    with ThreadPoolExecutor(16) as readers:
        return list(readers.map(Event.read, events))


class Ledger:
    """The events below `folder`."""

    def __init__(self, folder: StoragePath | Path) -> None:
        self.folder = at(folder)

    def write(self, kind: Kind, subject: str, content: dict[str, Any]) -> None:
        """Add an event."""
        latest = max((path.name for path in self.folder.list("*.json")), default="0.").partition(".")[0]
        moment = max(time.time_ns(), int(latest) + 1)
        name = f"{moment:020d}.{kind}.{subject}.{uuid.uuid4().hex[:8]}.json"
        texts = {field: without_secrets(content[field]) for field in FREE_TEXT if field in content}
        (self.folder / name).write_file(json.dumps(content | texts).encode())

    def events(self, *kinds: Kind) -> list[Event]:
        """Return all events, or all of the given kinds, sorted by time."""
        found = []
        for path in self.folder.list("*.json"):
            time_ns, kind, rest = path.name.split(".", 2)
            found.append(Event(int(time_ns), kind, rest.rsplit(".", 2)[0], path))
        return sorted(event for event in found if not kinds or event.kind in kinds)

    def last(self, *kinds: Kind) -> dict[str, Event]:
        """Return the latest event of the given kinds by subject."""
        return {event.subject: event for event in self.events(*kinds)}

    def outcomes(self) -> dict[str, Event]:
        """Return the outcome of every run that ended; a finished run stays finished, whatever came before or after."""
        return self.last("failed", "pruned") | self.last("finished")


def finished(outcomes: dict[str, Event], runs: Iterable[str]) -> bool:
    """Return whether all of `runs` have finished."""
    return all(run in outcomes and outcomes[run].kind == "finished" for run in runs)
