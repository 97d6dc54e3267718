"""Optuna's journal of a study, on a disk or in the object store, and its seals."""

import json
import logging
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend, JournalFileOpenLock

from cl2r.storage.path import LocalPath, StoragePath
from cl2r.storage.seal import JournalSeal, SealError, sealed, set_aside_with_seal, unsealed
from cl2r.study.folder import StudyFolder

log = logging.getLogger(__name__)
DAMAGED = (ValueError, KeyError, TypeError, IsADirectoryError, AssertionError)
"""Errors of a damaged journal: those of its seal, and those of Optuna when it reads the entries."""


class ObjectJournal(BaseJournalBackend):
    """Optuna's journal in an object store: one numbered, sealed object per entry. Only the driver writes it."""

    def __init__(self, folder: StoragePath, owner: str) -> None:
        self.folder, self.owner = folder, owner
        paths = [path for path in folder.list("*.json") if re.fullmatch(r"\d{8}\.json", path.name)]
        with ThreadPoolExecutor(16) as readers:
            written = list(readers.map(self._read, paths))
        if [path.name for path in paths] != [f"{number:08d}.json" for number in range(len(paths))]:
            raise SealError("an entry is missing")
        self.appended = len(written)
        self.entries: list[dict[str, Any]] = [entry for content in written for entry in json.loads(content)]

    def _read(self, path: StoragePath) -> bytes:
        return unsealed(path.read_bytes(), f"{self.owner}, {path.name}")

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        return self.entries[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        name = f"{self.appended:08d}.json"
        (self.folder / name).write_file(sealed(json.dumps(logs).encode(), f"{self.owner}, {name}"))
        self.appended += 1
        self.entries += json.loads(json.dumps(logs))


class _NoLock(JournalFileOpenLock):
    """Replaces Optuna's lock, which blocks for 31 s if a killed driver left it; the driver's own lock suffices."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        """Do nothing."""


class FileJournal(JournalFileBackend):
    """Optuna's journal on a disk, which optuna-dashboard can open; its seal is beside it. Only the driver writes it.

    The seal has the checksums of the journal before and after the last entry. An entry that was cut off when its writer
    was killed, and lines that another program added, are removed. Raise SealError if the rest does not fit the seal.
    """

    def __init__(self, path: LocalPath, owner: str) -> None:
        self.seal = JournalSeal(path, owner)
        super().__init__(str(path), _NoLock(str(path)))

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.seal.append("".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in logs).encode())
        super().append_logs(logs)


def open_journal(folder: StudyFolder) -> BaseStorage:
    """Open or create Optuna's storage of a study. A damaged journal is set aside and rebuilt from the ledger."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        return JournalStorage(_journal(folder))
    except DAMAGED as error:
        log.warning("%s is damaged (%s); it is set aside and rebuilt from the ledger", folder.journal, error)
        set_aside_with_seal(folder.journal)
        return JournalStorage(_journal(folder))


def _journal(folder: StudyFolder) -> BaseJournalBackend:
    journal, owner = folder.journal, folder.owner(folder.journal.name)
    if not isinstance(journal, LocalPath):
        return ObjectJournal(journal, owner)
    journal.parent.mkdir(parents=True, exist_ok=True)
    return FileJournal(journal, owner)


def check_journal(folder: StudyFolder) -> str:
    """Return what is wrong with Optuna's journal of a study; empty if it is sound, or if there is none."""
    journal, owner = folder.journal, folder.owner(folder.journal.name)
    try:
        if isinstance(journal, LocalPath):
            if lines := JournalSeal(journal, owner, change=False).unsealed_lines:
                return f"{lines} lines at its end are not covered by its seal"
        elif journal.exists():
            ObjectJournal(journal, owner)
    except DAMAGED as error:
        return str(error)
    return ""
