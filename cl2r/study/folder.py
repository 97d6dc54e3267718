"""The folder of a study below the storage root: its files, its name, the lock of its driver, and `about.json`.

`about.json` (command, version, the driver's machine, times) may be shown to others, so it holds no name of a user or
machine, no path of a home directory and no secret.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import signal
import socket
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import yaml

from cl2r import __version__
from cl2r.errors import InputError
from cl2r.runtime.environment import commit, environment, shareable_command
from cl2r.storage.claims import HeldError, last_disk_holder
from cl2r.storage.documents import json_mapping, yaml_mapping
from cl2r.storage.path import StoragePath, at
from cl2r.storage.seal import SealError, owner_of, read_beside, seal_path, write_beside
from cl2r.study.ledger import Event, Ledger

log = logging.getLogger(__name__)
ABOUT_FORMAT = 1
CURE = "the study's command writes it again, or restore it from a copy"


class StudyFolder:
    """`storage`/studies/`name`; links are in `storage` and shared by all studies."""

    def __init__(self, storage: StoragePath | Path, name: str) -> None:
        if Path(name).name != name or name in ("", ".."):
            raise InputError(f"--name {name}: give the name of one folder, without slashes")
        self._open(at(storage) / "studies" / name)
        self.storage = at(storage)

    @classmethod
    def at(cls, path: StoragePath) -> Self:
        """Return the study in a folder that may have been moved or copied, to read it; its links may be elsewhere."""
        folder = cls.__new__(cls)
        folder._open(path)
        folder.storage = path
        return folder

    def _open(self, path: StoragePath) -> None:
        self.path, self.name = path, path.name
        self.specification = self.path / "study.yaml"  # the id and the specification that the name stands for
        self.about = self.path / "about.json"
        self.ledger = Ledger(self.path / "ledger", self.find_id)
        self.live = self.path / "live"  # progress files of running training processes
        self.journal = self.path / "optuna.journal"
        self._lock = self.path / "driver.lock"

    def claim_name(self, identity: dict[str, Any]) -> str:
        """Register the specification under this name, or check that it is unchanged; return the study's id.

        A damaged study.yaml is set aside and written again if the ledger shows that it stood for `identity`.
        """
        known = self.check_name(identity)
        entry = {"id": known or uuid.uuid4().hex, "specification": identity}
        try:
            if known and self._read_specification():
                return known
        except InputError as error:
            log.warning("%s; it is set aside and written again", str(error).removesuffix(f"; {CURE}"))
            self.specification.set_aside()
        write_beside(self.specification, yaml.safe_dump(entry).encode(), f"study {entry['id']}")
        self.ledger = Ledger(self.path / "ledger", self.find_id)
        return str(entry["id"])

    def check_name(self, identity: dict[str, Any]) -> str:
        """Return the study's id, or "" if the name is free. Raise InputError if it stands for something else."""
        try:
            stored = self._read_specification()
        except InputError as error:
            return self._restored_id(identity, str(error).removesuffix(f"; {CURE}"))
        if not stored:
            return self._restored_id(identity, f"{self.specification} is missing") if self.ledger.events() else ""
        if stored["specification"] != yaml.safe_load(yaml.safe_dump(identity)):  # tuples become lists
            old, new = _flat(stored["specification"]), _flat(identity)
            lines = [f"study {self.name!r} has another specification; choose another --name"]
            for key in sorted(old.keys() | new.keys()):
                there, here = old.get(key, "not given"), new.get(key, "not given")
                lines += [f"  {key}: {there} there, {here} here"] if there != here else []
            raise InputError("\n".join(lines))
        return str(stored["id"])

    def _read_specification(self) -> dict[str, Any]:
        """Return the content of study.yaml; empty if there is no file. Raise InputError if it is damaged."""
        try:
            entry = yaml_mapping(self.specification.read_bytes(), self.specification, CURE)
            read_beside(self.specification, f"study {entry.get('id')}")
            return entry
        except FileNotFoundError:
            return {}
        except SealError as error:
            raise InputError(f"{self.specification}: damaged ({error}); {CURE}") from error
        except IsADirectoryError as error:
            raise InputError(f"{self.specification}: a folder is in its place; {CURE}") from error
        except NotADirectoryError as error:
            raise InputError(f"{self.path}: a file is in place of a folder; move it away") from error

    def fault(self) -> str:
        """Return what is wrong with study.yaml, and what to do; empty if it is sound."""
        try:
            return "" if self._read_specification() else f"missing; {CURE}"
        except InputError as error:
            return str(error).removeprefix(f"{self.specification}: ")

    def _restored_id(self, identity: dict[str, Any], fault: str) -> str:
        """Return the id that the ledger has for the specification. Raise InputError if it shows another or none."""
        for event in reversed(self.ledger.events("opened")):
            with contextlib.suppress(SealError, OSError):
                study = _owner_id(owner_of(event.path.read_bytes()))
                if dataclasses.replace(event, study=study).read().get("specification") == digest(identity):
                    return study
                break
        else:
            raise InputError(f"{fault}, and its ledger does not say what it specified; choose another --name")
        raise InputError(f"{fault}, and that name belongs to another study; choose another --name")

    def find_id(self) -> str:
        """Return the study's id: from study.yaml or, if that is missing or damaged, from the seals of events."""
        with contextlib.suppress(InputError):
            if stored := self._read_specification():
                return str(stored["id"])
        ids = Counter[str]()
        for path in (self.path / "ledger").list("*.json"):
            with contextlib.suppress(SealError, OSError):
                ids[_owner_id(owner_of(path.read_bytes()))] += 1
        return ids.most_common(1)[0][0] if ids else ""

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
        self._write_about(entry)

    def update_about(self) -> None:
        """Bring the times in `about.json` up to date; without such a file do nothing."""
        if entry := self.read_about():
            self._write_about(entry)

    def _write_about(self, entry: dict[str, Any]) -> None:
        content = json.dumps(entry, indent=1, ensure_ascii=False).encode()
        write_beside(self.about, content, self.owner(self.about.name))

    def makers(self) -> list[str]:
        """Return what made the links of this study (`cl2r.config.keys`), the last command's resources first."""
        sessions = [event.read() for event in reversed(self.ledger.events("opened"))]
        return list(dict.fromkeys(entry["made_by"] for entry in sessions if "made_by" in entry))

    def owner(self, name: str) -> str:
        """Return the owner of the file `name` of this folder, as stated in its seal."""
        return f"study {self.ledger.study}, {name}"

    def read_about(self) -> dict[str, Any]:
        """Return `about.json` with the times that the ledger has now; {}, with a warning, if it is damaged.

        A copy without a ledger keeps its times. Without a file it is {}.
        """
        try:
            entry = json_mapping(read_copied(self.about, self.owner(self.about.name)), self.about)
        except FileNotFoundError:
            return {}
        except ValueError as error:
            log.warning("%s is damaged (%s); the next command of the study writes it again", self.about, error)
            return {}
        events = self.ledger.events()
        return {**entry, **driver_times(events)} if events else entry


def read_copied(path: StoragePath, belongs_to: str) -> bytes:
    """Return a file that fits its seal. Files that were copied somewhere without any seal are read as they are."""
    if not seal_path(path).exists() and not (path.parent / "ledger").exists() and not path.parent.list("*.seal"):
        return path.read_bytes()
    return read_beside(path, belongs_to)


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


def _owner_id(owner: str) -> str:
    """Return the id in the owner of an event, `study ID, event NAME`. Raise SealError if it is none."""
    found = re.fullmatch(r"study ([0-9a-f]{32}), event .+", owner)
    if found is None:
        raise SealError(f"it belongs to {owner}")
    return found[1]


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
