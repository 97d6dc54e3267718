"""The ledger of a study: an append-only log with one small file per event.

The name of a file holds time, kind and subject, so the state of a study is a listing of one folder. Files appear whole
and are never changed, so any number of processes can write. Times never decrease: an event is dated after all events
that its writer can see, whatever the clock says. Every file is sealed as an event of its study: one that was damaged,
renamed or copied from another study is not used.
"""

import errno
import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from cl2r.errors import InputError
from cl2r.runtime.logs import without_secrets
from cl2r.runtime.text import printable
from cl2r.storage.path import HIDDEN, StoragePath, at
from cl2r.storage.seal import SealError, sealed, unsealed

log = logging.getLogger(__name__)

Kind = Literal[
    "opened", "round", "trial", "repeated", "confirming", "started", "finished", "failed", "pruned", "noted", "closed"
]
NAME = re.compile(rf"(\d{{20}})\.({'|'.join(get_args(Kind))})\.(.+)\.[0-9a-f]{{8}}\.json")
FREE_TEXT = ("reason", "line")
"""Fields that may repeat the message of a library, with a signed address or a login in it."""
DIED = "its process died"  # the reason of a run that failed because its process was lost
_noted: set[str] = set()  # folders with foreign files that the log has mentioned


@dataclass(frozen=True, order=True)
class Event:
    """One entry, parsed from its file name. `subject` is a run's name, a trial's or context's number, or `driver`."""

    time_ns: int
    kind: str
    subject: str
    path: StoragePath
    study: str = field(default="", compare=False)  # id of the study that it must belong to

    def read(self) -> dict[str, Any]:
        """Return the content of the entry. Raise InputError if it is damaged or belongs to another study."""
        try:
            content: dict[str, Any] = json.loads(unsealed(self.path.read_bytes(), owner(self.study, self.path.name)))
            if not isinstance(content, dict):
                raise SealError("it is not a mapping")
        except (SealError, OSError, ValueError, RecursionError) as error:
            gone = isinstance(error, FileNotFoundError | IsADirectoryError)
            if isinstance(error, OSError) and not gone and error.errno != errno.ELOOP:
                raise  # a disk or a store without an answer
            fault = "no file is in its place" if isinstance(error, OSError) else error
            cure = "run the study's command again, which sets it aside and rebuilds its content"
            raise InputError(f"{self.path} is damaged ({fault}); {cure}") from error
        return content


def read_events(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return the contents of the entries, read in parallel: an object store needs one request for each."""
    with ThreadPoolExecutor(16) as readers:
        return list(readers.map(Event.read, events))


class Ledger:
    """The events in `folder`. `study` is a function that returns the id of their study."""

    def __init__(self, folder: StoragePath | Path, study: Callable[[], str] = str) -> None:
        self.folder, self._find_study = at(folder), study

    @cached_property
    def study(self) -> str:
        """Id of the study."""
        return self._find_study()

    def write(self, kind: Kind, subject: str, content: dict[str, Any]) -> None:
        """Add an event."""
        latest = max((event.time_ns for event in self.events()), default=0)
        moment = max(time.time_ns(), latest + 1)
        name = f"{moment:020d}.{kind}.{subject}.{uuid.uuid4().hex[:8]}.json"
        texts = {field: without_secrets(content[field]) for field in FREE_TEXT if field in content}
        body = json.dumps(content | texts).encode()
        (self.folder / name).write_file(sealed(body, owner(self.study, name)))

    def events(self, *kinds: Kind) -> list[Event]:
        """Return all events, or all of the given kinds, sorted by time; other files are ignored, with one note."""
        if not self.folder.remote and self.folder.file_info() is not None:
            raise InputError(f"{self.folder}: a file is in place of the ledger's folder; move it away")
        found, foreign = [], []
        for path in self.folder.list("*"):
            if parts := NAME.fullmatch(path.name):
                found.append(Event(int(parts[1]), parts[2], parts[3], path, self.study))
            elif not HIDDEN.fullmatch(path.name):
                foreign.append(path.name)
        if foreign and str(self.folder) not in _noted:
            _noted.add(str(self.folder))
            log.info(
                "note: %s holds files that are not events, e.g. %s; they are ignored",
                self.folder,
                printable(foreign[0]),
            )
        return sorted(event for event in found if not kinds or event.kind in kinds)

    def last(self, *kinds: Kind) -> dict[str, Event]:
        """Return the latest event of the given kinds by subject."""
        return {event.subject: event for event in self.events(*kinds)}

    def outcomes(self) -> dict[str, Event]:
        """Return the outcome of every run that ended; a finished run stays finished, whatever came before or after."""
        return self.last("failed", "pruned") | self.last("finished")

    def damaged(self) -> list[tuple[Event, str]]:
        """Return the events that are damaged or belong to another study, and what is wrong with each."""

        def fault(event: Event) -> str:
            try:
                event.read()
            except InputError as error:
                return str(error.__cause__)
            return ""

        events = self.events()
        with ThreadPoolExecutor(16) as readers:
            return [(event, why) for event, why in zip(events, readers.map(fault, events), strict=True) if why]

    def set_damaged_aside(self) -> None:
        """Rename damaged events and report each; only the driver of a study may do that."""
        for event, why in self.damaged():
            lost = "; its run is evaluated again from its links" if event.kind == "finished" else ""
            log.warning("%s is damaged (%s); it is set aside%s", printable(str(event.path)), why, lost)
            event.path.set_aside()


def owner(study: str, name: str) -> str:
    """Return the owner of an event, as stated in its seal."""
    return f"study {study}, event {name}"


def finished(outcomes: dict[str, Event], runs: Iterable[str]) -> bool:
    """Return whether all of `runs` have finished."""
    return all(run in outcomes and outcomes[run].kind == "finished" for run in runs)
