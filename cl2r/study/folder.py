"""The folder of a study below the storage root: its files, its name, the lock of its driver, and `about.json`.

`about.json` (command, version, the driver's machine, times) may be shown to others, so it holds no name of a user or
machine, no path of a home directory and no secret.
"""

import contextlib
import hashlib
import json
import os
import signal
import socket
import sys
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from cl2r import __version__
from cl2r.errors import InputError
from cl2r.runtime.environment import commit, environment, shareable_command
from cl2r.storage.claims import HeldError, last_disk_holder
from cl2r.storage.documents import RESTORE, json_mapping, yaml_mapping
from cl2r.storage.path import StoragePath, at
from cl2r.study.ledger import Event, Ledger

ABOUT_FORMAT = 1


class StudyFolder:
    """`storage`/studies/`name`; links are in `storage` and shared by all studies."""

    def __init__(self, storage: StoragePath | Path, name: str) -> None:
        if Path(name).name != name or name in ("", ".."):
            raise InputError(f"--name {name}: give the name of one folder, without slashes")
        self.storage, self.name = at(storage), name
        self.path = self.storage / "studies" / name
        self.specification = self.path / "study.yaml"  # the id and the specification that the name stands for
        self.about = self.path / "about.json"
        self.ledger = Ledger(self.path / "ledger")
        self.live = self.path / "live"  # progress files of running training processes
        self.journal = self.path / "optuna.journal"
        self._lock = self.path / "driver.lock"

    def claim_name(self, identity: dict[str, Any]) -> str:
        """Register the specification under this name, or check that it is unchanged; return the study's id."""
        if not self.specification.exists():
            entry = {"id": uuid.uuid4().hex, "specification": identity}
            self.specification.write_file(yaml.safe_dump(entry).encode())
        return self.check_name(identity)

    def check_name(self, identity: dict[str, Any]) -> str:
        """Return the study's id, or "" if the name is free. Raise InputError if it stands for something else."""
        if not self.specification.exists():
            return ""
        stored = yaml_mapping(self.specification.read_bytes(), self.specification, RESTORE)
        if stored["specification"] != yaml.safe_load(yaml.safe_dump(identity)):  # tuples become lists
            old, new = _flat(stored["specification"]), _flat(identity)
            lines = [f"study {self.name!r} has another specification; choose another --name"]
            for key in sorted(old.keys() | new.keys()):
                there, here = old.get(key, "not given"), new.get(key, "not given")
                lines += [f"  {key}: {there} there, {here} here"] if there != here else []
            raise InputError("\n".join(lines))
        return str(stored["id"])

    @contextlib.contextmanager
    def driver_lock(self) -> Iterator[None]:
        """Hold the lock of the driver. Raise InputError if another driver has it; a dead driver's lock is free."""
        # A driver that other processes take for dead (in an object store) must stop: another one may be at work.
        lock = self._lock.lock(wait=False, on_loss=lambda: os.kill(os.getpid(), signal.SIGTERM))
        try:
            with lock:
                yield
        except HeldError as error:
            raise InputError(f"study {self.name!r} is being run by {error}") from error

    def is_driven(self) -> bool:
        """Return whether a driver is at work: on this machine or, with an object store, on any machine."""
        return self._lock.holder() is not None

    def driver_is_elsewhere(self) -> bool:
        """Return whether the last driver ran on another machine, whose file lock may not be visible here."""
        if self.path.remote:
            return False
        host = last_disk_holder(Path(str(self._lock))).rpartition(" on ")[2]
        return host not in ("", socket.gethostname())

    def write_about(self, resources: dict[str, Any], expected_runs: int) -> None:
        """Write `about.json`; the driver calls this when it starts, after it has opened the ledger."""
        entry = {"format": ABOUT_FORMAT, "version": __version__, "commit": commit()}
        entry |= {"command": shareable_command(sys.argv), **driver_times(self.ledger.events())}
        entry |= {"expected_runs": expected_runs, "resources": resources, "environment": environment()}
        self.about.write_file(json.dumps(entry, indent=1, ensure_ascii=False).encode())

    def update_about(self) -> None:
        """Bring the times in `about.json` up to date; without such a file do nothing."""
        if entry := self.read_about():
            self.about.write_file(json.dumps(entry, indent=1, ensure_ascii=False).encode())

    def read_about(self) -> dict[str, Any]:
        """Return `about.json` with the times that the ledger has now; {} if there is no file."""
        if not self.about.exists():
            return {}
        return {**json_mapping(self.about.read_bytes(), self.about), **driver_times(self.ledger.events())}


def driver_times(events: Sequence[Event]) -> dict[str, Any]:
    """Return when the first driver began, when the last one ended (None if it has not), and their total seconds."""
    sessions: list[list[Event]] = []
    for event in events:
        if event.kind == "opened":
            sessions.append([])
        if sessions:
            sessions[-1].append(event)
    closed = [event for session in sessions[-1:] for event in session if event.kind == "closed"]

    def moment(event: Event) -> str:
        return datetime.fromtimestamp(event.time_ns / 1e9, UTC).isoformat(timespec="seconds")

    return {
        "began": moment(sessions[0][0]) if sessions else None,
        "ended": moment(closed[-1]) if closed else None,
        "seconds": round(sum(session[-1].time_ns - session[0].time_ns for session in sessions) / 1e9, 3),
    }


def digest(identity: dict[str, Any]) -> str:
    """Return eight hex digits that identify a specification."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]


def _flat(entry: Any, prefix: str = "") -> dict[str, str]:
    """Return the leaves of nested mappings as JSON, by dotted path."""
    if not isinstance(entry, dict) or not entry:
        return {prefix: json.dumps(entry, ensure_ascii=False)}
    parts = (_flat(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in entry.items())
    return {name: text for part in parts for name, text in part.items()}


def finished_runs(storage: StoragePath) -> dict[str, Event]:
    """Return the last `finished` event of every run of the studies in `storage`, by run name."""
    folders = [StudyFolder(storage, path.parent.name) for path in (storage / "studies").list("*/ledger")]
    events = [event for folder in folders for event in folder.ledger.last("finished").values()]
    return {event.subject: event for event in sorted(events, key=lambda event: event.time_ns)}
