"""Optuna's journal in an object store: one object an entry, numbered. Only the driver of a study writes it."""

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from optuna.storages.journal import BaseJournalBackend, JournalFileBackend

from cl2r.files import Place
from cl2r.objects import ObjectPath


def journal(place: Place) -> BaseJournalBackend:
    """The journal at `place`: on a disk Optuna's own file, which optuna-dashboard opens."""
    return ObjectJournal(place) if isinstance(place, ObjectPath) else JournalFileBackend(str(place))


class ObjectJournal(BaseJournalBackend):
    """Entries below `folder`; those of earlier drivers are read once, when the first is asked for."""

    def __init__(self, folder: ObjectPath) -> None:
        self.folder = folder
        with ThreadPoolExecutor(16) as readers:
            written = list(readers.map(ObjectPath.read_bytes, sorted(folder.glob("*.json"))))
        self.appended = len(written)
        self.entries: list[dict[str, Any]] = [entry for content in written for entry in json.loads(content)]

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """Entries from a number on."""
        return self.entries[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Add entries; they are in the store when this returns."""
        (self.folder / f"{self.appended:08d}.json").write_bytes(json.dumps(logs).encode())
        self.appended += 1
        self.entries += json.loads(json.dumps(logs))
