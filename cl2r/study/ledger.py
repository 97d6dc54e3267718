"""The ledger of a study: what has happened, one small file an event, only ever added to.

The name of a file says when, what and of whom, so the state of a study is a listing of a folder. Files appear whole,
whoever writes them and however many do, and none is ever changed; there is no line to tear. Times never go back: an
event is dated after all that its writer can see, whatever the clock says.
"""

import json
import time
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from cl2r.files import Place, write_file
from cl2r.privacy import without_secrets

Kind = Literal["opened", "trial", "repeated", "started", "finished", "failed", "pruned", "noted", "closed"]
FREE_TEXT = ("reason", "line")
"""Fields that may repeat what a library said: an address that is signed, a login."""
DIED = "its process died"
"""The reason of a run that failed through no fault of its own."""


@dataclass(frozen=True, order=True)
class Event:
    """One entry, as its file name tells it. `subject` is a run's name, or a trial's number."""

    time_ns: int
    kind: str
    subject: str
    path: Place

    def read(self) -> dict[str, Any]:
        """What the entry says."""
        content: dict[str, Any] = json.loads(self.path.read_bytes())
        return content


def read_events(events: Sequence[Event]) -> list[dict[str, Any]]:
    """What the entries say, side by side: an object store takes its time for each."""
    with ThreadPoolExecutor(16) as readers:
        return list(readers.map(Event.read, events))


class Ledger:
    """Events below `folder`."""

    def __init__(self, folder: Place) -> None:
        self.folder = folder

    def write(self, kind: Kind, subject: str, content: dict[str, Any]) -> None:
        """Add an event."""
        latest = max((path.name for path in self.folder.glob("*.json")), default="0.").partition(".")[0]
        moment = max(time.time_ns(), int(latest) + 1)
        name = f"{moment:020d}.{kind}.{subject}.{uuid.uuid4().hex[:8]}.json"
        texts = {field: without_secrets(content[field]) for field in FREE_TEXT if field in content}
        write_file(self.folder / name, json.dumps(content | texts).encode())

    def events(self, *kinds: Kind) -> list[Event]:
        """All events, or those of the given kinds, by time."""
        found = (_event(path) for path in self.folder.glob("*.json"))
        return sorted(event for event in found if not kinds or event.kind in kinds)

    def last(self, *kinds: Kind) -> dict[str, Event]:
        """The latest event of every subject, among those of the given kinds."""
        return {event.subject: event for event in self.events(*kinds)}

    def outcomes(self) -> dict[str, Event]:
        """How every run that ended has ended; a finished run stays finished, whatever came before or after."""
        return self.last("failed", "pruned") | self.last("finished")


def _event(path: Place) -> Event:
    time_ns, kind, rest = path.name.split(".", 2)
    subject = rest.rsplit(".", 2)[0]
    return Event(int(time_ns), kind, subject, path)


def finished(outcomes: dict[str, Event], runs: Iterable[str]) -> bool:
    """Whether every one of `runs` is finished."""
    return all(run in outcomes and outcomes[run].kind == "finished" for run in runs)
